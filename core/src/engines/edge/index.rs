//! Data derived from the memory and the state: the queue of each worker, the room on each server, and the times of due
//! events.

use std::{collections::BTreeSet, sync::Arc};

use imbl::Vector;

use super::{
    memo::{Dispatched, Item, Memo, Stage, Worker},
    queue::{Key, Pending, Running},
};
use crate::{
    engine::board::Board,
    ids::{JobId, ResourceId, ServerId},
    place::SortBy,
    resources::{BANDWIDTH, GPU},
    server::Server,
    state::{Change, State},
    time::Time,
};

/// The engine's index.
#[derive(Default)]
pub struct Index {
    built: bool,
    pub(super) board: Board,
    /// Workers by server and GPU.
    pub(super) lanes: Vec<Vec<Lane>>,
    /// MiB of chunks on each server.
    pub(super) stored: Vec<i64>,
    /// Ends of uploads.
    pub(super) coming: BTreeSet<(Time, Worker, Key)>,
    /// Workers that don't train the first chunk of their queue, because there is no room, or because its job can't be
    /// changed.
    pub(super) stalled: BTreeSet<Worker>,
}

/// One worker.
#[derive(Clone, Debug, Default)]
pub(super) struct Lane {
    pub(super) kind: ResourceId,
    pub(super) pending: Pending,
}

impl Index {
    /// Updates the index to the state. Returns true if it was rebuilt; then it is unknown what changed. O(changes), or
    /// O(servers · log + chunks · log) for a rebuild.
    pub(super) fn sync(&mut self, state: &State, memo: &Memo, changes: &Vector<Change>) -> bool {
        self.board.sync(state, changes, SortBy::Amount(BANDWIDTH));
        let rebuilt = !self.built || self.lanes.len() > state.servers.len();
        if rebuilt {
            *self = Self { built: true, board: std::mem::take(&mut self.board), ..Self::default() };
        }
        for id in (self.lanes.len() as u32..state.servers.len() as u32).map(ServerId) {
            let kinds = gpus(state.server(id));
            self.lanes.push(kinds.into_iter().map(|kind| Lane { kind, ..Lane::default() }).collect());
            self.stored.push(0);
        }
        if rebuilt {
            for (id, job) in &memo.jobs {
                self.enter(memo.landed, *id, job);
            }
        }
        rebuilt
    }

    fn enter(&mut self, landed: Time, id: JobId, job: &Arc<Dispatched>) {
        for chunk in &job.chunks {
            if let Some(worker) = chunk.worker.and_then(|index| job.workers.get(&index)) {
                self.stored[worker.server.index()] += job.size;
            }
        }
        for (at, chunk, worker) in job.pending() {
            let (key, entry) = (job.key(chunk), job.entry(Item { job: id, chunk: at }));
            let Some(lane) = self.lane_mut(worker) else { continue };
            if chunk.ready > landed {
                lane.pending.coming.insert((chunk.ready, key), entry);
                self.coming.insert((chunk.ready, worker, key));
                continue;
            }
            lane.pending.queue.insert(key, entry);
            if let Stage::Running(since) = chunk.stage {
                lane.pending.running = Some(Running { key, item: entry.item, since });
            }
        }
    }

    pub(super) fn lane(&self, worker: Worker) -> Option<&Lane> {
        self.lanes.get(worker.server.index())?.get(usize::from(worker.gpu))
    }

    pub(super) fn lane_mut(&mut self, worker: Worker) -> Option<&mut Lane> {
        self.lanes.get_mut(worker.server.index())?.get_mut(usize::from(worker.gpu))
    }

    /// All workers.
    pub(super) fn workers(&self) -> impl Iterator<Item = (Worker, &Lane)> {
        (0..).zip(&self.lanes).flat_map(|(server, lanes)| {
            let worker = move |gpu: usize| Worker { server: ServerId(server), gpu: gpu as u16 };
            lanes.iter().enumerate().map(move |(gpu, lane)| (worker(gpu), lane))
        })
    }

    /// Adapts the workers of a server to its GPUs. Returns the jobs with chunks on GPUs that are gone. O(its GPUs); if
    /// its GPUs changed, O(chunks on their way).
    pub(super) fn refit(&mut self, state: &State, id: ServerId) -> BTreeSet<JobId> {
        let kinds = gpus(state.server(id));
        let lanes = &mut self.lanes[id.index()];
        if lanes.iter().map(|lane| lane.kind).eq(kinds.iter().copied()) {
            return BTreeSet::new();
        }
        let gone: Vec<Lane> = lanes.split_off(kinds.len().min(lanes.len()));
        lanes.resize_with(kinds.len(), Lane::default);
        for (lane, kind) in lanes.iter_mut().zip(kinds) {
            lane.kind = kind;
        }
        let lost = lanes.len() as u16;
        self.coming.retain(|(_, worker, _)| worker.server != id || worker.gpu < lost);
        self.stalled.retain(|worker| worker.server != id || worker.gpu < lost);
        gone.iter()
            .flat_map(|lane| {
                let queued = lane.pending.queue.iter().map(|(_, entry)| entry.item.job);
                queued.chain(lane.pending.coming.values().map(|entry| entry.item.job))
            })
            .collect()
    }

    /// Whether a server can store another chunk of a job (§VI).
    pub(super) fn stores(&self, server: &Server, size: i64) -> bool {
        server.place.storage.is_none_or(|most| self.stored[server.id.index()] + size <= most)
    }
}

/// The kinds of a server's GPUs. If they aren't listed, their number comes from the capacity.
fn gpus(server: &Server) -> Vec<ResourceId> {
    if !server.present {
        return Vec::new();
    }
    if !server.devices.is_empty() {
        return server.devices.to_vec();
    }
    vec![GPU; usize::try_from(server.capacity[GPU] / 1000).unwrap_or(0).min(usize::from(u16::MAX))]
}
