//! Predictions of the epoch at which a fitted curve meets the convergence rule.

#![allow(clippy::needless_range_loop)] // the code follows the indices of the textbook

use serde::{Deserialize, Serialize};

use super::{Family, LossFit};

/// The epoch at which a job is expected to converge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prediction {
    /// e: the job meets the rule at the end of this epoch, or reaches its limit.
    pub epochs: u64,
    /// Convergence before this epoch is unlikely (about one in ten).
    pub low: u64,
    /// Convergence after this epoch is unlikely (about one in ten).
    pub high: u64,
    /// Remaining epochs until e, at least the number of flat epochs that are still missing.
    pub remaining_epochs: u64,
    /// The job reaches its limit before it meets the rule.
    pub capped: bool,
}

impl Prediction {
    /// The prediction for a job that trains a fixed number of epochs, of which `done` are complete.
    #[must_use]
    pub fn certain(epochs: u64, done: u64) -> Self {
        Self { epochs, low: epochs, high: epochs, remaining_epochs: epochs.saturating_sub(done), capped: true }
    }

    /// Q: remaining steps, for a number of steps per epoch
    /// ([`LossHistory::steps_per_epoch`](super::LossHistory::steps_per_epoch)).
    #[must_use]
    pub fn remaining_steps(&self, steps_per_epoch: f64) -> f64 {
        self.remaining_epochs as f64 * steps_per_epoch.max(0.0)
    }
}

/// Maximum number of epochs in the noisy forecast, from the first one that can be flat. Beyond them the smooth curve is
/// used.
const WALK: u64 = 512;
/// Equally likely values of an epoch's noise, in standard deviations: the quantiles of the normal distribution at
/// (i + ½)/15, from tables.
const NOISE: [f64; 15] = [
    -1.833_915, -1.281_552, -0.967_422, -0.727_913, -0.524_401, -0.340_695, -0.167_894, 0.0, 0.167_894, 0.340_695,
    0.524_401, 0.727_913, 0.967_422, 1.281_552, 1.833_915,
];

/// The convergence rule in the job's unit of loss.
#[derive(Clone, Copy)]
struct Rule {
    /// δ times the first loss.
    threshold: f64,
    patience: u64,
    /// Number of consecutive flat epochs up to the latest report.
    run: u64,
    done: u64,
    limit: u64,
}

impl LossFit {
    /// Predicts the job's convergence. e is the *last* epoch of the first run of `patience` epochs in which the loss
    /// falls by less than `delta` times the first epoch's loss each.
    ///
    /// `done` is the last completed epoch (counted as in the reports), `max_epochs` the last epoch that the job may
    /// run. An unfinished job has at least one remaining epoch, and at least those that its current run lacks. Past
    /// `max_epochs` it has none. With [`Options::noise`](super::Options), e is the epoch with the smallest expected
    /// relative error over noise and parameters, and the interval ranges from their 10th to their 90th percentile.
    #[must_use]
    pub fn converges(&self, delta: f64, patience: u32, max_epochs: u64, done: u64) -> Prediction {
        let threshold = delta.max(0.0) * self.first_loss.abs();
        let rule = Rule {
            threshold: if threshold.is_finite() { threshold } else { 0.0 },
            patience: u64::from(patience.max(1)),
            run: 0,
            done,
            limit: max_epochs,
        };
        if done >= max_epochs {
            return Prediction::certain(max_epochs, done);
        }
        let rule = Rule { run: self.run(rule.threshold).min(rule.patience - 1), ..rule };
        let curves = self.plausible();
        let mut stops: Vec<(f64, u64)> = Vec::new();
        for (share, parameters) in &curves {
            self.stops(parameters, *share, &rule, &mut stops);
        }
        stops.sort_by_key(|(_, epoch)| *epoch);
        let epochs = if self.options.noise {
            // The median with weights 1/e minimises the expectation of |e − true|/true.
            let relative: Vec<(f64, u64)> = stops.iter().map(|&(p, e)| (p / e.max(1) as f64, e)).collect();
            quantile(&relative, 0.5)
        } else {
            smooth(self.family, &self.parameters, self.scale, self.origin, &rule)
        };
        Prediction {
            epochs,
            low: quantile(&stops, 0.1).min(epochs),
            high: quantile(&stops, 0.9).max(epochs),
            remaining_epochs: epochs - done,
            capped: epochs >= max_epochs,
        }
    }

    /// Number of consecutive flat epochs up to the latest one.
    fn run(&self, threshold: f64) -> u64 {
        let mut run = 0.0;
        for pair in self.recent.windows(2).rev() {
            let gap = pair[1].epoch - pair[0].epoch;
            if pair[0].loss - pair[1].loss >= threshold * gap {
                break;
            }
            run += gap;
        }
        run as u64
    }

    /// The fitted parameters and plausible alternatives, with their weights: 7 sigma points.
    fn plausible(&self) -> Vec<(f64, [f64; 3])> {
        let mut out = vec![(0.4, self.parameters)];
        // Rows of the transposed lower Cholesky factor: directions in which the fit is uncertain.
        let mut l = [[0.0; 3]; 3];
        for i in 0..3 {
            for j in 0..=i {
                let dot: f64 = (0..j).map(|k| l[i][k] * l[j][k]).sum();
                let rest = self.covariance[i][j] - dot;
                l[i][j] = match (i == j, l[j][j] > 0.0) {
                    (true, _) => rest.max(0.0).sqrt(),
                    (false, true) => rest / l[j][j],
                    (false, false) => 0.0,
                };
            }
        }
        // Weights of 0.1 at √5 standard deviations keep the covariance: 2·0.1·5 = 1.
        let far = 5.0_f64.sqrt();
        for column in 0..3 {
            for sign in [far, -far] {
                let mut q = self.parameters;
                for (row, value) in q.iter_mut().enumerate() {
                    *value = (*value + sign * l[row][column]).max(0.0);
                }
                out.push((0.1, q));
            }
        }
        out
    }

