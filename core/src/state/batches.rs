//! Reports of batches and gradients, and the choice of a job's batch.

use super::{Change, State};
use crate::{
    batch::{BatchRange, GradientNoise},
    event::EventError,
    fit::speed::Goodput,
    ids::{Incarnation, JobId},
    job::Batching,
};

impl State {
    /// Takes the batch and the gradient statistics of a job's coming report. Values that can't be true are ignored and
    /// counted. A job with a fixed batch has no use for them. O(1).
    pub(super) fn report_batch(
        &mut self,
        id: JobId,
        incarnation: Incarnation,
        batch: Option<u64>,
        noise: Option<GradientNoise>,
    ) -> Result<(), EventError> {
        let job = self.jobs.get(&id).ok_or(EventError::UnknownJob(id))?;
        let Some(mut batching) = job.batching.clone() else { return Ok(()) };
        if incarnation != job.issued.incarnation || job.issued.allocation.is_none() && job.seen.allocation.is_none() {
            return Err(EventError::Report { job: id, problem: "its batch is of another incarnation" });
        }
        let used = batch.filter(|batch| (1..=BatchRange::MOST).contains(batch));
        let seen = noise.filter(|noise| noise.is_valid());
        let strange = u64::from(used != batch) + u64::from(seen.is_none() && noise.is_some());
        batching.used = used.or(batching.used);
        if let Some(seen) = seen {
            batching.learn(seen);
        }
        if batching.has_news() {
            self.pending.unfitted.insert(id);
        }
        let job = self.job_mut(id).expect("looked up above");
        job.batching = Some(batching);
        job.learnt.progress.ignored += strange;
        self.note(Change::Job(id));
        Ok(())
    }

    /// Chooses the batches of jobs with new fits. O(jobs · doublings of their ranges).
    pub(crate) fn choose_batches(&mut self, fitted: impl IntoIterator<Item = JobId>) {
        for id in fitted {
            if self.jobs.get(&id).is_some_and(|job| job.batching.is_some())
                && self.job_mut(id).expect("looked up above").choose_batch()
            {
                self.outbox.unsent.insert(id);
            }
        }
    }

    /// What is known of the jobs' batches, for a snapshot. O(jobs).
    pub(crate) fn saved_batches(&self) -> Vec<(JobId, Batching)> {
        self.jobs.values().filter_map(|job| Some((job.id, (**job.batching.as_ref()?).clone()))).collect()
    }

    /// Restores what is known of the jobs' batches. O(saved).
    pub(crate) fn restore_batches(&mut self, saved: Vec<(JobId, Batching)>) {
        for (id, batching) in saved {
            let Some(job) = self.job_mut(id) else { continue };
            if let (Some(noise), Some(fit)) =
                (batching.fitted, &mut std::sync::Arc::make_mut(&mut job.learnt.fits).speed)
            {
                fit.goodput = Some(Goodput::new(batching.range, noise));
            }
            job.batching = Some(Box::new(batching));
        }
    }
}
