//! Jobs without further gain (MLF-C: MLFS, §3.5).

use crate::{
    fit::Stop,
    job::{Job, StopChoice},
    reason::{Reason, Share},
};

/// Reason for a job to stop now. None: it continues. While the cluster is overloaded, its owner's rule for that case
/// applies. O(1), because the forecast was computed with the job's last report.
pub(super) fn stops(job: &Job, overloaded: bool) -> Option<Reason> {
    let choice = if overloaded { job.spec.stop_under_load } else { job.spec.stop };
    let reached = || {
        let (accuracy, wanted) = (job.learnt.accuracies.best()?, job.spec.accuracy?);
        let shares = (Share::of(accuracy), Share::of(wanted));
        (accuracy >= wanted).then_some(Reason::AccuracyReached { accuracy: shares.0, wanted: shares.1 })
    };
    match choice {
        StopChoice::Epochs => None,
        StopChoice::Accuracy if job.spec.accuracy.is_some() => reached(),
        // Without a requested accuracy, the best possible one suffices.
        StopChoice::Optimal | StopChoice::Accuracy => match job.learnt.fits.stop? {
            Stop::Reached { .. } => reached(),
            Stop::OutOfReach { predicted, probability } => Some(Reason::OutOfReach {
                wanted: Share::of(job.spec.accuracy?),
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
