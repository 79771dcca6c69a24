//! Selection of the tasks that leave an overloaded server (MLFS, §3.3.3).
//!
//! A job restarts if one of its tasks moves. So, with `weighed`, a task leaves once the jobs on its server have lost as
//! much time there as that restart takes. As in the ski-rental problem, this needs no forecast of how long the overload
//! lasts. The paper moves tasks at once, also where nobody loses time.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use super::{
    host::{Hosts, Task},
    priority::{Jobs, Priorities},
};
use crate::{
    decision::Slot,
    engine::sharing,
    ids::{JobId, ServerId},
    job::Job,
    resources::{Amounts, GPU},
    shape::Role,
    time::{Span, Time},
};

/// Time without losses after which the earlier losses are forgotten.
const QUIET: Span = Span::seconds(3600);

/// A device of a server, or with `None` its other resources.
pub(super) type Place = (ServerId, Option<u16>);

/// Time that jobs have lost at a place because others used it, too, in seconds summed over jobs.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Lost {
    seconds: f64,
    /// The last time with a loss.
    grew: Time,
}

impl Lost {
    /// A job has restarted to end the losses.
    pub(super) fn pay(&mut self, job: &Job) {
        self.seconds = (self.seconds - job.learnt.restart_cost.as_seconds()).max(0.0);
    }
}

/// A task on an overloaded server.
struct Candidate<'a> {
    job: &'a Arc<Job>,
    slot: &'a Slot,
    priority: f64,
    uses: Amounts,
    /// The fraction of its traffic that stays on the server.
    near: f64,
    movable: bool,
}

impl Candidate<'_> {
    /// The devices of its slot.
    fn devices(&self) -> impl Iterator<Item = usize> + '_ {
        self.slot.devices.iter().map(|share| usize::from(share.device))
    }
}

/// A task that should leave if there is a host for it.
pub(super) struct Mover<'a> {
    pub(super) job: &'a Arc<Job>,
    pub(super) slot: &'a Slot,
    pub(super) priority: f64,
    pub(super) uses: Amounts,
    /// The place whose losses pay for the restart. None: an earlier task of the job has one.
    pub(super) pays: Option<Place>,
}

/// Selects tasks until no server is overloaded, or no other task can or should move. Their load is subtracted. Their
/// room is kept until they have another place. `passed` is the time since the last decision. O(planned slots), and for
/// each overloaded server O(its tasks² · (resources + devices)).
pub(super) fn movers<'a>(
    hosts: &mut Hosts<'a>,
    jobs: &Jobs,
    priorities: &Priorities<'_>,
    passed: Span,
) -> Vec<Mover<'a>> {
    let state = hosts.state;
    hosts.lost.retain(|_, lost| state.now - lost.grew <= QUIET);
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
        let Some(allocation) = sharing::settled(job) else { continue };
        let (known, movable) = (jobs.get(job), sharing::movable(state, job));
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
                movable,
            });
        }
    }
    let mut leaving: BTreeSet<JobId> = BTreeSet::new();
    for (server, mut here) in on {
        let mut slowed = slowdowns(hosts, server, &here);
        let mut left = add_losses(hosts, server, &here, &slowed, passed);
        while hosts.load.is_overloaded(server) {
            // A task may leave if there was enough loss at its slowest place.
            let pays = |at: usize| {
                let restart = here[at].job.learnt.restart_cost.as_seconds();
                let (place, factor) = slowed[at];
                factor > 1.0 && left.get(&place).is_some_and(|left| *left >= restart)
            };
            let may = |at: &usize| {
                here[*at].movable && (!hosts.engine.weighed || leaving.contains(&here[*at].job.id) || pays(*at))
            };
            let may: Vec<usize> = (0..here.len()).filter(may).collect();
            let Some(at) = next(hosts, server, &here, &may) else { break };
            let (place, _) = slowed[at];
            let Candidate { job, slot, priority, uses, .. } = here.swap_remove(at);
            let first = leaving.insert(job.id);
            if first && let Some(left) = left.get_mut(&place) {
                *left -= job.learnt.restart_cost.as_seconds();
            }
            hosts.load.put(slot, &uses, -1.0);
            *hosts.relieved.entry(server).or_default() += 1;
            movers.push(Mover { job, slot, priority, uses, pays: first.then_some(place) });
            slowed = slowdowns(hosts, server, &here);
        }
    }
    movers
}

