//! A recorded cluster as a workload: a daemon's journal is gone through again, what its jobs reported is fitted, and the
//! same arrivals on the same servers can be played under any engine.
//!
//! What was reported under one allocation tells another engine nothing by itself: engines hear only what the simulated
//! programs report. What is known of a job is how fast it is at the shapes that it had and how many epochs it took;
//! everything else is a fit with an uncertainty, and each seed [draws](Recording::workload) another truth that agrees with
//! what was seen.
//!
//! | what | where from |
//! |---|---|
//! | steps a second | [`SpeedFit`](crate::fit::SpeedFit) of the job's reports and profile, pulled towards its model's other jobs; a job that never reported has its model's, else what its description says |
//! | epochs | as many as it took; of a job that hasn't ended, where its fitted losses meet its rule; else its model's other jobs', else what its description says |
//! | losses | [`LossFit`](crate::fit::LossFit) with its noise |
//! | start, checkpoint, delay of the manager | medians of what was seen, of the job where it was |
//! | servers | as they came, went and were used by others |
//!
//! A job of which nothing tells the speed or the work, or that ended before it had trained, is [left out](LeftOut).

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
use crate::{
    event::{End, Event},
    ids::JobId,
    journal::{Record, Replay, Saved, Step},
    settings::{Mode, SettingsError},
    state::State,
    time::{Span, Time},
};

/// Goes through a journal and keeps what a [`Recording`] needs.
pub struct Recorder {
    replay: Replay,
    /// When it begins; none until something has happened.
    from: Option<Time>,
    cluster: Cluster,
    jobs: BTreeMap<JobId, Watched>,
    delays: Delays,
    load: Load,
    models: Models,
    inactive: Span,
}

impl Recorder {
    /// Starts at a snapshot.
    ///
    /// # Errors
    /// As [`Replay::new`].
    pub fn new(saved: Saved) -> Result<Self, SettingsError> {
        let mut replay = Replay::new(saved)?;
        // What was told before is no news.
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

    /// The scheduler as it was after the records so far.
    pub fn replay(&self) -> &Replay {
        &self.replay
    }

    /// Takes the next record.
    ///
    /// # Errors
    /// As [`Replay::step`].
    pub fn take(&mut self, record: &Record) -> Result<Step, SettingsError> {
        let may_end = matches!(
            record,
            Record::Snapshot(_) | Record::Event { event: Event::JobEnded { .. } | Event::SyncEnd { .. }, .. }
        );
        let before = may_end.then(|| self.replay.scheduler().state().clone());
        self.pass(record.at());
        let step = self.replay.step(record)?;
        match (record, &step) {
            (Record::Event { at, event }, Step::Event(Ok(()))) => self.event(*at, event),
            (Record::Snapshot(_), Step::Snapshot { follows: false }) => {
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
                let seen = self.delays.seen(*job, *incarnation);
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

    /// Jobs that are new here.
    fn welcome(&mut self) {
        let state = self.replay.scheduler().state();
        let from = self.from.unwrap_or(Time(i64::MIN));
        let known = self.jobs.last_key_value().map_or(JobId(0), |(last, _)| *last);
        // Numbers grow: whoever is new is behind all who are known.
        for job in state.jobs.values().rev().take_while(|job| job.id > known) {
            self.jobs.insert(job.id, Watched::new(job.clone(), from));
        }
    }

    /// Jobs that are gone.
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

    /// What it all comes to.
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
