//! Tetris: short and small jobs first, packed tightly.
//!
//! Grandl et al., *Multi-Resource Packing for Cluster Schedulers*, SIGCOMM'14, as set up for comparison by Optimus's
//! authors (EuroSys'18, §6.1): a decision per interval, workers and parameter servers 1:1, jobs of short duration or
//! small demand first, with predicted durations.
//!
//! The papers leave some points open. The following choices are our own. Jobs go by predicted remaining time × dominant
//! share of their smallest shape (the paper's remaining work). Each gets its smallest shape before any gets more.
//! Further pairs follow in the same order while they are predicted to shorten the job. Slots go to the fullest server
//! with room (best fit), which keeps the largest rooms whole. Choose it if many small jobs should pass quickly.
//!
//! Cost: O(T + J log J) for T units and J jobs, plus O(log S) per placed slot.

use std::sync::Arc;

use crate::engine::{About, Build, Engine, EngineError, Parameters, Round, Triggers, placing::Placing, round};
use crate::{job::Job, settings::SettingsError, shape::Shape, state::State, time::Span};

/// The engine, as its module describes it.
#[derive(Clone, Debug)]
pub struct Tetris {
    interval: Span,
    placing: Placing,
}

impl Build for Tetris {
    type Engine = Self;
    const ABOUT: About = About::new(
        "tetris",
        "short and small jobs first, packed on the fullest servers",
        "Grandl et al., Tetris, SIGCOMM'14; baseline of Optimus",
    );

    fn build(parameters: &mut Parameters<'_>) -> Result<Self, SettingsError> {
        Ok(Self { interval: round::interval(parameters)?, placing: Placing::of(parameters, "pack")? })
    }
}

impl Engine for Tetris {
    type Memo = ();
    type Index = ();

    fn triggers(&self) -> Triggers {
        Triggers { interval: Some(self.interval), arrival: false, departure: false }
    }

    fn decide(&self, round: &mut Round<'_>, (): &mut ()) -> Result<(), EngineError> {
        let state = round.state;
        let (jobs, mut ledger) = round.all_jobs();
        let mut order: Vec<(f64, &Arc<Job>)> = jobs.into_iter().map(|job| (remaining_work(state, job), job)).collect();
        order.sort_by(|(mine, a), (theirs, b)| mine.total_cmp(theirs).then(a.id.cmp(&b.id)));
        let mut shapes: Vec<(&Arc<Job>, Shape)> = Vec::new();
        for (_, job) in order {
            let least = job.bounds().least();
            let total = job.total(least);
            if ledger.has(job, &total) {
                ledger.take(job, &total, 1);
                shapes.push((job, least));
            } else {
                round.board.release(state, job);
                round.proposal.wait(job, ledger.reason(state, job, &total));
            }
        }
        for (job, shape) in &mut shapes {
            while let Some(more) = round::one_more(job, *shape) {
                round.budget.spend(1)?;
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
        round.place_shapes(shapes, self.placing, round::PAIRED)
    }
}

/// Predicted remaining time in the smallest shape × its dominant share. Jobs without a prediction count by their share.
fn remaining_work(state: &State, job: &Job) -> f64 {
    let least = job.bounds().least();
    let time = job.remaining_time(least).map_or(1.0, Span::as_seconds);
    time * job.total(least).dominant_share(&state.usable)
}
