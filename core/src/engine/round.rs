//! One decision in the making, and what engines do in it: take the jobs that are theirs, hand out shapes, place slots.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap},
    sync::Arc,
};

use imbl::Vector;

use super::{
    board::{Board, Largest},
    ledger::Ledger,
    parameters::Parameters,
    placing::Placing,
};
use crate::budget::{Budget, EngineError};
use crate::{
    decision::{Allocation, Proposal, Verdict},
    ids::{JobId, ServerId},
    job::{Job, Training},
    reason::{Reason, ReasonKind, Scope},
    settings::SettingsError,
    shape::Shape,
    state::{Change, Mandate, State},
    time::{Span, Time},
};

/// The longest time between rounds of engines that decide at arrivals and departures, too.
pub(crate) fn minute(parameters: &mut Parameters<'_>) -> Result<Span, SettingsError> {
    parameters.span("interval", "60s", "longest time between rounds")
}

/// The time between rounds of engines that decide at intervals.
pub(crate) fn interval(parameters: &mut Parameters<'_>) -> Result<Span, SettingsError> {
    parameters.span("interval", "600s", "time between rounds; the same as Optimus's where both are compared")
}

/// One decision in the making.
pub struct Round<'a, I = ()> {
    /// What there is.
    pub state: &'a State,
    /// What happened since the engine last succeeded, in order.
    pub changes: &'a Vector<Change>,
    /// The servers under the plan in the making, in the engine's [order](super::Engine::order).
    pub board: &'a mut Board,
    /// What the engine keeps besides.
    pub index: &'a mut I,
    /// The server that had the last slot, for round-robin. It is remembered.
    pub last: &'a mut u32,
    /// What its work is bounded by.
    pub budget: &'a mut Budget,
    /// What it proposes.
    pub proposal: Proposal,
}

impl<'a, I> Round<'a, I> {
    /// It begins without a proposal.
    pub fn new(
        state: &'a State,
        changes: &'a Vector<Change>,
        board: &'a mut Board,
        index: &'a mut I,
        last: &'a mut u32,
        budget: &'a mut Budget,
    ) -> Self {
        Self { state, changes, board, index, last, budget, proposal: Proposal::default() }
    }

    /// The jobs that are the engine's to plan and aren't [in transit](Job::is_in_transit), in the order of arrival, and
    /// what all others leave. O(jobs).
    pub(crate) fn jobs(&mut self) -> (Vec<&'a Arc<Job>>, Ledger) {
        let state = self.state;
        let in_transit = |job: &Job| job.is_in_transit(state.now);
        let leaves = |job: &&Arc<Job>| job.verdict.allocation().is_none() && in_transit(job);
        for job in state.jobs.values().filter(leaves).filter(|job| state.mandate(job) == Mandate::Free) {
            let slot = job.seen.allocation.iter().chain(&job.issued.allocation).find_map(|left| left.slots().first());
            let needs =
                slot.and_then(|slot| Some((slot.server, job.demand(slot.role).amounts.iter().find(|(_, n)| *n > 0)?)));
            // It has nothing new to be told while it waits for its own slots to go.
            if let Some((server, (resource, missing))) = needs
                && job.verdict.reason().map(Reason::kind) == Some(ReasonKind::NotConsidered)
            {
                self.proposal.wait(job, Reason::Releasing { server, resource, missing });
            }
        }
        jobs_and_rest(state, |job| state.mandate(job) == Mandate::Free && !in_transit(job))
    }

    /// The same with the jobs in transit, for engines that change little from round to round.
    pub(crate) fn all_jobs(&self) -> (Vec<&'a Arc<Job>>, Ledger) {
        jobs_and_rest(self.state, |job| self.state.mandate(job) == Mandate::Free)
    }

    /// Every job that has slots once the proposal is carried out, with these slots. O(jobs).
    pub(crate) fn planned(&self) -> impl Iterator<Item = (&'a Arc<Job>, &Arc<Allocation>)> {
        let changes = &self.proposal.changes;
        let changed: BTreeMap<JobId, &Verdict> = changes.iter().map(|(id, verdict)| (*id, verdict)).collect();
        self.state.jobs.values().filter_map(move |job| {
            let verdict = changed.get(&job.id).copied().unwrap_or(&job.verdict);
            Some((job, verdict.allocation()?))
        })
    }

