//! A job's training program: it trains at its true speed, saves checkpoints and reports.

use std::sync::Arc;

use super::{
    chunks::{self, Chunks},
    draws::Draws,
    truth::{SlotLoad, Speed, StepTime, Truth},
    uploads::{Places, Uploads},
    workload::SimJob,
};
use trainmaster_core::{
    batch::{Batch, GradientNoise, gain},
    decision::{Allocation, Issue},
    event::{Event, Report},
    ids::Incarnation,
    job::{Job, JobSpec},
    shape::{Role, Shape},
    time::{Span, Time},
};

/// State of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The program has no slots.
    Absent,
    /// Its slots exist and start. Training begins at this time.
    Starting(Time),
    /// Its workers train. Some of its slots may still be starting.
    Training,
    /// It writes its checkpoint until this time.
    Stopping(Time),
}

/// Tolerance for comparisons with a checkpoint's step.
const NEAR: f64 = 1e-6;
/// Keys of a job's random numbers by purpose. The losses use the job's own key.
const PACE: u64 = 1 << 32;
const SLOW: u64 = 2 << 32;
const GAPS: u64 = 3 << 32;
const NOISE: u64 = 5 << 32;

pub(super) struct Program<'a> {
    /// Index in the workload.
    pub(super) number: usize,
    /// The job as accepted by the scheduler, with its id and demands.
    pub(super) job: Arc<Job>,
    /// Source of its random numbers.
    pub(super) draws: Draws,
    truth: &'a Truth,
    pub(super) stage: Stage,
    /// Existing slots.
    pub(super) slots: Option<Arc<Allocation>>,
    /// The slots that train.
    training: Option<Arc<Allocation>>,
    /// When the other slots have started and join.
    joining: Option<Time>,
    pub(super) incarnation: Incarnation,
    /// The last issue that couldn't be executed yet.
    pub(super) wanted: Option<Issue>,
    /// Number of the current plan. Events of earlier plans are void.
    pub(super) plan: u64,
    /// Epochs until completion, and steps per epoch.
    pub(super) epochs: u32,
    per_epoch: f64,
    /// Steps done, and the time up to which they are counted.
    done: f64,
    counted: Time,
    /// Steps per second.
    rate: f64,
    /// Steps at the end of the current plan, if it ends with a report.
    target: Option<f64>,
    /// Steps and time of the last report, or of the last change of shape.
    steady: (f64, Time),
    reported: Time,
    sequence: u64,
    /// Duration of the start, until it is reported.
    restart: Option<Span>,
    places: Places,
    uploads: Uploads,
    /// Set once the job was scheduled by chunk.
    chunks: Option<Chunks>,
    /// Whether the job is scheduled by chunk now.
    by_chunk: bool,
    /// Slow-down by jobs that share its devices and cores.
    shared: f64,
    /// Its specification with the batch that it trains with, and the steps of the submitted batch that one step with it
    /// is worth.
    trains: Arc<JobSpec>,
    gain: f64,
    /// Seconds of exchanging gradients, as the mean over its workers, and their current rate per second.
    exchanged: (f64, f64),
}

/// Events of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Came {
    /// Its checkpoint is written.
    Saved,
    /// Its slots have started, and training begins.
    Started,
    /// New workers have joined.
    Joined,
    /// The epochs of a report are completed.
    Reported,
    /// The job is completed, after its last report.
    Done,
    /// Only the speed changes.
    Changed,
}

impl<'a> Program<'a> {
    pub(super) fn new(number: usize, job: Arc<Job>, sim: &'a SimJob, draws: Draws) -> Self {
        Self {
            number,
            epochs: sim.truth.goal.epochs(&sim.spec, draws),
            per_epoch: sim.truth.steps_per_epoch(&sim.spec) as f64,
            truth: &sim.truth,
            trains: job.spec.clone(),
            gain: 1.0,
            job,
            draws,
            stage: Stage::Absent,
            slots: None,
            training: None,
            joining: None,
            incarnation: Incarnation(0),
            wanted: None,
            plan: 0,
            done: sim.done as f64,
            counted: Time(0),
            rate: 0.0,
            target: None,
            steady: (0.0, Time(0)),
            reported: Time(i64::MIN),
            sequence: 0,
            restart: None,
            places: Places::new(),
            uploads: Uploads::default(),
            chunks: None,
            by_chunk: false,
            shared: 1.0,
            exchanged: (0.0, 0.0),
        }
    }

