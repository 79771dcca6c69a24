//! Training speed as a function of the numbers of parameter servers and workers.
//!
//! Source: Optimus (EuroSys'18), §3.2, Eq. 3 (asynchronous) and Eq. 4 (synchronous). The function for all-reduce is our
//! own. [`nnls`](super::nnls::nnls()) fits the coefficients θ ≥ 0 to measured (p, w, speed). Each row is divided by its
//! fitted step time (in a few rounds; by the measured step time in the first), so the fit minimises the relative error
//! of f.
//!
//! Additions to the paper, all of them off in [`SpeedOptions::paper`]:
//! - Computation and communication can **overlap**: T² = C² + cross·C·S + S² instead of T = C + S, if that fits better.
//! - Single measurements that no fit explains have lower weights.
//! - A weak pull towards a **shape** determines the coefficients that the samples don't determine (see below).
//! - Each **server type** has a factor. [`SpeedFit::next_to_profile`] returns the most informative pair to measure.
//!
//! Mean error of f on measured all-reduce steps, with one function for all batch sizes and placements of a model.
//! (Steps of the same (w, M) on the same number of servers differ by 3 to 6 % among themselves.)
//! same (w, M) on the same number of servers differ by 3 to 6 % among themselves):
//!
//! | model | all points | 10 random points | paper's form, all | 10 |
//! |---|---|---|---|---|
//! | cifar10 | 7.5–8.2 % | 10.0–11.0 % | 11.2 % | 13.6–14.5 % |
//! | deepspeech2 | 6.5–6.9 % | 8.5–8.7 % | 7.3–8.5 % | 8.8–10.2 % |
//! | imagenet | 7.4 % | 9.2–9.6 % | 8.6–8.9 % | 10.3–10.6 % |
//!
//! On synthetic parameter-server jobs with 3 % noise, 5 random pairs give errors of 4 to 6 %, and 10 give 2 to 3 %. Ten
//! pairs with p = w give 9 % (sync) and 13 % (async); plain NNLS gives 42 and 50 % or more.
//!
//! **Few or one-sided samples.** With p = w only, w/p is constant and p equals w. Then infinitely many θ fit equally
//! well. Plain NNLS returns an extreme one, with the whole constant in one term, and extrapolates badly. So every fit
//! adds one weak row per coefficient, which pulls it towards a shape: the θ of the model's other jobs ([`SpeedPrior`]),
//! or a generic one, scaled to the samples' speed. The samples dominate where they determine a coefficient. The rest is
//! divided between the terms in the shape's proportions. With one sample, the fit is the shape through that sample.
//! Without samples it is the shape itself ([`Confidence`] states the case).

#![allow(clippy::needless_range_loop)] // the code follows the indices of the textbook

mod curve;
mod draw;
mod history;
mod solve;

use serde::{Deserialize, Serialize};

pub use self::curve::SpeedCurve;
pub use self::history::{Contradiction, SpeedHistory};
use self::solve::{Problem, Pull, Row, Solution, distinct_rows, factor_of, tells_overlap, time_of};
use super::linear::quadratic;

