//! Families of loss curves, and the fit of one of them.

#![allow(clippy::needless_range_loop)] // the code follows the indices of the textbook

use serde::{Deserialize, Serialize};

use super::super::linear::inverse;

/// Form of a loss curve over k, the number of epochs since its segment began. All parameters are ≥ 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Family {
    /// l = 1/(β0·k + β1) + β2 (Optimus, Eq. 1): the O(1/k) of SGD.
    Inverse,
    /// l = a·e^(−b·k) + c: the last phase of a strongly convex problem.
    Exponential,
    /// l = a·(k+1)^(−b) + c: the power law of large models.
    Power,
}

/// One point for the solvers: epochs since the segment's start, normalised loss, and weight (an inverse variance).
#[derive(Clone, Copy, Debug)]
pub(super) struct Obs {
    pub(super) k: f64,
    pub(super) l: f64,
    pub(super) weight: f64,
    /// Number of epochs that the point averages.
    pub(super) epochs: f64,
}

/// Number of values of the searched parameter before refinement.
const GRID: usize = 24;
/// Number of golden-section steps. Each narrows the bracket to 0.618 of its width; `polish` does the rest.
const GOLDEN: usize = 8;
/// Number of Levenberg–Marquardt steps in l.
const POLISH: usize = 12;

impl Family {
    /// Value of the curve at k.
    pub(super) fn value(self, q: &[f64; 3], k: f64) -> f64 {
        match self {
            Self::Inverse => 1.0 / (q[0] * k + q[1]).max(f64::MIN_POSITIVE) + q[2],
            Self::Exponential => q[0] * libm::exp(-q[1] * k) + q[2],
            Self::Power => q[0] * libm::exp(-q[1] * libm::log1p(k.max(0.0))) + q[2],
        }
    }

    /// l(k−1) − l(k) for k ≥ 1, in forms that stay exact where the curve is nearly flat.
    pub(super) fn drop(self, q: &[f64; 3], k: f64) -> f64 {
        match self {
            Self::Inverse => {
                let (before, after) = (q[0] * (k - 1.0) + q[1], q[0] * k + q[1]);
                if after > 0.0 { q[0] / before.max(f64::MIN_POSITIVE) / after } else { 0.0 }
            }
            Self::Exponential => q[0] * libm::exp(-q[1] * (k - 1.0)) * -libm::expm1(-q[1]),
            Self::Power => {
                let gap = libm::log1p(1.0 / k.max(1.0));
                q[0] * libm::exp(-q[1] * libm::log1p((k - 1.0).max(0.0))) * -libm::expm1(-q[1] * gap)
            }
        }
    }

    /// ∂l/∂parameters at k.
    pub(super) fn gradient(self, q: &[f64; 3], k: f64) -> [f64; 3] {
        match self {
            Self::Inverse => {
                let v = 1.0 / (q[0] * k + q[1]).max(f64::MIN_POSITIVE);
                [-k * v * v, -v * v, 1.0]
            }
            Self::Exponential => {
                let e = libm::exp(-q[1] * k);
                [e, -q[0] * k * e, 1.0]
            }
            Self::Power => {
                let log = libm::log1p(k.max(0.0));
                let e = libm::exp(-q[1] * log);
                [e, -q[0] * log * e, 1.0]
            }
        }
    }

    /// Σ weight·(curve − l)².
    pub(super) fn cost(self, q: &[f64; 3], points: &[Obs]) -> f64 {
        let mut sum = 0.0;
        for p in points {
            let error = self.value(q, p.k) - p.l;
            sum += p.weight * error * error;
        }
        if sum.is_finite() { sum } else { f64::INFINITY }
    }

    /// The parameters with the smallest error in l. Requires a non-empty `points` and losses ≥ 0.
    pub(super) fn fit(self, points: &[Obs]) -> [f64; 3] {
        let low = points.iter().map(|p| p.l).fold(f64::INFINITY, f64::min);
        let last = points.iter().map(|p| p.k).fold(1.0, f64::max);
        let start = match self {
            // β2 is in [0, min l). The step sizes shrink towards min l, where the fit is most sensitive.
            Self::Inverse => search(&|s| inverse_at(points, low * (1.0 - s) * (1.0 + s)), self, points, 1e-4, 1.0),
            Self::Exponential => {
                let at = |log_b: f64| {
                    let b = libm::exp(log_b);
                    let [a, c] = two_columns(points, &|k| libm::exp(-b * k));
                    [a, b, c]
                };
                search(&at, self, points, libm::log(0.05 / last), libm::log(5.0))
            }
            Self::Power => {
                let at = |log_b: f64| {
                    let b = libm::exp(log_b);
                    let [a, c] = two_columns(points, &|k| libm::exp(-b * libm::log1p(k)));
                    [a, b, c]
                };
                search(&at, self, points, libm::log(0.02), libm::log(5.0))
            }
        };
        let fitted = self.polish(start, points);
        if self.cost(&fitted, points).is_finite() { fitted } else { self.constant(points) }
    }

    /// The flat curve through the mean, for points that no other curve fits (such as losses of zero).
    fn constant(self, points: &[Obs]) -> [f64; 3] {
        let total: f64 = points.iter().map(|p| p.weight).sum();
        let mean = points.iter().map(|p| p.weight * p.l).sum::<f64>() / total;
        match self {
            Self::Inverse => [0.0, 1.0 / mean.max(1e-300), 0.0],
            Self::Exponential | Self::Power => [0.0, 0.0, mean],
        }
    }

