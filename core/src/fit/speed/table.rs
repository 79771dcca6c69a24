//! Speeds that are a table rather than a curve.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{curve::SpeedCurve, model::SpeedSample};

/// Speeds measured with each number of workers, as corrections of a fitted curve.
///
/// A job that runs only with some numbers of workers has another execution plan for each: other degrees of tensor and
/// pipeline parallelism, offloading or none. From one number to the next its speed can jump eightfold, or fall, which
/// no smooth function follows. So the measured speeds themselves count. A number that wasn't measured has the curve's
/// speed with a correction that is interpolated between its two measured neighbours, by doublings of the workers. It is
/// halved (as a logarithm) with each doubling between the number and the nearer neighbour, so far away the curve alone
/// counts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SpeedTable {
    /// Workers, ascending, and ln(measured speed / the curve's).
    rows: Vec<(u32, f64)>,
}

impl SpeedTable {
    /// The corrections of a curve, which is that of a `batch`, by measurements without parameter servers. Where `own`
    /// has none, `others` count. `None` without any. O(samples · log samples), of which a history has at most 64.
    pub(crate) fn of(curve: &SpeedCurve, batch: f64, own: &[SpeedSample], others: &[SpeedSample]) -> Option<Self> {
        // The mean over the batches that were measured with as many workers: their number, and the sum of corrections.
        let mut rows: BTreeMap<u32, (f64, f64)> = BTreeMap::new();
        for samples in [own, others] {
            let known = rows.clone();
            for sample in samples.iter().filter(|sample| !known.contains_key(&sample.workers)) {
                let there = sample.batch.map_or(*curve, |at| curve.with_batch(at / batch));
                let off = libm::log(sample.speed / there.speed(sample.servers.clamp(1, 2), sample.workers));
                if off.is_finite() {
                    let (count, sum) = rows.entry(sample.workers).or_default();
                    (*count, *sum) = (*count + 1.0, *sum + off);
                }
            }
        }
        let rows: Vec<_> = rows.into_iter().map(|(workers, (count, sum))| (workers, sum / count)).collect();
        (!rows.is_empty()).then_some(Self { rows })
    }

    /// The factor on the curve's speed. O(log measured).
    pub fn factor(&self, workers: u32) -> f64 {
        let above = self.rows.partition_point(|(known, _)| *known < workers);
        let log2 = |workers: u32| libm::log2(f64::from(workers.max(1)));
        let near = |row: &(u32, f64)| (libm::fabs(log2(row.0) - log2(workers)), row.1);
        let (low, high) = (above.checked_sub(1).map(|at| near(&self.rows[at])), self.rows.get(above).map(near));
        let (distance, off) = match (low, high) {
            (_, Some((0.0, off))) => return libm::exp(off),
            (Some((left, low)), Some((right, high))) => (left.min(right), (low * right + high * left) / (left + right)),
            (Some(only), None) | (None, Some(only)) => only,
            (None, None) => return 1.0,
        };
        libm::exp(off * libm::exp2(-distance))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fit::SpeedModel;

    fn curve() -> SpeedCurve {
        SpeedCurve::new(SpeedModel::AllReduce { batch: 64.0 }, &[0.1, 0.0, 0.0, 0.0, 0.0])
    }

    #[test]
    fn measured_numbers_have_their_measured_speeds() {
        // LLaMA-7B on 4, 8 and 16 GPUs, which the curve has at 0.625, 1.25 and 2.5 steps per second.
        let own = [SpeedSample::new(0, 8, 0.1), SpeedSample::new(0, 16, 0.88)];
        let others = [SpeedSample::new(0, 4, 0.06), SpeedSample::new(0, 8, 9.0)];
        let table = SpeedTable::of(&curve(), 64.0, &own, &others).unwrap();
        let speed = |workers: u32| curve().speed(0, workers) * table.factor(workers);
        for (workers, measured) in [(4, 0.06), (8, 0.1), (16, 0.88)] {
            assert!((speed(workers) / measured - 1.0).abs() < 1e-12, "{workers}: {}", speed(workers));
        }
        // Between two corrections of 0.08 and 0.35, weakened by half a doubling's distance at most.
        let between = table.factor(11);
        assert!(0.1 < between && between < 0.4, "{between}");
        // Far away it fades.
        let (near, far) = (table.factor(32), table.factor(1024));
        assert!(table.factor(16) < near && near < far && (0.97..1.0).contains(&far), "{near} {far}");
    }

    #[test]
    fn without_measurements_there_is_no_table() {
        assert_eq!(SpeedTable::of(&curve(), 64.0, &[], &[]), None);
        let broken = [0.0, -1.0, f64::NAN, f64::INFINITY].map(|speed| SpeedSample::new(0, 4, speed));
        assert_eq!(SpeedTable::of(&curve(), 64.0, &broken, &[]), None);
        assert_eq!(SpeedTable::default().factor(4), 1.0);
    }
}
