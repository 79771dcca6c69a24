//! HyperSched: accuracy before deadlines. Jobs whose accuracy stagnates pause for others.
//!
//! Liaw et al., *HyperSched: Dynamic Resource Reallocation for Model Development on a Deadline*, SoCC'19, as described
//! for comparison by MLFS's authors (CoNEXT'20, §2): jobs without a significant increase in accuracy are paused, and
//! jobs whose accuracy grows more before their deadlines get more resources. The original divides the cluster of one
//! experiment among its trials, which share a deadline. Here each job is a trial with its own deadline.
//!
//! * A job is **flat** if the best accuracy of its last `window` epochs is less than `threshold` above the best one
//!   before them. It pauses while others wait: these get their smallest shapes first. It continues when there is room
//!   again. Among flat jobs, the one with the least remaining GPU time is first. They grow where nobody gains.
//! * The **gain** of a shape is the accuracy that the job is predicted to add to its best before its deadline in that
//!   shape. Smallest shapes go by their gain per GPU. Then single workers with their parameter servers go by the same
//!   rule, for jobs that can be resized. The other jobs get their requested shape or nothing.
//!
//! The papers leave some points open. The following choices are our own:
//! * The accuracy in a job's last epoch is [forecast](crate::fit::Forecast) from the accuracies so far. The gain until
//!   then grows with the logarithm of epochs, as on measured curves. This needs one forecast per new accuracy.
//! * With fewer epochs than a forecast needs, but at least two, each future epoch has the gain of the last one. With
//!   fewer, all accuracy is in the future, so that every trial gets a chance.
//! * Jobs without a deadline have one at `horizon` from now. After its deadline a job has no gain and counts as flat.
//! * The order of flat jobs. By width alone, wide jobs that are late wait until all others have ended.
//! * A waiting job has less time by its restart cost. If no speed is known, a job is assumed to reach its end in its
//!   requested shape in time, and gets no more than that. A flat job that has never started counts as ending within a
//!   minute, so that it gets a chance. One that started and has no speed is last.
//!
//! Choose it for comparisons, or for model development with deadlines. It leaves GPUs idle where jobs reach their end
//! before their deadline (`horizon`) in a small shape. Without reports of accuracy it is first come, first served, with
//! small jobs first, until their deadlines.
//!
//! Cost: O(T log J) for T steps of J jobs, O(57·n) for each job with a new accuracy among n ≤ 512 epochs, plus O(log S)
//! per placed slot.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::engine::{About, Budget, Build, Engine, EngineError, Parameters, Round, Triggers, placing::Placing, round};
use crate::{
    fit::{AccuracyHistory, Forecast, learning_curve::Options},
    ids::JobId,
    job::Job,
    settings::SettingsError,
    shape::Shape,
    state::State,
    time::Span,
};

/// Scale of the order among flat jobs: below every other gain that isn't 0.
const FLAT: f64 = 1e-100;

/// The engine, as its module describes it.
#[derive(Clone, Debug)]
pub struct Hypersched {
    interval: Span,
    window: u32,
    threshold: f64,
    horizon: Span,
    placing: Placing,
}

/// The possible gains of jobs.
#[derive(Default)]
pub struct Index {
    /// Gains, with the accuracies that they are computed from.
    ahead: BTreeMap<JobId, (Arc<AccuracyHistory>, Ahead)>,
}

/// The possible gain of a job over its best accuracy.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ahead {
    /// `gain` in `epochs` epochs, with the logarithm of epochs.
    Curve { done: f64, epochs: f64, gain: f64 },
    /// `each` per epoch, up to `most`.
    Slope { each: f64, most: f64 },
}

impl Build for Hypersched {
    type Engine = Self;
    const ABOUT: About = About::new(
        "hypersched",
        "favours jobs that gain most accuracy before their deadlines, pauses those that gain none",
        "Liaw et al., HyperSched, SoCC'19; baseline of MLFS",
    );

    fn build(parameters: &mut Parameters<'_>) -> Result<Self, SettingsError> {
        let window = "epochs in which an accuracy has to grow, or its job pauses";
        let threshold = "growth of the best accuracy in these epochs that counts, from 0 to 1";
        let horizon = "jobs without a deadline have one that is always so far ahead";
        Ok(Self {
            interval: round::minute(parameters)?,
            window: parameters.whole("window", 5, 1..=10_000, window)?,
            threshold: parameters.number("threshold", 0.005, 0.0..=1.0, threshold)?,
            horizon: parameters.span("horizon", "24h", horizon)?,
            placing: Placing::of(parameters, "consolidate")?,
        })
    }
}

impl Engine for Hypersched {
    type Memo = ();
    type Index = Index;

    fn triggers(&self) -> Triggers {
        Triggers { interval: Some(self.interval), arrival: true, departure: true }
    }

    fn decide(&self, round: &mut Round<'_, Index>, (): &mut ()) -> Result<(), EngineError> {
        let state = round.state;
        round.index.look_ahead(state, round.budget)?;
        let ahead = std::mem::take(&mut round.index.ahead);
        let left = |job: &Job| {
            let deadline = job.spec.deadline.map_or(state.now + self.horizon, |deadline| job.arrival + deadline);
            let restart = if job.verdict.allocation().is_some() { Span::ZERO } else { job.learnt.restart_cost };
            Span((deadline - state.now).0.saturating_sub(restart.0))
        };
        let flat: BTreeSet<JobId> = (state.jobs.values())
            .filter(|job| left(job) <= Span::ZERO || self.is_flat(job))
            .map(|job| job.id)
            .collect();
        let gain = |job: &Job, shape| {
            if flat.contains(&job.id) {
                return FLAT / remaining(job, shape).max(Span::seconds(1)).as_seconds();
            }
            ahead[&job.id].1.gain(epochs(job, shape, left(job)))
        };
        round.by_gain(self.placing, |job| u8::from(flat.contains(&job.id)), gain)?;
        round.index.ahead = ahead;
        Ok(())
    }
}

