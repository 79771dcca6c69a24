//! A whole workload in slots, and schedules of it.

use thiserror::Error;

use trainmaster_core::{
    resources::Amounts,
    shape::{Role, Shape},
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
    pub(super) fn takes(&self, role: Role) -> bool {
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
    pub(super) fn demand(&self, role: Role) -> &Amounts {
        match role {
            Role::Worker => &self.worker,
            Role::Server => &self.server,
        }
    }

    pub(super) fn bounds(&self, role: Role) -> (u32, u32) {
        match role {
            Role::Worker => self.workers,
            Role::Server => self.servers,
        }
    }

    pub(super) fn total(&self, shape: Shape) -> Amounts {
        let mut total = self.worker.times(shape.workers.into());
        total.add_times(&self.server, shape.servers.into());
        total
    }

    /// Worth of a completion in a slot.
    pub(super) fn worth_at(&self, slot: u32) -> f64 {
        let elapsed = slot.checked_sub(self.arrival).and_then(|slots| self.worth.get(slots as usize));
        elapsed.copied().unwrap_or(0.0)
    }

    /// Whether the parameter servers are within bounds, have the workers' bandwidth, and don't exceed the workers.
    pub(super) fn allows(&self, shape: Shape) -> bool {
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
    pub(super) fn shape(&self, slot: usize) -> Shape {
        self.slots[slot].iter().fold(Shape::default(), |sum, (_, shape)| Shape {
            workers: sum.workers + shape.workers,
            servers: sum.servers + shape.servers,
        })
    }

    /// The last slot with a worker, relative to the arrival.
    pub(super) fn last(&self) -> Option<usize> {
        (0..self.slots.len()).rev().find(|slot| self.shape(*slot).workers > 0)
    }
}

/// The runs of all jobs. None for a job that isn't admitted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// In the order of [`Instance::jobs`].
    pub runs: Vec<Option<Run>>,
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
