//! SRTF: shortest remaining time first, with preemption. The job that would end first runs, and others make room for
//! it.
//!
//! The classical rule (Schrage, *A Proof of the Optimality of the Shortest Remaining Processing Time Discipline*,
//! Operations Research 1968), as described for comparison by the authors of the edge-cloud scheduler A_online: jobs by
//! remaining training time, each with all of its workers and parameter servers or none, moved and stopped as a whole.
//! It decides on each arrival and departure, and at intervals, because predictions change. Ties go to the earlier job.
//!
//! The paper leaves other points open. The following choices are our own:
//! * A job runs in its requested shape. A job that already runs in another shape keeps it.
//! * The remaining time is that of the remaining chunks of the job's dataset, or else the predicted one, in that shape.
//!   For a waiting job, its restart cost is added, so that two jobs with similar times don't alternate.
//! * A job whose remaining time is unknown (no profiled speed, and no measurements of its model) gets the mean of the
//!   known ones minus the time since its arrival, so it eventually runs and is measured. If no time is known, the
//!   earlier job goes first.
//! * A job without room for its shape is skipped, so that no room stays idle. Running jobs keep their place, and free
//!   room is used before jobs are stopped (`Round::serve_in_turn`).
//!
//! Choose it for comparisons, or if the mean completion time is important and long jobs may wait as long as shorter
//! ones arrive.
//!
//! Cost: O(J log J) for J jobs, plus the cost of `Round::serve_in_turn`.

use std::sync::Arc;

use crate::engine::{
    About, Build, Engine, EngineError, Parameters, Round, Triggers,
    placing::Placing,
    preempting::{cloud, shape},
    round,
};
use crate::{job::Job, settings::SettingsError, state::State, time::Span};

/// The engine, as its module describes it.
#[derive(Clone, Debug)]
pub struct Srtf {
    interval: Span,
    placing: Placing,
    cloud: bool,
}

impl Build for Srtf {
    type Engine = Self;
    const ABOUT: About = About::new(
        "srtf",
        "runs whole jobs by predicted remaining time, stopping longer ones",
        "Schrage, SRPT, 1968; baseline of A_online",
    );

    fn build(parameters: &mut Parameters<'_>) -> Result<Self, SettingsError> {
        Ok(Self {
            interval: round::interval(parameters)?,
            placing: Placing::of(parameters, "spread")?,
            cloud: cloud(parameters)?,
        })
    }
}

impl Engine for Srtf {
    type Memo = ();
    type Index = ();

    fn triggers(&self) -> Triggers {
        Triggers { interval: Some(self.interval), arrival: true, departure: true }
    }

    fn decide(&self, round: &mut Round<'_>, (): &mut ()) -> Result<(), EngineError> {
        round.board.room.limit((!self.cloud).then_some(false));
        let (jobs, ledger) = round.all_jobs();
        let order = by_remaining_time(round.state, jobs.into_iter());
        round.budget.spend(order.len() as u64)?;
        round.serve_in_turn(&order, ledger, self.placing)
    }
}

/// Jobs by the time until their end if they ran from now on, shortest first.
fn by_remaining_time<'a>(state: &State, jobs: impl Iterator<Item = &'a Arc<Job>>) -> Vec<&'a Arc<Job>> {
    let known: Vec<(Option<Span>, &Arc<Job>)> = jobs.map(|job| (until_end(job), job)).collect();
    let times: Vec<f64> = known.iter().filter_map(|(time, _)| Some(time.as_ref()?.as_seconds())).collect();
    let mean = Span::from_seconds(times.iter().sum::<f64>() / times.len().max(1) as f64);
    let estimate = |time: Option<Span>, job: &Job| {
        time.unwrap_or_else(|| Span(mean.0.saturating_sub((state.now - job.arrival).0)))
    };
    let mut order: Vec<(Span, &Arc<Job>)> = known.into_iter().map(|(time, job)| (estimate(time, job), job)).collect();
    order.sort_by_key(|(time, job)| (*time, job.arrival, job.id));
    order.into_iter().map(|(_, job)| job).collect()
}

/// The remaining training time, plus the restart if one is needed.
fn until_end(job: &Job) -> Option<Span> {
    let restart = if job.verdict.allocation().is_some() { Span::ZERO } else { job.learnt.restart_cost };
    round::remaining_time(job, shape(job)).map(|left| Span(left.0.saturating_add(restart.0)))
}