impl Hypersched {
    fn is_flat(&self, job: &Job) -> bool {
        job.learnt.accuracies.gain(self.window).is_some_and(|gain| gain < self.threshold)
    }
}

impl Index {
    /// Updates the gains to the reported accuracies.
    fn look_ahead(&mut self, state: &State, budget: &mut Budget) -> Result<(), EngineError> {
        self.ahead.retain(|id, _| state.jobs.contains_key(id));
        for job in state.jobs.values() {
            budget.spend(1)?;
            let known = self.ahead.get(&job.id).is_some_and(|(of, _)| Arc::ptr_eq(of, &job.learnt.accuracies));
            if !known {
                budget.spend(job.learnt.accuracies.len() as u64)?;
                self.ahead.insert(job.id, (job.learnt.accuracies.clone(), Ahead::of(job)));
            }
        }
        Ok(())
    }
}

impl Ahead {
    /// O(57·n) for n epochs with an accuracy.
    fn of(job: &Job) -> Self {
        let best = job.learnt.accuracies.best().unwrap_or(0.0);
        // Histories count epochs from 0.
        let (end, seen) =
            (u64::from(job.spec.convergence.max_epochs).saturating_sub(1), job.learnt.accuracies.last_epoch());
        let (done, epochs) = (seen.map_or(0.0, |seen| seen as f64 + 1.0), end.saturating_sub(seen.unwrap_or(0)) as f64);
        // The caution of early stops would promise a job's whole rise to its last epoch.
        let options = Options { cautious: false, ..Options::default() };
        let forecast = Forecast::new(&job.learnt.accuracies, end, &options);
        match (forecast, job.learnt.accuracies.gain(1)) {
            (Some(forecast), _) => Self::Curve { done, epochs, gain: (forecast.mean().min(1.0) - best).max(0.0) },
            (None, Some(each)) => Self::Slope { each: each.max(0.0), most: 1.0 - best },
            (None, None) => Self::Curve { done, epochs: epochs.max(1.0), gain: 1.0 - best },
        }
    }

    /// The gain in `more` epochs.
    fn gain(self, more: f64) -> f64 {
        match self {
            Self::Slope { each, most } => (each * more).min(most),
            Self::Curve { epochs, .. } if epochs <= 0.0 => 0.0,
            Self::Curve { done, epochs, gain } => {
                let grown = |epochs: f64| libm::log1p(epochs / done.max(1.0));
                gain * grown(more.min(epochs)) / grown(epochs)
            }
        }
    }
}

/// Time to a flat job's end.
fn remaining(job: &Job, shape: Shape) -> Span {
    let unknown = if job.seen.started.is_none() { Span::seconds(60) } else { Span(i64::MAX) };
    round::remaining_time(job, shape).unwrap_or(unknown)
}

/// Epochs that a job trains in the remaining time.
fn epochs(job: &Job, shape: Shape, left: Span) -> f64 {
    let most = f64::from(job.spec.convergence.max_epochs.saturating_sub(job.learnt.progress.epoch));
    let of_requested = || f64::from(shape.workers) / f64::from(job.spec.requested().workers.max(1));
    match job.epochs_in(shape, left) {
        Some(epochs) => epochs.min(most),
        None if left <= Span::ZERO => 0.0,
        None => most * of_requested().min(1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fit::learning_curve::FEWEST;

    #[test]
    fn the_gain_grows_with_the_logarithm_up_to_the_forecast() {
        let curve = Ahead::Curve { done: 10.0, epochs: 90.0, gain: 0.2 };
        assert_eq!((curve.gain(0.0), curve.gain(90.0), curve.gain(1000.0)), (0.0, 0.2, 0.2));
        // From 10 epochs to √10 times as many is half of the way to ten times as many.
        let half = 10.0 * libm::sqrt(10.0) - 10.0;
        assert!((curve.gain(half) - 0.1).abs() < 1e-12);
        let slope = Ahead::Slope { each: 0.1, most: 0.25 };
        assert_eq!((slope.gain(2.0), slope.gain(3.0)), (0.2, 0.25));
        assert_eq!(Ahead::Curve { done: 10.0, epochs: 0.0, gain: 0.2 }.gain(1.0), 0.0, "its last epoch is over");
    }

    #[test]
    fn few_accuracies_give_a_slope_and_more_a_forecast() {
        let mut state = State::default();
        let spec = crate::job::JobSpec::minimal("a");
        let event = crate::Event::JobSubmitted { spec: Box::new(spec), external: None, token_hash: None };
        state.apply(crate::Time(0), &event).expect("a good job");
        let mut job = (**state.find_job("a").expect("submitted")).clone();
        assert!(matches!(Ahead::of(&job), Ahead::Curve { gain: 1.0, .. }), "all is ahead");
        for epoch in 0..FEWEST as u64 {
            Arc::make_mut(&mut job.learnt.accuracies).push(epoch, epoch, 0.5 + 0.0625 * epoch as f64);
            match (epoch, Ahead::of(&job)) {
                (0, Ahead::Curve { gain, .. }) => assert_eq!(gain, 0.5),
                (1..=3, Ahead::Slope { each, most }) => {
                    assert_eq!((each, most), (0.0625, 0.5 - 0.0625 * epoch as f64));
                }
                (4, Ahead::Curve { done, epochs, gain }) => {
                    assert!(done == 5.0 && epochs == 195.0 && gain > 0.0 && gain <= 0.25);
                }
                (_, other) => panic!("{epoch}: {other:?}"),
            }
        }
    }
}