/// Adds what the jobs of these tasks have lost since the last decision, each at its slowest place. More than the
/// restarts of all jobs there isn't added up. Returns the losses at each place so far.
fn add_losses(
    hosts: &mut Hosts<'_>,
    server: ServerId,
    here: &[Candidate<'_>],
    slowed: &[(Place, f64)],
    passed: Span,
) -> BTreeMap<Place, f64> {
    let mut jobs: BTreeMap<JobId, (f64, Place, f64)> = BTreeMap::new();
    for (task, (place, factor)) in here.iter().zip(slowed) {
        let restart = task.job.learnt.restart_cost.as_seconds();
        let of_job = jobs.entry(task.job.id).or_insert((*factor, *place, restart));
        if *factor > of_job.0 {
            (of_job.0, of_job.1) = (*factor, *place);
        }
    }
    let mut grown: BTreeMap<Place, (f64, f64)> = BTreeMap::new();
    for (factor, place, restart) in jobs.into_values().filter(|(factor, ..)| *factor > 1.0) {
        let (part, restarts) = grown.entry(place).or_default();
        *part += 1.0 - 1.0 / factor;
        *restarts += restart;
    }
    for (place, (part, restarts)) in grown {
        let lost = hosts.lost.entry(place).or_insert(Lost { seconds: 0.0, grew: hosts.state.now });
        lost.seconds = (lost.seconds + part * passed.as_seconds()).min(restarts);
        lost.grew = hosts.state.now;
    }
    hosts.lost.range((server, None)..=(server, Some(u16::MAX))).map(|(place, lost)| (*place, lost.seconds)).collect()
}

/// The place that slows each task most, and the factor by which its steps take longer: by which the demand for a
/// device, or for another resource of the server, exceeds the capacity. 1: it loses nothing.
fn slowdowns(hosts: &Hosts<'_>, server: ServerId, here: &[Candidate<'_>]) -> Vec<(Place, f64)> {
    let (load, state) = (&hosts.load, hosts.state);
    let known = state.server(server);
    let full = |device: &usize| known.is_full_device(*device);
    let mut devices: Vec<f64> = load.devices(server).iter().map(|device| device.used).collect();
    let mut parts: Vec<f64> = load.parts(server).collect();
    let full_parts: Vec<bool> = load.resources().iter().map(|resource| known.is_full(*resource)).collect();
    // A full resource doesn't show how much more its tasks would use. The usual use of their models does.
    for task in here {
        let Some(usual) = state.usual_use(task.job, task.slot.role) else { continue };
        let more = (usual[GPU] - task.uses[GPU]).max(0) as f64 / 1000.0 / task.slot.devices.len().max(1) as f64;
        for device in task.devices().filter(full) {
            devices.get_mut(device).into_iter().for_each(|used| *used += more);
        }
        let more = load.parts_of(server, usual).zip(load.parts_of(server, &task.uses));
        for ((part, full), (usual, uses)) in parts.iter_mut().zip(&full_parts).zip(more) {
            *part += if *full { (usual - uses).max(0.0) } else { 0.0 };
        }
    }
    let listed = !devices.is_empty();
    let shared = load.resources().iter().zip(&parts).filter(|(resource, _)| !listed || **resource != GPU);
    let of_server = ((server, None), shared.fold(1.0, |most, (_, part)| f64::max(most, *part)));
    let of_task = |task: &Candidate<'_>| {
        let own = task.devices().filter_map(|device| Some(((server, Some(device as u16)), *devices.get(device)?)));
        own.fold(of_server, |slowest, place| if place.1 > slowest.1 { place } else { slowest })
    };
    here.iter().map(of_task).collect()
}

/// The task nearest to the ideal one to leave: the largest use of each overloaded resource, the smallest use of each
/// other one, and no traffic with staying tasks. Only tasks at these indices `may` leave.
fn next(hosts: &Hosts<'_>, server: ServerId, here: &[Candidate<'_>], may: &[usize]) -> Option<usize> {
    let load = &hosts.load;
    let parts: Vec<Vec<f64>> = here.iter().map(|task| load.parts_of(server, &task.uses).collect()).collect();
    let ideal: Vec<f64> = load
        .overloads(server)
        .enumerate()
        .map(|(at, over)| {
            let of = may.iter().map(|task| parts[*task][at]);
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
        let mut tasks: Vec<usize> = may.iter().copied().filter(uses).collect();
        tasks.sort_by(lowest);
        let few = ((tasks.len() as f64 * hosts.engine.movable) as usize).max(1);
        qualified.extend(tasks.into_iter().take(few));
    }
    if qualified.is_empty() {
        qualified = may.to_vec();
    }
    qualified.into_iter().min_by(|a, b| distance(*a).total_cmp(&distance(*b)).then_with(|| lowest(a, b)))
}
