//! The chief: one process of the job (its first parameter server, or its first worker if there are none) controls the
//! others. At step boundaries it adds and removes workers. It keeps the records and writes checkpoints.
//!
//! All changes of the job happen in [`Chief::boundary`], between two steps, when nothing is in progress.

mod ledger;
mod look;
mod phase;
mod state;
mod steps;
mod tickets;

use std::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    time::{Duration, Instant, SystemTime},
};

use anyhow::Result;
use tracing::{info, warn};
use trainmaster_proto::v1::Progress;

use crate::{
    args::Mode,
    checkpoint::Checkpoint,
    chunks::{Orders, Portion},
    exit,
    feed::Feed,
    holder::State,
    id::Id,
    layout::Layout,
    net::Net,
    parts::Parts,
    settings::Settings,
    validation::Validation,
    wire::{FinalOrder, Message},
};
use ledger::Ledger;
use phase::{Look, Phase};

/// Time in which a stopping job may finish the current step.
const FINISH_STEP: Duration = Duration::from_secs(5);

/// The reason for an early end of the job.
#[derive(Clone, Copy)]
struct Stop {
    code: u8,
    by: Instant,
}

pub(crate) struct Chief {
    settings: Rc<Settings>,
    me: Id,
    servers: Vec<Id>,
    /// The holders of parameters: the parameter servers, or the workers of a replica.
    layout: Layout,
    /// The workers that the scheduler wants, and the revision that contains them.
    desired: BTreeSet<u32>,
    /// The chunks of the workers. None: all workers train all data.
    orders: Option<Orders>,
    /// Chunks whose data each worker has.
    stored: BTreeMap<u32, BTreeSet<u32>>,
    revision: u32,
    /// Processes that can take part, with the revisions in which they joined.
    ready: BTreeMap<Id, u32>,
    loaded: BTreeSet<Id>,
    /// Workers that have asked to leave.
    leaving: BTreeSet<u32>,
    /// Lost workers that trained and are still wanted, with the time of their loss.
    lost: BTreeMap<u32, Instant>,
    ledger: Ledger,
    validation: Validation,
    look: Option<Look>,
    state: Option<State>,
    phase: Phase,
    attempt: u64,
    stop: Option<Stop>,
    begun: Instant,
    stepped: bool,
    checkpoint_step: Option<u64>,
    checkpoint_epoch: u32,
    checkpoint_at: Instant,
    checkpoint_ms: f32,
    verdict: Option<FinalOrder>,
}

