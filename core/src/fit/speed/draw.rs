//! Random speed functions that are consistent with a fit's measurements.

use super::{
    fit::ADDED, fit::SpeedFit, model::Confidence, model::SpeedOptions, model::SpeedPrior, model::SpeedSample,
    solve::SPARSE,
};

/// Standard deviation of the logarithm of a guessed coefficient: one in six is more than twice its guess. The pull
/// towards the guess makes the same assumption.
const GUESS: f64 = std::f64::consts::LN_2;

impl SpeedFit {
    /// Draws a plausible speed function: a fit like this one, to `samples` with the scatter of the actual ones.
    /// Coefficients that the samples don't determine follow the prior, which the caller should draw too. Without a
    /// prior they scatter as guesses do.
    ///
    /// `samples` and `options` are those of this fit. `normal` draws from the normal distribution with mean 0 and
    /// deviation 1.
    ///
    /// # Examples
    /// ```
    /// use trainmaster_core::{fit::{SpeedFit, SpeedModel, SpeedOptions, SpeedSample}, sim::Draws};
    ///
    /// let (samples, options) = ([SpeedSample::new(2, 2, 1.0)], SpeedOptions::default());
    /// let fit = SpeedFit::fit(SpeedModel::Async, &samples, &options);
    /// let draw = |seed| fit.draw(&samples, &options, &mut (0..).map(|key| Draws::new(seed).normal(key)));
    /// let speeds = |p, w| (0..50).map(|seed| draw(seed).speed(p, w)).collect::<Vec<_>>();
    /// let spread = |speeds: Vec<f64>| {
    ///     speeds.iter().fold(0.0_f64, |a, b| a.max(*b)) / speeds.iter().fold(9.9_f64, |a, b| a.min(*b))
    /// };
    /// // One pair was measured. Far from it the fit is uncertain.
    /// assert!(spread(speeds(2, 2)) < 1.4 && spread(speeds(2, 16)) > 2.0);
    /// ```
    #[must_use]
    pub fn draw(&self, samples: &[SpeedSample], options: &SpeedOptions, normal: &mut dyn Iterator<Item = f64>) -> Self {
        let scatter = self.scatter();
        let mut off_by = |deviation: f64| libm::exp(deviation * normal.next().unwrap_or(0.0));
        let samples: Vec<SpeedSample> =
            samples.iter().map(|sample| SpeedSample { speed: sample.speed * off_by(scatter), ..*sample }).collect();
        // A prior of full weight has the same pull as the generic shape.
        let strength =
            if self.confidence == Confidence::Fitted { 0.0 } else { (SPARSE - options.pull).max(0.0) / 0.01 };
        let guess = || {
            let theta = self.model.shape().map(|theta| theta * off_by(GUESS));
            SpeedPrior { theta, cross: ADDED, strength }
        };
        let prior = options.prior.filter(SpeedPrior::is_usable).unwrap_or_else(guess);
        Self::fit(self.model, &samples, &SpeedOptions { prior: Some(prior), ..*options })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{fit::SpeedModel, sim::Draws};

    fn draws(samples: &[SpeedSample], p: u32, w: u32) -> (f64, f64) {
        let options = SpeedOptions::default();
        let fit = SpeedFit::fit(SpeedModel::Sync { batch: 64.0 }, samples, &options);
        let draws = Draws::new(4);
        let logs = (0..200).map(|number| {
            let drawn = fit.draw(samples, &options, &mut (0..).map(|key| draws.of(number).normal(key)));
            libm::log(drawn.speed(p, w) / fit.speed(p, w))
        });
        let logs: Vec<f64> = logs.collect();
        let mean = logs.iter().sum::<f64>() / 200.0;
        (mean, (logs.iter().map(|log| (log - mean) * (log - mean)).sum::<f64>() / 200.0).sqrt())
    }

    #[test]
    fn draws_agree_at_measured_pairs_and_spread_elsewhere() {
        let truth = |p: u32, w: u32| {
            let (p, w) = (f64::from(p), f64::from(w));
            1.0 / (0.01 * 64.0 / w + 0.05 + 0.1 * w / p + 0.002 * w)
        };
        let pair = |(p, w): (u32, u32)| SpeedSample::new(p, w, truth(p, w));
        let few = [(2, 2)].map(pair);
        let many = [(1, 1), (2, 2), (1, 4), (4, 4), (4, 2), (8, 8), (2, 8), (8, 3), (6, 12)].map(pair);
        let ((near, scatter), (_, far)) = (draws(&few, 2, 2), draws(&few, 4, 16));
        assert!(near.abs() < 0.03 && scatter < 0.1, "off by {near} ± {scatter} where it was measured");
        assert!(far > 3.0 * scatter, "{far} far away, {scatter} near");
        let (mean, spread) = draws(&many, 4, 16);
        assert!(mean.abs() < 0.03 && spread < 0.5 * far, "{mean} ± {spread} with nine pairs, {far} with one");
    }
}