    /// Gives jobs that wait for room a reason of the engine's own, where `why` has one. Jobs that a limit of their
    /// tenant or queue keeps waiting, or that are larger than the cluster, are told that instead. O(jobs).
    pub(crate) fn explain_waits(&mut self, why: impl Fn(&Job) -> Option<Reason>) {
        let state = self.state;
        let waits_for_room = |verdict: &Verdict| match verdict {
            Verdict::Wait(Reason::NoRoom { .. } | Reason::Engine(_)) => true,
            Verdict::Wait(Reason::Exhausted { scope: Scope::Cluster, needed, limit, .. }) => needed <= limit,
            _ => false,
        };
        self.proposal.changes.retain_mut(|(id, verdict)| {
            let job = &state.jobs[id];
            if waits_for_room(verdict)
                && let Some(reason) = why(job)
            {
                *verdict = Verdict::Wait(reason);
            }
            !job.verdict.same_kind(verdict)
        });
        let changed: BTreeSet<JobId> = self.proposal.changes.iter().map(|(id, _)| *id).collect();
        let stays = |job: &&Arc<Job>| !changed.contains(&job.id) && state.mandate(job) == Mandate::Free;
        for job in state.jobs.values().filter(stays).filter(|job| waits_for_room(&job.verdict)) {
            if let Some(reason) = why(job) {
                self.proposal.wait(job, reason);
            }
        }
    }

    /// Places a shape and takes its room; none if it has none.
    pub(crate) fn place(
        &mut self,
        job: &Job,
        shape: Shape,
        placing: Placing,
    ) -> Result<Option<Arc<Allocation>>, EngineError> {
        placing.place(self.state, self.board, job, shape, self.last, self.budget)
    }