    /// Adds the epochs at which curve `q` stops, with the probability of each epoch times `share`.
    fn stops(&self, q: &[f64; 3], share: f64, rule: &Rule, out: &mut Vec<(f64, u64)>) {
        if rule.done.saturating_add(rule.patience - rule.run) >= rule.limit {
            // The limit is too near, even if every epoch from now on is flat.
            out.push((share, rule.limit));
            return;
        }
        let smooth = smooth(self.family, q, self.scale, self.origin, rule);
        let now = self.noise_at(rule.done);
        // Noise far below δ has no effect. An exact fit has no estimate of the noise.
        if !self.options.noise || now.is_nan() || now <= 1e-3 * rule.threshold {
            out.push((share, smooth));
            return;
        }
        let patience = rule.patience.min(WALK) as usize;
        // chances[run][value]: the probability that the job hasn't stopped, after `run` flat epochs, with NOISE[value]
        // as the last epoch's noise.
        let mut chances = vec![[0.0; NOISE.len()]; patience];
        let widest = (NOISE[NOISE.len() - 1] - NOISE[0]) * now;
        let fall = |epoch: u64| self.family.drop(q, (epoch as f64 - self.origin).max(1.0)) * self.scale;
        let first = first_below(&fall, rule.threshold + widest, rule.done + 1, rule.limit);
        if first == rule.done + 1 {
            let last = self.last_noise() / now;
            let nearest = (0..NOISE.len())
                .min_by(|&a, &b| (NOISE[a] - last).abs().total_cmp(&(NOISE[b] - last).abs()))
                .unwrap_or(NOISE.len() / 2);
            chances[(rule.run as usize).min(patience - 1)][nearest] = share;
        } else {
            chances[0] = [share / NOISE.len() as f64; NOISE.len()];
        }
        let mut left = share;
        let end = rule.limit.min(first.saturating_add(WALK));
        for epoch in first..=end {
            let before = NOISE.map(|z| z * self.noise_at(epoch - 1));
            let after = NOISE.map(|z| z * self.noise_at(epoch));
            let fall = fall(epoch);
            // NOISE ascends, so that an epoch is flat from some value of its noise on.
            let flat = before.map(|value| after.partition_point(|next| fall + value - next >= rule.threshold));
            let mut next = vec![[0.0; NOISE.len()]; patience];
            let mut stopped = 0.0;
            for (run, row) in chances.iter().enumerate() {
                for (chance, &flat) in row.iter().zip(&flat).filter(|(chance, _)| **chance > 0.0) {
                    let each = chance / NOISE.len() as f64;
                    next[0][..flat].iter_mut().for_each(|sum| *sum += each);
                    match next.get_mut(run + 1) {
                        Some(next) => next[flat..].iter_mut().for_each(|sum| *sum += each),
                        None => (flat..NOISE.len()).for_each(|_| stopped += each),
                    }
                }
            }
            chances = next;
            if stopped > 0.0 {
                out.push((stopped, epoch));
                left -= stopped;
            }
            if left < 1e-3 * share {
                break;
            }
        }
        if left > 0.0 {
            out.push((left, smooth.max(end)));
        }
    }

    /// Difference between the latest epoch's loss and the curve.
    fn last_noise(&self) -> f64 {
        self.recent.last().map_or(0.0, |p| p.loss - self.loss_at(p.epoch))
    }
}

/// The epoch at which the smooth curve stops.
fn smooth(family: Family, q: &[f64; 3], scale: f64, origin: f64, rule: &Rule) -> u64 {
    let fall = |epoch: u64| family.drop(q, (epoch as f64 - origin).max(1.0)) * scale;
    let first = first_below(&fall, rule.threshold, rule.done + 1, rule.limit);
    let missing = if first == rule.done + 1 { (rule.patience - rule.run).max(1) } else { rule.patience };
    (first - 1).saturating_add(missing).min(rule.limit)
}

/// The first epoch in [from, to] in which the loss falls by less than `threshold`; `to` if there is none.
///
/// The decrease per epoch shrinks monotonically in every family, so bisection finds the epoch.
fn first_below(fall: &dyn Fn(u64) -> f64, threshold: f64, from: u64, to: u64) -> u64 {
    if fall(from) < threshold {
        return from;
    }
    let (mut steep, mut flat) = (from, to.max(from));
    while flat - steep > 1 {
        let middle = steep + (flat - steep) / 2;
        if fall(middle) < threshold { flat = middle } else { steep = middle }
    }
    flat
}

/// The first epoch with a cumulative probability of at least `at`. Requires a sorted, non-empty `stops`.
fn quantile(stops: &[(f64, u64)], at: f64) -> u64 {
    let total: f64 = stops.iter().map(|(p, _)| p).sum();
    let mut sum = 0.0;
    for (chance, epoch) in stops {
        sum += chance;
        if sum >= at * total {
            return *epoch;
        }
    }
    stops.last().map_or(0, |(_, epoch)| *epoch)
}
