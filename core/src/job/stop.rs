//! Jobs without further gain (MLF-C: MLFS, §3.5).

use super::{Job, StopChoice};
use crate::{
    fit::Stop,
    reason::{Reason, Share},
};

impl Job {
    /// Reason to stop the job now. `None`: it continues. While the cluster is overloaded, its owner's rule for that
    /// case applies. O(1), because the forecast was computed with the job's last report.
    pub fn stops(&self, overloaded: bool) -> Option<Reason> {
        let choice = if overloaded { self.spec.stop_under_load } else { self.spec.stop };
        let reached = || {
            let (accuracy, wanted) = (self.learnt.accuracies.best()?, self.spec.accuracy?);
            let shares = (Share::of(accuracy), Share::of(wanted));
            (accuracy >= wanted).then_some(Reason::AccuracyReached { accuracy: shares.0, wanted: shares.1 })
        };
        match choice {
            StopChoice::Epochs => None,
            StopChoice::Accuracy if self.spec.accuracy.is_some() => reached(),
            // Without a requested accuracy, the best possible one suffices.
            StopChoice::Optimal | StopChoice::Accuracy => match self.learnt.fits.stop? {
                Stop::Reached { .. } => reached(),
                Stop::OutOfReach { predicted, probability } => Some(Reason::OutOfReach {
                    wanted: Share::of(self.spec.accuracy?),
                    predicted: Share::of(predicted),
                    probability: Share::of(probability),
                }),
                Stop::Settled { accuracy, predicted, probability } => Some(Reason::NothingToGain {
                    accuracy: Share::of(accuracy),
                    predicted: Share::of(predicted),
                    probability: Share::of(probability),
                }),
            },
        }
    }
}
