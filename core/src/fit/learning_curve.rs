//! Forecasts of a job's final accuracy with their uncertainty, and the decision whether to continue training.
//!
//! Source: MLFS (CoNEXT'20), §3.5 (OptStop of MLF-C), which predicts "by a weighted probabilistic learning curve" and
//! doesn't specify the curve. This implementation uses the families that are common in the extrapolation of learning
//! curves (power law, stretched exponential, Hill, logarithm), each with a grid of shapes. Each model is linear,
//! y = c − a·g(k) with a ≥ 0 and c ≤ 1, k in epochs, and is fitted in closed form. Its weight is its evidence given the
//! accuracies so far. The forecast is the mixture of all models with their uncertainties. Later epochs have higher
//! weights. Errors of neighbouring accuracies are correlated, so n points count as n/2. The error drifts until the end.
//!
//! Additions to the paper ([`Options`]):
//! - A **sudden rise** (a cut of the learning rate) starts a new segment, as for losses
//!   ([`convergence`](super::convergence)).
//! - **Future jumps**: before a cut of the learning rate, a flat curve looks exactly like a finished one. So a curve at
//!   its start has a jump ahead with probability [`Options::jumps`], and a curve at its half with half of that
//!   probability. After a jump, 60 to 90 % of the error remains.
//! - No forecast ends a job while the latest accuracies are **far above** all curves.
//! - **Caution** ([`Options::cautious`]): no forecast ends a job before the epoch that completes half of them. A target
//!   is out of reach only if the recent pace doesn't reach it either: while a curve flattens, that is an upper bound.
//!   A curve that has jumped before has a jump ahead with the full probability until its end, because learning rates
//!   are often cut in several steps. So jobs with such cuts practically never settle early.
//!
//! On measured curves, with 90 % confidence ([`OptStop::new`]) and a target one point below the best accuracy of the
//! run, no job of CIFAR-10, DeepSpeech2, ImageNet and MLPerf's ResNets is ended as out of reach. Without caution 33, 0,
//! 100 and 99 % of them are, with the paper's smooth curve 67, 17, 100 and 99 %. Of targets ten points above the best,
//! 99 % or more are found out, after 50 to 69 % of the epochs (5 points: 100, 100, 29 and 9 %).
//!
//! Without a target and with ε of one point, CIFAR-10 and DeepSpeech2 stop after 98 and 96 % of their epochs and lose
//! no accuracy. ImageNet and MLPerf, whose learning rates are cut in several steps, don't stop early.
//! From half of a run on, intervals of 80 % contain 87 % of the final accuracies. No model foresees a first cut: at a
//! third of the ImageNet runs the interval contains no final accuracy. (The constants were chosen with knowledge of
//! these curves.)
//!
//! The method is deterministic and doesn't sample. It has 57 models of two unknowns each. A forecast costs O(57·n) for
//! n ≤ 512 points.

mod family;
mod stop;

use serde::{Deserialize, Serialize};

use self::family::Family;
pub use self::stop::{OptStop, OptStopError, Stop};
use super::convergence::{LossHistory, LossPoint, latest_segment};

/// Minimum number of epochs with an accuracy for a forecast.
pub const FEWEST: usize = 5;
/// Weight of a point in the presence of its neighbours, because their errors are correlated.
const INDEPENDENT: f64 = 0.5;
/// Growth of the error's variance while k grows by a factor of e, in units of the variance.
const DRIFT: f64 = 1.0;
/// Number of latest points in which a new rise is searched.
const LATEST: usize = 3;
/// The latest part of the run so far, of which the slope is the recent pace.
const RECENT: f64 = 0.25;
/// Equally likely fractions of the error that remain after a jump.
const JUMP_LEAVES: [f64; 3] = [0.6, 0.75, 0.9];

