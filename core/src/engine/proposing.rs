//! What engines say of jobs.

use std::sync::Arc;

use crate::{
    decision::{Allocation, Proposal, Verdict},
    job::Job,
    reason::Reason,
};

impl Proposal {
    /// A job gets these slots; where it has just these nothing is proposed.
    pub(crate) fn run(&mut self, job: &Job, allocation: Arc<Allocation>) {
        self.propose(job, Verdict::Run(allocation));
    }

    /// A job waits, or stops and waits; where it waits for the same kind of reason nothing is proposed.
    pub(crate) fn wait(&mut self, job: &Job, reason: Reason) {
        self.propose(job, Verdict::Wait(reason));
    }

    fn propose(&mut self, job: &Job, verdict: Verdict) {
        if !job.verdict.same_kind(&verdict) {
            self.changes.push((job.id, verdict));
        }
    }
}
