//! Optimus: the numbers of workers and parameter servers that shorten training most, on the minimum number of servers
//! that hold them evenly.
//!
//! Peng, Bao, Chen, Wu and Guo, *Optimus: An Efficient Dynamic Resource Scheduler for Deep Learning Clusters*,
//! EuroSys'18, §4. In each interval it minimises Σ Q_j / f_j(p_j, w_j) over the active jobs, with Q the remaining steps
//! until convergence (§3.1) and f the fitted speed (§3.2). Each job starts with one worker and one parameter server, in
//! order of arrival. Then the job with the largest gain in completion time per share of the cluster gets the next
//! worker or parameter server (§4.1, Eq. 9). Placement takes smaller jobs first, and spreads each evenly over the
//! minimum number of the freest servers (§4.2, Theorem 1). A worker that is slower than half of its job's median is
//! replaced by one on another server (§5.2).
//!
//! Where the paper leaves points open:
//! * Jobs of a higher priority get their first units first.
//! * A gain is divided by the dominant *share*, because amounts of different resources aren't comparable.
//! * If no even spread of both roles fits, parameter servers go to other servers, because clusters mix servers with and
//!   without GPUs.
//! * If a job's next unit doesn't fit, it tries its other unit. Then it leaves the queue, and the others continue.
//! * A job with an unchanged (w, p) keeps its place.
//! * Without a measured speed, a job's remaining time in its requested shape counts as the median of the others'.
//! * Slow workers are replaced if that earns a restart back.
//! * A job that runs only with some numbers of workers gets the one with the largest gain per worker next.
//! * Some jobs can't use every server, because of their labels. If their servers have no room, their units go to the
//!   other jobs.
//!
//! `optimus-paper` is the paper's algorithm, with these interpretations and without additions. `optimus` has those
//! additions on that shorten completion times on measured workloads (docs/experiments.md).
//!
//! Choose it if jobs converge and report loss and speed, which its predictions need. Cost, for J jobs with T units in
//! total on S servers: at most O(T log J) for the allocation (most units are handed out without the heap), and
//! O(T + J·k² + T·log S) for the placement, with k the servers of one job. No step costs J × S while there is room; see
//! [`FreeIndex`](crate::place::FreeIndex) for the case of scarce room. A decision between rounds (`between_rounds`)
//! visits each job once to sum up the running ones, and costs the above for the waiting ones. Jobs that can't use every
//! server and find no room there cost the same again, at most twice in a decision.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap, binary_heap::PeekMut},
    iter,
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use crate::engine::{
    About, Budget, Build, Engine, EngineError, Parameters, Round, Triggers,
    board::{Board, Largest},
    ledger::Ledger,
    placing::Placing,
    round::leaving,
};
use crate::{
    batch::BatchRange,
    decision::Allocation,
    fit::{Confidence, SpeedCurve, SpeedFit, SpeedOptions, SpeedSample, speed::SpeedTable},
    ids::JobId,
    job::{Bounds, Job, Sizes, TrainingMode},
    place::SortBy,
    reason::Reason,
    resources::{Amounts, CPU, GPU},
    settings::SettingsError,
    shape::{Role, Shape},
    state::{Mandate, State},
    time::{Span, Time},
    topology::Topology,
};

/// The heap hands out units whose gains are within this factor of the first that doesn't fit.
const FLOOD_PRECISION: f64 = 1.02;

/// A job with fewer epochs with a loss than this is young.
const YOUNG_EPOCHS: u64 = 5;

/// The gain of a worker that is tried without a predicted gain: below all others, so that it takes idle room alone.
const TRY: f64 = 1e-100;

/// Number of times that units which unearned changes, or jobs without room, leave are handed out again.
const HANDED_OUT_AGAIN: u32 = 2;

/// Number of next larger sizes that are compared, of a job that runs only with some numbers of workers.
const MOST_SIZES: usize = 8;
/// About how many speeds it takes to find the best batch of a job that may choose it.
const BATCHES: u64 = 4;

/// A worker is tried while the job has more than this many restarts' time left: at best it halves that time, and every
/// second one may gain nothing.
const TRY_PAYS: f64 = 4.0;

/// The engine, as its module describes it.
#[derive(Clone, Debug)]
pub struct Optimus {
    interval: Span,
    young_job_factor: f64,
    sort_by: SortBy,
    placing: Placing,
    joint_steps: bool,
    rescale_cost: bool,
    resize_in_place: bool,
    shrink_to_fit: bool,
    spare_gpus: bool,
    between_rounds: bool,
    replace_stragglers: bool,
    explore: bool,
    relative_gain: bool,
    short_first: bool,
    pass_over: bool,
}

