//! The predicted remaining time of a job by its shape.

use std::{collections::BTreeSet, sync::Arc};

use crate::{
    fit::{Confidence, SpeedCurve, SpeedFit, SpeedOptions, SpeedSample, speed::SpeedTable},
    job::{Bounds, Job, Sizes},
    shape::Shape,
};

/// About how many speeds it takes to find the best batch of a job that may choose it, near each batch whose noise is
/// known.
const BATCHES: u64 = 4;

/// What is predicted of a job.
pub(crate) struct Forecast<'a> {
    /// The job.
    pub(crate) job: &'a Arc<Job>,
    /// The shapes that it may have.
    pub(crate) bounds: Bounds,
    curve: SpeedCurve,
    /// Corrections of the curve, of a job that runs only with some numbers of workers.
    table: Option<&'a SpeedTable>,
    /// The fit of a job that may choose its batch, in place of the curve.
    adaptive: Option<&'a SpeedFit>,
    /// Whether times are in seconds. Without a measured speed of any job, their unit is unknown.
    pub(crate) is_timed: bool,
    /// Q: remaining steps.
    steps: f64,
}

impl<'a> Forecast<'a> {
    /// From the job's fits.
    pub(crate) fn of(job: &'a Arc<Job>) -> Self {
        let fit = job.learnt.fits.speed.as_ref();
        Self {
            job,
            bounds: job.bounds(),
            curve: match fit {
                Some(fit) => fit.curve(),
                None => SpeedFit::fit(job.speed_model(), &[], &SpeedOptions::default()).curve(),
            },
            table: fit.and_then(|fit| fit.table()).map(|table| &**table),
            adaptive: fit.filter(|fit| fit.goodput().is_some()),
            is_timed: fit.is_some(),
            steps: job.remaining_steps().0,
        }
    }

    /// The remaining time with that many workers and parameter servers, in seconds if it [is timed](Self::is_timed).
    #[inline]
    pub(crate) fn time(&self, workers: u32, servers: u32) -> f64 {
        if let Some(fit) = self.adaptive {
            return self.steps / fit.speed(servers, workers);
        }
        let time = self.steps * self.curve.step_time(servers, workers);
        self.table.map_or(time, |table| time / table.factor(workers))
    }

    /// How many speeds one remaining time takes.
    #[inline]
    pub(crate) fn speeds(&self) -> u64 {
        let goodput = self.adaptive.and_then(|fit| fit.goodput());
        goodput.map_or(1, |goodput| BATCHES * goodput.noise().batches())
    }

    /// The next smaller number of workers to try where a shape has no room: of a job that runs only with some numbers,
    /// one that is faster than the one below it.
    pub(crate) fn fewer_workers(&self, Shape { workers, servers }: Shape) -> u32 {
        let mut fewer = self.bounds.fewer_workers(workers);
        while self.bounds.sizes != Sizes::Any && fewer > self.bounds.workers.0 {
            let below = self.bounds.fewer_workers(fewer);
            if self.time(fewer, servers) < self.time(below, servers) {
                break;
            }
            fewer = below;
        }
        fewer
    }
}

/// Without a measured speed, the remaining time of a job in its requested shape counts as the median of the others'. A
/// mean would let one job with a false report decide it. O(jobs · log jobs).
pub(crate) fn guess_unknown_times<'a, 'b: 'a>(forecasts: impl Iterator<Item = &'a mut Forecast<'b>>) {
    let requested = |forecast: &Forecast<'_>| {
        let Shape { workers, servers } = forecast.job.spec.requested();
        forecast.time(workers, servers)
    };
    let (known, unknown): (Vec<_>, Vec<_>) = forecasts.partition(|forecast| forecast.is_timed);
    let mut known: Vec<f64> = known.into_iter().map(|forecast| requested(forecast)).collect();
    known.sort_by(f64::total_cmp);
    let Some(median) = known.get(known.len() / 2) else { return };
    for forecast in unknown {
        forecast.steps *= median / requested(forecast);
        forecast.is_timed = true;
    }
}

/// The number of workers up to which one more is tried: as requested, then twice the most that were measured, as long
/// as the most are the fastest. 0 once the speed function is fitted.
pub(crate) fn worth_trying(job: &Job) -> u32 {
    let fit = job.learnt.fits.speed.as_ref();
    let goodput = fit.and_then(|fit| fit.goodput());
    if goodput.is_none() && fit.is_some_and(|fit| fit.confidence == Confidence::Fitted) {
        return 0;
    }
    let samples = job.learnt.speeds.samples();
    if goodput.is_some() {
        // Several batches with few numbers of workers make a fit, but not one that knows other numbers.
        let tried: BTreeSet<_> = samples.iter().map(|sample| (sample.servers, sample.workers)).collect();
        if tried.len() >= job.speed_model().coefficients() {
            return 0;
        }
    }
    let requested = job.spec.requested().workers;
    let Some(most) = samples.iter().map(|sample| sample.workers).max() else { return requested };
    let speed = |sample: &SpeedSample| goodput.map_or(sample.speed, |goodput| goodput.of_sample(sample));
    let fastest = samples.iter().max_by(|a, b| speed(a).total_cmp(&speed(b))).map_or(0, |sample| sample.workers);
    if fastest < most { 0 } else { requested.max(most.saturating_mul(2)) }
}
