//! Goodput: the shapes that complete jobs soonest on average, whatever their lengths.
//!
//! This project's own engine. It minimises the sum of the completion times of malleable jobs. For jobs whose speed on
//! k servers is kᵖ, 0 < p < 1, the optimum is known: heSRPT (Berg, Vesilo and Harchol-Balter, *heSRPT: Parallel
//! scheduling to minimize mean slowdown*, Performance Evaluation 2020). With the jobs from the longest (i = 1) to the
//! shortest (i = n), job i gets the fraction (i/n)^c − ((i − 1)/n)^c of the cluster, with c = 1/(1 − p): all jobs run,
//! and shorter ones on more servers. The same allocation maximises Σ λᵢ·sᵢ(kᵢ), the sum of speeds weighed by prices
//! that grow like iᵖ: the more jobs are longer than this one, the more jobs use its room after its end. Here the same
//! sum is maximised, with predicted speeds of any form and λᵢ = √i: the next unit goes to the job with the largest λ·Δs
//! per share of the cluster. docs/goodput.md has the derivation and measurements.
//!
//! * s is the speed in shares of the cluster: a job's smallest shape is as fast as its share of the cluster is large. A
//!   larger shape is faster by its predicted speed. If a job may choose its batch, that is its goodput (Pollux,
//!   OSDI'21). Workers of all-reduce count as on one server if one can hold them. Where they find no room on one, fewer
//!   of them may be faster.
//! * Speeds that jump or fall count by their upper concave hull: a job goes from one corner to the next, or to the best
//!   number of workers before it for which there is room.
//! * i counts the jobs whose work is at least as large: the time that they need in their smallest shape, times its
//!   share. The work of a job counts as less the longer ago it arrived, relative to that time, so that no job waits
//!   for ever.
//! * All jobs get their smallest shape before any grows: those of a higher priority first, then the dearer ones.
//! * A job whose speed isn't measured counts as the median one. While few of a job's speeds are measured, it tries more
//!   workers where there is idle room.
//! * A running job is restarted with more workers only if that gets it further within a quarter of its age per start.
//!   Where each change is a restart, what a job has beyond its smallest shape counts as faster than what it hasn't, so
//!   that workers don't go back and forth. It is stopped if others come first and leave no room for its smallest shape;
//!   their work includes the restart that they need.
//! * A job whose slots find no place, because what is free is scattered, gets that of jobs behind it, from the last one
//!   on. These get another place if there is room (`Round::make_room`).
//! * For a job that waits for jobs of a lower priority, which stability keeps where they are, room is held
//!   (`Round::prefer`).
//!
//! Choose it for jobs whose speed is measured and whose end is known or predicted, most of all if owners leave the
//! number of workers, or the batch, to the scheduler. Cost for J jobs: O(J log J + J·k) with the k shapes of a job that
//! are considered, all up to 32 workers and about 32 for each doubling from there, and the placement's
//! (`Resizing::place`). Speeds are only computed of jobs whose fit, numbers of workers or demand changed, and of all
//! jobs if the cluster's size changed.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap},
    sync::Arc,
};

use crate::engine::{
    About, Build, Engine, EngineError, Parameters, Round, Triggers, confined,
    forecast::{Forecast, Kinds, guess_unknown_times, worth_trying},
    ledger::Ledger,
    placing::Placing,
    resizing::{Homeless, Resizing},
    round::{extra, minute},
};
use crate::{
    ids::JobId,
    job::{Fits, JobSpec, Sizes},
    place::SortBy,
    resources::Amounts,
    settings::SettingsError,
    shape::Shape,
    state::{Mandate, State},
    time::{Span, Time},
};

/// Numbers of workers that are considered in each doubling.
const FINE: u32 = 32;

/// A job's shapes are considered until this many aren't faster than the best before them.
const FLAT: u32 = 16;

/// The gain of a worker that is tried without a predicted gain: below all others, so that it takes idle room alone.
const TRY: f64 = 1e-100;

/// Where each change of shape is a restart, a job's progress by what it has beyond its smallest shape counts as so many
/// times the progress by what it hasn't.
const KEPT: f64 = 1.5;

