//! Training speed as a function of the numbers of parameter servers and workers.
//!
//! Source: Optimus (EuroSys'18), §3.2, Eq. 3 (asynchronous) and Eq. 4 (synchronous); all-reduce is ours. The
//! coefficients θ ≥ 0 come from [`nnls`](super::nnls::nnls()) on measured (p, w, speed), each row divided by its measured step
//! time, so that a relative error counts the same at every speed.
//!
//! Beyond the paper (all of it off in [`SpeedOptions::paper`]): a weak pull towards a *shape*, a factor per server type,
//! and [`SpeedFit::next_to_profile`].
//!
//! **Few or one-sided samples.** With p = w only, w/p is a constant and p equals w: infinitely many θ fit equally well,
//! and plain NNLS returns an extreme one (all of the constant in one term), which is wrong elsewhere. So every fit adds
//! one weak row per coefficient that pulls it towards a shape: what the model's other jobs showed ([`SpeedPrior`]), or a
//! generic one, scaled to the samples' speed. What samples determine, they determine; what they leave open is split
//! between the terms in the shape's proportions. With one sample the fit is the shape through that sample; with none it
//! is the shape itself ([`Confidence`] says which).

#![allow(clippy::needless_range_loop)] // matrix code reads best with the indices of the textbook

mod curve;
mod history;

use serde::{Deserialize, Serialize};

pub use self::curve::SpeedCurve;
pub use self::history::SpeedHistory;
use super::linear::{inverse, quadratic};
use super::nnls::nnls;

/// How a job's workers keep in step, which decides the form of its speed function. θ in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum SpeedModel {
    /// Synchronous parameter servers: 1/f = θ0·M/w + θ1 + θ2·w/p + θ3·w + θ4·p (Eq. 4).
    Sync {
        /// M, the global batch in examples per step.
        batch: f64,
    },
    /// Asynchronous parameter servers: w/f = θ0 + θ1·w/p + θ2·w + θ3·p (Eq. 3). θ4 stays 0.
    Async,
    /// Ring all-reduce, no parameter servers: 1/f = θ0·M/w + θ1 + θ2·(w−1)/w + θ3·w. θ4 stays 0.
    AllReduce {
        /// M, the global batch in examples per step.
        batch: f64,
    },
}

impl SpeedModel {
    /// M; 1 where the model has none or the number makes no sense.
    fn batch(self) -> f64 {
        match self {
            Self::Sync { batch } | Self::AllReduce { batch } if batch.is_finite() && batch > 0.0 => batch,
            _ => 1.0,
        }
    }

    /// Whether the model has parameter servers (p > 0).
    #[must_use]
    pub fn has_servers(self) -> bool {
        !matches!(self, Self::AllReduce { .. })
    }

    /// The factors of θ at (p, w), and what has to be divided by f to get the time they add up to (1 or w).
    fn terms(self, p: f64, w: f64, batch: f64) -> ([f64; 5], f64) {
        match self {
            Self::Sync { .. } => ([batch / w, 1.0, w / p, w, p], 1.0),
            Self::Async => ([1.0, w / p, w, p, 0.0], w),
            Self::AllReduce { .. } => ([batch / w, 1.0, (w - 1.0) / w, w, 0.0], 1.0),
        }
    }

    /// Shares of a (1, 1) step by which unknown terms are guessed: mostly compute, an eighth on the wire, and a small
    /// cost for every further member, so that an unknown job gains from its first few workers and not from its hundredth.
    fn shape(self) -> [f64; 5] {
        match self {
            Self::Sync { .. } => [0.75 / self.batch(), 0.1, 0.125, 0.015, 0.01],
            Self::Async => [0.85, 0.125, 0.015, 0.01, 0.0],
            Self::AllReduce { .. } => [0.75 / self.batch(), 0.1, 0.125, 0.01, 0.0],
        }
    }
}

/// One measured speed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpeedSample {
    /// p, parameter servers (ignored for all-reduce).
    pub servers: u32,
    /// w, workers.
    pub workers: u32,
    /// M of this measurement where it differs from the job's own; `None`: the model's.
    pub batch: Option<f64>,
    /// Which kind of server the workers ran on; 0 where there is one kind only.
    pub server_type: u16,
    /// f, steps a second.
    pub speed: f64,
    /// How much the sample counts: 1 for a careful measurement. [`SpeedHistory`] sets it from counts and age.
    pub weight: f64,
}

