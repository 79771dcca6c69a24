//! Tetris: short and small jobs first, packed tightly.
//!
//! Grandl et al., *Multi-Resource Packing for Cluster Schedulers*, SIGCOMM'14, as Optimus's authors set it up to compare
//! with (EuroSys'18, §6.1): every interval, workers and parameter servers 1:1, jobs of short duration or small demand
//! first, durations from our predictions.
//!
//! What the papers leave open, and what is chosen: jobs go by predicted remaining time × dominant share of their
//! smallest shape (the paper's remaining work); each gets its smallest shape before anyone gets more, and then, in the
//! same order, further pairs for as long as they are predicted to shorten it; slots go to the fullest server that holds
//! them (best fit), which leaves the largest pieces whole. Choose it where many small jobs should pass quickly.
//!
//! Cost: O(T + J log J) for T units and J jobs, plus O(log S) a slot that is placed.

use std::sync::Arc;

use imbl::Vector;

use super::{
    Budget, Build, Engine, EngineError, ParameterInfo, Parameters, Triggers,
    board::Board,
    optimus::wait,
    placing::{Placing, placement},
    rounds,
};
use crate::{
    decision::{Proposal, Shape},
    job::Job,
    place::SortBy,
    settings::SettingsError,
    state::{Change, State},
    time::Span,
};

pub(super) const NAME: &str = "tetris";
pub(super) const SUMMARY: &str = "short and small jobs first, packed on the fullest servers";
pub(super) const PAPER: &str = "Grandl et al., Tetris, SIGCOMM'14; baseline of Optimus";
pub(super) const PARAMETERS: &[ParameterInfo] = &[rounds::INTERVAL[0], placement("pack")];

/// The engine, as its module describes it.
#[derive(Clone, Debug)]
pub struct Tetris {
    interval: Span,
    placing: Placing,
}

impl Build for Tetris {
    fn build(parameters: &Parameters) -> Result<Self, SettingsError> {
        Ok(Self { interval: parameters.span("interval")?, placing: Placing::of(parameters)? })
    }
}

impl Engine for Tetris {
    /// The server that had the last slot, for round-robin.
    type Memo = u32;
    const MEMO_VERSION: u32 = 2;
    type Index = Board;

    fn triggers(&self) -> Triggers {
        Triggers { interval: Some(self.interval), arrival: false, departure: false }
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
        let (jobs, mut ledger) = rounds::free_jobs(state);
        let mut order: Vec<(f64, &Arc<Job>)> = jobs.map(|job| (remaining_work(state, job), job)).collect();
        order.sort_by(|(mine, a), (theirs, b)| mine.total_cmp(theirs).then(a.id.cmp(&b.id)));
        let mut shapes: Vec<(&Arc<Job>, Shape)> = Vec::new();
        for (_, job) in order {
            let least = job.spec.bounds().least();
            let total = job.total(least);
            if ledger.has(job, &total) {
                ledger.take(job, &total, 1);
                shapes.push((job, least));
            } else {
                board.release(state, job);
                wait(&mut proposal, job, ledger.reason(state, job, &total));
            }
        }
        for (job, shape) in &mut shapes {
            while let Some(more) = rounds::one_more(job, *shape) {
                budget.spend(1)?;
                let extra =
                    job.total(Shape { workers: more.workers - shape.workers, servers: more.servers - shape.servers });
                let sooner = match (job.remaining_time(more), job.remaining_time(*shape)) {
                    (Some(then), Some(now)) => then < now,
                    _ => more.workers <= job.spec.requested().workers,
                };
                if !sooner || !ledger.has(job, &extra) {
                    break;
                }
                ledger.take(job, &extra, 1);
                *shape = more;
            }
        }
        rounds::place_shapes(state, shapes, board, &mut proposal, budget, (self.placing, last))?;
        Ok(proposal)
    }
}

/// Predicted time left at the smallest shape × its dominant share; jobs without a prediction count by their share.
fn remaining_work(state: &State, job: &Job) -> f64 {
    let least = job.spec.bounds().least();
    let time = job.remaining_time(least).map_or(1.0, Span::as_seconds);
    time * job.total(least).dominant_share(&state.usable)
}
