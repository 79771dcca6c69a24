//! Sia: numbers of replicas for all jobs, by a program that maximises their goodputs in the mean.
//!
//! Jayaram Subramanya et al., *Sia: Heterogeneity-aware, goodput-optimized ML-cluster scheduling*, SOSP'23. Each
//! job has some configurations: numbers of replicas that are powers of two on one server, or whole servers. Let gᵢⱼ be
//! the goodput of job i with configuration j relative to its smallest one, and rᵢ its restart factor, by which a
//! configuration counts that isn't the present one: Pollux's ([`pollux`](super::pollux)). The program chooses at most
//! one configuration a job, within the cluster's resources, and minimises
//!
//! Σ (rᵢ·gᵢⱼ)ᵖ over the chosen ones, plus λ for each job without one,
//!
//! with p = −½ and λ = 1.1, the values of the authors' simulator. A job with its smallest configuration adds 1, so that
//! it waits only where others gain more than 0.1 by its room.
//!
//! The following choices are our own:
//! * **Types.** The scheduler chooses a job's type of GPU before the round, for all engines. The paper's program
//!   chooses it with the number. So this is Sia for one type of GPU.
//! * **Exploration.** A job gets its smallest shape until a speed is measured, then at most twice the workers that were
//!   measured, as with Pollux.
//! * **Search.** It is bounded by `nodes` and `gap`, and by `jobs` in one program: those with the least attained
//!   service. Others that run keep their shapes, whatever their priority. It starts from the present shapes and the
//!   smallest ones of waiting jobs.
//! * **Parameter servers** come with the workers, one each, up to the job's largest number.
//!
//! Choose it to compare others with it.
//!
//! Cost: a program of J·C variables for J jobs with C configurations, and R + 1 coefficients each for R resources. Its
//! relaxation takes about the square of that over J·C, and each node a small part of it.

use std::{cmp::Reverse, sync::Arc};

use crate::engine::{
    About, Build, Engine, EngineError, Parameters, Round, Triggers,
    board::Largest,
    forecast::{Forecast, Kinds, most_measured, restart_factor},
    ledger::Ledger,
    placing::Placing,
    round::{PAIRED, minute},
};
use crate::{
    job::Job,
    settings::SettingsError,
    shape::Shape,
    solver::{self, Limit, Model, Solver, Variable},
    state::State,
    time::Span,
};

/// The engine, as its module describes it.
#[derive(Clone)]
pub struct Sia {
    power: f64,
    no_allocation: f64,
    interval: Span,
    jobs: usize,
    limit: Limit,
    solver: &'static dyn Solver,
    placing: Placing,
}

impl Build for Sia {
    type Engine = Self;
    const ABOUT: About = About::new(
        "sia",
        "chooses the numbers of workers with the best mean of goodputs, by a MILP",
        "Jayaram Subramanya et al., Sia, SOSP'23",
    );

    fn build(parameters: &mut Parameters<'_>) -> Result<Self, SettingsError> {
        let power = "exponent of a job's goodput in the sum: the lower, the fairer";
        let without = "what a job without slots adds to the sum; with its smallest shape it adds 1";
        let nodes = "nodes of the search tree, after the root, until the best so far is taken";
        let gap = "relative distance to the optimum that is good enough";
        let solvers = [("microlp", "microlp"), ("highs", "highs")];
        Ok(Self {
            power: parameters.number("power", -0.5, -10.0..=-0.01, power)?,
            no_allocation: parameters.number("no_allocation", 1.1, 0.0..=1000.0, without)?,
            interval: minute(parameters)?,
            jobs: parameters.whole("jobs", 200, 1..=10_000, "most jobs that one program decides about")? as usize,
            limit: Limit {
                nodes: parameters.whole("nodes", 50, 0..=1_000_000_000, nodes)?.into(),
                gap: parameters.number("gap", 0.0001, 0.0..=1.0, gap)?,
            },
            solver: parameters
                .choice("solver", "microlp", &solvers, "microlp, or highs where the build has it")
                .and_then(|name| solver::find(name).map_err(|error| SettingsError::new("parameters.solver", error)))?,
            placing: Placing::of(parameters, "tight")?,
        })
    }
}

