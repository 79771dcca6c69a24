//! Verdicts in an engine's proposal.

use std::sync::Arc;

use crate::{
    decision::{Allocation, Proposal, Verdict},
    job::Job,
    reason::Reason,
};

impl Proposal {
    /// Gives a job these slots. If it has exactly these, proposes nothing.
    pub(crate) fn run(&mut self, job: &Job, allocation: Arc<Allocation>) {
        self.propose(job, Verdict::Run(allocation));
    }

    /// Lets a job wait, and stops it if it runs. If it already waits for the same kind of reason, proposes nothing.
    pub(crate) fn wait(&mut self, job: &Job, reason: Reason) {
        self.propose(job, Verdict::Wait(reason));
    }

    fn propose(&mut self, job: &Job, verdict: Verdict) {
        if !job.verdict.same_kind(&verdict) {
            self.changes.push((job.id, verdict));
        }
    }
}