/// The engine's memory.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Memo {
    /// Time of the last decision about all jobs. Unset if every decision is about all jobs.
    last_round: Option<Time>,
}

const PAPER: &str = "Peng et al., Optimus, EuroSys'18";

impl Build for Optimus {
    type Engine = Self;
    const ABOUT: About = About::new(
        "optimus",
        "gives each next worker or parameter server to the job whose remaining time it shortens most",
        PAPER,
    );

    fn build(parameters: &mut Parameters<'_>) -> Result<Self, SettingsError> {
        Self::read(parameters, true)
    }
}

/// The paper's algorithm.
pub struct OptimusPaper;

impl Build for OptimusPaper {
    type Engine = Optimus;
    const ABOUT: About = About::new("optimus-paper", "optimus as published, without this project's additions", PAPER);

    fn build(parameters: &mut Parameters<'_>) -> Result<Optimus, SettingsError> {
        Optimus::read(parameters, false)
    }
}

impl Optimus {
    /// Reads the parameters. `beyond`: the additions to the paper are on by default.
    fn read(parameters: &mut Parameters<'_>, beyond: bool) -> Result<Self, SettingsError> {
        let young = "gain of a job with few observations is multiplied by this (§4.1; 0.95 shortens JCT a little)";
        let sort_by =
            "order of servers: \"share\" = sum of free shares of all resources, \"cpu\" = free CPU as in the paper";
        let orders = [("share", SortBy::Share), ("cpu", SortBy::Amount(CPU))];
        let joint = "beyond the paper: try one worker and one parameter server together where neither alone gains";
        let rescale = "beyond the paper: keep a running job's shape unless the new one earns its measured restart back";
        let in_place = "beyond the paper: where only workers change, what runs stays where it is, so nothing restarts";
        let shrink = "beyond the paper: a job that fits nowhere keeps its old place, or tries a smaller shape, before \
            it is paused";
        let spare = "beyond the paper: what needs no GPU leaves each free GPU what the smallest worker needs beside \
            it, if it can";
        let between =
            "beyond the paper: jobs that wait start as soon as there is room; what runs stays as it is until the round";
        let replace = "a worker slower than half the median of its job is replaced by one on another server (§5.2), if \
            that earns a restart back";
        let explore = "beyond the paper: a job with few measured speeds tries its requested workers, then twice as \
            many as ever, where there is idle room";
        let relative = "beyond the paper: a gain counts as a fraction of the job's remaining time, so that short jobs \
            grow too";
        let short = "beyond the paper: where not all jobs get their smallest shape, the one that has waited longest \
            relative to its remaining time is first, not the earliest; it trusts `epochs`";
        let pass_over = "beyond the paper: what a job would get goes to others if its labels exclude servers and the \
            rest have no room";
        Ok(Self {
            interval: parameters.span("interval", "600s", "time between rounds (§6.1: 10 minutes)")?,
            young_job_factor: parameters.number("young_job_factor", 1.0, 0.0..=1.0, young)?,
            sort_by: parameters.choice("sort_by", "share", &orders, sort_by)?,
            placing: Placing::of(parameters, "even")?,
            joint_steps: parameters.flag("joint_steps", false, joint)?,
            rescale_cost: parameters.flag("rescale_cost", beyond, rescale)?,
            resize_in_place: parameters.flag("resize_in_place", beyond, in_place)?,
            shrink_to_fit: parameters.flag("shrink_to_fit", beyond, shrink)?,
            spare_gpus: parameters.flag("spare_gpus", beyond, spare)?,
            between_rounds: parameters.flag("between_rounds", beyond, between)?,
            replace_stragglers: parameters.flag("replace_stragglers", true, replace)?,
            explore: parameters.flag("explore", beyond, explore)?,
            relative_gain: parameters.flag("relative_gain", beyond, relative)?,
            short_first: parameters.flag("short_first", false, short)?,
            pass_over: parameters.flag("pass_over", beyond, pass_over)?,
        })
    }
}

impl Engine for Optimus {
    type Memo = Memo;
    const MEMO_VERSION: u32 = 3;
    type Index = ();

    fn order(&self) -> Option<SortBy> {
        Some(self.sort_by)
    }

    fn triggers(&self) -> Triggers {
        Triggers { interval: Some(self.interval), arrival: self.between_rounds, departure: self.between_rounds }
    }