/// Reported accuracies of a job, averaged per epoch, in bounded memory.
///
/// ```
/// use trainmaster_core::fit::AccuracyHistory;
/// let mut history = AccuracyHistory::default();
/// history.push(100, 0, 0.3);
/// history.push(200, 1, 0.5);
/// history.push(300, 2, 1.5); // no accuracy: not kept
/// assert_eq!((history.len(), history.best()), (2, Some(0.5)));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AccuracyHistory {
    /// History of the error rate.
    errors: LossHistory,
    best: Option<f64>,
}

impl AccuracyHistory {
    /// Adds the accuracy, from 0 to 1, that was reported at a step of an epoch. Other values, and earlier steps than
    /// the last one, are ignored.
    pub fn push(&mut self, step: u64, epoch: u64, accuracy: f64) {
        if (0.0..=1.0).contains(&accuracy) {
            self.errors.push(step, epoch, 1.0 - accuracy);
            self.best = Some(self.best.map_or(accuracy, |best| best.max(accuracy)));
        }
    }

    /// Number of points: epochs with an accuracy, or groups of epochs in a long history.
    pub fn len(&self) -> usize {
        self.errors.points().len()
    }

    /// Whether the history is empty.
    pub fn is_empty(&self) -> bool {
        self.best.is_none()
    }

    /// The highest reported accuracy.
    pub fn best(&self) -> Option<f64> {
        self.best
    }

    /// Difference between the best accuracy of the last `epochs` epochs and the best one before them. `None` if either
    /// part is empty.
    ///
    /// ```
    /// use trainmaster_core::fit::AccuracyHistory;
    /// let mut history = AccuracyHistory::default();
    /// for (epoch, accuracy) in [0.25, 0.5, 0.75, 0.5].into_iter().enumerate() {
    ///     history.push(epoch as u64, epoch as u64, accuracy);
    /// }
    /// assert_eq!((history.gain(1), history.gain(2), history.gain(4)), (Some(-0.25), Some(0.25), None));
    /// ```
    pub fn gain(&self, epochs: u32) -> Option<f64> {
        let points = self.errors.points();
        let since = points.last()?.epoch - f64::from(epochs);
        let (before, after) = points.split_at(points.partition_point(|point| point.epoch <= since));
        // The points are error rates, so the smallest is the best.
        let best = |points: &[LossPoint]| points.iter().map(|point| point.loss).min_by(f64::total_cmp);
        Some(best(before)? - best(after)?)
    }

    /// Epoch of the latest report.
    pub fn last_epoch(&self) -> Option<u64> {
        self.errors.last_epoch()
    }
}

/// Selects the additions to the paper's method.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Options {
    /// A sudden rise of the accuracy starts a new segment.
    pub segments: bool,
    /// Probability, from 0 to 1, that a curve at its start has a sudden rise ahead.
    pub jumps: f64,
    /// Keeps that probability until the end of a curve that has had such a rise. Lets no forecast of [`OptStop`] end a
    /// job before the epoch that completes half of them, nor while the recent pace would reach the target. If a target
    /// was requested, the best accuracy within ε doesn't suffice.
    pub cautious: bool,
}

impl Options {
    /// One smooth curve from the first epoch to the last.
    #[must_use]
    pub fn paper() -> Self {
        Self { segments: false, jumps: 0.0, cautious: false }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self { segments: true, jumps: 0.5, cautious: true }
    }
}

