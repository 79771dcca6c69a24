//! Reports of batches and gradients, and the choice of a job's batch.

use super::{Change, State};
use crate::{
    batch::GradientNoise,
    event::EventError,
    fit::speed::Goodput,
    ids::{Incarnation, JobId},
    job::Batching,
    shape::Role,
};

impl State {
    /// Takes the batch and the gradient statistics of a job's coming report. Values that can't be true are ignored and
    /// counted. A job with a fixed batch has no use for them; and if the report will be refused, because it is of
    /// another incarnation or was seen before, nothing is taken. O(log slots).
    pub(super) fn report_batch(
        &mut self,
        id: JobId,
        (incarnation, slot, seq): (Incarnation, (Role, u32), u64),
        batch: Option<u64>,
        noise: Option<GradientNoise>,
    ) -> Result<(), EventError> {
        let job = self.jobs.get(&id).ok_or(EventError::UnknownJob(id))?;
        let Some(mut batching) = job.batching.clone() else { return Ok(()) };
        let has_slots = job.issued.allocation.is_some() || job.seen.allocation.is_some();
        let is_old = job.learnt.reported.get(&slot).is_some_and(|last| seq <= *last);
        if incarnation != job.issued.incarnation || !has_slots || is_old {
            return Ok(());
        }
        let used = batch.filter(|batch| (1..=batching.range.max).contains(batch));
        batching.used = used.or(batching.used);
        // Without its batch, nobody knows of which steps the report is.
        let seen = noise.filter(|noise| noise.is_valid() && batching.used.is_some());
        let strange = u64::from(used != batch) + u64::from(seen.is_none() && noise.is_some());
        if let Some(seen) = seen {
            batching.learn(seen);
        }
        if batching.is_news() {
            self.pending.unfitted.insert(id);
        }
        let job = self.job_mut(id).expect("looked up above");
        job.batching = Some(batching);
        job.learnt.progress.ignored += strange;
        self.note(Change::Job(id));
        Ok(())
    }

    /// Chooses the batches of jobs with new fits. O(jobs).
    pub(crate) fn choose_batches(&mut self, fitted: impl IntoIterator<Item = JobId>) {
        for id in fitted {
            let Some(job) = self.jobs.get(&id).filter(|job| job.batching.is_some()) else { continue };
            let noise = job.learnt.fits.speed.as_ref().and_then(|fit| fit.goodput()).map(|goodput| goodput.noise());
            let job = self.job_mut(id).expect("looked up above");
            job.batching.iter_mut().for_each(|batching| batching.fitted = noise);
            self.choose_batch(id);
        }
    }

    /// Chooses a job's batch, and tells it if it changes. O(1).
    pub(super) fn choose_batch(&mut self, id: JobId) {
        let now = self.now;
        if self.job_mut(id).is_some_and(|job| job.choose_batch(now)) {
            self.outbox.unsent.insert(id);
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
