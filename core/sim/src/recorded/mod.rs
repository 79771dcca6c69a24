//! A recorded cluster as a workload. The journal of a daemon is replayed, and models are fitted to the jobs' reports.
//! Then the same arrivals on the same servers can be simulated under any engine.
//!
//! Reports under one allocation contain no direct information for another engine: engines get the reports of simulated
//! programs only. The recording determines a job's speed in the shapes that it had, and its number of epochs.
//! Everything else is a fit with an uncertainty. Each seed [draws](Recording::workload) another truth that is
//! consistent with the recording.
//!
//! - **Steps per second**: the [`SpeedFit`](trainmaster_core::fit::SpeedFit) of the job's reports and profile, pulled
//!   towards its model's other jobs. A job without reports has its model's speed, or else the one in its job file.
//! - **Epochs**: the number that the job took. For an unfinished job it is the point at which its fitted losses meet
//!   its rule, or else the epochs of its model's other jobs, or else those in its job file.
//! - **Losses**: the [`LossFit`](trainmaster_core::fit::LossFit) with its noise.
//! - **Start, checkpoint, delay of the manager**: medians of the observations, of the job itself if there are any.
//! - **Servers**: as recorded, with arrivals, departures and foreign use.
//!
//! A job is [left out](LeftOut) if its speed or its amount of training is unknown, or if it ended before it trained.

mod cluster;
mod delays;
mod goal;
mod job;
mod known;
mod load;
mod recording;
mod speed;

use std::collections::BTreeMap;

use self::{cluster::Cluster, delays::Delays, job::Watched, known::Models, load::Load};
pub use self::{
    goal::{GoalBasis, KnownGoal},
    known::{Known, LeftOut},
    recording::{Reality, RecordedJob, Recording},
    speed::{KnownSpeed, SpeedBasis},
};
use trainmaster_core::{
    event::{End, Event},
    ids::{JobId, Revision},
    journal::{Record, Saved},
    replay::{Replay, Replayed},
    settings::{Mode, SettingsError},
    state::State,
    time::{Span, Time},
};

/// Replays a journal, and collects the data of a [`Recording`].
pub struct Recorder {
    replay: Replay,
    /// Start of the recording. None before the first event.
    from: Option<Time>,
    cluster: Cluster,
    jobs: BTreeMap<JobId, Watched>,
    delays: Delays,
    load: Load,
    models: Models,
    inactive: Span,
}

impl Recorder {
    /// Starts from a snapshot.
    ///
    /// # Errors
    /// As [`Replay::new`].
    pub fn new(saved: Saved) -> Result<Self, SettingsError> {
        let mut replay = Replay::new(saved)?;
        // Issues before the snapshot aren't part of the recording.
        replay.take_issues();
        let state = replay.scheduler().state();
        let mut recorder = Self {
            from: (state.now != Time(i64::MIN)).then_some(state.now),
            cluster: Cluster::new(state),
            jobs: BTreeMap::new(),
            delays: Delays::default(),
            load: Load::new(state),
            models: Models::default(),
            inactive: Span::ZERO,
            replay,
        };
        recorder.welcome();
        Ok(recorder)
    }

    /// The scheduler's state after the records so far.
    pub fn replay(&self) -> &Replay {
        &self.replay
    }

    /// Adds the next record.
    ///
    /// # Errors
    /// As [`Replay::step`].
    pub fn take(&mut self, record: &Record) -> Result<Replayed, SettingsError> {
        let may_end = matches!(
            record,
            Record::Snapshot(_) | Record::Event { event: Event::JobEnded { .. } | Event::SyncEnd { .. }, .. }
        );
        let before = may_end.then(|| self.replay.scheduler().state().clone());
        self.pass(record.at());
        let step = self.replay.step(record)?;
        match (record, &step) {
            (Record::Event { at, event }, Replayed::Event(Ok(()))) => self.event(*at, event),
            (Record::Snapshot(_), Replayed::Snapshot { follows: false }) => {
                let state = self.replay.scheduler().state();
                self.cluster.jump(state);
                self.load = self.load.jump(state);
                self.welcome();
            }
            _ => {}
        }
        if let Some(before) = before {
            self.farewell(record, &before);
        }
        let issues = self.replay.take_issues();
        let state = self.replay.scheduler().state();
        issues.iter().for_each(|issue| self.delays.told(state, issue));
        Ok(step)
    }

    fn pass(&mut self, to: Option<Time>) {
        let Some(to) = to else { return };
        let state = self.replay.scheduler().state();
        if self.from.is_some() && to > state.now {
            self.load.pass(state, to);
            if state.mode != Mode::Active {
                self.inactive.0 += (to - state.now).0;
            }
        }
        self.from.get_or_insert(to);
    }