    fn spec(&self) -> &JobSpec {
        &self.job.spec
    }

    fn goal(&self) -> f64 {
        self.per_epoch * f64::from(self.epochs)
    }

    /// Changes to the batch that the job was told, if that may change.
    pub(super) fn follow(&mut self, now: Time, batch: Option<Batch>) {
        let Some(batch) = batch.filter(|batch| self.truth.noise.is_some() && batch.size != self.trains.batch) else {
            return;
        };
        self.count(now);
        self.trains = Arc::new(JobSpec { batch: batch.size, ..(*self.job.spec).clone() });
        // A speed over both periods would be wrong for either.
        self.steady = (self.done, now);
    }

    /// Completed epochs.
    pub(super) fn epoch(&self) -> u32 {
        (self.done / self.per_epoch + NEAR) as u32
    }

    /// Completed fraction of its training.
    pub(super) fn progress(&self) -> f64 {
        (self.done / self.goal()).min(1.0)
    }

    /// Current accuracy, if it has one.
    pub(super) fn accuracy(&self) -> Option<f64> {
        self.truth.accuracy_at(self.epoch(), self.epochs)
    }

    /// Steps per second at (p, w) with each slot on a server of its own.
    pub(super) fn true_speed(&self, servers: u32, workers: u32) -> f64 {
        self.truth.speed.alone(self.spec(), Shape { workers, servers })
    }

    /// The true duration of its steps, if engines' speed functions can have its form.
    pub(super) fn step_time(&self) -> Option<&StepTime> {
        match &self.truth.speed {
            Speed::Steps(time) => Some(time),
            _ => None,
        }
    }

    /// True use of its slots.
    pub(super) fn load(&self) -> Option<SlotLoad> {
        self.truth.load
    }

    /// Sets the slow-down by jobs that share its devices and cores. Returns whether it changed.
    pub(super) fn share(&mut self, now: Time, factor: f64) -> bool {
        if self.shared == factor {
            return false;
        }
        self.count(now);
        self.shared = factor;
        // A speed over both periods would be wrong for either.
        self.steady = (self.done, now);
        true
    }

    /// Megabits per second between servers.
    pub(super) fn traffic(&self) -> f64 {
        match &self.training {
            Some(training) if self.stage == Stage::Training => {
                self.rate * self.truth.speed.traffic(self.spec(), training)
            }
            _ => 0.0,
        }
    }

    /// MiB of data sent to servers.
    pub(super) fn moved(&self) -> u64 {
        let size = self.spec().dataset.as_ref().map_or(0, |data| data.chunk_size.max(0) as u64);
        self.uploads.sent.saturating_mul(size)
    }

    /// Seconds of uploads, plus seconds of exchanging gradients.
    pub(super) fn communication(&self) -> f64 {
        self.uploads.time.as_seconds() + self.exchanged.0
    }

    /// Starts a new incarnation with these slots at these places.
    pub(super) fn start(&mut self, now: Time, issue: &Issue, slots: Arc<Allocation>, places: Places) {
        let ready = self.send(now, &slots, places);
        self.incarnation = issue.incarnation;
        self.slots = Some(slots);
        self.stage = Stage::Starting(ready + self.truth.start);
        if let Some(chunks) = &mut self.chunks {
            chunks.tell_anew();
        }
    }

    /// Uploads the data for these slots. Returns when the slots that can't start without it have it.
    fn send(&mut self, now: Time, slots: &Allocation, places: Places) -> Time {
        self.places = places;
        let Some(data) = &self.job.spec.dataset else { return now };
        let takes = |server| self.places.get(&server).map_or(Span::ZERO, |place| place.upload(&data.upload));
        let by_chunk = chunks::are_in(slots);
        if !by_chunk {
            self.by_chunk = false;
            return self.uploads.spread(now, data.chunks, slots, takes);
        }
        let (count, epochs) = (data.chunks.max(1), self.epochs);
        let new = || Chunks::new(count, self.per_epoch / f64::from(count), epochs);
        let chunks = self.chunks.get_or_insert_with(new);
        if !self.by_chunk {
            chunks.level(self.done);
            self.by_chunk = true;
        }
        chunks.give(slots, |server| self.uploads.one(now, server, takes(server)));
        now
    }

