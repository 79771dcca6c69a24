//! The predicted remaining time of a job by its shape.

use std::{cmp::Reverse, collections::BTreeSet, sync::Arc};

use crate::{
    decision::Allocation,
    fit::{Confidence, SpeedCurve, SpeedFit, SpeedOptions, SpeedSample, speed::SpeedTable},
    job::{Bounds, Job, Sizes},
    resources::{Amounts, GPU},
    server::Server,
    shape::{Role, Shape},
    state::State,
};

/// About how many speeds it takes to find the best batch of a job that may choose it, near each batch whose noise is
/// known.
const BATCHES: u64 = 4;

/// The predictions for a job.
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
    /// The number of workers that one server can hold, if the speed depends on whether they share one.
    together: Option<u32>,
    /// Whether times are in seconds. Without a measured speed of any job, their unit is unknown.
    pub(crate) is_timed: bool,
    /// Q: remaining steps.
    steps: f64,
}

impl<'a> Forecast<'a> {
    /// From the job's fits.
    pub(crate) fn of(job: &'a Arc<Job>, kinds: &Kinds<'_>) -> Self {
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
            together: job.tells_places().then(|| kinds.most(&job.worker.amounts)),
            is_timed: fit.is_some(),
            steps: job.remaining_steps().0,
        }
    }

    /// The remaining time with that many workers and parameter servers, in seconds if it [is timed](Self::is_timed).
    /// Workers of all-reduce that one server can hold count as sharing one.
    #[inline]
    pub(crate) fn time(&self, workers: u32, servers: u32) -> f64 {
        self.time_at(workers, self.places(workers, servers))
    }

    /// The remaining time with the workers on one server, or on several.
    pub(crate) fn time_apart(&self, workers: u32, servers: u32, apart: bool) -> f64 {
        self.time_at(workers, if self.together.is_some() { 1 + u32::from(apart) } else { servers })
    }

    /// The remaining time with these slots.
    pub(crate) fn time_with(&self, slots: &Allocation) -> f64 {
        self.time_at(slots.shape().workers, self.job.places(slots))
    }

    /// The number of workers that one server can hold, if it matters whether they share one.
    pub(crate) fn most_together(&self) -> Option<u32> {
        self.together
    }

    /// Whether that many workers can share a server, and that matters.
    pub(crate) fn may_share(&self, workers: u32) -> bool {
        self.together.is_some_and(|most| workers <= most)
    }

    /// Whether these slots are on several servers, though one could hold as many workers, and that matters.
    pub(crate) fn is_apart(&self, slots: &Allocation) -> bool {
        self.may_share(slots.shape().workers) && !slots.is_together()
    }

    /// The time of a step, as in [`time`](Self::time). It doesn't depend on how many remain.
    #[inline]
    pub(crate) fn step_time(&self, workers: u32, servers: u32) -> f64 {
        self.step_time_at(workers, self.places(workers, servers))
    }

    /// p of a shape, as in [`Job::places`].
    #[inline]
    fn places(&self, workers: u32, servers: u32) -> u32 {
        self.together.map_or(servers, |most| 1 + u32::from(workers > most))
    }

    #[inline]
    fn time_at(&self, workers: u32, places: u32) -> f64 {
        self.steps * self.step_time_at(workers, places)
    }

    #[inline]
    fn step_time_at(&self, workers: u32, places: u32) -> f64 {
        if let Some(fit) = self.adaptive {
            return 1.0 / fit.speed(places, workers);
        }
        let time = self.curve.step_time(places, workers);
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

/// The capacities of the servers that take workers, each once: of many different ones those with the most GPUs.
pub(crate) struct Kinds<'a>(Vec<&'a Amounts>);

/// Number of different capacities.
const MOST_KINDS: usize = 32;

impl<'a> Kinds<'a> {
    /// Of all servers, if some job's speed depends on them. O(jobs + servers + kinds · log kinds). A job that can't use
    /// all servers, because of its labels or its domain, may find less on those that it can use.
    pub(crate) fn of(state: &'a State) -> Self {
        let mut kinds = BTreeSet::new();
        let takes = |server: &&Arc<Server>| !server.draining && server.hosts.takes(Role::Worker);
        if state.jobs.values().any(|job| job.tells_places()) {
            let mut last = None;
            for server in state.present_servers().filter(takes) {
                if last != Some(&server.capacity) {
                    kinds.insert((Reverse(server.capacity[GPU]), &server.capacity));
                    last = Some(&server.capacity);
                }
            }
        }
        Self(kinds.into_iter().map(|(_, kind)| kind).take(MOST_KINDS).collect())
    }

    /// The largest number of workers with this demand that one server can hold.
    fn most(&self, worker: &Amounts) -> u32 {
        let held = |kind: &&Amounts| {
            let of_each = worker.iter().filter(|(_, each)| *each > 0).map(|(resource, each)| kind[resource] / each);
            of_each.min().unwrap_or(i64::MAX)
        };
        let most = self.0.iter().map(held).max().unwrap_or(0);
        u32::try_from(most.max(1)).unwrap_or(u32::MAX)
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

/// The largest number of workers with a measured speed.
pub(crate) fn most_measured(job: &Job) -> u32 {
    job.learnt.speeds.samples().iter().map(|sample| sample.workers).max().unwrap_or(0)
}

/// Pollux's restart factor (OSDI'21, §4.2): the part of its time until now that a job trains if it is restarted once
/// more. A job that never started has nothing to lose.
pub(crate) fn restart_factor(state: &State, job: &Job) -> f64 {
    let starts = job.issued.incarnation.0;
    if starts == 0 {
        return 1.0;
    }
    let age = (state.now - job.arrival).as_seconds().max(0.0);
    let delay = job.learnt.restart_cost.as_seconds();
    let lost = f64::from(starts - 1) * delay;
    (age - lost).max(0.0) / (age + delay).max(f64::MIN_POSITIVE)
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
        let has_servers = job.speed_model().has_servers();
        let shape = |sample: &SpeedSample| (if has_servers { sample.servers } else { 0 }, sample.workers);
        let tried: BTreeSet<_> = samples.iter().map(shape).collect();
        if tried.len() >= job.speed_model().enough() {
            return 0;
        }
    }
    let requested = job.spec.requested().workers;
    let Some(most) = samples.iter().map(|sample| sample.workers).max() else { return requested };
    let speed = |sample: &SpeedSample| goodput.map_or(sample.speed, |goodput| goodput.of_sample(sample));
    let fastest = samples.iter().max_by(|a, b| speed(a).total_cmp(&speed(b))).map_or(0, |sample| sample.workers);
    if fastest < most { 0 } else { requested.max(most.saturating_mul(2)) }
}
