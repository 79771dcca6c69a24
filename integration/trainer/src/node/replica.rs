//! An all-reduce worker. It holds the whole model, or its partition of it. Gradients are summed around a ring of the
//! workers with the same parameters.
//!
//! The sums are divided into as many chunks as there are workers. In the first w − 1 rounds, each worker passes a chunk
//! on and adds the one that arrives, so each has one complete chunk in the end. In the next w − 1 rounds the complete
//! chunks go around.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    rc::Rc,
    time::Instant,
};

use super::{
    pipeline::{Pipeline, ReplicaWork},
    role::{Node, Seat, Stuck},
};
use crate::{
    holder::Holder,
    id::Id,
    net::Net,
    settings::Settings,
    trainer::Sums,
    wire::{Collected, Message},
};

/// A step in progress.
struct Ring {
    step: u64,
    attempt: u64,
    /// The workers with the same partition.
    workers: Vec<u32>,
    place: usize,
    sums: Sums,
    started: Instant,
    compute_ms: f32,
    phase: Phase,
}

#[derive(Clone, Copy, PartialEq)]
enum Phase {
    /// The pipeline works on the own share.
    Computing,
    /// This round's chunk is on its way here.
    Round(u32),
    /// The emulated device applies the update until then.
    Updating(Instant),
}

pub(crate) struct Replica {
    seat: Seat,
    holder: Holder,
    settings: Rc<Settings>,
    pipeline: Pipeline,
    ready: bool,
    ring: Option<Ring>,
    /// Chunks by (attempt, round). The previous worker may be ahead.
    chunks: BTreeMap<(u64, u32), Vec<i64>>,
}

impl Replica {
    pub(crate) fn new(settings: &Rc<Settings>, seat: Seat) -> Self {
        Self {
            seat,
            holder: Holder::new(settings.learning_rate, settings.momentum),
            settings: Rc::clone(settings),
            pipeline: Pipeline::new(settings, seat.me),
            ready: false,
            ring: None,
            chunks: BTreeMap::new(),
        }
    }

    fn give_up(&mut self) {
        self.ring = None;
        self.pipeline.abandon();
    }

    fn step(&mut self, step: u64, attempt: u64, mut workers: Vec<u32>, net: &mut Net) -> Result<(), Stuck> {
        self.give_up();
        let me = self.seat.me;
        workers.retain(|worker| self.settings.parts.of(*worker) == self.settings.parts.of(me.index));
        self.chunks.retain(|(of, _), _| *of >= attempt);
        let Some(place) = workers.iter().position(|worker| *worker == me.index) else { return Ok(()) };
        self.seat.reach(&mut self.holder, step)?;
        let connections = if workers.len() > 1 { workers.len() } else { 0 };
        let order = ReplicaWork { step, attempt, place: (place, workers.len()), connections };
        let (sums, phase) = (Sums::default(), Phase::Computing);
        let ring = Ring { step, attempt, workers, place, sums, started: Instant::now(), compute_ms: 0.0, phase };
        let (before, after) = ring.neighbours();
        [before, after].into_iter().filter(|neighbour| *neighbour != me).for_each(|neighbour| net.want(neighbour));
        self.ring = Some(ring);
        self.pipeline.begin(order, self.holder.state.parameters.clone(), net)
    }

    /// Continues while the next chunk is there.
    fn turn(&mut self, net: &mut Net) -> Result<(), Stuck> {
        let Some(ring) = &mut self.ring else { return Ok(()) };
        let rounds = 2 * (ring.workers.len() as u32 - 1);
        while let Phase::Round(round) = ring.phase {
            if round == rounds {
                ring.phase =
                    Phase::Updating(self.pipeline.book(self.settings.device.apply(self.settings.parts.count()))?);
                return Ok(());
            }
            let Some(chunk) = self.chunks.remove(&(ring.attempt, round)) else { return Ok(()) };
            if !ring.take_in(round, &chunk) {
                let reason = format!("{} got a chunk of {} sums in round {round}", self.seat.me, chunk.len());
                return Err(Stuck::Other(reason));
            }
            ring.phase = Phase::Round(round + 1);
            if round + 1 < rounds {
                ring.pass_on(round + 1, &self.settings, net);
            }
        }
        Ok(())
    }
}

impl Node for Replica {
    fn wants(&self) -> BTreeSet<Id> {
        self.pipeline.neighbours().chain([self.seat.chief]).collect()
    }