impl SpeedSample {
    /// A measurement of weight 1 at the model's own batch on server type 0.
    #[must_use]
    pub fn new(servers: u32, workers: u32, speed: f64) -> Self {
        Self { servers, workers, batch: None, server_type: 0, speed, weight: 1.0 }
    }

    /// The same measurement at a global batch of `batch` examples.
    #[must_use]
    pub fn at_batch(self, batch: f64) -> Self {
        Self { batch: Some(batch), ..self }
    }

    /// The same measurement on servers of `server_type`.
    #[must_use]
    pub fn on(self, server_type: u16) -> Self {
        Self { server_type, ..self }
    }
}

/// What other jobs of the same model taught: its θ per example, so that jobs of different batches can share it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpeedPrior {
    /// θ as in [`SpeedModel`]; only the proportions matter once there is a sample, the size when there is none.
    pub theta: [f64; 5],
    /// How many samples the prior is worth, ≥ 0; about 1 lets five own samples overrule it.
    pub strength: f64,
}

/// Settings of [`SpeedFit::fit`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpeedOptions {
    /// How hard an undetermined coefficient is pulled towards the shape, in samples per coefficient; 0 turns it off
    /// wherever there are at least as many samples as coefficients.
    pub pull: f64,
    /// Estimate one speed factor per server type instead of ignoring the type.
    pub server_types: bool,
    /// What jobs of the same model showed; `None`: the generic shape.
    pub prior: Option<SpeedPrior>,
}

impl SpeedOptions {
    /// The paper's plain NNLS.
    #[must_use]
    pub fn paper() -> Self {
        Self { pull: 0.0, server_types: false, prior: None }
    }
}

impl Default for SpeedOptions {
    fn default() -> Self {
        Self { pull: 1e-3, server_types: true, prior: None }
    }
}

/// What a [`SpeedFit`] rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Confidence {
    /// No usable sample and no prior: the generic shape at one step a second. Only the proportions mean anything.
    Guess,
    /// No usable sample: the model's prior as it stands.
    Prior,
    /// Fewer distinct (p, w, M) than coefficients: the samples fix the size, the shape fills in the rest.
    Sparse,
    /// At least as many distinct (p, w, M) as coefficients.
    Fitted,
}

/// How fast one server type is compared with the reference (the lowest type measured).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TypeFactor {
    /// The server type.
    pub server_type: u16,
    /// Speed there / speed on the reference type at the same (p, w).
    pub factor: f64,
}

/// A fitted speed function.
///
/// # Examples
///
/// ```
/// use trainmaster_core::fit::speed::{SpeedFit, SpeedModel, SpeedOptions, SpeedSample};
///
/// let model = SpeedModel::Sync { batch: 128.0 };
/// let truth = |p: f64, w: f64| 1.0 / (0.01 * 128.0 / w + 0.05 + 0.1 * w / p + 0.002 * w);
/// let samples: Vec<_> = [(1, 1), (1, 4), (4, 4), (8, 2), (2, 8), (6, 12)]
///     .map(|(p, w)| SpeedSample::new(p, w, truth(f64::from(p), f64::from(w))))
///     .to_vec();
/// let fit = SpeedFit::fit(model, &samples, &SpeedOptions::default());
/// let there = fit.speed(10, 10);
/// assert!((there / truth(10.0, 10.0) - 1.0).abs() < 0.05);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpeedFit {
    /// The form of the function, with the job's M.
    pub model: SpeedModel,
    /// θ as in [`SpeedModel`], seconds, on the reference server type.
    pub theta: [f64; 5],
    /// What it rests on.
    pub confidence: Confidence,
    /// Samples used.
    pub samples: u32,
    /// Samples left out: no workers, no parameter servers, or a speed, batch or weight that is not positive and finite.
    pub ignored: u32,
    /// Root mean square of (fitted − measured)/measured speed over the samples; `None` without samples.
    pub rms_relative_error: Option<f64>,
    /// Factors of the server types seen, ascending by type, the reference's being 1.
    pub factors: Vec<TypeFactor>,
    curve: SpeedCurve,
    /// (AᵀA)⁻¹ of the weighted, relative rows: where it is large, the samples say little.
    spread: [[f64; 5]; 5],
}

