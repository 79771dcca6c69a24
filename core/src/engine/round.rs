//! A decision in the making, with the operations of engines: select the jobs to plan, allocate shapes, place slots.

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

/// The longest time between rounds, for engines that also decide at arrivals and departures.
pub(crate) fn minute(parameters: &mut Parameters<'_>) -> Result<Span, SettingsError> {
    parameters.span("interval", "60s", "longest time between rounds")
}

/// The time between rounds, for engines that decide at intervals.
pub(crate) fn interval(parameters: &mut Parameters<'_>) -> Result<Span, SettingsError> {
    parameters.span("interval", "600s", "time between rounds; the same as Optimus's where both are compared")
}

/// A decision in the making.
pub struct Round<'a, I = ()> {
    /// The state.
    pub state: &'a State,
    /// Changes since the engine last succeeded, in order.
    pub changes: &'a Vector<Change>,
    /// The servers under the plan of this round, in the engine's [order](super::Engine::order).
    pub board: &'a mut Board,
    /// The engine's own index.
    pub index: &'a mut I,
    /// The server of the last slot, for round-robin. It is kept in the engine's memory.
    pub last: &'a mut u32,
    /// The limit of its work.
    pub budget: &'a mut Budget,
    /// The proposal.
    pub proposal: Proposal,
}

impl<'a, I> Round<'a, I> {
    /// Starts a round without a proposal.
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

