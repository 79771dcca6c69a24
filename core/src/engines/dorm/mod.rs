//! Dorm: on every arrival and completion, the partition of the cluster that uses most of it, without giving up more than
//! so much fairness and without disturbing more than so many running jobs.
//!
//! Sun et al., *Towards Distributed Machine Learning in Shared Clusters: A Dynamically-Partitioned Approach*,
//! SMARTCOMP'17, as OASiS's authors describe it to compare with (INFOCOM'18, §V): every job is admitted, and numbers and
//! places of workers and parameter servers come from a mixed-integer program. With xⱼ what job j gets, Cᵣ the cluster's
//! capacity, sⱼ its dominant share and ŝⱼ the one that max-min fairness ([`drf`](super::Drf)) would give it:
//!
//! maximise Σᵣ Σⱼ `xⱼ[r]` / Cᵣ, subject to capacities, limits and the jobs' bounds, Σⱼ |sⱼ − ŝⱼ| ≤ `fairness` · 2R, and
//! at most ⌈`adjustment` · running jobs⌉ running jobs changed.
//!
//! OASiS gives neither bound's value; 0.1 for both. What else is left open, and what is chosen:
//! * A running job isn't stopped for others; waiting ones may stay out. Where they leave the fairness bound out of reach,
//!   it is missed by as little as can be before anything is maximised.
//! * Parameter servers: at most as many as workers, and at least the bandwidth that the workers have, as in OASiS's own
//!   problem (constraints 6 and 7); else using more of the cluster would mean parameter servers without work.
//! * Servers with the same devices and labels are one pool to the program (`pools = "kind"`), since telling them apart
//!   multiplies its size and nearly equal solutions; its counts are then packed on the pool's fullest servers, and a job
//!   that doesn't fit that way gets a smaller shape. `"server"` makes each server its own pool: exact, for small clusters.
//! * The search is bounded: by `nodes` and `gap`, and by `jobs` in one program (waiting ones by priority and arrival up to
//!   half, then running ones; the others keep what they have). It starts from the present plan with waiting jobs in their
//!   fair or smallest shapes, so a bounded search is never worse than that.
//! * What is free afterwards goes to waiting jobs in their smallest shapes, in order.
//!
//! Choose it where a busy cluster counts more than any one job's time, and jobs should rarely be disturbed.
//!
//! Cost: a program of about J·P·(R + 6) coefficients for J jobs and P pools; its relaxation takes about the square of
//! that over J·P, each node a small part of it.

mod program;

use std::{cmp::Reverse, sync::Arc};

use imbl::Vector;

use self::program::{Candidate, Pools, Program};
use super::{
    Budget, Build, DefaultValue as Value, Engine, EngineError, ParameterInfo, Parameters, Triggers,
    board::{Board, Largest},
    ledger::Ledger,
    optimus::{run, wait},
    placing, rounds,
};
use crate::{
    decision::{Allocation, Proposal, Role, Shape},
    ids::ServerId,
    job::Job,
    place::SortBy,
    settings::SettingsError,
    solver::{self, Limit, Solver},
    state::{Change, Mandate, State},
};

pub(super) const NAME: &str = "dorm";
pub(super) const SUMMARY: &str = "uses most of the cluster within bounds on unfairness and on changes, by a MILP";
pub(super) const PAPER: &str = "Sun et al., Dorm, SMARTCOMP'17; baseline of OASiS";
pub(super) const PARAMETERS: &[ParameterInfo] = &[
    ParameterInfo {
        name: "fairness",
        default: Value::Number(0.1),
        meaning: "most that dominant shares may differ from fair ones in sum, as a part of the worst case, 2 × resource types",
    },
    ParameterInfo {
        name: "adjustment",
        default: Value::Number(0.1),
        meaning: "part of the running jobs that one decision may change, rounded up",
    },
    ParameterInfo {
        name: "pools",
        default: Value::Text("kind"),
        meaning: "kind: servers with the same devices and labels are told apart when slots are placed; server: already in the program",
    },
    ParameterInfo { name: "jobs", default: Value::Number(60.0), meaning: "most jobs that one program decides about" },
    ParameterInfo {
        name: "nodes",
        default: Value::Number(50.0),
        meaning: "nodes of the search tree, after the root, until the best so far is taken",
    },
    ParameterInfo {
        name: "gap",
        default: Value::Number(0.001),
        meaning: "relative distance to the optimum that is good enough",
    },
    ParameterInfo {
        name: "solver",
        default: Value::Text("microlp"),
        meaning: "microlp, or highs where the build has it",
    },
];

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
    fn build(parameters: &Parameters) -> Result<Self, SettingsError> {
        let solver = parameters.choice("solver", &["microlp", "highs"])?;
        Ok(Self {
            fairness: parameters.number("fairness", 0.0..=1.0)?,
            adjustment: parameters.number("adjustment", 0.0..=1.0)?,
            by_server: parameters.choice("pools", &["kind", "server"])? == "server",
            jobs: parameters.whole("jobs", 1..=10_000)? as usize,
            limit: Limit {
                nodes: parameters.whole("nodes", 0..=1_000_000_000)?.into(),
                gap: parameters.number("gap", 0.0..=1.0)?,
            },
            solver: solver::find(solver).map_err(|error| SettingsError::new("parameters.solver", error))?,
        })
    }
}

