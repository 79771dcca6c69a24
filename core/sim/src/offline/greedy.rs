//! A start schedule: jobs one after the other, as early and as wide as they fit, in a good order.

use super::{Instance, Run, Schedule, Task, program::ROLES};
use trainmaster_core::{
    resources::Amounts,
    shape::{Role, Shape},
};

/// The best schedule from the orders by worth, by worth per work, and by arrival. Each order is improved by exchanges
/// of two jobs while that helps. O(J³) list schedules per improvement.
pub(super) fn schedule(instance: &Instance) -> Schedule {
    let count = instance.jobs.len();
    let first = |task: &Task| task.worth.first().copied().unwrap_or(0.0);
    let keys: [&dyn Fn(&Task) -> f64; 3] =
        [&|task| -first(task), &|task| -first(task) / task.work.max(1) as f64, &|task| task.arrival.into()];
    let mut best = (0.0, Schedule { runs: vec![None; count] });
    for key in keys {
        let mut order: Vec<usize> = (0..count).collect();
        order.sort_by(|a, b| key(&instance.jobs[*a]).total_cmp(&key(&instance.jobs[*b])));
        let (mut earned, mut schedule) = in_order(instance, &order);
        while let Some((a, b, more, other)) = exchange(instance, &order, earned) {
            order.swap(a, b);
            (earned, schedule) = (more, other);
        }
        if earned > best.0 {
            best = (earned, schedule);
        }
    }
    best.1
}

/// The first exchange of two jobs in the order that increases the utility.
fn exchange(instance: &Instance, order: &[usize], earned: f64) -> Option<(usize, usize, f64, Schedule)> {
    let pairs = (0..order.len()).flat_map(|a| (a + 1..order.len()).map(move |b| (a, b)));
    pairs.into_iter().find_map(|(a, b)| {
        let mut order = order.to_vec();
        order.swap(a, b);
        let (more, schedule) = in_order(instance, &order);
        (more > earned + 1e-9).then_some((a, b, more, schedule))
    })
}

/// Schedules each job in turn, if its utility at its end is positive.
fn in_order(instance: &Instance, order: &[usize]) -> (f64, Schedule) {
    let mut free =
        vec![instance.hosts.iter().map(|host| host.capacity.clone()).collect::<Vec<_>>(); instance.slots as usize];
    let mut schedule = Schedule { runs: vec![None; instance.jobs.len()] };
    let mut earned = 0.0;
    for &job in order {
        let task = &instance.jobs[job];
        let Some((run, worth)) = earliest(instance, task, &free) else { continue };
        for (slot, places) in run.slots.iter().enumerate() {
            for (host, shape) in places {
                free[task.arrival as usize + slot][*host] -= &task.total(*shape);
            }
        }
        earned += worth;
        schedule.runs[job] = Some(run);
    }
    (earned, schedule)
}

/// The earliest run: as many workers as fit in each slot from the arrival on, until the work is done.
fn earliest(instance: &Instance, task: &Task, free: &[Vec<Amounts>]) -> Option<(Run, f64)> {
    let mut left = task.work;
    let mut run = Run::default();
    for slot in task.arrival..instance.slots {
        let worth = task.worth_at(slot);
        if worth <= 0.0 {
            return None;
        }
        let most = u64::from(task.workers.1).min(left.max(task.workers.0.into())) as u32;
        let places = widest(instance, task, &free[slot as usize], most);
        left = left.saturating_sub(places.iter().map(|(_, shape)| u64::from(shape.workers)).sum());
        run.slots.push(places);
        if left == 0 {
            return Some((run, worth));
        }
    }
    None
}

/// The maximum number of workers up to `most` that fit in a slot with their parameter servers, by bisection, because
/// any smaller number fits too.
fn widest(instance: &Instance, task: &Task, free: &[Amounts], most: u32) -> Vec<(usize, Shape)> {
    let (mut fits, mut found) = (task.workers.0.max(1) - 1, Vec::new());
    let mut too_many = most + 1;
    while too_many - fits > 1 {
        let workers = fits + (too_many - fits) / 2;
        match place(instance, task, free, workers) {
            Some(places) => (fits, found) = (workers, places),
            None => too_many = workers,
        }
    }
    found
}

fn place(instance: &Instance, task: &Task, free: &[Amounts], workers: u32) -> Option<Vec<(usize, Shape)>> {
    let (b, capacity) = task.bandwidth;
    let needed = if b > 0 { (u64::from(workers) * b as u64).div_ceil(capacity.max(1) as u64) } else { 0 };
    let servers = u32::try_from(needed).ok()?.max(task.servers.0);
    let shape = Shape { workers, servers: if task.servers.1 == 0 { 0 } else { servers } };
    if !task.allows(shape) {
        return None;
    }
    let mut free = free.to_vec();
    let mut places = vec![Shape::default(); free.len()];
    for role in ROLES {
        for _ in 0..shape.count(role) {
            let demand = task.demand(role);
            let at = (0..free.len()).find(|at| instance.hosts[*at].takes(role) && demand.fits(&free[*at]))?;
            free[at] -= demand;
            match role {
                Role::Worker => places[at].workers += 1,
                Role::Server => places[at].servers += 1,
            }
        }
    }
    Some(places.into_iter().enumerate().filter(|(_, shape)| !shape.is_empty()).collect())
}
