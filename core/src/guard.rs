//! The guard: what an engine proposes is checked, whoever wrote the engine.
//!
//! Once in [`Ticket::run`](crate::Ticket::run), against the state that the engine saw: a violation is the engine's
//! fault. A second time at commit, where the plan is cut to what still fits (see `scheduler/settle.rs`): nobody's fault.

use std::collections::BTreeMap;

use thiserror::Error;

use crate::{
    decision::{Allocation, Proposal, Role, Shape, Verdict},
    engines::Gang,
    ids::{JobId, ServerId},
    job::Job,
    resources::Amounts,
    server::{Usage, devices_match},
    state::{Mandate, State, usage_by_server},
};

/// A rule that a proposal breaks.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Violation {
    /// A job that isn't active.
    #[error("{0} is not active")]
    UnknownJob(JobId),
    /// A job named twice.
    #[error("{0} is named twice")]
    Repeated(JobId),
    /// A job that isn't the engine's to change.
    #[error("{job} is {what} and must keep its verdict")]
    NotFree {
        /// Which.
        job: JobId,
        /// Pinned or closed.
        what: &'static str,
    },
    /// A shape outside the job's bounds.
    #[error("{job} got {shape}, outside its bounds")]
    Bounds {
        /// Which.
        job: JobId,
        /// What it got.
        shape: Shape,
    },
    /// Slot indices that repeat.
    #[error("{job} has two slots of one role and index")]
    SlotIndex {
        /// Which.
        job: JobId,
    },
    /// A server that isn't there, is draining, doesn't host the role, or lacks the job's labels.
    #[error("{job} got a slot on {server}, which takes none of it")]
    Server {
        /// Which.
        job: JobId,
        /// Where.
        server: ServerId,
    },
    /// Devices that don't add up to the demand, don't exist or are of another kind.
    #[error("{job} got devices on {server} that don't match its demand")]
    Devices {
        /// Which.
        job: JobId,
        /// Where.
        server: ServerId,
    },
    /// A server, queue or tenant given more than it has.
    #[error("{owner} is given {missing} more of {resource} than it has")]
    Over {
        /// Whose.
        owner: String,
        /// What.
        resource: String,
        /// By how much, in sub-units.
        missing: i64,
    },
    /// A shape that the pool's manager can't carry out.
    #[error("{job} got a shape that its manager can't carry out: {rule}")]
    Shape {
        /// Which.
        job: JobId,
        /// Which rule.
        rule: &'static str,
    },
    /// Work items where the engine promised whole gangs, or on slots that don't exist.
    #[error("{job} got work items that its slots or the engine's gang rule don't allow")]
    Work {
        /// Which.
        job: JobId,
    },
}

const UNTOUCHED: u32 = u32::MAX;

