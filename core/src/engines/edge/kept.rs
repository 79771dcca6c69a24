//! GPUs on servers where an idle slot keeps its GPU ([`Place::keeps_gpus`](crate::server::Place::keeps_gpus)). Jobs
//! can't take turns there, so such a GPU has chunks of one job until that ends.

use std::collections::BTreeMap;

use super::{index::Index, memo::Memo, memo::Worker};
use crate::{ids::JobId, state::State};

/// The workers of one round on such servers.
#[derive(Default)]
pub(super) struct Kept {
    /// The planned job of each one that has one.
    by: BTreeMap<Worker, JobId>,
    /// Number of workers there, and on all other servers.
    there: usize,
    elsewhere: usize,
}

impl Kept {
    /// O(servers), and O(jobs + their workers) if there are such servers.
    pub(super) fn of(state: &State, memo: &Memo, index: &Index) -> Self {
        let mut kept = Self::default();
        for (server, lanes) in state.servers.iter().zip(&index.lanes) {
            let of = if server.place.keeps_gpus { &mut kept.there } else { &mut kept.elsewhere };
            *of += lanes.len();
        }
        if kept.there > 0 {
            for (id, job) in memo.jobs.iter().filter(|(_, job)| job.placed) {
                job.workers.values().for_each(|worker| kept.take(state, *worker, *id));
            }
        }
        kept
    }

    /// A job gets a worker.
    pub(super) fn take(&mut self, state: &State, worker: Worker, job: JobId) {
        if state.server(worker.server).place.keeps_gpus {
            self.by.insert(worker, job);
        }
    }

    /// Whether a worker has another job than this one.
    pub(super) fn is_of_another(&self, worker: Worker, job: JobId) -> bool {
        self.by.get(&worker).is_some_and(|holder| *holder != job)
    }

    /// Whether all workers have a job.
    pub(super) fn is_all(&self) -> bool {
        self.elsewhere == 0 && self.there > 0 && self.by.len() >= self.there
    }

    /// Number of workers that have a job.
    pub(super) fn len(&self) -> usize {
        self.by.len()
    }
}