/// The work of a job counts as half once it arrived so many times as long ago as it takes.
const PATIENCE: f64 = 4.0;

/// Number of times that units which unearned changes leave are handed out again.
const HANDED_OUT_AGAIN: u32 = 2;

/// The engine, as its module describes it.
#[derive(Clone, Debug)]
pub struct Goodput {
    interval: Span,
    price: f64,
    explore: bool,
    rescale_cost: bool,
    replace_stragglers: bool,
    resizing: Resizing,
}

impl Build for Goodput {
    type Engine = Self;
    const ABOUT: About = About::new(
        "goodput",
        "gives each next worker to the job whose progress it speeds up most, weighed by how many jobs wait behind it",
        "this project; after Berg et al., heSRPT, 2020, and Qiao et al., Pollux, OSDI'21",
    );

    fn build(parameters: &mut Parameters<'_>) -> Result<Self, SettingsError> {
        let price =
            "exponent of the price on a job's progress: 0 speeds up all jobs alike, 1 serves shorter ones first";
        let explore = "a job with few measured speeds tries its requested workers, then twice as many as ever, where \
            there is idle room";
        let rescale = "keep a running job's shape unless the new one soon makes up for its restart";
        let replace = "a worker slower than half the median of its job is replaced by one on another server, if that \
            earns a restart back";
        let in_place = "where only workers change, what runs stays where it is, so nothing restarts";
        let shrink = "a job that fits nowhere keeps its old place, or tries a smaller shape, before it is paused";
        let spare = "what needs no GPU leaves each free GPU what the smallest worker needs beside it, if it can";
        Ok(Self {
            interval: minute(parameters)?,
            price: parameters.number("price", 0.5, 0.0..=2.0, price)?,
            explore: parameters.flag("explore", true, explore)?,
            rescale_cost: parameters.flag("rescale_cost", true, rescale)?,
            replace_stragglers: parameters.flag("replace_stragglers", true, replace)?,
            resizing: Resizing {
                placing: Placing::of(parameters, "even")?,
                in_place: parameters.flag("resize_in_place", true, in_place)?,
                shrink_to_fit: parameters.flag("shrink_to_fit", true, shrink)?,
                spare_gpus: parameters.flag("spare_gpus", true, spare)?,
            },
        })
    }
}

impl Engine for Goodput {
    type Memo = ();
    type Index = Paths;

    fn order(&self) -> Option<SortBy> {
        Some(SortBy::Share)
    }

    fn triggers(&self) -> Triggers {
        Triggers { interval: Some(self.interval), arrival: true, departure: true }
    }

    fn decide<'a>(&self, round: &mut Round<'a, Paths>, (): &mut ()) -> Result<(), EngineError> {
        round.index.forget(round.state);
        let plans = confined::planned(round, |round: &mut Round<'a, Paths>, others| self.plan(round, others))?;
        if self.replace_stragglers {
            self.resizing.replace_slow_workers(round, plans.iter().map(|plan| &plan.forecast))?;
        }
        round.prefer(self.resizing.placing);
        Ok(())
    }
}

/// A job during the allocation.
struct Plan<'a> {
    forecast: Forecast<'a>,
    /// λ: the price on its progress.
    price: f64,
    /// One more worker is tried up to this number.
    tries: u32,
    /// The shape that it can't leave without a restart.
    kept: Shape,
    shape: Shape,
    path: Arc<Path>,
    /// The next of the path's steps.
    next: usize,
}

/// A job's way from its smallest shape to its largest: the corners of its speed's hull.
struct Path {
    /// The first one is the smallest shape. The slopes fall.
    steps: Vec<Corner>,
    /// The shares of the cluster that a worker and a parameter server take.
    unit: (f64, f64),
    /// Number of speeds that it takes to compute.
    speeds: u64,
}

/// A shape, and the speed that it adds per share of the cluster that it adds to the one before.
struct Corner {
    shape: Shape,
    slope: f64,
}

