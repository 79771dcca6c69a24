//! Problem (1) as a mixed-integer program over pools of servers.

use std::collections::BTreeMap;

use super::{Host, Instance, Schedule, Task};
use trainmaster_core::{
    resources::Amounts,
    shape::{Role, Shape},
    solver::{Limit, Model, Solver, SolverError, Variable},
};

pub(super) const ROLES: [Role; 2] = [Role::Worker, Role::Server];

/// Servers that the program doesn't distinguish, by their index in the instance.
pub(super) struct Pools(Vec<Vec<usize>>);

impl Pools {
    /// Pools of equal servers.
    pub(super) fn alike(instance: &Instance) -> Self {
        let mut alike: BTreeMap<&Host, Vec<usize>> = BTreeMap::new();
        for (at, host) in instance.hosts.iter().enumerate() {
            alike.entry(host).or_default().push(at);
        }
        Self(alike.into_values().collect())
    }

    /// One pool per server.
    pub(super) fn apart(instance: &Instance) -> Self {
        Self((0..instance.hosts.len()).map(|at| vec![at]).collect())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &[usize]> {
        self.0.iter().map(Vec::as_slice)
    }
}

/// For each admitted job and each slot from its arrival on: the numbers on each pool.
pub(super) type Counts = Vec<Option<Vec<Vec<Shape>>>>;

/// Counts of a schedule on these pools.
pub(super) fn counts_of(instance: &Instance, pools: &Pools, schedule: &Schedule) -> Counts {
    let mut pool_of = vec![0; instance.hosts.len()];
    for (pool, hosts) in pools.iter().enumerate() {
        hosts.iter().for_each(|host| pool_of[*host] = pool);
    }
    let counts = |places: &Vec<(usize, Shape)>| {
        let mut counts = vec![Shape::default(); pools.len()];
        for (host, shape) in places {
            counts[pool_of[*host]].workers += shape.workers;
            counts[pool_of[*host]].servers += shape.servers;
        }
        counts
    };
    schedule.runs.iter().map(|run| run.as_ref().map(|run| run.slots.iter().map(counts).collect())).collect()
}

/// Variables of one job in one slot.
struct Cells {
    /// Numbers on each pool, by role.
    counts: Vec<[Variable; 2]>,
    /// The job completes in this slot.
    completes: Variable,
    /// The job has slots in this slot. Only for jobs with minimum numbers above one.
    runs: Option<Variable>,
}

/// The best counts found, and a bound of the worth of all counts.
pub(super) fn solve(
    instance: &Instance,
    pools: &Pools,
    solver: &dyn Solver,
    limit: Limit,
    start: &Counts,
) -> Result<(Counts, f64), SolverError> {
    let mut model = Model::default();
    let cells: Vec<Vec<Cells>> = instance.jobs.iter().map(|task| job(&mut model, instance, pools, task)).collect();
    capacities(&mut model, instance, pools, &cells);
    let solution = match solver.solve(&model, limit, &hint(&cells, start)) {
        Ok(solution) => solution,
        // Nothing was found, so the result is the empty schedule with the known bound.
        Err(SolverError::Limit { bound, .. }) => {
            let all = instance.jobs.iter().map(|task| task.worth_at(task.arrival)).sum::<f64>();
            return Ok((vec![None; instance.jobs.len()], bound.min(all)));
        }
        Err(error) => return Err(error),
    };
    let counts = |cells: &Vec<Cells>| {
        let completes = cells.iter().any(|cells| solution.count(cells.completes) == 1);
        let shape = |[worker, server]: &[Variable; 2]| Shape {
            workers: solution.count(*worker),
            servers: solution.count(*server),
        };
        completes.then(|| cells.iter().map(|cells| cells.counts.iter().map(shape).collect()).collect())
    };
    Ok((cells.iter().map(counts).collect(), solution.bound))
}

/// Maximum number of a role's slots of a job on an otherwise empty pool.
fn most(instance: &Instance, task: &Task, role: Role, pool: &[usize]) -> u32 {
    let host = &instance.hosts[pool[0]];
    if !host.takes(role) {
        return 0;
    }
    let bound = task.bounds(role).1;
    let demand = task.demand(role).iter().filter(|(_, need)| *need > 0);
    let each = demand.map(|(resource, need)| host.capacity[resource].max(0) / need).min();
    each.map_or(bound, |each| (each * pool.len() as i64).min(bound.into()) as u32)
}

/// Adds the variables and constraints of one job.
fn job(model: &mut Model, instance: &Instance, pools: &Pools, task: &Task) -> Vec<Cells> {
    let slots = task.arrival..instance.slots.max(task.arrival);
    let most: Vec<[u32; 2]> = pools.iter().map(|pool| ROLES.map(|role| most(instance, task, role, pool))).collect();
    let workers = most.iter().map(|most| u64::from(most[0])).sum::<u64>().min(task.workers.1.into());
    let soonest = task.work.div_ceil(workers.max(1)).max(1) - 1;
    // The job has either no slots or at least its minimum, if that is more than one of each role.
    let least = task.workers.0 > 1 || task.servers.0 > 1;
    let cells: Vec<Cells> = slots
        .clone()
        .map(|slot| Cells {
            counts: most.iter().map(|most| most.map(|most| model.integer(0, most as i32, 0.0))).collect(),
            completes: model.integer(
                0,
                i32::from(workers > 0 && u64::from(slot - task.arrival) >= soonest),
                task.worth_at(slot),
            ),
            runs: least.then(|| model.integer(0, 1, 0.0)),
        })
        .collect();
    let terms = |cells: &Cells, role: Role, factor: f64| -> Vec<(Variable, f64)> {
        cells.counts.iter().map(|counts| (counts[role as usize], factor)).collect()
    };
    let (workers, servers) = (workers as f64, f64::from(task.servers.1));
    let work = task.work.max(1) as f64;
    model.at_most(cells.iter().map(|cells| (cells.completes, 1.0)), 1.0);
    for (at, here) in cells.iter().enumerate() {
        // (3), (8), (9): workers from the arrival to the completion.
        let later = cells[at..].iter().map(|cells| (cells.completes, -workers));
        model.at_most(terms(here, Role::Worker, 1.0).into_iter().chain(later), 0.0);
        // (2): a job that completes here has its work done by now.
        let done = cells[..=at]
            .iter()
            .flat_map(|cells| terms(cells, Role::Worker, 1.0 / work).into_iter().chain([(cells.completes, -1.0)]));
        model.at_least(done, 0.0);
        if task.servers.1 > 0 {
            // (6), (7), and at least one parameter server beside any worker.
            let (b, capacity) = (task.bandwidth.0 as f64, task.bandwidth.1 as f64);
            if b > 0.0 {
                let served = terms(here, Role::Server, capacity / b).into_iter().chain(terms(here, Role::Worker, -1.0));
                model.at_least(served, 0.0);
            } else if task.servers.0 > 0 {
                let served = terms(here, Role::Server, workers).into_iter().chain(terms(here, Role::Worker, -1.0));
                model.at_least(served, 0.0);
            }
            let surplus = terms(here, Role::Server, 1.0).into_iter().chain(terms(here, Role::Worker, -1.0));
            model.at_most(surplus, 0.0);
            model.at_most(terms(here, Role::Server, 1.0), servers);
        }
        if let Some(runs) = here.runs {
            model.at_most(terms(here, Role::Worker, 1.0).into_iter().chain([(runs, -workers)]), 0.0);
            for role in ROLES {
                let least = f64::from(task.bounds(role).0);
                model.at_least(terms(here, role, 1.0).into_iter().chain([(runs, -least)]), 0.0);
            }
        }
    }
    cells
}

/// (4), (5): capacities of every pool in every slot, each as a fraction of the total.
fn capacities(model: &mut Model, instance: &Instance, pools: &Pools, cells: &[Vec<Cells>]) {
    for slot in 0..instance.slots {
        for (at, pool) in pools.iter().enumerate() {
            let capacity: Amounts = instance.hosts[pool[0]].capacity.times(pool.len() as i64);
            let here: Vec<(&Task, [Variable; 2])> = instance
                .jobs
                .iter()
                .zip(cells)
                .filter_map(|(task, cells)| {
                    let cells = cells.get(slot.checked_sub(task.arrival)? as usize)?;
                    Some((task, cells.counts[at]))
                })
                .collect();
            for (resource, whole) in capacity.iter().filter(|(_, whole)| *whole > 0) {
                let part = |(task, counts): &(&Task, [Variable; 2])| {
                    ROLES.map(|role| (counts[role as usize], task.demand(role)[resource] as f64 / whole as f64))
                };
                model.at_most(here.iter().flat_map(part), 1.0);
            }
        }
    }
}

/// A start for the search from the counts of a schedule.
fn hint(cells: &[Vec<Cells>], start: &Counts) -> Vec<(Variable, f64)> {
    let mut hint = Vec::new();
    for (cells, counts) in cells.iter().zip(start) {
        let given = |slot: usize, pool: usize| {
            counts.as_ref().and_then(|counts| counts.get(slot)).map_or(Shape::default(), |counts| counts[pool])
        };
        let workers = |slot: usize| (0..cells[slot].counts.len()).map(|pool| given(slot, pool).workers).sum::<u32>();
        let last = (0..cells.len()).rev().find(|slot| workers(*slot) > 0);
        for (slot, cells) in cells.iter().enumerate() {
            for (pool, variables) in cells.counts.iter().enumerate() {
                hint.extend(ROLES.map(|role| (variables[role as usize], given(slot, pool).count(role).into())));
            }
            hint.push((cells.completes, f64::from(u8::from(last == Some(slot)))));
            hint.extend(cells.runs.map(|runs| (runs, f64::from(u8::from(workers(slot) > 0)))));
        }
    }
    hint
}