impl Chief {
    /// Resumes the job from its newest checkpoint, or starts it. `begun`: start of the program. `last_seq`: number of
    /// the last report that an earlier process of this slot made in the same incarnation.
    ///
    /// # Errors
    ///
    /// The checkpoint folder can't be read, or belongs to another job.
    pub(crate) fn new(settings: Rc<Settings>, me: Id, servers: &[Id], begun: Instant, last_seq: u64) -> Result<Self> {
        let fingerprint = settings.fingerprint();
        let found = match settings.checkpoint_dir.as_deref() {
            Some(folder) => Checkpoint::read(folder, &fingerprint)?,
            None => None,
        };
        let checkpoint_step = found.as_ref().map(|checkpoint| checkpoint.step);
        if let Some(step) = checkpoint_step {
            info!(step, "resuming from a checkpoint");
        }
        let from = found.unwrap_or_else(|| {
            let parameters = settings.network.initial(settings.data.seed);
            Checkpoint { velocity: vec![0.0; parameters.len()], parameters, ..Checkpoint::default() }
        });
        let ledger = Ledger::new(&settings, &from, last_seq);
        let layout = match settings.mode {
            Mode::Allreduce => {
                let count = settings.parts.count();
                let ranges: Vec<_> = (0..count).map(|part| settings.network.range(part, count)).collect();
                Layout::ranges(&ranges)
            }
            Mode::Sync | Mode::Async => Layout::new(&settings.network.blocks(), servers.len())?,
        };
        Ok(Self {
            me,
            servers: servers.to_vec(),
            layout,
            desired: BTreeSet::new(),
            orders: None,
            stored: BTreeMap::new(),
            revision: 0,
            ready: BTreeMap::new(),
            loaded: BTreeSet::new(),
            leaving: BTreeSet::new(),
            lost: BTreeMap::new(),
            checkpoint_epoch: ledger.epochs(),
            state: Some(State { version: from.step, parameters: from.parameters, velocity: from.velocity }),
            ledger,
            validation: Validation::new(&settings),
            look: None,
            phase: Phase::Idle(Instant::now()),
            // Larger than those of earlier chiefs, so that their attempts can't be confused with this one's.
            attempt: SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64),
            stop: None,
            begun,
            stepped: false,
            checkpoint_step,
            checkpoint_at: Instant::now(),
            checkpoint_ms: 0.0,
            verdict: None,
            settings,
        })
    }

    /// The final order, once the job has ended.
    pub(crate) fn verdict(&self) -> Option<FinalOrder> {
        self.verdict
    }

    /// Sets a new revision: these workers train these chunks from the next step boundary on.
    pub(crate) fn desire(
        &mut self,
        workers: BTreeSet<u32>,
        orders: Option<Orders>,
        revision: u32,
        net: &mut Net,
        feed: &Feed,
    ) {
        (self.desired, self.orders, self.revision) = (workers, orders, revision);
        if let Some(orders) = &self.orders {
            self.ledger.heard(orders);
        }
        self.lost.retain(|worker, _| self.desired.contains(worker));
        if self.me.is_worker() && !self.desired.contains(&self.me.index) {
            warn!("the chief is no longer wanted; the job must start again from a checkpoint");
            self.give_up(exit::WORKER_LOST);
        }
        self.proceed(net, feed);
    }

    /// Ends the job with this exit code, after a checkpoint, within about `grace` (zero: no limit).
    pub(crate) fn stop(&mut self, code: u8, grace: Duration, net: &mut Net, feed: &Feed) {
        if self.stop.is_none() {
            let by = if grace.is_zero() { FINISH_STEP } else { FINISH_STEP.min(grace / 4) };
            self.stop = Some(Stop { code, by: Instant::now() + by });
        }
        self.proceed(net, feed);
    }

    pub(crate) fn down(&mut self, peer: Id, net: &mut Net, feed: &Feed) {
        if self.ready.contains_key(&peer) && peer.is_worker() && self.desired.contains(&peer.index) {
            warn!(%peer, "lost");
            self.lost.entry(peer.index).or_insert_with(Instant::now);
        }
        let held = self.loaded.remove(&peer);
        if held && !peer.is_worker() && !matches!(self.phase, Phase::Done) {
            warn!(%peer, "lost; the job must start again from its last checkpoint");
            return self.end(exit::SERVER_LOST, net);
        }
        if held && self.servers.is_empty() && !matches!(self.phase, Phase::Done) {
            if self.state.is_none() && self.sources().is_none() {
                warn!(%peer, "lost, and with it the only copy of its part; the job must start again from its last \
                    checkpoint");
                return self.end(exit::WORKER_LOST, net);
            }
            if matches!(&self.phase, Phase::Gather { sources, .. } if sources.contains(&peer)) {
                self.gather(net);
            }
        }
        self.unready(peer, net, feed);
    }

    pub(crate) fn message(&mut self, from: Id, message: Message, net: &mut Net, feed: &Feed) {
        match message {
            Message::Ready { revision } => {
                self.ready.insert(from, revision);
                if from.is_worker() {
                    self.lost.remove(&from.index);
                    self.stored.remove(&from.index); // it sends them again
                }
                self.proceed(net, feed);
            }
            Message::Stored { chunk } => {
                self.stored.entry(from.index).or_default().insert(chunk);
                self.proceed(net, feed);
            }
            Message::Unready => self.unready(from, net, feed),
            // A model in partitions can't train without one of its workers.
            Message::Leaving { all: false } if from.is_worker() && self.parts().count() == 1 => {
                self.leaving.insert(from.index);
                self.proceed(net, feed);
            }
            Message::Leaving { .. } => self.stop(exit::DONE, Duration::ZERO, net, feed),
            Message::Broken { attempt } => {
                if let Phase::Step(stepping) = &self.phase
                    && stepping.attempt == attempt
                {
                    self.phase = Phase::Idle(Instant::now());
                    self.proceed(net, feed);
                }
            }
            Message::Failed { code, reason } => {
                warn!(%from, reason, "can't go on");
                if code == exit::WORKER_LOST {
                    self.give_up(code);
                    self.unready(from, net, feed);
                } else {
                    self.end(code, net);
                }
            }
            Message::Collected(collected) => match self.phase {
                Phase::Stream(_) => self.answered(collected, net, feed),
                _ => self.collected(from, collected, net, feed),
            },
            Message::Shard(state) => {
                let step = self.ledger.step;
                if let Phase::Gather { parts, .. } = &mut self.phase
                    && state.version == step
                {
                    parts.insert(from, state);
                    self.gathered(net, feed);
                }
            }
            Message::Shown { version, parameters } => self.shown(from, version, parameters, feed),
            other => warn!(%from, ?other, "unexpected"),
        }
    }

    /// The time at which the chief must be called even without an event.
    pub(crate) fn due(&self) -> Option<Instant> {
        let pace = &self.settings.pace;
        let phase = match &self.phase {
            Phase::Idle(_) if self.resting() => None,
            Phase::Idle(since) => {
                let gather = Some(self.gather_end()).filter(|end| !self.stepped && Instant::now() < *end);
                Some(gather.unwrap_or(*since + pace.start))
            }
            Phase::Step(stepping) => self.sooner(Some(stepping.sent)),
            Phase::Stream(tickets) => self.sooner(tickets.oldest()),
            Phase::Gather { since, .. } => Some(*since + self.stall_limit()),
            Phase::Done => None,
        };
        let lost = self.lost.values().min().map(|since| *since + pace.replace);
        [phase, lost].into_iter().flatten().min()
    }

    /// The time at which a pending answer is given up: when it stalls, or when the job must stop.
    fn sooner(&self, sent: Option<Instant>) -> Option<Instant> {
        [sent.map(|sent| sent + self.stall_limit()), self.stop.map(|stop| stop.by)].into_iter().flatten().min()
    }

    /// Performs due actions.
    pub(crate) fn tick(&mut self, net: &mut Net, feed: &Feed) {
        let (now, pace) = (Instant::now(), self.settings.pace.clone());
        let stalled = |since: Instant| now >= since + self.stall_limit();
        let void = match &self.phase {
            Phase::Done => return,
            Phase::Gather { since, .. } if stalled(*since) => {
                warn!("a part of the state doesn't come; the job must start again from its last checkpoint");
                return self.end(exit::SERVER_LOST, net);
            }
            Phase::Step(stepping) => {
                if stalled(stepping.sent) {
                    warn!(step = self.ledger.step, "a step takes far too long; giving it up");
                    self.give_up(exit::WORKER_LOST);
                }
                self.stop.is_some_and(|stop| stop.by <= now)
            }
            Phase::Stream(tickets) => {
                if tickets.oldest().is_some_and(stalled) {
                    warn!("a batch takes far too long; giving it up");
                    self.give_up(exit::WORKER_LOST);
                }
                self.stop.is_some_and(|stop| stop.by <= now)
            }
            Phase::Idle(since) if now >= *since + pace.start && !self.resting() => {
                let here = |index: &&u32| self.ready.contains_key(&Id::worker(**index));
                let missing: Vec<u32> = self.desired.iter().filter(|index| !here(index)).copied().collect();
                warn!(?missing, "too few workers to train with; giving up");
                self.give_up(exit::WORKER_LOST);
                false
            }
            Phase::Idle(_) | Phase::Gather { .. } => false,
        };
        if self.lost.values().any(|since| *since + pace.replace <= now) {
            warn!(workers = ?self.lost.keys().collect::<Vec<_>>(), "lost and not replaced in time");
            self.lost.clear();
            self.give_up(exit::WORKER_LOST);
        }
        if void {
            self.phase = Phase::Idle(now);
        }
        self.proceed(net, feed);
    }

    fn give_up(&mut self, code: u8) {
        self.stop.get_or_insert(Stop { code, by: Instant::now() });
    }

    fn unready(&mut self, peer: Id, net: &mut Net, feed: &Feed) {
        self.ready.remove(&peer);
        if peer.is_worker() {
            self.leaving.remove(&peer.index);
        }
        match &mut self.phase {
            // The step can't be completed any more. The next order discards its collected part.
            Phase::Step(stepping) if stepping.waits_for(peer) => self.phase = Phase::Idle(Instant::now()),
            Phase::Stream(tickets) => tickets.lost(peer),
            _ => {}
        }
        self.proceed(net, feed);
    }

    /// Continues if nothing is in progress.
    fn proceed(&mut self, net: &mut Net, feed: &Feed) {
        if let Phase::Stream(_) = self.phase {
            self.dismiss(net);
            self.issue(net);
        }
        let between = match &self.phase {
            Phase::Idle(_) => true,
            Phase::Stream(tickets) => tickets.is_empty(),
            _ => false,
        };
        if between {
            self.boundary(net, feed);
        }
    }

    /// Between two steps: ends the job, saves it, adds and removes workers, or starts the next step.
    fn boundary(&mut self, net: &mut Net, feed: &Feed) {
        if let Some(progress) = self.ledger.news() {
            self.publish(vec![progress], feed);
        }
        let ending = match (self.ledger.done, self.stop) {
            (Some(_), _) => Some(exit::DONE),
            (None, stop) => stop.map(|stop| stop.code),
        };
        if ending.is_some() && self.stop.is_none() && !self.stepped && !self.complete() {
            return; // done before it began: the others are still connecting, and receive the order then
        }
        let joining = self.joining();
        if ending.is_some() || self.checkpoint_due() || !joining.is_empty() {
            if self.state.as_ref().is_none_or(|state| state.version != self.ledger.step) {
                return self.gather(net);
            }
            if (ending.is_some() || self.checkpoint_due()) && !self.save() && ending.is_some() {
                return self.end(exit::CHECKPOINT, net);
            }
            if let Some(code) = ending {
                if self.ledger.done.is_some() {
                    let accuracy = self.state.as_ref().map(|state| self.validation.accuracy(&state.parameters));
                    let last = self.ledger.finished(accuracy);
                    feed.report(last);
                }
                return self.end(code, net);
            }
            self.load(&joining, net);
        }
        self.dismiss(net);
        let workers = self.workers();
        if !self.can_step(&workers) {
            if !matches!(self.phase, Phase::Idle(_)) {
                self.phase = Phase::Idle(Instant::now());
            }
            return;
        }
        self.state = None;
        if !self.stepped {
            self.stepped = true;
            self.ledger.first_step(self.begun.elapsed());
        }
        match self.settings.mode {
            Mode::Async => self.stream(net),
            Mode::Sync | Mode::Allreduce => self.step(workers, net),
        }
    }

    /// Connected holders without parameters.
    fn joining(&self) -> Vec<Id> {
        let holds = |id: &Id| match self.settings.mode {
            Mode::Allreduce => self.desired.contains(&id.index) && !self.leaving.contains(&id.index),
            Mode::Sync | Mode::Async => !id.is_worker(),
        };
        self.ready.keys().copied().filter(|id| holds(id) && !self.loaded.contains(id)).collect()
    }

    /// Workers that can train the next step.
    fn workers(&self) -> Vec<u32> {
        let able = |index: &&u32| {
            let id = Id::worker(**index);
            let holds = self.settings.mode != Mode::Allreduce || self.loaded.contains(&id);
            let works = self.orders.is_none() || self.portion(**index).is_some();
            self.ready.contains_key(&id) && holds && works && !self.leaving.contains(*index)
        };
        let able: Vec<u32> = self.desired.iter().filter(able).copied().collect();
        self.parts().whole(&able)
    }

    /// The partitions of the model.
    fn parts(&self) -> Parts {
        self.settings.parts
    }

    /// The next mini-batch of the worker's chunk, if its data are there.
    fn portion(&self, worker: u32) -> Option<Portion> {
        let chunk = *self.orders.as_ref()?.running.get(&worker)?;
        self.stored.get(&worker)?.contains(&chunk).then(|| self.ledger.left(chunk))?
    }

    fn can_step(&self, workers: &[u32]) -> bool {
        let complete = self.stepped || self.complete();
        complete && !workers.is_empty() && self.servers.iter().all(|server| self.loaded.contains(server))
    }

    /// Whether all processes are there, or their time has passed.
    fn complete(&self) -> bool {
        self.all_here() || Instant::now() >= self.gather_end()
    }

    fn all_here(&self) -> bool {
        let workers = self.desired.iter().all(|index| self.ready.contains_key(&Id::worker(*index)));
        workers && self.servers.iter().all(|server| self.ready.contains_key(server))
    }

    /// All processes are there, and no chunk should run. This state has no time limit.
    fn resting(&self) -> bool {
        self.orders.is_some() && self.all_here()
    }

    /// End of the time for which the first step waits for all workers.
    fn gather_end(&self) -> Instant {
        self.begun + self.settings.pace.gather
    }

    /// Maximum duration of a step. A longer one will never end.
    fn stall_limit(&self) -> Duration {
        (self.settings.pace.replace * 5).max(self.ledger.longest * 50)
    }

    /// Removes unwanted workers.
    fn dismiss(&mut self, net: &mut Net) {
        let known: Vec<(Id, u32)> = self.ready.iter().map(|(id, joined)| (*id, *joined)).collect();
        for (id, joined) in known {
            let busy = matches!(&self.phase, Phase::Stream(tickets) if tickets.has(id.index));
            // A worker may have joined in a revision that isn't known here yet.
            let unwanted = !self.desired.contains(&id.index) && joined <= self.revision;
            if id.is_worker() && id != self.me && !busy && (unwanted || self.leaving.contains(&id.index)) {
                info!(worker = id.index, "leaves the job");
                net.send(id, Message::Finish(self.order(exit::DONE)));
                self.ready.remove(&id);
                self.loaded.remove(&id);
            }
        }
    }

    fn order(&self, code: u8) -> FinalOrder {
        FinalOrder { code, checkpoint_step: self.checkpoint_step.unwrap_or(0), checkpoint_ms: self.checkpoint_ms }
    }

    /// Orders all processes to end.
    fn end(&mut self, code: u8, net: &mut Net) {
        if matches!(self.phase, Phase::Done) {
            return;
        }
        self.phase = Phase::Done;
        let order = self.order(code);
        let mut all: BTreeSet<Id> = self.ready.keys().copied().collect();
        all.extend(&self.servers);
        all.extend(self.desired.iter().map(|index| Id::worker(*index)));
        for id in all {
            if id != self.me && net.is_up(id) {
                net.send(id, Message::Finish(order));
            }
        }
        self.verdict = Some(order);
    }

    /// Sends reports to the feed and the log.
    fn publish(&self, reports: Vec<Progress>, feed: &Feed) {
        for progress in reports {
            let Progress { step, epoch, loss, workers, servers, steps, duration_ms, .. } = progress;
            let loss = loss.unwrap_or_default();
            let speed = match steps {
                0 => String::new(),
                _ => format!(", {:.2} steps/s{}", f64::from(steps) * 1e3 / duration_ms, self.settings.device.label()),
            };
            if !progress.chunks.is_empty() {
                info!(chunks = ?progress.chunks, "trained to their end");
            }
            info!("step {step}, epoch {epoch}, loss {loss:.4}, {workers} workers, {servers} servers{speed}");
            feed.report(progress);
        }
    }
}