impl Goodput {
    /// Allocates and places all jobs that aren't passed over. Returns those with a shape, and those of them that found
    /// no room.
    fn plan<'a>(
        &self,
        round: &mut Round<'a, Paths>,
        passed_over: &Homeless<'a>,
    ) -> Result<(Vec<Plan<'a>>, Homeless<'a>), EngineError> {
        let state = round.state;
        let mut ledger = Ledger::of(state);
        let skipped: BTreeSet<JobId> = passed_over.iter().map(|(job, _)| job.id).collect();
        passed_over.iter().for_each(|(job, reason)| round.proposal.wait(job, reason.clone()));
        let kinds = Kinds::of(state);
        let mut forecasts = Vec::with_capacity(state.jobs.len());
        for job in state.jobs.values().filter(|job| !skipped.contains(&job.id)) {
            if state.mandate(job) == Mandate::Free {
                forecasts.push(Forecast::of(job, &kinds));
            } else if job.verdict.allocation().is_some() {
                // The job can't be changed now, but its slots count.
                ledger.take(job, &job.total(job.shape()), 1);
            }
        }
        let others = ledger.clone();
        guess_unknown_times(forecasts.iter_mut());
        let mut plans: Vec<Plan<'_>> = Vec::with_capacity(forecasts.len());
        let restarts = self.rescale_cost && !self.resizing.in_place(state);
        for forecast in forecasts {
            let keeps = restarts && forecast.job.learnt.restart_cost > Span::ZERO;
            let has = forecast.job.verdict.allocation().filter(|_| keeps);
            let kept = has.map_or(Shape::default(), |has| has.shape());
            let tries = if self.explore { worth_trying(forecast.job) } else { 0 };
            let path = round.index.of(&forecast, tries, state);
            // A kept path counts as well, so that rounds don't differ by what is kept.
            round.budget.spend(path.speeds)?;
            plans.push(Plan { forecast, price: 0.0, tries, kept, shape: Shape::default(), path, next: 0 });
        }
        self.set_prices(&mut plans, state);
        start(round, &mut plans, &mut ledger)?;
        plans.retain(|plan| !plan.shape.is_empty());
        grow(round, &mut plans, &mut ledger)?;
        // The slots of jobs that will wait are free for the others.
        let waiting = round.proposal.changes.iter().filter_map(|(id, _)| state.job(*id));
        waiting.for_each(|job| round.board.release(state, job));
        if self.rescale_cost {
            for _ in 0..HANDED_OUT_AGAIN {
                if !self.keep_what_restarts_do_not_earn(&mut plans, &mut ledger, state) {
                    break;
                }
                grow(round, &mut plans, &mut ledger)?;
            }
            self.keep_what_restarts_do_not_earn(&mut plans, &mut ledger, state);
        }
        let planned: Vec<_> = plans.iter().map(|plan| (&plan.forecast, plan.shape)).collect();
        let mut homeless = self.resizing.place(round, &planned)?;
        if !homeless.is_empty() {
            drop(planned);
            plans.sort_by_cached_key(|plan| Reverse((state.priority(plan.forecast.job), plan.key(0))));
            let ids: BTreeSet<JobId> = homeless.iter().map(|(job, _)| job.id).collect();
            // Jobs without a place get their smallest shape.
            let shape = |plan: &Plan<'_>| {
                if ids.contains(&plan.forecast.job.id) { plan.forecast.bounds.least() } else { plan.shape }
            };
            let order: Vec<_> = plans.iter().map(|plan| (plan.forecast.job, shape(plan))).collect();
            round.make_room(&order, others, self.resizing.placing)?;
            let runs: BTreeSet<JobId> = round.planned().map(|(job, _)| job.id).collect();
            homeless.retain(|(job, _)| !runs.contains(&job.id));
        }
        Ok((plans, homeless))
    }

    /// λ of each job: a power of the number of jobs with at least as much work. O(jobs · log jobs).
    fn set_prices(&self, plans: &mut [Plan<'_>], state: &State) {
        let mut order: Vec<(f64, usize)> =
            plans.iter().enumerate().map(|(at, plan)| (work(&plan.forecast, state), at)).collect();
        // Of equal jobs, the earlier one is dearer.
        order.sort_by(|(mine, a), (theirs, b)| theirs.total_cmp(mine).then(b.cmp(a)));
        for (longer, (_, at)) in order.into_iter().enumerate() {
            plans[at].price = libm::pow(longer as f64 + 1.0, self.price);
        }
    }

    /// Reverts changes of running jobs that don't [make up](Resizing::earned) for their restarts. Returns whether
    /// there were any.
    fn keep_what_restarts_do_not_earn(&self, plans: &mut [Plan<'_>], ledger: &mut Ledger, state: &State) -> bool {
        let mut any = false;
        for plan in plans {
            let best = self.resizing.earned(state, &plan.forecast, plan.shape, plan.tries, ledger);
            if best != plan.shape {
                plan.shape = best;
                plan.next = plan.path.steps.len();
                any = true;
            }
        }
        any
    }
}

/// Gives jobs their smallest shapes while they fit: first to those of a higher priority, then to the dearer ones. The
/// others wait with a reason. O(jobs · log jobs).
fn start(round: &mut Round<'_, Paths>, plans: &mut [Plan<'_>], ledger: &mut Ledger) -> Result<(), EngineError> {
    let state = round.state;
    round.budget.spend(plans.len() as u64)?;
    let mut order: Vec<usize> = (0..plans.len()).collect();
    order.sort_by_cached_key(|at| (Reverse((state.priority(plans[*at].forecast.job), plans[*at].key(0))), *at));
    for at in order {
        let plan = &mut plans[at];
        let (job, least) = (plan.forecast.job, plan.path.steps[0].shape);
        let amounts = job.total(least);
        if ledger.has(job, &amounts) {
            ledger.take(job, &amounts, 1);
            (plan.shape, plan.next) = (least, 1);
        } else {
            round.proposal.wait(job, ledger.reason(state, job, &amounts));
        }
    }
    Ok(())
}

