//! Knowledge about a recorded job, and its uncertainty.

use std::{collections::BTreeMap, sync::Arc};

use serde::Serialize;

use super::{
    delays::{Medians, median},
    goal::{KnownGoal, trained},
    job::Watched,
    speed::KnownSpeed,
};
use crate::{draws::Draws, truth::Truth};
use trainmaster_core::{event::End, fit::SpeedHistory, job::JobSpec, state::State, time::Span};

/// Knowledge about a job that can be simulated.
#[derive(Clone, Debug)]
pub struct Known {
    /// Steps per second.
    pub speed: KnownSpeed,
    /// Amount of training.
    pub goal: KnownGoal,
    /// Time from the allocation of slots to the first step.
    pub start: Span,
    /// Time from the order to stop to the release of the slots.
    pub checkpoint: Span,
    /// Relative deviation of the time of an epoch.
    pub noise: f64,
    /// Age of the job at the start of the recording, and time since its first start.
    pub(super) age: Span,
    pub(super) ran: Span,
    accuracy: Option<f64>,
}

/// Why a job can't be simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LeftOut {
    /// Neither the job nor another one of its model reported, and the job file has neither a profile nor a mini-batch
    /// time.
    UnknownSpeed,
    /// Neither reports nor the job file contain the steps per epoch.
    UnknownWork,
    /// The job was cancelled or failed before it trained.
    NeverTrained,
}

/// Knowledge from jobs of the same model.
#[derive(Default)]
pub(super) struct Models {
    pub(super) speeds: BTreeMap<Arc<str>, Arc<SpeedHistory>>,
    /// (epochs, steps per epoch) of completed jobs, sorted.
    pub(super) completed: BTreeMap<Arc<str>, Vec<(u32, u64)>>,
}

impl Models {
    /// Adds the state's knowledge of a model.
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

    /// Whether truths differ in more than random noise. A declared speed and number of epochs are taken as exact.
    pub fn is_drawn(&self) -> bool {
        self.speed.is_drawn() || self.goal.is_drawn()
    }

    /// Draws a truth that is consistent with the knowledge. `draws` are the job's.
    pub(super) fn draw(&self, spec: &JobSpec, draws: Draws) -> Truth {
        Truth {
            epoch_steps: Some(self.goal.epoch_steps),
            speed_noise: self.noise,
            start: self.start,
            checkpoint: self.checkpoint,
            accuracy: self.accuracy,
            ..Truth::of(self.speed.draw(draws.of(1)), self.goal.draw(draws.of(2), spec.convergence.max_epochs))
        }
    }
}
