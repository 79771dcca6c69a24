//! Predictions with a known error in place of fitted ones (Optimus, Fig. 15).

use std::collections::BTreeMap;

use super::{Lots, program::Program};
use crate::{
    fit::{Prediction, SpeedFit, SpeedOptions, SpeedSample},
    ids::JobId,
    scheduler::{FitOutcome, speed_model},
};

/// Relative errors of the predictions that engines are given: v·(1 ± e) at a job's start, shrinking with its progress;
/// the sign is drawn for each job and each of both. Without errors set, engines get what the fits make of the reports.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Errors {
    /// Of the epoch of convergence.
    pub convergence: f64,
    /// Of the speed, at every (p, w).
    pub speed: f64,
}

/// A job's random numbers for this.
const SIGNS: u64 = 4 << 32;
/// (p, w) that the true speed function is taken from: dense enough that the fit's form is the only error.
const GRID: [u32; 6] = [1, 2, 4, 7, 11, 16];

/// The true speed functions, made once a job.
#[derive(Default)]
pub(super) struct Oracle {
    speeds: BTreeMap<JobId, SpeedFit>,
}

impl Oracle {
    pub(super) fn revise<'p>(
        &mut self,
        errors: Errors,
        outcome: &mut FitOutcome,
        program: impl Fn(JobId) -> Option<(f64, Truths<'p>)>,
    ) {
        outcome.revise(|id, fits| {
            let Some((progress, truths)) = program(id) else { return };
            let signed = |key: u64, error: f64| {
                let sign = if truths.lots.of(SIGNS).unit(key) < 0.5 { -1.0 } else { 1.0 };
                1.0 + sign * error * (1.0 - progress)
            };
            let epochs = f64::from(truths.epochs) * signed(0, errors.convergence);
            let epochs = (libm::round(epochs) as u64).max(u64::from(truths.done) + 1);
            fits.convergence = Some(Prediction {
                epochs,
                low: epochs,
                high: epochs,
                remaining_epochs: epochs - u64::from(truths.done),
                capped: false,
            });
            let speed = self.speeds.entry(id).or_insert_with(|| (truths.speed)());
            let mut wrong = speed.clone();
            let factor = signed(1, errors.speed).max(0.01);
            wrong.theta.iter_mut().for_each(|theta| *theta /= factor);
            fits.speed = Some(wrong);
        });
    }

    pub(super) fn forget(&mut self, job: JobId) {
        self.speeds.remove(&job);
    }
}

/// What the oracle knows of a job.
pub(super) struct Truths<'a> {
    lots: Lots,
    epochs: u32,
    done: u32,
    speed: Box<dyn Fn() -> SpeedFit + 'a>,
}

impl<'a> Truths<'a> {
    pub(super) fn of(program: &'a Program<'_>) -> Self {
        let speed = || {
            let pairs = program.job.spec.server.as_ref().map_or(&[0_u32][..], |_| &GRID[..]);
            let pairs = pairs.iter().flat_map(|p| GRID.iter().map(move |w| (*p, *w)));
            let samples: Vec<SpeedSample> = pairs
                .map(|(p, w)| SpeedSample::new(p, w, program.true_speed(p, w)))
                .filter(|sample| sample.speed > 0.0)
                .collect();
            SpeedFit::fit(speed_model(&program.job), &samples, &SpeedOptions::default())
        };
        Self { lots: program.lots, epochs: program.epochs, done: program.epoch(), speed: Box::new(speed) }
    }
}
