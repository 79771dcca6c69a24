//! Pollux: places of all jobs, searched by a genetic algorithm, that are best in the mean of their goodputs.
//!
//! Qiao et al., *Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning*, OSDI'21, §4.2. An
//! allocation has, for each job, a number of replicas on each server. Its fitness is the power mean, with the exponent
//! p, of the jobs' speed-ups: goodput relative to that of a fair share of the cluster. p = −1 is the authors'
//! choice. A job whose replicas change counts less by the time that restarts cost:
//!
//! max(age − restarts · delay, 0) / (age + delay)
//!
//! * **Search** (`search.rs`). The numbers for a job come from crossover over jobs and from mutations. Where jobs take
//!   more of a server than it has, the one with the least attained service is served first.
//! * **Interference.** At most one job with replicas on several servers uses a server.
//! * **Exploration.** A job gets at most twice as many replicas as were measured, and at first its smallest number. Its
//!   speed counts as linear until it is measured.
//! * **Batches** are chosen by the scheduler for all engines, of jobs that allow it ([`crate::batch`]).
//!
//! The following choices are our own, or those of the authors' simulator:
//! * A job that never ran has no restart to pay. With the formula above it would count as nothing in its first round.
//! * Jobs of a higher priority are served before others, whatever their service.
//! * A replica is a worker, with a parameter server if the job has any, up to its largest number of them.
//! * The search starts from the present places, without the previous population, and ends early once 40 generations
//!   found nothing better, or once every job has the places that are best for it. One objective is searched. The
//!   authors' simulator keeps the utility of the cluster as a second one, and takes the best by the first.
//! * A job for which the search found no replicas gets its smallest shape where there is room.
//!
//! Choose it to compare others with it.
//!
//! Cost: O(G · P · (J · s + S)) for G generations of P allocations for J jobs on s of S servers each. With many jobs
//! there are fewer generations, so that G · P · J stays below two million.

mod search;

use std::{cmp::Reverse, collections::BTreeMap, sync::Arc};

use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};

use self::search::{Candidate, Places, Problem, Search};
use crate::engine::{
    About, Build, Engine, EngineError, Parameters, Round, Triggers,
    board::Largest,
    forecast::{Forecast, Kinds, most_measured, restart_factor},
    ledger::Ledger,
    round::{PAIRED, leaving, minute},
};
use crate::{
    decision::Allocation,
    ids::ServerId,
    job::Job,
    place::Count,
    resources::Amounts,
    settings::SettingsError,
    shape::{Role, Shape},
    state::State,
    time::Span,
};

/// Added to each speed-up, so that a job without replicas has a finite worth.
const LEAST_SPEEDUP: f64 = 1e-3;

/// A job gets at most so many replicas more than its smallest number.
const MOST_GROWTH: u32 = 256;

/// The engine, as its module describes it.
#[derive(Clone, Debug)]
pub struct Pollux {
    power: f64,
    interval: Span,
    avoid_interference: bool,
    search: Search,
}

impl Build for Pollux {
    type Engine = Self;
    const ABOUT: About = About::new(
        "pollux",
        "searches the places of all jobs for the best mean of their goodputs, relative to fair shares",
        "Qiao et al., Pollux, OSDI'21",
    );

    fn build(parameters: &mut Parameters<'_>) -> Result<Self, SettingsError> {
        let power = "exponent of the mean over jobs: the lower, the fairer";
        let interference = "at most one job with replicas on several servers uses a server";
        Ok(Self {
            power: parameters.number("power", -1.0, -10.0..=1.0, power)?,
            interval: minute(parameters)?,
            avoid_interference: parameters.flag("avoid_interference", true, interference)?,
            search: Search {
                population: parameters.whole("population", 100, 2..=1000, "allocations in a generation")? as usize,
                generations: parameters.whole("generations", 100, 0..=10_000, "generations of a search, at most")?,
            },
        })
    }
}

impl Engine for Pollux {
    type Memo = ();
    type Index = ();

    fn triggers(&self) -> Triggers {
        Triggers { interval: Some(self.interval), arrival: false, departure: false }
    }

    fn decide(&self, round: &mut Round<'_>, (): &mut ()) -> Result<(), EngineError> {
        let state = round.state;
        let (mut jobs, ledger) = round.jobs();
        jobs.sort_by_cached_key(|job| (Reverse(state.priority(job)), job.service(state.now), job.arrival, job.id));
        jobs.iter().for_each(|job| round.board.release(state, job));
        let kinds = Kinds::of(state);
        let mut candidates = Vec::with_capacity(jobs.len());
        let leaving = leaving(state);
        let (count, servers) = (jobs.len() as f64, state.present_servers().count() as f64);
        for job in &jobs {
            let candidate = self.candidate(state, job, &kinds, (count, servers), leaving(job));
            round.budget.spend(candidate.worth.len() as u64)?;
            candidates.push(candidate);
        }
        let mut draws = ChaCha8Rng::seed_from_u64(state.settings.seed);
        draws.set_stream(state.decision.0);
        let problem = Problem::new(state, (&round.board.room, &ledger), candidates, self.avoid_interference);
        let found = self.search.run(&problem, &mut draws, round.budget)?;
        let base: Vec<Places> = problem.candidates.into_iter().map(|candidate| candidate.base).collect();
        place(round, &jobs, &base, &found, ledger)
    }
}

