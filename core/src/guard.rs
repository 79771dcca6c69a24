//! The guard: the check of each proposal, for all engines.
//!
//! [`Ticket::run`](crate::Ticket::run) checks it against the state that the engine used. A violation there is an error
//! of the engine. At commit, the plan is cut to what still fits (see `state/settle.rs`). That isn't an error.

use std::collections::BTreeMap;

use thiserror::Error;

use crate::{
    decision::{Allocation, Proposal, Verdict},
    engine::{Gang, Limits},
    ids::{JobId, ServerId},
    job::Job,
    resources::{Amounts, GPU},
    server::devices_match,
    shape::{Role, Shape},
    state::{Mandate, State, Sums, usage_by_server},
};

/// A rule that a proposal violates.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Violation {
    /// The job isn't active.
    #[error("{0} is not active")]
    UnknownJob(JobId),
    /// The job is named twice.
    #[error("{0} is named twice")]
    Repeated(JobId),
    /// The engine isn't allowed to change the job.
    #[error("{job} is {what} and must keep its verdict")]
    NotFree {
        /// The job.
        job: JobId,
        /// `pinned` or `closed`.
        what: &'static str,
    },
    /// The shape is outside the job's bounds.
    #[error("{job} got {shape}, outside its bounds")]
    Bounds {
        /// The job.
        job: JobId,
        /// The shape.
        shape: Shape,
    },
    /// Slot indices are repeated.
    #[error("{job} has two slots of one role and index")]
    SlotIndex {
        /// The job.
        job: JobId,
    },
    /// The server is absent or draining, doesn't host the role, or lacks the job's labels.
    #[error("{job} got a slot on {server}, which takes none of it")]
    Server {
        /// The job.
        job: JobId,
        /// The server.
        server: ServerId,
    },
    /// The devices don't match the demand, don't exist or are of another kind.
    #[error("{job} got devices on {server} that don't match its demand")]
    Devices {
        /// The job.
        job: JobId,
        /// The server.
        server: ServerId,
    },
    /// A server, queue or tenant doesn't have or allow as much.
    #[error("{owner} is given {missing} more of {resource} than it has")]
    Over {
        /// The server, queue or tenant.
        owner: String,
        /// The resource.
        resource: String,
        /// The missing amount, in sub-units.
        missing: i64,
    },
    /// The server's measured load would exceed the engine's limit.
    #[error(
        "{server} is measured to carry {part} thousandths of its {resource} with what is added; the limit is {limit}"
    )]
    Overload {
        /// The server.
        server: String,
        /// The resource.
        resource: String,
        /// The load in thousandths.
        part: i64,
        /// The limit in thousandths.
        limit: u16,
    },
    /// The pool's manager can't carry out the shape.
    #[error("{job} got a shape that its manager can't carry out: {rule}")]
    Shape {
        /// The job.
        job: JobId,
        /// The violated rule.
        rule: &'static str,
    },
    /// The engine promised whole gangs but gave work items, or they are on slots that don't exist.
    #[error("{job} got work items that its slots or the engine's gang rule don't allow")]
    Work {
        /// The job.
        job: JobId,
    },
}

const UNTOUCHED: u32 = u32::MAX;

/// Checks a proposal against the state from which it was made.
///
/// O(all servers) for a table of sums by server. For each job that changes, also its slots and, for each of its
/// servers, the log of their number.
pub(crate) fn check(state: &State, proposal: &Proposal, gang: Gang, limits: Limits) -> Result<Sums, Violation> {
    let mut named: Vec<JobId> = proposal.changes.iter().map(|(id, _)| *id).collect();
    named.sort_unstable();
    if let Some(pair) = named.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(Violation::Repeated(pair[0]));
    }
    // The position of each server's sum, in a dense table: a plan for the whole cluster touches most servers.
    let mut places = vec![UNTOUCHED; state.servers.len()];
    let mut sums = Sums::default();
    for (id, verdict) in &proposal.changes {
        let job = state.job(*id).ok_or(Violation::UnknownJob(*id))?;
        match state.mandate(job) {
            Mandate::Free => {}
            Mandate::Pinned(_) if state.may_become(job, verdict) => {}
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
                let at = &mut places[server.index()];
                if *at == UNTOUCHED {
                    *at = sums.servers.len() as u32;
                    sums.servers.push((server, state.server(server).planned.clone()));
                }
                sums.servers[*at as usize].1.add_usage(&usage, times);
                extra.add_times(&usage.amounts, times);
            }
        }
        *sums.tenants.entry(job.tenant).or_default() += &extra;
        *sums.queues.entry(job.queue).or_default() += &extra;
    }
    for (id, planned) in &sums.servers {
        let server = state.server(*id);
        if let Some((resource, missing)) = server.excess(planned) {
            return Err(Violation::Over {
                owner: server.name.to_string(),
                resource: state.resources.name(resource).into(),
                missing,
            });
        }
    }
    match limits {
        Limits::Reserved => check_reserved(state, &sums)?,
        Limits::Measured(limit) => check_measured(state, proposal, limit)?,
    }
    let over = |owner: String, (resource, left, _): (crate::ids::ResourceId, i64, i64), extra: &Amounts| {
        Violation::Over { owner, resource: state.resources.name(resource).into(), missing: extra[resource] - left }
    };
    for (id, extra) in &sums.tenants {
        let tenant = &state.tenants[id.0 as usize];
        if let Some(excess) = tenant.excess(extra) {
            return Err(over(format!("tenant {}", tenant.name), excess, extra));
        }
    }
    for (id, extra) in &sums.queues {
        let queue = &state.queues[id.0 as usize];
        if let Some(excess) = queue.excess(extra) {
            return Err(over(format!("queue {}", queue.name), excess, extra));
        }
    }
    Ok(sums)
}