/// Hands out the further steps, those with the largest keys first, while they fit. Of a step that doesn't fit, a job
/// gets the part that does. O(steps + jobs · log jobs) on average, or O(steps · log jobs) where a limit is used up long
/// before the cluster.
fn grow(round: &mut Round<'_, Paths>, plans: &mut [Plan<'_>], ledger: &mut Ledger) -> Result<(), EngineError> {
    round.budget.spend(take_what_fits(plans, ledger))?;
    let key = |at: usize, plan: &Plan<'_>| Some((plan.key(plan.next)?, Reverse(at)));
    let mut heap: BinaryHeap<_> = plans.iter().enumerate().filter_map(|(at, plan)| key(at, plan)).collect();
    while let Some((_, Reverse(at))) = heap.pop() {
        round.budget.spend(1)?;
        let plan = &mut plans[at];
        let wanted = plan.path.steps[plan.next].shape;
        // The remaining room only shrinks, so a job whose step doesn't fit is done.
        let Some(shape) = plan.most_that_fits(wanted, ledger) else { continue };
        let job = plan.forecast.job;
        ledger.take(job, &job.total(extra(plan.shape, shape)), 1);
        plan.shape = shape;
        if shape == wanted {
            plan.next += 1;
            heap.extend(key(at, plan));
        }
    }
    Ok(())
}

/// A step in the order of all jobs' steps: its key, then the earlier job, then the job's earlier step.
type Turn = (u64, Reverse<usize>, Reverse<usize>);

