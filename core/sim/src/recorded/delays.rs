//! Recorded delays of managers and programs.

use std::collections::BTreeMap;

use super::job::Watched;
use trainmaster_core::{
    decision::{Issue, Verdict},
    ids::{Incarnation, JobId},
    state::State,
    time::{Span, Time},
};

#[derive(Default)]
pub(super) struct Delays {
    /// Jobs with an order to start: the incarnation, and the time of the order.
    starting: BTreeMap<JobId, (Incarnation, Time)>,
    /// Jobs with an order to stop: the running incarnation, and the time of the order.
    stopping: BTreeMap<JobId, (Incarnation, Time)>,
    /// Time since which slots of an incarnation are observed.
    seen: BTreeMap<JobId, (Incarnation, Time)>,
    enacted: Vec<Span>,
    released: Vec<Span>,
}

/// Medians of the delays.
pub(super) struct Medians {
    /// From a decision to its enactment by the manager.
    pub(super) enact: Span,
    /// From the observed slots to the first step. None if no start was observed.
    pub(super) start: Option<Span>,
    /// From the manager's order to stop to the release of the slots.
    pub(super) checkpoint: Span,
}

impl Delays {
    pub(super) fn told(&mut self, state: &State, issue: &Issue) {
        let (id, now) = (issue.job, state.now);
        let Some(job) = state.job(id) else { return };
        let running = job.seen.allocation.as_ref().map(|_| job.seen.incarnation);
        match (&issue.verdict, running) {
            (Verdict::Run(_), None) => {
                if self.starting.get(&id).is_none_or(|(told, _)| *told != issue.incarnation) {
                    self.starting.insert(id, (issue.incarnation, now));
                }
            }
            (Verdict::Run(_), Some(running)) if running == issue.incarnation => drop(self.stopping.remove(&id)),
            (Verdict::Release(_), _) => {
                self.starting.remove(&id);
                self.stopping.remove(&id);
            }
            (Verdict::Run(_), Some(running)) | (_, Some(running)) => {
                self.starting.remove(&id);
                self.stopping.entry(id).or_insert((running, now));
            }
            (_, None) => drop(self.starting.remove(&id)),
        }
    }

    pub(super) fn observed(&mut self, at: Time, id: JobId, incarnation: Incarnation, has_slots: bool) {
        if self.stopping.get(&id).is_some_and(|(ran, _)| !has_slots || *ran != incarnation) {
            let told = self.stopping.remove(&id).expect("just looked up").1;
            self.released.push(at - told);
        }
        if !has_slots {
            self.seen.remove(&id);
            return;
        }
        if let Some((_, told)) = self.starting.remove(&id).filter(|(told, _)| *told == incarnation) {
            self.enacted.push(at - told);
        }
        if self.seen.get(&id).is_none_or(|(seen, _)| *seen != incarnation) {
            self.seen.insert(id, (incarnation, at));
        }
    }

    /// Time since which slots of this incarnation are observed.
    pub(super) fn seen(&self, id: JobId, incarnation: Incarnation) -> Option<Time> {
        self.seen.get(&id).filter(|(seen, _)| *seen == incarnation).map(|(_, at)| *at)
    }

    pub(super) fn forget(&mut self, id: JobId) {
        self.starting.remove(&id);
        self.stopping.remove(&id);
        self.seen.remove(&id);
    }

    pub(super) fn medians<'a>(&self, jobs: impl Iterator<Item = &'a Watched>) -> Medians {
        let enact = median(self.enacted.clone()).unwrap_or(Span::ZERO);
        let released = median(self.released.clone()).unwrap_or(enact);
        Medians {
            enact,
            start: median(jobs.flat_map(|job| job.starts.iter().copied()).collect()),
            checkpoint: Span((released.0 - enact.0).max(0)),
        }
    }
}

/// The median; the lower one of two.
pub(super) fn median(mut spans: Vec<Span>) -> Option<Span> {
    spans.sort_unstable();
    spans.get(spans.len().saturating_sub(1) / 2).copied()
}
