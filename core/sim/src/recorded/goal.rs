//! The amount of training of a recorded job.

use std::sync::Arc;

use serde::Serialize;

use super::{
    job::Watched,
    known::{LeftOut, Models},
};
use crate::{draws::Draws, truth::Curve, truth::Goal, truth::Loss};
use trainmaster_core::{
    event::End,
    fit::{Convergence, LossFit},
    job::Job,
};

/// The basis of a job's amount of training.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum GoalBasis {
    /// The job completed.
    Completed,
    /// The job failed or was cancelled. It is assumed to need only the training that it had.
    Abandoned,
    /// The point at which its fitted losses meet its convergence rule.
    Losses,
    /// Completed jobs of its model.
    Model,
    /// The job file: the epochs of its dataset, or the maximum epochs.
    Declared,
}

/// The amount of training of a job.
#[derive(Clone, Debug)]
pub struct KnownGoal {
    /// Basis of the amount.
    pub basis: GoalBasis,
    /// Epochs.
    pub epochs: u32,
    /// Interval: fewer epochs are unlikely (one in ten), and so are more.
    pub interval: (u32, u32),
    /// Steps from before the recording.
    pub done: u64,
    pub(super) epoch_steps: u64,
    losses: Option<(Arc<LossFit>, f64)>,
}

/// Upper limit of plausible steps per epoch, whatever is reported.
const MOST_STEPS: u64 = 1 << 40;

/// Trained epochs of a job, and steps per epoch. Their product is the total of its steps.
pub(super) fn trained(job: &Job) -> Option<(u32, u64)> {
    let (progress, epochs) = (&job.learnt.progress, job.learnt.progress.epoch.max(1));
    if progress.step == 0 {
        return None;
    }
    let mean = (progress.step / u64::from(epochs)).clamp(1, MOST_STEPS);
    let told = progress.steps_per_epoch;
    let off = told.saturating_mul(epochs.into()).abs_diff(progress.step);
    // The steps of an incomplete last epoch are spread over all epochs.
    Some((epochs, if (1..=MOST_STEPS).contains(&told) && off <= progress.step / 50 { told } else { mean }))
}

/// Steps per epoch: reported, or else declared.
fn epoch_steps(job: &Job) -> Option<u64> {
    let (progress, spec) = (&job.learnt.progress, &job.spec);
    let steps = match (&spec.dataset, progress.steps_per_epoch) {
        (_, reported @ 1..) => Some(reported),
        _ if progress.epoch > 0 && progress.step > 0 => Some((progress.step / u64::from(progress.epoch)).max(1)),
        (Some(data), _) => Some(u64::from(data.chunks.max(1)) * u64::from(data.batches_per_chunk.max(1))),
        (None, _) => (spec.examples > 0).then(|| spec.examples.div_ceil(spec.batch)),
    };
    steps.map(|steps| steps.min(MOST_STEPS))
}

impl KnownGoal {
    pub(super) fn of(watched: &Watched, models: &Models) -> Result<Self, LeftOut> {
        let job = &watched.last;
        let losses = Convergence::fit(&job.learnt.losses, &Default::default()).ok().map(|fit| {
            let noise = relative_noise(&fit);
            (Arc::new(fit), noise)
        });
        let siblings = models.completed.get(&job.model).filter(|siblings| !siblings.is_empty());
        let (basis, epochs, interval, epoch_steps) = match watched.end.map(|(_, end)| end) {
            Some(End::Completed) if job.learnt.progress.step > 0 => {
                let (epochs, steps) = trained(job).ok_or(LeftOut::UnknownWork)?;
                (GoalBasis::Completed, epochs, (epochs, epochs), steps)
            }
            Some(End::Failed | End::Cancelled) => {
                let (epochs, steps) = trained(job).ok_or(LeftOut::NeverTrained)?;
                (GoalBasis::Abandoned, epochs, (epochs, epochs), steps)
            }
            _ => {
                let of_siblings = || siblings.map(|siblings| siblings[siblings.len() / 2].1);
                let steps = epoch_steps(job).or_else(of_siblings).ok_or(LeftOut::UnknownWork)?;
                let (basis, epochs, interval) = ahead(job, losses.as_ref().map(|(fit, _)| &**fit), siblings);
                (basis, epochs, interval, steps)
            }
        };
        // The job's own steps may be counted in epochs of another length.
        let before = if job.arrival < watched.since { watched.first.learnt.progress.step } else { 0 };
        let all = epoch_steps.saturating_mul(epochs.into());
        Ok(Self { basis, epochs, interval, done: before.min(all - 1), epoch_steps, losses })
    }

    pub(super) fn is_drawn(&self) -> bool {
        self.interval.0 < self.interval.1
    }

    pub(super) fn draw(&self, draws: Draws, most: u32) -> Goal {
        /// The ninth decile of the normal distribution.
        const DECILE: f64 = 1.2816;
        let (low, high) = self.interval;
        let z = draws.normal(0);
        let side = if z < 0.0 { self.epochs.saturating_sub(low) } else { high.saturating_sub(self.epochs) };
        let drawn = f64::from(self.epochs) + z / DECILE * f64::from(side);
        let least = self.done / self.epoch_steps + 1;
        let drawn = (libm::round(drawn).max(1.0) as u64).clamp(least, u64::from(most).max(least));
        let loss = |(fit, noise): &(Arc<LossFit>, f64)| Loss { curve: Curve::Fitted(fit.clone()), noise: *noise };
        let epochs = if self.is_drawn() { drawn as u32 } else { self.epochs };
        Goal::Epochs(epochs, self.losses.as_ref().map(loss))
    }
}

/// Predicted training of a job that hasn't come to its own end.
fn ahead(job: &Job, losses: Option<&LossFit>, siblings: Option<&Vec<(u32, u64)>>) -> (GoalBasis, u32, (u32, u32)) {
    let rule = &job.spec.convergence;
    let done = job.learnt.progress.epoch;
    let narrow = |epochs: u64| u32::try_from(epochs).unwrap_or(u32::MAX).max(done.saturating_add(1));
    if let Some(fit) = losses {
        let end = fit.converges(rule.delta, rule.patience, rule.max_epochs.into(), done.into());
        return (GoalBasis::Losses, narrow(end.epochs), (narrow(end.low), narrow(end.high)));
    }
    if let Some(siblings) = siblings {
        let at = |share: usize| {
            narrow(siblings[(siblings.len() - 1) * share / 10].0.into())
                .min(rule.max_epochs.max(done.saturating_add(1)))
        };
        return (GoalBasis::Model, at(5), (at(1), at(9)));
    }
    let told = job.spec.dataset.as_ref().map_or(rule.max_epochs, |data| data.epochs.min(rule.max_epochs));
    let epochs = narrow(told.into());
    (GoalBasis::Declared, epochs, (epochs, epochs))
}

/// Noise of a simulated loss ([`Loss::noise`]) that equals the fitted noise near the end, where it matters.
fn relative_noise(fit: &LossFit) -> f64 {
    let last = fit.last_epoch.max(1);
    let relative = fit.noise_at(last) * (last as f64).sqrt() / fit.loss_at(last as f64).abs();
    if relative.is_finite() { relative.min(1.0) } else { 0.0 }
}
