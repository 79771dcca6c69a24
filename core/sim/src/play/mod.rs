//! The simulation's loop: it takes the next happening, passes its event to the scheduler, and makes due decisions.

mod manager;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use super::{
    carried::Carried,
    draws::Draws,
    errors::Errors,
    errors::{Oracle, Truths},
    meter::Meter,
    meter::Report,
    program::Program,
    queue::Queue,
    workload::ServerChange,
    workload::Workload,
};
use trainmaster_core::{
    decision::{Allocation, Issue, Source, Verdict, WorkItem, WorkState},
    engine::Budget,
    event::{Event, EventError},
    ids::JobId,
    policy::Policy,
    resources::Amounts,
    scheduler::{Outcome, Scheduler, Ticket},
    server::Usage,
    settings::{Settings, SettingsError},
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