impl Pollux {
    /// What the search knows of a job, in a cluster with so many jobs and servers.
    fn candidate<'a>(
        &self,
        state: &State,
        job: &'a Arc<Job>,
        kinds: &Kinds<'_>,
        (jobs, servers): (f64, f64),
        leaves: bool,
    ) -> Candidate<'a> {
        let of = Forecast::of(job, kinds);
        let (least, most) = of.bounds.workers;
        let most = of.bounds.workers_at_most(most_measured(job).saturating_mul(2).min(least + MOST_GROWTH)).min(most);
        let beside = |workers: u32| workers.clamp(of.bounds.servers.0, of.bounds.servers.1);
        let time = |workers: u32, apart: bool| match of.is_timed {
            true => of.time_apart(workers, beside(workers), apart),
            false => 1.0 / f64::from(workers),
        };
        let share = replica(job).dominant_share(&state.usable).max(1e-12);
        let fair = (libm::ceil(1.0 / share / jobs) as u32).clamp(of.bounds.workers.0, of.bounds.workers.1);
        let fair_time = time(fair, !of.may_share(fair));
        let worth = |speedup: f64| {
            // A time that isn't known to be finite is worth nothing.
            let speedup = if speedup.is_finite() { speedup } else { 0.0 } + LEAST_SPEEDUP;
            match self.power {
                0.0 => libm::log(speedup),
                power => libm::pow(speedup, power).copysign(power),
            }
        };
        let restart = restart_factor(state, job);
        let of_number = |workers: u32| {
            let [together, apart] = [false, true].map(|apart| fair_time / time(workers, apart) * share * servers);
            [together, apart, together * restart, apart * restart].map(worth)
        };
        Candidate {
            job,
            most,
            nothing: worth(0.0),
            worth: (least..=most).map(of_number).collect(),
            base: if leaves { Places::new() } else { places(job.verdict.allocation()) },
        }
    }
}

/// The resources of a replica.
fn replica(job: &Job) -> Amounts {
    job.total(Shape { workers: 1, servers: job.bounds().servers.1.min(1) })
}

/// The workers of an allocation by server.
fn places(allocation: Option<&Arc<Allocation>>) -> Places {
    let mut counts: BTreeMap<u32, u32> = BTreeMap::new();
    for slot in allocation.map(|allocation| allocation.of(Role::Worker)).unwrap_or_default() {
        *counts.entry(slot.server.0).or_default() += 1;
    }
    counts.into_iter().collect()
}

/// Places all jobs as found: those that stay first, then the others in their order. A job whose replicas find no room
/// there, because of its devices or parameter servers, gets as many elsewhere, or fewer.
fn place(
    round: &mut Round<'_>,
    jobs: &[&Arc<Job>],
    base: &[Places],
    found: &[Places],
    mut ledger: Ledger,
) -> Result<(), EngineError> {
    let state = round.state;
    let mut moving = Vec::new();
    for (at, job) in jobs.iter().enumerate() {
        // A job that should leave a server has no present places.
        let kept = job.verdict.allocation().filter(|_| found[at] == base[at] && !base[at].is_empty());
        let stays = kept.is_some_and(|kept| {
            let total = job.total(kept.shape());
            let stays = ledger.has(job, &total) && round.board.restore(state, job, kept);
            if stays {
                ledger.take(job, &total, 1);
            }
            stays
        });
        if !stays {
            moving.push((*job, &found[at]));
        }
    }
    let mut largest = Largest::default();
    for (job, places) in moving {
        let (bounds, least) = (job.bounds(), job.bounds().least());
        let shape = |workers: u32| Shape { workers, servers: workers.clamp(bounds.servers.0, bounds.servers.1) };
        let mut wanted = shape(places.iter().map(|(_, count)| count).sum::<u32>().max(least.workers));
        let mut got = None;
        if !places.is_empty() && ledger.has(job, &job.total(wanted)) {
            got = place_as_found(round, job, wanted, places)?;
        }
        while got.is_none() {
            if ledger.has(job, &job.total(wanted)) {
                got = round.board.place_even(state, job, wanted, round.budget)?;
            }
            if wanted == least {
                break;
            }
            if got.is_none() {
                wanted = PAIRED.smaller(job, wanted);
            }
        }
        if let Some(allocation) = got {
            ledger.take(job, &job.total(allocation.shape()), 1);
            round.proposal.run(job, allocation);
            continue;
        }
        let kept = job.verdict.allocation().filter(|kept| ledger.has(job, &job.total(kept.shape())));
        match kept.filter(|kept| round.board.restore(state, job, kept)) {
            Some(kept) => ledger.take(job, &job.total(kept.shape()), 1),
            None => round.proposal.wait(job, largest.refusal(state, &round.board.room, &ledger, job, least)),
        }
    }
    Ok(())
}

/// Places a shape with the workers by server, and parameter servers beside them in turn.
fn place_as_found(
    round: &mut Round<'_>,
    job: &Job,
    shape: Shape,
    places: &Places,
) -> Result<Option<Arc<Allocation>>, EngineError> {
    let state = round.state;
    let rules = state.settings.shape.of(&job.spec);
    let workers: u32 = places.iter().map(|(_, count)| count).sum();
    if workers != shape.workers || rules.equal_per_server || !rules.colocate {
        return Ok(None);
    }
    round.budget.spend(places.len() as u64)?;
    let mut servers = shape.servers;
    let mut counts: Vec<Count> = Vec::with_capacity(places.len());
    for (left, (server, workers)) in places.iter().enumerate().map(|(at, place)| (places.len() - at, place)) {
        let here = servers.div_ceil(left as u32);
        servers -= here;
        counts.push(Count { server: ServerId(*server), shape: Shape { workers: *workers, servers: here } });
    }
    let holds = |count: &Count| {
        let Shape { workers, servers } = count.shape;
        round.board.room.accepts(state, count.server, job)
            && round.board.room.holds(count.server, job, &job.total(count.shape), workers, servers)
    };
    if !counts.iter().all(holds) {
        return Ok(None);
    }
    Ok(round.board.take(state, job, &counts))
}
