//! The speed of a job that may choose its batch.

use super::{super::noise::NoiseCurve, curve::SpeedCurve, model::SpeedSample};
use crate::batch::{Batch, BatchRange, gain};

/// The choice of the batch with the highest goodput (Pollux, OSDI'21, §3.1): speed times statistical efficiency, here
/// in steps of the submitted batch per second.
#[derive(Clone, Debug, PartialEq)]
pub struct Goodput {
    range: BatchRange,
    /// φ by batch.
    noise: NoiseCurve,
}

impl Goodput {
    /// With the owner's range and the noise scales of the gradients.
    pub fn new(range: BatchRange, noise: NoiseCurve) -> Self {
        Self { range, noise }
    }

    /// φ by batch.
    pub fn noise(&self) -> &NoiseCurve {
        &self.noise
    }

    /// How many steps of the submitted batch one with `size` is worth.
    fn gain(&self, size: f64) -> f64 {
        gain(self.noise.at(size), self.range.submitted as f64, size)
    }

    /// Steps of the submitted batch per second with a batch.
    fn of(&self, curve: &SpeedCurve, servers: u32, workers: u32, size: f64) -> f64 {
        let submitted = self.range.submitted as f64;
        let speed = curve.with_batch(size / submitted).speed(servers, workers);
        speed * self.gain(size)
    }

    /// The best batch for a shape, and its goodput. `curve` is that of the submitted batch. Near each batch whose noise
    /// is known, the best one with that noise is tried. Others differ in their noise, so a few steps go up or down from
    /// the best of them. O(known batches²), which are at most eight.
    fn search(&self, curve: &SpeedCurve, servers: u32, workers: u32) -> (f64, f64) {
        /// Number and factor of the steps.
        const STEPS: (u32, f64) = (6, 1.25);
        let submitted = self.range.submitted as f64;
        let (min, max) = self.range.with(workers);
        let (min, max) = (min as f64, max as f64);
        let with = |size: f64| (size, self.of(curve, servers, workers, size));
        let near = self.noise.parts((min, max)).map(|(noise, (from, to))| {
            let range = (from / submitted, to / submitted);
            with(submitted * curve.best_batch(servers, workers, noise / submitted, range))
        });
        let better = |best: (f64, f64), other: (f64, f64)| if other.1 > best.1 { other } else { best };
        let mut best = near.reduce(better).unwrap_or_else(|| with(min));
        for factor in [STEPS.1, 1.0 / STEPS.1] {
            for _ in 0..if self.noise.batches() > 1 { STEPS.0 } else { 0 } {
                let next = with((best.0 * factor).max(min).min(max));
                if next.1 <= best.1 {
                    break;
                }
                best = next;
            }
        }
        best
    }

    /// The highest goodput of a shape.
    pub fn speed(&self, curve: &SpeedCurve, servers: u32, workers: u32) -> f64 {
        self.search(curve, servers, workers).1
    }

    /// The batch of the highest goodput, unless `now` has nearly as much. What was measured at this shape counts more
    /// than the curve: a batch is left only for one that was measured to be better, or is predicted to be better than
    /// all that were measured. While only one was measured, the curve says little about others, so twice as large a
    /// batch is tried if it is nearly as efficient. O(measured).
    pub(crate) fn batch(
        &self,
        curve: &SpeedCurve,
        (servers, workers): (u32, u32),
        now: Option<Batch>,
        measured: &[SpeedSample],
    ) -> Batch {
        /// A change must be worth a twentieth.
        const WORTH: f64 = 1.05;
        /// A trial may lose a fifth.
        const NEARLY: f64 = 0.8;
        let submitted = self.range.submitted as f64;
        let size_of = |sample: &SpeedSample| sample.batch.unwrap_or(submitted);
        let here = || measured.iter().filter(|at| (at.servers.max(1), at.workers) == (servers.max(1), workers));
        let now = now.filter(|now| *now == self.range.batch(workers, now.size as f64));
        let (size, best) = self.search(curve, servers, workers);
        let known = here().map(|at| (self.of_sample(at), size_of(at))).max_by(|a, b| a.0.total_cmp(&b.0));
        let Some((most, known)) = known else {
            let keeps = |now: &Batch| WORTH * self.of(curve, servers, workers, now.size as f64) >= best;
            return now.filter(keeps).unwrap_or_else(|| self.range.batch(workers, size));
        };
        let trial = self.range.batch(workers, 2.0 * known);
        if here().all(|at| size_of(at) == known)
            && self.efficiency(trial.size) >= NEARLY * self.efficiency(known as u64)
        {
            return self.range.batch(workers, size.max(2.0 * known));
        }
        let is = |now: Batch| here().find(|at| size_of(at) == now.size as f64).map(|at| self.of_sample(at));
        let current = now.map(|now| is(now).unwrap_or_else(|| self.of(curve, servers, workers, now.size as f64)));
        let (size, best) = if best > WORTH * most { (size, best) } else { (known, most) };
        match now {
            Some(now) if current.is_some_and(|current| WORTH * current >= best) => now,
            _ => self.range.batch(workers, size),
        }
    }

