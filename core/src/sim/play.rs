//! The loop: whatever happens next happens, the scheduler hears of it, and decides when it wants to.

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use super::{
    Errors, Lots, Report, ServerChange, Workload,
    errors::{Oracle, Truths},
    meter::Meter,
    program::{Came, Program, Stage},
    queue::Queue,
    uploads::Places,
};
use crate::{
    decision::{Allocation, Source, Verdict, WorkItem, WorkState},
    engines::Budget,
    event::{End, Event, EventError, ObservedSlot},
    ids::JobId,
    job::Phase,
    resources::Amounts,
    scheduler::{Issue, Outcome, Scheduler, Ticket},
    server::Usage,
    settings::{Settings, SettingsError},
    state::usage_by_server,
    time::{Span, Time},
};

/// Whoever runs a simulation.
pub trait Host {
    /// Runs a ticket: the place to measure how long it takes.
    fn run(&mut self, ticket: Ticket) -> Outcome {
        ticket.run(Budget::UNLIMITED)
    }

    /// Takes records of the scheduler's journal, where [one is kept](Options::journal).
    fn records(&mut self, records: Vec<Vec<u8>>) {
        let _ = records;
    }

    /// So many of the workload's jobs are over.
    fn over(&mut self, jobs: usize) {
        let _ = jobs;
    }
}

/// Measures nothing.
impl Host for () {}

/// How a workload is played.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The scheduler's: engine, parameters, stability.
    pub settings: Settings,
    /// Draws what isn't in the workload: losses, paces, stragglers.
    pub seed: u64,
    /// Predictions with known errors in place of fitted ones.
    pub errors: Option<Errors>,
    /// Keep what plots need: who ran where when.
    pub trace: bool,
    /// Keep a journal, as a daemon does: [`Host::records`] gets it. It can't be replayed where there are `errors`.
    pub journal: bool,
}

/// A simulation that can't go on: the workload or the settings are wrong.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum SimError {
    /// The settings are wrong.
    #[error("settings: {0}")]
    Settings(#[from] SettingsError),
    /// The scheduler refused what a host may say: a mistake in the workload or the simulator.
    #[error("at {}: {event} was refused: {error}", Span(at.0))]
    Refused {
        /// When.
        at: Time,
        /// What was said.
        event: &'static str,
        /// The scheduler's words.
        error: EventError,
    },
}

/// The manager's name.
const MANAGER: &str = "virtual";
/// Between two decisions at least so long, and after a failed one: what the daemon waits.
const GAP: Span = Span(20);
const FIRST_WAIT: Span = Span(100);
const LONGEST_WAIT: Span = Span::seconds(60);
/// A cluster where nothing runs and nothing comes is given up after so many decisions that change nothing.
const IDLE_DECISIONS: u32 = 50;
/// And not before so long, unless there were a hundred times as many.
const IDLE_TIME: Span = Span::seconds(2 * 86_400);

enum Happening {
    Submitted(usize),
    Changes(usize),
    Fails(usize),
    Returns(usize),
    /// The manager gets to it.
    Told(Issue),
    /// A program's own moment, of one of its plans.
    Program(JobId, u64),
}

pub(super) struct Play<'a> {
    workload: &'a Workload,
    options: &'a Options,
    scheduler: Scheduler,
    queue: Queue<Happening>,
    programs: BTreeMap<JobId, Program<'a>>,
    /// What exists on each server.
    used: Vec<Usage>,
    /// What the cloud's servers have; none once servers came or went.
    cloud: Option<Amounts>,
    lots: Lots,
    oracle: Oracle,
    meter: Meter<'a>,
    now: Time,
    next_job: u64,
    not_before: Time,
    failures: u32,
    /// Decisions in a row that changed nothing while nothing could happen, and since when.
    idle: Option<(u32, Time)>,
}

