//! Graphene: troublesome tasks first. Jobs go by a score of shortness, packing and fairness.
//!
//! Grandl et al., *Graphene: Packing and Dependency-aware Scheduling for Data-Parallel Clusters*, OSDI'16, as described
//! for comparison by MLFS's authors (CoNEXT'20, §2): within a job, troublesome tasks get resources first. These have
//! more dependent tasks, and demands that are tough to pack. Jobs go by a weighted score of several objectives: average
//! completion time, throughput, fairness. Jobs get their requested shape and keep it to the end. A job that doesn't fit
//! is skipped.
//!
//! * A **task** is a worker, which trains its [partition](crate::job::Partition), or a parameter server. Its
//!   troublesomeness is the mean of two values. The first is the number of tasks that depend on it, directly or
//!   indirectly, divided by the number of the other tasks of its replica (for a parameter server: all depend on it).
//!   The second is the largest fraction that one of its demands takes of the largest free room on any server.
//! * The tasks of a job are placed in this order. Each goes to the server with the largest dot product of demand and
//!   free room, both as fractions of the server's capacity.
//! * The **score** of a waiting job is the weighted sum of four values, each from 0 to 1. `short`: m / (m + remaining
//!   work), with the mean m over the waiting jobs. `packing`: the dot product of its demand and the free room of the
//!   cluster, divided by the largest one. `fairness`: the difference between an equal share and its tenant's dominant
//!   share, divided by the equal share. `troublesome`: the value of its most troublesome task.
//!
//! The papers leave some points open. The following choices are our own:
//! * All weights are 1. Graphene improves the order within a job by an offline search. This suits jobs with a few
//!   stages of different tasks more than workers that are all alike.
//! * The tasks of a job train together, so all are placed or none, in the job's turn. Between jobs, "troublesome first"
//!   can only be a part of the score.
//! * Remaining work is the predicted remaining time × dominant share. An unknown one counts as the mean.
//! * Scores are those at the start of a decision.
//!
//! Choose it for comparisons, or for different demands that should be packed well without preemption. A job with a low
//! score may wait as long as better ones arrive.
//!
//! Cost: O(J log J + K²) for J waiting jobs of K partitions each, and O(S) per task that is placed on one of S servers.

use std::sync::Arc;

use crate::engine::{
    About, Budget, Build, Engine, EngineError, Parameters, Round, Triggers, board::Board, placing::holds, round,
};
use crate::{
    decision::Allocation,
    ids::ServerId,
    job::{Job, Partition},
    resources::Amounts,
    settings::SettingsError,
    shape::Role,
    state::State,
    time::Span,
};

/// The engine, as its module describes it.
#[derive(Clone, Debug)]
pub struct Graphene {
    interval: Span,
    short: f64,
    packing: f64,
    fairness: f64,
    troublesome: f64,
}

impl Build for Graphene {
    type Engine = Self;
    const ABOUT: About = About::new(
        "graphene",
        "places troublesome tasks first, jobs by remaining work, packing and fairness",
        "Grandl et al., Graphene, OSDI'16; baseline of MLFS",
    );

    fn build(parameters: &mut Parameters<'_>) -> Result<Self, SettingsError> {
        let interval = round::minute(parameters)?;
        let mut weight = |name, meaning| parameters.number(name, 1.0, 0.0..=1e6, meaning);
        let troublesome = "weight of a job's most troublesome task: many depend on it, and it is tough to pack";
        Ok(Self {
            interval,
            short: weight("short", "weight of little remaining work in a job's score")?,
            packing: weight("packing", "weight of how much of what is free a job takes")?,
            fairness: weight("fairness", "weight of how far a job's tenant is below an equal share")?,
            troublesome: weight("troublesome", troublesome)?,
        })
    }
}

impl Engine for Graphene {
    type Memo = ();
    type Index = ();

    fn triggers(&self) -> Triggers {
        Triggers { interval: Some(self.interval), arrival: true, departure: true }
    }

