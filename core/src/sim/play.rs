//! The simulation's loop: it takes the next happening, passes its event to the scheduler, and makes due decisions.

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use super::{
    carried::Carried,
    draws::Draws,
    errors::Errors,
    errors::{Oracle, Truths},
    meter::Meter,
    meter::Report,
    program::{Came, Program, Stage},
    queue::Queue,
    uploads::Places,
    workload::ServerChange,
    workload::Workload,
};
use crate::{
    decision::{Allocation, Issue, Source, Verdict, WorkItem, WorkState},
    engine::Budget,
    event::{End, Event, EventError, ObservedSlot},
    ids::JobId,
    job::Phase,
    policy::Policy,
    resources::Amounts,
    scheduler::{Outcome, Scheduler, Ticket},
    server::Usage,
    settings::{Settings, SettingsError},
    state::usage_by_server,
    time::{Span, Time},
};

/// The caller of a simulation.
pub trait Host {
    /// Runs a ticket. Callers can measure its time here.
    fn run(&mut self, ticket: Ticket) -> Outcome {
        ticket.run(Budget::UNLIMITED)
    }

    /// Receives records of the scheduler's journal, if [enabled](Options::journal).
    fn records(&mut self, records: Vec<Vec<u8>>) {
        let _ = records;
    }

    /// Receives the number of jobs of the workload that have ended.
    fn over(&mut self, jobs: usize) {
        let _ = jobs;
    }
}

/// A host without measurements.
impl Host for () {}

/// Options of a simulation.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Settings of the scheduler: engine, parameters, stability.
    pub settings: Settings,
    /// Learnt policies of engines.
    pub policies: Vec<Policy>,
    /// Seed for everything that the workload doesn't contain: losses, speeds, stragglers.
    pub seed: u64,
    /// Predictions with given errors instead of fitted ones.
    pub errors: Option<Errors>,
    /// Keep data for plots: slots by server and time.
    pub trace: bool,
    /// Write a journal like a daemon's, for [`Host::records`]. With `errors` it can't be replayed.
    pub journal: bool,
}

/// An error in the workload or the settings.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum SimError {
    /// The settings are invalid.
    #[error("settings: {0}")]
    Settings(#[from] SettingsError),
    /// The scheduler refused an event, because of a mistake in the workload or the simulator.
    #[error("at {}: {event} was refused: {error}", Span(at.0))]
    Refused {
        /// Time of the event.
        at: Time,
        /// The event.
        event: &'static str,
        /// The scheduler's error.
        error: EventError,
    },
}

/// Name of the manager.
const MANAGER: &str = "virtual";
/// Minimum time between two decisions, and after a failed one, as in the daemon.
const GAP: Span = Span(20);
const FIRST_WAIT: Span = Span(100);
const LONGEST_WAIT: Span = Span::seconds(60);
/// Number of decisions without a change after which a cluster without activity is given up.
const IDLE_DECISIONS: u32 = 50;
/// Minimum time without activity, unless there were a hundred times as many decisions.
const IDLE_TIME: Span = Span::seconds(2 * 86_400);

enum Happening {
    Submitted(usize),
    Changes(usize),
    Fails(usize),
    Returns(usize),
    /// The manager executes an issue.
    Told(Issue),
    /// A program's next event, with the number of its plan.
    Program(JobId, u64),
    /// Servers are measured.
    Measured,
}

pub(super) struct Play<'a> {
    workload: &'a Workload,
    options: &'a Options,
    scheduler: Scheduler,
    queue: Queue<Happening>,
    programs: BTreeMap<JobId, Program<'a>>,
    /// Existing slots' use of each server.
    used: Vec<Usage>,
    /// Capacity of the cloud's servers. None after a change of servers.
    cloud: Option<Amounts>,
    carried: Carried,
    draws: Draws,
    oracle: Oracle,
    meter: Meter<'a>,
    now: Time,
    next_job: u64,
    not_before: Time,
    failures: u32,
    /// Number of consecutive decisions without a change while nothing could happen, and their start.
    idle: Option<(u32, Time)>,
}