    fn event(&mut self, at: Time, event: &Event) {
        let state = self.replay.scheduler().state();
        match event {
            Event::ServerSet { server, .. } => self.cluster.set(at, server),
            Event::ServersLeft { .. } | Event::SyncEnd { .. } | Event::ForeignUse { .. } => {
                self.cluster.look(at, state)
            }
            Event::JobSubmitted { .. } => self.welcome(),
            Event::Reported { job, incarnation, report, .. } => {
                // A job that changed while it started began later for that.
                let changed = state.job(*job).is_some_and(|job| job.issued.revision != Revision(0));
                let seen = self.delays.seen(*job, *incarnation).filter(|_| !changed);
                if let Some(watched) = self.jobs.get_mut(job) {
                    watched.reported(at, *incarnation, report, seen);
                }
            }
            Event::Observed { job, incarnation, slots, .. } => {
                self.delays.observed(at, *job, *incarnation, !slots.is_empty());
                self.load.observed(state, *job);
                if let Some(watched) = self.jobs.get_mut(job) {
                    watched.observed(at, !slots.is_empty());
                }
            }
            _ => {}
        }
    }

    /// Adds new jobs.
    fn welcome(&mut self) {
        let state = self.replay.scheduler().state();
        let from = self.from.unwrap_or(Time(i64::MIN));
        let known = self.jobs.last_key_value().map_or(JobId(0), |(last, _)| *last);
        // Job numbers increase, so new jobs come after all known ones.
        for job in state.jobs.values().rev().take_while(|job| job.id > known) {
            self.jobs.insert(job.id, Watched::new(job.clone(), from));
        }
    }

    /// Records jobs that are gone.
    fn farewell(&mut self, record: &Record, before: &State) {
        let now = self.replay.scheduler().state();
        let gone = match record {
            Record::Event { event: Event::JobEnded { job, .. }, .. } => {
                before.job(*job).into_iter().collect::<Vec<_>>()
            }
            _ => before.jobs.values().collect(),
        };
        for job in gone.into_iter().filter(|job| now.job(job.id).is_none()) {
            let end = match record {
                Record::Event { at, event: Event::JobEnded { end, .. } } => Some((*at, *end)),
                Record::Event { at, .. } => Some((*at, End::Completed)),
                _ => None,
            };
            self.models.learn(before, &job.model);
            if let Some(watched) = self.jobs.get_mut(&job.id) {
                watched.ended(job.clone(), end);
            }
            self.delays.forget(job.id);
            self.load.observed(now, job.id);
        }
    }

    /// Finishes the recording.
    pub fn finish(mut self) -> Recording {
        let state = self.replay.finish().state().clone();
        for job in state.jobs.values() {
            self.models.learn(&state, &job.model);
            if let Some(watched) = self.jobs.get_mut(&job.id) {
                watched.left(job.clone(), state.now);
            }
        }
        let from = self.from.unwrap_or_default();
        let delays = self.delays.medians(self.jobs.values());
        self.models.count(self.jobs.values());
        let mut names: BTreeMap<&str, u32> = BTreeMap::new();
        for watched in self.jobs.values() {
            *names.entry(&watched.last.spec.name).or_default() += 1;
        }
        let gaps = self.jobs.values().filter_map(Watched::mean_gap).collect();
        let mut jobs: Vec<RecordedJob> = self
            .jobs
            .values()
            .map(|watched| RecordedJob {
                id: watched.last.id,
                name: match &watched.last.spec.name {
                    name if names[name.as_str()] > 1 => format!("{:.100}-{}", name, watched.last.id.0),
                    name => name.clone(),
                },
                spec: watched.last.spec.clone(),
                arrival: watched.since,
                was_there: watched.last.arrival < watched.since,
                end: watched.end,
                lost: watched.lost,
                reports: watched.reports,
                waited: watched.waited,
                restarts: watched.restarts(),
                rescales: watched.last.issued.rescales.saturating_sub(watched.first.issued.rescales),
                known: Known::of(watched, &self.models, &delays),
            })
            .collect();
        jobs.sort_by_key(|job| (job.arrival, job.id));
        Recording {
            from,
            to: state.now.max(from),
            settings: (*state.settings).clone(),
            jobs,
            enact_delay: delays.enact,
            inactive: self.inactive,
            utilisation: self.load.utilisation(),
            servers: self.cluster.first,
            changes: self.cluster.changes,
            report_every: delays::median(gaps).unwrap_or(Span::seconds(1)),
        }
    }
}