    fn decide(&self, round: &mut Round<'_>, (): &mut ()) -> Result<(), EngineError> {
        let state = round.state;
        let (jobs, ledger) = round.waiting_jobs();
        round.budget.spend(jobs.len() as u64 + state.servers.len() as u64)?;
        let free = Free::of(state, round.board);
        let mut order = self.scores(state, &free, jobs);
        order
            .sort_by(|(a, one), (b, other)| b.total_cmp(a).then((one.arrival, one.id).cmp(&(other.arrival, other.id))));
        let order: Vec<_> = order.into_iter().map(|(_, job)| job).collect();
        round.start_in_line((&order, ledger), true, |round, job| place(state, round.board, job, &free, round.budget))
    }
}

/// Free room at the start of a decision.
struct Free {
    /// Total over all servers.
    total: Amounts,
    /// The maximum on any server, per resource.
    largest: Amounts,
}

impl Free {
    fn of(state: &State, board: &Board) -> Self {
        let mut free = Self { total: Amounts::default(), largest: Amounts::default() };
        for server in state.present_servers() {
            free.total += board.room.free(server.id);
            free.largest.max_with(board.room.free(server.id));
        }
        free
    }

    /// The largest fraction of the free room on any server that one demand takes; 1 if it doesn't fit.
    fn tough(&self, need: &Amounts) -> f64 {
        need.dominant_share(&self.largest).min(1.0)
    }
}

impl Graphene {
    /// Jobs with their scores. O(jobs · (resources + partitions²/64)).
    fn scores<'a>(&self, state: &State, free: &Free, jobs: Vec<&'a Arc<Job>>) -> Vec<(f64, &'a Arc<Job>)> {
        let work: Vec<Option<f64>> = jobs.iter().map(|job| remaining_work(state, job)).collect();
        let known: Vec<f64> = work.iter().copied().flatten().collect();
        let mean = known.iter().sum::<f64>() / known.len().max(1) as f64;
        let fits: Vec<f64> =
            jobs.iter().map(|job| dot(&job.total(job.spec.requested()), &free.total, &state.usable)).collect();
        let best = fits.iter().copied().fold(0.0, f64::max);
        let lacking = lacking(state);
        let of = |(at, job): (usize, &'a Arc<Job>)| {
            let work = work[at].unwrap_or(mean);
            let short = if mean > 0.0 { mean / (mean + work) } else { 0.5 };
            let packing = if best > 0.0 { fits[at] / best } else { 0.0 };
            let troublesome = tasks(job, free).first().map_or(0.0, |(score, ..)| *score);
            let score = self.short * short
                + self.packing * packing
                + self.fairness * lacking[job.tenant.0 as usize]
                + self.troublesome * troublesome;
            (score, job)
        };
        jobs.into_iter().enumerate().map(of).collect()
    }
}

/// Predicted remaining time in the requested shape × dominant share.
fn remaining_work(state: &State, job: &Job) -> Option<f64> {
    let shape = job.spec.requested();
    Some(round::remaining_time(job, shape)?.as_seconds() * job.total(shape).dominant_share(&state.usable).min(1.0))
}

/// Σ over resources of the product of both, as fractions of the capacity.
fn dot(need: &Amounts, free: &Amounts, have: &Amounts) -> f64 {
    let part = |amount: i64, have: i64| amount.max(0) as f64 / have as f64;
    let have = have.iter().filter(|(_, have)| *have > 0);
    have.map(|(resource, have)| part(need[resource], have) * part(free[resource], have)).sum()
}

/// For each tenant the difference between an equal share and its dominant share, divided by the equal share. Shares are
/// equal among tenants with jobs.
fn lacking(state: &State) -> Vec<f64> {
    let mut with_jobs = vec![false; state.tenants.len()];
    state.jobs.values().for_each(|job| with_jobs[job.tenant.0 as usize] = true);
    let count = with_jobs.iter().filter(|with| **with).count() as f64;
    let lacks = |share: f64| (1.0 - share * count).max(0.0);
    state.tenants.iter().map(|tenant| lacks(tenant.planned.dominant_share(&state.usable))).collect()
}

