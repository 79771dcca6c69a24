//! Dorm: on each arrival and completion, the partition of the cluster that maximises its use, within bounds on
//! unfairness and on the number of changed running jobs.
//!
//! Sun et al., *Towards Distributed Machine Learning in Shared Clusters: A Dynamically-Partitioned Approach*,
//! SMARTCOMP'17, as described for comparison by OASiS's authors (INFOCOM'18, §V). Every job is admitted. A
//! mixed-integer program sets the numbers and places of workers and parameter servers. Let xⱼ be the resources of job
//! j, Cᵣ the cluster's capacity, sⱼ the dominant share of job j, and ŝⱼ its share under max-min fairness
//! ([`drf`](super::drf)). The program is:
//!
//! maximise Σᵣ Σⱼ `xⱼ[r]` / Cᵣ, subject to capacities, limits and the jobs' bounds, Σⱼ |sⱼ − ŝⱼ| ≤ `fairness` · 2R, and
//! at most ⌈`adjustment` · running jobs⌉ changed running jobs.
//!
//! OASiS's paper has no values for the two bounds; both are 0.1 here. The following choices are our own:
//! * **Preemption.** A running job isn't stopped for others. Waiting jobs may stay out. If the fairness bound is then
//!   infeasible, its violation is minimised first, before the use is maximised.
//! * **Parameter servers.** There are at most as many as workers, and they have at least the bandwidth of the workers,
//!   as in OASiS's problem (constraints 6 and 7). Otherwise a higher use of the cluster would mean idle parameter
//!   servers.
//! * **Pools.** Servers with the same devices and labels are one pool in the program (`pools = "kind"`), because
//!   separate servers multiply its size and the number of nearly equal solutions. Its counts are then packed on the
//!   pool's fullest servers. A job that doesn't fit gets a smaller shape. With `"server"` each server is its own pool,
//!   which is exact and suits small clusters.
//! * **Search.** It is bounded by `nodes` and `gap`, and by `jobs` in one program: waiting jobs by priority and arrival
//!   up to half, then running ones. The other jobs keep their slots. The search starts from the current plan, with
//!   waiting jobs in their fair or smallest shapes, so its result is never worse than that.
//! * **Rest.** Remaining room goes to waiting jobs in their smallest shapes, in order.
//!
//! Choose it if a busy cluster is more important than the time of single jobs, and if jobs should rarely be disturbed.
//!
//! Cost: a program of about J·P·(R + 6) coefficients for J jobs and P pools. Its relaxation takes about the square of
//! that over J·P, and each node a small part of it.

mod program;

use std::{cmp::Reverse, sync::Arc};

use self::program::{Candidate, Pools, Program};
use crate::engine::{
    About, Budget, Build, Engine, EngineError, Parameters, Round, Triggers,
    board::{Board, Largest},
    ledger::Ledger,
    placing, round,
};
use crate::{
    decision::Allocation,
    ids::ServerId,
    job::Job,
    settings::SettingsError,
    shape::{Role, Shape},
    solver::{self, Limit, Solver},
    state::{Mandate, State},
};

/// The engine, as its module describes it.
#[derive(Clone)]
pub struct Dorm {
    fairness: f64,
    adjustment: f64,
    by_server: bool,
    jobs: usize,
    limit: Limit,
    solver: &'static dyn Solver,
}

impl Build for Dorm {
    type Engine = Self;
    const ABOUT: About = About::new(
        "dorm",
        "uses most of the cluster within bounds on unfairness and on changes, by a MILP",
        "Sun et al., Dorm, SMARTCOMP'17; baseline of OASiS",
    );

