//! A worker with parameter servers: waits for the whole model, computes its share, sends the gradients back.

use std::{collections::BTreeMap, time::Instant};

use super::failed;
use crate::{
    args::Mode,
    batch::Batches,
    chunks::{Orders, Portion},
    device::Device,
    exit,
    id::Id,
    layout::Layout,
    net::Net,
    settings::Settings,
    store::Store,
    tally::Tally,
    trainer::Trainer,
    wire::Message,
};

/// In place of the attempt of parameters that a worker asked for.
pub(super) const ASKED: u64 = 0;

/// What the chief asked for.
#[derive(Clone, Copy)]
struct Task {
    step: u64,
    attempt: u64,
    /// Our place among so many workers.
    place: (usize, usize),
    /// What of our chunk; none: our share of the step.
    portion: Option<Portion>,
    /// The parameters from before a break are too old: only those that were asked for since will do.
    fresh: bool,
}

struct Computed {
    task: Task,
    tally: Tally,
    sums: Vec<i64>,
    /// When the emulated device would be done.
    done: Instant,
}

pub(crate) struct Worker {
    me: Id,
    chief: Id,
    revision: u32,
    mode: Mode,
    servers: Vec<Id>,
    layout: Layout,
    device: Device,
    trainer: Trainer,
    batches: Batches,
    /// Our data chunks, where they are scheduled one by one.
    store: Option<Store>,
    /// Had nothing to train since the last batch.
    rested: bool,
    ready: bool,
    /// The latest part of each server, and the attempt it belongs to; used once.
    parts: BTreeMap<Id, (u64, Vec<f32>)>,
    task: Option<Task>,
    computed: Option<Computed>,
}

impl Worker {
    pub(crate) fn new(
        settings: &Settings,
        me: Id,
        chief: Id,
        revision: u32,
        servers: Vec<Id>,
        layout: Layout,
        store: Option<Store>,
    ) -> Self {
        Self {
            me,
            chief,
            revision,
            mode: settings.mode,
            servers,
            layout,
            device: settings.device.clone(),
            trainer: Trainer::new(settings),
            batches: settings.batches,
            store,
            rested: false,
            ready: false,
            parts: BTreeMap::new(),
            task: None,
            computed: None,
        }
    }

    /// A connection came or went: ready is who reaches every server.
    pub(crate) fn changed(&mut self, net: &mut Net) {
        let ready = self.servers.iter().all(|server| net.is_up(*server));
        if ready == self.ready {
            return;
        }
        self.ready = ready;
        self.task = None;
        self.computed = None;
        self.parts.clear();
        if net.is_up(self.chief) {
            let message = if ready { Message::Ready { revision: self.revision } } else { Message::Unready };
            net.send(self.chief, message);
            let held = self.store.iter().filter(|_| ready).flat_map(Store::held);
            held.for_each(|chunk| net.send(self.chief, Message::Stored { chunk }));
        }
        if ready && self.mode == Mode::Async {
            self.servers.iter().for_each(|server| net.send(*server, Message::Pull));
        }
    }

    /// A revision gives this worker chunks: their data are sent here, once.
    pub(crate) fn direct(&mut self, orders: &Orders, net: &mut Net) {
        if let (Some(store), Some(chunks)) = (&mut self.store, orders.sent.get(&self.me.index)) {
            store.expect(chunks);
            self.receive(net);
        }
        let held = |chunk: &u32| self.store.iter().flat_map(Store::held).any(|held| held == *chunk);
        self.rested |= !orders.running.get(&self.me.index).is_some_and(held);
    }

    fn receive(&mut self, net: &mut Net) {
        match self.store.as_mut().map_or(Ok(Vec::new()), Store::arrived) {
            Ok(chunks) if self.ready && net.is_up(self.chief) => {
                chunks.into_iter().for_each(|chunk| net.send(self.chief, Message::Stored { chunk }));
            }
            Ok(_) => {} // the chief is told of all when we are ready
            Err(error) => failed(self.chief, exit::ERROR, format!("{} can't store a chunk: {error}", self.me), net),
        }
    }

