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
    /// use trainmaster_core::fit::{SpeedFit, SpeedModel, SpeedOptions, SpeedSample};
    /// use trainmaster_sim::Draws;
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
