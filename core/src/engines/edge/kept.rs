//! GPUs on servers where an idle slot keeps its GPU ([`Place::keeps_gpus`](crate::server::Place::keeps_gpus)). Jobs
//! can't take turns there, so such a GPU has chunks of one job until that ends.

use std::{collections::BTreeMap, sync::Arc};

use super::memo::{Memo, Worker};
use crate::{
    ids::{JobId, ServerId},
    job::Job,
    resources::{Amounts, GPU},
    shape::Role,
    state::{Mandate, State},
    topology::Domain,
};

/// The workers of one round on such servers.
#[derive(Default)]
pub(super) struct Kept {
    /// The job of each one that has one.
    by: BTreeMap<Worker, JobId>,
    /// Number of these workers on each server.
    on: BTreeMap<ServerId, usize>,
    /// Needs for which no worker was found, with the number of workers that other jobs have.
    unmet: BTreeMap<Needs, usize>,
}

/// Demand of a worker, labels, domain, and the size of a chunk. Jobs with the same needs have the same candidates.
type Needs = (Amounts, BTreeMap<String, String>, Option<Arc<Domain>>, i64);

fn needs(job: &Job) -> Needs {
    let size = job.spec.dataset.as_ref().map_or(0, |data| data.chunk_size);
    (job.worker.amounts.clone(), job.spec.labels.clone(), job.domain.clone(), size)
}

impl Kept {
    /// O(servers), and where there are such servers O(jobs + their workers).
    pub(super) fn of(state: &State, memo: &Memo) -> Self {
        let mut kept = Self::default();
        if !state.servers.iter().any(|server| server.place.keeps_gpus) {
            return kept;
        }
        for job in state.jobs.values() {
            // The slots of a job that the engine may not change stay, also if its memory differs.
            let stays = job.verdict.allocation().filter(|_| state.mandate(job) != Mandate::Free);
            match memo.jobs.get(&job.id).filter(|known| known.placed || stays.is_some()) {
                Some(known) => known.workers.values().for_each(|worker| kept.take(state, *worker, job.id)),
                None => {
                    for slot in stays.iter().flat_map(|planned| planned.of(Role::Worker)) {
                        let worker = |gpu| Worker { server: slot.server, gpu };
                        slot.devices.iter().for_each(|share| kept.take(state, worker(share.device), job.id));
                    }
                }
            }
        }
        kept
    }

    /// A job gets a worker.
    pub(super) fn take(&mut self, state: &State, worker: Worker, job: JobId) {
        if state.server(worker.server).place.keeps_gpus && self.by.insert(worker, job).is_none() {
            *self.on.entry(worker.server).or_default() += 1;
        }
    }

    /// Whether a worker has another job than this one.
    pub(super) fn is_of_another(&self, worker: Worker, job: JobId) -> bool {
        self.by.get(&worker).is_some_and(|holder| *holder != job)
    }

    /// Whether a server has no GPU for another worker. Where devices aren't listed, foreign use isn't known by device.
    pub(super) fn is_full(&self, state: &State, id: ServerId) -> bool {
        let server = state.server(id);
        let count = self.on.get(&id).copied().unwrap_or(0) as i64;
        server.place.keeps_gpus && server.devices.is_empty() && (count + 1) * 1000 > server.usable()[GPU]
    }

    /// A job found no worker, because others have this many that would suit it.
    pub(super) fn fail(&mut self, job: &Job, others: usize) {
        if others > 0 {
            self.unmet.insert(needs(job), others);
        }
    }

    /// The number of workers that others have, if that is why jobs like this one found none.
    pub(super) fn taken_by_others(&self, job: &Job) -> Option<usize> {
        if self.unmet.is_empty() { None } else { self.unmet.get(&needs(job)).copied() }
    }

    /// Number of workers that have a job.
    pub(super) fn len(&self) -> usize {
        self.by.len()
    }
}