    fn decide(&self, round: &mut Round<'_>, memo: &mut Memo) -> Result<(), EngineError> {
        let state = round.state;
        let round_before = memo.last_round.filter(|last| self.between_rounds && state.now < *last + self.interval);
        let is_round = round_before.is_none();
        let common = if self.pass_over { common_labels(state) } else { None };
        let is_confined = |job: &Job| common.as_ref().is_some_and(|common| !common.hold(job));
        let start = state
            .jobs
            .values()
            .any(|job| job.verdict.allocation().is_none() && is_confined(job))
            .then(|| (round.board.clone(), *round.last));
        let mut passed_over: Homeless<'_> = Vec::new();
        let (mut candidates, mut homeless) = self.plan(round, is_round, &passed_over)?;
        for _ in 0..HANDED_OUT_AGAIN {
            homeless.retain(|(job, _)| is_confined(job));
            let Some((board, last)) = start.as_ref().filter(|_| !homeless.is_empty()) else { break };
            passed_over.append(&mut homeless);
            let before = (
                std::mem::replace(round.board, board.clone()),
                std::mem::replace(round.last, *last),
                std::mem::take(&mut round.proposal),
            );
            match self.plan(round, is_round, &passed_over) {
                Ok(planned) => (candidates, homeless) = planned,
                Err(EngineError::Exhausted { .. }) => {
                    (*round.board, *round.last, round.proposal) = before;
                    break;
                }
            }
        }
        if self.replace_stragglers {
            self.replace_slow_workers(round, &candidates)?;
        }
        if self.between_rounds {
            // The interval counts from the last decision of any kind. Rounds have their own time.
            let last = *memo.last_round.insert(round_before.unwrap_or(state.now));
            round.proposal.wake_at = Some(last + self.interval);
        }
        Ok(())
    }
}

/// A job during the allocation.
struct Candidate<'a> {
    job: &'a Arc<Job>,
    /// Demands of one worker and one parameter server. They are copied here for locality.
    worker: Amounts,
    server: Amounts,
    bounds: Bounds,
    curve: SpeedCurve,
    /// Corrections of the curve, of a job that runs only with some numbers of workers.
    table: Option<&'a SpeedTable>,
    /// The fit of a job that may choose its batch, in place of the curve.
    adaptive: Option<&'a SpeedFit>,
    /// Whether times are in seconds. Without a measured speed of any job, their unit is unknown.
    is_timed: bool,
    /// One more worker is tried up to this number.
    tries: u32,
    /// Q: remaining steps.
    steps: f64,
    /// 1, or the factor of young jobs.
    factor: f64,
    /// Whether gains are divided by the remaining time.
    relative: bool,
    /// A change wouldn't earn its restart, so the shape is final.
    keeps: bool,
    shape: Shape,
    /// 1 / dominant share of one worker and of one parameter server.
    per_worker: f64,
    per_server: f64,
    /// The largest number of workers that may fit.
    most_workers: u32,
    server_fits: bool,
    /// Remaining time with the current shape, in seconds.
    now: f64,
    /// The next unit, and the remaining time with it.
    next: (Unit, f64),
    /// Workers of the next unit, if it has any: 1, unless the job runs only with some [`Sizes`].
    workers: u32,
    /// Gain of the next unit. Negative if no unit has a gain.
    gain: f64,
}

/// The labels that all present servers have.
struct Common<'a>(Vec<(&'a String, &'a String)>);

/// Those labels, if a job that waits has any. O(jobs), and then O(servers).
fn common_labels(state: &State) -> Option<Common<'_>> {
    let waits = |job: &Arc<Job>| job.verdict.allocation().is_none() && !job.spec.labels.is_empty();
    state.jobs.values().any(waits).then(|| {
        let mut servers = state.present_servers();
        let mut all: Vec<_> = servers.next().map_or_else(Vec::new, |server| server.labels.iter().collect());
        for server in servers {
            all.retain(|(label, value)| server.labels.get(*label) == Some(*value));
            if all.is_empty() {
                break;
            }
        }
        Common(all)
    })
}

impl Common<'_> {
    /// Whether all servers have the labels that a job asks for, and it asks for no closeness.
    fn hold(&self, job: &Job) -> bool {
        let is_own = |label: &str| Sizes::is_label(label) || Topology::is_label(label) || BatchRange::is_label(label);
        let asked = job.spec.labels.iter().filter(|(label, _)| !is_own(label));
        job.domain.is_none() && { asked }.all(|asked| self.0.contains(&asked))
    }
}

/// Jobs that got units and found no room for them.
type Homeless<'a> = Vec<(&'a Arc<Job>, Reason)>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    Worker,
    Server,
    Both,
}