/// Form of a job's speed function, given by how its workers synchronise. θ in seconds.
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
    /// M; 1 if the model has none, or if the value is invalid.
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

    fn has_batch(self) -> bool {
        !matches!(self, Self::Async)
    }

    /// The factors of θ at (p, w), and k (1 or w): the sum of the terms is k/f.
    fn terms(self, p: f64, w: f64, batch: f64) -> ([f64; 5], f64) {
        match self {
            Self::Sync { .. } => ([batch / w, 1.0, w / p, w, p], 1.0),
            Self::Async => ([1.0, w / p, w, p, 0.0], w),
            Self::AllReduce { .. } => ([batch / w, 1.0, (w - 1.0) / w, w, 0.0], 1.0),
        }
    }

    /// Number of θ in the model.
    fn coefficients(self) -> usize {
        if matches!(self, Self::Sync { .. }) { 5 } else { 4 }
    }

    /// Number of computation terms, which come first. The others are communication (Optimus, Eq. 2).
    fn compute_terms(self) -> usize {
        if matches!(self, Self::Async) { 1 } else { 2 }
    }

    /// Fractions of a (1, 1) step from which unknown terms are guessed: mostly computation, an eighth communication,
    /// and a small cost per additional member. So an unknown job gains from its first few workers, but not from its
    /// hundredth.
    fn shape(self) -> [f64; 5] {
        match self {
            Self::Sync { .. } => [0.75 / self.batch(), 0.1, 0.125, 0.015, 0.01],
            Self::Async => [0.85, 0.125, 0.015, 0.01, 0.0],
            Self::AllReduce { .. } => [0.6 / self.batch(), 0.1, 0.28, 0.02, 0.0],
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
    /// M of this measurement, if it differs from the job's. `None`: the model's.
    pub batch: Option<f64>,
    /// Type of the workers' servers; 0 if there is only one type.
    pub server_type: u16,
    /// f, steps per second.
    pub speed: f64,
    /// Weight of the sample: 1 for a careful measurement. [`SpeedHistory`] computes it from counts and age.
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

/// θ of the model's other jobs, per example, so that jobs with different batches can share it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpeedPrior {
    /// θ as in [`SpeedModel`]. If there is a sample, only the proportions matter.
    pub theta: [f64; 5],
    /// The degree of overlap of this θ, as in [`SpeedFit::cross`]; 2 = none.
    pub cross: f64,
    /// Weight of the prior, ≥ 0. 1 suits coefficients with errors of up to about 30 %. With the coefficients of a wrong
    /// model, the error would grow by 3 % at five samples (8 instead of 5 %) and by 1 % at twenty.
    pub strength: f64,
}

impl SpeedPrior {
    fn is_usable(&self) -> bool {
        let fine = |v: &f64| v.is_finite() && *v >= 0.0;
        self.theta.iter().all(fine)
            && self.theta.iter().sum::<f64>() > 0.0
            && fine(&self.strength)
            && (0.0..=2.0).contains(&self.cross)
    }
}

/// Settings of [`SpeedFit::fit`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpeedOptions {
    /// Strength of the pull of an undetermined coefficient towards the shape, in samples per coefficient. With 0 there
    /// is no pull if there are at least as many samples as coefficients.
    pub pull: f64,
    /// Estimate one speed factor per server type. Otherwise types are ignored.
    pub server_types: bool,
    /// Allow computation and communication to overlap, if that explains the samples clearly better.
    pub overlap: bool,
    /// Reduce the weight of single measurements that no fit explains.
    pub robust: bool,
    /// θ of the model's other jobs. `None`: the generic shape.
    pub prior: Option<SpeedPrior>,
}

impl SpeedOptions {
    /// The plain NNLS of the paper.
    #[must_use]
    pub fn paper() -> Self {
        Self { pull: 0.0, server_types: false, overlap: false, robust: false, prior: None }
    }
}

impl Default for SpeedOptions {
    fn default() -> Self {
        Self { pull: 3e-4, server_types: true, overlap: true, robust: true, prior: None }
    }
}

/// The basis of a [`SpeedFit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Confidence {
    /// No usable sample and no prior: the generic shape at one step per second. Only its proportions are meaningful.
    Guess,
    /// No usable sample: the model's prior, unchanged.
    Prior,
    /// Fewer distinct (p, w, M) than coefficients: the samples determine the scale, the shape the rest.
    Sparse,
    /// At least as many distinct (p, w, M) as coefficients.
    Fitted,
}

/// Speed of a server type relative to the reference (the lowest measured type).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TypeFactor {
    /// The server type.
    pub server_type: u16,
    /// Speed of computation, divided by that of the reference type. Communication is assumed to be the same.
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
    /// Composition of a step's time from computation C and communication S: T² = C² + cross·C·S + S². 2 = the paper's
    /// C + S; smaller values mean overlap.
    pub cross: f64,
    /// Basis of the fit.
    pub confidence: Confidence,
    /// Number of samples used.
    pub samples: u32,
    /// Number of samples ignored: no workers, no parameter servers, or a speed, batch or weight that isn't positive and
    /// finite.
    pub ignored: u32,
    /// Root mean square of (fitted − measured)/measured speed over the samples; `None` without samples.
    pub rms_relative_error: Option<f64>,
    /// Factors of the measured server types, by ascending type. The reference has 1.
    pub factors: Vec<TypeFactor>,
    curve: SpeedCurve,
    /// (AᵀA)⁻¹ of the weighted, relative rows. Large entries mean that the samples determine little.
    spread: [[f64; 5]; 5],
}

/// The paper's form: the sum of computation and communication.
const ADDED: f64 = 2.0;
/// Candidate degrees of overlap: none, half, and the root of the sum of squares.
const CROSSES: [f64; 3] = [ADDED, 1.0, 0.0];
/// Assumed relative scatter if there are too few samples to estimate it. Speeds reported for the same (p, w) differ by
/// a few percent.
const ASSUMED_SCATTER: f64 = 0.05;