/// Hands out the steps before the first one that doesn't fit. They are found by halves, and the halves aren't sorted,
/// because it doesn't matter in which order steps are handed out that all fit. Returns the number of all steps.
/// O(steps) on average.
fn take_what_fits(plans: &mut [Plan<'_>], ledger: &mut Ledger) -> u64 {
    let mut all: Vec<Turn> = Vec::new();
    for (at, plan) in plans.iter().enumerate() {
        let steps = plan.next..plan.path.steps.len();
        all.extend(steps.filter_map(|next| Some((plan.key(next)?, Reverse(at), Reverse(next)))));
    }
    let steps = all.len() as u64;
    let mut ends = vec![0; plans.len()];
    let mut rest = &mut all[..];
    while !rest.is_empty() {
        let middle = rest.len() / 2;
        rest.select_nth_unstable_by(middle, |mine, theirs| theirs.cmp(mine));
        let (first, second) = rest.split_at_mut(middle + 1);
        rest = if take_all(first, plans, ledger, &mut ends) { second } else { &mut first[..middle] };
    }
    steps
}

/// Hands out these steps, which are the next ones of their jobs, or none if they don't all fit. `ends` is a buffer of
/// zeros.
fn take_all(turns: &[Turn], plans: &mut [Plan<'_>], ledger: &mut Ledger, ends: &mut [usize]) -> bool {
    let mut growing = Vec::new();
    for (_, Reverse(at), Reverse(next)) in turns {
        if ends[*at] == 0 {
            growing.push(*at);
        }
        ends[*at] = ends[*at].max(next + 1);
    }
    let more = |plan: &Plan<'_>, end: usize| plan.forecast.job.total(extra(plan.shape, plan.path.steps[end - 1].shape));
    let mut taken = 0;
    for &at in &growing {
        let amounts = more(&plans[at], ends[at]);
        if !ledger.has(plans[at].forecast.job, &amounts) {
            break;
        }
        ledger.take(plans[at].forecast.job, &amounts, 1);
        taken += 1;
    }
    let fit = taken == growing.len();
    for (place, at) in growing.into_iter().enumerate() {
        let (plan, end) = (&mut plans[at], std::mem::take(&mut ends[at]));
        if fit {
            (plan.shape, plan.next) = (plan.path.steps[end - 1].shape, end);
        } else if place < taken {
            ledger.take(plan.forecast.job, &more(plan, end), -1);
        }
    }
    fit
}

/// The paths of jobs from round to round: most rounds change few of them.
#[derive(Default)]
pub struct Paths {
    /// The amounts of which the paths' steps are shares.
    usable: Amounts,
    known: BTreeMap<JobId, (Basis, Arc<Path>)>,
}

/// The inputs of a job's path, beside the cluster's size.
struct Basis {
    spec: Arc<JobSpec>,
    fits: Arc<Fits>,
    demands: [Amounts; 2],
    together: Option<u32>,
    tries: u32,
}

impl Basis {
    fn of(of: &Forecast<'_>, tries: u32) -> Self {
        let job = of.job;
        Self {
            spec: job.spec.clone(),
            fits: job.learnt.fits.clone(),
            demands: [&job.worker, &job.server].map(|role| role.amounts.clone()),
            together: of.most_together(),
            tries,
        }
    }

    /// Whether they lead to the same path. As long as this one exists, its specification and fits aren't changed where
    /// they are.
    fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.spec, &other.spec)
            && (Arc::ptr_eq(&self.fits, &other.fits) || self.fits.speed == other.fits.speed)
            && self.demands == other.demands
            && (self.together, self.tries) == (other.together, other.tries)
    }
}

impl Paths {
    /// Forgets the paths of jobs that ended, and all paths if the cluster's size changed.
    fn forget(&mut self, state: &State) {
        if self.usable != state.usable {
            *self = Self { usable: state.usable.clone(), known: BTreeMap::new() };
        }
        self.known.retain(|id, _| state.jobs.contains_key(id));
    }

    /// The path of a job.
    fn of(&mut self, forecast: &Forecast<'_>, tries: u32, state: &State) -> Arc<Path> {
        let basis = Basis::of(forecast, tries);
        if let Some((known, path)) = self.known.get_mut(&forecast.job.id)
            && known.is_same(&basis)
        {
            *known = basis;
            return path.clone();
        }
        let path = Arc::new(path(forecast, tries, state));
        self.known.insert(forecast.job.id, (basis, path.clone()));
        path
    }
}

