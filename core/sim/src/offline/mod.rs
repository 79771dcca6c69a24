//! The offline optimum of OASiS's problem: the maximum total utility of all jobs, with all arrivals known in advance.
//!
//! Bao et al., *Online Job Scheduling in Distributed Machine Learning Clusters*, INFOCOM'18, problem (1): which jobs to
//! admit, and how many workers and parameter servers of each to place on each server in each slot, so that the sum of
//! the admitted jobs' utilities is maximal. It is a reference for engines (Fig. 5: the offline optimum divided by the
//! utility of OASiS). It can't be an engine itself, because it needs the future. Therefore [`solve`] is a function over
//! an [`Instance`].
//!
//! The program: cᵢₜ = 1 if job i completes in slot t (at most one t per job), with worth fᵢ(t − aᵢ). There are
//! Yᵢₜ ≤ Nᵢ·Σ_{u ≥ t} cᵢᵤ workers in slot t (3, 8). Σ_{u ≤ t} Yᵢᵤ ≥ workᵢ·Σ_{u ≤ t} cᵢᵤ (2; for every t instead of only
//! the last one, which tightens the relaxation). Further constraints are capacities (4, 5), the bandwidth of parameter
//! servers (6), and no more of them than workers (7). Work counts in worker-slots as in (2), so the optimum is at least
//! that of schedules in whole chunks.
//!
//! It is solved at most twice, starting from a list schedule improved by exchanges. First, equal servers form one pool.
//! This is a relaxation, and therefore a bound. If the counts of every slot can be packed on the real servers, its
//! schedule is also a solution of the problem. Otherwise the program is solved with separate servers, starting from the
//! part of that schedule that can be packed. The result states its maximum distance from the bound. The problem is
//! NP-hard: ten jobs in ten slots on twelve servers took the paper's authors two days.
//!
//! Cost: J·T·P·2 + J·T integer variables for J jobs, T slots and P pools of servers. The search is bounded by nodes or
//! by gap.
//!
//! [`relaxed`] bounds another objective for A_online: the completion times of jobs in chunks.

mod build;
mod chunks;
mod greedy;
mod instance;
mod packing;
mod program;

pub use self::{
    build::InstanceError,
    chunks::{Relaxed, RelaxedError, relaxed},
    instance::{Host, Instance, Misfit, Run, Schedule, Task},
};
use trainmaster_core::solver::{self, Limit, Solver, SolverError};

/// The result of [`solve`].
#[derive(Clone, Debug, PartialEq)]
pub struct Optimum {
    /// The best schedule found.
    pub schedule: Schedule,
    /// Its utility.
    pub utility: f64,
    /// Upper bound of the utility of all schedules.
    pub bound: f64,
}

impl Optimum {
    /// Whether the utility equals the bound.
    pub fn is_optimal(&self) -> bool {
        self.bound <= self.utility
    }

    /// Maximum possible improvement, relative to the utility; 0 at the optimum.
    pub fn gap(&self) -> f64 {
        solver::gap(self.utility, self.bound)
    }
}

impl Instance {
    /// Number of integer variables of its program with equal servers as one pool. A node of the search takes about its
    /// square.
    pub fn variables(&self) -> u64 {
        let pools = program::Pools::alike(self).len() as u64;
        self.jobs.iter().map(|task| u64::from(self.slots.saturating_sub(task.arrival)) * (2 * pools + 1)).sum()
    }
}

/// The best schedule found within the limit (which holds for each of at most two searches), and a bound of all
/// schedules.
///
/// # Errors
/// The solver failed. A search without a result isn't an error: it returns the empty schedule and the bound.
///
/// ```
/// use trainmaster_core::{resources::{Amounts, GPU}, solver};
/// use trainmaster_sim::offline::{solve, Host, Instance, Task};
/// let gpus = |count: i64| Amounts::of(&[(GPU, 1000 * count)]);
/// // Two jobs of three worker-slots each, both worth 10 less 4 a slot, on two GPUs: one after the other.
/// let task = Task {
///     arrival: 0, work: 3, workers: (1, 2), servers: (0, 0), worker: gpus(1), server: gpus(0), bandwidth: (0, 0),
///     worth: vec![10.0, 6.0, 2.0],
/// };
/// let hosts = vec![Host { capacity: gpus(2), workers: true, servers: false }];
/// let instance = Instance { slots: 3, hosts, jobs: vec![task.clone(), task] };
/// let best = solve(&instance, solver::find("microlp").unwrap(), solver::Limit::default()).unwrap();
/// assert!(best.is_optimal());
/// assert_eq!(best.utility, 6.0 + 2.0);
/// ```
pub fn solve(instance: &Instance, solver: &dyn Solver, limit: Limit) -> Result<Optimum, SolverError> {
    let checked = |schedule: Schedule| match instance.utility(&schedule) {
        Ok(utility) => Ok((utility, schedule)),
        Err(misfit) => Err(SolverError::Failed(format!("its schedule can't be: {misfit}"))),
    };
    let (mut utility, mut schedule) = checked(greedy::schedule(instance))?;
    let mut bound = f64::INFINITY;
    for pools in [program::Pools::alike(instance), program::Pools::apart(instance)] {
        let start = program::counts_of(instance, &pools, &schedule);
        let (counts, tighter) = program::solve(instance, &pools, solver, limit, &start)?;
        bound = bound.min(tighter);
        let found = checked(packing::pack(instance, &pools, &counts, solver))?;
        if found.0 > utility {
            (utility, schedule) = found;
        }
        if bound <= utility * (1.0 + limit.gap.max(1e-6)) || pools.len() == instance.hosts.len() {
            break;
        }
    }
    // Sums in another order differ in their last bits.
    let met = bound - utility <= 1e-6 * utility.abs().max(1e-6);
    Ok(Optimum { bound: if met { utility } else { bound }, schedule, utility })
}
