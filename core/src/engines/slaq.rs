//! SLAQ: the next GPU goes to the job whose loss it is predicted to lower most in the same time.
//!
//! Zhang et al., *SLAQ: Quality-Driven Scheduling for Distributed Machine Learning*, SoCC'17, as MLFS's authors compare with it
//! (CoNEXT'20, §2): for the resources that there are, the loss reduction is predicted that each job would have with one more of
//! them, and the largest gets it. In every round anew, whoever has to make room: workers come and go, and jobs wait
//! whose losses hardly fall any more. It serves the mean quality over time, not completion times: converging jobs end late.
//!
//! * The gain of a shape is how far the loss is predicted to fall in `interval` by the fits of loss and speed, over the largest fall
//!   in an epoch that the job has had: SLAQ's normalisation, which makes losses of different kinds comparable.
//! * Every job's smallest shape comes before anyone has more, as in SLAQ, so that nobody starves while there is room for all;
//!   those smallest shapes, and then worker after worker with its parameter server, in the order of what they gain per GPU.
//! * Jobs that can't be resized (model-parallel ones) get all that they requested or nothing: their gain per GPU counts.
//!
//! The papers leave open, and chosen is:
//! * Before a job's losses can be fitted it is new, and goes first: SLAQ favours early iterations. Who has started and still
//!   has no fit after `fresh` counts as gaining in every epoch as much as in its best.
//! * Where no speed is known, a job is taken to train an epoch in a round as it was requested, and gets no more than that.
//! * A worker that lowers no loss is handed to nobody.
//! * SLAQ divides CPU cores among jobs of one Spark cluster, where that costs nothing. Here workers start and stop; how often is up to
//!   the site's `stability`.
//!
//! Choose it to compare with, or where many models are explored and each should soon be good, none perfect.
//!
//! Cost: O(T log J + L) for T steps of J jobs that remember L epochs' losses in all, plus O(log S) a slot that is placed.

use std::collections::BTreeMap;

use crate::engine::{About, Build, Engine, EngineError, Parameters, Round, Triggers, placing::Placing, round};
use crate::{shape::Shape, ids::JobId, job::Job, settings::SettingsError, time::Span};

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
    /// What a job's loss is predicted to fall by in a round, in largest falls of an epoch so far.
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

/// The largest fall of the loss in an epoch so far. O(epochs).
fn largest_fall(job: &Job) -> f64 {
    let points = job.learnt.losses.points();
    let falls = points.windows(2).map(|pair| (pair[0].loss - pair[1].loss) / (pair[1].epoch - pair[0].epoch));
    falls.fold(0.0, f64::max)
}
