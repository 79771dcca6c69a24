//! First in, first out: every job gets what it requested, in order, and keeps it to the end.
//!
//! What most clusters do, and the baseline of every paper here (Optimus §2.3, OASiS §V). By priority, then arrival.
//! The first job that doesn't fit holds up those behind it, so that big jobs don't starve, unless it is its tenant or
//! queue that is at a limit; `backfill` lets smaller ones pass. Slots go one by one to the freest server, or round-robin.
//! Choose it as a fallback, or to compare with.
//!
//! Cost: O(J log J) for J waiting jobs, plus O(log S) a slot that is placed (round-robin: O(S) where the cluster is full).

use std::sync::Arc;

use imbl::Vector;

use super::{
    Budget, Build, DefaultValue as Value, Engine, EngineError, ParameterInfo, Parameters, Triggers,
    board::{Board, Largest},
    ledger::Ledger,
    optimus::{run, wait},
    placing::{Placing, placement},
};
use crate::{
    decision::{Allocation, Proposal, Verdict},
    job::Job,
    place::SortBy,
    reason::{Reason, Scope},
    settings::SettingsError,
    state::{Change, Mandate, State},
};

pub(super) const NAME: &str = "fifo";
pub(super) const SUMMARY: &str = "gives every job what it requested, first come first served";
pub(super) const PAPER: &str = "baseline";
pub(super) const PARAMETERS: &[ParameterInfo] = &[
    ParameterInfo { name: "backfill", default: Value::Flag(false), meaning: "jobs that fit may pass one that doesn't" },
    placement("spread"),
];

/// The engine, as its module describes it.
#[derive(Clone, Debug)]
pub struct Fifo {
    backfill: bool,
    placing: Placing,
}

impl Build for Fifo {
    fn build(parameters: &Parameters) -> Result<Self, SettingsError> {
        Ok(Self { backfill: parameters.flag("backfill")?, placing: Placing::of(parameters)? })
    }
}

impl Engine for Fifo {
    /// The server that had the last slot, for round-robin.
    type Memo = u32;
    const MEMO_VERSION: u32 = 2;
    type Index = Board;

    fn triggers(&self) -> Triggers {
        Triggers { interval: None, arrival: true, departure: true }
    }

    fn decide(
        &self,
        state: &State,
        changes: &Vector<Change>,
        last: &mut u32,
        board: &mut Board,
        budget: &mut Budget,
    ) -> Result<Proposal, EngineError> {
        board.sync(state, changes, SortBy::Share);
        let mut proposal = Proposal::default();
        let (mut waiting, ledger) = waiting(state);
        by_arrival(&mut waiting);
        start_in_line(state, (&waiting, ledger), board, &mut proposal, self.backfill, |board, job| {
            self.placing.place(state, board, job, job.spec.requested(), last, budget)
        })?;
        Ok(proposal)
    }
}

/// Jobs that wait and are the engine's to plan, and what those with slots leave. O(jobs).
pub(super) fn waiting(state: &State) -> (Vec<&Arc<Job>>, Ledger) {
    let mut ledger = Ledger::of(state);
    let mut waiting = Vec::new();
    for job in state.jobs.values() {
        match (&job.verdict, state.mandate(job)) {
            (Verdict::Run(allocation), _) => ledger.take(job, &job.total(allocation.shape()), 1),
            (_, Mandate::Free) => waiting.push(job),
            _ => {}
        }
    }
    (waiting, ledger)
}

/// The queue's order.
pub(super) fn by_arrival(waiting: &mut [&Arc<Job>]) {
    waiting.sort_by_key(|job| (std::cmp::Reverse(job.spec.priority), job.arrival, job.id));
}

/// Starts waiting jobs in their order, as they were requested, each where `place` finds room for it.
pub(super) fn start_in_line(
    state: &State,
    (waiting, mut ledger): (&[&Arc<Job>], Ledger),
    board: &mut Board,
    proposal: &mut Proposal,
    backfill: bool,
    mut place: impl FnMut(&mut Board, &Arc<Job>) -> Result<Option<Arc<Allocation>>, EngineError>,
) -> Result<(), EngineError> {
    let mut largest = Largest::default();
    let mut ahead = None;
    let mut position = 0;
    for job in waiting {
        if let Some(first) = ahead.filter(|_| !backfill) {
            position += 1;
            wait(proposal, job, Reason::Behind { job: first, position });
            continue;
        }
        let shape = job.spec.requested();
        let total = job.total(shape);
        let reason = if ledger.has(job, &total) {
            if let Some(allocation) = place(board, job)? {
                ledger.take(job, &total, 1);
                run(proposal, job, allocation);
                continue;
            }
            largest.reason(state, &board.room, job, shape)
        } else {
            ledger.reason(state, job, &total)
        };
        // Its tenant's or queue's limit is nobody else's concern.
        let limited = matches!(&reason, Reason::Exhausted { scope: Scope::Tenant(_) | Scope::Queue(_), .. });
        wait(proposal, job, reason);
        if !limited {
            position += 1;
            ahead = Some(job.id);
        }
    }
    Ok(())
}