/// Simulates a workload to its end.
///
/// # Errors
/// The settings name an unknown engine or parameter, or the workload breaks a rule of the scheduler's events.
pub fn play(workload: &Workload, options: &Options, host: &mut dyn Host) -> Result<Report, SimError> {
    let mut settings = options.settings.clone();
    settings.shape.oversubscribe = settings.shape.oversubscribe.max(workload.oversubscribe);
    play_with(Scheduler::new(settings)?, workload, options, host)
}

fn play_with(
    scheduler: Scheduler,
    workload: &Workload,
    options: &Options,
    host: &mut dyn Host,
) -> Result<Report, SimError> {
    let mut play = Play {
        workload,
        options,
        scheduler,
        queue: Queue::new(),
        programs: BTreeMap::new(),
        used: Vec::new(),
        cloud: None,
        carried: Carried::default(),
        draws: Draws::new(options.seed),
        oracle: Oracle::default(),
        meter: Meter::new(workload, options.trace),
        now: Time(0),
        next_job: 1,
        not_before: Time(0),
        failures: 0,
        idle: None,
    };
    if options.journal {
        play.scheduler.start_journal();
    }
    play.set_up()?;
    while let Some(at) = play.next() {
        if options.journal {
            host.records(play.scheduler.drain_journal());
        }
        if let Some(end) = workload.end.filter(|end| at > *end) {
            play.pass(end);
            break;
        }
        play.pass(at);
        if play.queue.next() == Some(at) {
            let (_, what) = play.queue.take().expect("looked at");
            play.happen(what)?;
            host.over(play.meter.over());
        } else if !play.decide(host)? {
            break;
        }
    }
    if options.journal {
        host.records(play.scheduler.drain_journal());
    }
    Ok(play.conclude())
}

impl<'a> Play<'a> {
    fn set_up(&mut self) -> Result<(), SimError> {
        for policy in &self.options.policies {
            let engine = policy.engine().to_owned();
            self.say(Event::PolicySet { engine, policy: Some(Box::new(policy.clone())) })?;
        }
        for server in &self.workload.servers {
            self.say(Event::ServerSet { manager: MANAGER.into(), server: server.clone() })?;
        }
        for (number, (at, _)) in self.workload.changes.iter().enumerate() {
            self.queue.put(*at, Happening::Changes(number));
        }
        for (number, job) in self.workload.jobs.iter().enumerate() {
            self.queue.put(job.submission(), Happening::Submitted(number));
        }
        for (number, outage) in self.workload.outages.iter().enumerate() {
            self.queue.put(outage.at, Happening::Fails(number));
            if let Some(back) = outage.back {
                self.queue.put(back, Happening::Returns(number));
            }
        }
        Ok(())
    }

    fn pass(&mut self, to: Time) {
        let state = self.scheduler.state();
        let cloud = self.cloud.get_or_insert_with(|| {
            let mut sum = Amounts::default();
            let servers = state.servers.iter().filter(|server| server.present && server.place.cloud);
            servers.for_each(|server| sum += &server.capacity);
            sum
        });
        self.meter.pass(self.now, to, &state.capacity, cloud);
        self.now = to;
    }

    /// Time of the next happening or decision. Happenings come first, so that one decision covers them.
    fn next(&self) -> Option<Time> {
        let due = self.scheduler.due().map(|at| at.max(self.not_before).max(self.now));
        match (self.queue.next(), due) {
            (Some(next), Some(due)) => Some(next.min(due)),
            (next, due) => next.or(due),
        }
    }

    /// Passes an event to the scheduler, and the resulting issues to the manager.
    fn say(&mut self, event: Event) -> Result<(), SimError> {
        let kind = kind(&event);
        if matches!(event, Event::ServerSet { .. } | Event::ServersLeft { .. }) {
            self.cloud = None;
        }
        let result = self.scheduler.apply(self.now, event);
        self.send();
        match result {
            Ok(()) => Ok(()),
            // The scheduler has changed the job meanwhile, so the report is ignored.
            Err(EventError::Report { .. } | EventError::UnknownJob(_)) => Ok(()),
            Err(error) => Err(SimError::Refused { at: self.now, event: kind, error }),
        }
    }