    /// Levenberg–Marquardt in l with the parameters bounded by 0. The result is never worse than `start`.
    pub(super) fn polish(self, start: [f64; 3], points: &[Obs]) -> [f64; 3] {
        let (mut q, mut cost, mut damping) = (start, self.cost(&start, points), 1e-3);
        for _ in 0..POLISH {
            let (normal, slope) = self.normal(&q, points);
            let mut damped = normal;
            for i in 0..3 {
                // A parameter at its bound with a step beyond it stays at the bound.
                if q[i] == 0.0 && slope[i] < 0.0 || normal[i][i] <= 0.0 {
                    for j in 0..3 {
                        damped[i][j] = 0.0;
                        damped[j][i] = 0.0;
                    }
                    damped[i][i] = 1.0;
                } else {
                    damped[i][i] *= 1.0 + damping;
                }
            }
            let Some(inv) = inverse(&damped) else {
                damping *= 10.0;
                continue;
            };
            let mut next = q;
            for i in 0..3 {
                if q[i] == 0.0 && slope[i] < 0.0 || normal[i][i] <= 0.0 {
                    continue;
                }
                let step: f64 = (0..3).map(|j| inv[i][j] * slope[j]).sum();
                next[i] = (q[i] + step).max(0.0);
            }
            let trial = self.cost(&next, points);
            if trial < cost {
                let done = cost - trial <= 1e-12 * cost;
                (q, cost, damping) = (next, trial, damping * 0.2);
                if done {
                    break;
                }
            } else {
                damping *= 8.0;
            }
        }
        q
    }

    /// JᵀWJ and JᵀW(l − curve).
    pub(super) fn normal(self, q: &[f64; 3], points: &[Obs]) -> ([[f64; 3]; 3], [f64; 3]) {
        let mut normal = [[0.0; 3]; 3];
        let mut slope = [0.0; 3];
        for p in points {
            let g = self.gradient(q, p.k);
            let error = p.l - self.value(q, p.k);
            for i in 0..3 {
                slope[i] += p.weight * g[i] * error;
                for j in 0..3 {
                    normal[i][j] += p.weight * g[i] * g[j];
                }
            }
        }
        (normal, slope)
    }
}

/// The best point of a grid over [from, to], refined by golden section between its neighbours.
fn search(at: &dyn Fn(f64) -> [f64; 3], family: Family, points: &[Obs], from: f64, to: f64) -> [f64; 3] {
    let width = (to - from) / (GRID - 1) as f64;
    let mut best = (f64::INFINITY, 0, at(from));
    for i in 0..GRID {
        let q = at(from + width * i as f64);
        let cost = family.cost(&q, points);
        if cost < best.0 {
            best = (cost, i, q);
        }
    }
    let (mut a, mut b) =
        ((from + width * (best.1 as f64 - 1.0)).max(from), (from + width * (best.1 as f64 + 1.0)).min(to));
    let (mut cost, _, mut q) = best;
    const RATIO: f64 = 0.618_033_988_749_894_9;
    for _ in 0..GOLDEN {
        let (left, right) = (b - RATIO * (b - a), a + RATIO * (b - a));
        let (q_left, q_right) = (at(left), at(right));
        let (c_left, c_right) = (family.cost(&q_left, points), family.cost(&q_right, points));
        for (c, candidate) in [(c_left, q_left), (c_right, q_right)] {
            if c < cost {
                (cost, q) = (c, candidate);
            }
        }
        if c_left <= c_right { b = right } else { a = left }
    }
    q
}

/// β0, β1 for a fixed β2, by non-negative least squares on (l−β2)²·(β0·k + β1) = (l−β2). To first order, this is the
/// residual in l.
fn inverse_at(points: &[Obs], floor: f64) -> [f64; 3] {
    let rows = points.iter().map(|p| {
        let gap = (p.l - floor).max(0.0);
        let root = p.weight.sqrt() * gap;
        [root * gap * p.k, root * gap, root]
    });
    let [slope, offset] = solve_pair(rows);
    [slope, offset, floor]
}

/// Minimises Σ weight·(x0·φ(k) + x1 − l)² over x ≥ 0.
fn two_columns(points: &[Obs], basis: &dyn Fn(f64) -> f64) -> [f64; 2] {
    solve_pair(points.iter().map(|p| {
        let root = p.weight.sqrt();
        [root * basis(p.k), root, root * p.l]
    }))
}

/// NNLS for two columns, by its four cases. It is exact, and cheap enough for the inner loop of a search.
fn solve_pair(rows: impl Iterator<Item = [f64; 3]>) -> [f64; 2] {
    let (mut aa, mut ab, mut bb, mut ay, mut by) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for [a, b, y] in rows {
        aa += a * a;
        ab += a * b;
        bb += b * b;
        ay += a * y;
        by += b * y;
    }
    let det = aa * bb - ab * ab;
    if det > 1e-14 * aa * bb {
        let (x, y) = ((ay * bb - by * ab) / det, (by * aa - ay * ab) / det);
        if x >= 0.0 && y >= 0.0 {
            return [x, y];
        }
    }
    let one = if aa > 0.0 { (ay / aa).max(0.0) } else { 0.0 };
    let two = if bb > 0.0 { (by / bb).max(0.0) } else { 0.0 };
    // The decrease of the squared residual by each column alone.
    if one * ay > two * by { [one, 0.0] } else { [0.0, two] }
}
