//! Pending messages for one attached manager: at most one entry per job, at any reading speed.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Notify;
use tonic::Status;
use trainmaster_proto::v1;

/// Maximum number of changed jobs that wait. A manager with more doesn't read. It gets everything when it returns.
const MOST_CHANGES: usize = 100_000;

#[derive(Debug, Default)]
struct Pending {
    full: bool,
    stamp: (u64, u64),
    jobs: BTreeMap<u64, v1::JobPlan>,
    fresh: bool,
    closed: Option<Status>,
}

/// Plans for one stream. The scheduler adds them and the stream removes them. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outbox(Arc<(Mutex<Pending>, Notify)>);

impl Outbox {
    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a plan. A full plan replaces the pending one; a delta is merged into it.
    pub(crate) fn put(&self, full: bool, term: u64, decision: u64, jobs: impl IntoIterator<Item = v1::JobPlan>) {
        let mut pending = self.pending();
        if full {
            pending.jobs.clear();
            pending.full = true;
        }
        pending.stamp = (term, decision);
        pending.jobs.extend(jobs.into_iter().map(|job| (job.job, job)));
        pending.fresh |= full || !pending.jobs.is_empty();
        if !pending.full && pending.jobs.len() > MOST_CHANGES {
            let problem = format!("{} changes wait to be read; come back for all of them", pending.jobs.len());
            pending.jobs.clear();
            pending.closed.get_or_insert(Status::resource_exhausted(problem));
        }
        drop(pending);
        self.0.1.notify_one();
    }

    /// Ends the stream.
    pub(crate) fn close(&self, why: Status) {
        self.pending().closed.get_or_insert(why);
        self.0.1.notify_one();
    }

    /// Waits for the next plan.
    ///
    /// # Errors
    /// The reason why the stream must end.
    pub(crate) async fn next(&self) -> Result<v1::Plan, Status> {
        loop {
            {
                let mut pending = self.pending();
                if let Some(why) = &pending.closed {
                    return Err(why.clone());
                }
                if pending.fresh {
                    pending.fresh = false;
                    let (term, decision) = pending.stamp;
                    let jobs = std::mem::take(&mut pending.jobs).into_values().collect();
                    return Ok(v1::Plan { term, decision, ttl_ms: 0, jobs, full: std::mem::take(&mut pending.full) });
                }
            }
            self.0.1.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(job: u64, revision: u32) -> v1::JobPlan {
        v1::JobPlan { job, revision, ..v1::JobPlan::default() }
    }

    #[tokio::test]
    async fn a_manager_that_never_reads_is_left() {
        let outbox = Outbox::default();
        outbox.put(true, 1, 1, (0..MOST_CHANGES as u64 + 5).map(|at| job(at, 0)));
        assert!(outbox.next().await.is_ok(), "a whole plan may be of any length");
        outbox.put(false, 1, 2, (0..MOST_CHANGES as u64).map(|at| job(at, 0)));
        outbox.put(false, 1, 3, [job(u64::MAX, 0)]);
        assert_eq!(outbox.next().await.unwrap_err().code(), tonic::Code::ResourceExhausted);
    }

    #[tokio::test]
    async fn a_slow_manager_gets_the_newest_of_each_job() {
        let outbox = Outbox::default();
        outbox.put(true, 1, 1, [job(1, 0), job(2, 0)]);
        outbox.put(false, 1, 2, [job(2, 1), job(3, 0)]);
        let plan = outbox.next().await.unwrap();
        assert_eq!((plan.full, plan.decision), (true, 2));
        assert_eq!(plan.jobs, [job(1, 0), job(2, 1), job(3, 0)]);
        outbox.put(false, 1, 3, [job(1, 5)]);
        outbox.put(true, 1, 4, []);
        let plan = outbox.next().await.unwrap();
        assert_eq!((plan.full, plan.jobs.len()), (true, 0));
        outbox.put(false, 1, 5, []);
        outbox.close(Status::aborted("replaced"));
        assert_eq!(outbox.next().await.unwrap_err().code(), tonic::Code::Aborted);
    }
}