/// Number of partitions that depend on each one, directly or indirectly. O(K · (edges + K/64)).
fn dependents(parts: &[Partition]) -> Vec<usize> {
    let words = parts.len().div_ceil(64);
    let mut reached = vec![vec![0_u64; words]; parts.len()];
    for (at, part) in parts.iter().enumerate().rev() {
        let mut after = reached[at].clone();
        after[at / 64] |= 1 << (at % 64);
        for before in &part.after {
            reached[*before as usize].iter_mut().zip(&after).for_each(|(mine, more)| *mine |= more);
        }
    }
    reached.iter().map(|bits| bits.iter().map(|word| word.count_ones() as usize).sum()).collect()
}

/// The tasks of a job's requested shape with their troublesomeness, the most troublesome first.
fn tasks(job: &Job, free: &Free) -> Vec<(f64, Role, u32)> {
    let shape = job.spec.requested();
    let dependents = dependents(&job.spec.partitions);
    let others = dependents.len().saturating_sub(1).max(1) as f64;
    let of_worker = |index: u32| match dependents.len() {
        0 => 0.0,
        parts => dependents[index as usize % parts] as f64 / others,
    };
    let tough = (free.tough(&job.worker.amounts), free.tough(&job.server.amounts));
    let servers = (0..shape.servers).map(|index| (0.5 * (1.0 + tough.1), Role::Server, index));
    let workers = (0..shape.workers).map(|index| (0.5 * (of_worker(index) + tough.0), Role::Worker, index));
    let mut tasks: Vec<_> = servers.chain(workers).collect();
    // The sort is stable: parameter servers come before workers, each by index.
    tasks.sort_by(|a, b| b.0.total_cmp(&a.0));
    tasks
}

/// Places all tasks of a job, the most troublesome first, or none.
fn place(
    state: &State,
    board: &mut Board,
    job: &Job,
    free: &Free,
    budget: &mut Budget,
) -> Result<Option<Arc<Allocation>>, EngineError> {
    let rules = state.settings.shape.of(&job.spec);
    if rules.equal_per_server || !rules.colocate {
        return board.place_even(state, job, job.spec.requested(), budget);
    }
    let order = tasks(job, free);
    budget.spend((order.len() * state.servers.len()) as u64)?;
    let order = order.into_iter().map(|(_, role, index)| (role, index));
    let placed =
        board.place_tasks(state, job, order, budget, |board, job, role| best_packed(state, board, job, role))?;
    Ok(placed.map(Arc::new))
}

/// The server with the best alignment of free room and demand. O(servers).
fn best_packed(state: &State, board: &Board, job: &Job, role: Role) -> Option<ServerId> {
    let need = &job.demand(role).amounts;
    let candidates = state.present_servers().filter(|server| holds(state, board, server.id, job, role));
    let scored = candidates.map(|server| (dot(need, board.room.free(server.id), &server.capacity), server.id));
    scored.max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1))).map(|(_, id)| id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependents_count_through_the_graph_and_once() {
        assert_eq!(dependents(&Partition::chain(4)), [3, 2, 1, 0]);
        // A diamond: 0 → 1, 2 → 3.
        let diamond = [vec![], vec![0], vec![0], vec![1, 2]];
        let diamond = diamond.map(|after| Partition { parameters: 0, after });
        assert_eq!(dependents(&diamond), [3, 1, 1, 0]);
        assert_eq!(dependents(&Partition::chain(200))[..2], [199, 198], "beyond a word");
    }

    #[test]
    fn the_dot_product_uses_fractions_of_the_capacity() {
        use crate::resources::{CPU, GPU};
        let amounts = |gpu, cpu| Amounts::of(&[(GPU, gpu), (CPU, cpu)]);
        let have = amounts(4000, 8000);
        assert_eq!(dot(&amounts(2000, 2000), &amounts(4000, 4000), &have), 0.5 + 0.125);
        assert_eq!(dot(&amounts(2000, 2000), &amounts(-1000, 0), &have), 0.0, "nothing is free");
    }
}
