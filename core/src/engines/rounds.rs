//! What the simple engines share: a shape for each job in some order, and slots placed one by one.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    sync::Arc,
};

use super::{
    Budget, DefaultValue as Value, EngineError, ParameterInfo,
    board::{Board, Largest},
    ledger::Ledger,
    optimus::{run, wait},
    placing::Placing,
};
use crate::{
    decision::{Allocation, Proposal, Shape, Verdict},
    ids::{JobId, ServerId},
    job::{Job, Training},
    reason::{Reason, ReasonKind},
    resources::GPU,
    state::{Mandate, State},
    time::{Span, Time},
};

/// The longest time between rounds of engines that decide at arrivals and departures, too.
pub(super) const MINUTE: ParameterInfo =
    ParameterInfo { name: "interval", default: Value::Text("60s"), meaning: "longest time between rounds" };

/// The one parameter of engines that decide at intervals and have nothing else to set.
pub(super) const INTERVAL: &[ParameterInfo] = &[ParameterInfo {
    name: "interval",
    default: Value::Text("600s"),
    meaning: "time between rounds; the same as Optimus's where both are compared",
}];

/// The jobs that are the engine's to plan, in the order of arrival, and what all others leave. O(jobs).
pub(super) fn free_jobs(state: &State) -> (impl Iterator<Item = &Arc<Job>>, Ledger) {
    jobs_and_rest(state, |job| state.mandate(job) == Mandate::Free)
}

/// For each start after the second a job is given a minute more to report from it, so many at most.
const PATIENCE: u32 = 10;

/// The same for engines that share time in rounds, without jobs on their way: who is told to start, move or leave, and isn't
/// seen to have done so, isn't told anything else; nor is who started often and hasn't reported yet. Each round would undo the
/// last where managers or starts take longer than a round, and nobody would ever train.
pub(super) fn settled_jobs<'a>(
    state: &'a State,
    proposal: &mut Proposal,
) -> (impl Iterator<Item = &'a Arc<Job>>, Ledger) {
    let starts = |job: &Job| {
        let minutes = job.last_incarnation.0.saturating_sub(2).min(PATIENCE);
        job.reported.is_empty() && state.now - job.changed < Span::seconds(60 * i64::from(minutes))
    };
    let in_transit = |job: &Job| job.issued.is_some() && (job.revoked || job.observed != job.issued || starts(job));
    let leaves = |job: &&Arc<Job>| job.verdict.allocation().is_none() && in_transit(job);
    for job in state.jobs.values().filter(leaves).filter(|job| state.mandate(job) == Mandate::Free) {
        let slot = job.observed.iter().chain(&job.issued).find_map(|left| left.slots().first());
        let needs =
            slot.and_then(|slot| Some((slot.server, job.demand(slot.role).amounts.iter().find(|(_, n)| *n > 0)?)));
        // It has nothing new to be told while it waits for its own slots to go.
        if let Some((server, (resource, missing))) = needs
            && job.verdict.reason().map(Reason::kind) == Some(ReasonKind::NotConsidered)
        {
            wait(proposal, job, Reason::Releasing { server, resource, missing });
        }
    }
    jobs_and_rest(state, move |job| state.mandate(job) == Mandate::Free && !in_transit(job))
}

fn jobs_and_rest(state: &State, mine: impl Fn(&Job) -> bool) -> (std::vec::IntoIter<&Arc<Job>>, Ledger) {
    let (free, others): (Vec<_>, Vec<_>) = state.jobs.values().partition(|job| mine(job));
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

/// Epochs that a job has trained, the one in progress in part.
pub(super) fn epochs_done(job: &Job) -> f64 {
    let part = job.progress.step as f64 / job.steps_per_epoch() as f64 - f64::from(job.progress.epoch);
    f64::from(job.progress.epoch) + part.clamp(0.0, 1.0)
}

/// Epochs that it trains in some time at a shape; `None` where no speed is known.
pub(super) fn epochs_in(job: &Job, shape: Shape, span: Span) -> Option<f64> {
    let speed = job.fits.speed.as_ref()?.speed(shape.servers, shape.workers);
    Some((speed * span.as_seconds() / job.steps_per_epoch() as f64).max(0.0))
}

/// One more worker, and a parameter server with it where the job has any: the 1:1 ratio of Optimus's baselines (§6.1).
/// `None` at the job's bounds.
pub(super) fn one_more(job: &Job, shape: Shape) -> Option<Shape> {
    let most = job.spec.bounds().most();
    let more = Shape { workers: (shape.workers + 1).min(most.workers), servers: (shape.servers + 1).min(most.servers) };
    (more.workers > shape.workers).then_some(more)
}

/// Thousandths of GPUs that a shape of a job takes, or as many whole ones as it has workers where they take none.
pub(super) fn gpus(job: &Job, shape: Shape) -> i64 {
    match job.total(shape)[GPU] {
        0 => 1000 * i64::from(shape.workers),
        gpus => gpus,
    }
}

/// How long a job held its slots since some time.
pub(super) fn held(job: &Job, since: Time, now: Time) -> Span {
    if job.issued.is_some() { (now - since.max(job.changed)).max(Span::ZERO) } else { Span::ZERO }
}

/// Every job that has slots once a proposal is carried out, with those.
pub(super) fn planned<'a>(
    state: &'a State,
    proposal: &'a Proposal,
) -> impl Iterator<Item = (&'a Arc<Job>, &'a Arc<Allocation>)> {
    let changed: BTreeMap<JobId, &Verdict> = proposal.changes.iter().map(|(id, verdict)| (*id, verdict)).collect();
    state.jobs.values().filter_map(move |job| {
        let verdict = changed.get(&job.id).copied().unwrap_or(&job.verdict);
        Some((job, verdict.allocation()?))
    })
}