    fn build(parameters: &mut Parameters<'_>) -> Result<Self, SettingsError> {
        let fairness = "most that dominant shares may differ from fair ones in sum, as a part of the worst case, 2 × \
            resource types";
        let adjustment = "part of the running jobs that one decision may change, rounded up";
        let pools = "kind: servers with the same devices and labels are told apart when slots are placed; server: \
            already in the program";
        let nodes = "nodes of the search tree, after the root, until the best so far is taken";
        let gap = "relative distance to the optimum that is good enough";
        let solvers = [("microlp", "microlp"), ("highs", "highs")];
        Ok(Self {
            fairness: parameters.number("fairness", 0.1, 0.0..=1.0, fairness)?,
            adjustment: parameters.number("adjustment", 0.1, 0.0..=1.0, adjustment)?,
            by_server: parameters.choice("pools", "kind", &[("kind", false), ("server", true)], pools)?,
            jobs: parameters.whole("jobs", 60, 1..=10_000, "most jobs that one program decides about")? as usize,
            limit: Limit {
                nodes: parameters.whole("nodes", 50, 0..=1_000_000_000, nodes)?.into(),
                gap: parameters.number("gap", 0.001, 0.0..=1.0, gap)?,
            },
            solver: parameters
                .choice("solver", "microlp", &solvers, "microlp, or highs where the build has it")
                .and_then(|name| solver::find(name).map_err(|error| SettingsError::new("parameters.solver", error)))?,
        })
    }
}

impl Engine for Dorm {
    type Memo = ();
    type Index = ();

    fn triggers(&self) -> Triggers {
        Triggers { interval: None, arrival: true, departure: true }
    }

    fn decide(&self, round: &mut Round<'_>, _: &mut ()) -> Result<(), EngineError> {
        let state = round.state;
        let mut ledger = Ledger::of(state);
        let (mut waiting, mut running) = (Vec::new(), Vec::new());
        for job in state.jobs.values() {
            match state.mandate(job) {
                Mandate::Free if job.verdict.allocation().is_some() => running.push(job),
                Mandate::Free => waiting.push(job),
                Mandate::Pinned(kept) => ledger.take(job, &job.total(kept.shape()), 1),
                // The job can't be changed, but its slots count.
                Mandate::Closed => ledger.take(job, &job.total(job.shape()), 1),
            }
        }
        let changeable = libm::ceil(self.adjustment * running.len() as f64) as u32;
        let order = |job: &&Arc<Job>| (Reverse(state.priority(job)), job.arrival, job.id);
        waiting.sort_by_key(order);
        running.sort_by_key(order);
        let left_out = waiting.split_off(waiting.len().min(self.jobs.div_ceil(2)));
        let kept = running.split_off(running.len().min(self.jobs - waiting.len()));
        for job in &kept {
            ledger.take(job, &job.total(job.shape()), 1);
        }
        let mut fair: Vec<_> = waiting.iter().chain(&running).map(|job| (*job, Shape::default())).collect();
        fair.sort_by_key(|(job, _)| job.id);
        let mut handed_out = ledger.clone();
        round::fair_shapes(state, &mut fair, (&mut handed_out, round::PAIRED), round.budget, |_, _| {})?;
        let fair_of = |job: &Job| fair[fair.binary_search_by_key(&job.id, |(job, _)| job.id).expect("of the same")].1;

        for job in &running {
            round.board.release(state, job);
        }
        let pools = Pools::build(state, &round.board.room, self.by_server);
        let candidates: Vec<Candidate<'_>> =
            running.iter().chain(&waiting).map(|job| Candidate::new(job, fair_of(job), &pools)).collect();
        let program = Program { state, pools: &pools, candidates: &candidates, ledger: &ledger };
        let solved = program.solve(self, changeable, round.budget)?;

        let mut placing = Placing { state, board: round.board, budget: round.budget, ledger, pools: &pools };
        let mut moving = Vec::new();
        for (candidate, counts) in candidates.iter().zip(solved) {
            if candidate.now.as_ref() != Some(&counts) || !placing.keep(candidate.job) {
                moving.push((candidate.job, counts));
            }
        }
        let mut still_waiting = left_out;
        for (job, counts) in moving {
            match placing.place(job, &counts)? {
                Some(allocation) => round.proposal.run(job, allocation),
                None => still_waiting.push(job),
            }
        }
        still_waiting.sort_by_key(order);
        let mut largest = Largest::default();
        for job in still_waiting {
            let least = job.bounds().least();
            match placing.anywhere(job, least)? {
                Some(allocation) => round.proposal.run(job, allocation),
                None => {
                    let reason = largest.refusal(state, &placing.board.room, &placing.ledger, job, least);
                    round.proposal.wait(job, reason);
                }
            }
        }
        Ok(())
    }
}

