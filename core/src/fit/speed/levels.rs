//! The time of an all-reduce step, by the levels of the network that the group crosses.
//!
//! T = (C^γ + N^γ)^(1/γ), after Pollux (OSDI'21, §3.2), with C = θ0 + θ1·m for m examples per worker, and
//! by where the w workers are:
//!
//! | group | N |
//! |---|---|
//! | one worker | 0 |
//! | on one server | θ2 + θ3·(w−2) |
//! | on several servers | θ4 + θ5·(w−2) |
//!
//! γ ≥ 1 tells how far computing and communicating overlap: 1 adds them, ∞ is the longer of both. The fit is our own:
//! the logarithms of the seven terms have a weak normal prior, so that terms of which the rows say nothing keep a usual
//! value, and one row is enough. What the rows and the prior leave open widens the [interval](LevelFit::interval) of a
//! prediction.
//!
//! Mean error of unseen rows over 40 random draws from the measured placements of three models, with `trainmaster fit
//! speed` (which took the other form in 1 of the 120 draws of ten rows). In parentheses: the other form, which doesn't
//! know the servers. The last column is the part of the unseen rows in 90 % intervals.
//!
//! | model | 10 rows | 30 rows | in the interval, 10 rows |
//! |---|---|---|---|
//! | cifar10 | 8.4 % (9.9 %) | 7.4 % | 86 % |
//! | deepspeech2 | 7.7 % (9.0 %) | 7.0 % | 88 % |
//! | imagenet | 8.1 % (9.6 %) | 7.2 % | 87 % |
//!
//! The prior's medians and widths were chosen on these three. On the same models' scalability up to 64 workers, which
//! they weren't chosen on, ten rows give 9.5, 8.3 and 8.9 % (10.6, 8.3 and 9.4 %; 20 draws), thirty 8.4, 7.3 and 8.2 %
//! (8.8, 7.1 and 8.1 %), with 82 to 85 % of unseen rows in the intervals of ten: there it gains less.

#![allow(clippy::needless_range_loop)] // the code follows the indices of the textbook

use serde::{Deserialize, Serialize};

use crate::fit::linear::{inverse, quadratic};

/// Number of terms: θ0 to θ5, and the overlap.
const TERMS: usize = 7;

/// The prior's medians: θ0, θ1 (for the geometric mean of the rows' batches), θ2 to θ5 in proportion to each other, and
/// γ − 1.
const USUAL: [f64; TERMS] = [0.15, 0.5, 0.2, 0.005, 0.4, 0.006, 2.0];

/// The prior's standard deviations of the terms' logarithms.
const WIDTH: [f64; TERMS] = [0.84, 0.7, 0.84, 1.05, 0.7, 1.05, 0.56];

/// Assumed scatter of a measured time's logarithm. Measured placements that differ in nothing the model knows differ
/// by 3 to 6 % among themselves.
const SCATTER: f64 = 0.08;

/// Number of rows that the assumed scatter counts for.
const ASSUMED: f64 = 4.0;

/// Standard deviations in each direction that contain 90 % of a normal distribution.
const NINETY: f64 = 1.645;

/// Upper bound on the steps of a fit. Fits to measured rows take 5 to 20.
const STEPS: usize = 100;

/// A measured step of a group of workers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepSample {
    /// w, workers.
    pub workers: u32,
    /// The servers that they were on.
    pub servers: u32,
    /// m, examples per worker and step.
    pub local_batch: f64,
    /// Time of the step, in seconds.
    pub seconds: f64,
}

impl StepSample {
    /// Whether it can be fitted: workers on no more servers than there are workers, and positive, finite numbers.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        let fine = |value: f64| value.is_finite() && value > 0.0;
        (1..=self.workers).contains(&self.servers) && fine(self.local_batch) && fine(self.seconds)
    }
}

/// The fitted time of a step.
///
/// # Examples
///
/// ```
/// use trainmaster_core::fit::speed::{LevelFit, StepSample};
///
/// let row = |workers, servers, local_batch, seconds| StepSample { workers, servers, local_batch, seconds };
/// let rows = [row(1, 1, 32.0, 0.11), row(4, 1, 32.0, 0.13), row(4, 4, 32.0, 0.21)];
/// let fit = LevelFit::fit(&rows).expect("usable rows");
/// assert!(fit.seconds(8, 2, 32.0) > fit.seconds(8, 1, 32.0), "the network between servers was slower");
/// let (low, high) = fit.interval(16, 4, 32.0);
/// assert!(low < fit.seconds(16, 4, 32.0) && fit.seconds(16, 4, 32.0) < high);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LevelFit {
    /// Logarithms of θ0 to θ5 (seconds, θ1 seconds per example) and of γ − 1.
    logs: [f64; TERMS],
    /// What rows and prior leave open of these logarithms, as a covariance.
    open: [[f64; TERMS]; TERMS],
    /// Standard deviation of a measured time's logarithm around the fit.
    scatter: f64,
    samples: u32,
}