/// Distribution of the accuracy at a later epoch: a mixture of normal distributions.
#[derive(Clone, Debug, PartialEq)]
pub struct Forecast {
    components: Vec<Component>,
    /// Distance of the latest accuracies above the curves, in standard deviations.
    rise: f64,
    /// The accuracy at the recent pace.
    paced: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Component {
    weight: f64,
    mean: f64,
    deviation: f64,
}

impl Forecast {
    /// Forecasts the accuracy after an epoch. `None` if fewer than [`FEWEST`] epochs have an accuracy, or if the epoch
    /// is over.
    ///
    /// ```
    /// use trainmaster_core::fit::{AccuracyHistory, Forecast, learning_curve::Options};
    /// let mut history = AccuracyHistory::default();
    /// for epoch in 0..40 {
    ///     history.push(epoch, epoch, 0.9 - 0.6 / (epoch + 1) as f64);
    /// }
    /// let end = Forecast::new(&history, 99, &Options::paper()).unwrap();
    /// assert!((end.mean() - 0.894).abs() < 0.01);
    /// assert!(end.below(0.8) < 0.01 && end.below(0.95) > 0.99);
    /// ```
    pub fn new(history: &AccuracyHistory, epoch: u64, options: &Options) -> Option<Self> {
        let points = history.errors.points();
        let last = points.last()?.epoch;
        if points.len() < FEWEST || (epoch as f64) <= last {
            return None;
        }
        let from = if options.segments { latest_segment(&points) } else { 0 };
        let may_jump_again = options.cautious && from > 0;
        // A short new segment contains less information than the curve before it.
        let from = if points.len() - from < FEWEST { 0 } else { from };
        let origin = points[from].epoch - 1.0;
        let seen: Vec<Seen> = points[from..]
            .iter()
            .map(|point| {
                let k = point.epoch - origin;
                Seen { k, accuracy: 1.0 - point.loss, weight: k * point.epochs }
            })
            .collect();
        let ahead = if may_jump_again { 1.0 } else { (epoch as f64 - last) / (epoch as f64 + 1.0) };
        let end = epoch as f64 - origin;
        let (smooth, rise) = mixture(&seen, end);
        let recent = last - origin - RECENT * (last + 1.0);
        let recent = seen.partition_point(|one| one.k < recent).min(seen.len() - LATEST);
        let paced = continued(&seen[recent..], end);
        Some(Self { components: with_jumps(smooth, options.jumps * ahead), rise, paced })
    }

    /// The accuracy if it continues to rise as it did in the latest quarter of the run so far. It can exceed 1.
    pub fn at_pace(&self) -> f64 {
        self.paced
    }

    /// Whether the latest accuracies are far above every curve through all points. Then the accuracy is in a new rise,
    /// whose height can't be predicted.
    pub fn is_rising(&self) -> bool {
        self.rise > 2.0
    }

    /// Mean of the distribution.
    pub fn mean(&self) -> f64 {
        self.components.iter().map(|one| one.weight * one.mean).sum()
    }

    /// Probability of an accuracy below `accuracy`.
    pub fn below(&self, accuracy: f64) -> f64 {
        self.components.iter().map(|one| one.weight * normal((accuracy - one.mean) / one.deviation)).sum()
    }