impl Engine for Dorm {
    type Memo = ();
    type Index = Board;

    fn triggers(&self) -> Triggers {
        Triggers { interval: None, arrival: true, departure: true }
    }

    fn decide(
        &self,
        state: &State,
        changes: &Vector<Change>,
        _: &mut (),
        board: &mut Board,
        budget: &mut Budget,
    ) -> Result<Proposal, EngineError> {
        board.sync(state, changes, SortBy::Share);
        let mut ledger = Ledger::of(state);
        let (mut waiting, mut running) = (Vec::new(), Vec::new());
        for job in state.jobs.values() {
            match state.mandate(job) {
                Mandate::Free if job.verdict.allocation().is_some() => running.push(job),
                Mandate::Free => waiting.push(job),
                Mandate::Pinned(kept) => ledger.take(job, &job.total(kept.shape()), 1),
                // Nobody's to change, but what it has counts.
                Mandate::Closed => ledger.take(job, &job.total(job.shape()), 1),
            }
        }
        let changeable = libm::ceil(self.adjustment * running.len() as f64) as u32;
        let order = |job: &&Arc<Job>| (Reverse(job.spec.priority), job.arrival, job.id);
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
        rounds::fair_shapes(state, &mut fair, &mut handed_out, budget, |_, _| {})?;
        let fair_of = |job: &Job| fair[fair.binary_search_by_key(&job.id, |(job, _)| job.id).expect("of the same")].1;

        for job in &running {
            board.release(state, job);
        }
        let pools = Pools::build(state, &board.room, self.by_server);
        let candidates: Vec<Candidate<'_>> =
            running.iter().chain(&waiting).map(|job| Candidate::new(job, fair_of(job), &pools)).collect();
        let program = Program { state, pools: &pools, candidates: &candidates, ledger: &ledger };
        let solved = program.solve(self, changeable, budget)?;

        let mut proposal = Proposal::default();
        let mut placing = Placing { state, board, budget, ledger, pools: &pools };
        let mut moving = Vec::new();
        for (candidate, counts) in candidates.iter().zip(solved) {
            if candidate.now.as_ref() != Some(&counts) || !placing.keep(candidate.job) {
                moving.push((candidate.job, counts));
            }
        }
        let mut still_waiting = left_out;
        for (job, counts) in moving {
            match placing.place(job, &counts)? {
                Some(allocation) => run(&mut proposal, job, allocation),
                None => still_waiting.push(job),
            }
        }
        still_waiting.sort_by_key(order);
        let mut largest = Largest::default();
        for job in still_waiting {
            let least = job.spec.bounds().least();
            match placing.anywhere(job, least)? {
                Some(allocation) => run(&mut proposal, job, allocation),
                None => {
                    let total = job.total(least);
                    let reason = if placing.ledger.has(job, &total) {
                        largest.reason(state, &placing.board.room, job, least)
                    } else {
                        placing.ledger.reason(state, job, &total)
                    };
                    wait(&mut proposal, job, reason);
                }
            }
        }
        Ok(proposal)
    }
}

/// From counts per pool to servers.
struct Placing<'a> {
    state: &'a State,
    board: &'a mut Board,
    budget: &'a mut Budget,
    ledger: Ledger,
    pools: &'a Pools,
}

impl Placing<'_> {
    /// Leaves a job as it is.
    fn keep(&mut self, job: &Job) -> bool {
        let total = job.total(job.shape());
        let Some(allocation) = job.verdict.allocation().filter(|_| self.ledger.has(job, &total)) else { return false };
        let kept = self.board.restore(self.state, job, allocation);
        if kept {
            self.ledger.take(job, &total, 1);
        }
        kept
    }

    /// The counts as they are; else as many wherever there is room; else what it has; else less and less of them.
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
        let least = job.spec.bounds().least();
        while shape != least {
            shape = Shape {
                workers: (shape.workers - 1).max(least.workers),
                servers: shape.servers.saturating_sub(1).max(least.servers),
            };
            if let Some(found) = self.anywhere(job, shape)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Slots on the servers that the job has some on, then on the fullest of each pool.
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
                None => board.free.fullest(&board.room, need).find(|id| suits(*id, &left))?,
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