impl LevelFit {
    /// Fits the terms to the usable samples. `None` without any, and if their numbers are too extreme for 64 bits.
    ///
    /// Cost: O(samples) for each of a few steps.
    #[must_use]
    pub fn fit(samples: &[StepSample]) -> Option<Self> {
        let rows: Vec<StepSample> = samples.iter().copied().filter(StepSample::is_usable).collect();
        let count = rows.len() as f64;
        let mean = |of: &dyn Fn(&StepSample) -> f64| rows.iter().map(of).sum::<f64>() / count;
        let mut usual = USUAL.map(libm::log);
        usual[1] -= mean(&|row| libm::log(row.local_batch));
        // The usual step of this length.
        let longer = mean(&|row| libm::log(row.seconds) - predict(&usual, row).log);
        usual[..TERMS - 1].iter_mut().for_each(|term| *term += longer);
        if rows.is_empty() || !usual.iter().all(|term| term.is_finite()) {
            return None;
        }
        let (logs, curvature) = maximise(&rows, &usual);
        let squares: f64 = rows.iter().map(|row| libm::log(row.seconds) - predict(&logs, row).log).map(|e| e * e).sum();
        let scatter = ((ASSUMED * SCATTER * SCATTER + squares) / (ASSUMED + count)).sqrt();
        Some(Self { logs, open: inverse(&curvature)?, scatter, samples: u32::try_from(rows.len()).unwrap_or(u32::MAX) })
    }

    /// θ0 to θ5, in seconds (θ1: per example).
    #[must_use]
    pub fn theta(&self) -> [f64; TERMS - 1] {
        std::array::from_fn(|at| libm::exp(self.logs[at]))
    }

    /// γ, above 1.
    #[must_use]
    pub fn overlap(&self) -> f64 {
        1.0 + libm::exp(self.logs[TERMS - 1])
    }

    /// Number of samples used.
    #[must_use]
    pub fn samples(&self) -> u32 {
        self.samples
    }

    /// Predicted time of a step in seconds: `workers` on `servers`, with `local_batch` examples each.
    ///
    /// No worker or server, and numbers of examples that aren't positive and finite, count as one.
    #[must_use]
    pub fn seconds(&self, workers: u32, servers: u32, local_batch: f64) -> f64 {
        libm::exp(predict(&self.logs, &group(workers, servers, local_batch)).log)
    }

    /// The interval that is meant to contain 90 % of such steps' times (measured: 82 to 88 %), in seconds. It is wide
    /// far from what was measured.
    #[must_use]
    pub fn interval(&self, workers: u32, servers: u32, local_batch: f64) -> (f64, f64) {
        let Predicted { log, slopes } = predict(&self.logs, &group(workers, servers, local_batch));
        let wide = NINETY * (self.scatter * self.scatter + quadratic(&self.open, &slopes)).sqrt();
        (libm::exp(log - wide), libm::exp(log + wide))
    }

    /// Estimated standard error of the predicted time, as a fraction of it: 0.1 = 10 %. A single step scatters more.
    #[must_use]
    pub fn relative_error(&self, workers: u32, servers: u32, local_batch: f64) -> f64 {
        quadratic(&self.open, &predict(&self.logs, &group(workers, servers, local_batch)).slopes).sqrt()
    }
}

fn group(workers: u32, servers: u32, local_batch: f64) -> StepSample {
    let local_batch = if local_batch.is_finite() && local_batch > 0.0 { local_batch } else { 1.0 };
    StepSample { workers: workers.max(1), servers: servers.max(1), local_batch, seconds: 1.0 }
}

/// The logarithm of a step's time, and its derivatives by the logarithms of the terms.
struct Predicted {
    log: f64,
    slopes: [f64; TERMS],
}