impl Plan<'_> {
    /// The price of a step's progress per share of the cluster. None after the last step. The bits of positive floats
    /// have the order of the floats.
    fn key(&self, step: usize) -> Option<u64> {
        let Corner { shape, slope } = self.path.steps.get(step)?;
        // Which jobs run at all doesn't depend on what they have.
        let has = step > 0 && shape.workers <= self.kept.workers && shape.servers <= self.kept.servers;
        Some((self.price * slope * if has { KEPT } else { 1.0 }).to_bits())
    }

    /// The fastest shape on the way to one with more parameter servers for which there is room, if it is faster than
    /// the current one. O(units of the step).
    fn part_of(&self, wanted: Shape, fits: impl Fn(Shape) -> bool) -> Option<Shape> {
        let of = &self.forecast;
        let within = |next: Shape| next.workers <= wanted.workers && next.servers <= wanted.servers && fits(next);
        let (mut shape, mut flat, mut best) = (self.shape, 0, None);
        let mut least = of.step_time(shape.workers, shape.servers);
        while flat < FLAT
            && let Some(next) = larger(of, shape, self.path.unit, &mut 0, within)
        {
            shape = next;
            flat += 1;
            let time = of.step_time(shape.workers, shape.servers);
            if time < least {
                (best, least, flat) = (Some(shape), time, 0);
            }
        }
        best
    }

    /// The next step's shape if there is room, or one with fewer workers that is faster than the current one. O(log
    /// workers).
    fn most_that_fits(&self, wanted: Shape, ledger: &Ledger) -> Option<Shape> {
        let of = &self.forecast;
        let fits = |shape: Shape| ledger.has(of.job, &of.job.total(extra(self.shape, shape)));
        if fits(wanted) {
            return Some(wanted);
        }
        if self.shape.is_empty() {
            return None;
        }
        if wanted.servers != self.shape.servers {
            return self.part_of(wanted, fits);
        }
        let (mut least, mut most) = (self.shape.workers, wanted.workers);
        while most - least > 1 {
            let middle = least.midpoint(most);
            if fits(Shape { workers: middle, ..wanted }) { least = middle } else { most = middle }
        }
        let mut shape = Shape { workers: of.bounds.workers_at_most(least), ..wanted };
        let now = of.time(self.shape.workers, self.shape.servers);
        for _ in 0..FLAT {
            if shape.workers <= self.shape.workers {
                return None;
            }
            if of.time(shape.workers, shape.servers) < now {
                return Some(shape);
            }
            shape.workers = of.bounds.fewer_workers(shape.workers);
        }
        None
    }
}

/// The work of a job: its time in its smallest shape, with a restart if it doesn't run, times that shape's share of the
/// cluster. It counts as half once the job arrived [`PATIENCE`] times as long ago as it takes.
fn work(of: &Forecast<'_>, state: &State) -> f64 {
    let Shape { workers, servers } = of.bounds.least();
    let restart = if of.job.verdict.allocation().is_some() { Span::ZERO } else { of.job.learnt.restart_cost };
    let time = of.time(workers, servers) + if of.is_timed { restart.as_seconds() } else { 0.0 };
    let age = |now: Time| (now - of.job.arrival).as_seconds().max(0.0);
    let share = of.job.total(of.bounds.least()).dominant_share(&state.usable);
    share * time / (1.0 + age(state.now) / (PATIENCE * time).max(f64::MIN_POSITIVE))
}