/// Checks a proposal against the state it was made from. O(slots that change · log servers of the job).
pub(crate) fn check(state: &State, proposal: &Proposal, gang: Gang) -> Result<(), Violation> {
    // Where each server's sum is, in a dense table: a plan of a whole cluster touches most of them.
    let mut slots = vec![UNTOUCHED; state.servers.len()];
    let mut sums: Vec<(ServerId, Usage)> = Vec::new();
    let mut tenants = BTreeMap::new();
    let mut queues = BTreeMap::new();
    let mut named = std::collections::BTreeSet::new();
    for (id, verdict) in &proposal.changes {
        let job = state.job(*id).ok_or(Violation::UnknownJob(*id))?;
        if !named.insert(*id) {
            return Err(Violation::Repeated(*id));
        }
        match state.mandate(job) {
            Mandate::Free => {}
            Mandate::Pinned(_) => return Err(Violation::NotFree { job: *id, what: "pinned" }),
            Mandate::Closed => return Err(Violation::NotFree { job: *id, what: "closed" }),
        }
        if let Verdict::Run(allocation) = verdict {
            check_allocation(state, job, allocation, gang)?;
        }
        let mut extra = Amounts::default();
        for (allocation, times) in [(job.verdict.allocation(), -1), (verdict.allocation(), 1)] {
            let Some(allocation) = allocation else { continue };
            for (server, usage) in usage_by_server(state, job, allocation) {
                let at = &mut slots[server.index()];
                if *at == UNTOUCHED {
                    *at = sums.len() as u32;
                    sums.push((server, state.server(server).planned.clone()));
                }
                sums[*at as usize].1.add_usage(&usage, times);
                extra.add_times(&usage.amounts, times);
            }
        }
        *tenants.entry(job.tenant).or_insert_with(Amounts::default) += &extra;
        *queues.entry(job.queue).or_insert_with(Amounts::default) += &extra;
    }
    for (id, planned) in &sums {
        let server = state.server(*id);
        if let Some((resource, missing)) = server.excess(planned) {
            return Err(Violation::Over {
                owner: server.name.to_string(),
                resource: state.resources.name(resource).into(),
                missing,
            });
        }
    }
    let over = |owner: String, (resource, left, _): (crate::ids::ResourceId, i64, i64), extra: &Amounts| {
        Violation::Over { owner, resource: state.resources.name(resource).into(), missing: extra[resource] - left }
    };
    for (id, extra) in &tenants {
        let tenant = &state.tenants[id.0 as usize];
        if let Some(excess) = tenant.excess(extra) {
            return Err(over(format!("tenant {}", tenant.name), excess, extra));
        }
    }
    for (id, extra) in &queues {
        let queue = &state.queues[id.0 as usize];
        if let Some(excess) = queue.excess(extra) {
            return Err(over(format!("queue {}", queue.name), excess, extra));
        }
    }
    Ok(())
}

fn check_allocation(state: &State, job: &Job, allocation: &Allocation, gang: Gang) -> Result<(), Violation> {
    let shape = allocation.shape();
    if !job.spec.bounds().hold(shape) {
        return Err(Violation::Bounds { job: job.id, shape });
    }
    let slots = allocation.slots();
    if slots.windows(2).any(|pair| (pair[0].role, pair[0].index) == (pair[1].role, pair[1].index)) {
        return Err(Violation::SlotIndex { job: job.id });
    }
    let kept = job.verdict.allocation();
    for slot in slots {
        let server =
            state.servers.get(slot.server.index()).ok_or(Violation::Server { job: job.id, server: slot.server })?;
        if !server.accepts(&job.spec.labels) || !server.hosts.takes(slot.role) {
            // A server keeps what it has while it drains, or hosts other roles from now on.
            let stays = server.present && kept.is_some_and(|kept| kept.slots().contains(slot));
            if !stays {
                return Err(Violation::Server { job: job.id, server: slot.server });
            }
        }
        if !devices_match(&server.devices, job.demand(slot.role), &slot.devices) {
            return Err(Violation::Devices { job: job.id, server: slot.server });
        }
    }
    check_shape(state, job, allocation)?;
    let no_such_slot = |role: Role, index: u32| !slots.iter().any(|slot| (slot.role, slot.index) == (role, index));
    let work_is_wrong =
        allocation.work().iter().any(|work| work.slot.is_some_and(|(role, index)| no_such_slot(role, index)));
    if work_is_wrong || (gang == Gang::Whole && !allocation.work().is_empty()) {
        return Err(Violation::Work { job: job.id });
    }
    Ok(())
}

fn check_shape(state: &State, job: &Job, allocation: &Allocation) -> Result<(), Violation> {
    let rules = &state.settings.shape;
    if rules.colocate && !rules.equal_per_server {
        return Ok(());
    }
    let mut counts: BTreeMap<ServerId, Shape> = BTreeMap::new();
    for slot in allocation.slots() {
        let count = counts.entry(slot.server).or_default();
        match slot.role {
            Role::Worker => count.workers += 1,
            Role::Server => count.servers += 1,
        }
    }
    if !rules.colocate && counts.values().any(|count| count.workers > 0 && count.servers > 0) {
        return Err(Violation::Shape { job: job.id, rule: "workers and parameter servers must not share a server" });
    }
    let first = counts.values().next().copied();
    if rules.equal_per_server && counts.values().any(|count| Some(*count) != first) {
        return Err(Violation::Shape { job: job.id, rule: "every server must have the same numbers" });
    }
    Ok(())
}
