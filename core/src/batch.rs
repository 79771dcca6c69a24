//! Batches, and how much a step with a larger one teaches.
//!
//! Source: Pollux (OSDI'21), §3. In a larger batch each example teaches less, by the noise of the gradients. A job
//! whose owner allows a range trains with the batch of the highest *goodput*: speed times that efficiency. Its program
//! scales its learning rate to the batch, and counts its progress in steps of the submitted batch.

use serde::{Deserialize, Serialize};

/// The largest noise scale, in examples. Beyond it, no batch is inefficient.
const MOST_NOISE: f64 = 1e12;

/// The batches that a job's owner allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchRange {
    /// The submitted batch, in whose steps progress is counted. Within the range.
    pub submitted: u64,
    /// The smallest batch, in examples per step of the whole job.
    pub min: u64,
    /// The largest batch.
    pub max: u64,
    /// The most examples that one replica computes at once: what its memory holds. A larger share takes several passes,
    /// whose gradients are added up.
    pub local: u64,
    /// Workers that hold one replica of the model together.
    pub group: u32,
}

impl BatchRange {
    /// The largest batch, in examples.
    pub const MOST: u64 = 1 << 40;

    /// Whether another batch than the submitted one is allowed.
    pub fn is_free(&self) -> bool {
        self.min < self.max
    }

    /// The number of replicas of the model on that many workers, at least 1.
    pub fn replicas(&self, workers: u32) -> u32 {
        (workers / self.group).max(1)
    }

    /// The allowed batches with that many workers: from one example a replica.
    pub fn with(&self, workers: u32) -> (u64, u64) {
        let least = u64::from(self.replicas(workers));
        (self.min.max(least).min(self.max), self.max)
    }

    /// The batch of that many workers nearest above `size`, at most `max`: equal parts for all replicas, in passes of
    /// at most `local` examples, and few of them. If no such batch is in the range, one below it, by less than one
    /// pass of all replicas. That of a batch is itself.
    pub fn batch(&self, workers: u32, size: f64) -> Batch {
        let replicas = u64::from(self.replicas(workers));
        let (min, max) = self.with(workers);
        let wanted = (libm::round(size.max(1.0)) as u64).clamp(min, max);
        let most = (max / replicas).max(1);
        let share = wanted.div_ceil(replicas).min(most);
        let fewest = share.div_ceil(self.local);
        let in_passes = |passes: u64| (share.div_ceil(passes).min(most / passes), passes);
        let full = (self.local.min(most), (most / self.local).max(1));
        // More passes than needed may divide the share better. Full passes come nearest to `max`.
        let parts = (fewest..fewest + 4).map(in_passes).chain([full]).filter(|(local, _)| *local > 0);
        let (local, passes) = parts
            .min_by_key(|(local, passes)| {
                let part = local * passes;
                (part < share, part.abs_diff(share), *passes)
            })
            .unwrap_or((1, 1));
        Batch { size: local * passes * replicas, local, passes: u32::try_from(passes).unwrap_or(u32::MAX) }
    }
}

/// The batch of a job at its shape.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// Examples per step of the whole job: `local` · `passes` · replicas.
    pub size: u64,
    /// Examples that a replica computes at once.
    pub local: u64,
    /// Passes of a replica in a step, whose gradients are added up before they are exchanged.
    pub passes: u32,
}

/// Mean statistics of a job's gradients, as reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GradientNoise {
    /// |G|²: squared norm of the true gradient.
    pub sqr: f64,
    /// tr Σ: variance of the gradient of one example, summed over the parameters.
    pub var: f64,
}

impl GradientNoise {
    /// φ = tr Σ / |G|², in examples: the batch with half of the efficiency of very small ones. The "simple noise scale"
    /// of McCandlish et al. (2018). Without a gradient the largest one.
    pub fn scale(self) -> f64 {
        if self.var <= 0.0 { 0.0 } else { (self.var / self.sqr.max(f64::MIN_POSITIVE)).min(MOST_NOISE) }
    }

    /// Whether both are numbers that can be true.
    pub fn is_valid(self) -> bool {
        let fine = |value: f64| value.is_finite() && value >= 0.0;
        fine(self.sqr) && fine(self.var) && self.sqr + self.var > 0.0
    }
}