    fn send(&mut self) {
        for issue in self.scheduler.take_issues() {
            self.queue.put(self.now + self.workload.enact_delay, Happening::Told(issue));
        }
    }

    fn happen(&mut self, what: Happening) -> Result<(), SimError> {
        match what {
            Happening::Submitted(number) => self.submit(number),
            Happening::Changes(number) => self.change(number),
            // All jobs have ended, so a failure has no effect.
            Happening::Fails(_) | Happening::Returns(_) if self.meter.over() == self.workload.jobs.len() => Ok(()),
            Happening::Fails(number) => {
                let server = self.workload.outages[number].server;
                self.fail(&self.workload.servers[server].name)
            }
            Happening::Returns(number) => {
                let server = self.workload.servers[self.workload.outages[number].server].clone();
                self.say(Event::ServerSet { manager: MANAGER.into(), server })
            }
            Happening::Told(issue) => self.told(issue),
            Happening::Measured => self.measure(),
            Happening::Program(id, plan) => match self.programs.get(&id) {
                Some(program) if program.plan == plan => self.moment(id),
                _ => Ok(()),
            },
        }
    }

    fn submit(&mut self, number: usize) -> Result<(), SimError> {
        let sim = &self.workload.jobs[number];
        let draws = self.draws.of(number as u64);
        let spec = Box::new(sim.submitted(draws));
        let event = Event::JobSubmitted { spec, external: None, token_hash: None };
        let result = self.scheduler.apply(self.now, event);
        self.send();
        match result {
            Ok(()) => {
                let id = JobId(self.next_job);
                self.next_job += 1;
                let job = self.scheduler.state().job(id).expect("ids are given in order").clone();
                self.meter.submitted(number);
                self.programs.insert(id, Program::new(number, job, sim, draws));
                Ok(())
            }
            Err(error @ (EventError::NeverFits(_) | EventError::Unsupported { .. })) => {
                self.meter.refused(number, error.to_string());
                Ok(())
            }
            Err(error) => Err(SimError::Refused { at: self.now, event: "a job", error }),
        }
    }

    fn change(&mut self, number: usize) -> Result<(), SimError> {
        match &self.workload.changes[number].1 {
            ServerChange::Set(server) => self.say(Event::ServerSet { manager: MANAGER.into(), server: server.clone() }),
            ServerChange::Left(name) => self.fail(name),
            ServerChange::ForeignUse { server, amounts, devices } => {
                let (server, amounts, devices) = (server.clone(), amounts.clone(), devices.clone());
                self.say(Event::ForeignUse { server, amounts, devices })
            }
        }
    }

    /// Measures servers with changes, and updates the slow-down of their jobs.
    fn measure(&mut self) -> Result<(), SimError> {
        let (due, next) = self.carried.due(self.now);
        if let Some(next) = next {
            self.queue.put(next, Happening::Measured);
        }
        // A job is as slow as its slowest slot on any server.
        let jobs: BTreeSet<JobId> = due.iter().flat_map(|id| self.carried.jobs(*id)).collect();
        let mut servers = due.clone();
        for slots in jobs.iter().filter_map(|job| self.programs.get(job)?.slots.as_ref()) {
            servers.extend(slots.slots().iter().map(|slot| slot.server));
        }
        let mut shared: BTreeMap<JobId, f64> = BTreeMap::new();
        for id in servers {
            let (event, over, slowed) = self.carried.measure(self.scheduler.state(), &self.programs, id, self.now);
            for (job, factor) in slowed.into_iter().filter(|(job, _)| jobs.contains(job)) {
                let slowest = shared.entry(job).or_insert(1.0);
                *slowest = slowest.max(factor);
            }
            if due.contains(&id) && self.scheduler.state().server(id).present {
                self.meter.overloaded(self.carried.becomes_overloaded(id, over));
                self.say(event)?;
            }
        }
        for (job, factor) in shared {
            let now = self.now;
            if self.programs.get_mut(&job).is_some_and(|program| program.share(now, factor)) {
                self.planned(job)?;
            }
        }
        Ok(())
    }