/// The step that a job's shape can grow by: its smallest, then worker after worker with its parameter server.
fn next_step(job: &Job, shape: Shape) -> Option<Shape> {
    if shape.is_empty() { Some(job.spec.bounds().least()) } else { one_more(job, shape) }
}

/// What a job needs for a step.
pub(super) fn extra(from: Shape, to: Shape) -> Shape {
    Shape { workers: to.workers - from.workers, servers: to.servers - from.servers }
}

/// Hands out shapes step by step, for as long as the ledger has room: the step with the least key is next, of those from
/// the smallest shape on to one more worker with its parameter server. `key(job, from, to)` is none of a step that isn't wanted.
/// Ties go to the earlier in `shares`. A job that doesn't even get its smallest shape keeps an empty one, and `refused` hears why.
/// O(log jobs) a step.
pub(super) fn hand_out<K: Ord>(
    state: &State,
    shares: &mut [(&Arc<Job>, Shape)],
    ledger: &mut Ledger,
    budget: &mut Budget,
    key: impl Fn(&Job, Shape, Shape) -> Option<K>,
    mut refused: impl FnMut(&Job, Reason),
) -> Result<(), EngineError> {
    let entry = |at: u32, (job, shape): (&Arc<Job>, Shape)| {
        let next = next_step(job, shape)?;
        Some(Reverse((key(job, shape, next)?, at)))
    };
    let first = shares.iter().enumerate().filter_map(|(at, share)| entry(at as u32, *share));
    let mut heap: BinaryHeap<Reverse<(K, u32)>> = first.collect();
    while let Some(Reverse((_, at))) = heap.pop() {
        budget.spend(1)?;
        let (job, shape) = shares[at as usize];
        let Some(next) = next_step(job, shape) else { continue };
        let extra = job.total(extra(shape, next));
        if ledger.has(job, &extra) {
            ledger.take(job, &extra, 1);
            shares[at as usize].1 = next;
            heap.extend(entry(at, (job, next)));
        } else if shape.is_empty() {
            refused(job, ledger.reason(state, job, &extra));
        }
    }
    Ok(())
}

/// Max-min fairness in dominant shares: whoever has the smallest is [handed](hand_out) the next step.
pub(super) fn fair_shapes(
    state: &State,
    shares: &mut [(&Arc<Job>, Shape)],
    ledger: &mut Ledger,
    budget: &mut Budget,
    refused: impl FnMut(&Job, Reason),
) -> Result<(), EngineError> {
    // Bits of floats from 0 up order as the floats do.
    let share = |job: &Job, shape, _| Some(job.total(shape).dominant_share(&state.usable).to_bits());
    hand_out(state, shares, ledger, budget, share, refused)
}

/// One round in which steps go by what they are predicted to gain per GPU (per worker, where workers take none): first the jobs'
/// smallest shapes, those of the lowest `rank` before all others, then worker after worker with its parameter server. `gain` is
/// that of a whole shape, from 0 up. A step that gains nothing is left out, and so is one beyond what was requested where no
/// speed is known; a smallest shape never is. Jobs that
/// have slots are placed first, then the others, both in the order of their smallest shapes.
///
/// O(T log J) for T steps of J jobs, with two calls of `gain` each, plus what [`place_shapes`] costs.
pub(super) fn by_gain(
    state: &State,
    board: &mut Board,
    proposal: &mut Proposal,
    budget: &mut Budget,
    placing: (Placing, &mut u32),
    rank: impl Fn(&Job) -> u8,
    gain: impl Fn(&Job, Shape) -> f64,
) -> Result<(), EngineError> {
    let (jobs, mut ledger) = settled_jobs(state, proposal);
    let key = |job: &Job, from: Shape, to: Shape| {
        let before = if from.is_empty() { 0.0 } else { gain(job, from) };
        // NaN is no gain either.
        let gained = f64::max(0.0, gain(job, to) - before) * 1000.0 / gpus(job, extra(from, to)).max(1) as f64;
        let order = Reverse(gained.to_bits());
        if from.is_empty() {
            return Some((rank(job), order, to.workers));
        }
        let beyond = job.fits.speed.is_none() && to.workers > job.spec.requested().workers;
        (gained > 0.0 && !beyond).then_some((u8::MAX, order, to.workers))
    };
    let mut shares: Vec<(&Arc<Job>, Shape)> = jobs.map(|job| (job, Shape::default())).collect();
    shares.sort_by_cached_key(|(job, none)| (key(job, *none, job.spec.bounds().least()), job.arrival, job.id));
    hand_out(state, &mut shares, &mut ledger, budget, key, |job, reason| {
        board.release(state, job);
        wait(proposal, job, reason);
    })?;
    shares.retain(|(_, shape)| !shape.is_empty());
    // Who has slots keeps as many of them as it may.
    shares.sort_by_key(|(job, _)| job.verdict.allocation().is_none());
    place_shapes(state, shares, board, proposal, budget, placing)
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
