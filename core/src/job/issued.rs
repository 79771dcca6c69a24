//! What a job's manager was told to give it, and how that came about.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{
    decision::{Allocation, Issue, Verdict},
    ids::{DecisionId, Incarnation, Revision},
    job::{active::Job, seen::Phase},
    reason::Reason,
    shape::{Role, Shape},
    time::{Span, Time},
};

/// GPU time, in thousandths of a GPU times milliseconds. A worker without a GPU counts as one GPU.
pub type Service = i64;

/// What a job's manager was told to give it, and how that came about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Issued {
    /// Its slots: at most what the plan says, and what fits beside what isn't released yet.
    pub allocation: Option<Arc<Allocation>>,
    /// Why that is less than the plan.
    pub reason: Option<Reason>,
    /// The decision since which it stands: a refusal of an older one is about something else.
    pub decision: DecisionId,
    /// The incarnation that is to run: each restart has the next number.
    pub incarnation: Incarnation,
    /// In-place changes of this incarnation.
    pub revision: Revision,
    /// The incarnation that still runs while its successor is asked for.
    pub(crate) outgoing: Option<Outgoing>,
    /// The highest incarnation so far: each number is used once.
    pub(crate) last_incarnation: Incarnation,
    /// The shape that was issued last; empty before the first.
    pub last_shape: Shape,
    /// When the slots last changed; before the first, when the job arrived.
    pub changed: Time,
    /// When the job changed shape while it ran, newest last, within the last hour.
    pub rescaled_at: Vec<Time>,
    /// How often it changed shape while it ran.
    pub rescales: u32,
    /// How often in a row the manager refused what was issued.
    pub refusals: u32,
    /// Not to be issued before this time, and the manager's reason.
    pub blocked: Option<(Time, Arc<str>)>,
    /// Something was issued since the manager last refused.
    pub(crate) retried: bool,
    /// Refusals of something that was no longer issued.
    pub late_refusals: u32,
    /// The manager may have been told to stop what is issued: what comes next is a new incarnation.
    pub revoked: bool,
    /// Service up to `since` …
    served: Service,
    /// … from when so many thousandths of GPUs count as used.
    gpus: i64,
    since: Time,
}

/// An incarnation that goes on if its successor is refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Outgoing {
    pub(crate) incarnation: Incarnation,
    revision: Revision,
    reported: BTreeMap<(Role, u32), u64>,
}

impl Issued {
    /// Nothing yet, for a job that arrives.
    pub(crate) fn nothing(arrival: Time) -> Self {
        Self {
            allocation: None,
            reason: None,
            decision: DecisionId(0),
            incarnation: Incarnation(0),
            revision: Revision(0),
            outgoing: None,
            last_incarnation: Incarnation(0),
            last_shape: Shape::default(),
            changed: arrival,
            rescaled_at: Vec::new(),
            rescales: 0,
            refusals: 0,
            blocked: None,
            retried: true,
            late_refusals: 0,
            revoked: false,
            served: 0,
            gpus: 0,
            since: arrival,
        }
    }

    /// Counts service up to now, and from now on that of so many GPUs.
    fn serve(&mut self, now: Time, gpus: i64) {
        self.served = self.service(now);
        (self.gpus, self.since) = (gpus, now);
    }

    fn service(&self, now: Time) -> Service {
        let span = (now - self.since).max(Span::ZERO);
        self.served.saturating_add(self.gpus.saturating_mul(span.0))
    }
}

/// What a job was given so far, and may be given without a restart.
impl Job {
    /// The GPU time that it had so far: from when its slots were issued to when they were taken back, restarts
    /// included.
    pub fn service(&self, now: Time) -> Service {
        self.issued.service(now)
    }

    /// Whether it was told to start, move or leave and isn't seen to have done so, or started repeatedly and hasn't
    /// reported since. An engine that takes turns leaves such a job alone: otherwise each round would undo the last one
    /// where a manager or a start takes longer than a round, and no job would ever train. A job that doesn't report is
    /// left alone for a minute longer at each start from the third on, for ten minutes at most.
    pub fn is_in_transit(&self, now: Time) -> bool {
        const MOST_MINUTES: u32 = 10;
        let issued = &self.issued;
        let minutes = issued.last_incarnation.0.saturating_sub(2).min(MOST_MINUTES);
        let starts = self.learnt.reported.is_empty() && now - issued.changed < Span::seconds(60 * i64::from(minutes));
        issued.allocation.is_some() && (issued.revoked || self.seen.allocation != issued.allocation || starts)
    }

    /// It is issued these slots, or none, from now on.
    pub(crate) fn issue(&mut self, allocation: Option<Arc<Allocation>>, now: Time) {
        let gpus = allocation.as_ref().map_or(0, |allocation| self.gpus(allocation.shape()));
        self.issued.allocation = allocation;
        self.issued.serve(now, gpus);
    }

    /// What it is issued is taken back.
    pub(crate) fn revoke(&mut self, now: Time) {
        self.issued.revoked = true;
        self.issued.serve(now, 0);
    }

    /// What it is issued has changed: in place, or as a new incarnation.
    pub(crate) fn renumber(&mut self, in_place: bool) {
        let issued = &mut self.issued;
        if in_place {
            issued.revision.0 += 1;
            return;
        }
        let reported = std::mem::take(&mut self.learnt.reported);
        if issued.revoked {
            // It was told to stop.
            issued.outgoing = None;
        } else if self.seen.allocation.is_some() && self.seen.incarnation == issued.incarnation {
            let (incarnation, revision) = (issued.incarnation, issued.revision);
            issued.outgoing = Some(Outgoing { incarnation, revision, reported });
        }
        issued.last_incarnation.0 += 1;
        issued.incarnation = issued.last_incarnation;
        issued.revision = Revision(0);
    }

    /// Whether what is seen is the incarnation that the present one was to replace.
    pub(crate) fn can_go_back(&self) -> bool {
        let seen = self.seen.incarnation;
        !self.issued.revoked
            && self.seen.phase != Phase::Stopping
            && self.issued.outgoing.as_ref().is_some_and(|outgoing| outgoing.incarnation == seen)
    }

    /// The incarnation before the present one goes on, with a revision of its own.
    pub(crate) fn go_back(&mut self) {
        let Some(outgoing) = self.issued.outgoing.take() else { return };
        self.issued.incarnation = outgoing.incarnation;
        self.issued.revision = Revision(outgoing.revision.0 + 1);
        self.learnt.reported = outgoing.reported;
    }

    /// What its manager is to be sent.
    pub(crate) fn issue_of(&self, verdict: Verdict) -> Issue {
        Issue { job: self.id, verdict, incarnation: self.issued.incarnation, revision: self.issued.revision }
    }

    /// What the manager made of it on its own counts as issued, where that can be said without a restart.
    pub(crate) fn adopt(&mut self, seen: Arc<Allocation>, decision: DecisionId, now: Time) {
        let issued = &self.issued;
        if self.can_go_back() {
            self.go_back();
        } else if self.seen.incarnation != issued.incarnation || issued.revoked || self.seen.phase == Phase::Stopping {
            return;
        } else if issued.allocation.as_ref() != Some(&seen) {
            self.renumber(true);
        }
        self.issue(Some(seen), now);
        self.issued.decision = decision;
        self.issued.reason = None;
    }
}