fn predict(logs: &[f64; TERMS], row: &StepSample) -> Predicted {
    let term = |at: usize| libm::exp(logs[at]);
    let (fixed, examples) = (term(0), term(1) * row.local_batch);
    let compute = fixed + examples;
    let mut slopes = [0.0; TERMS];
    if row.workers == 1 {
        (slopes[0], slopes[1]) = (fixed / compute, examples / compute);
        return Predicted { log: libm::log(compute), slopes };
    }
    let level = if row.servers == 1 { 2 } else { 4 };
    let (first, further) = (term(level), term(level + 1) * f64::from(row.workers - 2));
    let network = first + further;
    let excess = term(TERMS - 1);
    let gamma = 1.0 + excess;
    // log T = (1/γ)·log(C^γ + N^γ), from the larger of both.
    let (log_compute, log_network) = (libm::log(compute), libm::log(network));
    let apart = gamma * (log_compute - log_network).abs();
    let rest = libm::log1p(libm::exp(-apart));
    let log = log_compute.max(log_network) + rest / gamma;
    let smaller = libm::exp(-apart - rest);
    let (of_compute, of_network) =
        if log_compute >= log_network { (1.0 - smaller, smaller) } else { (smaller, 1.0 - smaller) };
    slopes[0] = of_compute * fixed / compute;
    slopes[1] = of_compute * examples / compute;
    slopes[level] = of_network * first / network;
    slopes[level + 1] = of_network * further / network;
    // ∂ log T/∂γ, times dγ/d log(γ − 1).
    slopes[TERMS - 1] = -(rest + smaller * apart) / (gamma * gamma) * excess;
    Predicted { log, slopes }
}

/// The most probable terms, and minus the second derivative of the logarithm of their probability: Gauss–Newton steps,
/// damped as by Levenberg and Marquardt.
fn maximise(rows: &[StepSample], usual: &[f64; TERMS]) -> ([f64; TERMS], [[f64; TERMS]; TERMS]) {
    let cost = |logs: &[f64; TERMS]| -> f64 {
        let errors = rows.iter().map(|row| (libm::log(row.seconds) - predict(logs, row).log) / SCATTER);
        let pulls = (0..TERMS).map(|at| (logs[at] - usual[at]) / WIDTH[at]);
        errors.map(|error| error * error).sum::<f64>() + pulls.map(|pull| pull * pull).sum::<f64>()
    };
    let mut logs = *usual;
    let mut now = cost(&logs);
    let (mut damping, mut improves) = (1e-3, true);
    for _ in 0..STEPS {
        let (curvature, downhill) = expansion(rows, &logs, usual);
        let mut damped = curvature;
        for at in 0..TERMS {
            damped[at][at] *= 1.0 + damping;
        }
        let Some(inverse) = inverse(&damped) else { break };
        let next: [f64; TERMS] =
            std::array::from_fn(|at| logs[at] + (0..TERMS).map(|by| inverse[at][by] * downhill[by]).sum::<f64>());
        let then = cost(&next);
        if then.is_finite() && then < now {
            improves = now - then > 1e-9 * now;
            (logs, now, damping) = (next, then, damping / 5.0);
        } else {
            damping *= 5.0;
        }
        if !improves || damping > 1e9 {
            break;
        }
    }
    (logs, expansion(rows, &logs, usual).0)
}