/// A usable sample in the solver's terms.
struct Row {
    terms: [f64; 5],
    time: f64,
    weight: f64,
    server_type: u16,
}

/// Rounds of the alternation between θ and the factors of server types; it settles in a few.
const FACTOR_ROUNDS: usize = 12;
/// The relative scatter assumed where the samples are too few to show theirs: speeds reported for the same (p, w)
/// differ by a few percent.
const ASSUMED_SCATTER: f64 = 0.05;

impl SpeedFit {
    /// Fits the speed function to `samples`. Always answers: see [`Confidence`] for what few samples give.
    #[must_use]
    pub fn fit(model: SpeedModel, samples: &[SpeedSample], options: &SpeedOptions) -> Self {
        let rows: Vec<Row> = samples.iter().filter_map(|s| Row::new(model, s)).collect();
        let prior = options.prior.filter(|p| {
            p.theta.iter().all(|t| t.is_finite() && *t >= 0.0)
                && p.theta.iter().sum::<f64>() > 0.0
                && p.strength.is_finite()
                && p.strength >= 0.0
        });
        let shape = prior.map_or_else(|| model.shape(), |p| p.theta);
        let mut types: Vec<u16> = rows.iter().map(|r| r.server_type).collect();
        types.sort_unstable();
        types.dedup();
        let mut factors: Vec<TypeFactor> =
            types.iter().map(|&server_type| TypeFactor { server_type, factor: 1.0 }).collect();

        let distinct = distinct_rows(&rows);
        let needed = if matches!(model, SpeedModel::Sync { .. }) { 5 } else { 4 };
        let confidence = match (distinct, prior) {
            (0, None) => Confidence::Guess,
            (0, Some(_)) => Confidence::Prior,
            (d, _) if d < needed => Confidence::Sparse,
            _ => Confidence::Fitted,
        };
        let pull = Pull::new(model, &rows, shape, confidence, options, prior);
        let mut theta = pull.solve(&rows, &factors);
        if options.server_types && factors.len() > 1 {
            for _ in 0..FACTOR_ROUNDS {
                update_factors(&rows, &theta, &mut factors);
                theta = pull.solve(&rows, &factors);
            }
        }
        let rms_relative_error = rms(&rows, &theta, &factors);
        Self {
            model,
            theta,
            confidence,
            samples: count(rows.len()),
            ignored: count(samples.len() - rows.len()),
            rms_relative_error,
            spread: pull.spread(&rows, &factors),
            factors,
            curve: SpeedCurve::new(model, &theta),
        }
    }

    /// Training speed on the reference server type, steps a second. See [`SpeedCurve::speed`].
    #[inline]
    #[must_use]
    pub fn speed(&self, servers: u32, workers: u32) -> f64 {
        self.curve.speed(servers, workers)
    }

    /// The function alone, small and `Copy`, for inner loops.
    #[must_use]
    pub fn curve(&self) -> SpeedCurve {
        self.curve
    }

    /// The function on servers of `server_type`; a type never measured counts as the reference.
    #[must_use]
    pub fn curve_on(&self, server_type: u16) -> SpeedCurve {
        self.curve.faster(factor_of(&self.factors, server_type))
    }

    /// The function at another global batch (jobs of one model differ in M); the same for asynchronous training.
    #[must_use]
    pub fn curve_at_batch(&self, batch: f64) -> SpeedCurve {
        let model = match self.model {
            SpeedModel::Sync { .. } => SpeedModel::Sync { batch },
            SpeedModel::AllReduce { .. } => SpeedModel::AllReduce { batch },
            SpeedModel::Async => SpeedModel::Async,
        };
        SpeedCurve::new(model, &self.theta)
    }

    /// What this fit can teach a job of the same model, worth `strength` samples.
    #[must_use]
    pub fn prior(&self, strength: f64) -> SpeedPrior {
        SpeedPrior { theta: self.theta, strength }
    }