/// A job in the program: its configurations, each with its worth.
struct Candidate<'a> {
    job: &'a Arc<Job>,
    options: Vec<(Shape, f64)>,
}

impl Engine for Sia {
    type Memo = ();
    type Index = ();

    fn triggers(&self) -> Triggers {
        Triggers { interval: Some(self.interval), arrival: false, departure: false }
    }

    fn decide(&self, round: &mut Round<'_>, (): &mut ()) -> Result<(), EngineError> {
        let state = round.state;
        let (mut jobs, mut ledger) = round.jobs();
        jobs.sort_by_cached_key(|job| (Reverse(state.priority(job)), job.service(state.now), job.arrival, job.id));
        let others = jobs.split_off(jobs.len().min(self.jobs));
        let mut shapes: Vec<(&Arc<Job>, Shape)> = Vec::with_capacity(jobs.len());
        for job in others {
            let now = job.shape();
            if ledger.has(job, &job.total(now)) {
                ledger.take(job, &job.total(now), 1);
                shapes.push((job, now));
            } else {
                shapes.push((job, Shape::default()));
            }
        }
        let kinds = Kinds::of(state);
        let mut candidates = Vec::with_capacity(jobs.len());
        for job in &jobs {
            let candidate = self.candidate(state, job, &kinds);
            round.budget.spend(candidate.options.len() as u64)?;
            candidates.push(candidate);
        }
        let chosen = self.solve(state, &candidates, &ledger, round)?;
        shapes.splice(0..0, jobs.iter().copied().zip(chosen));
        let mut placed = Vec::with_capacity(shapes.len());
        let mut left_out = Vec::new();
        for (job, shape) in shapes {
            if shape.is_empty() || !ledger.has(job, &job.total(shape)) {
                left_out.push(job);
                continue;
            }
            ledger.take(job, &job.total(shape), 1);
            placed.push((job, shape));
        }
        let mut largest = Largest::default();
        for job in left_out {
            // Where the search ended early, there may be room.
            let least = job.bounds().least();
            if ledger.has(job, &job.total(least)) {
                ledger.take(job, &job.total(least), 1);
                placed.push((job, least));
                continue;
            }
            round.board.release(state, job);
            let reason = largest.refusal(state, &round.board.room, &ledger, job, least);
            round.proposal.wait(job, reason);
        }
        // Large jobs find whole servers.
        placed.sort_by_key(|(job, shape)| (Reverse(job.gpus(*shape)), job.arrival, job.id));
        round.place_shapes(placed, self.placing, PAIRED)
    }
}

impl Sia {
    /// A job's configurations: the present shape, the smallest one, and those up to twice the measured workers. Beyond
    /// 16 servers their numbers double.
    fn candidate<'a>(&self, state: &State, job: &'a Arc<Job>, kinds: &Kinds<'_>) -> Candidate<'a> {
        let of = Forecast::of(job, kinds);
        let bounds = &of.bounds;
        let most = if of.is_timed { most_measured(job).saturating_mul(2).min(bounds.workers.1) } else { 0 };
        let shape = |workers: u32| Shape { workers, servers: workers.clamp(bounds.servers.0, bounds.servers.1) };
        let on_one = of.most_together().unwrap_or(1);
        let doubled = (0..32).map(|power| 1_u32 << power);
        let whole = (1..=16).chain((5..32).map(|power| 1_u32 << power)).map(|servers| on_one.saturating_mul(servers));
        let mut shapes: Vec<Shape> = match on_one {
            1 => doubled.take_while(|workers| *workers <= most).map(shape).collect(),
            _ => {
                let small = doubled.take_while(|workers| *workers < on_one.min(most.saturating_add(1)));
                small.chain(whole.take_while(|workers| *workers <= most)).map(shape).collect()
            }
        };
        let now = job.shape();
        shapes.push(bounds.least());
        shapes.push(now);
        shapes.retain(|shape| bounds.hold(*shape));
        shapes.sort_unstable_by_key(|shape| (shape.workers, shape.servers));
        shapes.dedup();
        let smallest = of.time(bounds.least().workers, bounds.least().servers);
        let restart = restart_factor(state, job);
        let worth = |shape: Shape| {
            let goodput = if of.is_timed { smallest / of.time(shape.workers, shape.servers) } else { 1.0 };
            let factor = if now.is_empty() || shape == now { 1.0 } else { restart };
            let lost = libm::pow((goodput * factor).max(f64::MIN_POSITIVE), self.power);
            self.no_allocation - lost
        };
        // A shape that is worth less than no slots is never chosen, but a job may keep it.
        let options = shapes.into_iter().map(|shape| (shape, worth(shape).max(-1e3)));
        Candidate { job, options: options.filter(|(shape, worth)| *worth > 0.0 || *shape == now).collect() }
    }

