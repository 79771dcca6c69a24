//! A scenario through the Rust core.

use std::collections::BTreeMap;

use thiserror::Error;
use toml::Table;
use trainmaster_core::{
    Enactment, Event, EventError, Issue, JobFileError, JobId, JobSpec, ObservedSlot, Report, Role, Scheduler,
    ServerSpec, Settings, SettingsError, Time, Verdict, amount, job::Phase,
};

use crate::{
    scenario::{Action, Scenario, ScenarioError, Server, Step, amounts},
    transcript::Transcript,
};

/// A scenario that can't be played. What the core refuses is part of the transcript instead.
#[derive(Debug, Error)]
pub enum PlayError {
    /// A quantity or time.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// The settings, or the engine.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// A job file.
    #[error(transparent)]
    Job(#[from] JobFileError),
    /// A name that no job has.
    #[error("no job was submitted under the name {0:?}")]
    NoJob(String),
}

impl From<amount::AmountError> for PlayError {
    fn from(error: amount::AmountError) -> Self {
        Self::Scenario(error.into())
    }
}

struct Player {
    scheduler: Scheduler,
    engine: String,
    transcript: Transcript,
    jobs: BTreeMap<String, JobId>,
    /// What the manager was last told of each job.
    told: BTreeMap<JobId, Issue>,
    sequence: u64,
}

/// Plays a scenario with one engine and writes down what is decided and told.
///
/// # Errors
/// The scenario names an engine, job or quantity that doesn't exist.
pub fn play(scenario: &Scenario, engine: &str) -> Result<Transcript, PlayError> {
    let mut player = Player {
        scheduler: Scheduler::new(settings(&scenario.settings, engine)?)?,
        engine: engine.into(),
        transcript: Transcript::new(&scenario.about, engine),
        jobs: BTreeMap::new(),
        told: BTreeMap::new(),
        sequence: 0,
    };
    for server in &scenario.server {
        let event = server_set(server)?;
        player.apply(Time(0), event);
    }
    for step in &scenario.step {
        player.step(step)?;
    }
    Ok(player.transcript)
}

fn settings(table: &Table, engine: &str) -> Result<Settings, SettingsError> {
    let settings = Settings::from_toml(&table.to_string())?;
    Ok(Settings { engine: engine.into(), ..settings })
}

fn server_set(server: &Server) -> Result<Event, PlayError> {
    let spec = ServerSpec {
        name: server.name.clone(),
        capacity: amounts(&server.capacity)?,
        devices: server.devices.clone(),
        labels: server.labels.clone(),
        draining: server.draining,
    };
    Ok(Event::ServerSet { manager: server.manager.clone(), server: spec })
}

impl Player {
    fn apply(&mut self, at: Time, event: Event) {
        let result: Result<(), EventError> = self.scheduler.apply(at, event);
        if let Err(error) = result {
            self.transcript.refused(&error.to_string());
        }
    }

    fn job(&self, name: &str) -> Result<JobId, PlayError> {
        self.jobs.get(name).copied().ok_or_else(|| PlayError::NoJob(name.into()))
    }

    fn step(&mut self, step: &Step) -> Result<(), PlayError> {
        let at = Time(amount::parse_span(&step.at)?.0);
        self.transcript.step(&step.at, &step.action);
        match &step.action {
            Action::Decide(_) => {
                let decision = self.scheduler.decide(at);
                self.transcript.decision(self.scheduler.state(), &decision);
            }
            action => {
                let event = self.event(action)?;
                self.apply(at, event);
                if let Action::Submit(job) = action {
                    let name = job.get("name").and_then(|name| name.as_str()).unwrap_or_default();
                    self.jobs.extend(self.scheduler.state().find_job(name).map(|job| (name.to_owned(), job.id)));
                }
            }
        }
        let issues = self.scheduler.take_issues();
        for issue in issues {
            if self.told.get(&issue.job) != Some(&issue) {
                let name = self.jobs.iter().find(|(_, id)| **id == issue.job).map_or("?", |(name, _)| name);
                self.transcript.told(self.scheduler.state(), name, &issue);
                self.told.insert(issue.job, issue);
            }
        }
        Ok(())
    }

    fn event(&mut self, action: &Action) -> Result<Event, PlayError> {
        Ok(match action {
            Action::Decide(_) => unreachable!("not an event"),
            Action::Server(server) => server_set(server)?,
            Action::ServerLeft(name) => Event::ServersLeft { names: vec![name.clone()] },
            Action::Foreign { server, amounts: table } => {
                Event::ForeignUse { server: server.clone(), amounts: amounts(table)?, devices: Vec::new() }
            }
            Action::Submit(job) => {
                let spec = Box::new(JobSpec::from_toml(&job.to_string())?);
                Event::JobSubmitted { spec, external: None, token_hash: None }
            }
            Action::End { job, how } => Event::JobEnded { job: self.job(job)?, end: *how },
            Action::Hold { job, held } => Event::JobHeld { job: self.job(job)?, held: *held },
            Action::Report { job, epoch, loss } => {
                let id = self.job(job)?;
                let incarnation = self.scheduler.state().job(id).map(|job| job.issued.incarnation).unwrap_or_default();
                self.sequence += 1;
                let report = Report {
                    seq: self.sequence,
                    step: (*epoch).into(),
                    epoch: *epoch,
                    steps_per_epoch: 1,
                    loss: Some(*loss),
                    ..Report::default()
                };
                Event::Reported { job: id, incarnation, slot: (Role::Worker, 0), report }
            }
            Action::Trained { job, chunks } => {
                let id = self.job(job)?;
                let incarnation = self.scheduler.state().job(id).map(|job| job.issued.incarnation).unwrap_or_default();
                self.sequence += 1;
                let report = Report { seq: self.sequence, chunks: chunks.clone(), ..Report::default() };
                Event::Reported { job: id, incarnation, slot: (Role::Worker, 0), report }
            }
            Action::Seen(job) => self.observed(self.job(job)?, true),
            Action::Gone(job) => self.observed(self.job(job)?, false),
            Action::Refused { job, cause } => {
                let result = Enactment::Refused { cause: cause.as_str().into(), retry_after: None };
                Event::Enacted { decision: self.scheduler.state().decision, job: self.job(job)?, result }
            }
            Action::Mode(mode) => Event::ModeSet(*mode),
            Action::Configure(table) => Event::Configured(Box::new(settings(table, &self.engine)?)),
            Action::SyncBegin(manager) => Event::SyncBegin { manager: manager.clone() },
            Action::SyncEnd(manager) => Event::SyncEnd { manager: manager.clone(), owns_queue: false },
        })
    }

    /// A job as the manager runs it once it did what it was told; or none of it.
    fn observed(&self, job: JobId, runs: bool) -> Event {
        let told = self.told.get(&job);
        let allocation = told.and_then(|issue| match &issue.verdict {
            Verdict::Run(allocation) if runs => Some(allocation.clone()),
            _ => None,
        });
        let state = self.scheduler.state();
        // Who has nothing to do for now lets go of its devices.
        let slots = allocation.iter().flat_map(|allocation| {
            allocation.slots().iter().map(|slot| ObservedSlot {
                role: slot.role,
                index: slot.index,
                server: state.server_name(slot.server).to_owned(),
                devices: if allocation.is_busy(slot) { slot.devices.to_vec() } else { Vec::new() },
            })
        });
        let incarnation = told.map(|issue| issue.incarnation).unwrap_or_default();
        Event::Observed { job, incarnation, slots: slots.collect(), phase: Phase::Running }
    }
}
