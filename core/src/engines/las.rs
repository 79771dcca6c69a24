//! Least attained service: the jobs that have had the least GPU time run, and stop jobs that have had more.
//!
//! The foreground-background discipline (Nuyens and Wierman, *The Foreground-Background queue: a survey*, Performance
//! Evaluation 2008), with whole jobs as in Tiresias-L (Gu et al., NSDI'19). It needs no prediction. Among disciplines
//! that know no lengths it minimises the mean completion time where long jobs are likely to last even longer (a
//! decreasing hazard rate), as in many traces of training.
//!
//! Chosen is:
//! * Service is GPU time, restarts included ([`Job::service`](crate::Job::service)). Jobs in the same `quantum` of
//!   service count as equal, and the earlier one goes first. Without that, equal jobs would stop each other all the
//!   time.
//! * A job gets all that it requested or nothing. Jobs that run stay where they are until a job ahead needs their room
//!   (`Round::serve_in_turn`).
//! * Jobs in transit are left alone (`Round::jobs`).
//!
//! Choose it where nothing is known of lengths and most jobs are short. Long jobs may starve while new ones come.
//!
//! Cost: O(J log J) for J jobs, plus what `Round::serve_in_turn` costs.

use crate::engine::{About, Build, Engine, EngineError, Parameters, Round, Triggers, placing::Placing, round};
use crate::{job::Job, job::Service, reason::Reason, settings::SettingsError, time::Span};

/// Thousandths of a GPU times milliseconds in a GPU-second.
const GPU_SECOND: f64 = 1e6;

/// The engine, as its module describes it.
#[derive(Clone, Debug)]
pub struct Las {
    quantum: Service,
    interval: Span,
    placing: Placing,
}

impl Build for Las {
    type Engine = Self;
    const ABOUT: About = About::new(
        "las",
        "runs the jobs that have had the least GPU time, stopping those that have had more",
        "Nuyens and Wierman, Foreground-Background, 2008; baseline",
    );

    fn build(parameters: &mut Parameters<'_>) -> Result<Self, SettingsError> {
        let quantum = "GPU-seconds of service that make no difference between jobs";
        Ok(Self {
            quantum: (parameters.number("quantum", 3600.0, 1.0..=1e9, quantum)? * GPU_SECOND) as Service,
            interval: round::minute(parameters)?,
            placing: Placing::of(parameters, "consolidate")?,
        })
    }
}

impl Engine for Las {
    type Memo = ();
    type Index = ();

    fn triggers(&self) -> Triggers {
        Triggers { interval: Some(self.interval), arrival: true, departure: true }
    }

    fn decide(&self, round: &mut Round<'_>, (): &mut ()) -> Result<(), EngineError> {
        let now = round.state.now;
        let (mut order, ledger) = round.jobs();
        round.budget.spend(order.len() as u64)?;
        let quanta = |job: &Job| job.service(now) / self.quantum;
        order.sort_by_cached_key(|job| (quanta(job), job.arrival, job.id));
        round.serve_in_turn(&order, ledger, self.placing)?;
        if let Some(most) = round.planned().map(|(job, _)| quanta(job)).max() {
            let less_than = (most + 1) * self.quantum;
            round.explain_waits(|job| (quanta(job) > most).then(|| more_service(job.service(now), less_than)));
        }
        Ok(())
    }
}

fn more_service(service: Service, less_than: Service) -> Reason {
    let hours = |service: Service| service as f64 / GPU_SECOND / 3600.0;
    let (has, less) = (hours(service), hours(less_than));
    Reason::of_engine("more_service", format!("has had {has:.1} GPU-hours; jobs with less than {less:.1} go first"))
}
