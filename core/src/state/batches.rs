//! Reports of batches and gradients, and the choice of a job's batch.

use std::{collections::BTreeMap, sync::Arc};

use super::{Change, Model, State};
use crate::{
    batch::GradientNoise,
    event::EventError,
    fit::{NoiseCurve, NoiseHistory, speed::Goodput},
    ids::{Incarnation, JobId},
    job::Batching,
    shape::Role,
};

/// The noise that a model's jobs reported, and the fits of the active ones.
pub(crate) type SavedNoise = (Arc<str>, NoiseHistory, Vec<(JobId, NoiseCurve)>);

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
        /// A mean is of batches that differ by less than this factor.
        const SAME: f64 = std::f64::consts::SQRT_2;
        let used = batch.filter(|batch| (1..=batching.range.max).contains(batch));
        let differs = |(old, new): (u64, u64)| (old.max(new) as f64) > SAME * old.min(new) as f64;
        if batching.used.zip(used).is_some_and(differs) {
            batching.forget_noise();
        }
        batching.used = used.or(batching.used);
        // Without its batch, nobody knows of which steps the report is.
        let seen = noise.filter(|noise| noise.is_valid() && batching.used.is_some());
        let strange = u64::from(used != batch) + u64::from(seen.is_none() && noise.is_some());
        if let Some(seen) = seen {
            batching.learn(seen);
        }
        if let (Some(_), Some(used), Some(scale)) = (seen, batching.used, batching.scale()) {
            // The progress is that of the report before, because this one's comes after its noise.
            let (name, examples) = (job.model.clone(), job.examples_done());
            let model = Arc::make_mut(self.models.get_mut(&name).expect("it has an active job"));
            let is_first = model.noise.is_empty();
            Arc::make_mut(&mut model.noise).report(used, examples, scale);
            if is_first {
                // The model's other jobs may prefer another batch.
                let others = self.jobs.values().filter(|job| job.model == name && job.batching.is_some());
                self.pending.unfitted.extend(others.map(|job| job.id).collect::<Vec<_>>());
            }
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
            if self.jobs.get(&id).is_some_and(|job| job.batching.is_some()) {
                self.choose_batch(id);
            }
        }
    }

    /// Chooses a job's batch, and tells it if it changes. O(1).
    pub(super) fn choose_batch(&mut self, id: JobId) {
        let now = self.now;
        if self.job_mut(id).is_some_and(|job| job.choose_batch(now)) {
            self.outbox.unsent.insert(id);
        }
    }

    /// The jobs' batches and noise, for a snapshot. O(jobs).
    pub(crate) fn saved_batches(&self) -> Vec<(JobId, Batching)> {
        self.jobs.values().filter_map(|job| Some((job.id, (**job.batching.as_ref()?).clone()))).collect()
    }

    /// The noise that the jobs' models and fits know, by model, for a snapshot. O(jobs · log models +
    /// cells).
    pub(crate) fn saved_noises(&self) -> Vec<SavedNoise> {
        let mut curves: BTreeMap<&str, Vec<(JobId, NoiseCurve)>> = BTreeMap::new();
        for job in self.jobs.values() {
            if let Some(goodput) = job.learnt.fits.speed.as_ref().and_then(|fit| fit.goodput()) {
                curves.entry(&job.model).or_default().push((job.id, goodput.noise().clone()));
            }
        }
        let of = |(name, model): (&Arc<str>, &Arc<Model>)| {
            (name.clone(), (*model.noise).clone(), curves.remove(&**name).unwrap_or_default())
        };
        self.models.iter().map(of).filter(|(_, history, curves)| !history.is_empty() || !curves.is_empty()).collect()
    }

    /// Restores them. O(saved).
    pub(crate) fn restore_noises(&mut self, saved: Vec<SavedNoise>) {
        for (name, history, curves) in saved {
            if let Some(model) = self.models.get_mut(&name) {
                Arc::make_mut(model).noise = Arc::new(history);
            }
            for (id, curve) in curves {
                self.set_noise(id, curve);
            }
        }
    }

    fn set_noise(&mut self, id: JobId, noise: NoiseCurve) {
        let Some(job) = self.job_mut(id) else { return };
        if let (Some(batching), Some(fit)) = (&job.batching, &mut Arc::make_mut(&mut job.learnt.fits).speed) {
            fit.goodput = Some(Goodput::new(batching.range, noise));
        }
    }

    /// Restores what is known of the jobs' batches. O(saved).
    pub(crate) fn restore_batches(&mut self, saved: Vec<(JobId, Batching)>) {
        for (id, mut batching) in saved {
            let Some(job) = self.job_mut(id) else { continue };
            let fitted = batching.take_fitted();
            job.batching = Some(Box::new(batching));
            if let Some(noise) = fitted {
                self.set_noise(id, NoiseCurve::constant(noise));
            }
        }
    }
}
