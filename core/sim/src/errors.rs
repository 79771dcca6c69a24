//! Predictions with a given error instead of fitted ones (Optimus, Fig. 15).

use std::collections::BTreeMap;

use super::{draws::Draws, program::Program, truth::StepTime};
use trainmaster_core::{
    fit::{Prediction, SpeedFit, SpeedOptions, SpeedSample},
    ids::JobId,
    job::JobSpec,
    scheduler::FitOutcome,
};

/// Relative errors of the predictions for engines: v·(1 ± e) at a job's start, decreasing with its progress. Signs are
/// drawn for each job. Without errors, engines use the fits of the reports.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Errors {
    /// Error of the convergence epoch.
    pub convergence: f64,
    /// Maximum error of the speed. Each coefficient of the speed function has its own sign, so the error depends on (p,
    /// w). A common sign would have the same effect as an error of convergence.
    pub speed: f64,
}

/// Key of a job's random numbers for the errors.
const SIGNS: u64 = 4 << 32;
/// Values of p and w at which the true speed function is sampled for a fit to it. Where engines get the function
/// itself, the fit only supplies coefficients.
const GRID: [u32; 6] = [1, 2, 4, 7, 11, 16];

/// Fits of the true speed functions, computed once per job.
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
                let sign = if truths.draws.of(SIGNS).unit(key) < 0.5 { -1.0 } else { 1.0 };
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
            let goodput = fits.speed.as_ref().and_then(|fit| fit.goodput().cloned());
            let speed = self.speeds.entry(id).or_insert_with(|| (truths.speed)());
            let divisor = |key: u64| signed(key, errors.speed).max(0.01);
            let fit = match truths.exact {
                Some(time) => speed.clone().with_curve(time.curve(truths.spec, divisor)),
                None => {
                    let theta = std::array::from_fn(|at| speed.theta[at] / divisor(1 + at as u64));
                    speed.clone().with_theta(theta)
                }
            };
            fits.speed = Some(fit.with_goodput(goodput));
        });
    }

    pub(super) fn forget(&mut self, job: JobId) {
        self.speeds.remove(&job);
    }
}

/// The truth about a job.
pub(super) struct Truths<'a> {
    draws: Draws,
    epochs: u32,
    done: u32,
    speed: Box<dyn Fn() -> SpeedFit + 'a>,
    spec: &'a JobSpec,
    /// The true function, if engines' speed functions can have its form. Otherwise they get the fit.
    exact: Option<&'a StepTime>,
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
            SpeedFit::fit(program.job.speed_model(), &samples, &SpeedOptions::default())
        };
        Self {
            draws: program.draws,
            epochs: program.epochs,
            done: program.epoch(),
            speed: Box::new(speed),
            spec: &program.job.spec,
            exact: program.step_time(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Options, Request, play, workload};
    use trainmaster_core::Settings;

    #[test]
    fn every_kind_of_error_changes_what_is_decided() {
        let request = Request { seed: 2, jobs: Some(18), servers: None };
        let workload = workload::find("optimus").unwrap().build(&request).unwrap();
        let digest = |convergence: f64, speed: f64| {
            let settings = Settings { engine: "optimus-paper".into(), ..Settings::default() };
            let options =
                Options { settings, seed: 2, errors: Some(Errors { convergence, speed }), ..Options::default() };
            play(&workload, &options, &mut ()).unwrap().digest
        };
        let truth = digest(0.0, 0.0);
        assert_eq!(truth, digest(0.0, 0.0));
        assert_ne!(truth, digest(0.4, 0.0));
        assert_ne!(truth, digest(0.0, 0.4));
    }
}
