//! The slots that were sent to a job's manager, and their history.

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

/// The slots that were sent to a job's manager, and their history.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Issued {
    /// The issued slots: at most the planned ones, as far as they fit beside slots that aren't released yet.
    pub allocation: Option<Arc<Allocation>>,
    /// Why fewer slots are issued than planned.
    pub reason: Option<Reason>,
    /// The decision that last changed the issue. A refusal of an older decision concerns an older issue.
    pub decision: DecisionId,
    /// The incarnation that should run. Each restart gets the next number.
    pub incarnation: Incarnation,
    /// Number of in-place changes of this incarnation.
    pub revision: Revision,
    /// The incarnation that still runs while its successor is requested.
    pub(crate) outgoing: Option<Outgoing>,
    /// The highest incarnation so far. Each number is used once.
    pub last_incarnation: Incarnation,
    /// The shape that was last issued. Empty before the first issue.
    pub last_shape: Shape,
    /// Time at which slots were last given or changed. A withdrawal of all slots leaves it as it is. Before the first
    /// slots: the job's arrival.
    pub changed: Time,
    /// Times at which a job that had started was told to restart with another shape or in another place. The newest is
    /// last, and the others are of the hour before it.
    pub restarted_at: Vec<Time>,
    /// Number of changes of shape while the job ran.
    pub rescales: u32,
    /// Number of consecutive refusals by the manager.
    pub refusals: u32,
    /// Time before which nothing is issued after a refusal, and the manager's reason.
    pub blocked: Option<(Time, Arc<str>)>,
    /// Whether something was issued after the manager's last refusal.
    pub(crate) retried: bool,
    /// Number of refusals of an issue that was no longer current.
    pub late_refusals: u32,
    /// The manager may have been told to stop the issued slots, so the next start is a new incarnation.
    pub revoked: bool,
    /// Service up to `since`.
    served: Service,
    /// Thousandths of GPUs in use from `since` on.
    gpus: i64,
    since: Time,
}

/// An incarnation that continues if its successor is refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Outgoing {
    pub(crate) incarnation: Incarnation,
    revision: Revision,
    reported: BTreeMap<(Role, u32), u64>,
}

impl Issued {
    /// The initial value for a job that arrives.
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
            restarted_at: Vec::new(),
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

    /// Adds the service up to now. From now on the job uses `gpus`.
    fn serve(&mut self, now: Time, gpus: i64) {
        self.served = self.service(now);
        (self.gpus, self.since) = (gpus, now);
    }

    fn service(&self, now: Time) -> Service {
        let span = (now - self.since).max(Span::ZERO);
        self.served.saturating_add(self.gpus.saturating_mul(span.0))
    }
}

/// The service that a job has received, and changes of its issued slots.
impl Job {
    /// The GPU time of the job so far: from the issue of its slots to their withdrawal, including restarts.
    pub fn service(&self, now: Time) -> Service {
        self.issued.service(now)
    }

    /// The time since which the job has waited for slots: its arrival, the withdrawal of its slots, or the end of a
    /// pause. `None` if it has some.
    pub fn waits_since(&self) -> Option<Time> {
        self.issued.allocation.is_none().then_some(self.issued.since)
    }

    /// Ends a pause, which isn't part of the wait.
    pub(crate) fn wait_anew(&mut self, now: Time) {
        if self.issued.allocation.is_none() {
            self.issued.serve(now, 0);
        }
    }

    /// Whether the job is changing: it was told to start, move or leave and isn't observed to have done so, or it
    /// started repeatedly and hasn't reported since.
    ///
    /// An engine with turns leaves such a job alone. Otherwise each round would undo the last one if a manager or a
    /// start takes longer than a round, and no job would ever train. From the third start on, a job without reports is
    /// left alone for one minute more per start, and at most for ten minutes.
    pub fn is_in_transit(&self, now: Time) -> bool {
        const MOST_MINUTES: u32 = 10;
        let issued = &self.issued;
        let minutes = issued.last_incarnation.0.saturating_sub(2).min(MOST_MINUTES);
        let starts = self.learnt.reported.is_empty() && now - issued.changed < Span::seconds(60 * i64::from(minutes));
        issued.allocation.is_some() && (issued.revoked || self.seen.allocation != issued.allocation || starts)
    }

    /// Sets the issued slots from now on. `None`: no slots.
    pub(crate) fn issue(&mut self, allocation: Option<Arc<Allocation>>, now: Time) {
        let gpus = allocation.as_ref().map_or(0, |allocation| self.gpus(allocation.shape()));
        let waits_on = allocation.is_none() && self.issued.allocation.is_none();
        self.issued.allocation = allocation;
        self.choose_batch(now);
        if !waits_on {
            self.issued.serve(now, gpus);
        }
    }

    /// Withdraws the issued slots.
    pub(crate) fn revoke(&mut self, now: Time) {
        self.issued.revoked = true;
        self.issued.serve(now, 0);
    }

    /// Numbers a change of the issued slots: as a revision in place, or as a new incarnation.
    pub(crate) fn renumber(&mut self, in_place: bool) {
        let issued = &mut self.issued;
        if in_place {
            issued.revision.0 += 1;
            return;
        }
        let reported = std::mem::take(&mut self.learnt.reported);
        if issued.revoked {
            // The old incarnation was told to stop.
            issued.outgoing = None;
        } else if self.seen.allocation.is_some() && self.seen.incarnation == issued.incarnation {
            let (incarnation, revision) = (issued.incarnation, issued.revision);
            issued.outgoing = Some(Outgoing { incarnation, revision, reported });
        }
        issued.last_incarnation.0 += 1;
        issued.incarnation = issued.last_incarnation;
        issued.revision = Revision(0);
    }

    /// Whether the observed incarnation is the one that the current one was to replace.
    pub(crate) fn can_go_back(&self) -> bool {
        let seen = self.seen.incarnation;
        !self.issued.revoked
            && self.seen.phase != Phase::Stopping
            && self.issued.outgoing.as_ref().is_some_and(|outgoing| outgoing.incarnation == seen)
    }

    /// Returns to the incarnation before the current one, with the next revision of it.
    pub(crate) fn go_back(&mut self) {
        let Some(outgoing) = self.issued.outgoing.take() else { return };
        self.issued.incarnation = outgoing.incarnation;
        self.issued.revision = Revision(outgoing.revision.0 + 1);
        self.learnt.reported = outgoing.reported;
    }

    /// The issue to send to the manager.
    pub(crate) fn issue_of(&self, verdict: Verdict) -> Issue {
        Issue { job: self.id, verdict, incarnation: self.issued.incarnation, revision: self.issued.revision }
    }

    /// Records the observed slots as issued, if that is possible without a restart.
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