/// Curvature and negative gradient of half the cost.
fn expansion(rows: &[StepSample], logs: &[f64; TERMS], usual: &[f64; TERMS]) -> ([[f64; TERMS]; TERMS], [f64; TERMS]) {
    let mut curvature = [[0.0; TERMS]; TERMS];
    let mut downhill = [0.0; TERMS];
    let weight = 1.0 / (SCATTER * SCATTER);
    for row in rows {
        let Predicted { log, slopes } = predict(logs, row);
        let error = libm::log(row.seconds) - log;
        for i in 0..TERMS {
            downhill[i] += weight * slopes[i] * error;
            for j in 0..TERMS {
                curvature[i][j] += weight * slopes[i] * slopes[j];
            }
        }
    }
    for at in 0..TERMS {
        let pull = 1.0 / (WIDTH[at] * WIDTH[at]);
        curvature[at][at] += pull;
        downhill[at] += pull * (usual[at] - logs[at]);
    }
    (curvature, downhill)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn row(workers: u32, servers: u32, local_batch: f64, seconds: f64) -> StepSample {
        StepSample { workers, servers, local_batch, seconds }
    }

    /// A made-up model, faster between servers than within one.
    fn truth(workers: u32, servers: u32, local_batch: f64) -> f64 {
        let compute = 0.02 + 0.001 * local_batch;
        let network = match (workers, servers) {
            (1, _) => 0.0,
            (_, 1) => 0.08 + 0.01 * f64::from(workers - 2),
            _ => 0.04 + 0.002 * f64::from(workers - 2),
        };
        (compute * compute + network * network).sqrt()
    }

    fn measured() -> Vec<StepSample> {
        let groups = [(1, 1), (2, 1), (4, 1), (8, 1), (2, 2), (4, 2), (8, 4), (16, 8)];
        let batches = [16.0, 64.0, 256.0];
        groups.iter().flat_map(|(w, n)| batches.map(|m| row(*w, *n, m, truth(*w, *n, m)))).collect()
    }

    #[test]
    fn exact_rows_give_the_function_back() {
        let fit = LevelFit::fit(&measured()).unwrap();
        for (workers, servers, batch) in [(3, 1, 100.0), (6, 3, 32.0), (12, 2, 200.0), (1, 1, 128.0)] {
            let off = fit.seconds(workers, servers, batch) / truth(workers, servers, batch) - 1.0;
            assert!(off.abs() < 0.03, "{workers} on {servers}, {batch}: {off}");
        }
        assert!(fit.seconds(8, 4, 64.0) < fit.seconds(8, 1, 64.0), "that spreading is faster is learnt");
    }

    #[test]
    fn one_row_is_met_and_the_rest_is_usual() {
        let fit = LevelFit::fit(&[row(4, 1, 32.0, 0.5)]).unwrap();
        assert!((fit.seconds(4, 1, 32.0) / 0.5 - 1.0).abs() < 0.01);
        assert!(fit.seconds(4, 2, 32.0) > 0.5, "between servers it is usually slower");
        assert!(fit.seconds(4, 1, 64.0) > 0.5 && fit.seconds(4, 1, 64.0) < 1.0);
    }

    #[test]
    fn the_error_grows_with_the_distance_from_what_was_measured() {
        let fit = LevelFit::fit(&[row(1, 1, 32.0, 0.1), row(2, 1, 32.0, 0.12), row(4, 1, 32.0, 0.13)]).unwrap();
        assert!(fit.relative_error(2, 1, 32.0) < fit.relative_error(8, 1, 32.0));
        assert!(fit.relative_error(4, 1, 32.0) < fit.relative_error(4, 4, 32.0), "nothing crossed servers");
        assert!(fit.relative_error(4, 1, 32.0) < fit.relative_error(4, 1, 512.0));
        let (low, high) = fit.interval(32, 8, 512.0);
        assert!(high / low > 2.0, "{low} to {high}");
    }

    #[test]
    fn slopes_are_the_derivatives() {
        let logs = USUAL.map(libm::log);
        for group in [row(1, 1, 32.0, 1.0), row(2, 1, 3.0, 1.0), row(8, 1, 0.2, 1.0), row(16, 4, 5.0, 1.0)] {
            let slopes = predict(&logs, &group).slopes;
            for at in 0..TERMS {
                let (mut above, mut below) = (logs, logs);
                (above[at], below[at]) = (logs[at] + 1e-5, logs[at] - 1e-5);
                let numeric = (predict(&above, &group).log - predict(&below, &group).log) / 2e-5;
                assert!((slopes[at] - numeric).abs() < 1e-6, "{group:?}, {at}: {} and {numeric}", slopes[at]);
            }
        }
    }

    #[test]
    fn nonsense_is_left_out() {
        let good = row(2, 1, 32.0, 0.1);
        let bad = [
            row(0, 0, 32.0, 0.1),
            row(2, 3, 32.0, 0.1),
            row(2, 0, 32.0, 0.1),
            row(2, 1, 0.0, 0.1),
            row(2, 1, f64::NAN, 0.1),
            row(2, 1, 32.0, -1.0),
            row(2, 1, 32.0, f64::INFINITY),
        ];
        assert_eq!(LevelFit::fit(&bad), None);
        let fit = LevelFit::fit(&[&bad[..], &[good]].concat()).unwrap();
        assert_eq!((fit.samples(), Some(&fit)), (1, LevelFit::fit(&[good]).as_ref()));
    }

    fn count() -> impl Strategy<Value = u32> {
        prop_oneof![1_u32..4, 1_u32..5000]
    }

    fn magnitude() -> impl Strategy<Value = f64> {
        (-6.0..6.0).prop_map(|exponent| libm::pow(10.0, exponent))
    }

    proptest! {
        /// Any rows give finite, positive times, and intervals around them.
        #[test]
        fn predictions_are_times(
            rows in prop::collection::vec((count(), count(), magnitude(), magnitude()), 1..30),
            (workers, servers, batch) in (0_u32..100_000, 0_u32..100_000, 0.0_f64..1e12),
        ) {
            let rows: Vec<_> = rows.into_iter().map(|(w, n, m, t)| row(w, n.min(w), m, t)).collect();
            let fit = LevelFit::fit(&rows).unwrap();
            let seconds = fit.seconds(workers, servers, batch);
            let (low, high) = fit.interval(workers, servers, batch);
            prop_assert!(seconds.is_finite() && seconds > 0.0);
            let ordered = low > 0.0 && low <= seconds && seconds <= high && high.is_finite();
            prop_assert!(ordered, "{low} {seconds} {high}");
        }
    }
}