impl<'a> Candidate<'a> {
    fn new(engine: &Optimus, state: &State, job: &'a Arc<Job>) -> Self {
        let share = |demand: &Amounts| 1.0 / demand.dominant_share(&state.usable).max(1e-12);
        let curve = match &job.learnt.fits.speed {
            Some(fit) => fit.curve(),
            None => SpeedFit::fit(job.speed_model(), &[], &SpeedOptions::default()).curve(),
        };
        let young = job.learnt.losses.last_epoch().is_none_or(|epochs| epochs < YOUNG_EPOCHS);
        Self {
            job,
            bounds: job.bounds(),
            curve,
            adaptive: job.learnt.fits.speed.as_ref().filter(|fit| fit.goodput().is_some()),
            table: job.learnt.fits.speed.as_ref().and_then(|fit| fit.table()).map(|table| &**table),
            is_timed: job.learnt.fits.speed.is_some(),
            tries: if engine.explore { worth_trying(job) } else { 0 },
            steps: job.remaining_steps().0,
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
        }
    }

    /// Time since the arrival, in remaining times: high for short jobs, and growing while a job waits.
    fn response_ratio(&self, now: Time) -> f64 {
        let Shape { workers, servers } = self.bounds.least();
        (now - self.job.arrival).as_seconds() / self.time(workers, servers).max(f64::MIN_POSITIVE)
    }

    #[inline]
    fn time(&self, workers: u32, servers: u32) -> f64 {
        if let Some(fit) = self.adaptive {
            return self.steps / fit.speed(servers, workers);
        }
        let time = self.steps * self.curve.step_time(servers, workers);
        self.table.map_or(time, |table| time / table.factor(workers))
    }

    /// Determines the larger of both gains (Eq. 9), and its unit.
    #[inline]
    fn look_ahead(&mut self, joint_steps: bool) {
        let Shape { workers: w, servers: p } = self.shape;
        let now = self.now;
        let more = self.next_workers(w, p);
        let server_allowed = self.server_fits && p < self.bounds.servers.1;
        let (worker_allowed, next) = (more.is_some(), more.unwrap_or(w + 1));
        let units = next - w;
        let with_worker = if worker_allowed { self.time(next, p) } else { now };
        let with_server = if server_allowed { self.time(w, p + 1) } else { now };
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
            let with_both = self.time(next, p + 1);
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
        let first = self.bounds.more_workers(w).filter(fits)?;
        if self.bounds.sizes == Sizes::Any {
            return Some(first);
        }
        let all = iter::successors(Some(first), |size| self.bounds.more_workers(*size).filter(fits));
        let better = |best: (u32, f64), next: u32| {
            let gain = (self.now - self.time(next, p)) / f64::from(next - w);
            if gain > best.1 { (next, gain) } else { best }
        };
        Some(all.take(MOST_SIZES).fold((first, 0.0), better).0)
    }

    /// What a step counts against the budget: the numbers of workers and the batches that it compares.
    #[inline]
    fn compared(&self) -> u64 {
        let of_each = if self.adaptive.is_some() { BATCHES } else { 1 };
        of_each * if self.bounds.sizes == Sizes::Any { 1 } else { MOST_SIZES as u64 }
    }

    /// The next smaller number of workers to try where a shape has no room: of a job that runs only with some numbers,
    /// one that is faster than the one below it.
    fn fewer_workers(&self, Shape { workers, servers }: Shape) -> u32 {
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

    /// Takes the next unit.
    #[inline]
    fn step(&mut self, joint_steps: bool) {
        let (unit, time) = self.next;
        self.shape.workers += if unit == Unit::Server { 0 } else { self.workers };
        self.shape.servers += u32::from(unit != Unit::Worker);
        self.now = time;
        self.look_ahead(joint_steps);
    }

    fn set_shape(&mut self, shape: Shape) {
        self.shape = shape;
        self.now = self.time(shape.workers, shape.servers);
    }

    /// Demand of its shape beyond that of a smaller one.
    fn above(&self, before: Shape) -> Amounts {
        let Shape { workers, servers } = self.shape;
        let mut more = self.worker.times(i64::from(workers - before.workers));
        more.add_times(&self.server, i64::from(servers - before.servers));
        more
    }

    fn old_shape(&self) -> Option<Shape> {
        self.job.verdict.allocation().map(|allocation| allocation.shape())
    }
}

impl Optimus {
    /// Whether the manager allows worker changes without a restart, and the setting uses that.
    fn in_place(&self, state: &State) -> bool {
        let rules = &state.settings.shape;
        self.resize_in_place && rules.grow_in_place && !rules.equal_per_server
    }

