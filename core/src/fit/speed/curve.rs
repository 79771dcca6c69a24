//! A speed function ready to be evaluated millions of times.

use serde::{Deserialize, Serialize};

use super::SpeedModel;

/// f(p, w) with the coefficients multiplied out: three models, one formula, one division, no branch, no heap.
///
/// All three models of [`SpeedModel`] have a step time of the form
/// c0/w + c1 + c2·w/p + c3·w + c4·p + c5/p + c6·p/w once M is known; [`speed`](Self::speed) evaluates p·w over that sum
/// times p·w. `Copy`, 56 bytes: keep it beside the job it belongs to and evaluate it in the inner loop.
///
/// # Examples
///
/// ```
/// use trainmaster_core::fit::speed::{SpeedCurve, SpeedModel};
///
/// // 0.01 s an example, 0.1 s fixed, 0.2 s · w/p on the wire.
/// let curve = SpeedCurve::new(SpeedModel::Sync { batch: 64.0 }, &[0.01, 0.1, 0.2, 0.0, 0.0]);
/// assert!((curve.step_time(2, 4) - (0.01 * 64.0 / 4.0 + 0.1 + 0.2 * 2.0)).abs() < 1e-12);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpeedCurve {
    c: [f64; 7],
}

impl SpeedCurve {
    /// Multiplies out `theta` (as in [`SpeedModel`], seconds) for the batch of `model`.
    ///
    /// Negative or non-finite coefficients count as 0; if none is positive, a step takes one second.
    #[must_use]
    pub fn new(model: SpeedModel, theta: &[f64; 5]) -> Self {
        let t = theta.map(|v| if v.is_finite() && v > 0.0 { v } else { 0.0 });
        let mut c = match model {
            SpeedModel::Sync { .. } => [t[0] * model.batch(), t[1], t[2], t[3], t[4], 0.0, 0.0],
            // w/f = θ0 + θ1·w/p + θ2·w + θ3·p, divided by w.
            SpeedModel::Async => [t[0], t[2], 0.0, 0.0, 0.0, t[1], t[3]],
            // θ2·(w−1)/w = θ2 − θ2/w: c0 may be negative, the sum is not.
            SpeedModel::AllReduce { .. } => [t[0] * model.batch() - t[2], t[1] + t[2], 0.0, t[3], 0.0, 0.0, 0.0],
        };
        if t.iter().sum::<f64>() <= 0.0 {
            c = [0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0];
        }
        Self { c }
    }

    /// Training speed with `servers` parameter servers and `workers` workers, in steps a second.
    ///
    /// No workers make no steps; a count of 0 servers is read as 1, which all-reduce does not look at.
    #[inline]
    #[must_use]
    pub fn speed(&self, servers: u32, workers: u32) -> f64 {
        let p = f64::from(servers.max(1));
        let w = f64::from(workers);
        let pw = p * w;
        // The floor matters only where a fitted time is 0 (every measured term vanishes at this pair).
        pw / self.scaled_time(p, w).max(pw * 1e-12).max(f64::MIN_POSITIVE)
    }

    /// Seconds per step: 1 / [`speed`](Self::speed); infinite without workers.
    #[inline]
    #[must_use]
    pub fn step_time(&self, servers: u32, workers: u32) -> f64 {
        1.0 / self.speed(servers, workers)
    }

    /// The same curve on machines `factor` times as fast (`factor` > 0).
    #[must_use]
    pub fn faster(&self, factor: f64) -> Self {
        Self { c: self.c.map(|c| c / factor) }
    }

    /// Step time × p × w: the form that needs no division.
    #[inline]
    fn scaled_time(&self, p: f64, w: f64) -> f64 {
        let [c0, c1, c2, c3, c4, c5, c6] = self.c;
        p * (c0 + p * c6 + w * (c1 + w * c3 + p * c4)) + w * (c5 + w * c2)
    }
}
