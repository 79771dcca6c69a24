//! A worker with parameter servers. It receives the model, or its partition of it, computes its share, and sends the
//! gradients back.

use std::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    time::Instant,
};

use super::{
    pipeline::{Pipeline, ReplicaWork},
    role::{Node, Seat, Stuck},
};
use crate::{
    args::Mode,
    chunks::{Orders, Portion},
    id::Id,
    layout::Layout,
    net::Net,
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
    seat: Seat,
    settings: Rc<Settings>,
    servers: Vec<Id>,
    /// Layout of the parameters that are trained here.
    layout: Layout,
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
        settings: &Rc<Settings>,
        seat: Seat,
        servers: Vec<Id>,
        layout: &Layout,
        store: Option<Store>,
    ) -> Self {
        let parts = settings.parts;
        Self {
            seat,
            settings: Rc::clone(settings),
            servers,
            layout: layout.within(&settings.network.range(parts.of(seat.me.index), parts.count())),
            pipeline: Pipeline::new(settings, seat.me),
            store,
            rested: false,
            ready: false,
            given: BTreeMap::new(),
            task: None,
            running: None,
        }
    }

    fn receive(&mut self, net: &mut Net) -> Result<(), Stuck> {
        let Some(store) = &mut self.store else { return Ok(()) };
        let Seat { me, chief, .. } = self.seat;
        let chunks = store.arrived().map_err(|error| Stuck::Other(format!("{me} can't store a chunk: {error}")))?;
        // Otherwise the chief receives all of them when this worker is ready.
        if self.ready && net.is_up(chief) {
            chunks.into_iter().for_each(|chunk| net.send(chief, Message::Stored { chunk }));
        }
        Ok(())
    }

    /// A connection changed. The worker is ready if it is connected to all servers and to its neighbours.
    fn changed(&mut self, net: &mut Net) {
        let linked = self.pipeline.linked(net);
        let ready = linked && self.servers.iter().all(|server| net.is_up(*server));
        if ready == self.ready {
            return;
        }
        self.ready = ready;
        self.give_up();
        self.given.clear();
        self.seat.tell_ready(ready, net);
        // The chief is one of the servers.
        if ready {
            let held = self.store.iter().flat_map(Store::held);
            held.for_each(|chunk| net.send(self.seat.chief, Message::Stored { chunk }));
        }
        if ready && self.settings.mode == Mode::Async {
            self.pull(net);
        }
    }

    /// Requests the parameters of all servers.
    fn pull(&self, net: &mut Net) {
        self.servers.iter().for_each(|server| net.send(*server, Message::Pull));
    }

    /// Abandons the work in progress. Returns whether there was any.
    fn give_up(&mut self) -> bool {
        self.pipeline.abandon();
        self.running.take().is_some() | self.task.take().is_some()
    }

    /// Computes once the order and all parameters are there.
    fn compute(&mut self, net: &mut Net) -> Result<(), Stuck> {
        let Some(task) = self.task else { return Ok(()) };
        let fits = |(attempt, _): &(u64, Vec<f32>)| match self.settings.mode {
            Mode::Async => !task.fresh || *attempt == ASKED,
            _ => *attempt == task.order.attempt,
        };
        if !self.servers.iter().all(|server| self.given.get(server).is_some_and(fits)) {
            return Ok(());
        }
        let mut parameters = vec![0.0; self.layout.parameters()];
        for (position, server) in self.servers.iter().enumerate() {
            let part = self.given.remove(server).map(|(_, part)| part).unwrap_or_default();
            if !self.layout.put(position, &part, &mut parameters) {
                let reason = format!("{server} sent {} parameters to {}", part.len(), self.seat.me);
                return Err(Stuck::Other(reason));
            }
        }
        (self.task, self.running) = (None, Some(task.order));
        let Some(portion) = task.portion else { return self.pipeline.begin(task.order, parameters, net) };
        let Some(store) = &mut self.store else { return Ok(()) };
        let since = Instant::now();
        let unread = |error| Stuck::Other(format!("{} can't read chunk {}: {error}", self.seat.me, portion.chunk));
        let examples = store.examples(portion).map_err(unread)?;
        let sums = self.pipeline.trainer.chunk_sums(&parameters, examples)?;
        self.pipeline.hold(task.order, sums, since)
    }
}

impl Node for Worker {
    fn wants(&self) -> BTreeSet<Id> {
        self.servers.iter().copied().chain(self.pipeline.neighbours()).collect()
    }

    /// The data of this worker's chunks are sent here once.
    fn direct(&mut self, orders: &Orders, net: &mut Net) -> Result<(), Stuck> {
        let me = self.seat.me.index;
        let mut received = Ok(());
        if let (Some(store), Some(chunks)) = (&mut self.store, orders.sent.get(&me)) {
            store.expect(chunks);
            received = self.receive(net);
        }
        let held = |chunk: &u32| self.store.iter().flat_map(Store::held).any(|held| held == *chunk);
        self.rested |= !orders.running.get(&me).is_some_and(held);
        received
    }

    fn up(&mut self, _peer: Id, net: &mut Net) {
        self.changed(net);
    }

    fn down(&mut self, _peer: Id, net: &mut Net) {
        self.changed(net);
    }

    fn message(&mut self, from: Id, message: Message, net: &mut Net) -> Result<(), Stuck> {
        let connections = self.servers.len();
        match message {
            Message::Step { step, attempt, workers, portions, .. } => {
                self.give_up();
                let position = workers.iter().position(|worker| *worker == self.seat.me.index);
                self.task = position.map(|position| {
                    let place = (position / self.settings.parts.count(), workers.len() / self.settings.parts.count());
                    let order = ReplicaWork { step, attempt, place, connections };
                    Task { order, portion: portions.get(position).copied(), fresh: false }
                });
            }
            Message::Ticket { step, attempt, portion } => {
                // The parameters for an abandoned batch are used already.
                let fresh = std::mem::take(&mut self.rested) | self.give_up();
                if fresh {
                    self.given.clear();
                    self.pull(net);
                }
                let order = ReplicaWork { step, attempt, place: (0, 1), connections };
                self.task = Some(Task { order, portion, fresh });
            }
            Message::Params { attempt, values } => _ = self.given.insert(from, (attempt, values)),
            Message::Activations { attempt, number, values } | Message::Deltas { attempt, number, values } => {
                return self.pipeline.receive(from, attempt, number, values, net);
            }
            other => return Err(self.seat.unexpected(from, &other)),
        }
        self.compute(net)
    }

    fn due(&self) -> Option<Instant> {
        [self.pipeline.due(), self.store.as_ref().and_then(Store::due)].into_iter().flatten().min()
    }

    fn tick(&mut self, net: &mut Net) -> Result<(), Stuck> {
        self.receive(net)?;
        let Some(Sums { values, tally }) = self.pipeline.tick(net)? else { return Ok(()) };
        let Some(ReplicaWork { step, attempt, .. }) = self.running.take() else { return Ok(()) };
        let bytes = self.settings.device.part_bytes(self.servers.len() * self.settings.parts.count());
        for (position, server) in self.servers.iter().enumerate() {
            // The chief counts each example once, so only its tally has the loss.
            let tally = if *server == self.seat.chief { tally } else { Tally { loss: 0, correct: 0, ..tally } };
            let sums = self.layout.take(position, &values);
            net.transfer(*server, Message::Grad { step, attempt, tally, sums }, bytes);
        }
        Ok(())
    }
}
