//! A parameter server: it holds a part of the model, sends it to workers, and receives gradients.

use std::{
    collections::{BTreeSet, VecDeque},
    ops::Range,
    rc::Rc,
    time::{Duration, Instant},
};

use super::role::{Node, Seat, Stuck};
use crate::{
    args::Mode,
    holder::Holder,
    id::Id,
    layout::Layout,
    net::Net,
    settings::Settings,
    tally::Tally,
    wire::{ASKED, Collected, Message},
};

/// A step that is being collected (sync).
struct Collecting {
    step: u64,
    attempt: u64,
    missing: BTreeSet<u32>,
    sums: Vec<i64>,
    tally: Tally,
    times: Vec<(u32, f32)>,
    sent: Instant,
}

/// One worker's gradients in the queue of the (emulated) processor (async).
struct Queued {
    done: Instant,
    worker: Id,
    step: u64,
    attempt: u64,
    tally: Tally,
    sums: Vec<i64>,
}

pub(crate) struct Server {
    seat: Seat,
    settings: Rc<Settings>,
    /// Ranges of the partitions' parameters in the own part.
    ranges: Vec<Range<usize>>,
    holder: Holder,
    loaded: bool,
    /// Workers that asked before there were parameters (async).
    early: Vec<Id>,
    part_bytes: u64,
    update: Duration,
    collecting: Option<Collecting>,
    queue: VecDeque<Queued>,
    /// Time until which the emulated processor is busy with queued gradients.
    busy: Instant,
}

impl Server {
    /// `layout`: the parameters of all servers; `place`: the index of this one.
    pub(crate) fn new(settings: &Rc<Settings>, seat: Seat, layout: &Layout, place: usize) -> Self {
        let (parts, servers) = (settings.parts, layout.holders());
        let mut end = 0;
        let range = |part| {
            let start = end;
            end += layout.within(&settings.network.range(part, parts.count())).length(place);
            start..end
        };
        Self {
            ranges: (0..parts.count()).map(range).collect(),
            settings: Rc::clone(settings),
            seat,
            holder: Holder::new(settings.learning_rate, settings.momentum),
            loaded: false,
            early: Vec::new(),
            part_bytes: settings.device.part_bytes(servers * parts.count()),
            update: settings.device.update(servers * parts.count()),
            collecting: None,
            queue: VecDeque::new(),
            busy: Instant::now(),
        }
    }

    fn step(&mut self, step: u64, attempt: u64, workers: Vec<u32>, net: &mut Net) -> Result<(), Stuck> {
        self.seat.reach(&mut self.holder, step)?;
        for worker in &workers {
            self.hand_out(Id::worker(*worker), attempt, net);
        }
        self.busy = Instant::now();
        self.collecting = Some(Collecting {
            step,
            attempt,
            missing: workers.into_iter().collect(),
            sums: vec![0; self.holder.state.parameters.len()],
            tally: Tally::default(),
            times: Vec::new(),
            sent: self.busy,
        });
        Ok(())
    }

    /// Answers the chief's request for this version.
    fn answer(&mut self, version: u64, answer: fn(&Holder, u64) -> Message, net: &mut Net) -> Result<(), Stuck> {
        if self.settings.mode == Mode::Sync {
            return self.seat.answer(&mut self.holder, version, answer, net);
        }
        // Asynchronous holders have no common version. The chief gathers when no gradients are on their way.
        net.send(self.seat.chief, answer(&self.holder, version));
        Ok(())
    }

    /// Range of the parameters that a worker trains.
    fn range(&self, worker: Id) -> Range<usize> {
        self.ranges[self.settings.parts.of(worker.index)].clone()
    }

    fn hand_out(&self, worker: Id, attempt: u64, net: &mut Net) {
        let values = self.holder.state.parameters[self.range(worker)].to_vec();
        net.transfer(worker, Message::Params { attempt, values }, self.part_bytes);
    }

