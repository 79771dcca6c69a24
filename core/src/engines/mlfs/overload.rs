//! Selection of the tasks that leave an overloaded server (MLFS, §3.3.3).

use std::{collections::BTreeMap, sync::Arc};

use super::{
    host::{Hosts, Task},
    priority::{Jobs, Priorities},
};
use crate::{decision::Slot, engine::sharing, ids::ServerId, job::Job, resources::Amounts, shape::Role};

/// A task on an overloaded server.
struct Candidate<'a> {
    job: &'a Arc<Job>,
    slot: &'a Slot,
    priority: f64,
    uses: Amounts,
    /// The fraction of its traffic that stays on the server.
    near: f64,
}

/// A task that should leave if there is a host for it.
pub(super) struct Mover<'a> {
    pub(super) job: &'a Arc<Job>,
    pub(super) slot: &'a Slot,
    pub(super) priority: f64,
    pub(super) uses: Amounts,
}

/// Selects tasks until no server is overloaded, or no other task can move. Their load is subtracted. Their room is kept
/// until they have another place. O(planned slots), and for each overloaded server O(its tasks² · resources).
pub(super) fn movers<'a>(hosts: &mut Hosts<'a>, jobs: &Jobs, priorities: &Priorities<'_>) -> Vec<Mover<'a>> {
    let state = hosts.state;
    let overloaded: Vec<ServerId> = state
        .present_servers()
        .filter(|server| server.measured.is_some() && hosts.load.is_overloaded(server.id))
        .map(|server| server.id)
        .collect();
    let mut movers = Vec::new();
    if overloaded.is_empty() {
        return movers;
    }
    let mut on: BTreeMap<ServerId, Vec<Candidate<'a>>> = overloaded.into_iter().map(|id| (id, Vec::new())).collect();
    for job in state.jobs.values() {
        let Some(allocation) = sharing::movable(state, job) else { continue };
        let known = jobs.get(job);
        for slot in allocation.slots() {
            let Some(here) = on.get_mut(&slot.server) else { continue };
            let task = Task::from(slot);
            let near = hosts.nearness(job, &known.shares, task, allocation.slots());
            here.push(Candidate {
                job,
                slot,
                // A parameter server comes before all tasks that need it.
                priority: task
                    .part(job)
                    .map_or_else(|| priorities.first(known).1, |part| priorities.of_part(known, part)),
                uses: hosts.expected(job, task),
                near: near.iter().find(|(server, _)| *server == slot.server).map_or(0.0, |(_, part)| *part),
            });
        }
    }
    for (server, mut here) in on {
        while hosts.load.is_overloaded(server) {
            let Some(at) = next(hosts, server, &here) else { break };
            let Candidate { job, slot, priority, uses, .. } = here.swap_remove(at);
            hosts.load.put(slot, &uses, -1.0);
            *hosts.relieved.entry(server).or_default() += 1;
            movers.push(Mover { job, slot, priority, uses });
        }
    }
    movers
}

/// The task nearest to the ideal one to leave: the largest use of each overloaded resource, the smallest use of each
/// other one, and no traffic with staying tasks.
fn next(hosts: &Hosts<'_>, server: ServerId, here: &[Candidate<'_>]) -> Option<usize> {
    let load = &hosts.load;
    let parts: Vec<Vec<f64>> = here.iter().map(|task| load.parts_of(server, &task.uses).collect()).collect();
    let ideal: Vec<f64> = load
        .overloads(server)
        .enumerate()
        .map(|(at, over)| {
            let of = parts.iter().map(|parts| parts[at]);
            if over { of.fold(0.0, f64::max) } else { of.fold(f64::INFINITY, f64::min) }
        })
        .collect();
    let distance = |at: usize| {
        let resources = parts[at].iter().zip(&ideal).map(|(part, ideal)| (part - ideal) * (part - ideal));
        let near = if hosts.engine.bandwidth { here[at].near } else { 0.0 };
        resources.sum::<f64>() + near * near
    };
    let lowest = |a: &usize, b: &usize| {
        let (one, other) = (&here[*a], &here[*b]);
        let name = |task: &Candidate<'_>| (task.job.id, task.slot.role == Role::Worker, task.slot.index);
        one.priority.total_cmp(&other.priority).then(name(one).cmp(&name(other)))
    };
    let mut qualified: Vec<usize> = Vec::new();
    for device in (0..load.devices(server).len()).filter(|device| load.is_device_overloaded(server, *device)) {
        let uses = |at: &usize| here[*at].slot.devices.iter().any(|share| usize::from(share.device) == device);
        let mut tasks: Vec<usize> = (0..here.len()).filter(uses).collect();
        tasks.sort_by(lowest);
        let few = ((tasks.len() as f64 * hosts.engine.movable) as usize).max(1);
        qualified.extend(tasks.into_iter().take(few));
    }
    if qualified.is_empty() {
        qualified = (0..here.len()).collect();
    }
    qualified.into_iter().min_by(|a, b| distance(*a).total_cmp(&distance(*b)).then_with(|| lowest(a, b)))
}
