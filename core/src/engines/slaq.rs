//! SLAQ: the next GPU goes to the job with the largest predicted decrease of its loss in the same time.
//!
//! Zhang et al., *SLAQ: Quality-Driven Scheduling for Distributed Machine Learning*, SoCC'17, as described for
//! comparison by MLFS's authors (CoNEXT'20, §2): for the available resources, the loss reduction of each job with one
//! more resource is predicted, and the job with the largest one gets it. Each round starts anew: workers are added and
//! removed, and jobs with almost constant losses wait. The objective is the mean quality over time, not completion
//! times: converging jobs end late.
//!
//! * The gain of a shape is the predicted decrease of the loss in `interval`, by the fits of loss and speed, divided by
//!   the job's largest decrease in an epoch so far. This is SLAQ's normalisation, which makes different losses
//!   comparable.
//! * Each job gets its smallest shape before any job gets more, as in SLAQ, so that no job starves while there is room
//!   for all. Smallest shapes go by their gain per GPU, and so do further workers with their parameter servers.
//! * Jobs that can't be resized (model-parallel ones) get their requested shape or nothing, by their gain per GPU.
//!
//! The papers leave some points open. The following choices are our own:
//! * Until a job's losses can be fitted, it is new and goes first, because SLAQ favours early iterations. A started job
//!   without a fit after `fresh` counts as if each epoch had its largest decrease so far.
//! * If no speed is known, a job is assumed to train one epoch per round in its requested shape, and gets no more than
//!   that.
//! * A worker that lowers no loss isn't assigned.
//! * SLAQ divides CPU cores among the jobs of one Spark cluster, where changes are free. Here workers start and stop.
//!   The site's `stability` limits how often.
//!
//! Choose it for comparisons, or if many models are explored and each should soon be good but none perfect.
//!
//! Cost: O(T log J + L) for T steps of J jobs with L epochs of losses in total, plus O(log S) per placed slot.

use std::collections::BTreeMap;

use crate::engine::{About, Build, Engine, EngineError, Parameters, Round, Triggers, placing::Placing, round};
use crate::{ids::JobId, job::Job, settings::SettingsError, shape::Shape, time::Span};

/// The engine, as its module describes it.
#[derive(Clone, Debug)]
pub struct Slaq {
    interval: Span,
    fresh: Span,
    placing: Placing,
}

impl Build for Slaq {
    type Engine = Self;
    const ABOUT: About = About::new(
        "slaq",
        "the next worker goes where it is predicted to lower the loss most",
        "Zhang et al., SLAQ, SoCC'17; baseline of MLFS",
    );

    fn build(parameters: &mut Parameters<'_>) -> Result<Self, SettingsError> {
        let fresh = "a job whose losses have no fit counts as new, and goes first, until so long after its first start";
        Ok(Self {
            interval: round::minute(parameters)?,
            fresh: parameters.span("fresh", "1h", fresh)?,
            placing: Placing::of(parameters, "spread")?,
        })
    }
}

impl Engine for Slaq {
    type Memo = ();
    type Index = ();

    fn triggers(&self) -> Triggers {
        Triggers { interval: Some(self.interval), arrival: true, departure: true }
    }

    fn decide(&self, round: &mut Round<'_>, (): &mut ()) -> Result<(), EngineError> {
        let state = round.state;
        let falls: BTreeMap<JobId, f64> = state.jobs.values().map(|job| (job.id, largest_fall(job))).collect();
        let is_new = |job: &Job| {
            let old = job.seen.started.is_some_and(|started| state.now - started >= self.fresh);
            job.learnt.fits.loss.is_none() && !old
        };
        let rank = |job: &Job| u8::from(!is_new(job));
        let gain = |job: &Job, shape| self.reduction(job, shape, falls[&job.id]);
        round.by_gain(self.placing, rank, gain)
    }
}

impl Slaq {
    /// Predicted decrease of a job's loss in a round, in units of its largest decrease in an epoch so far.
    fn reduction(&self, job: &Job, shape: Shape, fall: f64) -> f64 {
        let more = job.epochs_in(shape, self.interval);
        let more = more.unwrap_or_else(|| f64::from(shape.workers) / f64::from(job.spec.requested().workers.max(1)));
        match &job.learnt.fits.loss {
            None => more,
            Some(_) if fall <= 0.0 => 0.0,
            Some(fit) => {
                let done = job.epochs_done();
                f64::max(0.0, fit.loss_at(done) - fit.loss_at(done + more)) / fall
            }
        }
    }
}

/// The largest decrease of the loss in an epoch so far. O(epochs).
fn largest_fall(job: &Job) -> f64 {
    let points = job.learnt.losses.points();
    let falls = points.windows(2).map(|pair| (pair[0].loss - pair[1].loss) / (pair[1].epoch - pair[0].epoch));
    falls.fold(0.0, f64::max)
}