    fn take_in(&mut self, worker: Id, step: u64, attempt: u64, tally: Tally, sums: Vec<i64>) -> Result<(), Stuck> {
        let range = self.range(worker);
        if sums.len() != range.len() {
            let reason = format!("{worker} sent {} sums for {} parameters", sums.len(), range.len());
            return Err(Stuck::Other(reason));
        }
        let now = Instant::now();
        if self.settings.mode == Mode::Async {
            self.busy = self.busy.max(now) + self.update;
            self.queue.push_back(Queued { done: self.busy, worker, step, attempt, tally, sums });
            return Ok(());
        }
        // Other gradients belong to an abandoned attempt.
        if let Some(collecting) = self.collecting.as_mut().filter(|collecting| collecting.attempt == attempt)
            && collecting.missing.remove(&worker.index)
        {
            self.busy = self.busy.max(now) + self.update;
            collecting.sums[range].iter_mut().zip(&sums).for_each(|(sum, value)| *sum += value);
            // All partitions of a replica train the same examples.
            if self.settings.parts.closes(worker.index) {
                collecting.tally.add(tally);
            }
            collecting.times.push((worker.index, (now - collecting.sent).as_secs_f32() * 1e3));
        }
        Ok(())
    }
}

impl Node for Server {
    fn wants(&self) -> BTreeSet<Id> {
        [self.seat.chief].into()
    }

    fn up(&mut self, peer: Id, net: &mut Net) {
        if peer == self.seat.chief {
            self.seat.tell_ready(true, net);
        }
    }

    fn down(&mut self, peer: Id, _net: &mut Net) {
        // A lost worker's batch goes to another one, so its gradients must not be applied by some servers only.
        self.queue.retain(|queued| queued.worker != peer);
        self.early.retain(|worker| *worker != peer);
    }

    fn message(&mut self, from: Id, message: Message, net: &mut Net) -> Result<(), Stuck> {
        match message {
            Message::Load(state) => {
                self.holder.load(state);
                self.loaded = true;
                std::mem::take(&mut self.early).into_iter().for_each(|worker| self.hand_out(worker, ASKED, net));
            }
            Message::Gather { version } => {
                self.collecting = None;
                self.answer(version, Holder::shard, net)?;
            }
            Message::Show { version } => self.answer(version, Holder::shown, net)?,
            Message::Step { step, attempt, workers, .. } => self.step(step, attempt, workers, net)?,
            Message::Pull if self.loaded => self.hand_out(from, ASKED, net),
            Message::Pull => self.early.push(from),
            Message::Grad { step, attempt, tally, sums } => self.take_in(from, step, attempt, tally, sums)?,
            other => return Err(self.seat.unexpected(from, &other)),
        }
        Ok(())
    }

    fn due(&self) -> Option<Instant> {
        let collected = self.collecting.as_ref().filter(|collecting| collecting.missing.is_empty());
        [collected.map(|_| self.busy), self.queue.front().map(|queued| queued.done)].into_iter().flatten().min()
    }

    fn tick(&mut self, net: &mut Net) -> Result<(), Stuck> {
        let (now, chief) = (Instant::now(), self.seat.chief);
        while let Some(queued) = self.queue.pop_front_if(|queued| queued.done <= now) {
            let Queued { worker, step, attempt, tally, sums, .. } = queued;
            self.holder.apply(self.range(worker).start, &sums, tally.examples);
            self.hand_out(worker, attempt, net);
            if self.seat.me == chief {
                let times = vec![(worker.index, 0.0)];
                net.send(chief, Message::Collected(Collected { step, attempt, tally, times }));
            }
        }
        if self.busy <= now
            && let Some(done) = self.collecting.take_if(|collecting| collecting.missing.is_empty())
        {
            let Collecting { step, attempt, sums, tally, times, .. } = done;
            self.holder.collect(sums, tally.examples);
            net.send(chief, Message::Collected(Collected { step, attempt, tally, times }));
        }
        Ok(())
    }
}
