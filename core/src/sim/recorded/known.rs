//! What is known of a recorded job, and how well.

use std::{collections::BTreeMap, sync::Arc};

use serde::Serialize;

use super::{
    delays::{Medians, median},
    goal::{KnownGoal, trained},
    job::Watched,
    speed::KnownSpeed,
};
use crate::{
    event::End,
    fit::SpeedHistory,
    job::JobSpec,
    sim::{lots::Lots, truth::Truth},
    state::State,
    time::Span,
};

/// Everything that is known of a job that can be simulated.
#[derive(Clone, Debug)]
pub struct Known {
    /// Steps a second.
    pub speed: KnownSpeed,
    /// How much it has to train.
    pub goal: KnownGoal,
    /// From having its slots to the first step.
    pub start: Span,
    /// From being told to stop to having let go.
    pub checkpoint: Span,
    /// Relative deviation of the time that an epoch takes.
    pub noise: f64,
    /// How old it was when it came into the recording, and how long ago it had first run.
    pub(super) age: Span,
    pub(super) ran: Span,
    accuracy: Option<f64>,
}

/// Why a job can't be simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LeftOut {
    /// Neither it nor another job of its model reported, and its description has no profile and no time of a mini-batch.
    UnknownSpeed,
    /// Neither a report nor its description tells the steps of an epoch.
    UnknownWork,
    /// It was cancelled, or failed, before it had trained.
    NeverTrained,
}

/// What jobs of one model taught together.
#[derive(Default)]
pub(super) struct Models {
    pub(super) speeds: BTreeMap<Arc<str>, Arc<SpeedHistory>>,
    /// (epochs, steps of one) of those that completed, sorted.
    pub(super) completed: BTreeMap<Arc<str>, Vec<(u32, u64)>>,
}

impl Models {
    /// Takes what the state knows of a model.
    pub(super) fn learn(&mut self, state: &State, model: &str) {
        if let Some((name, known)) = state.models.get_key_value(model).filter(|(_, known)| !known.speeds.is_empty()) {
            self.speeds.insert(name.clone(), known.speeds.clone());
        }
    }

    pub(super) fn count<'a>(&mut self, jobs: impl Iterator<Item = &'a Watched>) {
        for job in jobs.filter(|job| matches!(job.end, Some((_, End::Completed)))) {
            if let Some(work) = trained(&job.last) {
                self.completed.entry(job.last.model.clone()).or_default().push(work);
            }
        }
        self.completed.values_mut().for_each(|jobs| jobs.sort_unstable());
    }
}

impl Known {
    pub(super) fn of(watched: &Watched, models: &Models, delays: &Medians) -> Result<Self, LeftOut> {
        let job = &watched.last;
        let goal = KnownGoal::of(watched, models)?;
        let speed = KnownSpeed::of(watched, models)?;
        let own = median(watched.starts.clone());
        Ok(Self {
            speed,
            goal,
            start: own.or(delays.start).or(job.spec.restart_cost).unwrap_or(Span::ZERO),
            checkpoint: delays.checkpoint,
            noise: watched.noise(),
            age: watched.since - job.arrival,
            ran: watched.first.seen.started.map_or(Span::ZERO, |started| Span((watched.since - started).0.max(0))),
            accuracy: job.learnt.progress.accuracy,
        })
    }

    /// Whether truths differ in more than luck: a declared speed and number of epochs are taken at their word.
    pub fn is_drawn(&self) -> bool {
        self.speed.is_drawn() || self.goal.is_drawn()
    }

    /// A truth that agrees with what is known; `lots` are the job's.
    pub(super) fn draw(&self, spec: &JobSpec, lots: Lots) -> Truth {
        Truth {
            speed: self.speed.draw(lots.of(1)),
            goal: self.goal.draw(lots.of(2), spec.convergence.max_epochs),
            epoch_steps: Some(self.goal.epoch_steps),
            speed_noise: self.noise,
            start: self.start,
            checkpoint: self.checkpoint,
            stragglers: None,
            accuracy: self.accuracy,
            load: None,
        }
    }
}