/// Placement of counts per pool on servers.
struct Placing<'a> {
    state: &'a State,
    board: &'a mut Board,
    budget: &'a mut Budget,
    ledger: Ledger,
    pools: &'a Pools,
}

impl Placing<'_> {
    /// Keeps a job unchanged.
    fn keep(&mut self, job: &Job) -> bool {
        let total = job.total(job.shape());
        let Some(allocation) = job.verdict.allocation().filter(|_| self.ledger.has(job, &total)) else { return false };
        let kept = self.board.restore(self.state, job, allocation);
        if kept {
            self.ledger.take(job, &total, 1);
        }
        kept
    }

    /// Places the counts in their pools. Otherwise it tries the same shape on any servers, then the current slots, then
    /// smaller and smaller shapes.
    fn place(&mut self, job: &Job, counts: &[Shape]) -> Result<Option<Arc<Allocation>>, EngineError> {
        let sum = |role| counts.iter().map(|count| count.count(role)).sum();
        let mut shape = Shape { workers: sum(Role::Worker), servers: sum(Role::Server) };
        if shape.is_empty() {
            return Ok(None);
        }
        if let Some(found) = self.in_pools(job, counts, shape)? {
            return Ok(Some(found));
        }
        if let Some(found) = self.anywhere(job, shape)? {
            return Ok(Some(found));
        }
        if self.keep(job) {
            return Ok(job.verdict.allocation().cloned());
        }
        let least = job.bounds().least();
        while shape != least {
            shape = round::PAIRED.smaller(job, shape);
            if let Some(found) = self.anywhere(job, shape)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Slots on the job's current servers first, then on the fullest servers of each pool.
    fn in_pools(&mut self, job: &Job, counts: &[Shape], shape: Shape) -> Result<Option<Arc<Allocation>>, EngineError> {
        if !self.ledger.has(job, &job.total(shape)) {
            return Ok(None);
        }
        let mut left = counts.to_vec();
        let mut own: Vec<(Role, ServerId)> = job
            .verdict
            .allocation()
            .map(|allocation| allocation.slots().iter().map(|slot| (slot.role, slot.server)).collect())
            .unwrap_or_default();
        let (state, pools) = (self.state, self.pools);
        let choose = |board: &Board, job: &Job, role: Role| {
            let need = &job.demand(role).amounts;
            let (w, p) = if role == Role::Worker { (1, 0) } else { (0, 1) };
            let suits = |id: ServerId, left: &[Shape]| {
                pools.find(id).is_some_and(|pool| left[pool].count(role) > 0)
                    && board.room.accepts(state, id, job)
                    && board.room.holds(id, job, need, w, p)
            };
            let again = own.iter().position(|(slot, id)| *slot == role && suits(*id, &left));
            let picked = match again {
                Some(at) => own.swap_remove(at).1,
                None => board.free.fullest(&board.room, job.domain.as_deref(), need).find(|id| suits(*id, &left))?,
            };
            let left = &mut left[pools.find(picked)?];
            match role {
                Role::Worker => left.workers -= 1,
                Role::Server => left.servers -= 1,
            }
            Some(picked)
        };
        let found = self.board.place_each(state, job, shape, self.budget, choose)?;
        Ok(self.noted(job, found))
    }

    fn anywhere(&mut self, job: &Job, shape: Shape) -> Result<Option<Arc<Allocation>>, EngineError> {
        if !self.ledger.has(job, &job.total(shape)) {
            return Ok(None);
        }
        let found = self.board.place_each(self.state, job, shape, self.budget, placing::fullest(self.state))?;
        Ok(self.noted(job, found))
    }

    fn noted(&mut self, job: &Job, found: Option<Arc<Allocation>>) -> Option<Arc<Allocation>> {
        found.inspect(|allocation| self.ledger.take(job, &job.total(allocation.shape()), 1))
    }
}