    /// Adds or removes workers. New workers join after the start time, and the others don't wait.
    pub(super) fn resize(&mut self, now: Time, slots: Arc<Allocation>, places: Places) {
        self.count(now);
        let ready = self.send(now, &slots, places);
        match &mut self.stage {
            Stage::Starting(at) if ready > now => *at = (*at).max(ready + self.truth.start),
            _ => {}
        }
        if self.stage == Stage::Training {
            let before = self.training.take().expect("it trains");
            let staying = before.common(&slots);
            let comes = staying.slots().len() < slots.slots().len();
            self.training =
                Some(if comes { Arc::new(staying.with_work(slots.work().to_vec())) } else { slots.clone() });
            // A change of work doesn't delay workers that are already starting.
            let expected = self.slots.as_ref().filter(|old| old.common(&slots).slots().len() == slots.slots().len());
            let on_the_way = expected.and(self.joining);
            self.joining = comes.then(|| on_the_way.unwrap_or(ready + self.truth.start));
            self.steady = (self.done, now);
        }
        self.slots = Some(slots);
    }

    /// Begins the checkpoint. Returns true if there is nothing to save, and the slots are free at once.
    pub(super) fn stop(&mut self, now: Time) -> bool {
        self.count(now);
        match self.stage {
            Stage::Training => {
                self.stage = Stage::Stopping(now + self.truth.checkpoint);
                false
            }
            Stage::Stopping(_) => false,
            Stage::Absent | Stage::Starting(_) => true,
        }
    }

    /// Removes all slots.
    pub(super) fn leave(&mut self) {
        (self.stage, self.slots, self.training, self.joining) = (Stage::Absent, None, None, None);
        self.plan += 1;
    }

    /// Removes all slots, and discards the work since the last epoch's end.
    pub(super) fn crash(&mut self, now: Time) {
        self.count(now);
        if self.stage == Stage::Training {
            self.done = match &mut self.chunks {
                Some(chunks) if self.by_chunk => {
                    chunks.crash();
                    chunks.done()
                }
                // The chunks' work was saved when separate scheduling ended.
                chunks => {
                    let saved = chunks.as_ref().map_or(0.0, Chunks::done);
                    saved.max(f64::from(self.epoch()) * self.per_epoch)
                }
            };
        }
        self.leave();
    }

    /// Counts the steps up to now.
    fn count(&mut self, now: Time) {
        if self.stage == Stage::Training {
            let seconds = (now - self.counted).as_seconds();
            let steps = self.rate * seconds;
            self.exchanged.0 += self.exchanged.1 * seconds;
            if let Some(chunks) = self.chunks.as_mut().filter(|_| self.by_chunk) {
                chunks.train(steps / f64::from(chunks.running().max(1)));
                self.done = chunks.done();
                self.counted = now;
                return;
            }
            let most = self.target.unwrap_or_else(|| self.goal());
            self.done = (self.done + steps).min(most);
        }
        self.counted = now;
    }

