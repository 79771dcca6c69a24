//! Fixed-point sums, which make a step's result independent of the number of workers.
//!
//! Floating-point addition depends on its order, and integer addition doesn't. Each micro-shard's gradient is computed
//! in a fixed order of operations and rounded once to a multiple of 2⁻³². From then on it is added as an integer, in
//! the order of arrival.
//!
//! The value of one micro-shard saturates at ±2²⁰ (±2⁵² units). So the sum of up to [`MAX_MICRO_SHARDS`] of them in a
//! step can't overflow an `i64`.

/// Units per 1.0.
pub(crate) const SCALE: f64 = 4_294_967_296.0;

/// Maximum number of micro-shards in a step.
pub(crate) const MAX_MICRO_SHARDS: u64 = 256;

const LIMIT: f64 = 4_503_599_627_370_496.0; // 2^52 units

/// A gradient or loss is NaN or infinite: training has diverged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("training diverged: a gradient or loss is not a finite number; try a smaller --learning-rate")]
pub(crate) struct Diverged;

/// Rounds to the nearest unit (halves away from zero), saturating at ±2²⁰.
pub(crate) fn to_fixed(value: f64) -> Result<i64, Diverged> {
    if !value.is_finite() {
        return Err(Diverged);
    }
    #[allow(clippy::cast_possible_truncation)] // clamped to ±2^52 just before
    Ok((value * SCALE).clamp(-LIMIT, LIMIT).round() as i64)
}

/// The value of a sum of units.
#[allow(clippy::cast_precision_loss)] // sums beyond 2^53 units round once, the same way everywhere
pub(crate) fn from_fixed(units: i64) -> f64 {
    units as f64 / SCALE
}

/// Adds the values of one micro-shard to the sums of a step.
pub(crate) fn accumulate(sums: &mut [i64], values: &[f32]) -> Result<(), Diverged> {
    assert_eq!(sums.len(), values.len(), "a gradient has one value per parameter");
    for (sum, value) in sums.iter_mut().zip(values) {
        *sum += to_fixed(f64::from(*value))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_once_and_saturates() {
        assert_eq!(to_fixed(1.0), Ok(1 << 32));
        assert_eq!(to_fixed(-0.5), Ok(-(1 << 31)));
        assert_eq!(to_fixed(0.5 / SCALE), Ok(1));
        assert_eq!(to_fixed(f64::INFINITY), Err(Diverged));
        assert_eq!(to_fixed(2e6), Ok(1 << 52));
        assert_eq!(to_fixed(-1e30), Ok(-(1 << 52)));
        assert_eq!(to_fixed(f64::NAN), Err(Diverged));
        assert!((from_fixed(to_fixed(0.1).unwrap()) - 0.1).abs() < 1e-9);
    }

    #[test]
    fn a_full_step_of_saturated_shards_does_not_overflow() {
        let mut sums = [0];
        for _ in 0..MAX_MICRO_SHARDS {
            accumulate(&mut sums, &[f32::MAX]).unwrap();
        }
        assert_eq!(sums[0], (1 << 52) * 256);
    }

    #[test]
    fn the_order_of_shards_does_not_matter() {
        let shards = [[1e-3_f32, 7.25], [3.3e5, -1.1], [-3.3e5, 0.7]];
        let sum = |order: [usize; 3]| {
            let mut sums = [0; 2];
            order.iter().for_each(|&s| accumulate(&mut sums, &shards[s]).unwrap());
            sums
        };
        assert_eq!(sum([0, 1, 2]), sum([2, 0, 1]));
        assert_eq!(sum([0, 1, 2]), sum([1, 2, 0]));
    }
}
