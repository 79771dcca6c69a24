//! The batches of a job with a range: what its labels say, what its reports showed, and what it was told.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    sizes::Parallel,
    spec::{JobSpec, TrainingMode},
};
use crate::{
    batch::{Batch, BatchRange, GradientNoise, gain},
    fit::NoiseCurve,
    text::shown,
    time::Time,
};

/// Number of reports after which a new one moves the mean noise by 1/`HORIZON`.
const HORIZON: f64 = 3.0;

impl BatchRange {
    /// The labels in which a job has them. In a job file, `batch = { size = 64, min = 64, max = 4096, local = 128 }`.
    pub const LABELS: [&str; 3] = ["batch.min", "batch.max", "batch.local"];

    /// Whether a label is one of them, and not what a server must have.
    pub(crate) fn is_label(label: &str) -> bool {
        Self::LABELS.contains(&label)
    }

    /// That of a job. `None` if its batch is fixed and no limit of a replica is given.
    ///
    /// # Errors
    /// Names the label whose value isn't allowed, and says what is.
    pub fn of(spec: &JobSpec) -> Result<Option<Self>, (&'static str, String)> {
        if !Self::LABELS.iter().any(|label| spec.labels.contains_key(*label)) {
            return Ok(None);
        }
        let [min, max, local] = Self::LABELS.map(|label| number(&spec.labels, label));
        let parallel = Parallel::of(&spec.labels)?;
        let group = parallel.map_or(1, |parallel| parallel.group(spec.worker.whole_gpus()));
        let range = Self {
            submitted: spec.batch,
            min: min?.unwrap_or(spec.batch),
            max: max?.unwrap_or(spec.batch),
            local: local?.unwrap_or(Self::MOST),
            group: u32::try_from(group).unwrap_or(u32::MAX).max(1),
        };
        range.check(spec)?;
        Ok(Some(range))
    }

    fn check(&self, spec: &JobSpec) -> Result<(), (&'static str, String)> {
        let [of_min, of_max, of_local] = Self::LABELS;
        let given = Self::LABELS.into_iter().rev().find(|label| spec.labels.contains_key(*label)).unwrap_or(of_max);
        if spec.batch > Self::MOST {
            return Err(("batch", format!("{} must be at most 2^40 in a range", spec.batch)));
        }
        if spec.mode == TrainingMode::Async {
            return Err((given, "an async job's workers have separate batches, which stay as submitted".into()));
        }
        if spec.dataset.is_some() || !spec.partitions.is_empty() {
            let what = if spec.dataset.is_some() { "dataset" } else { "partitions" };
            return Err((given, format!("can't be used with {what}, whose times are for one batch")));
        }
        if self.min > spec.batch {
            return Err((of_min, format!("{} must be at most the submitted batch, {}", self.min, spec.batch)));
        }
        if self.max < spec.batch {
            return Err((of_max, format!("{} must be at least the submitted batch, {}", self.max, spec.batch)));
        }
        let replicas = u64::from(self.replicas(spec.worker.max));
        if self.max < replicas {
            return Err((
                if spec.labels.contains_key(of_max) { of_max } else { "batch" },
                format!("{} must be at least {replicas}, so that each replica has an example", self.max),
            ));
        }
        if self.max.div_ceil(self.local) > u32::MAX.into() {
            return Err((
                of_local,
                format!("{} is too few: a batch of {} would take 2^32 passes", self.local, self.max),
            ));
        }
        Ok(())
    }
}

