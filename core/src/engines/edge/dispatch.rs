//! A_greedy: each chunk goes to the worker at which it adds least to the average training time of all jobs (Alg. 2 and
//! 3).

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
};

use super::{
    memo::{Item, Stage, Worker},
    queue::Key,
    round::Round,
};
use crate::{
    decision::Devices,
    engine::EngineError,
    ids::ServerId,
    job::{Job, Training},
    place::Use,
    resources::GPU,
    server::Server,
    shape::Role,
    time::{Span, Time},
};

/// A worker and the increase for a chunk. In order of Q, then rank, then worker.
type Offer = Reverse<(u128, Rank, Worker)>;

/// Which of two workers with the same Q gets a chunk. An unused one in the cloud comes before a shared one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Edge,
    /// In the cloud, with chunks of this job.
    Cloud,
    /// In the cloud, with chunks of other jobs alone.
    Shared,
}

/// The possible workers for a job's chunks during their dispatch.
struct Market<'a> {
    job: &'a Job,
    /// Time of a chunk, if the parameter servers are on another server.
    apart: Span,
    /// Time of a chunk, if the whole job is in one place.
    together: Span,
    offers: BinaryHeap<Offer>,
    /// Unused workers in the cloud. The one with the shortest upload is last.
    cloud: Vec<(Span, Worker)>,
    /// Workers of the job, and the indices of their slots.
    own: BTreeMap<Worker, u32>,
    /// Maximum number of workers of the job.
    most: usize,
    /// Number of workers that would suit it and that other jobs keep.
    kept: usize,
}

/// Time of one worker for all passes over one chunk: with separate parameter servers, and with the whole job in one
/// place and no communication (Eq. 1). If the mini-batch time is only known from measured speeds, both are equal.
///
/// # Errors
/// Why the time is unknown.
pub(super) fn chunk_times(job: &Job) -> Result<(Span, Span), String> {
    let training = Training::of(job).map_err(|error| error.to_string())?;
    let data = job.spec.dataset.as_ref().expect("it has a training");
    let apart = training.time_of(data.epochs.into());
    let batches = i64::from(data.epochs).saturating_mul(data.batches_per_chunk.into());
    let together = data.batch_time.map_or(apart, |time| Span(time.0.saturating_mul(batches)));
    if apart.0 > super::LONGEST.0 {
        return Err(format!("dataset: a chunk would take {apart}, which must be at most {}", super::LONGEST));
    }
    Ok((apart, together.min(apart)))
}

