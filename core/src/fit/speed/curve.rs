//! A speed function in a form for millions of evaluations.

use serde::{Deserialize, Serialize};

use super::model::SpeedModel;

/// f(p, w) with multiplied coefficients: one formula for all models, without heap memory.
///
/// With known M, each model of [`SpeedModel`] has a computation time C and a communication time S. Both are sums of
/// terms in 1/w, 1, w/p, w, p, 1/p, p/w and 1/(p·w). [`speed`](Self::speed) evaluates them times p·w without a
/// division, and divides once at the end. The type is `Copy` and has 96 bytes, so that jobs can store it for inner
/// loops.
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
    /// `C = compute[0]/w + compute[1]·⌈passes/w⌉`.
    compute: [f64; 2],
    /// `S = rest[0]/w + rest[1] + rest[2]·w/p + rest[3]·w + rest[4]·p + rest[5]/p + rest[6]·p/w + rest[7]/(p·w)`.
    rest: [f64; 8],
    /// T² = C² + cross·C·S + S².
    cross: f64,
    /// Number of passes in which one worker computes a whole batch. Up to 1: one pass in each shape. Fitted functions
    /// have one pass; only the simulator's true ones have more, and journals don't contain those.
    #[serde(skip)]
    passes: f64,
}

impl SpeedCurve {
    /// Multiplies `theta` (as in [`SpeedModel`], seconds) by the batch of `model`, in the paper's form.
    ///
    /// Negative and non-finite coefficients count as 0. If none is positive, a step takes one second.
    #[must_use]
    pub fn new(model: SpeedModel, theta: &[f64; 5]) -> Self {
        Self::overlapping(model, theta, 2.0)
    }

    /// The same with overlapping computation and communication: `cross` as in [`SpeedFit`](super::SpeedFit), 0 to 2.
    #[must_use]
    pub fn overlapping(model: SpeedModel, theta: &[f64; 5], cross: f64) -> Self {
        let mut t = theta.map(|v| if v.is_finite() && v > 0.0 { v } else { 0.0 });
        if t.iter().sum::<f64>() <= 0.0 {
            t[usize::from(model.has_batch())] = 1.0;
        }
        let (compute, rest) = match model {
            SpeedModel::Sync { .. } => ([t[0] * model.batch(), t[1]], [0.0, 0.0, t[2], t[3], t[4], 0.0, 0.0, 0.0]),
            // w/f = θ0 + θ1·w/p + θ2·w + θ3·p, divided by w.
            SpeedModel::Async => ([t[0], 0.0], [0.0, t[2], 0.0, 0.0, 0.0, t[1], t[3], 0.0]),
            // θ2·(w−1)/w = θ2 − θ2/w, and θ4·(w−1)/w·(p−1), which is 0 on one server (p = 1).
            SpeedModel::AllReduce { .. } => {
                let (near, far) = (t[2], t[4]);
                let rest = [far - near, near - far, 0.0, t[3], far, 0.0, -far, 0.0];
                ([t[0] * model.batch(), t[1]], rest)
            }
        };
        Self { compute, rest, cross: if cross.is_finite() { cross.clamp(0.0, 2.0) } else { 2.0 }, passes: 0.0 }
    }

    /// Any function of this form, T = C + S, with the coefficients of C and S in the order of the terms (seconds):
    /// `C = compute[0]/w + compute[1]·⌈passes/w⌉` (at least one pass),
    /// `S = rest[0]/w + rest[1] + rest[2]·w/p + rest[3]·w + rest[4]·p + rest[5]/p + rest[6]·p/w + rest[7]/(p·w)`.
    ///
    /// All must be finite, and no time negative.
    #[must_use]
    pub fn of_terms(compute: [f64; 2], passes: f64, rest: [f64; 8]) -> Self {
        Self { compute, rest, cross: 2.0, passes }
    }