    /// The jobs that the engine may plan and that aren't [in transit](Job::is_in_transit), in the order of arrival, and
    /// the totals that all others leave. O(jobs).
    pub(crate) fn jobs(&mut self) -> (Vec<&'a Arc<Job>>, Ledger) {
        let state = self.state;
        let in_transit = |job: &Job| job.is_in_transit(state.now);
        let leaves = |job: &&Arc<Job>| job.verdict.allocation().is_none() && in_transit(job);
        for job in state.jobs.values().filter(leaves).filter(|job| state.mandate(job) == Mandate::Free) {
            let slot = job.seen.allocation.iter().chain(&job.issued.allocation).find_map(|left| left.slots().first());
            let needs =
                slot.and_then(|slot| Some((slot.server, job.demand(slot.role).amounts.iter().find(|(_, n)| *n > 0)?)));
            // A job that waits for its own slots to go has no newer reason.
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

    /// All jobs with slots after the proposal, with these slots. O(jobs).
    pub(crate) fn planned(&self) -> impl Iterator<Item = (&'a Arc<Job>, &Arc<Allocation>)> {
        let changes = &self.proposal.changes;
        let changed: BTreeMap<JobId, &Verdict> = changes.iter().map(|(id, verdict)| (*id, verdict)).collect();
        self.state.jobs.values().filter_map(move |job| {
            let verdict = changed.get(&job.id).copied().unwrap_or(&job.verdict);
            Some((job, verdict.allocation()?))
        })
    }

    /// Gives jobs that wait for room the engine's own reason from `why`, if there is one. Jobs that wait for a limit of
    /// their tenant or queue, or that are larger than the cluster, keep that reason. O(jobs).
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

    /// Places a shape and takes its room. `None` if there is no room.
    pub(crate) fn place(
        &mut self,
        job: &Job,
        shape: Shape,
        placing: Placing,
    ) -> Result<Option<Arc<Allocation>>, EngineError> {
        placing.place(self.state, self.board, job, shape, self.last, self.budget)
    }

    /// Max-min fairness in dominant shares: the job with the smallest share [gets](hand_out) the next step. A job
    /// without its smallest shape waits.
    pub(crate) fn fair_shapes(
        &mut self,
        shares: &mut [(&'a Arc<Job>, Shape)],
        ledger: &mut Ledger,
        steps: Steps,
    ) -> Result<(), EngineError> {
        let Self { state, board, budget, proposal, .. } = self;
        fair_shapes(state, shares, (ledger, steps), budget, |job, reason| {
            board.release(state, job);
            proposal.wait(job, reason);
        })
    }

    /// One round in which steps are ordered by their predicted gain per GPU (per worker, if workers take none). The
    /// jobs' smallest shapes come first, in the order of `rank`. Then each job grows by one worker at a time, with its
    /// parameter server. `gain` is the gain of a whole shape, from 0 up. Steps without a gain are left out. So are
    /// steps beyond the requested shape if no speed is known. Smallest shapes are never left out. Jobs with slots are
    /// placed first, then the others, both in the order of their smallest shapes.
    ///
    /// O(T log J) for T steps of J jobs, with two calls of `gain` each, plus the cost of
    /// [`place_shapes`](Self::place_shapes).
    pub(crate) fn by_gain(
        &mut self,
        placing: Placing,
        rank: impl Fn(&Job) -> u8,
        gain: impl Fn(&Job, Shape) -> f64,
    ) -> Result<(), EngineError> {
        let (jobs, mut ledger) = self.jobs();
        let key = |job: &Job, from: Shape, to: Shape| {
            let before = if from.is_empty() { 0.0 } else { gain(job, from) };
            // NaN counts as no gain.
            let gained = f64::max(0.0, gain(job, to) - before) * 1000.0 / job.gpus(extra(from, to)).max(1) as f64;
            let order = Reverse(gained.to_bits());
            if from.is_empty() {
                return Some((rank(job), order, to.workers));
            }
            let beyond = job.learnt.fits.speed.is_none() && to.workers > job.spec.requested().workers;
            (gained > 0.0 && !beyond).then_some((u8::MAX, order, to.workers))
        };
        let mut shares: Vec<(&Arc<Job>, Shape)> = jobs.into_iter().map(|job| (job, Shape::default())).collect();
        shares.sort_by_cached_key(|(job, none)| (key(job, *none, job.bounds().least()), job.arrival, job.id));
        let Self { state, board, budget, proposal, .. } = self;
        hand_out(state, &mut shares, (&mut ledger, PAIRED), budget, key, |job, reason| {
            board.release(state, job);
            proposal.wait(job, reason);
        })?;
        shares.retain(|(_, shape)| !shape.is_empty());
        // Jobs with slots keep as many of them as possible.
        shares.sort_by_key(|(job, _)| job.verdict.allocation().is_none());
        self.place_shapes(shares, placing, PAIRED)
    }

    /// Places each job's shape, in the given order. A shape that doesn't fit is reduced step by step, down to the
    /// smallest. Jobs with an unchanged shape keep their place, unless one of their servers drains and
    /// there is room elsewhere. O(slots · blocks of the index).
    pub(crate) fn place_shapes(
        &mut self,
        shapes: Vec<(&'a Arc<Job>, Shape)>,
        placing: Placing,
        steps: Steps,
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
            let least = job.bounds().least();
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
                shape = steps.smaller(job, shape);
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

/// Time that a job needs at a shape: from its remaining chunks if it has a dataset, else from its fits. `None` if
/// neither is known.
pub(crate) fn remaining_time(job: &Job, shape: Shape) -> Option<Span> {
    match Training::of(job) {
        Ok(training) => {
            let left = training.work() - training.done(&job.learnt.progress);
            // In slots of a millisecond, this is the number of worker-milliseconds.
            let work = training.workers_for(left, Span(1));
            Some(Span(i64::try_from(work.div_ceil(shape.workers.max(1).into())).unwrap_or(i64::MAX / 4)))
        }
        Err(_) => job.remaining_time(shape),
    }
}

/// The shape with one more worker, and one more parameter server if the job has any: the 1:1 ratio of Optimus's
/// baselines (§6.1). Of a job with [`Sizes`](crate::job::Sizes), the next of them, with as many more parameter servers.
/// `None` at the job's bounds.
pub(crate) fn one_more(job: &Job, shape: Shape) -> Option<Shape> {
    let bounds = job.bounds();
    let workers = bounds.more_workers(shape.workers)?;
    Some(Shape { workers, servers: (shape.servers + (workers - shape.workers)).min(bounds.servers.1) })
}

/// How long a job has held its slots since a given time.
pub(crate) fn held(job: &Job, since: Time, now: Time) -> Span {
    if job.issued.allocation.is_some() { (now - since.max(job.issued.changed)).max(Span::ZERO) } else { Span::ZERO }
}

/// The shapes of a job that grows or shrinks by one worker at a time, from its smallest shape on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Steps {
    /// The next larger shape, or the smallest one for an empty shape. `None` at the job's bounds.
    more: fn(&Job, Shape) -> Option<Shape>,
    /// The next smaller shape, at least the smallest.
    less: fn(&Job, Shape) -> Shape,
}

impl Steps {
    /// The next smaller shape, at least the smallest.
    pub(crate) fn smaller(self, job: &Job, shape: Shape) -> Shape {
        (self.less)(job, shape)
    }
}

/// A worker comes and goes with its parameter server.
pub(crate) const PAIRED: Steps = Steps {
    more: |job, shape| if shape.is_empty() { Some(job.bounds().least()) } else { one_more(job, shape) },
    less: |job, shape| {
        let bounds = job.bounds();
        let workers = bounds.fewer_workers(shape.workers);
        let fewer = shape.workers.saturating_sub(workers).max(1);
        Shape { workers, servers: shape.servers.saturating_sub(fewer).max(bounds.servers.0) }
    },
};

/// The fewest parameter servers that have the workers' bandwidth ([`Training::shape`]). A job without a dataset has no
/// such number and has [`PAIRED`] steps. O(1), the job's training included.
pub(crate) const FEWEST_SERVERS: Steps = Steps {
    more: |job, shape| {
        let Ok(training) = Training::of(job) else { return (PAIRED.more)(job, shape) };
        let least = job.bounds().least();
        let workers = if shape.is_empty() { least.workers } else { shape.workers + 1 };
        training.shape(workers).or_else(|| shape.is_empty().then_some(least))
    },
    less: |job, shape| {
        let Ok(training) = Training::of(job) else { return (PAIRED.less)(job, shape) };
        training.shape(shape.workers.saturating_sub(1)).unwrap_or_else(|| job.bounds().least())
    },
};

/// The workers and parameter servers that a step adds.
pub(crate) fn extra(from: Shape, to: Shape) -> Shape {
    Shape { workers: to.workers - from.workers, servers: to.servers - from.servers }
}

/// Allocates shapes step by step while the ledger has room. The step with the smallest key is next. `key(job, from,
/// to)` is `None` for a step that isn't wanted. Ties go to the earlier job in `shares`. A job that doesn't get its
/// smallest shape keeps an empty one, and `refused` is called with the reason. O(log jobs) per step.
pub(crate) fn hand_out<K: Ord>(
    state: &State,
    shares: &mut [(&Arc<Job>, Shape)],
    (ledger, steps): (&mut Ledger, Steps),
    budget: &mut Budget,
    key: impl Fn(&Job, Shape, Shape) -> Option<K>,
    mut refused: impl FnMut(&Job, Reason),
) -> Result<(), EngineError> {
    let entry = |at: u32, (job, shape): (&Arc<Job>, Shape)| {
        let next = (steps.more)(job, shape)?;
        Some(Reverse((key(job, shape, next)?, at)))
    };
    let first = shares.iter().enumerate().filter_map(|(at, share)| entry(at as u32, *share));
    let mut heap: BinaryHeap<Reverse<(K, u32)>> = first.collect();
    while let Some(Reverse((_, at))) = heap.pop() {
        budget.spend(1)?;
        let (job, shape) = shares[at as usize];
        let Some(next) = (steps.more)(job, shape) else { continue };
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

/// Max-min fairness in dominant shares: the job with the smallest share [gets](hand_out) the next step.
pub(crate) fn fair_shapes(
    state: &State,
    shares: &mut [(&Arc<Job>, Shape)],
    to_hand_out: (&mut Ledger, Steps),
    budget: &mut Budget,
    refused: impl FnMut(&Job, Reason),
) -> Result<(), EngineError> {
    // The bits of non-negative floats have the same order as the floats.
    let share = |job: &Job, shape, _| Some(job.total(shape).dominant_share(&state.usable).to_bits());
    hand_out(state, shares, to_hand_out, budget, share, refused)
}

/// Whether a job has slots on a draining server, so it should move if there is room elsewhere. O(slots), only if a
/// server drains.
pub(crate) fn leaving(state: &State) -> impl Fn(&Job) -> bool {
    let draining: Vec<ServerId> =
        state.servers.iter().filter(|server| server.present && server.draining).map(|server| server.id).collect();
    move |job| {
        let slots = job.verdict.allocation().map(|allocation| allocation.slots()).unwrap_or_default();
        !draining.is_empty() && slots.iter().any(|slot| draining.binary_search(&slot.server).is_ok())
    }
}
