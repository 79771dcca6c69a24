//! A worker with parameter servers. It receives the model, or its partition of it, computes its share, and sends the
//! gradients back.

use std::{collections::BTreeMap, time::Instant};

use super::pipeline::{Pipeline, ReplicaWork, Stuck};
use crate::{
    args::Mode,
    chunks::{Orders, Portion},
    device::Device,
    exit,
    id::Id,
    layout::Layout,
    net::Net,
    parts::Parts,
    settings::Settings,
    store::Store,
    tally::Tally,
    trainer::Sums,
    wire::{ASKED, Message},
};

/// The chief's order.
#[derive(Clone, Copy)]
struct Task {
    order: ReplicaWork,
    /// A mini-batch of its chunk. None: its share of the step.
    portion: Option<Portion>,
    /// Parameters from before a break are outdated, so only requested ones are used.
    fresh: bool,
}

pub(crate) struct Worker {
    me: Id,
    chief: Id,
    revision: u32,
    mode: Mode,
    servers: Vec<Id>,
    parts: Parts,
    /// Layout of the parameters that are trained here.
    layout: Layout,
    device: Device,
    pipeline: Pipeline,
    /// The own data chunks, if they are scheduled one by one.
    store: Option<Store>,
    /// Whether there was nothing to train since the last batch.
    rested: bool,
    ready: bool,
    /// The latest parameters of each server with their attempt. Used once.
    given: BTreeMap<Id, (u64, Vec<f32>)>,
    /// The order that waits for parameters.
    task: Option<Task>,
    /// The order in the pipeline.
    running: Option<ReplicaWork>,
}

impl Worker {
    pub(crate) fn new(
        settings: &Settings,
        me: Id,
        chief: Id,
        revision: u32,
        servers: Vec<Id>,
        layout: &Layout,
        store: Option<Store>,
    ) -> Self {
        let parts = settings.parts;
        Self {
            me,
            chief,
            revision,
            mode: settings.mode,
            servers,
            parts,
            layout: layout.within(&settings.network.range(parts.of(me.index), parts.count())),
            device: settings.device.clone(),
            pipeline: Pipeline::new(settings, me),
            store,
            rested: false,
            ready: false,
            given: BTreeMap::new(),
            task: None,
            running: None,
        }
    }

    /// The peers that it needs.
    pub(crate) fn wants(&self) -> impl Iterator<Item = Id> {
        self.servers.iter().copied().chain(self.pipeline.neighbours())
    }

    /// A connection changed. The worker is ready if it is connected to all servers and to its neighbours.
    pub(crate) fn changed(&mut self, net: &mut Net) {
        let linked = self.pipeline.linked(net);
        let ready = linked && self.servers.iter().all(|server| net.is_up(*server));
        if ready == self.ready {
            return;
        }
        self.ready = ready;
        self.give_up();
        self.given.clear();
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

    /// Sets this worker's chunks in a revision. Their data are sent here once.
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
            Ok(_) => {} // the chief receives all of them when this worker is ready
            Err(error) => net.fail(self.chief, exit::ERROR, format!("{} can't store a chunk: {error}", self.me)),
        }
    }

    pub(crate) fn due(&self) -> Option<Instant> {
        [self.pipeline.due(), self.store.as_ref().and_then(Store::due)].into_iter().flatten().min()
    }

    pub(crate) fn message(&mut self, from: Id, message: Message, net: &mut Net) {
        match message {
            Message::Step { step, attempt, workers, portions, .. } => {
                self.give_up();
                let position = workers.iter().position(|worker| *worker == self.me.index);
                self.task = position.map(|position| {
                    let (replica, replicas) = (position / self.parts.count(), workers.len() / self.parts.count());
                    let order =
                        ReplicaWork { step, attempt, place: (replica, replicas), connections: self.servers.len() };
                    Task { order, portion: portions.get(position).copied(), fresh: false }
                });
            }
            Message::Ticket { step, attempt, portion } => {
                // The parameters for an abandoned batch are used already.
                let fresh = std::mem::take(&mut self.rested) | self.give_up();
                if fresh {
                    self.given.clear();
                    self.servers.iter().for_each(|server| net.send(*server, Message::Pull));
                }
                let order = ReplicaWork { step, attempt, place: (0, 1), connections: self.servers.len() };
                self.task = Some(Task { order, portion, fresh });
            }
            Message::Params { attempt, values } => {
                self.given.insert(from, (attempt, values));
            }
            Message::Activations { attempt, number, values } | Message::Deltas { attempt, number, values } => {
                let received = self.pipeline.receive(from, attempt, number, values, net);
                return self.stuck(received, net);
            }
            other => net.fail(self.chief, exit::ERROR, format!("{} can't deal with {other:?} from {from}", self.me)),
        }
        self.compute(net);
    }

    pub(crate) fn tick(&mut self, net: &mut Net) {
        self.receive(net);
        let sums = match self.pipeline.tick(net) {
            Ok(Some(sums)) => sums,
            Ok(None) => return,
            Err(error) => return self.stuck(Err(error), net),
        };
        let Some(order) = self.running.take() else { return };
        let Sums { values, tally } = sums;
        let bytes = self.device.part_bytes(self.servers.len() * self.parts.count());
        for (position, server) in self.servers.iter().enumerate() {
            // The chief counts each example once, so only its tally has the loss.
            let tally = if *server == self.chief { tally } else { Tally { loss: 0, correct: 0, ..tally } };
            let sums = self.layout.take(position, &values);
            let message = Message::Grad { step: order.step, attempt: order.attempt, tally, sums };
            net.transfer(*server, message, bytes);
        }
    }

    /// Abandons the work in progress. Returns whether there was any.
    fn give_up(&mut self) -> bool {
        self.pipeline.abandon();
        self.running.take().is_some() | self.task.take().is_some()
    }

    fn stuck(&self, result: Result<(), Stuck>, net: &mut Net) {
        if let Err(error) = result {
            net.fail(self.chief, error.code(), error.to_string());
        }
    }

    /// Computes once the order and all parameters are there.
    fn compute(&mut self, net: &mut Net) {
        let Some(task) = self.task else { return };
        let fits = |(attempt, _): &(u64, Vec<f32>)| match self.mode {
            Mode::Async => !task.fresh || *attempt == ASKED,
            _ => *attempt == task.order.attempt,
        };
        if !self.servers.iter().all(|server| self.given.get(server).is_some_and(fits)) {
            return;
        }
        let mut parameters = vec![0.0; self.layout.parameters()];
        for (position, server) in self.servers.iter().enumerate() {
            let part = self.given.remove(server).map(|(_, part)| part).unwrap_or_default();
            if !self.layout.put(position, &part, &mut parameters) {
                let reason = format!("{server} sent {} parameters to {}", part.len(), self.me);
                return net.fail(self.chief, exit::ERROR, reason);
            }
        }
        (self.task, self.running) = (None, Some(task.order));
        let Some(portion) = task.portion else {
            let begun = self.pipeline.begin(task.order, parameters, net);
            return self.stuck(begun, net);
        };
        let Some(store) = &mut self.store else { return };
        let since = Instant::now();
        let sums = match store.examples(portion) {
            Ok(examples) => self.pipeline.trainer.chunk_sums(&parameters, examples).map_err(Stuck::from),
            Err(error) => {
                let reason = format!("{} can't read chunk {}: {error}", self.me, portion.chunk);
                return net.fail(self.chief, exit::ERROR, reason);
            }
        };
        let held = sums.and_then(|sums| self.pipeline.hold(task.order, sums, since));
        self.stuck(held, net);
    }
}
