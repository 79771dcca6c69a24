//! The solver: from measured step times to θ.

use super::super::linear::inverse;
use super::super::nnls::nnls;
use super::{
    model::Confidence, model::SpeedModel, model::SpeedOptions, model::SpeedPrior, model::SpeedSample, model::TypeFactor,
};

/// Number of rounds of re-weighting. Each is one small NNLS; most fits settle in under ten.
const ROUNDS: usize = 20;
/// Residuals beyond this number of (robust) standard deviations count linearly instead of quadratically.
const HUBER: f64 = 1.5;

/// Pull for fewer samples than coefficients: a scatter of a few percent must not become a term of several times its
/// guess.
pub(super) const SPARSE: f64 = 2.5e-3;

/// Batches that differ by more than this factor tell much of what a step owes to its examples.
const WIDE: f64 = 4.0;

/// One usable sample for the solver.
pub(super) struct Row {
    pub(super) terms: [f64; 5],
    pub(super) time: f64,
    batch: f64,
    pub(super) weight: f64,
    pub(super) server_type: u16,
}

impl Row {
    pub(super) fn new(model: SpeedModel, s: &SpeedSample) -> Option<Self> {
        let batch = s.batch.unwrap_or_else(|| model.batch());
        let usable = |v: f64| v.is_finite() && v > 0.0;
        let members = s.workers > 0 && (s.servers > 0 || !model.has_servers());
        if !members || ![s.speed, s.weight, batch].into_iter().all(usable) {
            return None;
        }
        let (terms, numerator) = model.terms(f64::from(s.servers.max(1)), f64::from(s.workers), batch);
        let time = numerator / s.speed;
        usable(time).then_some(Self { terms, time, batch, weight: s.weight, server_type: s.server_type })
    }
}

/// The solution for one degree of overlap.
#[derive(Clone)]
pub(super) struct Solution {
    pub(super) theta: [f64; 5],
    pub(super) cross: f64,
    pub(super) factors: Vec<TypeFactor>,
    /// Root mean square of the relative error of f. `None` without rows.
    pub(super) rms: Option<f64>,
    /// The solver's objective. With `robust`, large errors count less.
    pub(super) cost: f64,
}

/// Time of a row for θ, with its derivatives by computation and by communication.
///
/// T² = C² + cross·C·S + S²: cross = 2 is C + S, cross = 0 the root of the sum of squares. T is homogeneous in θ. So
/// with rows scaled by (∂T/∂C, ∂T/∂S), the linear problem at the current θ is a Gauss–Newton step.
pub(super) fn time_of(model: SpeedModel, terms: &[f64; 5], theta: &[f64; 5], cross: f64) -> Time {
    let mut parts = [0.0; 2];
    for j in 0..5 {
        parts[usize::from(j >= model.compute_terms())] += terms[j] * theta[j];
    }
    let [compute, rest] = parts;
    let total = (compute * compute + cross * compute * rest + rest * rest).sqrt();
    let (by_compute, by_rest) = if total > 0.0 {
        ((2.0 * compute + cross * rest) / (2.0 * total), (2.0 * rest + cross * compute) / (2.0 * total))
    } else {
        (1.0, 1.0)
    };
    Time { total, compute, by_compute, by_rest }
}

/// Step time, its part of computation, and its derivatives by computation and by communication.
pub(super) struct Time {
    pub(super) total: f64,
    compute: f64,
    pub(super) by_compute: f64,
    pub(super) by_rest: f64,
}

/// The rows, and the pull for coefficients that they don't determine.
pub(super) struct Problem<'a> {
    pub(super) model: SpeedModel,
    pub(super) rows: &'a [Row],
    pub(super) pull: Pull,
    pub(super) options: &'a SpeedOptions,
}