    /// Training speed with `servers` parameter servers and `workers` workers, in steps per second.
    ///
    /// The speed without workers is 0. 0 servers count as 1. For all-reduce, 1 is for workers on one
    /// server and 2 for workers on several.
    #[inline]
    #[must_use]
    pub fn speed(&self, servers: u32, workers: u32) -> f64 {
        let p = f64::from(servers.max(1));
        let w = f64::from(workers);
        p * w / self.scaled_time(p, w)
    }

    /// Seconds per step: 1 / [`speed`](Self::speed); infinite without workers.
    #[inline]
    #[must_use]
    pub fn step_time(&self, servers: u32, workers: u32) -> f64 {
        let p = f64::from(servers.max(1));
        let w = f64::from(workers);
        self.scaled_time(p, w) / (p * w)
    }

    /// Step time × p × w, which needs no division.
    #[inline]
    fn scaled_time(&self, p: f64, w: f64) -> f64 {
        let passes = if self.passes > 1.0 { libm::ceil(self.passes / w).max(1.0) } else { 1.0 };
        let c = p * (self.compute[0] + w * self.compute[1] * passes);
        let s = self.scaled_rest(p, w);
        let t = (c * c + self.cross * c * s + s * s).sqrt();
        // The lower bound only matters if the fitted time is 0 (all measured terms vanish at this pair).
        t.max(p * w * 1e-12).max(f64::MIN_POSITIVE)
    }

    /// S × p × w.
    #[inline]
    fn scaled_rest(&self, p: f64, w: f64) -> f64 {
        let [r0, r1, r2, r3, r4, r5, r6, r7] = self.rest;
        p * (r0 + p * r6 + w * (r1 + w * r3 + p * r4)) + w * (r5 + w * r2) + r7
    }

    /// The same curve with a global batch `factor` times as large. Not for asynchronous training.
    #[inline]
    #[must_use]
    pub(crate) fn with_batch(&self, factor: f64) -> Self {
        let [example, step] = self.compute;
        Self { compute: [example * factor, step], passes: self.passes * factor, ..*self }
    }

    /// The global batch f, as a multiple of the curve's own, at which f / ((noise + f) · T(f)) is highest, from `min`
    /// to `max`: the goodput (Pollux, §3.1) with a noise scale of `noise` own batches.
    ///
    /// For a line T = a + b·f it is √(noise · a/b). T is convex in f, so two steps from the line C + S to tangents of T
    /// suffice: over random curves the goodput is within 0.3 % of the highest.
    #[must_use]
    pub(crate) fn best_batch(&self, servers: u32, workers: u32, noise: f64, (min, max): (f64, f64)) -> f64 {
        let (p, w) = (f64::from(servers.max(1)), f64::from(workers));
        // Several passes take their time for each example.
        let has_passes = self.passes * max > w;
        let (example, step) =
            (self.compute[0] + if has_passes { self.compute[1] * self.passes } else { 0.0 }, self.compute[1]);
        let slope = (p * example).max(f64::MIN_POSITIVE);
        let fixed = if has_passes { 0.0 } else { p * w * step };
        let rest = self.scaled_rest(p, w);
        let best = |a: f64, b: f64| (noise * a.max(0.0) / b.max(f64::MIN_POSITIVE)).sqrt().clamp(min, max);
        let mut f = best(fixed + rest, slope);
        for _ in 0..2 {
            let c = slope * f + fixed;
            let t = (c * c + self.cross * c * rest + rest * rest).sqrt().max(f64::MIN_POSITIVE);
            let b = (c + 0.5 * self.cross * rest) / t * slope;
            f = best(t - b * f, b);
        }
        f
    }

    /// The same curve with computation `factor` times as fast (`factor` > 0) and unchanged communication.
    #[must_use]
    pub fn computing_faster(&self, factor: f64) -> Self {
        Self { compute: self.compute.map(|c| c / factor), ..*self }
    }
}
