//! Progress from a job's reports, and predictions from it.

use std::{collections::BTreeMap, sync::Arc};

use imbl::OrdSet;
use serde::{Deserialize, Serialize};

use crate::{
    fit::{AccuracyHistory, LossFit, LossHistory, Prediction, SpeedFit, SpeedHistory, Stop, Straggler, StragglerWatch},
    shape::Role,
    time::{Span, Time},
};

/// The training progress of a job, from its reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Time of the last report.
    pub at: Option<Time>,
    /// Steps done, over all incarnations.
    pub step: u64,
    /// Completed epochs.
    pub epoch: u32,
    /// Steps per epoch at the current shape. 0 before the first report.
    pub steps_per_epoch: u64,
    /// Last reported loss.
    pub loss: Option<f64>,
    /// Last reported accuracy.
    pub accuracy: Option<f64>,
    /// Steps per second over the last report's period, at the shape of that time. Of a job whose batch the scheduler
    /// may choose: in steps of the submitted batch.
    pub speed: Option<f64>,
    /// Number of ignored reports: invalid, out of order, or of an old incarnation.
    pub ignored: u64,
}

/// The watch for stragglers among a job's workers, and its last result.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stragglers {
    /// `None` before the first report with times.
    pub(crate) watch: Option<StragglerWatch>,
    /// Workers that were too slow in the last report and in enough reports before it.
    pub found: Vec<Straggler>,
    /// Number of times that slow workers left the job.
    pub replaced: u32,
}

impl Stragglers {
    /// Whether nothing was observed yet.
    pub(crate) fn is_unused(&self) -> bool {
        self.watch.is_none()
    }

    /// Forgets workers that leave, ascending: their indices can be used again.
    pub(crate) fn forget(&mut self, workers: &[u32]) {
        let before = self.found.len();
        self.found.retain(|slow| workers.binary_search(&slow.worker).is_err());
        if self.found.len() < before {
            self.replaced = self.replaced.saturating_add(1);
        }
        if let Some(watch) = &mut self.watch {
            watch.forget_all(workers);
        }
    }
}

/// Results of the last run of the fits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Fits {
    /// Loss over epochs.
    pub loss: Option<LossFit>,
    /// Predicted epoch at which the loss fit meets the job's convergence rule.
    pub convergence: Option<Prediction>,
    /// Steps per second over (p, w).
    pub speed: Option<SpeedFit>,
    /// Why further training isn't worthwhile (MLF-C's OptStop), if the scheduler is allowed to stop the job for that.
    pub stop: Option<Stop>,
}

/// Progress from a job's reports, and predictions from it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Learnt {
    /// Reported progress.
    pub progress: Progress,
    /// Completed data chunks.
    pub chunks: OrdSet<u32>,
    /// Mean losses over epochs.
    pub losses: Arc<LossHistory>,
    /// Reported accuracies over epochs.
    pub accuracies: Arc<AccuracyHistory>,
    /// Measured speeds by (p, w).
    pub speeds: Arc<SpeedHistory>,
    /// Predictions.
    pub fits: Arc<Fits>,
    /// Last accepted sequence number of each reporting slot of the incarnation that should run.
    pub reported: BTreeMap<(Role, u32), u64>,
    /// Workers that delay the others.
    pub stragglers: Arc<Stragglers>,
    /// Measured time of a restart. Before the first restart: the owner's value.
    pub restart_cost: Span,
    /// Total time lost to restarts.
    pub restart_total: Span,
}

impl Learnt {
    /// The initial value: the owner's speeds and restart cost.
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