    /// A configuration for each candidate, or none.
    fn solve(
        &self,
        state: &State,
        candidates: &[Candidate<'_>],
        ledger: &Ledger,
        round: &mut Round<'_>,
    ) -> Result<Vec<Shape>, EngineError> {
        let mut model = Model::default();
        let variables: Vec<Vec<Variable>> = candidates
            .iter()
            .map(|candidate| candidate.options.iter().map(|(_, worth)| model.integer(0, 1, *worth)).collect())
            .collect();
        for options in variables.iter().filter(|options| !options.is_empty()) {
            model.at_most(options.iter().map(|variable| (*variable, 1.0)), 1.0);
        }
        let all = || candidates.iter().zip(&variables);
        for (resource, _) in state.usable.iter().filter(|(_, total)| *total > 0) {
            let terms = all().flat_map(|(candidate, variables)| {
                let taken = |(shape, _): &(Shape, f64)| candidate.job.total(*shape)[resource] as f64;
                variables.iter().copied().zip(candidate.options.iter().map(taken))
            });
            model.at_most(terms, ledger.left_of(resource).max(0) as f64);
        }
        for (owner, resource, left) in ledger.limits() {
            let theirs = all().filter(|(candidate, _)| owner.owns(candidate.job));
            let terms = theirs.flat_map(|(candidate, variables)| {
                let taken = move |(shape, _): &(Shape, f64)| candidate.job.total(*shape)[resource] as f64;
                variables.iter().copied().zip(candidate.options.iter().map(taken))
            });
            model.at_most(terms, left.max(0) as f64);
        }
        round.budget.spend(model.size() as u64)?;
        let start = start(candidates, ledger.clone());
        let hint: Vec<(Variable, f64)> = all()
            .zip(&start)
            .flat_map(|((candidate, variables), start)| {
                let is_start = |(shape, _): &(Shape, f64)| f64::from(u8::from(shape == start));
                variables.iter().copied().zip(candidate.options.iter().map(is_start)).collect::<Vec<_>>()
            })
            .collect();
        let size = model.size() as u64;
        let limit = Limit { nodes: self.limit.nodes.min(round.budget.left() / (size + 1)), ..self.limit };
        let Ok(solution) = self.solver.solve(&model, limit, &hint) else { return Ok(start) };
        round.budget.spend(solution.nodes.min(limit.nodes) * size)?;
        let chosen = all().map(|(candidate, variables)| {
            let mut options = candidate.options.iter().zip(variables);
            options
                .find(|(_, variable)| solution.count(**variable) > 0)
                .map_or(Shape::default(), |((shape, _), _)| *shape)
        });
        Ok(chosen.collect())
    }
}

/// The present shapes, and the smallest ones of waiting jobs as long as there is room.
fn start(candidates: &[Candidate<'_>], mut ledger: Ledger) -> Vec<Shape> {
    let mut shapes = vec![Shape::default(); candidates.len()];
    for running in [true, false] {
        for (candidate, got) in candidates.iter().zip(&mut shapes) {
            let job = candidate.job;
            let wanted = if running { job.shape() } else { job.bounds().least() };
            let is_option = candidate.options.iter().any(|(shape, _)| *shape == wanted);
            if job.shape().is_empty() != running && is_option && ledger.has(job, &job.total(wanted)) {
                ledger.take(job, &job.total(wanted), 1);
                *got = wanted;
            }
        }
    }
    shapes
}