impl Problem<'_> {
    /// The best θ for one degree of overlap, starting from `start`.
    pub(super) fn solve(&self, cross: f64, start: &Solution) -> Solution {
        let mut now = Solution { cross, ..start.clone() };
        let mut best: Option<Solution> = None;
        for _ in 0..ROUNDS {
            let (a, b) = self.linearised(&now);
            let Some(theta) = solution(&a, &b) else { break };
            now.theta = theta;
            if self.options.server_types {
                self.update_factors(&mut now);
            }
            let errors = self.errors(&now);
            now.rms = self.mean_square(&errors).map(f64::sqrt);
            now.cost = self.cost(&errors, &now.theta);
            let settled = best.as_ref().is_some_and(|b| (b.cost - now.cost).abs() <= 1e-5 * b.cost);
            if now.cost.is_finite() && best.as_ref().is_none_or(|b| now.cost < b.cost) {
                best = Some(now.clone());
            }
            if settled {
                break;
            }
        }
        best.unwrap_or_else(|| Solution { cross, ..start.clone() })
    }

    /// (f fitted − f measured)/f measured of each row.
    fn errors(&self, at: &Solution) -> Vec<f64> {
        self.rows.iter().map(|r| r.time / self.time(r, at).total - 1.0).collect()
    }

    fn time(&self, r: &Row, at: &Solution) -> Time {
        time_of(self.model, &self.terms(r, at), &at.theta, at.cross)
    }

    /// The row's terms on its server type, where computation takes 1/factor of the time.
    fn terms(&self, r: &Row, at: &Solution) -> [f64; 5] {
        let slower = 1.0 / factor_of(&at.factors, r.server_type);
        let mut terms = r.terms;
        terms.iter_mut().take(self.model.compute_terms()).for_each(|t| *t *= slower);
        terms
    }

    fn mean_square(&self, errors: &[f64]) -> Option<f64> {
        let total: f64 = self.rows.iter().map(|r| r.weight).sum();
        let sum: f64 = self.rows.iter().zip(errors).map(|(r, e)| r.weight * e * e).sum();
        (total > 0.0 && sum.is_finite()).then_some(sum / total)
    }

    fn cost(&self, errors: &[f64], theta: &[f64; 5]) -> f64 {
        let size = |e: f64| if self.options.robust { e.abs() } else { e * e };
        let sum: f64 = self.rows.iter().zip(errors).map(|(r, e)| r.weight * size(*e)).sum();
        let pulled: f64 = (0..5).map(|j| self.pull.row[j] * (theta[j] - self.pull.target[j])).map(|v| v * v).sum();
        sum + pulled
    }

    /// Rows of the linear problem at θ, each scaled to relative error and by its agreement with the others.
    fn linearised(&self, at: &Solution) -> (Vec<f64>, Vec<f64>) {
        let mut a = Vec::with_capacity((self.rows.len() + 5) * 5);
        let mut b = Vec::with_capacity(self.rows.len() + 5);
        let first = at.rms.is_none();
        let errors = if first { vec![0.0; self.rows.len()] } else { self.errors(at) };
        let limit = HUBER * 1.4826 * median(errors.iter().map(|e| e.abs()).collect());
        for (r, e) in self.rows.iter().zip(&errors) {
            let terms = self.terms(r, at);
            let Time { total, by_compute, by_rest, .. } = if first {
                Time { total: r.time, compute: 0.0, by_compute: 1.0, by_rest: 1.0 }
            } else {
                time_of(self.model, &terms, &at.theta, at.cross)
            };
            let trust = if self.options.robust && e.abs() > limit && limit > 0.0 { limit / e.abs() } else { 1.0 };
            let root = (r.weight * trust).sqrt() / total.max(f64::MIN_POSITIVE);
            let compute = self.model.compute_terms();
            a.extend((0..5).map(|j| root * terms[j] * if j < compute { by_compute } else { by_rest }));
            b.push(root * r.time);
        }
        for j in (0..5).filter(|&j| self.pull.row[j] > 0.0) {
            a.extend((0..5).map(|k| if k == j { self.pull.row[j] } else { 0.0 }));
            b.push(self.pull.row[j] * self.pull.target[j]);
        }
        (a, b)
    }

    /// For fixed θ, a Gauss–Newton step in 1/factor of each type but the first.
    fn update_factors(&self, at: &mut Solution) {
        for i in 1..at.factors.len() {
            let TypeFactor { server_type, factor } = at.factors[i];
            let (mut num, mut den) = (0.0, 0.0);
            for r in self.rows.iter().filter(|r| r.server_type == server_type) {
                let time = self.time(r, at);
                // ∂(time/measured)/∂(1/factor): computation is proportional to 1/factor.
                let slope = time.by_compute * time.compute * factor / r.time;
                num += r.weight * slope * (1.0 - time.total / r.time);
                den += r.weight * slope * slope;
            }
            let slower = 1.0 / factor + num / den;
            if slower.is_finite() {
                // A round changes a factor at most by two, because θ moves at the same time.
                at.factors[i].factor = (1.0 / slower.max(0.5 / factor)).clamp(0.5 * factor, 2.0 * factor);
            }
        }
    }

    /// (AᵀA)⁻¹ of the rows at a solution.
    pub(super) fn spread(&self, at: &Solution) -> [[f64; 5]; 5] {
        let (a, _) = self.linearised(at);
        let mut gram = [[0.0; 5]; 5];
        for row in a.chunks_exact(5) {
            for i in 0..5 {
                for j in 0..5 {
                    gram[i][j] += row[i] * row[j];
                }
            }
        }
        for j in 0..5 {
            // A coefficient without rows (some models have no θ4) must not make the matrix singular.
            gram[j][j] = if gram[j][j] > 0.0 { gram[j][j] * (1.0 + 1e-9) } else { 1.0 };
        }
        inverse(&gram).unwrap_or([[0.0; 5]; 5])
    }
}

