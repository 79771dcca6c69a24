//! What a job's reports say, and what is predicted from them.

use std::{collections::BTreeMap, sync::Arc};

use imbl::OrdSet;
use serde::{Deserialize, Serialize};

use crate::{
    fit::{AccuracyHistory, LossFit, LossHistory, Prediction, SpeedFit, SpeedHistory, Stop, Straggler, StragglerWatch},
    shape::Role,
    time::{Span, Time},
};

/// How far a job's training has come, from its reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// When it was last reported.
    pub at: Option<Time>,
    /// Steps done, over all incarnations.
    pub step: u64,
    /// Whole epochs done.
    pub epoch: u32,
    /// Steps in one epoch at the current shape; 0 until reported.
    pub steps_per_epoch: u64,
    /// The last reported loss.
    pub loss: Option<f64>,
    /// The last reported accuracy.
    pub accuracy: Option<f64>,
    /// Steps per second over the last report, at the shape it ran in.
    pub speed: Option<f64>,
    /// Reports that were ignored: nonsense, out of order, of an old incarnation.
    pub ignored: u64,
}

/// The watch over a job's workers, and whom it found last.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stragglers {
    /// None before the first report with times.
    pub(crate) watch: Option<StragglerWatch>,
    /// Workers that were too slow in the last report, and in enough reports before it.
    pub found: Vec<Straggler>,
}

/// What the fits say, as of the last time they ran.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Fits {
    /// Loss over epochs.
    pub loss: Option<LossFit>,
    /// When that meets the job's convergence rule.
    pub convergence: Option<Prediction>,
    /// Steps per second over (p, w).
    pub speed: Option<SpeedFit>,
    /// Why further training isn't worthwhile (MLF-C's OptStop), where the job may be stopped for that.
    pub stop: Option<Stop>,
}

/// What a job's reports say, and what is predicted from them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Learnt {
    /// How far it has come.
    pub progress: Progress,
    /// Data chunks trained to their end.
    pub chunks: OrdSet<u32>,
    /// Mean losses over epochs.
    pub losses: Arc<LossHistory>,
    /// Reported accuracies over epochs.
    pub accuracies: Arc<AccuracyHistory>,
    /// Measured speeds by (p, w).
    pub speeds: Arc<SpeedHistory>,
    /// Predictions.
    pub fits: Arc<Fits>,
    /// Last sequence number accepted from each reporting slot of the incarnation that is to run.
    pub reported: BTreeMap<(Role, u32), u64>,
    /// Workers that hold the others up.
    pub stragglers: Arc<Stragglers>,
    /// Measured time that a restart costs; before the first, what the owner said.
    pub restart_cost: Span,
    /// Time lost to restarts so far.
    pub restart_total: Span,
}

impl Learnt {
    /// Nothing but what the owner says of speeds and restarts.
    pub(crate) fn nothing(speeds: SpeedHistory, restart_cost: Span) -> Self {
        Self {
            progress: Progress::default(),
            chunks: OrdSet::new(),
            losses: Arc::default(),
            accuracies: Arc::default(),
            speeds: Arc::new(speeds),
            fits: Arc::default(),
            reported: BTreeMap::new(),
            stragglers: Arc::default(),
            restart_cost,
            restart_total: Span::ZERO,
        }
    }
}
