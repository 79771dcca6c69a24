//! A fitted speed function.

#![allow(clippy::needless_range_loop)] // matrix code is most readable with the indices of the textbook

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{
    curve::SpeedCurve,
    goodput::Goodput,
    model::{Confidence, SpeedModel, SpeedOptions, SpeedPrior, SpeedSample, TypeFactor},
    solve::{Problem, Pull, Row, Solution, distinct_rows, factor_of, tells_overlap, time_of},
    table::SpeedTable,
    types::TypeSpeeds,
};
use crate::fit::linear::quadratic;

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
    /// Factors of the measured server types relative to the reference, by ascending type. For a job's fit the reference
    /// is the job's own type, which isn't listed as long as no job of the model was measured on it.
    pub factors: Vec<TypeFactor>,
    curve: SpeedCurve,
    /// (AᵀA)⁻¹ of the weighted, relative rows. Large entries mean that the samples determine little.
    spread: [[f64; 5]; 5],
    /// Measured speeds, for a job that runs only with some numbers of workers. A journal stores them beside the job.
    #[serde(skip)]
    pub(crate) table: Option<Arc<SpeedTable>>,
    /// The choice of the batch, for a job that has one. A snapshot of a journal has it apart.
    #[serde(skip)]
    pub(crate) goodput: Option<Goodput>,
}

