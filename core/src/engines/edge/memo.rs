//! The engine's memory between decisions: the worker of each chunk, and its remaining time.

use std::{collections::BTreeMap, sync::Arc};

use imbl::{OrdMap, OrdSet};
use serde::{Deserialize, Serialize};

use super::queue::{Entry, Key, ONE};
use crate::{
    decision::{Allocation, DeviceShare, Devices, Slot, Work, WorkItem, WorkState},
    ids::{JobId, ServerId},
    job::Dataset,
    shape::Role,
    state::State,
    tables::table,
    time::{Span, Time},
};

/// A chunk of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Item {
    pub(super) job: JobId,
    /// Index in the dataset.
    pub(super) chunk: u32,
}

/// One GPU of a server. It trains one chunk at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Worker {
    pub(super) server: ServerId,
    /// Index in the server's device list, or a number below its GPU count if there is no list.
    pub(super) gpu: u16,
}

/// The engine's memory. Dispatched chunks stay on their server until the end of the job.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Memo {
    #[serde(deserialize_with = "table")]
    pub(super) jobs: OrdMap<JobId, Arc<Dispatched>>,
    /// Jobs to be served: new ones, those with undispatched chunks or without room for their slots, and those that the
    /// engine couldn't change before.
    pub(super) waiting: OrdSet<JobId>,
    /// Number of dispatched chunks.
    pub(super) orders: u64,
    /// Time up to which finished uploads are in their queues.
    pub(super) landed: Time,
    /// Σ min Q of all dispatched chunks, in parts of [`ONE`] of a millisecond.
    pub(super) increase: u128,
}

/// Chunks and slots of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Dispatched {
    /// E·Mb/n: the time of a whole chunk.
    pub(super) each: Span,
    /// By index in the dataset.
    pub(super) chunks: Vec<Chunk>,
    /// Workers by the index of their slots.
    pub(super) workers: BTreeMap<u32, Worker>,
    /// Index of the next slot.
    pub(super) next: u32,
    /// Server of its parameter servers.
    pub(super) home: Option<ServerId>,
    /// Whether its slots are in the plan.
    pub(super) placed: bool,
    /// Number of chunks in training.
    pub(super) running: u32,
    /// MiB of one chunk.
    pub(super) size: i64,
}

/// State of one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Chunk {
    /// Index of its slot, once it is dispatched.
    pub(super) worker: Option<u32>,
    pub(super) order: u64,
    /// End of its upload.
    pub(super) ready: Time,
    /// p̂ at the start of `stage`.
    pub(super) left: Span,
    pub(super) stage: Stage,
}

/// Progress of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Stage {
    /// Not trained yet on its worker.
    Queued,
    /// In training since this time. The time isn't subtracted from `left` yet.
    Running(Time),
    /// Interrupted, to be continued.
    Preempted,
    /// Trained completely.
    Done,
}

impl Dispatched {
    /// A job without dispatched chunks.
    pub(super) fn new(data: &Dataset, each: Span) -> Self {
        let chunk = Chunk { worker: None, order: 0, ready: Time(0), left: each, stage: Stage::Queued };
        Self {
            each,
            chunks: vec![chunk; data.chunks as usize],
            workers: BTreeMap::new(),
            next: 0,
            home: None,
            placed: false,
            running: 0,
            size: data.chunk_size,
        }
    }

    /// Changes the time of each chunk.
    pub(super) fn train_in(&mut self, each: Span) {
        self.each = each;
        self.chunks.iter_mut().for_each(|chunk| chunk.left = chunk.left.min(each));
    }

    /// 1/D.
    pub(super) fn weight(&self) -> u64 {
        ONE / self.chunks.len().max(1) as u64
    }

    /// 1/γ.
    pub(super) fn inverse(&self) -> u128 {
        self.each.0.max(0) as u128 * self.chunks.len() as u128
    }

    pub(super) fn key(&self, chunk: &Chunk) -> Key {
        Key { inverse: self.inverse(), order: chunk.order }
    }

    pub(super) fn entry(&self, item: Item) -> Entry {
        Entry { item, left: self.chunks[item.chunk as usize].left, weight: self.weight() }
    }

    /// Dispatched chunks that aren't trained completely, with their workers.
    pub(super) fn pending(&self) -> impl Iterator<Item = (u32, &Chunk, Worker)> {
        (0..).zip(&self.chunks).filter(|(_, chunk)| chunk.stage != Stage::Done).filter_map(|(at, chunk)| {
            let worker = self.workers.get(&chunk.worker?)?;
            Some((at, chunk, *worker))
        })
    }

    /// Chunks to dispatch.
    pub(super) fn unsent(&self) -> impl Iterator<Item = u32> {
        let unsent = |(_, chunk): &(u32, &Chunk)| chunk.worker.is_none() && chunk.stage != Stage::Done;
        (0..).zip(&self.chunks).filter(unsent).map(|(at, _)| at)
    }

    /// The job's plan, with `servers` parameter servers in one place. Ranks count the job's own chunks on each worker.
    pub(super) fn allocation(&self, state: &State, servers: u32) -> Option<Allocation> {
        let home = self.home?;
        let of_servers =
            (0..servers).map(|index| Slot { role: Role::Server, index, server: home, devices: Devices::new() });
        let slots = self.workers.iter().map(|(index, worker)| worker.slot(state, *index)).chain(of_servers).collect();
        let mut order: Vec<(u64, u32)> = (0..).zip(&self.chunks).map(|(at, chunk)| (chunk.order, at)).collect();
        order.sort_unstable();
        let mut ahead: BTreeMap<u32, u32> = BTreeMap::new();
        let work = order.into_iter().map(|(_, at)| {
            let chunk = &self.chunks[at as usize];
            let worker = chunk.worker.filter(|index| self.workers.contains_key(index));
            let state = match chunk.stage {
                Stage::Queued => {
                    let ahead = ahead.entry(worker.unwrap_or(u32::MAX)).or_default();
                    *ahead += 1;
                    WorkState::Queued(*ahead - 1)
                }
                Stage::Running(_) => WorkState::Running,
                Stage::Preempted => WorkState::Preempted,
                Stage::Done => WorkState::Done,
            };
            Work { item: WorkItem::Chunk(at), slot: worker.map(|index| (Role::Worker, index)), state }
        });
        Some(Allocation::new(slots).with_work(work.collect()))
    }
}

impl Worker {
    /// The worker's slot in a job. Managers that don't list devices pick one themselves.
    pub(super) fn slot(self, state: &State, index: u32) -> Slot {
        let listed = !state.server(self.server).devices.is_empty();
        let devices = listed.then_some(DeviceShare { device: self.gpu, milli: 1000 }).into_iter().collect();
        Slot { role: Role::Worker, index, server: self.server, devices }
    }
}
