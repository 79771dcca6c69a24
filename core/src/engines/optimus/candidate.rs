//! A job during the allocation, its next unit and that unit's gain.

use std::iter;

use super::Optimus;
use crate::{
    engine::forecast::{Forecast, worth_trying},
    job::Sizes,
    resources::Amounts,
    shape::Shape,
    state::State,
    time::Time,
};

/// A job with fewer epochs with a loss than this is young.
const YOUNG_EPOCHS: u64 = 5;

/// The gain of a worker that is tried without a predicted gain: below all others, so that it takes idle room alone.
const TRY: f64 = 1e-100;

/// Number of next larger sizes that are compared, of a job that runs only with some numbers of workers.
const MOST_SIZES: usize = 8;

/// A job during the allocation.
pub(super) struct Candidate<'a> {
    pub(super) forecast: Forecast<'a>,
    /// Demands of one worker and one parameter server. They are copied here for locality.
    pub(super) worker: Amounts,
    pub(super) server: Amounts,
    /// One more worker is tried up to this number.
    pub(super) tries: u32,
    /// 1, or the factor of young jobs.
    factor: f64,
    /// Whether gains are divided by the remaining time.
    relative: bool,
    /// A change wouldn't earn its restart, so the shape is final.
    pub(super) keeps: bool,
    pub(super) shape: Shape,
    /// 1 / dominant share of one worker and of one parameter server.
    per_worker: f64,
    per_server: f64,
    /// The largest number of workers that may fit.
    pub(super) most_workers: u32,
    pub(super) server_fits: bool,
    /// Remaining time with the current shape, in seconds.
    now: f64,
    /// The next unit, and the remaining time with it.
    pub(super) next: (Unit, f64),
    /// Workers of the next unit, if it has any: 1, unless the job runs only with some [`Sizes`].
    pub(super) workers: u32,
    /// Gain of the next unit. Negative if no unit has a gain.
    pub(super) gain: f64,
    /// The cost of a step in the budget: the numbers of workers and the batches that it compares.
    pub(super) cost: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    Worker,
    Server,
    Both,
}

impl<'a> Candidate<'a> {
    pub(super) fn new(engine: &Optimus, state: &State, forecast: Forecast<'a>) -> Self {
        let job = forecast.job;
        let share = |demand: &Amounts| 1.0 / demand.dominant_share(&state.usable).max(1e-12);
        let young = job.learnt.losses.last_epoch().is_none_or(|epochs| epochs < YOUNG_EPOCHS);
        Self {
            tries: if engine.explore { worth_trying(job) } else { 0 },
            factor: if young { engine.young_job_factor } else { 1.0 },
            relative: engine.relative_gain,
            keeps: false,
            shape: Shape::default(),
            worker: job.worker.amounts.clone(),
            server: job.server.amounts.clone(),
            per_worker: share(&job.worker.amounts),
            per_server: share(&job.server.amounts),
            most_workers: u32::MAX,
            server_fits: true,
            now: f64::INFINITY,
            next: (Unit::Worker, f64::INFINITY),
            workers: 1,
            gain: -1.0,
            cost: forecast.speeds() * if forecast.bounds.sizes == Sizes::Any { 1 } else { MOST_SIZES as u64 },
            forecast,
        }
    }

    /// Time since the arrival, in remaining times: high for short jobs, and growing while a job waits.
    pub(super) fn response_ratio(&self, now: Time) -> f64 {
        let Shape { workers, servers } = self.forecast.bounds.least();
        (now - self.forecast.job.arrival).as_seconds() / self.forecast.time(workers, servers).max(f64::MIN_POSITIVE)
    }

    /// Determines the larger of both gains (Eq. 9), and its unit.
    #[inline]
    pub(super) fn look_ahead(&mut self, joint_steps: bool) {
        let Shape { workers: w, servers: p } = self.shape;
        let now = self.now;
        let more = self.next_workers(w, p);
        let server_allowed = self.server_fits && p < self.forecast.bounds.servers.1;
        let (worker_allowed, next) = (more.is_some(), more.unwrap_or(w + 1));
        let units = next - w;
        let with_worker = if worker_allowed { self.forecast.time(next, p) } else { now };
        let with_server = if server_allowed { self.forecast.time(w, p + 1) } else { now };
        let unit = if self.relative { 1.0 / now.max(f64::MIN_POSITIVE) } else { 1.0 };
        let of = |then: f64, per_share: f64| (now - then) * unit * per_share;
        let per_workers = self.per_worker / f64::from(units);
        let (mut gain_w, gain_p) = (of(with_worker, per_workers), of(with_server, self.per_server));
        if worker_allowed && w < self.tries {
            // Jobs take turns.
            gain_w = gain_w.max(TRY / f64::from(next));
        }
        let mut gain = gain_w.max(gain_p);
        self.next = if gain_w >= gain_p { (Unit::Worker, with_worker) } else { (Unit::Server, with_server) };
        if gain <= 0.0 && joint_steps && worker_allowed && server_allowed {
            let share = 1.0 / per_workers + 1.0 / self.per_server;
            let with_both = self.forecast.time(next, p + 1);
            gain = (now - with_both) * unit / share;
            self.next = (Unit::Both, with_both);
        }
        self.workers = units;
        self.gain = if gain > 0.0 { gain * self.factor } else { -1.0 };
    }

    /// The number of workers to which one more unit of workers leads. A job that runs only with some numbers can be
    /// slower with the next one and faster with a larger one, so it is the number with the largest gain per worker
    /// among the [next few](MOST_SIZES).
    #[inline]
    fn next_workers(&self, w: u32, p: u32) -> Option<u32> {
        let fits = |next: &u32| *next <= self.most_workers;
        let first = self.forecast.bounds.more_workers(w).filter(fits)?;
        if self.forecast.bounds.sizes == Sizes::Any {
            return Some(first);
        }
        let all = iter::successors(Some(first), |size| self.forecast.bounds.more_workers(*size).filter(fits));
        let better = |best: (u32, f64), next: u32| {
            let gain = (self.now - self.forecast.time(next, p)) / f64::from(next - w);
            if gain > best.1 { (next, gain) } else { best }
        };
        Some(all.take(MOST_SIZES).fold((first, 0.0), better).0)
    }

    /// Takes the next unit.
    #[inline]
    pub(super) fn step(&mut self, joint_steps: bool) {
        let (unit, time) = self.next;
        self.shape.workers += if unit == Unit::Server { 0 } else { self.workers };
        self.shape.servers += u32::from(unit != Unit::Worker);
        self.now = time;
        self.look_ahead(joint_steps);
    }

    pub(super) fn set_shape(&mut self, shape: Shape) {
        self.shape = shape;
        self.now = self.forecast.time(shape.workers, shape.servers);
    }

    /// Demand of its shape beyond that of a smaller one.
    pub(super) fn above(&self, before: Shape) -> Amounts {
        let Shape { workers, servers } = self.shape;
        let mut more = self.worker.times(i64::from(workers - before.workers));
        more.add_times(&self.server, i64::from(servers - before.servers));
        more
    }
}
