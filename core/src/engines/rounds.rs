//! What the simple engines share: a shape for each job in some order, and slots placed one by one.

use std::{cmp::Reverse, collections::BinaryHeap, sync::Arc};

use super::{
    Budget, DefaultValue as Value, EngineError, ParameterInfo,
    board::{Board, Largest},
    ledger::Ledger,
    optimus::{run, wait},
    placing::Placing,
};
use crate::{
    decision::{Proposal, Shape},
    ids::ServerId,
    job::{Job, Training},
    reason::Reason,
    state::{Mandate, State},
    time::Span,
};

/// The one parameter of engines that decide at intervals and have nothing else to set.
pub(super) const INTERVAL: &[ParameterInfo] = &[ParameterInfo {
    name: "interval",
    default: Value::Text("600s"),
    meaning: "time between rounds; the same as Optimus's where both are compared",
}];

/// The jobs that are the engine's to plan, in the order of arrival, and what all others leave. O(jobs).
pub(super) fn free_jobs(state: &State) -> (impl Iterator<Item = &Arc<Job>>, Ledger) {
    let (free, others): (Vec<_>, Vec<_>) = state.jobs.values().partition(|job| state.mandate(job) == Mandate::Free);
    let mut ledger = Ledger::of(state);
    for job in others {
        ledger.take(job, &job.total(job.shape()), 1);
    }
    (free.into_iter(), ledger)
}

/// Time that a job needs at a shape: of its dataset what is left of the chunks, else as its fits predict; `None` where
/// neither says anything.
pub(super) fn remaining_time(job: &Job, shape: Shape) -> Option<Span> {
    match Training::of(job) {
        Ok(training) => {
            let left = training.work() - training.done(&job.progress);
            // In slots of a millisecond: worker-milliseconds.
            let work = training.workers_for(left, Span(1));
            Some(Span(i64::try_from(work.div_ceil(shape.workers.max(1).into())).unwrap_or(i64::MAX / 4)))
        }
        Err(_) => job.remaining_time(shape),
    }
}

/// One more worker, and a parameter server with it where the job has any: the 1:1 ratio of Optimus's baselines (§6.1).
/// `None` at the job's bounds.
pub(super) fn one_more(job: &Job, shape: Shape) -> Option<Shape> {
    let most = job.spec.bounds().most();
    let more = Shape { workers: (shape.workers + 1).min(most.workers), servers: (shape.servers + 1).min(most.servers) };
    (more.workers > shape.workers).then_some(more)
}

/// Max-min fairness in dominant shares: whoever has the smallest gets its smallest shape, then worker after worker with
/// its parameter server, for as long as the ledger has room. Ties go to the earlier in `shares`. A job that doesn't even
/// get its smallest shape keeps an empty one, and `refused` hears why.
pub(super) fn fair_shapes(
    state: &State,
    shares: &mut [(&Arc<Job>, Shape)],
    ledger: &mut Ledger,
    budget: &mut Budget,
    mut refused: impl FnMut(&Job, Reason),
) -> Result<(), EngineError> {
    // Bits of floats from 0 up order as the floats do.
    let mut heap: BinaryHeap<Reverse<(u64, u32)>> = (0..shares.len() as u32).map(|at| Reverse((0, at))).collect();
    while let Some(Reverse((_, at))) = heap.pop() {
        budget.spend(1)?;
        let (job, shape) = shares[at as usize];
        let next = if shape.is_empty() { Some(job.spec.bounds().least()) } else { one_more(job, shape) };
        let Some(next) = next else { continue };
        let extra = job.total(Shape { workers: next.workers - shape.workers, servers: next.servers - shape.servers });
        if ledger.has(job, &extra) {
            ledger.take(job, &extra, 1);
            shares[at as usize].1 = next;
            heap.push(Reverse((job.total(next).dominant_share(&state.usable).to_bits(), at)));
        } else if shape.is_empty() {
            refused(job, ledger.reason(state, job, &extra));
        }
    }
    Ok(())
}

/// Whether a job has slots on a server that drains: it should move, if there is room for it elsewhere. O(slots), and only
/// where a server drains at all.
pub(super) fn leaving(state: &State) -> impl Fn(&Job) -> bool {
    let draining: Vec<ServerId> =
        state.servers.iter().filter(|server| server.present && server.draining).map(|server| server.id).collect();
    move |job| {
        let slots = job.verdict.allocation().map(|allocation| allocation.slots()).unwrap_or_default();
        !draining.is_empty() && slots.iter().any(|slot| draining.binary_search(&slot.server).is_ok())
    }
}

/// Places each job's shape, in the order given; one that doesn't fit gets the next smaller 1:1 shape, down to its least.
/// Jobs whose shape stays the same stay where they are, unless a server of theirs drains and there is room elsewhere.
/// `last` is for round-robin. O(slots · blocks of the index).
pub(super) fn place_shapes(
    state: &State,
    shapes: Vec<(&Arc<Job>, Shape)>,
    board: &mut Board,
    proposal: &mut Proposal,
    budget: &mut Budget,
    (placing, last): (Placing, &mut u32),
) -> Result<(), EngineError> {
    let old = |job: &Job| job.verdict.allocation().map(|allocation| allocation.shape());
    let leaving = leaving(state);
    let moving: Vec<_> = shapes.into_iter().filter(|(job, shape)| old(job) != Some(*shape) || leaving(job)).collect();
    for (job, _) in &moving {
        board.release(state, job);
    }
    let mut homeless: Vec<(&Job, Shape)> = Vec::new();
    for (job, wanted) in moving {
        let least = job.spec.bounds().least();
        let mut shape = wanted;
        loop {
            if let Some(allocation) = placing.place(state, board, job, shape, last, budget)? {
                run(proposal, job, allocation);
                break;
            }
            if shape == wanted
                && let Some(kept) = job.verdict.allocation().filter(|kept| kept.shape() == wanted)
                && board.restore(state, job, kept)
            {
                break;
            }
            if shape == least {
                homeless.push((job, wanted));
                break;
            }
            shape = Shape {
                workers: (shape.workers - 1).max(least.workers),
                servers: shape.servers.saturating_sub(1).max(least.servers),
            };
        }
    }
    let mut largest = Largest::default();
    for (job, shape) in homeless {
        let reason: Reason = largest.reason(state, &board.room, job, shape);
        wait(proposal, job, reason);
    }
    Ok(())
}