impl Batch {
    /// Puts it into the environment of the job's processes, in place of another one.
    pub(super) fn tell(self, submitted: u64, environment: &mut Vec<(&'static str, String)>) {
        let told = [
            ("TRAINMASTER_BATCH", self.size),
            ("TRAINMASTER_BATCH_SUBMITTED", submitted),
            ("TRAINMASTER_BATCH_LOCAL", self.local),
            ("TRAINMASTER_BATCH_PASSES", self.passes.into()),
        ];
        environment.retain(|(name, _)| told.iter().all(|(new, _)| new != name));
        environment.extend(told.map(|(name, number)| (name, number.to_string())));
    }
}

fn number(labels: &BTreeMap<String, String>, label: &'static str) -> Result<Option<u64>, (&'static str, String)> {
    let Some(text) = labels.get(label) else { return Ok(None) };
    match text.parse() {
        Ok(number) if (1..=BatchRange::MOST).contains(&number) => Ok(Some(number)),
        _ => Err((label, format!("\"{}\" must be a whole number of examples from 1 to 2^40", shown(text, 32)))),
    }
}

/// Number of reports from which the noise counts: a single one can be far off.
const FEW: f64 = 2.0;

/// Batch and gradient noise of a job with a range of batches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Batching {
    /// The batches that its owner allows.
    pub range: BatchRange,
    /// Mean over its reports. `None` before the first one.
    pub noise: Option<GradientNoise>,
    /// Number of reports in the mean, at most [`HORIZON`].
    reports: f64,
    /// The batch of its last report. `None`: it reported none, so it has the submitted one.
    pub used: Option<u64>,
    /// The batch that it should use at its issued shape. `None` before it had one.
    pub chosen: Option<Batch>,
    /// When it last changed without a change of the shape.
    pub(super) changed: Option<Time>,
    /// The noise scale of its speed fit, in snapshots before version 18.
    pub(super) fitted: Option<f64>,
    /// The noise scale at which a new fit was last needed.
    asked: Option<f64>,
}

impl Batching {
    /// Before any report.
    pub(crate) fn new(range: BatchRange) -> Self {
        Self { range, noise: None, reports: 0.0, used: None, chosen: None, changed: None, fitted: None, asked: None }
    }

    /// Forgets the mean, because its reports were of another batch.
    pub(crate) fn forget_noise(&mut self) {
        (self.noise, self.reports) = (None, 0.0);
    }

    /// Adds the statistics of a report. Both are averaged by themselves, as their ratio has outliers.
    pub(crate) fn learn(&mut self, seen: GradientNoise) {
        self.reports = (self.reports + 1.0).min(HORIZON);
        let mean = self.noise.get_or_insert_default();
        mean.sqr += (seen.sqr - mean.sqr) / self.reports;
        mean.var += (seen.var - mean.var) / self.reports;
    }

    /// The number of steps of the submitted batch that one step of its last report is worth. 1 without noise.
    pub(crate) fn gain(&self) -> f64 {
        let gain = |noise: GradientNoise, used: u64| gain(noise.scale(), self.range.submitted as f64, used as f64);
        self.noise.zip(self.used).map_or(1.0, |(noise, used)| gain(noise, used))
    }

    /// Takes the noise scale of a speed fit out of an old snapshot.
    pub(crate) fn take_fitted(&mut self) -> Option<f64> {
        self.fitted.take()
    }

    /// The noise scale, once it may choose its batch by it.
    pub(crate) fn scale(&self) -> Option<f64> {
        let known = self.noise.filter(|_| self.range.is_free() && self.reports >= FEW);
        known.map(GradientNoise::scale)
    }

    /// The noise scale by batch: as the job measured it at its batch, and at others as the model's jobs did. `None` if
    /// the batch is fixed, or if neither is known.
    pub(crate) fn noise_by_batch(&self, others: Option<NoiseCurve>) -> Option<NoiseCurve> {
        match (self.scale(), others.filter(|_| self.range.is_free())) {
            (Some(own), Some(others)) => Some(others.through(self.used.unwrap_or(self.range.submitted) as f64, own)),
            (own, others) => own.map(NoiseCurve::constant).or(others),
        }
    }

    /// Whether the noise scale has moved by a quarter since this was last true, so that a fit should be renewed.
    pub(crate) fn is_news(&mut self) -> bool {
        let Some(now) = self.scale() else { return false };
        let moved = |asked: f64| now > 1.25 * asked + 1.0 || asked > 1.25 * now + 1.0;
        let news = self.asked.is_none_or(moved);
        if news {
            self.asked = Some(now);
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_forgets_and_its_moves_are_news() {
        let mut batching = Batching::new(BatchRange { submitted: 64, min: 64, max: 640, local: 64, group: 1 });
        batching.learn(GradientNoise { sqr: 1.0, var: 100.0 });
        assert!(!batching.is_news(), "a single report says little");
        batching.learn(GradientNoise { sqr: 1.0, var: 100.0 });
        assert_eq!((batching.is_news(), batching.is_news(), batching.scale()), (true, false, Some(100.0)));
        for _ in 0..100 {
            batching.learn(GradientNoise { sqr: 0.1, var: 100.0 });
        }
        assert!((batching.scale().unwrap() / 1000.0 - 1.0).abs() < 0.01);
        assert_eq!((batching.is_news(), batching.is_news()), (true, false));
    }
}