    pub(crate) fn due(&self) -> Option<Instant> {
        let computed = self.computed.as_ref().map(|computed| computed.done);
        [computed, self.store.as_ref().and_then(Store::due)].into_iter().flatten().min()
    }

    pub(crate) fn message(&mut self, from: Id, message: Message, net: &mut Net) {
        match message {
            Message::Step { step, attempt, workers, portions, .. } => {
                self.computed = None;
                let place = workers.iter().position(|worker| *worker == self.me.index);
                self.task = place.map(|place| {
                    let portion = portions.get(place).copied();
                    Task { step, attempt, place: (place, workers.len()), portion, fresh: false }
                });
            }
            Message::Ticket { step, attempt, portion } => {
                let fresh = std::mem::take(&mut self.rested);
                if fresh {
                    self.parts.clear();
                    self.servers.iter().for_each(|server| net.send(*server, Message::Pull));
                }
                self.task = Some(Task { step, attempt, place: (0, 1), portion, fresh });
            }
            Message::Params { attempt, values } => {
                self.parts.insert(from, (attempt, values));
            }
            other => failed(self.chief, exit::ERROR, format!("{} can't deal with {other:?} from {from}", self.me), net),
        }
        self.compute(net);
    }

    pub(crate) fn tick(&mut self, net: &mut Net) {
        self.receive(net);
        let Some(Computed { task, tally, sums, .. }) = self.computed.take_if(|it| it.done <= Instant::now()) else {
            return;
        };
        let bytes = self.device.part_bytes(self.servers.len());
        for (position, server) in self.servers.iter().enumerate() {
            // The chief counts each example once, so only it is told the tally's loss.
            let tally = if *server == self.chief { tally } else { Tally { loss: 0, correct: 0, ..tally } };
            let sums = self.layout.take(position, &sums);
            let message = Message::Grad { step: task.step, attempt: task.attempt, tally, sums };
            net.transfer(*server, message, bytes);
        }
    }

    /// Computes once the task and all parts are there.
    fn compute(&mut self, net: &mut Net) {
        let Some(task) = self.task else { return };
        let fits = |(attempt, _): &(u64, Vec<f32>)| match self.mode {
            Mode::Async => !task.fresh || *attempt == ASKED,
            _ => *attempt == task.attempt,
        };
        if !self.servers.iter().all(|server| self.parts.get(server).is_some_and(fits)) {
            return;
        }
        let start = Instant::now();
        let mut parameters = vec![0.0; self.layout.parameters()];
        for (position, server) in self.servers.iter().enumerate() {
            let part = self.parts.remove(server).map(|(_, part)| part).unwrap_or_default();
            if !self.layout.put(position, &part, &mut parameters) {
                let reason = format!("{server} sent {} parameters to {}", part.len(), self.me);
                return failed(self.chief, exit::ERROR, reason, net);
            }
        }
        self.task = None;
        let computed = match task.portion {
            None => {
                let shards = self.batches.share(task.step, task.place.0, task.place.1);
                self.trainer.sums(&parameters, task.step, shards)
            }
            Some(portion) => {
                let Some(store) = &mut self.store else { return };
                match store.examples(portion) {
                    Ok(examples) => self.trainer.chunk_sums(&parameters, examples),
                    Err(error) => {
                        let reason = format!("{} can't read chunk {}: {error}", self.me, portion.chunk);
                        return failed(self.chief, exit::ERROR, reason, net);
                    }
                }
            }
        };
        match computed {
            Ok((sums, tally)) => {
                let done = start + self.device.compute(self.me.index, tally.examples, self.servers.len());
                self.computed = Some(Computed { task, tally, sums, done });
            }
            Err(error) => failed(self.chief, exit::DIVERGED, error.to_string(), net),
        }
    }
}
