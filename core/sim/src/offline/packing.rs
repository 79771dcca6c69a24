//! Converts counts on pools to counts on their servers.

use super::{
    Instance, Run, Schedule,
    program::{Counts, Pools, ROLES},
};
use trainmaster_core::{
    resources::Amounts,
    shape::{Role, Shape},
    solver::{Limit, Model, Solver, Variable},
};

/// Maximum number of search nodes for the packing of one slot on one pool.
const NODES: u64 = 2000;

/// The slots of some jobs on one pool: (job, numbers).
type Load = Vec<(usize, Shape)>;
/// The same for each server of the pool.
type Packed = Vec<Load>;

/// The schedule for these counts. If a pool's servers can't hold the counts of a slot, the job with the smallest worth
/// among them isn't admitted, until the others fit.
pub(super) fn pack(instance: &Instance, pools: &Pools, counts: &Counts, solver: &dyn Solver) -> Schedule {
    let mut admitted: Vec<bool> = counts.iter().map(Option::is_some).collect();
    let worth = |job: usize| instance.jobs[job].worth.first().copied().unwrap_or(0.0);
    let mut runs: Vec<Run> =
        counts.iter().map(|counts| Run { slots: vec![Vec::new(); counts.as_ref().map_or(0, Vec::len)] }).collect();
    for slot in 0..instance.slots {
        for (pool, hosts) in pools.iter().enumerate() {
            let of = |job: usize| {
                let at = slot.checked_sub(instance.jobs[job].arrival)? as usize;
                Some(counts[job].as_ref()?.get(at)?[pool]).filter(|shape| !shape.is_empty())
            };
            loop {
                let load: Load =
                    (0..counts.len()).filter(|job| admitted[*job]).filter_map(|job| Some((job, of(job)?))).collect();
                if let Some(packed) = pack_pool(instance, hosts, &load, solver) {
                    for (host, load) in hosts.iter().zip(packed) {
                        for (job, shape) in load {
                            runs[job].slots[(slot - instance.jobs[job].arrival) as usize].push((*host, shape));
                        }
                    }
                    break;
                }
                let least = load.iter().map(|(job, _)| *job).min_by(|a, b| worth(*a).total_cmp(&worth(*b)));
                admitted[least.expect("nothing always packs")] = false;
            }
        }
    }
    let runs = runs.into_iter().zip(&admitted).map(|(run, admitted)| admitted.then_some(run));
    Schedule { runs: runs.collect() }
}

fn pack_pool(instance: &Instance, hosts: &[usize], load: &Load, solver: &dyn Solver) -> Option<Packed> {
    let capacity = &instance.hosts[hosts[0]].capacity;
    first_fit(instance, hosts.len(), capacity, load).or_else(|| exactly(instance, hosts.len(), capacity, load, solver))
}

/// Places slot after slot, the largest share first, on the first server with room.
fn first_fit(instance: &Instance, hosts: usize, capacity: &Amounts, load: &Load) -> Option<Packed> {
    let share = |job: usize, role: Role| instance.jobs[job].demand(role).dominant_share(capacity);
    let mut items: Vec<(usize, Role, u32)> =
        load.iter().flat_map(|(job, shape)| ROLES.map(|role| (*job, role, shape.count(role)))).collect();
    items.sort_by(|(a, role_a, _), (b, role_b, _)| share(*b, *role_b).total_cmp(&share(*a, *role_a)));
    let mut free = vec![capacity.clone(); hosts];
    let mut packed: Packed = vec![Vec::new(); hosts];
    for (job, role, count) in items {
        let demand = instance.jobs[job].demand(role);
        for _ in 0..count {
            let at = free.iter().position(|free| demand.fits(free))?;
            free[at] -= demand;
            note(&mut packed[at], job, role, 1);
        }
    }
    Some(packed)
}

fn note(load: &mut Load, job: usize, role: Role, count: u32) {
    let at = load.iter().position(|(other, _)| *other == job).unwrap_or_else(|| {
        load.push((job, Shape::default()));
        load.len() - 1
    });
    match role {
        Role::Worker => load[at].1.workers += count,
        Role::Server => load[at].1.servers += count,
    }
}

/// The same as a separate program, if first fit fails. `None` if this fails too.
fn exactly(instance: &Instance, hosts: usize, capacity: &Amounts, load: &Load, solver: &dyn Solver) -> Option<Packed> {
    let mut model = Model::default();
    let variables: Vec<Vec<[Variable; 2]>> = (0..hosts)
        .map(|_| {
            load.iter().map(|(_, shape)| ROLES.map(|role| model.integer(0, shape.count(role) as i32, 1.0))).collect()
        })
        .collect();
    let mut wanted = 0.0;
    for (at, (_, shape)) in load.iter().enumerate() {
        for role in ROLES {
            model.at_most(variables.iter().map(|host| (host[at][role as usize], 1.0)), shape.count(role).into());
            wanted += f64::from(shape.count(role));
        }
    }
    for host in &variables {
        for (resource, whole) in capacity.iter().filter(|(_, whole)| *whole > 0) {
            let part = |((job, _), variables): (&(usize, Shape), &[Variable; 2])| {
                let demand = |role: Role| instance.jobs[*job].demand(role)[resource] as f64 / whole as f64;
                ROLES.map(|role| (variables[role as usize], demand(role)))
            };
            model.at_most(load.iter().zip(host).flat_map(part), 1.0);
        }
    }
    let solution = solver.solve(&model, Limit { nodes: NODES, gap: 0.0 }, &[]).ok()?;
    let packed: Packed = {
        let on_host = |host: &Vec<[Variable; 2]>| {
            let mut here = Load::new();
            for ((job, _), variables) in load.iter().zip(host) {
                for role in ROLES {
                    let count = solution.count(variables[role as usize]);
                    if count > 0 {
                        note(&mut here, *job, role, count);
                    }
                }
            }
            here
        };
        variables.iter().map(on_host).collect()
    };
    // In integers, because the program tolerates rounding.
    let fits = |load: &Load| {
        let mut total = Amounts::default();
        load.iter().for_each(|(job, shape)| total += &instance.jobs[*job].total(*shape));
        total.fits(capacity)
    };
    (solution.value >= wanted && packed.iter().all(fits)).then_some(packed)
}