/// θ of the linear rows. `None` if they overflow (times near the limits of f64) or if no θ is positive.
fn solution(a: &[f64], b: &[f64]) -> Option<[f64; 5]> {
    let answer = nnls(a, 5, b).ok()?;
    let mut theta = [0.0; 5];
    theta.copy_from_slice(&answer.x);
    theta.iter().any(|t| *t > 0.0).then_some(theta)
}

/// The weak rows that pull undetermined coefficients towards a shape.
pub(super) struct Pull {
    /// The target of each coefficient.
    pub(super) target: [f64; 5],
    /// Weight of each coefficient's row: row j is `row[j]`·(θ_j − `target[j]`).
    pub(super) row: [f64; 5],
}

impl Pull {
    pub(super) fn new(
        model: SpeedModel,
        rows: &[Row],
        shape: [f64; 5],
        cross: f64,
        confidence: Confidence,
        pull: f64,
        prior: Option<SpeedPrior>,
    ) -> Self {
        // Scale of the shape: the factor with the best relative fit to the samples' times.
        let (mut num, mut den) = (0.0, 0.0);
        for r in rows {
            let u = time_of(model, &r.terms, &shape, cross).total / r.time;
            num += r.weight * u;
            den += r.weight * u * u;
        }
        let size = if den > 0.0 { num / den } else { 1.0 };
        let target = shape.map(|s| s * size);
        // The terms at (1, 1). (w−1)/w is 0 there, so it counts as at many workers.
        let unit = model.terms(1.0, 1.0, model.batch()).0.map(|t| if t > 0.0 { t } else { 1.0 });
        let step = time_of(model, &unit, &target, cross).total;
        let strength = match (confidence, prior) {
            (Confidence::Fitted, None) => pull,
            (_, None) => pull.max(SPARSE),
            (_, Some(p)) => pull + 0.01 * p.strength,
        };
        let strength = if strength.is_finite() && strength > 0.0 { strength } else { 0.0 };
        let (least, most) =
            rows.iter().fold((f64::INFINITY, 0.0_f64), |(least, most), r| (r.batch.min(least), r.batch.max(most)));
        let is_wide = confidence == Confidence::Sparse && most > WIDE * least;
        let mut row = [0.0; 5];
        for j in 0..model.coefficients() {
            // A coefficient may be twice its guess. If its guess is small, it may be what the model allows of a step.
            let reach = (target[j] * unit[j] + 0.02 * step).max(model.reach()[j] * step);
            // Over very different batches the guess has no scale. Then each term may be all of any measured step.
            let all = rows.iter().filter(|r| is_wide && r.terms[j] > 0.0).map(|r| r.time / r.terms[j]);
            let all = all.fold(f64::INFINITY, f64::min);
            let reach = if all.is_finite() { reach.max(all * unit[j]) } else { reach };
            row[j] = strength.sqrt() * unit[j] / reach;
        }
        Self { target, row }
    }
}

pub(super) fn factor_of(factors: &[TypeFactor], server_type: u16) -> f64 {
    factors.iter().find(|f| f.server_type == server_type).map_or(1.0, |f| f.factor)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// Whether the samples can show an overlap. With parameter servers, w/p must vary; otherwise any form fits.
pub(super) fn tells_overlap(model: SpeedModel, rows: &[Row]) -> bool {
    if !model.has_servers() {
        return true;
    }
    // w/p is the first communication term in both models.
    let place = model.compute_terms();
    let mut ratios: Vec<u64> = rows.iter().map(|r| r.terms[place].to_bits()).collect();
    ratios.sort_unstable();
    ratios.dedup();
    ratios.len() >= 4 && rows.len() >= model.coefficients() + 3
}

pub(super) fn distinct_rows(rows: &[Row]) -> usize {
    let mut keys: Vec<[u64; 5]> = rows.iter().map(|r| r.terms.map(f64::to_bits)).collect();
    keys.sort_unstable();
    keys.dedup();
    keys.len()
}