    /// Allocates and places the jobs that aren't passed over. `is_round`: all of them, not only those that wait.
    /// Returns the candidates that got their smallest shape, and those of them that found no room for it.
    fn plan<'a>(
        &self,
        round: &mut Round<'a>,
        is_round: bool,
        passed_over: &[(&'a Arc<Job>, Reason)],
    ) -> Result<(Vec<Candidate<'a>>, Homeless<'a>), EngineError> {
        let state = round.state;
        let mut ledger = Ledger::of(state);
        let skipped: BTreeSet<JobId> = passed_over.iter().map(|(job, _)| job.id).collect();
        passed_over.iter().for_each(|(job, reason)| round.proposal.wait(job, reason.clone()));
        let mut candidates = Vec::with_capacity(if is_round { state.jobs.len() } else { 0 });
        for job in state.jobs.values() {
            let waits = job.verdict.allocation().is_none();
            if skipped.contains(&job.id) {
                continue;
            }
            if (is_round || waits) && state.mandate(job) == Mandate::Free {
                candidates.push(Candidate::new(self, state, job));
            } else if !waits {
                // The job can't be changed now, but its slots count.
                ledger.take(job, &job.total(job.shape()), 1);
            }
        }
        round.budget.spend(candidates.len() as u64)?;
        guess_unknown_times(&mut candidates);
        candidates.sort_by_cached_key(|candidate| {
            let ratio = if self.short_first { candidate.response_ratio(state.now) } else { 0.0 };
            (Reverse(state.priority(candidate.job)), Reverse(ratio.to_bits()), candidate.job.id)
        });
        self.allocate(round, &mut candidates, &mut ledger)?;
        // The slots of jobs that will wait are free for the others.
        let waiting = round.proposal.changes.iter().filter_map(|(id, _)| state.job(*id));
        waiting.for_each(|job| round.board.release(state, job));
        if self.rescale_cost {
            // Units that unearned changes leave go to the other jobs, if that earns their restarts.
            for _ in 0..HANDED_OUT_AGAIN {
                if !keep_what_restarts_do_not_earn(&mut candidates, &mut ledger, self.in_place(state)) {
                    break;
                }
                self.hand_out(round, &mut candidates, &mut ledger)?;
            }
            keep_what_restarts_do_not_earn(&mut candidates, &mut ledger, self.in_place(state));
        }
        let homeless = self.place(round, &candidates)?;
        Ok((candidates, homeless))
    }

    /// §4.1: hands out units by marginal gain. Jobs that don't get their smallest shape leave `candidates` with a
    /// reason.
    fn allocate(
        &self,
        round: &mut Round<'_>,
        candidates: &mut Vec<Candidate<'_>>,
        ledger: &mut Ledger,
    ) -> Result<(), EngineError> {
        candidates.retain_mut(|candidate| {
            candidate.set_shape(candidate.bounds.least());
            let least = candidate.job.total(candidate.shape);
            let fits = ledger.has(candidate.job, &least);
            if fits {
                ledger.take(candidate.job, &least, 1);
            } else {
                round.proposal.wait(candidate.job, ledger.reason(round.state, candidate.job, &least));
            }
            fits
        });
        self.hand_out(round, candidates, ledger)
    }

    /// Hands out units by marginal gain while they fit.
    fn hand_out(
        &self,
        round: &mut Round<'_>,
        candidates: &mut [Candidate<'_>],
        ledger: &mut Ledger,
    ) -> Result<(), EngineError> {
        for candidate in &mut *candidates {
            (candidate.most_workers, candidate.server_fits) =
                if candidate.keeps { (0, false) } else { (u32::MAX, true) };
            candidate.look_ahead(self.joint_steps);
        }
        let mut steps = self.flood(candidates, ledger);
        // Largest gain first; among equal ones the earlier job. The bits of positive floats have the order of the
        // floats.
        let mut heap: BinaryHeap<(u64, Reverse<u32>)> = candidates
            .iter()
            .enumerate()
            .filter(|(_, candidate)| candidate.gain >= 0.0)
            .map(|(at, candidate)| (candidate.gain.to_bits(), Reverse(at as u32)))
            .collect();
        while let Some(mut top) = heap.peek_mut() {
            let candidate = &mut candidates[top.1.0 as usize];
            steps += candidate.compared();
            let job = candidate.job;
            let several;
            let unit = candidate.next.0;
            let amounts = match unit {
                Unit::Worker if candidate.workers == 1 => &candidate.worker,
                Unit::Server => &candidate.server,
                Unit::Worker | Unit::Both => {
                    several = job.total(Shape { workers: candidate.workers, servers: u32::from(unit == Unit::Both) });
                    &several
                }
            };
            if ledger.has(job, amounts) {
                ledger.take(job, amounts, 1);
                candidate.step(self.joint_steps);
            } else {
                // The remaining room only shrinks, so this unit is excluded for the round.
                if unit != Unit::Server {
                    candidate.most_workers = candidate.shape.workers + candidate.workers - 1;
                }
                candidate.server_fits &= unit == Unit::Worker;
                candidate.look_ahead(self.joint_steps);
            }
            if candidate.gain >= 0.0 {
                top.0 = candidate.gain.to_bits();
            } else {
                PeekMut::pop(top);
            }
        }
        round.budget.spend(steps)
    }

    /// Hands out the units that the heap would hand out before the first one that doesn't fit, job by job: all units
    /// above some gain, in any order. That gain is halved until not all units fit, and then approached from above. The
    /// heap does the rest. Returns the number of units.
    fn flood(&self, candidates: &mut [Candidate<'_>], ledger: &mut Ledger) -> u64 {
        let mut steps = 0;
        let mut too_low = 0.0;
        let mut raised = Vec::with_capacity(candidates.len());
        loop {
            let highest = candidates.iter().map(|candidate| candidate.gain).fold(0.0, f64::max);
            let level = if too_low > 0.0 { (highest * too_low).sqrt() } else { highest / 2.0 };
            if highest <= too_low * FLOOD_PRECISION || level <= too_low || level >= highest {
                return steps;
            }
            match self.flood_to(level, candidates, ledger, &mut raised) {
                Some(taken) => steps += taken,
                None => too_low = level,
            }
        }
    }

    /// Hands out all units with a gain above `level`, or none if they don't all fit. `raised` is a reusable buffer.
    fn flood_to(
        &self,
        level: f64,
        candidates: &mut [Candidate<'_>],
        ledger: &mut Ledger,
        raised: &mut Vec<(usize, Shape)>,
    ) -> Option<u64> {
        raised.clear();
        let mut steps = 0;
        let high = candidates.iter_mut().enumerate().filter(|(_, candidate)| candidate.gain > level);
        let mut each_fits = high.map(|(at, candidate)| {
            let before = candidate.shape;
            while candidate.gain > level {
                candidate.step(self.joint_steps);
                steps += candidate.compared();
            }
            let more = candidate.above(before);
            let fits = ledger.has(candidate.job, &more);
            if fits {
                ledger.take(candidate.job, &more, 1);
                raised.push((at, before));
            } else {
                candidate.set_shape(before);
                candidate.look_ahead(self.joint_steps);
            }
            fits
        });
        if each_fits.all(|fits| fits) {
            return Some(steps);
        }
        for &(at, before) in &*raised {
            let candidate = &mut candidates[at];
            ledger.take(candidate.job, &candidate.above(before), -1);
            candidate.set_shape(before);
            candidate.look_ahead(self.joint_steps);
        }
        None
    }

    /// §4.2: smaller jobs first, each evenly on the minimum number of servers. Jobs with an unchanged shape stay,
    /// unless one of their servers is draining and there is room elsewhere. Returns the jobs without a place.
    fn place<'a>(&self, round: &mut Round<'_>, candidates: &[Candidate<'a>]) -> Result<Homeless<'a>, EngineError> {
        let Round { state, board, budget, last, proposal, .. } = round;
        let leaving = leaving(state);
        let mut moving: Vec<(f64, &Candidate<'_>)> = candidates
            .iter()
            .filter(|candidate| candidate.old_shape() != Some(candidate.shape) || leaving(candidate.job))
            .map(|candidate| (candidate.job.total(candidate.shape).dominant_share(&state.usable), candidate))
            .collect();
        moving.sort_by(|(mine, a), (theirs, b)| mine.total_cmp(theirs).then(a.job.id.cmp(&b.job.id)));
        for (_, candidate) in &moving {
            board.release(state, candidate.job);
        }
        if self.in_place(state) {
            // These jobs come first, so that others can't take their current room. Shrinking jobs come before growing
            // ones.
            moving.sort_by_key(|(_, candidate)| {
                candidate.old_shape().is_none_or(|old| old.workers < candidate.shape.workers)
            });
            let mut elsewhere = Vec::with_capacity(moving.len());
            for (demand, candidate) in moving {
                let stays = if leaving(candidate.job) { None } else { self.stay(state, candidate, board, budget)? };
                match stays {
                    Some(allocation) => proposal.run(candidate.job, allocation),
                    None => elsewhere.push((demand, candidate)),
                }
            }
            moving = elsewhere;
            moving.sort_by(|(mine, a), (theirs, b)| mine.total_cmp(theirs).then(a.job.id.cmp(&b.job.id)));
        }
        let spared = if self.spare_gpus { smallest_gpu_worker(state) } else { None };
        let mut homeless: Vec<(&'a Arc<Job>, Shape)> = Vec::new();
        for (_, candidate) in &moving {
            match self.find_place(state, candidate, spared.as_ref(), board, last, budget)? {
                Some(allocation) => proposal.run(candidate.job, allocation),
                None => homeless.push((candidate.job, candidate.shape)),
            }
        }
        let mut largest = Largest::default();
        let mut reasons = Vec::with_capacity(homeless.len());
        for (job, shape) in homeless {
            let reason = largest.reason(state, &board.room, job, shape);
            proposal.wait(job, reason.clone());
            reasons.push((job, reason));
        }
        Ok(reasons)
    }

    /// §5.2: gives jobs that keep their places other workers instead of slow ones, if that earns a restart back. The
    /// others stay if the manager can add workers to a running job. Otherwise the job restarts without the slow ones'
    /// servers. Each time that slow workers left a job, the next time has to earn twice as much, because some slowness
    /// follows the job. O(jobs), plus [`Board::replace`] or a placement for each job with slow workers.
    fn replace_slow_workers(&self, round: &mut Round<'_>, candidates: &[Candidate<'_>]) -> Result<(), EngineError> {
        let state = round.state;
        let changed: BTreeSet<JobId> = round.proposal.changes.iter().map(|(id, _)| *id).collect();
        for candidate in candidates {
            let (job, stragglers) = (candidate.job, &candidate.job.learnt.stragglers);
            let old = job.verdict.allocation().filter(|old| job.issued.allocation.as_ref() == Some(*old));
            // Work items are placed one by one, by engines of their own.
            let Some(old) = old.filter(|old| old.work().is_empty() && !changed.contains(&job.id)) else { continue };
            let slow = || stragglers.found.iter().filter_map(|slow| old.slot(Role::Worker, slow.worker));
            let lost = stragglers.found.iter().map(|slow| 1.0 - slow.relative_speed);
            let lost = match job.spec.mode {
                // Each worker has a speed of its own.
                TrainingMode::Async => lost.sum::<f64>() / f64::from(old.shape().workers.max(1)),
                // All wait for the slowest one in each step.
                TrainingMode::Sync | TrainingMode::AllReduce => lost.fold(0.0, f64::max),
            };
            let gain = candidate.time(old.shape().workers, old.shape().servers) * lost;
            let price = job.learnt.restart_cost.as_seconds() * f64::from(1_u32 << stragglers.replaced.min(30));
            if slow().next().is_none() || !candidate.is_timed || gain <= price {
                continue;
            }
            if self.in_place(state) {
                let workers: Vec<u32> = slow().map(|slot| slot.index).collect();
                if let Some(next) = round.board.replace(state, job, old, &workers, round.budget)? {
                    if state.in_place(job, &next) {
                        round.proposal.run(job, next);
                        continue;
                    }
                    round.board.give_back(state, job, &next);
                    round.board.restore(state, job, old);
                }
            }
            round.board.release(state, job);
            slow().for_each(|slot| round.board.room.close(slot.server));
            let found = self.placing.place(state, round.board, job, old.shape(), round.last, round.budget);
            slow().for_each(|slot| round.board.room.reopen(state, slot.server));
            match found? {
                Some(next) => round.proposal.run(job, next),
                None => {
                    round.board.restore(state, job, old);
                }
            }
        }
        Ok(())
    }

    /// A place for a running job that keeps its number of parameter servers, with all running slots in place.
    fn stay(
        &self,
        state: &State,
        candidate: &Candidate<'_>,
        board: &mut Board,
        budget: &mut Budget,
    ) -> Result<Option<Arc<Allocation>>, EngineError> {
        let job = candidate.job;
        let Some(old) = job.verdict.allocation() else { return Ok(None) };
        if old.shape().servers != candidate.shape.servers || job.issued.allocation.as_ref() != Some(old) {
            return Ok(None);
        }
        let resized = board.resize(state, job, old, candidate.shape.workers, budget)?;
        Ok(resized.filter(|resized| {
            let stays = state.in_place(job, resized);
            if !stays {
                board.give_back(state, job, resized);
            }
            stays
        }))
    }

    fn find_place(
        &self,
        state: &State,
        candidate: &Candidate<'_>,
        spared: Option<&Amounts>,
        board: &mut Board,
        last: &mut u32,
        budget: &mut Budget,
    ) -> Result<Option<Arc<Allocation>>, EngineError> {
        let job = candidate.job;
        if let Some(worker) = spared {
            board.room.spare(Some(worker.clone()));
            let found = self.placing.place(state, board, job, candidate.shape, last, budget);
            board.room.spare(None);
            if let Some(found) = found? {
                return Ok(Some(found));
            }
        }
        let found = self.placing.place(state, board, job, candidate.shape, last, budget)?;
        if found.is_some() {
            return Ok(found);
        }
        let old = job.verdict.allocation().filter(|old| candidate.bounds.hold(old.shape()));
        let old = old.filter(|old| self.shrink_to_fit || old.shape() == candidate.shape);
        if let Some(old) = old.filter(|old| board.restore(state, job, old)) {
            return Ok(Some(old.clone()));
        }
        if !self.shrink_to_fit {
            return Ok(None);
        }
        let least = candidate.bounds.least();
        let mut shape = candidate.shape;
        while shape != least {
            // The role that exceeds its minimum by more gives up one slot, or as many as lead to an allowed number.
            let (w, p) = (shape.workers - least.workers, shape.servers - least.servers);
            if w >= p {
                shape.workers = candidate.fewer_workers(shape);
            } else {
                shape.servers -= 1;
            }
            let found = self.placing.place(state, board, job, shape, last, budget)?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }
}

/// Without a measured speed, the remaining time of a job in its requested shape counts as the median of the other
/// candidates'. A mean would let one job with a false report decide it. O(candidates · log candidates).
fn guess_unknown_times(candidates: &mut [Candidate<'_>]) {
    let requested = |candidate: &Candidate<'_>| {
        let Shape { workers, servers } = candidate.job.spec.requested();
        candidate.time(workers, servers)
    };
    let mut known: Vec<f64> = candidates.iter().filter(|candidate| candidate.is_timed).map(requested).collect();
    known.sort_by(f64::total_cmp);
    let Some(median) = known.get(known.len() / 2) else { return };
    for candidate in candidates.iter_mut().filter(|candidate| !candidate.is_timed) {
        candidate.steps *= median / requested(candidate);
        candidate.is_timed = true;
    }
}

/// The number of workers up to which one more is tried: as requested, then twice the most that were measured, as long
/// as the most are the fastest. 0 once the speed function is fitted.
fn worth_trying(job: &Job) -> u32 {
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

/// The minimum demand of a worker with a GPU, per resource, over all jobs. None if no job has GPUs. O(jobs).
fn smallest_gpu_worker(state: &State) -> Option<Amounts> {
    let workers = state.jobs.values().map(|job| &job.worker.amounts).filter(|worker| worker[GPU] > 0);
    workers.fold(None, |least: Option<Amounts>, worker| match least {
        None => Some(worker.clone()),
        Some(least) => {
            let pairs: Vec<_> = least.iter().map(|(resource, each)| (resource, each.min(worker[resource]))).collect();
            Some(Amounts::of(&pairs))
        }
    })
}

/// Reverts a running job's new shape if it saves less than its restart costs. The alternatives are the new workers with
/// the old parameter servers, if that needs no restart, and the old shape; the one that ends sooner is used. In order
/// of arrival. Returns whether any was reverted.
fn keep_what_restarts_do_not_earn(candidates: &mut [Candidate<'_>], ledger: &mut Ledger, in_place: bool) -> bool {
    let mut any = false;
    for candidate in candidates {
        let Some(old) = candidate.old_shape().filter(|old| *old != candidate.shape && candidate.bounds.hold(*old))
        else {
            continue;
        };
        let job = candidate.job;
        let restart = job.learnt.restart_cost.as_seconds();
        let tries = old.workers < candidate.shape.workers && old.workers < candidate.tries;
        if tries && candidate.is_timed && candidate.time(old.workers, old.servers) > TRY_PAYS * restart {
            continue;
        }
        let without = |shape: Shape| in_place && shape.servers == old.servers;
        let end = |shape: Shape| {
            let cost = if shape == old || without(shape) { 0.0 } else { restart };
            candidate.time(shape.workers, shape.servers) + cost
        };
        let same_servers = Shape { servers: old.servers, ..candidate.shape };
        let mut best = candidate.shape;
        ledger.take(job, &job.total(best), -1);
        for other in [same_servers, old] {
            // What a restart costs can't be compared with times in an unknown unit, so there is none.
            let is_sooner = if candidate.is_timed { end(other) <= end(best) } else { !without(best) };
            if (other == old || without(other)) && is_sooner && ledger.has(job, &job.total(other)) {
                best = other;
            }
        }
        ledger.take(job, &job.total(best), 1);
        candidate.keeps |= best != candidate.shape;
        any |= best != candidate.shape;
        candidate.set_shape(best);
    }
    any
}