impl<'a> Round<'a> {
    /// Dispatches the chunks of a job that have no worker, in order, while workers can take them. Returns true if all
    /// chunks have a worker now.
    ///
    /// The first chunk considers all workers, at O(log n) for n chunks that are pending there (and for each on its
    /// way). Each later chunk only updates the worker chosen for the previous one, O(log n + log workers).
    pub(super) fn dispatch(&mut self, job: &'a Job, times: (Span, Span)) -> Result<bool, EngineError> {
        if self.memo.jobs[&job.id].workers.is_empty() && self.kept.taken_by_others(job).is_some() {
            return Ok(false);
        }
        let unsent: Vec<u32> = self.memo.jobs[&job.id].unsent().collect();
        let mut market = self.market(job, times)?;
        if market.own.is_empty() && market.offers.is_empty() && market.cloud.is_empty() {
            self.kept.fail(job, market.kept);
        }
        // The cloud is limited. It takes a whole job, or all remaining chunks of one, only if it has a worker for each
        // chunk.
        let mut whole = market.own.is_empty() && market.cloud.len() >= market.most.min(unsent.len());
        let mut all_to_cloud = false;
        for (sent, chunk) in unsent.iter().enumerate() {
            let worker = loop {
                self.budget.spend(1)?;
                let cloud = market.cloud_offer(if whole { market.together } else { market.apart });
                let edge = if all_to_cloud && cloud.is_some() { None } else { market.offer() };
                let (q, worker, to_cloud) = match (edge, cloud) {
                    (Some((q, rank, worker)), Some((dearer, _))) if (q, rank) < (dearer, Rank::Shared) => {
                        (q, worker, false)
                    }
                    (_, Some((q, worker))) => (q, worker, true),
                    (Some((q, _, worker)), None) => (q, worker, false),
                    (None, None) => return Ok(false),
                };
                if to_cloud {
                    _ = market.cloud.pop()
                } else {
                    _ = market.offers.pop()
                }
                if !self.index.stores(self.state.server(worker.server), self.memo.jobs[&job.id].size) {
                    continue;
                }
                let new = !market.own.contains_key(&worker);
                if new && !self.settle_in(job, worker.server) {
                    continue;
                }
                if !self.find_home(job, worker) {
                    if new {
                        self.shift(job, Role::Worker, worker.server, &Devices::new(), Use::Idle, Use::None);
                    }
                    if self.state.settings.shape.of(&job.spec).colocate {
                        return Ok(false);
                    }
                    // There may be room beside another worker.
                    continue;
                }
                if to_cloud && whole && self.is_home_in_cloud(job.id) {
                    market.apart = market.together;
                    self.change(job.id).train_in(market.together);
                }
                self.send(job, *chunk, worker, &mut market);
                all_to_cloud |= to_cloud && (whole || market.cloud.len() >= unsent.len() - sent - 1);
                self.memo.increase = self.memo.increase.saturating_add(q);
                break worker;
            };
            whole = false;
            if let Some(q) = self.increase(job, worker, market.apart) {
                let cloud = self.state.server(worker.server).place.cloud;
                market.offers.push(Reverse((q, if cloud { Rank::Cloud } else { Rank::Edge }, worker)));
            }
        }
        Ok(true)
    }

