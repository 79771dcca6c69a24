//! The offline optimum of OASiS's problem: the most that all jobs together could have been worth, had every arrival been
//! known from the start.
//!
//! Bao et al., *Online Job Scheduling in Distributed Machine Learning Clusters*, INFOCOM'18, problem (1): which jobs to
//! admit, and how many workers and parameter servers of each on every server in every slot, so that the sum of the
//! admitted jobs' utilities is the largest. It measures engines (Fig. 5: the offline optimum over what OASiS earns) and
//! can't be one: it needs the future. [`solve`] is a function over an [`Instance`] for that reason.
//!
//! The program: cᵢₜ = 1 if job i completes in slot t (at most one t per job), worth fᵢ(t − aᵢ); Yᵢₜ ≤ Nᵢ·Σ_{u ≥ t} cᵢᵤ
//! workers in slot t (3, 8); Σ_{u ≤ t} Yᵢᵤ ≥ workᵢ·Σ_{u ≤ t} cᵢᵤ (2, for every t rather than for the last one alone, which
//! tightens the relaxation); capacities (4, 5); bandwidth of parameter servers (6) and no more of them than workers (7).
//! Work counts in worker-slots as in (2), so the optimum is never below that of schedules in whole chunks.
//!
//! It is solved twice at most, from a list schedule improved by exchanges. First with servers that are alike as one pool: a relaxation, hence a bound; where every
//! slot's counts then pack onto the real servers, its schedule is one of the problem too. Else with every server apart,
//! starting from as much of that schedule as packs. What comes back says how far from the bound it may be: the problem
//! is NP-hard, ten jobs in ten slots on twelve servers took the paper's authors two days.
//!
//! Cost: J·T·P·2 + J·T integer variables for J jobs, T slots and P pools of servers; the search is bounded by nodes or by
//! gap.

//!
//! [`relaxed`] bounds another measure, the completion times of jobs in chunks, for A_online.

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

/// A whole workload, known in advance, in slots.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Instance {
    /// T: slots 0 to T − 1.
    pub slots: u32,
    /// The servers.
    pub hosts: Vec<Host>,
    /// The jobs.
    pub jobs: Vec<Task>,
}

/// A server.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Host {
    /// What it has in every slot.
    pub capacity: Amounts,
    /// Whether workers may be here.
    pub workers: bool,
    /// Whether parameter servers may be here.
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
    /// The fewest and the most workers in a slot in which it has any (N).
    pub workers: (u32, u32),
    /// The fewest and the most parameter servers beside them; (0, 0) for all-reduce.
    pub servers: (u32, u32),
    /// What one worker takes.
    pub worker: Amounts,
    /// What one parameter server takes.
    pub server: Amounts,
    /// b and B: bandwidth of a worker, which as many parameter servers must have in sum; b = 0 where it doesn't matter.
    pub bandwidth: (i64, i64),
    /// What it is worth to complete in its first slot, in the one after it, and so on; 0 beyond. Never rising.
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

    /// What completing in a slot is worth.
    fn worth_at(&self, slot: u32) -> f64 {
        let elapsed = slot.checked_sub(self.arrival).and_then(|slots| self.worth.get(slots as usize));
        elapsed.copied().unwrap_or(0.0)
    }

    /// Whether parameter servers are within bounds, have the workers' bandwidth, and aren't more than the workers.
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

/// One job's part of a schedule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// From its arrival on, for each slot: (place in [`Instance::hosts`], how many).
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

    /// The last slot with a worker, from the arrival.
    fn last(&self) -> Option<usize> {
        (0..self.slots.len()).rev().find(|slot| self.shape(*slot).workers > 0)
    }
}

/// For every job what it gets; none where it isn't admitted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// In the order of [`Instance::jobs`].
    pub runs: Vec<Option<Run>>,
}

/// What [`solve`] finds.
#[derive(Clone, Debug, PartialEq)]
pub struct Optimum {
    /// The best schedule found.
    pub schedule: Schedule,
    /// What it is worth.
    pub utility: f64,
    /// No schedule is worth more.
    pub bound: f64,
}

impl Optimum {
    /// Whether nothing can be worth more.
    pub fn is_optimal(&self) -> bool {
        self.bound <= self.utility
    }

    /// How much more, at most, relative to its worth; 0 at the optimum.
    pub fn gap(&self) -> f64 {
        solver::gap(self.utility, self.bound)
    }
}

/// A schedule that can't be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("job {job}, slot {slot}: {problem}")]
pub struct Misfit {
    /// Place in [`Instance::jobs`].
    pub job: usize,
    /// Of the instance.
    pub slot: u32,
    /// What is wrong.
    pub problem: &'static str,
}

impl Instance {
    /// Integer variables of its program with servers that are alike as one pool; about the square of it is what a node of
    /// the search takes.
    pub fn variables(&self) -> u64 {
        let pools = program::Pools::alike(self).len() as u64;
        self.jobs.iter().map(|task| u64::from(self.slots.saturating_sub(task.arrival)) * (2 * pools + 1)).sum()
    }

    /// What a schedule is worth.
    ///
    /// # Errors
    /// The first job and slot that break a constraint of the problem.
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

/// The best schedule found within the limit (which holds for each of at most two searches), and a bound on any.
///
/// # Errors
/// The solver failed; a search that merely found nothing is no error: the empty schedule and the bound come back.
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