/// How many steps of the `submitted` batch one step with `batch` is worth, with a noise scale of `noise` examples:
/// their ratio times the efficiency of the batch, (φ + M₀)/(φ + M) (Pollux, §3.1).
pub fn gain(noise: f64, submitted: f64, batch: f64) -> f64 {
    batch / submitted * ((noise + submitted) / (noise + batch))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(min: u64, max: u64, local: u64, group: u32) -> BatchRange {
        BatchRange { submitted: min, min, max, local, group }
    }

    #[test]
    fn a_batch_is_a_multiple_of_its_replicas_within_the_range() {
        let free = range(32, 4096, 128, 1);
        assert_eq!(free.batch(4, 512.0), Batch { size: 512, local: 128, passes: 1 });
        assert_eq!(free.batch(4, 1000.0), Batch { size: 1000, local: 125, passes: 2 });
        assert_eq!(free.batch(1, 9999.0), Batch { size: 4096, local: 128, passes: 32 });
        // 4096 isn't a multiple of 3 · 11.
        let thirds = free.batch(3, 9999.0);
        assert_eq!((thirds.size, thirds.local * u64::from(thirds.passes)), (4095, 1365));
        // A share that passes of two don't divide.
        assert_eq!(range(12, 12, 2, 1).batch(4, 12.0), Batch { size: 12, local: 1, passes: 3 });
        assert_eq!(range(300, 300, 2, 1).batch(100, 300.0), Batch { size: 300, local: 1, passes: 3 });
        assert_eq!(range(199, 199, 2, 1).batch(1, 199.0), Batch { size: 198, local: 2, passes: 99 });
        // No multiple of 48 is 64.
        assert_eq!(range(64, 64, 64, 1).batch(48, 64.0).size, 48);
        assert_eq!(free.batch(8, 0.0).size, 32);
        // Two groups of four workers.
        assert_eq!(range(32, 4096, 16, 4).batch(8, 64.0), Batch { size: 64, local: 16, passes: 2 });
        for workers in 1..=64 {
            for size in [1.0, 31.0, 33.0, 100.0, 777.0, 5000.0] {
                let batch = free.batch(workers, size);
                assert_eq!(batch.size, batch.local * u64::from(batch.passes) * u64::from(workers));
                assert!(batch.size <= 4096 && batch.local <= 128 && batch.local > 0, "{workers} {size}: {batch:?}");
            }
        }
    }

    #[test]
    fn extreme_ranges_have_batches_that_stay() {
        const MOST: u64 = BatchRange::MOST;
        let mut draws = (1_u64..).map(|at| at.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29));
        let mut draw = |most: u64| 1 + draws.next().unwrap() % most;
        for (min, max, local, workers) in
            [(1, MOST, 256, 10_000), (1, MOST, MOST, 1), (MOST, MOST, 999, 7), (1, 1, 1, 1)]
                .into_iter()
                .chain((0..20_000).map(|_| {
                    let workers = draw(200) as u32;
                    let min = draw(1000);
                    (min, min.max(workers.into()) + draw(5000), draw(300), workers)
                }))
                .collect::<Vec<_>>()
        {
            let range = range(min, max, local, 1);
            for wanted in [0.0, min as f64, max as f64 / 3.0, max as f64, 1e300] {
                let batch = range.batch(workers, wanted);
                let named = || format!("{range:?} {workers} {wanted}: {batch:?}");
                assert_eq!(batch.size, batch.local * u64::from(batch.passes) * u64::from(workers), "{}", named());
                assert!(batch.size <= max && batch.local <= local && batch.size > 0, "{}", named());
                // Below the range only if few passes of equal parts miss it, and by less than a pass.
                let above = min.div_ceil(workers.into()) * u64::from(workers);
                assert!(batch.size >= min || above > max || local < 8, "{}", named());
                assert!(batch.size >= min || batch.size + u64::from(workers) * local > max, "{}", named());
                assert_eq!(range.batch(workers, batch.size as f64), batch, "{}", named());
            }
        }
    }

    #[test]
    fn larger_batches_gain_by_the_noise() {
        assert_eq!(gain(1000.0, 64.0, 64.0), 1.0);
        // Without noise a larger batch teaches nothing more, with much of it as much as more steps.
        assert_eq!(gain(0.0, 64.0, 640.0), 1.0);
        assert!((gain(1e12, 64.0, 640.0) - 10.0).abs() < 1e-6);
        // At a batch of the noise scale the efficiency is half of that at none.
        assert!((gain(640.0, 64.0, 640.0) - 10.0 * 704.0 / 1280.0).abs() < 1e-12);
    }

    #[test]
    fn strange_statistics_are_told_from_possible_ones() {
        let noise = |sqr: f64, var: f64| GradientNoise { sqr, var };
        assert!(noise(1.0, 0.0).is_valid() && noise(0.0, 1.0).is_valid() && noise(1e300, 1e300).is_valid());
        for (sqr, var) in [(-1.0, 1.0), (1.0, -1.0), (f64::NAN, 1.0), (1.0, f64::INFINITY), (0.0, 0.0)] {
            assert!(!noise(sqr, var).is_valid(), "{sqr} {var}");
        }
        assert_eq!(noise(0.0, 1.0).scale(), MOST_NOISE);
        assert_eq!(noise(1e-300, 1e300).scale(), MOST_NOISE);
        assert_eq!(noise(2.0, 10.0).scale(), 5.0);
    }
}