    /// Removes a failed server with all its slots. Jobs with slots on other servers stop too.
    fn fail(&mut self, name: &str) -> Result<(), SimError> {
        let Some(server) = self.scheduler.state().find_server(name).filter(|server| server.present) else {
            return Ok(());
        };
        let server = server.id;
        let there = |program: &&Program<'_>| {
            program.slots.as_ref().is_some_and(|slots| slots.slots().iter().any(|slot| slot.server == server))
        };
        let hit: Vec<JobId> = self.programs.values().filter(there).map(|program| program.job.id).collect();
        self.say(Event::ServersLeft { names: vec![name.to_owned()] })?;
        for id in hit {
            self.take_away(id);
            let now = self.now;
            let program = self.programs.get_mut(&id).expect("found above");
            program.crash(now);
            let wanted = program.wanted.take();
            self.meter.crashed(program.number);
            self.observed(id)?;
            if let Some(wanted) = wanted {
                self.told(wanted)?;
            }
        }
        Ok(())
    }

    /// Executes an issue, or stores it until it is possible.
    fn told(&mut self, issue: Issue) -> Result<(), SimError> {
        let (id, now) = (issue.job, self.now);
        let Some(program) = self.programs.get_mut(&id) else { return Ok(()) };
        let given = match (&issue.verdict, program.stage) {
            // The job belongs to the manager itself, and stays unchanged.
            (Verdict::Release(_), _) => return Ok(()),
            (Verdict::Run(slots), Stage::Starting(_) | Stage::Training) if program.incarnation == issue.incarnation => {
                let slots = slots.clone();
                if program.slots.as_ref() == Some(&slots) {
                    return Ok(());
                }
                self.take_away(id);
                let places = self.places(&slots);
                let program = self.programs.get_mut(&id).expect("found above");
                program.resize(now, slots, places);
                self.give(id)?;
                return self.planned(id);
            }
            (Verdict::Run(slots), Stage::Absent) => Some(slots.clone()),
            _ => None,
        };
        if let Some(slots) = given {
            // A server has failed meanwhile. The scheduler knows it, and sends another issue.
            let gone = |slot: &crate::decision::Slot| !self.scheduler.state().server(slot.server).present;
            if slots.slots().iter().any(gone) {
                return Ok(());
            }
            let places = self.places(&slots);
            let program = self.programs.get_mut(&id).expect("found above");
            program.start(now, &issue, slots, places);
            self.give(id)?;
            return self.planned(id);
        }
        program.wanted = Some(issue);
        if program.stop(now) { self.stopped(id) } else { self.planned(id) }
    }

    /// A checkpoint is complete: its slots are free, and a stored issue can start.
    fn stopped(&mut self, id: JobId) -> Result<(), SimError> {
        self.take_away(id);
        let program = self.programs.get_mut(&id).expect("it was just looked at");
        program.leave();
        let wanted = program.wanted.take();
        if let Some(issue @ Issue { verdict: Verdict::Run(_), .. }) = wanted {
            self.told(issue)?;
            if self.programs[&id].stage != Stage::Absent {
                return Ok(());
            }
            return self.observed(id);
        }
        self.observed(id)?;
        if matches!(wanted, Some(Issue { verdict: Verdict::Stop(_), .. })) {
            self.end(id, End::Stopped)?;
        }
        Ok(())
    }

    /// Handles a program's own event.
    fn moment(&mut self, id: JobId) -> Result<(), SimError> {
        let now = self.now;
        let program = self.programs.get_mut(&id).expect("found by the caller");
        match program.come(now) {
            Came::Saved => return self.stopped(id),
            Came::Started => {
                self.meter.started(program.number, now);
                self.observed(id)?;
            }
            Came::Joined => self.observed(id)?,
            Came::Reported => {
                let report = program.report(now);
                self.say(report)?;
            }
            Came::Done => {
                let report = program.report(now);
                self.say(report)?;
                self.take_away(id);
                return self.end(id, End::Completed);
            }
            Came::Changed => {}
        }
        self.planned(id)
    }

    fn end(&mut self, id: JobId, end: End) -> Result<(), SimError> {
        let Some(mut program) = self.programs.remove(&id) else { return Ok(()) };
        let state = self.scheduler.state();
        let job = state.job(id);
        let rescales = job.map_or(0, |job| job.issued.rescales);
        let early = job.and_then(|job| job.verdict.reason()).is_some_and(|reason| {
            use crate::reason::ReasonKind::{AccuracyReached, NothingToGain};
            end == End::Stopped && matches!(reason.kind(), AccuracyReached | NothingToGain)
        });
        let why = || {
            let reason = job.and_then(|job| job.verdict.reason());
            reason.map_or_else(|| "the scheduler stopped it".into(), |reason| reason.describe(state))
        };
        self.meter.ended(&program, self.now, (end != End::Completed).then(why), early, rescales);
        self.oracle.forget(id);
        self.say(Event::JobEnded { job: id, end })?;
        program.leave();
        let event = Event::Observed { job: id, incarnation: program.incarnation, slots: vec![], phase: Phase::Stopped };
        self.say(event)
    }

    fn planned(&mut self, id: JobId) -> Result<(), SimError> {
        let Some(program) = self.programs.get_mut(&id) else { return Ok(()) };
        if let Some(at) = program.plan(self.now, self.workload.report_every) {
            self.queue.put(at, Happening::Program(id, program.plan));
        }
        self.meter.trains(program, self.now);
        Ok(())
    }

    fn places(&self, slots: &Allocation) -> Places {
        let state = self.scheduler.state();
        slots.slots().iter().map(|slot| (slot.server, state.server(slot.server).place.clone())).collect()
    }

    /// Adds a job's slots.
    fn give(&mut self, id: JobId) -> Result<(), SimError> {
        let program = &self.programs[&id];
        let slots = program.slots.as_ref().expect("it was just given some");
        let state = self.scheduler.state();
        for (server, usage) in usage_by_server(state, &program.job, slots) {
            if self.used.len() <= server.index() {
                self.used.resize(server.index() + 1, Usage::default());
            }
            let used = &mut self.used[server.index()];
            used.add_usage(&usage, 1);
            self.meter.overfull(state.server(server).excess(used).is_some());
            self.meter.takes(&usage.amounts, state.server(server).place.cloud, 1);
        }
        self.meter.shaped(program, self.now);
        self.carries(id, true);
        self.observed(id)
    }

    /// Adds or removes a job's slots, if their load is known.
    fn carries(&mut self, id: JobId, comes: bool) {
        let program = &self.programs[&id];
        let Some(slots) = program.slots.as_ref().filter(|_| program.load().is_some()) else { return };
        if let Some(at) = self.carried.changes(self.now, id, slots, comes) {
            self.queue.put(at, Happening::Measured);
        }
    }

    /// Removes a job's slots.
    fn take_away(&mut self, id: JobId) {
        let program = &self.programs[&id];
        let Some(slots) = &program.slots else { return };
        let state = self.scheduler.state();
        for (server, usage) in usage_by_server(state, &program.job, slots) {
            self.used[server.index()].add_usage(&usage, -1);
            self.meter.takes(&usage.amounts, state.server(server).place.cloud, -1);
        }
        self.meter.unshaped(program, self.now);
        self.carries(id, false);
    }

    /// Reports a job's slots as the manager observes them. Idle slots have released their devices.
    fn observed(&mut self, id: JobId) -> Result<(), SimError> {
        let program = &self.programs[&id];
        let state = self.scheduler.state();
        let given = program.slots.iter().flat_map(|given| given.slots().iter().map(move |slot| (given, slot)));
        let slots = given.map(|(given, slot)| ObservedSlot {
            role: slot.role,
            index: slot.index,
            server: state.server_name(slot.server).to_owned(),
            devices: if given.is_busy(slot) { slot.devices.to_vec() } else { Vec::new() },
        });
        let phase = match program.stage {
            _ if program.is_complete() => Phase::Running,
            Stage::Absent => Phase::Stopped,
            Stage::Stopping(_) => Phase::Stopping,
            Stage::Starting(_) | Stage::Training => Phase::Starting,
        };
        let slots = slots.collect();
        self.say(Event::Observed { job: id, incarnation: program.incarnation, slots, phase })
    }

    /// Computes new fits, and decides. False if nothing can happen any more.
    fn decide(&mut self, host: &mut dyn Host) -> Result<bool, SimError> {
        while let Some(ticket) = self.scheduler.prepare_fits(self.now) {
            let mut outcome = ticket.run();
            if let Some(errors) = self.options.errors {
                let programs = &self.programs;
                let of = |id| programs.get(&id).map(|program| (program.progress(), Truths::of(program)));
                self.oracle.revise(errors, &mut outcome, of);
            }
            // Only this loop opens tickets, one at a time.
            let _ = self.scheduler.commit_fits(self.now, outcome);
        }
        let before = self.scheduler.state().jobs.clone();
        let ticket = self.scheduler.prepare(self.now);
        self.send();
        let outcome = host.run(ticket);
        let failed = outcome.error().map(ToString::to_string);
        let decision = self.scheduler.commit(self.now, outcome).expect("no other ticket was opened");
        self.send();
        self.failures = if decision.source == Source::Kept { self.failures + 1 } else { 0 };
        let wait = match self.failures {
            0 => GAP,
            failures => Span((FIRST_WAIT.0 << (failures - 1).min(20)).min(LONGEST_WAIT.0)),
        };
        self.not_before = self.now + wait;
        self.meter.decided(self.now, &self.scheduler, failed);
        for (id, verdict) in &decision.changes {
            let ran = before.get(id).and_then(|job| job.verdict.allocation());
            let (Some(ran), Some(program)) = (ran, self.programs.get(id)) else { continue };
            // Slots that never existed aren't preempted. A restart isn't a preemption.
            if program.slots.is_some() {
                self.meter.preempted(program.number, preemptions(ran, verdict));
            }
        }
        if !decision.changes.is_empty() || self.queue.next().is_some() {
            self.idle = None;
            return Ok(true);
        }
        let (times, since) = self.idle.unwrap_or((0, self.now));
        self.idle = Some((times + 1, since));
        Ok(times < IDLE_DECISIONS || (self.now - since < IDLE_TIME && times < 100 * IDLE_DECISIONS))
    }

    fn conclude(mut self) -> Report {
        for program in self.programs.values() {
            self.meter.ran(program, self.now);
        }
        let state = self.scheduler.state();
        let reasons = self.programs.iter().filter_map(|(id, program)| {
            let verdict = &state.job(*id)?.verdict;
            let reason = verdict.reason().map(|reason| reason.describe(state));
            Some((program.number, matches!(verdict, Verdict::Reject(_)), reason))
        });
        self.meter.left(reasons.collect());
        self.meter.report(self.now, self.scheduler.digest())
    }
}

