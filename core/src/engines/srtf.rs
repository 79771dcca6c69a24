//! Shortest remaining time first, preemptive: the job that would end soonest runs, whoever has to make room for it.
//!
//! The classical rule (Schrage, *A Proof of the Optimality of the Shortest Remaining Processing Time Discipline*, Operations
//! Research 1968), as the authors of the edge-cloud scheduler A_online set it up to compare with: jobs by remaining time
//! of training, each with all of its workers and parameter servers or none, moved and stopped as a whole. Decides on every
//! arrival and departure, and at intervals, since predictions change. Ties go to the earlier job.
//!
//! The paper says no more. Chosen are:
//! * A job runs in the shape that its owner requested; one that already runs in another keeps that.
//! * The time that a job has left is its dataset's chunks that are left to train, else as its fits predict, at that shape.
//!   Where it doesn't run, what a restart costs it is added: so two jobs that are near each other don't change places all
//!   the time.
//! * Of whose time nothing is known (no speed was profiled, and none of its model is measured) counts as the mean of the
//!   others, less the time since its arrival: it comes up sooner or later, is measured, and is then known. Where nothing
//!   is known of any, the earlier goes first.
//! * A job whose shape has no room is skipped, so that none of it is left idle; what runs keeps its place, and free room
//!   is taken before anyone is stopped ([`serve_in_turn`](Round::serve_in_turn)).
//!
//! Choose it to compare with, or where the mean time to completion counts and long jobs may wait for as long as shorter ones
//! arrive.
//!
//! Cost: O(J log J) for J jobs, plus what [`serve_in_turn`](Round::serve_in_turn) costs.

use std::sync::Arc;

use crate::engine::{About, Build, Engine, EngineError, Parameters, Round, Triggers, placing::Placing, preempting::{cloud, shape}, round};
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

/// Jobs by the time until their ends if they ran from now on, soonest first.
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

/// What is left to train, and the restart before it where one is needed.
fn until_end(job: &Job) -> Option<Span> {
    let restart = if job.verdict.allocation().is_some() { Span::ZERO } else { job.learnt.restart_cost };
    round::remaining_time(job, shape(job)).map(|left| Span(left.0.saturating_add(restart.0)))
}