/// The paper's form: the sum of computation and communication.
pub(super) const ADDED: f64 = 2.0;
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
            (distinct, _) if distinct < model.enough() => Confidence::Sparse,
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
            table: None,
            goodput: None,
        }
    }

    /// Training speed on the reference server type, in steps per second. See [`SpeedCurve::speed`]. For a job that may
    /// choose its batch: with the best one, in steps of the submitted one.
    #[inline]
    #[must_use]
    pub fn speed(&self, servers: u32, workers: u32) -> f64 {
        let speed = self.goodput_of(&self.curve, servers, workers);
        self.table.as_ref().map_or(speed, |table| speed * table.factor(workers))
    }

    /// The function alone, at the submitted batch, without the [table](Self::table) of a job that has one: small and
    /// `Copy`, for inner loops.
    #[must_use]
    pub fn curve(&self) -> SpeedCurve {
        self.curve
    }

    /// The corrections of the function by what was measured, for a job that runs only with some numbers of workers.
    #[must_use]
    pub fn table(&self) -> Option<&Arc<SpeedTable>> {
        self.table.as_ref()
    }

    /// The choice of the batch, for a job that may choose it.
    #[must_use]
    pub fn goodput(&self) -> Option<&Goodput> {
        self.goodput.as_ref()
    }

    /// The same fit, corrected by what was measured on the job's type: by itself, and where it has nothing by the
    /// model's others.
    #[must_use]
    pub(crate) fn with_table(mut self, own: &[SpeedSample], others: &[SpeedSample]) -> Self {
        self.table = SpeedTable::of(&self.curve, self.model.batch(), own, others).map(Arc::new);
        self
    }

    /// The same fit with other coefficients, for example to study the effect of errors.
    #[must_use]
    pub fn with_theta(self, theta: [f64; 5]) -> Self {
        let curve = SpeedCurve::overlapping(self.model, &theta, self.cross);
        Self { theta, curve, ..self }
    }

    /// The same fit with another function for speeds: the true one, in a simulation. Coefficients and errors stay those
    /// of the fit.
    #[must_use]
    pub fn with_curve(self, curve: SpeedCurve) -> Self {
        Self { curve, table: None, ..self }
    }

    /// The same fit with another statistical efficiency of batches, or with a fixed batch.
    #[must_use]
    pub fn with_goodput(self, goodput: Option<Goodput>) -> Self {
        Self { goodput, ..self }
    }

    /// The fit of `own` samples, all on servers of `server_type`, with the fit of the model's other jobs as its prior.
    /// If none of them was on this type, `types` tells its factor. Other types keep the factors, relative to this one,
    /// that the other jobs showed. None without any sample.
    #[must_use]
    pub(crate) fn on_type(
        model: SpeedModel,
        own: &[SpeedSample],
        others: Option<&Self>,
        server_type: u16,
        types: &TypeSpeeds,
    ) -> Option<Self> {
        let factor = others.map_or(1.0, |others| types.factor(&others.factors, server_type));
        let prior = others.map(|others| {
            let mut prior = others.prior(1.0);
            prior.theta[..others.model.compute_terms()].iter_mut().for_each(|theta| *theta /= factor);
            prior
        });
        if own.is_empty() && prior.is_none() {
            return None;
        }
        let mut fit = Self::fit(model, own, &SpeedOptions { prior, ..SpeedOptions::default() });
        if let Some(others) = others {
            let relative = |known: &TypeFactor| TypeFactor { factor: known.factor / factor, ..*known };
            fit.factors = others.factors.iter().map(relative).collect();
        }
        Some(fit)
    }

    /// The function on servers of `server_type`, for a fit [on `own`](Self::on_type). `types` tells the factor of a
    /// type that this model never had.
    #[must_use]
    pub(crate) fn curve_by(&self, types: &TypeSpeeds, own: u16, server_type: u16) -> SpeedCurve {
        self.curve.computing_faster(self.factor_by(types, own, server_type))
    }

    /// The speed there.
    #[must_use]
    pub(crate) fn speed_by(&self, types: &TypeSpeeds, own: u16, server_type: u16, servers: u32, workers: u32) -> f64 {
        self.goodput_of(&self.curve_by(types, own, server_type), servers, workers)
    }

    #[inline]
    fn goodput_of(&self, curve: &SpeedCurve, servers: u32, workers: u32) -> f64 {
        let servers = self.model.places(servers);
        match &self.goodput {
            None => curve.speed(servers, workers),
            Some(goodput) => goodput.speed(curve, servers, workers),
        }
    }

    fn factor_by(&self, types: &TypeSpeeds, own: u16, server_type: u16) -> f64 {
        let mut known = self.factors.clone();
        if !known.iter().any(|known| known.server_type == own) {
            known.push(TypeFactor { server_type: own, factor: 1.0 });
        }
        types.factor(&known, server_type)
    }

    /// The same fit on another type, until one with the samples there is made.
    #[must_use]
    pub(crate) fn moved(&self, types: &TypeSpeeds, own: u16, to: u16) -> Self {
        let factor = self.factor_by(types, own, to);
        let mut fit = self.clone();
        fit.theta[..self.model.compute_terms()].iter_mut().for_each(|theta| *theta /= factor);
        fit.factors.iter_mut().for_each(|known| known.factor /= factor);
        fit.curve = self.curve.computing_faster(factor);
        fit
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
        self.relative_error_at(servers, workers, self.model.batch())
    }

    fn relative_error_at(&self, servers: u32, workers: u32, batch: f64) -> f64 {
        if workers == 0 {
            return 0.0;
        }
        let servers = self.model.places(servers);
        let (p, w) = (f64::from(servers.max(1)), f64::from(workers));
        let (terms, numerator) = self.model.terms(p, w, batch);
        let curve = if batch == self.model.batch() { self.curve } else { self.curve_at_batch(batch) };
        let time = numerator / curve.speed(servers, workers);
        let fitted = time_of(self.model, &terms, &self.theta, self.cross);
        let mut relative = terms.map(|t| t / time);
        for (j, share) in relative.iter_mut().enumerate() {
            *share *= if j < self.model.compute_terms() { fitted.by_compute } else { fitted.by_rest };
        }
        self.scatter() * quadratic(&self.spread, &relative).max(0.0).sqrt()
    }

    /// The index of the candidate (p, w, batch) whose measurement adds most information: the one with the largest
    /// predicted variance, the first on a tie. `None` without candidates. A batch of `None` is the fit's.
    #[must_use]
    pub fn next_to_profile(&self, candidates: impl IntoIterator<Item = (u32, u32, Option<f64>)>) -> Option<usize> {
        let mut best: Option<(usize, f64)> = None;
        for (at, (p, w, batch)) in candidates.into_iter().enumerate() {
            let error = self.relative_error_at(p, w, batch.unwrap_or(self.model.batch()));
            if best.is_none_or(|(_, top)| error > top) {
                best = Some((at, error));
            }
        }
        best.map(|(at, _)| at)
    }

    pub(super) fn scatter(&self) -> f64 {
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
