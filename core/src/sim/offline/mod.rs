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
mod packing;
mod program;

use thiserror::Error;

pub use self::{
    build::InstanceError,
    chunks::{Relaxed, RelaxedError, relaxed},
};
use crate::{
    resources::Amounts,
    shape::{Role, Shape},
    solver::{self, Limit, Solver, SolverError},
};

/// A whole workload in slots, known in advance.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Instance {
    /// T: the slots are 0 to T − 1.
    pub slots: u32,
    /// The servers.
    pub hosts: Vec<Host>,
    /// The jobs.
    pub jobs: Vec<Task>,
}

/// A server.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Host {
    /// Capacity in each slot.
    pub capacity: Amounts,
    /// Whether the server hosts workers.
    pub workers: bool,
    /// Whether the server hosts parameter servers.
    pub servers: bool,
}

impl Host {
    fn takes(&self, role: Role) -> bool {
        match role {
            Role::Worker => self.workers,
            Role::Server => self.servers,
        }
    }
}

/// A job.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// a: its first slot.
    pub arrival: u32,
    /// E·N·m in worker-slots, rounded up.
    pub work: u64,
    /// Minimum and maximum of workers (N) in a slot with workers.
    pub workers: (u32, u32),
    /// Minimum and maximum of parameter servers beside them; (0, 0) for all-reduce.
    pub servers: (u32, u32),
    /// Demand of one worker.
    pub worker: Amounts,
    /// Demand of one parameter server.
    pub server: Amounts,
    /// b and B: the bandwidths of a worker and of a parameter server. The parameter servers' total must be at least the
    /// workers'. b = 0 if bandwidth doesn't matter.
    pub bandwidth: (i64, i64),
    /// Worth of a completion in its first slot, in the next one, and so on; 0 beyond. It never increases.
    pub worth: Vec<f64>,
}

impl Task {
    fn demand(&self, role: Role) -> &Amounts {
        match role {
            Role::Worker => &self.worker,
            Role::Server => &self.server,
        }
    }

    fn bounds(&self, role: Role) -> (u32, u32) {
        match role {
            Role::Worker => self.workers,
            Role::Server => self.servers,
        }
    }

    fn total(&self, shape: Shape) -> Amounts {
        let mut total = self.worker.times(shape.workers.into());
        total.add_times(&self.server, shape.servers.into());
        total
    }

    /// Worth of a completion in a slot.
    fn worth_at(&self, slot: u32) -> f64 {
        let elapsed = slot.checked_sub(self.arrival).and_then(|slots| self.worth.get(slots as usize));
        elapsed.copied().unwrap_or(0.0)
    }

    /// Whether the parameter servers are within bounds, have the workers' bandwidth, and don't exceed the workers.
    fn allows(&self, shape: Shape) -> bool {
        let within = |role: Role| {
            let (least, most) = self.bounds(role);
            (least..=most).contains(&shape.count(role))
        };
        let served = i64::from(shape.workers) * self.bandwidth.0 <= i64::from(shape.servers) * self.bandwidth.1;
        within(Role::Worker)
            && within(Role::Server)
            && shape.servers <= shape.workers
            && (served || self.servers.1 == 0)
    }
}

/// The part of a schedule for one job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// For each slot from its arrival on: (index in [`Instance::hosts`], numbers).
    pub slots: Vec<Vec<(usize, Shape)>>,
}

impl Run {
    /// Workers and parameter servers in the n-th slot after the arrival.
    fn shape(&self, slot: usize) -> Shape {
        self.slots[slot].iter().fold(Shape::default(), |sum, (_, shape)| Shape {
            workers: sum.workers + shape.workers,
            servers: sum.servers + shape.servers,
        })
    }

    /// The last slot with a worker, relative to the arrival.
    fn last(&self) -> Option<usize> {
        (0..self.slots.len()).rev().find(|slot| self.shape(*slot).workers > 0)
    }
}

/// The runs of all jobs. None for a job that isn't admitted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// In the order of [`Instance::jobs`].
    pub runs: Vec<Option<Run>>,
}

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

/// An invalid schedule.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("job {job}, slot {slot}: {problem}")]
pub struct Misfit {
    /// Index in [`Instance::jobs`].
    pub job: usize,
    /// Slot of the instance.
    pub slot: u32,
    /// The error.
    pub problem: &'static str,
}

impl Instance {
    /// Number of integer variables of its program with equal servers as one pool. A node of the search takes about its
    /// square.
    pub fn variables(&self) -> u64 {
        let pools = program::Pools::alike(self).len() as u64;
        self.jobs.iter().map(|task| u64::from(self.slots.saturating_sub(task.arrival)) * (2 * pools + 1)).sum()
    }

    /// Utility of a schedule.
    ///
    /// # Errors
    /// The first job and slot that violate a constraint of the problem.
    pub fn utility(&self, schedule: &Schedule) -> Result<f64, Misfit> {
        let mut free: Vec<Vec<Amounts>> =
            vec![self.hosts.iter().map(|host| host.capacity.clone()).collect(); self.slots as usize];
        let mut utility = 0.0;
        for (job, (task, run)) in self.jobs.iter().zip(&schedule.runs).enumerate() {
            let Some(run) = run else { continue };
            let mut work = 0;
            for (at, places) in run.slots.iter().enumerate() {
                let slot = task.arrival + at as u32;
                let misfit = |problem| Err(Misfit { job, slot, problem });
                let shape = run.shape(at);
                if shape.is_empty() {
                    continue;
                }
                if slot >= self.slots {
                    return misfit("is after the last slot");
                }
                if !task.allows(shape) {
                    return misfit("has a number of workers or parameter servers that it may not have");
                }
                for (host, shape) in places {
                    let total = task.total(*shape);
                    let takes = |role: Role| shape.count(role) == 0 || self.hosts[*host].takes(role);
                    if !total.fits(&free[slot as usize][*host]) || !takes(Role::Worker) || !takes(Role::Server) {
                        return misfit("is on a server that has no room for it");
                    }
                    free[slot as usize][*host] -= &total;
                }
                work += u64::from(shape.workers);
            }
            let Some(last) = run.last().filter(|_| work >= task.work) else {
                let slot = task.arrival + run.slots.len() as u32;
                return Err(Misfit { job, slot, problem: "its work isn't done" });
            };
            utility += task.worth_at(task.arrival + last as u32);
        }
        Ok(utility)
    }
}

/// The best schedule found within the limit (which holds for each of at most two searches), and a bound of all
/// schedules.
///
/// # Errors
/// The solver failed. A search without a result isn't an error: it returns the empty schedule and the bound.
///
/// ```
/// use trainmaster_core::{sim::offline::{solve, Host, Instance, Task}, resources::{Amounts, GPU}, solver};
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