    /// The accuracy with this cumulative probability, to a millionth.
    pub fn quantile(&self, probability: f64) -> f64 {
        let (mut low, mut high) = (-1.0, 2.0);
        while high - low > 1e-6 {
            let middle = 0.5 * (low + high);
            if self.below(middle) < probability { low = middle } else { high = middle }
        }
        0.5 * (low + high)
    }
}

/// One accuracy for the solvers.
struct Seen {
    k: f64,
    accuracy: f64,
    weight: f64,
}

/// A straight line through the accuracies, at a later epoch. It doesn't fall.
fn continued(recent: &[Seen], end: f64) -> f64 {
    let n = recent.len() as f64;
    let mean = |of: fn(&Seen) -> f64| recent.iter().map(of).sum::<f64>() / n;
    let (k, accuracy) = (mean(|one| one.k), mean(|one| one.accuracy));
    let covariance: f64 = recent.iter().map(|one| (one.k - k) * (one.accuracy - accuracy)).sum();
    let variance: f64 = recent.iter().map(|one| (one.k - k) * (one.k - k)).sum();
    accuracy + (covariance / variance).max(0.0) * (end - k)
}

/// Cumulative distribution function of the standard normal distribution.
fn normal(z: f64) -> f64 {
    0.5 * libm::erfc(-z * std::f64::consts::FRAC_1_SQRT_2)
}

/// All models at a later epoch with their evidence, and the distance of the latest accuracies above them.
fn mixture(seen: &[Seen], end: f64) -> (Vec<Component>, f64) {
    let n = seen.len() as f64;
    let total: f64 = seen.iter().map(|one| one.weight).sum();
    let last = seen.last().map_or(1.0, |one| one.k);
    let independent = (n * INDEPENDENT).max(3.0);
    let fits: Vec<(f64, Component, f64)> = Family::all(end)
        .map(|family| {
            let fit = line(seen, n / total, family, end);
            // If the residual vanishes, a ten-thousandth stands for the noise of the validation itself.
            let square = fit.squares / n + 1e-8;
            let noise = square * n / (n - 2.0);
            let variance = noise * (fit.leverage * n / independent + 1.0 + DRIFT * libm::log(end / last));
            let evidence = -0.5 * independent * libm::log(square);
            let one = Component { weight: 0.0, mean: fit.c - fit.a * fit.end, deviation: libm::sqrt(variance) };
            (evidence, one, fit.rise / libm::sqrt(noise))
        })
        .collect();
    let most = fits.iter().map(|(evidence, ..)| *evidence).fold(f64::NEG_INFINITY, f64::max);
    let mut all: Vec<Component> =
        fits.iter().map(|(evidence, one, _)| Component { weight: libm::exp(evidence - most), ..*one }).collect();
    let sum: f64 = all.iter().map(|one| one.weight).sum();
    all.iter_mut().for_each(|one| one.weight /= sum);
    let rise = all.iter().zip(&fits).map(|(one, (.., rise))| one.weight * rise).sum();
    (all, rise)
}

/// y = c − a·g, by least squares.
struct Line {
    c: f64,
    a: f64,
    /// g at the requested epoch.
    end: f64,
    squares: f64,
    /// Residual of the latest accuracy, or twice the mean residual of the latest three.
    rise: f64,
    /// Variance of the curve at the requested epoch, divided by the variance of an observation.
    leverage: f64,
}

fn line(seen: &[Seen], scale: f64, family: Family, end: f64) -> Line {
    let (mut w, mut wg, mut wgg, mut wy, mut wgy) = (0.0, 0.0, 0.0, 0.0, 0.0);
    let left: Vec<f64> = seen.iter().map(|one| family.left(one.k)).collect();
    for (one, g) in seen.iter().zip(&left) {
        let weight = one.weight * scale;
        w += weight;
        wg += weight * g;
        wgg += weight * g * g;
        wy += weight * one.accuracy;
        wgy += weight * g * one.accuracy;
    }
    let end = family.left(end);
    // The ridge only matters if g is constant.
    let determinant = (w * wgg - wg * wg).max(1e-9 * w * w);
    let (mut c, mut a) = ((wgg * wy - wg * wgy) / determinant, (wg * wy - w * wgy) / determinant);
    if a < 0.0 {
        (c, a) = (wy / w, 0.0);
    } else if c > 1.0 && family.saturates() {
        (c, a) = (1.0, ((wg - wgy) / wgg.max(1e-12)).max(0.0));
    }
    let squares = seen.iter().zip(&left).map(|(one, g)| {
        let error = one.accuracy - (c - a * g);
        one.weight * scale * error * error
    });
    let squares = squares.sum();
    let latest: Vec<f64> =
        seen.iter().zip(&left).rev().take(LATEST).map(|(one, g)| one.accuracy - (c - a * g)).collect();
    let rise = latest[0].max(2.0 * latest.iter().sum::<f64>() / latest.len() as f64);
    Line { c, a, end, squares, rise, leverage: (wgg - 2.0 * end * wg + end * end * w) / determinant }
}

/// Adds jumps with a total probability of `share`.
fn with_jumps(smooth: Vec<Component>, share: f64) -> Vec<Component> {
    if share <= 0.0 {
        return smooth;
    }
    let after = |one: &Component, left: f64| Component {
        weight: one.weight * share / JUMP_LEAVES.len() as f64,
        mean: 1.0 - (1.0 - one.mean.min(1.0)) * left,
        ..*one
    };
    let jumps = JUMP_LEAVES.iter().flat_map(|left| smooth.iter().map(move |one| after(one, *left)));
    let stays = smooth.iter().map(|one| Component { weight: one.weight * (1.0 - share), ..*one });
    stays.chain(jumps).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(epochs: u64, accuracy: impl Fn(f64) -> f64) -> AccuracyHistory {
        let mut history = AccuracyHistory::default();
        (0..epochs).for_each(|epoch| history.push(epoch, epoch, accuracy(epoch as f64 + 1.0)));
        history
    }

    #[test]
    fn smooth_curves_of_every_kind_are_predicted() {
        type Curve = fn(f64) -> f64;
        let curves: [Curve; 4] = [
            |k| 0.9 - 0.5 / k,
            |k| 0.8 - 0.7 * libm::exp(-k / 20.0),
            |k| 0.95 - 0.6 / (1.0 + k / 10.0),
            |k| 0.1 + 0.12 * libm::log(k),
        ];
        for (number, curve) in curves.into_iter().enumerate() {
            let end = Forecast::new(&history(40, curve), 99, &Options::paper()).unwrap();
            let truth = curve(100.0);
            assert!((end.mean() - truth).abs() < 0.01, "curve {number}: {} for {truth}", end.mean());
            assert!(end.quantile(0.05) < truth && truth < end.quantile(0.95), "curve {number}");
        }
    }

    #[test]
    fn the_further_ahead_the_less_sure() {
        let noisy = |k: f64| 0.8 - 0.5 / k + 0.01 * libm::sin(37.0 * k);
        let width = |epoch| {
            let end = Forecast::new(&history(30, noisy), epoch, &Options::default()).unwrap();
            end.quantile(0.9) - end.quantile(0.1)
        };
        assert!(width(30) < width(60) && width(60) < width(200));
    }

    #[test]
    fn probabilities_are_those_of_a_distribution() {
        let end = Forecast::new(&history(12, |k| 0.7 - 0.4 / k), 50, &Options::default()).unwrap();
        let total: f64 = end.components.iter().map(|one| one.weight).sum();
        assert!((total - 1.0).abs() < 1e-12);
        let mut last = 0.0;
        for accuracy in (0..=20).map(|step| f64::from(step) / 10.0 - 0.5) {
            let below = end.below(accuracy);
            assert!((last..=1.0 + 1e-12).contains(&below));
            last = below;
        }
        assert!((end.below(end.quantile(0.3)) - 0.3).abs() < 1e-3);
    }

    #[test]
    fn no_forecast_without_enough_epochs_or_of_the_past() {
        let of = |epochs, epoch| Forecast::new(&history(epochs, |k| 0.5 - 0.3 / k), epoch, &Options::default());
        assert!(of(FEWEST as u64 - 1, 50).is_none() && of(FEWEST as u64, 50).is_some());
        assert!(of(20, 19).is_none() && of(20, 20).is_some() && of(0, 10).is_none());
    }

    #[test]
    fn any_reports_give_a_valid_forecast() {
        for accuracy in [0.0, 1.0] {
            let flat = Forecast::new(&history(10, |_| accuracy), 100, &Options::paper()).unwrap();
            assert!((flat.mean() - accuracy).abs() < 1e-3, "{}", flat.mean());
        }
        let wild = |k: f64| if (k as u64).is_multiple_of(2) { 1.0 } else { 0.0 };
        let end = Forecast::new(&history(600, wild), 10_000_000, &Options::default()).unwrap();
        assert!(end.mean().is_finite() && end.quantile(0.5).is_finite());
        let falling = Forecast::new(&history(20, |k| 0.9 - 0.02 * k), 40, &Options::default()).unwrap();
        assert!((0.3..1.0).contains(&falling.mean()), "{}", falling.mean());
        let mut strange = AccuracyHistory::default();
        [f64::NAN, -0.1, 1.1, f64::INFINITY].into_iter().for_each(|accuracy| strange.push(1, 1, accuracy));
        assert!(strange.is_empty() && strange.last_epoch().is_none());
    }
}