    /// Estimated standard error of the predicted speed at (p, w), as a share of it: 0.1 = 10 %.
    ///
    /// First order, from the samples' scatter and where they lie; bounds on θ are ignored, so it errs on the wide side.
    #[must_use]
    pub fn relative_error(&self, servers: u32, workers: u32) -> f64 {
        if workers == 0 {
            return 0.0;
        }
        let (p, w) = (f64::from(servers.max(1)), f64::from(workers));
        let (terms, numerator) = self.model.terms(p, w, self.model.batch());
        let time = numerator / self.curve.speed(servers, workers);
        let relative = terms.map(|t| t / time);
        self.scatter() * quadratic(&self.spread, &relative).max(0.0).sqrt()
    }

    /// The candidate (p, w) where a measurement would teach most: the largest predicted variance; the first such in the
    /// list on a tie. `None` for an empty list.
    #[must_use]
    pub fn next_to_profile(&self, candidates: &[(u32, u32)]) -> Option<(u32, u32)> {
        let mut best: Option<((u32, u32), f64)> = None;
        for &(p, w) in candidates {
            let error = self.relative_error(p, w);
            if best.is_none_or(|(_, top)| error > top) {
                best = Some(((p, w), error));
            }
        }
        best.map(|(pair, _)| pair)
    }

    fn scatter(&self) -> f64 {
        // A few samples can be met exactly without the model being exact.
        let spare = f64::from(self.samples) - 5.0;
        match self.rms_relative_error {
            Some(rms) if spare > 0.0 => {
                let seen = rms * rms * f64::from(self.samples) / spare;
                (seen * spare + ASSUMED_SCATTER * ASSUMED_SCATTER * 2.0).sqrt() / (spare + 2.0).sqrt()
            }
            _ => ASSUMED_SCATTER,
        }
    }
}

impl Row {
    fn new(model: SpeedModel, s: &SpeedSample) -> Option<Self> {
        let batch = s.batch.unwrap_or_else(|| model.batch());
        let usable = |v: f64| v.is_finite() && v > 0.0;
        if s.workers == 0
            || (s.servers == 0 && model.has_servers())
            || ![s.speed, s.weight, batch].into_iter().all(usable)
        {
            return None;
        }
        let (terms, numerator) = model.terms(f64::from(s.servers.max(1)), f64::from(s.workers), batch);
        let time = numerator / s.speed;
        usable(time).then_some(Self { terms, time, weight: s.weight, server_type: s.server_type })
    }

    fn predicted(&self, theta: &[f64; 5]) -> f64 {
        self.terms.iter().zip(theta).map(|(a, t)| a * t).sum()
    }
}

/// The weak rows that keep undetermined coefficients near a shape.
struct Pull {
    /// Where each coefficient is pulled to.
    target: [f64; 5],
    /// Weight of each coefficient's row: row j is `row[j]`·(θ_j − `target[j]`).
    row: [f64; 5],
}

impl Pull {
    fn new(
        model: SpeedModel,
        rows: &[Row],
        shape: [f64; 5],
        confidence: Confidence,
        options: &SpeedOptions,
        prior: Option<SpeedPrior>,
    ) -> Self {
        // The shape's size: the factor that fits it to the samples' times in the relative sense.
        let (mut num, mut den) = (0.0, 0.0);
        for r in rows {
            let u = r.predicted(&shape) / r.time;
            num += r.weight * u;
            den += r.weight * u * u;
        }
        let size = if den > 0.0 { num / den } else { 1.0 };
        let target = shape.map(|s| s * size);
        let step: f64 = model.terms(1.0, 1.0, model.batch()).0.iter().zip(&target).map(|(a, t)| a * t).sum();

        let strength = match (confidence, prior) {
            (Confidence::Fitted, None) => options.pull,
            (_, None) => options.pull.max(1e-6),
            (_, Some(p)) => options.pull + 0.05 * p.strength,
        };
        let strength = if strength.is_finite() && strength > 0.0 { strength } else { 0.0 };
        let unit = model.terms(1.0, 1.0, model.batch()).0;
        let mut row = [0.0; 5];
        for j in 0..5 {
            // A coefficient may well be several times its guess, and a guess of nearly nothing a few percent of a step.
            let doubt = target[j] * unit[j] + 0.02 * step;
            if unit[j] > 0.0 || j == 2 && !model.has_servers() {
                row[j] = strength.sqrt() * unit[j].max(f64::MIN_POSITIVE) / doubt;
            }
        }
        if !model.has_servers() {
            // (w−1)/w is 0 at one worker; its size is set by many.
            row[2] = strength.sqrt() / (target[2] + 0.02 * step);
        }
        Self { target, row }
    }