/// Number of preemptions of a job with these slots: 1 if the whole job waits, otherwise the number of interrupted
/// chunks.
fn preemptions(ran: &Allocation, verdict: &Verdict) -> u32 {
    let Verdict::Run(now) = verdict else { return u32::from(matches!(verdict, Verdict::Wait(_))) };
    let of = |slots: &Allocation, wanted: fn(WorkState) -> bool| -> BTreeSet<WorkItem> {
        slots.work().iter().filter(|work| wanted(work.state)).map(|work| work.item).collect()
    };
    let ran = of(ran, |state| state == WorkState::Running);
    let waits = of(now, |state| matches!(state, WorkState::Queued(_) | WorkState::Preempted));
    ran.intersection(&waits).count() as u32
}

fn kind(event: &Event) -> &'static str {
    match event {
        Event::ServerSet { .. } => "a server",
        Event::ServersLeft { .. } => "a server's failure",
        Event::ForeignUse { .. } => "other work",
        Event::JobEnded { .. } => "a job's end",
        Event::Reported { .. } => "a report",
        Event::Observed { .. } => "an observation",
        Event::PolicySet { .. } => "a policy",
        _ => "an event",
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        decision::{DeviceShare, Proposal, Slot, Work},
        engine::{Engine, EngineError, Gang, Round, Triggers},
        ids::ServerId,
        job::{Dataset, Job, JobSpec},
        settings::Stability,
        shape::Role,
        sim::{Fate, Goal, SimJob, Speed, Truth},
    };

    /// One server with one GPU. Every job has a worker slot with it, and the latest job has the GPU until all its
    /// chunks are trained.
    struct Last;

    impl Engine for Last {
        type Memo = ();
        type Index = ();

        fn triggers(&self) -> Triggers {
            Triggers { interval: None, arrival: true, departure: true }
        }

        fn gang(&self) -> Gang {
            Gang::Partial
        }

        fn decide(&self, turn: &mut Round<'_>, (): &mut ()) -> Result<(), EngineError> {
            let state = turn.state;
            if !state.server(ServerId(0)).present {
                return Ok(());
            }
            let left = |job: &Job| (0..2).find(|chunk| !job.learnt.chunks.contains(chunk));
            let first = state.jobs.values().rev().find(|job| left(job).is_some()).map(|job| job.id);
            let give = |job: &Arc<Job>| {
                let slot = |role, devices: &[DeviceShare]| Slot {
                    role,
                    index: 0,
                    server: ServerId(0),
                    devices: devices.iter().copied().collect(),
                };
                let gpu = DeviceShare { device: 0, milli: 1000 };
                let work = (0..2).map(|chunk| Work {
                    item: WorkItem::Chunk(chunk),
                    slot: Some((Role::Worker, 0)),
                    state: match left(job) {
                        _ if job.learnt.chunks.contains(&chunk) => WorkState::Done,
                        Some(next) if next == chunk && first == Some(job.id) => WorkState::Running,
                        _ => WorkState::Queued(0),
                    },
                });
                let slots = Allocation::new(vec![slot(Role::Worker, &[gpu]), slot(Role::Server, &[])]);
                (job.id, Verdict::Run(Arc::new(slots.with_work(work.collect()))))
            };
            let changes = state.jobs.values().map(give);
            let changes = changes.filter(|(id, verdict)| state.jobs[id].verdict != *verdict).collect();
            turn.proposal = Proposal { changes, wake_at: None };
            Ok(())
        }
    }

    fn workload() -> Workload {
        let server = crate::ServerSpec {
            name: "s".into(),
            capacity: [("cpu", 2000)].map(|(name, have)| (name.to_owned(), have)).into(),
            devices: vec!["gpu".into()],
            labels: [("upload", "60s")].map(|(label, value)| (label.to_owned(), value.to_owned())).into(),
            draining: false,
        };
        let job = |number: i64| {
            let data = Dataset { chunks: 2, batches_per_chunk: 10, epochs: 3, chunk_size: 5, ..Dataset::default() };
            let batch_time = Some(Span::seconds(10));
            let spec =
                JobSpec { dataset: Some(Dataset { batch_time, ..data }), ..JobSpec::minimal(&format!("job-{number}")) };
            let truth = Truth {
                speed: Speed::MiniBatches { seconds: 20.0, per_server: f64::INFINITY, together: Some(10.0) },
                goal: Goal::Epochs(3, None),
                epoch_steps: None,
                speed_noise: 0.0,
                start: Span::ZERO,
                checkpoint: Span::ZERO,
                stragglers: None,
                accuracy: None,
                load: None,
            };
            SimJob { arrival: Time(number * 500_000), spec, profiling: None, done: 0, truth }
        };
        Workload { servers: vec![server], jobs: vec![job(0), job(1), job(2)], ..Workload::default() }
    }

    fn played(workload: &Workload) -> Report {
        let stability = Stability { enabled: false, ..Stability::default() };
        let options = Options { settings: Settings { stability, ..Settings::default() }, ..Options::default() };
        let scheduler = Scheduler::with_engine(options.settings.clone(), Arc::new(Last)).unwrap();
        play_with(scheduler, workload, &options, &mut ()).unwrap()
    }

    #[test]
    fn jobs_with_chunks_take_turns_on_one_gpu() {
        let report = played(&workload());
        assert_eq!((report.failed, report.overfull, report.restarts), (0, 0, 0), "{:?}", report.failure);
        assert!(report.jobs.iter().all(|job| job.fate == Fate::Completed), "{:?}", report.jobs);
        // 300 s per chunk. Uploads take 60 s, during which the new job already has the GPU. The last job completes
        // first, then the second and the first do their remaining work.
        let ends: Vec<f64> = report.jobs.iter().map(|job| job.arrival_s + job.jct_s.unwrap()).collect();
        for (end, expected) in ends.iter().zip([1980.0, 1820.0, 1660.0]) {
            assert!((end - expected).abs() < 1.0, "{ends:?}");
        }
        // Each new job interrupts the running chunk.
        assert_eq!(report.jobs.iter().map(|job| job.preemptions).collect::<Vec<_>>(), [1, 1, 0]);
        assert_eq!((report.preemptions, report.bytes_moved), (2, (3 * 2 * 5) << 20));
        // All slots are on one server, so only uploads are communication.
        assert_eq!(report.communication_s, Some(60.0));
        assert!((report.utilisation - 1.0).abs() < 0.01 && report.edge_utilisation == report.utilisation);
        // The last job never waits. The others wait while another job has the GPU.
        assert!(report.jobs[2].waited_s < 0.1 && report.jobs[0].waited_s > 1000.0, "{:?}", report.jobs);
        assert_eq!(report, played(&workload()));
    }

    #[test]
    fn chunks_survive_late_enactment_and_failures() {
        let mut workload = workload();
        workload.enact_delay = Span::seconds(7);
        let back = Some(Time(1_000_000));
        workload.outages = vec![super::super::Outage { server: 0, at: Time(900_000), back }];
        let report = played(&workload);
        assert_eq!((report.failed, report.overfull), (0, 0), "{:?}", report.failure);
        assert!(report.jobs.iter().all(|job| job.fate == Fate::Completed), "{:?}", report.jobs);
        assert_eq!(report.jobs.iter().map(|job| job.crashes).collect::<Vec<_>>(), [1, 1, 0]);
        // The disk still has the data.
        assert_eq!(report.bytes_moved, (3 * 2 * 5) << 20);
    }

    #[test]
    fn waiting_jobs_and_interrupted_chunks_are_preempted() {
        let with = |states: &[WorkState]| {
            let work =
                (0..).zip(states).map(|(item, state)| Work { item: WorkItem::Chunk(item), slot: None, state: *state });
            Allocation::default().with_work(work.collect())
        };
        use WorkState::{Done, Preempted, Queued, Running};
        let ran = with(&[Running, Running, Running, Running, Queued(0)]);
        let now = with(&[Running, Queued(1), Preempted, Done, Running]);
        assert_eq!(preemptions(&ran, &Verdict::Run(now.into())), 2);
        assert_eq!(preemptions(&ran, &Verdict::Run(ran.clone().into())), 0);
        assert_eq!(preemptions(&ran, &Verdict::Wait(crate::Reason::NotConsidered)), 1);
    }
}
