//! Jobs that wait in a line: each starts with its requested shape, and running jobs don't change.

use std::sync::Arc;

use super::{board::Largest, ledger::Ledger, round::Round};
use crate::budget::EngineError;
use crate::{
    decision::{Allocation, Verdict},
    job::Job,
    reason::{Reason, Scope},
    state::{Mandate, State},
};

/// The queue's order.
pub(crate) fn by_arrival(state: &State, waiting: &mut [&Arc<Job>]) {
    waiting.sort_by_key(|job| (std::cmp::Reverse(state.priority(job)), job.arrival, job.id));
}

impl<'a, I> Round<'a, I> {
    /// The waiting jobs that the engine may plan, and the totals that jobs with slots leave. O(jobs).
    pub(crate) fn waiting_jobs(&self) -> (Vec<&'a Arc<Job>>, Ledger) {
        let mut ledger = Ledger::of(self.state);
        let mut waiting = Vec::new();
        for job in self.state.jobs.values() {
            match (&job.verdict, self.state.mandate(job)) {
                (Verdict::Run(allocation), _) => ledger.take(job, &job.total(allocation.shape()), 1),
                (_, Mandate::Free) => waiting.push(job),
                _ => {}
            }
        }
        (waiting, ledger)
    }

    /// Starts waiting jobs in order with their requested shapes, if `place` finds room for them.
    pub(crate) fn start_in_line(
        &mut self,
        (waiting, mut ledger): (&[&'a Arc<Job>], Ledger),
        backfill: bool,
        mut place: impl FnMut(&mut Self, &'a Arc<Job>) -> Result<Option<Arc<Allocation>>, EngineError>,
    ) -> Result<(), EngineError> {
        let state = self.state;
        let mut largest = Largest::default();
        let mut ahead = None;
        let mut position = 0;
        for job in waiting {
            if let Some(first) = ahead.filter(|_| !backfill) {
                position += 1;
                self.proposal.wait(job, Reason::Behind { job: first, position });
                continue;
            }
            let shape = job.spec.requested();
            let total = job.total(shape);
            let reason = if ledger.has(job, &total) {
                if let Some(allocation) = place(self, job)? {
                    ledger.take(job, &total, 1);
                    self.proposal.run(job, allocation);
                    continue;
                }
                largest.reason(state, &self.board.room, job, shape)
            } else {
                ledger.reason(state, job, &total)
            };
            // A limit of its tenant or queue doesn't hold back other jobs.
            let limited = matches!(&reason, Reason::Exhausted { scope: Scope::Tenant(_) | Scope::Queue(_), .. });
            self.proposal.wait(job, reason);
            if !limited {
                position += 1;
                ahead = Some(job.id);
            }
        }
        Ok(())
    }
}