impl SpeedFit {
    /// Fits the speed function to `samples`. There is always a result: see [`Confidence`] for few samples.
    #[must_use]
    pub fn fit(model: SpeedModel, samples: &[SpeedSample], options: &SpeedOptions) -> Self {
        let rows: Vec<Row> = samples.iter().filter_map(|s| Row::new(model, s)).collect();
        let prior = options.prior.filter(SpeedPrior::is_usable);
        let confidence = match (distinct_rows(&rows), prior) {
            (0, None) => Confidence::Guess,
            (0, Some(_)) => Confidence::Prior,
            (distinct, _) if distinct < model.coefficients() => Confidence::Sparse,
            _ => Confidence::Fitted,
        };
        let mut types: Vec<u16> = rows.iter().map(|r| r.server_type).collect();
        types.sort_unstable();
        types.dedup();
        let factors = types.iter().map(|&server_type| TypeFactor { server_type, factor: 1.0 }).collect();

        // The prior's form if there is one, otherwise the paper's.
        let (shape, cross) = prior.map_or_else(|| (model.shape(), ADDED), |p| (p.theta, p.cross));
        let pull = Pull::new(model, &rows, shape, cross, confidence, options.pull, prior);
        let start = Solution { theta: pull.target, cross, factors, rms: None, cost: f64::INFINITY };
        let problem = Problem { model, rows: &rows, pull, options };
        let mut best = if rows.is_empty() { start } else { problem.solve(cross, &start) };
        if options.overlap && confidence == Confidence::Fitted && tells_overlap(model, &rows) {
            let known = best.clone();
            // Eq. 3 and 4 are the paper's finding for parameter servers, so leaving them requires a larger gain.
            let gain = if model.has_servers() { 0.85 } else { 1.0 };
            for trial in CROSSES.into_iter().filter(|c| *c != cross).map(|c| problem.solve(c, &known)) {
                if trial.cost < gain * known.cost && trial.cost < best.cost {
                    best = trial;
                }
            }
        }
        Self {
            model,
            theta: best.theta,
            cross: best.cross,
            confidence,
            samples: count(rows.len()),
            ignored: count(samples.len() - rows.len()),
            rms_relative_error: best.rms,
            spread: problem.spread(&best),
            curve: SpeedCurve::overlapping(model, &best.theta, best.cross),
            factors: best.factors,
        }
    }

    /// Training speed on the reference server type, in steps per second. See [`SpeedCurve::speed`].
    #[inline]
    #[must_use]
    pub fn speed(&self, servers: u32, workers: u32) -> f64 {
        self.curve.speed(servers, workers)
    }

    /// The function alone: small and `Copy`, for inner loops.
    #[must_use]
    pub fn curve(&self) -> SpeedCurve {
        self.curve
    }

    /// The same fit with other coefficients, for example to study the effect of errors.
    #[must_use]
    pub fn with_theta(self, theta: [f64; 5]) -> Self {
        let curve = SpeedCurve::overlapping(self.model, &theta, self.cross);
        Self { theta, curve, ..self }
    }

    /// The function on servers of `server_type`. A type without measurements counts as the reference.
    #[must_use]
    pub fn curve_on(&self, server_type: u16) -> SpeedCurve {
        self.curve.computing_faster(factor_of(&self.factors, server_type))
    }

    /// The function at another global batch, for jobs of one model with different M. Asynchronous training is
    /// unaffected.
    #[must_use]
    pub fn curve_at_batch(&self, batch: f64) -> SpeedCurve {
        let model = match self.model {
            SpeedModel::Sync { .. } => SpeedModel::Sync { batch },
            SpeedModel::AllReduce { .. } => SpeedModel::AllReduce { batch },
            SpeedModel::Async => SpeedModel::Async,
        };
        SpeedCurve::overlapping(model, &self.theta, self.cross)
    }

    /// A prior for jobs of the same model, with a weight of `strength` samples.
    #[must_use]
    pub fn prior(&self, strength: f64) -> SpeedPrior {
        SpeedPrior { theta: self.theta, cross: self.cross, strength }
    }

    /// Estimated standard error of the predicted speed at (p, w), as a fraction of it: 0.1 = 10 %.
    ///
    /// A first-order estimate from the scatter and the positions of the samples. It ignores the bounds of θ, so it
    /// tends to be too large.
    #[must_use]
    pub fn relative_error(&self, servers: u32, workers: u32) -> f64 {
        if workers == 0 {
            return 0.0;
        }
        let (p, w) = (f64::from(servers.max(1)), f64::from(workers));
        let (terms, numerator) = self.model.terms(p, w, self.model.batch());
        let time = numerator / self.curve.speed(servers, workers);
        let fitted = time_of(self.model, &terms, &self.theta, self.cross);
        let mut relative = terms.map(|t| t / time);
        for (j, share) in relative.iter_mut().enumerate() {
            *share *= if j < self.model.compute_terms() { fitted.by_compute } else { fitted.by_rest };
        }
        self.scatter() * quadratic(&self.spread, &relative).max(0.0).sqrt()
    }

    /// The candidate (p, w) whose measurement adds most information: the one with the largest predicted variance, the
    /// first on a tie. `None` for an empty list.
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
        // A few samples can be met exactly by an inexact model.
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

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
