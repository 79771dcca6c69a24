//! What the chief waits for.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use crate::{chunks::Portion, holder::State, id::Id, parts::Parts, tally::Tally};

pub(super) enum Phase {
    /// Nothing can be done until a process joins or leaves.
    Idle(Instant),
    /// A step is in progress (sync, allreduce).
    Step(Stepping),
    /// Batches are in progress (async).
    Stream(Tickets),
    /// The holders send their parts of the state.
    Gather {
        since: Instant,
        sources: Vec<Id>,
        parts: BTreeMap<Id, State>,
    },
    Done,
}

/// A step in progress.
pub(super) struct Stepping {
    pub(super) attempt: u64,
    pub(super) workers: Vec<u32>,
    pub(super) portions: Vec<Portion>,
    /// Holders that haven't collected it yet.
    pub(super) missing: BTreeSet<Id>,
    pub(super) tally: Tally,
    pub(super) times: Vec<(u32, f32)>,
    pub(super) sent: Instant,
}

impl Stepping {
    /// Whether the step needs this process.
    pub(super) fn waits_for(&self, id: Id) -> bool {
        self.missing.contains(&id) || id.is_worker() && self.workers.contains(&id.index)
    }
}

/// The batch of a replica.
pub(super) struct Ticket {
    pub(super) step: u64,
    pub(super) attempt: u64,
    pub(super) portion: Option<Portion>,
    pub(super) sent: Instant,
    /// Workers whose gradients aren't applied yet.
    pub(super) missing: BTreeSet<u32>,
    pub(super) tally: Tally,
    pub(super) times: Vec<(u32, f32)>,
}

/// The batches in progress.
pub(super) struct Tickets {
    pub(super) parts: Parts,
    /// By replica.
    pub(super) open: BTreeMap<u32, Ticket>,
    pub(super) next: u64,
    /// Batches of lost workers, for the next replica that is free.
    pub(super) again: BTreeSet<u64>,
    pub(super) last: Instant,
}

impl Tickets {
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    pub(super) fn has(&self, worker: u32) -> bool {
        self.open.contains_key(&self.parts.replica(worker))
    }

    pub(super) fn oldest(&self) -> Option<Instant> {
        self.open.values().map(|ticket| ticket.sent).min()
    }

    pub(super) fn lost(&mut self, id: Id) {
        if id.is_worker()
            && let Some(ticket) = self.open.remove(&self.parts.replica(id.index))
        {
            self.again.insert(ticket.step);
        }
    }
}

/// Parameters on their way to the chief.
pub(super) struct Look {
    pub(super) version: u64,
    pub(super) sources: Vec<Id>,
    pub(super) parts: BTreeMap<Id, Vec<f32>>,
    /// Accuracy of the same epoch on its training data.
    pub(super) training_accuracy: f64,
}