    /// Max-min fairness in dominant shares: whoever has the smallest is [handed](hand_out) the next step. Who doesn't
    /// get its smallest shape waits.
    pub(crate) fn fair_shapes(
        &mut self,
        shares: &mut [(&'a Arc<Job>, Shape)],
        ledger: &mut Ledger,
    ) -> Result<(), EngineError> {
        let Self { state, board, budget, proposal, .. } = self;
        fair_shapes(state, shares, ledger, budget, |job, reason| {
            board.release(state, job);
            proposal.wait(job, reason);
        })
    }

    /// One round in which steps go by what they are predicted to gain per GPU (per worker, where workers take none):
    /// first the jobs' smallest shapes, those of the lowest `rank` before all others, then worker after worker with its
    /// parameter server. `gain` is that of a whole shape, from 0 up. A step that gains nothing is left out, and so is
    /// one beyond what was requested where no speed is known; a smallest shape never is. Jobs that have slots are
    /// placed first, then the others, both in the order of their smallest shapes.
    ///
    /// O(T log J) for T steps of J jobs, with two calls of `gain` each, plus what [`place_shapes`](Self::place_shapes)
    /// costs.
    pub(crate) fn by_gain(
        &mut self,
        placing: Placing,
        rank: impl Fn(&Job) -> u8,
        gain: impl Fn(&Job, Shape) -> f64,
    ) -> Result<(), EngineError> {
        let (jobs, mut ledger) = self.jobs();
        let key = |job: &Job, from: Shape, to: Shape| {
            let before = if from.is_empty() { 0.0 } else { gain(job, from) };
            // NaN is no gain either.
            let gained = f64::max(0.0, gain(job, to) - before) * 1000.0 / job.gpus(extra(from, to)).max(1) as f64;
            let order = Reverse(gained.to_bits());
            if from.is_empty() {
                return Some((rank(job), order, to.workers));
            }
            let beyond = job.learnt.fits.speed.is_none() && to.workers > job.spec.requested().workers;
            (gained > 0.0 && !beyond).then_some((u8::MAX, order, to.workers))
        };
        let mut shares: Vec<(&Arc<Job>, Shape)> = jobs.into_iter().map(|job| (job, Shape::default())).collect();
        shares.sort_by_cached_key(|(job, none)| (key(job, *none, job.spec.bounds().least()), job.arrival, job.id));
        let Self { state, board, budget, proposal, .. } = self;
        hand_out(state, &mut shares, &mut ledger, budget, key, |job, reason| {
            board.release(state, job);
            proposal.wait(job, reason);
        })?;
        shares.retain(|(_, shape)| !shape.is_empty());
        // Who has slots keeps as many of them as it may.
        shares.sort_by_key(|(job, _)| job.verdict.allocation().is_none());
        self.place_shapes(shares, placing)
    }

    /// Places each job's shape, in the order given; one that doesn't fit gets the next smaller 1:1 shape, down to its
    /// least. Jobs whose shape stays the same stay where they are, unless a server of theirs drains and there is room
    /// elsewhere. O(slots · blocks of the index).
    pub(crate) fn place_shapes(
        &mut self,
        shapes: Vec<(&'a Arc<Job>, Shape)>,
        placing: Placing,
    ) -> Result<(), EngineError> {
        let state = self.state;
        let old = |job: &Job| job.verdict.allocation().map(|allocation| allocation.shape());
        let leaving = leaving(state);
        let moving: Vec<_> =
            shapes.into_iter().filter(|(job, shape)| old(job) != Some(*shape) || leaving(job)).collect();
        for (job, _) in &moving {
            self.board.release(state, job);
        }
        let mut homeless: Vec<(&Job, Shape)> = Vec::new();
        for (job, wanted) in moving {
            let least = job.spec.bounds().least();
            let mut shape = wanted;
            loop {
                if let Some(allocation) = self.place(job, shape, placing)? {
                    self.proposal.run(job, allocation);
                    break;
                }
                if shape == wanted
                    && let Some(kept) = job.verdict.allocation().filter(|kept| kept.shape() == wanted)
                    && self.board.restore(state, job, kept)
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
            let reason: Reason = largest.reason(state, &self.board.room, job, shape);
            self.proposal.wait(job, reason);
        }
        Ok(())
    }
}

fn jobs_and_rest(state: &State, mine: impl Fn(&Job) -> bool) -> (Vec<&Arc<Job>>, Ledger) {
    let (free, others): (Vec<_>, Vec<_>) = state.jobs.values().partition(|job| mine(job));
    let mut ledger = Ledger::of(state);
    for job in others {
        ledger.take(job, &job.total(job.shape()), 1);
    }
    (free, ledger)
}

/// Time that a job needs at a shape: of its dataset what is left of the chunks, else as its fits predict; `None` where
/// neither says anything.
pub(crate) fn remaining_time(job: &Job, shape: Shape) -> Option<Span> {
    match Training::of(job) {
        Ok(training) => {
            let left = training.work() - training.done(&job.learnt.progress);
            // In slots of a millisecond: worker-milliseconds.
            let work = training.workers_for(left, Span(1));
            Some(Span(i64::try_from(work.div_ceil(shape.workers.max(1).into())).unwrap_or(i64::MAX / 4)))
        }
        Err(_) => job.remaining_time(shape),
    }
}

/// One more worker, and a parameter server with it where the job has any: the 1:1 ratio of Optimus's baselines (§6.1).
/// `None` at the job's bounds.
pub(crate) fn one_more(job: &Job, shape: Shape) -> Option<Shape> {
    let most = job.spec.bounds().most();
    let more = Shape { workers: (shape.workers + 1).min(most.workers), servers: (shape.servers + 1).min(most.servers) };
    (more.workers > shape.workers).then_some(more)
}

/// How long a job held its slots since some time.
pub(crate) fn held(job: &Job, since: Time, now: Time) -> Span {
    if job.issued.allocation.is_some() { (now - since.max(job.issued.changed)).max(Span::ZERO) } else { Span::ZERO }
}

/// The step that a job's shape can grow by: its smallest, then worker after worker with its parameter server.
fn next_step(job: &Job, shape: Shape) -> Option<Shape> {
    if shape.is_empty() { Some(job.spec.bounds().least()) } else { one_more(job, shape) }
}

/// What a job needs for a step.
pub(crate) fn extra(from: Shape, to: Shape) -> Shape {
    Shape { workers: to.workers - from.workers, servers: to.servers - from.servers }
}

/// Hands out shapes step by step, for as long as the ledger has room: the step with the least key is next, of those
/// from the smallest shape on to one more worker with its parameter server. `key(job, from, to)` is none of a step that
/// isn't wanted. Ties go to the earlier in `shares`. A job that doesn't even get its smallest shape keeps an empty one,
/// and `refused` hears why. O(log jobs) a step.
pub(crate) fn hand_out<K: Ord>(
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
pub(crate) fn fair_shapes(
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

/// Whether a job has slots on a server that drains: it should move, if there is room for it elsewhere. O(slots), and
/// only where a server drains at all.
pub(crate) fn leaving(state: &State) -> impl Fn(&Job) -> bool {
    let draining: Vec<ServerId> =
        state.servers.iter().filter(|server| server.present && server.draining).map(|server| server.id).collect();
    move |job| {
        let slots = job.verdict.allocation().map(|allocation| allocation.slots()).unwrap_or_default();
        !draining.is_empty() && slots.iter().any(|slot| draining.binary_search(&slot.server).is_ok())
    }
}