    /// θ for given factors.
    fn solve(&self, rows: &[Row], factors: &[TypeFactor]) -> [f64; 5] {
        if rows.is_empty() {
            return self.target;
        }
        let mut a = Vec::with_capacity((rows.len() + 5) * 5);
        let mut b = Vec::with_capacity(rows.len() + 5);
        for r in rows {
            let root = r.weight.sqrt();
            let time = r.time * factor_of(factors, r.server_type);
            a.extend(r.terms.iter().map(|t| root * t / time));
            b.push(root);
        }
        for j in (0..5).filter(|&j| self.row[j] > 0.0) {
            a.extend((0..5).map(|k| if k == j { self.row[j] } else { 0.0 }));
            b.push(self.row[j] * self.target[j]);
        }
        match nnls(&a, 5, &b) {
            Ok(answer) if answer.x.iter().any(|x| *x > 0.0) => {
                let mut theta = [0.0; 5];
                theta.copy_from_slice(&answer.x);
                theta
            }
            // Only overflow in the rows (times near the ends of f64) leads here.
            _ => self.target,
        }
    }

    fn spread(&self, rows: &[Row], factors: &[TypeFactor]) -> [[f64; 5]; 5] {
        let mut gram = [[0.0; 5]; 5];
        for r in rows {
            let time = r.time * factor_of(factors, r.server_type);
            for i in 0..5 {
                for j in 0..5 {
                    gram[i][j] += r.weight * (r.terms[i] / time) * (r.terms[j] / time);
                }
            }
        }
        for j in 0..5 {
            // Prior rows are in units of samples of relative scatter 1; the data's scatter is far smaller.
            let own = self.row[j].max(1e-9 * gram[j][j].sqrt());
            gram[j][j] += own * own;
            if gram[j][j] == 0.0 {
                gram[j][j] = 1.0;
            }
        }
        inverse(&gram).unwrap_or([[0.0; 5]; 5])
    }
}

fn factor_of(factors: &[TypeFactor], server_type: u16) -> f64 {
    factors.iter().find(|f| f.server_type == server_type).map_or(1.0, |f| f.factor)
}

/// Given θ, the best factor of each type but the first, in the relative sense.
fn update_factors(rows: &[Row], theta: &[f64; 5], factors: &mut [TypeFactor]) {
    for f in factors.iter_mut().skip(1) {
        let (mut num, mut den) = (0.0, 0.0);
        for r in rows.iter().filter(|r| r.server_type == f.server_type) {
            let u = r.predicted(theta) / r.time;
            num += r.weight * u;
            den += r.weight * u * u;
        }
        if num > 0.0 && den.is_finite() {
            f.factor = (den / num).clamp(1e-3, 1e3);
        }
    }
}

fn rms(rows: &[Row], theta: &[f64; 5], factors: &[TypeFactor]) -> Option<f64> {
    let (mut sum, mut total) = (0.0, 0.0);
    for r in rows {
        let fitted = r.predicted(theta) / factor_of(factors, r.server_type);
        let error = r.time / fitted - 1.0;
        sum += r.weight * error * error;
        total += r.weight;
    }
    let mean = sum / total;
    (total > 0.0 && mean.is_finite()).then(|| mean.sqrt())
}

fn distinct_rows(rows: &[Row]) -> usize {
    let mut keys: Vec<[u64; 5]> = rows.iter().map(|r| r.terms.map(f64::to_bits)).collect();
    keys.sort_unstable();
    keys.dedup();
    keys.len()
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
