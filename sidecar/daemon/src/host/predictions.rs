//! The errors of predictions, told once a job has completed.

use std::collections::HashMap;

use prometheus::Histogram;
use trainmaster_core::{Job, JobId, Span, Time};

/// What was predicted for the jobs that train now. After a restart of the daemon, it begins anew.
#[derive(Debug)]
pub(super) struct Predictions {
    jobs: HashMap<JobId, Vec<Predicted>>,
    epochs: Histogram,
    remaining: Histogram,
}

/// The predictions for a job after an epoch.
#[derive(Clone, Copy, Debug)]
struct Predicted {
    at: Time,
    epoch: u32,
    /// The total of epochs, if the losses say it.
    epochs: Option<u64>,
    remaining: Option<Span>,
}

impl Predictions {
    pub(super) fn new(epochs: Histogram, remaining: Histogram) -> Self {
        Self { jobs: HashMap::new(), epochs, remaining }
    }

    /// Keeps what is predicted when a job has trained 1, 2, 4, 8 … epochs, so at most 33 predictions per job.
    pub(super) fn reported(&mut self, at: Time, job: &Job) {
        let epoch = job.learnt.progress.epoch;
        if epoch == 0 {
            return;
        }
        let known = self.jobs.entry(job.id).or_default();
        if known.last().is_some_and(|last| epoch / 2 < last.epoch) {
            return;
        }
        let is_fixed = job.spec.convergence.fixed().is_some();
        let shape = job.seen.allocation.as_ref().map(|allocation| allocation.shape());
        let predicted = Predicted {
            at,
            epoch,
            epochs: job.learnt.fits.convergence.as_ref().filter(|_| !is_fixed).map(|prediction| prediction.epochs),
            remaining: shape.and_then(|shape| job.remaining_time(shape)),
        };
        known.push(predicted);
    }

    /// Compares the end of a completed job with the last predictions in the first half of its epochs.
    pub(super) fn completed(&mut self, at: Time, job: &Job) {
        let total = job.learnt.progress.epoch;
        let mut known = self.jobs.get(&job.id).into_iter().flatten();
        let Some(halfway) = known.rfind(|predicted| predicted.epoch <= total / 2).copied() else { return };
        if let Some(epochs) = halfway.epochs {
            self.epochs.observe((epochs as f64 - f64::from(total)).abs() / f64::from(total));
        }
        let took = (at - halfway.at).as_seconds();
        if let Some(remaining) = halfway.remaining.filter(|_| took > 0.0) {
            self.remaining.observe((remaining.as_seconds() - took).abs() / took);
        }
    }

    /// Forgets an ended job.
    pub(super) fn forget(&mut self, job: JobId) {
        self.jobs.remove(&job);
    }
}

#[cfg(test)]
mod tests {
    use prometheus::Registry;
    use trainmaster_core::{Event, JobSpec, Scheduler, Settings, fit::Prediction};
    use trainmaster_net::Adder;

    use super::*;

    /// A job after some epochs with a prediction of their total.
    fn job(epoch: u32, total: Option<u64>) -> Job {
        let mut scheduler = Scheduler::new(Settings::default()).unwrap();
        let spec = Box::new(JobSpec::minimal("job"));
        scheduler.apply(Time(1), Event::JobSubmitted { spec, external: None, token_hash: None }).unwrap();
        let mut job = Job::clone(scheduler.state().find_job("job").unwrap());
        job.learnt.progress.epoch = epoch;
        std::sync::Arc::make_mut(&mut job.learnt.fits).convergence = total.map(|epochs| Prediction::certain(epochs, 0));
        job
    }

    fn predictions() -> Predictions {
        let registry = Registry::new();
        let add = |name| Adder(&registry).histogram(name, "an error", &[0.1, 1.0]).unwrap();
        Predictions::new(add("epochs"), add("remaining"))
    }

    #[test]
    fn the_last_prediction_of_the_first_half_counts() {
        let mut predictions = predictions();
        for (epoch, total) in [(0, Some(1)), (1, Some(50)), (2, Some(40)), (3, Some(1)), (4, Some(25)), (9, Some(20))] {
            predictions.reported(Time(1000), &job(epoch, total));
        }
        assert_eq!(predictions.jobs.values().next().unwrap().len(), 4);
        predictions.completed(Time(2000), &job(10, Some(10)));
        // Of 10 epochs, the prediction after the fourth counts: 25 instead of 10.
        assert_eq!((predictions.epochs.get_sample_count(), predictions.epochs.get_sample_sum()), (1, 1.5));
        assert_eq!(predictions.remaining.get_sample_count(), 0, "without slots nothing was predicted");
        predictions.forget(JobId(0));
    }

    #[test]
    fn a_job_that_was_never_predicted_has_no_error() {
        let mut predictions = predictions();
        predictions.completed(Time(2000), &job(10, None));
        predictions.reported(Time(1000), &job(1, None));
        predictions.completed(Time(2000), &job(1, None));
        assert_eq!(predictions.epochs.get_sample_count(), 0);
        let id = job(1, None).id;
        predictions.forget(id);
        assert!(predictions.jobs.is_empty());
    }

    #[test]
    fn few_predictions_are_kept_of_a_long_job() {
        let mut predictions = predictions();
        for epoch in (1..100_000).chain([u32::MAX / 2, u32::MAX]) {
            predictions.reported(Time(1), &job_at(epoch));
        }
        assert!(predictions.jobs.values().next().unwrap().len() <= 33);
    }

    fn job_at(epoch: u32) -> Job {
        use std::cell::RefCell;
        thread_local!(static JOB: RefCell<Job> = RefCell::new(job(0, None)));
        JOB.with_borrow_mut(|job| {
            job.learnt.progress.epoch = epoch;
            job.clone()
        })
    }
}