    /// Time of the program's next event. A report is due at the end of an epoch, at least `apart` after the last one.
    pub(super) fn plan(&mut self, now: Time, apart: Span) -> Option<Time> {
        self.count(now);
        self.plan += 1;
        self.target = None;
        match self.stage {
            Stage::Absent => return None,
            Stage::Starting(at) | Stage::Stopping(at) => return Some(at),
            Stage::Training => {}
        }
        let training = self.training.clone().expect("it trains");
        let (training, uploaded) = match self.chunks.as_mut().filter(|_| self.by_chunk) {
            None => (training, None),
            Some(chunks) => {
                let before = chunks.running();
                let (working, uploaded) = chunks.run(&training, now);
                if chunks.running() != before {
                    self.steady = (self.done, now);
                }
                (Arc::new(working), uploaded)
            }
        };
        self.pace(now, &training);
        // Stragglers appear and disappear at the ends of their windows.
        let window = self.truth.stragglers.map(|straggling| {
            let length = straggling.length.0.max(1);
            Time((now.0.div_euclid(length) + 1) * length)
        });
        if let Some(chunks) = self.chunks.as_ref().filter(|_| self.by_chunk) {
            if chunks.has_news() {
                return Some(now);
            }
            let each = self.rate / f64::from(chunks.running().max(1));
            let ends = |left: f64| now + Span((left / each * 1000.0).ceil().max(1.0) as i64);
            let end = chunks.nearest().filter(|_| each > 0.0).map(ends);
            let window = window.filter(|_| end.is_some());
            return [end, uploaded, window, self.joining].into_iter().flatten().min();
        }
        let changes = [window, self.joining].into_iter().flatten().min();
        if self.rate <= 0.0 {
            return self.joining;
        }
        let wait = (self.reported.max(Time(0)) + apart - now).as_seconds().max(0.0);
        let earliest = (self.done + self.rate * wait) / self.per_epoch;
        let epoch = f64::from(self.epoch() + 1).max((earliest - NEAR).ceil());
        let mut target = (epoch * self.per_epoch).min(self.goal());
        if self.truth.noise.is_some() {
            // Its reports don't wait for the ends of epochs, which may take hours.
            target = target.min(self.done + self.rate * wait.max(apart.as_seconds()));
        }
        let at = now + Span(((target - self.done) / self.rate * 1000.0).ceil().max(1.0) as i64);
        match changes.filter(|change| *change < at) {
            Some(change) => Some(change),
            None => {
                self.target = Some(target);
                Some(at)
            }
        }
    }

    /// Sets the training speed for these slots.
    fn pace(&mut self, now: Time, training: &Allocation) {
        let together = self.are_together(training);
        let pace = 1.0 + self.truth.speed_noise * self.draws.of(PACE).normal(self.epoch().into());
        let speed =
            self.truth.speed.of(&self.trains, training, together, &self.slow(now)) * pace.max(0.1) / self.shared;
        self.gain = self.truth.noise.map_or(1.0, |noise| {
            let batch = self.trains.batch as f64;
            gain(noise.scale(self.progress(), batch), self.spec().batch as f64, batch)
        });
        self.rate = speed * self.gain;
        let workers = training.of(Role::Worker);
        let busy = workers.iter().filter(|slot| training.is_busy(slot)).count() as f64 / workers.len().max(1) as f64;
        self.exchanged.1 = if together { 0.0 } else { busy * self.truth.speed.exchange() };
    }

    /// Whether all slots are on one server, or all are in the cloud.
    fn are_together(&self, slots: &Allocation) -> bool {
        let is_cloud = |server| self.places.get(&server).is_some_and(|place| place.cloud);
        let mut servers = slots.slots().iter().map(|slot| slot.server);
        let first = servers.next();
        servers.clone().all(|server| Some(server) == first) || first.into_iter().chain(servers).all(is_cloud)
    }

    /// Handles the event at the time that [`plan`](Self::plan) returned.
    pub(super) fn come(&mut self, now: Time) -> Came {
        match self.stage {
            Stage::Stopping(_) => return Came::Saved,
            Stage::Starting(_) => {
                self.stage = Stage::Training;
                self.training = self.slots.clone();
                self.restart = Some(self.truth.start);
                self.counted = now;
                self.steady = (self.done, now);
                return Came::Started;
            }
            Stage::Absent | Stage::Training => {}
        }
        if let Some(target) = self.target {
            self.count(now);
            self.target = None;
            self.done = target;
            return if self.done >= self.goal() - NEAR { Came::Done } else { Came::Reported };
        }
        self.count(now);
        if self.joining.is_some_and(|at| at <= now) {
            self.joining = None;
            self.training = self.slots.clone();
            self.steady = (self.done, now);
            return Came::Joined;
        }
        match self.chunks.as_ref().filter(|_| self.by_chunk) {
            Some(chunks) if chunks.all_done() => return Came::Done,
            Some(chunks) if chunks.has_news() => return Came::Reported,
            _ => {}
        }
        Came::Changed
    }