/// Plays a workload to its end.
///
/// # Errors
/// The settings name no engine or parameter, or the workload breaks a rule of the scheduler's events.
pub fn play(workload: &Workload, options: &Options, host: &mut dyn Host) -> Result<Report, SimError> {
    let mut play = Play {
        workload,
        options,
        scheduler: Scheduler::new(options.settings.clone())?,
        queue: Queue::new(),
        programs: BTreeMap::new(),
        used: Vec::new(),
        cloud: None,
        lots: Lots::new(options.seed),
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

    /// When something happens, or a decision is due: first what happens, so that it is decided together.
    fn next(&self) -> Option<Time> {
        let due = self.scheduler.due().map(|at| at.max(self.not_before).max(self.now));
        match (self.queue.next(), due) {
            (Some(next), Some(due)) => Some(next.min(due)),
            (next, due) => next.or(due),
        }
    }

    /// Tells the scheduler, and the manager what comes of it.
    fn say(&mut self, event: Event) -> Result<(), SimError> {
        let kind = kind(&event);
        if matches!(event, Event::ServerSet { .. } | Event::ServerLeft { .. }) {
            self.cloud = None;
        }
        let result = self.scheduler.apply(self.now, event);
        self.send();
        match result {
            Ok(()) => Ok(()),
            // The scheduler has moved on while the program trained: what it says counts no more.
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
            // Nobody is left to be hit.
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
            Happening::Program(id, plan) => match self.programs.get(&id) {
                Some(program) if program.plan == plan => self.moment(id),
                _ => Ok(()),
            },
        }
    }

    fn submit(&mut self, number: usize) -> Result<(), SimError> {
        let sim = &self.workload.jobs[number];
        let lots = self.lots.of(number as u64);
        let spec = Box::new(sim.submitted(lots));
        let event = Event::JobSubmitted { spec, external: None, token_hash: None };
        let result = self.scheduler.apply(self.now, event);
        self.send();
        match result {
            Ok(()) => {
                let id = JobId(self.next_job);
                self.next_job += 1;
                let job = self.scheduler.state().job(id).expect("ids are given in order").clone();
                self.meter.submitted(number);
                self.programs.insert(id, Program::new(number, job, sim, lots));
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

    /// A server is gone with all that runs there; jobs with a part elsewhere go down with it.
    fn fail(&mut self, name: &str) -> Result<(), SimError> {
        let Some(server) = self.scheduler.state().find_server(name).filter(|server| server.present) else {
            return Ok(());
        };
        let server = server.id;
        let there = |program: &&Program<'_>| {
            program.slots.as_ref().is_some_and(|slots| slots.slots().iter().any(|slot| slot.server == server))
        };
        let hit: Vec<JobId> = self.programs.values().filter(there).map(|program| program.job.id).collect();
        self.say(Event::ServerLeft { name: name.to_owned() })?;
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

    /// The manager does what it is told, or remembers it until it can.
    fn told(&mut self, issue: Issue) -> Result<(), SimError> {
        let (id, now) = (issue.job, self.now);
        let Some(program) = self.programs.get_mut(&id) else { return Ok(()) };
        let given = match (&issue.verdict, program.stage) {
            // The job is the manager's own: it stays as it is.
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
            // A server failed since: the scheduler knows, and says something else.
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

    /// Its checkpoint is written: its slots are free, and what it was told meanwhile can begin.
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

    /// A program's own moment.
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
        let rescales = job.map_or(0, |job| job.rescales);
        let why = || {
            let reason = job.and_then(|job| job.verdict.reason());
            reason.map_or_else(|| "the scheduler stopped it".into(), |reason| reason.describe(state))
        };
        self.meter.ended(&program, self.now, (end != End::Completed).then(why), rescales);
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

    /// A job's slots begin to exist.
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
        self.observed(id)
    }

    /// A job's slots exist no longer.
    fn take_away(&mut self, id: JobId) {
        let program = &self.programs[&id];
        let Some(slots) = &program.slots else { return };
        let state = self.scheduler.state();
        for (server, usage) in usage_by_server(state, &program.job, slots) {
            self.used[server.index()].add_usage(&usage, -1);
            self.meter.takes(&usage.amounts, state.server(server).place.cloud, -1);
        }
        self.meter.unshaped(program, self.now);
    }

    /// What the manager sees. A slot that is idle has let go of its devices.
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

    /// Fits what is new and decides. False: nothing will ever happen any more.
    fn decide(&mut self, host: &mut dyn Host) -> Result<bool, SimError> {
        if let Some(ticket) = self.scheduler.prepare_fits(self.now) {
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
            // What it was given but never got it doesn't lose. Where it restarts, it is meant to go on.
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

/// Of a job that ran so: itself where it is to wait, else the work that is to.
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
        Event::ServerLeft { .. } => "a server's failure",
        Event::ForeignUse { .. } => "other work",
        Event::JobEnded { .. } => "a job's end",
        Event::Reported { .. } => "a report",
        Event::Observed { .. } => "an observation",
        _ => "an event",
    }
}