    /// The worker is ready if it is connected to the chief and to the neighbours in its pipeline.
    fn up(&mut self, _peer: Id, net: &mut Net) {
        let ready = self.pipeline.linked(net) && net.is_up(self.seat.chief);
        if ready != self.ready {
            self.ready = ready;
            self.give_up();
            self.seat.tell_ready(ready, net);
        }
    }

    /// If a neighbour's connection in the ring breaks, messages on their way are lost, so the attempt is void.
    fn down(&mut self, peer: Id, net: &mut Net) {
        self.up(peer, net);
        let neighbour = |ring: &mut Ring| ring.workers.len() > 1 && <[Id; 2]>::from(ring.neighbours()).contains(&peer);
        if let Some(ring) = self.ring.take_if(neighbour) {
            net.send(self.seat.chief, Message::Broken { attempt: ring.attempt });
        }
    }

    fn message(&mut self, from: Id, message: Message, net: &mut Net) -> Result<(), Stuck> {
        match message {
            Message::Load(state) => {
                self.give_up();
                self.holder.load(state);
                Ok(())
            }
            Message::Gather { version } => {
                self.give_up();
                self.seat.answer(&mut self.holder, version, Holder::shard, net)
            }
            Message::Show { version } => {
                self.give_up();
                self.seat.answer(&mut self.holder, version, Holder::shown, net)
            }
            Message::Step { step, attempt, workers, .. } => self.step(step, attempt, workers, net),
            Message::Chunk { attempt, round, sums } => {
                self.chunks.insert((attempt, round), sums);
                self.turn(net)
            }
            Message::Activations { attempt, number, values } | Message::Deltas { attempt, number, values } => {
                self.pipeline.receive(from, attempt, number, values, net)
            }
            other => Err(self.seat.unexpected(from, &other)),
        }
    }

    fn due(&self) -> Option<Instant> {
        let ring = self.ring.as_ref().and_then(|ring| match ring.phase {
            Phase::Updating(at) => Some(at),
            Phase::Computing | Phase::Round(_) => None,
        });
        [self.pipeline.due(), ring].into_iter().flatten().min()
    }

    fn tick(&mut self, net: &mut Net) -> Result<(), Stuck> {
        let computed = self.pipeline.tick(net)?;
        let now = Instant::now();
        let Some(ring) = &mut self.ring else { return Ok(()) };
        match (ring.phase, computed) {
            (Phase::Computing, Some(sums)) => {
                ring.sums = sums;
                ring.compute_ms = (now - ring.started).as_secs_f32() * 1e3;
                ring.phase = Phase::Round(0);
                if ring.workers.len() > 1 {
                    ring.pass_on(0, &self.settings, net);
                }
                self.turn(net)?;
            }
            (Phase::Updating(done), _) if done <= now => {
                if let Some(Ring { step, attempt, sums: Sums { values, tally }, compute_ms, .. }) = self.ring.take() {
                    self.holder.collect(values, self.settings.batches.length(step));
                    let times = vec![(self.seat.me.index, compute_ms)];
                    net.send(self.seat.chief, Message::Collected(Collected { step, attempt, tally, times }));
                }
            }
            _ => {}
        }
        Ok(())
    }
}

impl Ring {
    fn neighbours(&self) -> (Id, Id) {
        let count = self.workers.len();
        let at = |place: usize| Id::worker(self.workers[place % count]);
        (at(self.place + count - 1), at(self.place + 1))
    }

    /// The chunk that the worker at a position sends in a round.
    fn chunk(&self, place: usize, round: u32) -> Range<usize> {
        let (count, length) = (self.workers.len(), self.sums.values.len());
        // The last received chunk is sent next, so both halves of the rounds count down from the own position.
        let number = (place + count - round as usize % count) % count;
        number * length / count..(number + 1) * length / count
    }

    fn pass_on(&self, round: u32, settings: &Settings, net: &mut Net) {
        let sums = self.sums.values[self.chunk(self.place, round)].to_vec();
        let message = Message::Chunk { attempt: self.attempt, round, sums };
        let bytes = settings.device.part_bytes(self.workers.len() * settings.parts.count());
        net.transfer(self.neighbours().1, message, bytes);
    }

    fn take_in(&mut self, round: u32, chunk: &[i64]) -> bool {
        let count = self.workers.len();
        let range = self.chunk(self.place + count - 1, round);
        if range.len() != chunk.len() {
            return false;
        }
        let adding = (round as usize) < count - 1;
        for (sum, value) in self.sums.values[range].iter_mut().zip(chunk) {
            *sum = if adding { *sum + value } else { *value };
        }
        true
    }
}