    /// Whether any of its slots has work.
    pub(super) fn is_busy(&self) -> bool {
        self.slots.as_ref().is_some_and(|slots| slots.slots().iter().any(|slot| slots.is_busy(slot)))
    }

    /// Whether all its slots run.
    pub(super) fn is_complete(&self) -> bool {
        self.stage == Stage::Training && self.joining.is_none()
    }

    /// What its chief says of its batch and gradients before a report, if its batch may change.
    pub(super) fn batch_report(&self) -> Option<Event> {
        let scale = self.truth.noise?.scale(self.progress(), self.trains.batch as f64);
        let wavers = libm::exp(0.1 * self.draws.of(NOISE).normal(self.sequence));
        let noise = GradientNoise { sqr: 1.0, var: scale * wavers };
        let (job, incarnation, slot) = (self.job.id, self.incarnation, (Role::Worker, 0));
        let (seq, batch) = (self.sequence + 1, Some(self.trains.batch));
        Some(Event::BatchReported { job, incarnation, slot, seq, batch, noise: Some(noise) })
    }

    /// The current report of its chief.
    pub(super) fn report(&mut self, now: Time) -> Event {
        let epoch = self.epoch();
        let training = self.training.as_ref().expect("only who trains reports");
        let mut shape = training.shape();
        let mut named = Vec::new();
        if let Some(chunks) = self.chunks.as_mut().filter(|_| self.by_chunk) {
            shape.workers = chunks.running();
            named = chunks.tell();
        }
        let (steps, since) = self.steady;
        self.sequence += 1;
        let report = Report {
            seq: self.sequence,
            step: libm::round(self.done) as u64,
            epoch,
            steps_per_epoch: self.per_epoch as u64,
            loss: self.truth.goal.loss().filter(|_| epoch > 0).map(|loss| loss.seen(epoch, self.draws)),
            accuracy: self.accuracy(),
            steps: libm::round((self.done - steps) / self.gain) as u32,
            duration: now - since,
            workers: shape.workers,
            servers: shape.servers,
            slot_times: self.slot_times(now),
            restart: self.restart.take(),
            chunks: named,
        };
        self.steady = (self.done, now);
        self.reported = now;
        Event::Reported { job: self.job.id, incarnation: self.incarnation, slot: (Role::Worker, 0), report }
    }

    /// Gaps between each worker's gradients in milliseconds, for the detection of stragglers.
    fn slot_times(&self, now: Time) -> Vec<(u32, f64)> {
        let Some(training) = self.training.as_ref().filter(|_| self.truth.stragglers.is_some()) else {
            return Vec::new();
        };
        let together = self.are_together(training);
        let step = 1000.0 / self.truth.speed.of(self.spec(), training, together, &[]).max(1e-9);
        let slow = self.slow(now);
        let gap = |worker: u32| {
            let factor = slow.iter().find(|(slow, _)| *slow == worker).map_or(1.0, |(_, factor)| *factor);
            step * factor * (1.0 + 0.03 * self.draws.of(GAPS).of(self.sequence).normal(worker.into()))
        };
        training.of(Role::Worker).iter().map(|slot| (slot.index, gap(slot.index).max(0.0))).collect()
    }

    /// Current stragglers, each with its factor. A replaced worker draws anew.
    fn slow(&self, now: Time) -> Vec<(u32, f64)> {
        let (Some(straggling), Some(training)) = (self.truth.stragglers, &self.training) else { return Vec::new() };
        let length = straggling.length.0.max(1);
        let chance = straggling.per_hour * length as f64 / 3_600_000.0;
        let draws = self.draws.of(SLOW).of(self.incarnation.0.into()).of(now.0.div_euclid(length) as u64);
        let is_slow = |index: &u32| draws.unit((*index).into()) < chance;
        let workers = training.of(Role::Worker).iter().map(|slot| slot.index).filter(is_slow);
        workers.map(|index| (index, straggling.slowdown)).collect()
    }
}