    /// Collects the offers of all workers.
    fn market(&mut self, job: &'a Job, (apart, together): (Span, Span)) -> Result<Market<'a>, EngineError> {
        let dispatched = &self.memo.jobs[&job.id];
        let own: BTreeMap<Worker, u32> = dispatched.workers.iter().map(|(index, worker)| (*worker, *index)).collect();
        let most = job.bounds().workers.1 as usize;
        let (apart, together) = if own.is_empty() { (apart, together) } else { (dispatched.each, dispatched.each) };
        if dispatched.each != apart {
            // The job was in one place, and lost all its workers.
            self.change(job.id).each = apart;
        }
        let mut market =
            Market { job, apart, together, offers: BinaryHeap::new(), cloud: Vec::new(), own, most, kept: 0 };
        let mut offers = Vec::new();
        for id in (0..self.index.lanes.len() as u32).map(ServerId) {
            let server = self.state.server(id);
            if !self.takes(server, job) || (server.place.cloud && !self.engine.cloud) {
                continue;
            }
            self.budget.spend(self.index.lanes[id.index()].len() as u64)?;
            let full = self.kept.is_full(self.state, id);
            for (gpu, lane) in self.index.lanes[id.index()].iter().enumerate() {
                let worker = Worker { server: id, gpu: gpu as u16 };
                // A server may have typed GPUs without listing its devices.
                let untyped = |kind| server.devices.is_empty() && server.capacity[kind] > 0;
                let suits = |kind| kind == GPU || kind == lane.kind || untyped(kind);
                let wanted = job.worker.devices.is_some_and(|(kind, _)| suits(kind));
                if !wanted || (!market.own.contains_key(&worker) && self.is_foreign(worker)) {
                    continue;
                }
                let (own, unused) = (market.own.contains_key(&worker), lane.pending.is_empty());
                if !own && (full || self.kept.is_of_another(worker, job.id)) {
                    market.kept += 1;
                    continue;
                }
                let rank = match (server.place.cloud, own) {
                    (false, _) => Rank::Edge,
                    (true, true) => Rank::Cloud,
                    (true, false) if unused => {
                        market.cloud.push((self.upload(job, server), worker));
                        continue;
                    }
                    (true, false) if self.engine.cloud_queues => Rank::Shared,
                    (true, false) => continue,
                };
                if let Some(q) = self.increase(job, worker, market.apart) {
                    offers.push(Reverse((q, rank, worker)));
                }
            }
        }
        market.offers = offers.into();
        market.cloud.sort_unstable_by_key(|offer| Reverse(*offer));
        Ok(market)
    }

    /// Whether a server can take chunks of a job.
    fn takes(&self, server: &Server, job: &Job) -> bool {
        self.index.board.room.accepts(self.state, server.id, job)
            && server.hosts.takes(Role::Worker)
            && job.worker.amounts.fits(&server.usable())
            && self.index.stores(server, self.memo.jobs[&job.id].size)
    }

    fn upload(&self, job: &Job, server: &Server) -> Span {
        server.place.upload(job.spec.dataset.as_ref().map_or("", |data| &data.upload))
    }

    /// Q (Eq. 5): the increase of Σ_j of the average time of j's chunks by one more chunk on this worker, in parts of
    /// [`ONE`](super::queue::ONE) of a millisecond. It consists of the chunk's upload, the chunks before it, its
    /// training, and the delay of the chunks after it. The second and the fourth are zero for a cloud worker without
    /// other chunks.
    fn increase(&self, job: &Job, worker: Worker, each: Span) -> Option<u128> {
        let server = self.state.server(worker.server);
        let dispatched = &self.memo.jobs[&job.id];
        let upload = self.upload(job, server);
        let t0 = Time(self.state.now.0.saturating_add(upload.0));
        let inverse = each.0.max(0) as u128 * dispatched.chunks.len() as u128;
        let pending = &self.index.lane(worker)?.pending;
        let found = pending.at(self.state.now, t0, inverse, each, self.engine.count_coming);
        let (weight, takes) = (u128::from(dispatched.weight()), each.0.max(0) as u128);
        Some(weight * (upload.0.max(0) as u128 + found.ahead + takes) + takes * found.behind)
    }

    /// Assigns a chunk to a worker permanently. The job has a slot there, with its room reserved.
    fn send(&mut self, job: &'a Job, chunk: u32, worker: Worker, market: &mut Market<'_>) {
        let index = match market.own.get(&worker) {
            Some(index) => *index,
            None => {
                let dispatched = self.change(job.id);
                let index = dispatched.next;
                dispatched.next += 1;
                dispatched.workers.insert(index, worker);
                market.own.insert(worker, index);
                self.kept.take(self.state, worker, job.id);
                index
            }
        };
        let now = self.state.now;
        let ready = now + self.upload(job, self.state.server(worker.server));
        let order = self.memo.orders;
        self.memo.orders += 1;
        let dispatched = self.change(job.id);
        let sent = &mut dispatched.chunks[chunk as usize];
        (sent.worker, sent.order, sent.ready, sent.stage) = (Some(index), order, ready, Stage::Queued);
        let key = Key { inverse: dispatched.inverse(), order };
        let entry = dispatched.entry(Item { job: job.id, chunk });
        let size = dispatched.size;
        self.index.stored[worker.server.index()] += size;
        if ready > now {
            let lane = self.index.lane_mut(worker).expect("it made an offer");
            lane.pending.coming.insert((ready, key), entry);
            self.index.coming.insert((ready, worker, key));
        } else {
            self.land(worker, key, entry);
        }
    }
}

impl Market<'_> {
    /// The allowed worker with the smallest Q. If the job has its maximum number of workers, one of them.
    fn offer(&mut self) -> Option<(u128, Rank, Worker)> {
        loop {
            let Reverse((q, rank, worker)) = *self.offers.peek()?;
            if self.own.len() < self.most || self.own.contains_key(&worker) {
                return Some((q, rank, worker));
            }
            self.offers.pop();
        }
    }

    /// The best unused worker in the cloud. Its Q is upload and training alone.
    fn cloud_offer(&self, each: Span) -> Option<(u128, Worker)> {
        let (upload, worker) = *self.cloud.last().filter(|_| self.own.len() < self.most)?;
        let chunks = self.job.spec.dataset.as_ref().map_or(1, |data| u64::from(data.chunks.max(1)));
        Some((u128::from(super::queue::ONE / chunks) * (upload.0.max(0) + each.0.max(0)) as u128, worker))
    }
}