    /// The goodput of a measured speed.
    pub(crate) fn of_sample(&self, sample: &SpeedSample) -> f64 {
        sample.speed * self.gain(sample.batch.unwrap_or(self.range.submitted as f64))
    }

    /// The efficiency of a batch, relative to the submitted one.
    pub fn efficiency(&self, batch: u64) -> f64 {
        let (submitted, batch) = (self.range.submitted as f64, batch as f64);
        self.gain(batch) * submitted / batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fit::SpeedModel;

    fn curve() -> SpeedCurve {
        // 0.01 s an example, 0.1 s a step, and up to 0.3 s on the wire.
        SpeedCurve::new(SpeedModel::AllReduce { batch: 64.0 }, &[0.01, 0.1, 0.3, 0.0, 0.0])
    }

    fn goodput(noise: f64) -> Goodput {
        Goodput::new(
            BatchRange { submitted: 64, min: 64, max: 64 << 8, local: 1 << 30, group: 1 },
            NoiseCurve::constant(noise),
        )
    }

    #[test]
    fn the_best_batch_is_that_of_the_formula() {
        // With T = a + b·M, goodput is highest at M = √(φ·a/b).
        for (workers, noise) in [(1_u32, 2000.0), (4, 2000.0), (16, 500.0), (16, 50_000.0)] {
            let w = f64::from(workers);
            let (a, b) = (0.1 + 0.3 * (w - 1.0) / w, 0.01 / w);
            let best = (noise * a / b).sqrt();
            let (size, speed) = goodput(noise).search(&curve(), 0, workers);
            assert!(libm::fabs(libm::log2(size / best)) < 0.5, "{workers}: {size} for {best}");
            let exact = gain(noise, 64.0, best) / (a + b * best);
            assert!(speed > 0.99 * exact && speed < exact * 1.000_001, "{workers}: {speed} of {exact}");
        }
    }

    #[test]
    fn a_batch_changes_only_for_a_twentieth() {
        let (curve, goodput) = (curve(), goodput(2000.0));
        let best = goodput.batch(&curve, (0, 16), None, &[]);
        let near = goodput.range.batch(16, best.size as f64 * 0.8);
        assert_ne!(near, best);
        assert_eq!(goodput.batch(&curve, (0, 16), Some(near), &[]), near);
        let far = goodput.range.batch(16, 64.0);
        assert_eq!(goodput.batch(&curve, (0, 16), Some(far), &[]), best);
        // One of another shape isn't kept: its parts don't add up.
        let other = goodput.range.batch(7, best.size as f64);
        assert_eq!(goodput.batch(&curve, (0, 16), Some(other), &[]), best);
    }

    #[test]
    fn what_was_measured_counts_more_than_the_curve() {
        let (curve, goodput) = (curve(), goodput(10_000.0));
        let at = |size: f64, speed: f64| SpeedSample::new(0, 4, speed).at_batch(size);
        let choose = |now: u64, measured: &[SpeedSample]| {
            goodput.batch(&curve, (0, 4), Some(goodput.range.batch(4, now as f64)), measured).size
        };
        // The curve wants about 1,140 examples. With one measured batch, twice as many are tried at least.
        let wanted = choose(64, &[at(64.0, 5.0)]);
        assert!((900..1400).contains(&wanted), "{wanted}");
        // Steps turn out to take the same time with any batch: the largest measured one is left only for a better one.
        let flat = [at(64.0, 5.0), at(1140.0, 5.0), at(8192.0, 4.9)];
        assert_eq!(choose(8192, &flat), 8192);
        assert_eq!(choose(1140, &flat), 8192);
        // A batch that was measured to be slow isn't tried again for its prediction.
        let slow = [at(64.0, 5.0), at(1140.0, 0.05), at(2280.0, 0.02)];
        assert!(choose(64, &slow) == 64 || choose(64, &slow) > 2280 || choose(64, &slow) < 1140);
        // Nothing is known of this number of workers.
        assert_eq!(choose(64, &[SpeedSample::new(0, 2, 9.0)]), choose(64, &[]));
    }

    #[test]
    fn without_noise_the_smallest_batch_is_best() {
        assert_eq!(goodput(0.0).batch(&curve(), (0, 1), None, &[]).size, 64);
        assert!((goodput(1000.0).efficiency(64) - 1.0).abs() < 1e-12);
        assert!((goodput(936.0).efficiency(1064) - 0.5).abs() < 1e-12);
    }
}