/// The corners of the upper concave hull of a job's speed over its share of the cluster. Both in shares of the cluster,
/// with the speed of the smallest shape as 1. Up to `tries` workers are steps of the least gain if they aren't
/// predicted to be faster.
fn path(of: &Forecast<'_>, tries: u32, state: &State) -> Path {
    let job = of.job;
    let [worker, server] = [&job.worker, &job.server].map(|role| role.amounts.dominant_share(&state.usable).max(1e-12));
    let share = |shape: Shape| f64::from(shape.workers) * worker + f64::from(shape.servers) * server;
    let least = of.bounds.least();
    let work = share(least) * of.step_time(least.workers, least.servers);
    let mut corners: Vec<(Shape, f64, f64)> = vec![(least, share(least), share(least))];
    let (mut shape, mut best, mut flat, mut speeds) = (least, share(least), 0, of.speeds());
    while let Some(next) = larger(of, shape, (worker, server), &mut speeds, |_| true) {
        let at = share(next);
        // Shares of different resources don't add up.
        if !job.total(next).fits(&state.usable) || flat >= FLAT {
            break;
        }
        shape = next;
        let speed = work / of.step_time(shape.workers, shape.servers);
        if speed.is_nan() || speed <= best {
            flat += 1;
            continue;
        }
        (best, flat) = (speed, 0);
        while let [.., (_, s0, v0), (_, s1, v1)] = corners[..]
            && (speed - v1) * (s1 - s0) >= (v1 - v0) * (at - s1)
        {
            corners.pop();
        }
        corners.push((shape, at, speed));
    }
    // The smallest shape comes whole, whatever its slope.
    let first = Corner { shape: least, slope: 1.0 };
    let rest = corners.windows(2).map(|pair| {
        let ((_, s0, v0), (shape, s1, v1)) = (pair[0], pair[1]);
        Corner { shape, slope: (v1 - v0) / (s1 - s0) }
    });
    let mut steps: Vec<Corner> = [first].into_iter().chain(rest).collect();
    // The smallest shape is a step of its own kind. The slopes of the others fall, also where they are rounded.
    for at in 2..steps.len() {
        steps[at].slope = steps[at].slope.min(steps[at - 1].slope);
    }
    let mut shape = corners.last().map_or(least, |(shape, ..)| *shape);
    while shape.workers < tries
        && job.total(shape).fits(&state.usable)
        && let Some(workers) = of.bounds.more_workers(shape.workers + shape.workers / FINE)
    {
        shape.workers = workers;
        speeds += 1;
        // Jobs take turns.
        steps.push(Corner { shape, slope: TRY / f64::from(workers) });
    }
    Path { steps, unit: (worker, server), speeds }
}

/// The next larger shape on a job's path. With parameter servers: one more worker, one more server or both, whichever
/// fits and saves the most time per share (`unit`: of a worker and of a server); none if none saves any.
fn larger(
    of: &Forecast<'_>,
    shape: Shape,
    unit: (f64, f64),
    speeds: &mut u64,
    fits: impl Fn(Shape) -> bool,
) -> Option<Shape> {
    *speeds += of.speeds();
    let most = of.bounds.workers.1;
    let more = |ahead: u32| of.bounds.more_workers(shape.workers.saturating_add(ahead));
    if of.bounds.servers.1 == 0 {
        let ahead = shape.workers / FINE;
        let last = || Some(of.bounds.workers_at_most(most)).filter(|last| *last > shape.workers && ahead > 0);
        return more(ahead).or_else(last).map(|workers| Shape { workers, ..shape });
    }
    *speeds += 3 * of.speeds();
    let servers = (shape.servers < of.bounds.servers.1)
        .then(|| (shape.servers + 1 + shape.servers / FINE).min(of.bounds.servers.1));
    let workers = more(shape.workers / FINE).or_else(|| more(0));
    let now = of.step_time(shape.workers, shape.servers);
    let worker = workers.map(|workers| Shape { workers, ..shape });
    let server = servers.map(|servers| Shape { servers, ..shape });
    let both = workers.zip(servers).map(|(workers, servers)| Shape { workers, servers });
    let gain = |next: &Shape| {
        let added = extra(shape, *next);
        let share = f64::from(added.workers) * unit.0 + f64::from(added.servers) * unit.1;
        (now - of.step_time(next.workers, next.servers)) / share
    };
    let options = [worker, server, both].into_iter().flatten().filter(|next| fits(*next));
    let options = options.map(|next| (gain(&next), next));
    let best = options.fold(None, |best: Option<(f64, Shape)>, (gain, next)| match best {
        Some((most, _)) if most >= gain => best,
        _ => Some((gain, next)),
    });
    best.filter(|(gain, _)| *gain > 0.0 || of.bounds.sizes != Sizes::Any).map(|(_, next)| next)
}