/// Checks that no device becomes reserved twice. It can be already, if an engine that measures decided before.
/// O(devices of the changed servers).
fn check_reserved(state: &State, sums: &Sums) -> Result<(), Violation> {
    for (id, planned) in &sums.servers {
        let server = state.server(*id);
        let before = |at: usize| server.planned.devices.get(at).copied().unwrap_or(0);
        let over = planned.devices.iter().enumerate().find(|(at, milli)| **milli > before(*at).max(1000));
        if let Some((at, milli)) = over {
            let kind = server.devices.get(at).copied().unwrap_or(GPU);
            return Err(Violation::Over {
                owner: server.name.to_string(),
                resource: state.resources.name(kind).into(),
                missing: i64::from(*milli) - 1000,
            });
        }
    }
    Ok(())
}

/// Checks that measured servers with new slots stay within the limit. Their load is the measured one, without slots
/// that leave, plus the expected use of new slots. New slots on a server without remaining measured slots are always
/// allowed. GPUs aren't checked, because that would require the load of each device. The engine checks those. O(slots
/// of the changed jobs + slots measured on the servers that get some).
fn check_measured(state: &State, proposal: &Proposal, limit: u16) -> Result<(), Violation> {
    let most = f64::from(limit) / 1000.0;
    let changed: BTreeMap<JobId, &Verdict> = proposal.changes.iter().map(|(id, verdict)| (*id, verdict)).collect();
    let mut came: BTreeMap<ServerId, Amounts> = BTreeMap::new();
    for (id, verdict) in &proposal.changes {
        let job = state.job(*id).ok_or(Violation::UnknownJob(*id))?;
        let before = job.verdict.allocation();
        for slot in verdict.allocation().iter().flat_map(|after| after.slots()) {
            // A slot that only changes its device adds no load to its server.
            let before = before.and_then(|before| before.slot(slot.role, slot.index));
            let is_new = before.is_none_or(|before| before.server != slot.server);
            if is_new && state.server(slot.server).measured.is_some() {
                *came.entry(slot.server).or_default() += &state.expected_use(job, slot.role, slot.index, most);
            }
        }
    }
    for (id, came) in came {
        let server = state.server(id);
        let Some(measured) = &server.measured else { continue };
        // A measurement of a slot that leaves and returns is outdated.
        let stays = |job: &JobId, role: Role, index: u32| {
            let there = |verdict: &Verdict| {
                let slot = verdict.allocation().and_then(|allocation| allocation.slot(role, index));
                slot.is_some_and(|slot| slot.server == id)
            };
            let before = state.job(*job).map(|job| &job.verdict);
            before.is_some_and(|before| there(before) && there(changed.get(job).copied().unwrap_or(before)))
        };
        let mut carried = measured.total.amounts.clone();
        carried += &came;
        let mut shared = false;
        for ((job, role, index), usage) in &measured.slots {
            if stays(job, *role, *index) {
                shared = true;
            } else {
                carried -= &usage.amounts;
            }
        }
        let over =
            server.capacity.iter().filter(|(resource, have)| *have > 0 && came[*resource] > 0 && *resource != GPU);
        let mut over = over.map(|(resource, have)| (resource, carried[resource].saturating_mul(1000) / have));
        if let Some((resource, part)) = over.find(|(_, part)| *part > i64::from(limit)).filter(|_| shared) {
            let resource = state.resources.name(resource).into();
            return Err(Violation::Overload { server: server.name.to_string(), resource, part, limit });
        }
    }
    Ok(())
}

fn check_allocation(state: &State, job: &Job, allocation: &Allocation, gang: Gang) -> Result<(), Violation> {
    let shape = allocation.shape();
    if !job.bounds().hold(shape) {
        return Err(Violation::Bounds { job: job.id, shape });
    }
    let slots = allocation.slots();
    if slots.windows(2).any(|pair| (pair[0].role, pair[0].index) == (pair[1].role, pair[1].index)) {
        return Err(Violation::SlotIndex { job: job.id });
    }
    let kept = job.verdict.allocation();
    for run in slots.chunk_by(|a, b| (a.role, a.server) == (b.role, b.server)) {
        let (id, demand) = (run[0].server, job.demand(run[0].role));
        let server = state.servers.get(id.index()).ok_or(Violation::Server { job: job.id, server: id })?;
        // A server keeps its slots while it drains, or after its roles have changed.
        let stays = |slot| server.present && kept.is_some_and(|kept| kept.slots().contains(slot));
        let takes = server.admits(job) && server.hosts.takes(run[0].role);
        if !takes && !run.iter().all(stays) {
            return Err(Violation::Server { job: job.id, server: id });
        }
        if !run.iter().all(|slot| devices_match(&server.devices, demand, &slot.devices)) {
            return Err(Violation::Devices { job: job.id, server: id });
        }
    }
    check_shape(state, job, allocation)?;
    let work_is_wrong = allocation
        .work()
        .iter()
        .any(|work| work.slot.is_some_and(|(role, index)| allocation.slot(role, index).is_none()));
    if work_is_wrong || (gang == Gang::Whole && !allocation.work().is_empty()) {
        return Err(Violation::Work { job: job.id });
    }
    Ok(())
}

fn check_shape(state: &State, job: &Job, allocation: &Allocation) -> Result<(), Violation> {
    let rules = state.settings.shape.of(&job.spec);
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
    rules.broken_by(counts.into_values()).map_or(Ok(()), |rule| Err(Violation::Shape { job: job.id, rule }))
}
