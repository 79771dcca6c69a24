//! The decision to stop a training early.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{AccuracyHistory, Forecast, Options};

/// Optimal stopping of MLF-C (MLFS, §3.5): stop if the target is out of reach, or, without a target, if hardly any gain
/// remains.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct OptStop {
    /// Maximum number of epochs.
    pub max_epochs: u64,
    /// Requested accuracy. `None`: the best that the job can reach.
    pub target: Option<f64>,
    /// ε: tolerated distance from the best accuracy.
    pub tolerance: f64,
    /// Required confidence, from 0.5 to below 1.
    pub confidence: f64,
}

/// An invalid setting.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{name}: {value} must be {allowed}")]
pub struct OptStopError {
    /// Name of the setting.
    pub name: &'static str,
    /// Its value.
    pub value: String,
    /// The allowed values.
    pub allowed: &'static str,
}

/// Reason to stop before the last epoch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Stop {
    /// The requested accuracy is reached.
    Reached {
        /// The reached accuracy.
        accuracy: f64,
    },
    /// The final accuracy would be below the requested one.
    OutOfReach {
        /// The expected final accuracy.
        predicted: f64,
        /// The probability that it is below the requested one.
        probability: f64,
    },
    /// The remaining gain is less than the tolerance.
    Settled {
        /// The best accuracy so far.
        accuracy: f64,
        /// The expected final accuracy.
        predicted: f64,
        /// The probability that at most the tolerance remains.
        probability: f64,
    },
}

impl OptStop {
    /// A rule with ε of one percentage point and 90 % confidence.
    pub fn new(max_epochs: u64, target: Option<f64>) -> Self {
        Self { max_epochs, target, tolerance: 0.01, confidence: 0.9 }
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// The first invalid setting.
    pub fn check(&self) -> Result<(), OptStopError> {
        let wrong = |name, value: f64, allowed| Err(OptStopError { name, value: value.to_string(), allowed });
        if let Some(target) = self.target.filter(|target| !(0.0..=1.0).contains(target)) {
            return wrong("target", target, "from 0 to 1");
        }
        if !(0.0..=1.0).contains(&self.tolerance) {
            return wrong("tolerance", self.tolerance, "from 0 to 1");
        }
        if !(0.5..1.0).contains(&self.confidence) {
            return wrong("confidence", self.confidence, "from 0.5 to below 1");
        }
        Ok(())
    }

    /// Reason to stop now. `None`: continue training. O(points).
    ///
    /// ```
    /// use trainmaster_core::fit::{AccuracyHistory, OptStop, Stop, learning_curve::Options};
    /// let mut history = AccuracyHistory::default();
    /// let rule = OptStop::new(100, None);
    /// let smooth = Options::paper();
    /// let stopped = (0..100_u64).find(|epoch| {
    ///     history.push(*epoch, *epoch, 0.8 - 0.7 * (-(*epoch as f64) / 8.0).exp());
    ///     rule.decide(&history, &smooth).is_some()
    /// });
    /// // e^(−34/8) leaves a hundredth.
    /// assert!((30..45).contains(&stopped.unwrap()), "{stopped:?}");
    /// assert!(matches!(rule.decide(&history, &smooth), None | Some(Stop::Settled { .. })));
    /// ```
    pub fn decide(&self, history: &AccuracyHistory, options: &Options) -> Option<Stop> {
        let accuracy = history.best()?;
        if self.target.is_some_and(|target| accuracy >= target) {
            return Some(Stop::Reached { accuracy });
        }
        let done = history.last_epoch()? + 1;
        if options.cautious && done < self.max_epochs.div_ceil(2) {
            return None;
        }
        let end = Forecast::new(history, self.max_epochs.saturating_sub(1), options)?;
        if end.is_rising() {
            return None;
        }
        let predicted = end.mean();
        if let Some(target) = self.target {
            let probability = end.below(target);
            let within_pace = options.cautious && end.at_pace() >= target;
            if probability > self.confidence && !within_pace {
                return Some(Stop::OutOfReach { predicted, probability });
            }
            if options.cautious {
                // A job just below its target isn't settled: its owner wants the target.
                return None;
            }
        }
        let probability = end.below(accuracy + self.tolerance);
        (probability > self.confidence).then_some(Stop::Settled { accuracy, predicted, probability })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The epoch of the stop, and its reason.
    fn stop(rule: OptStop, options: Options, accuracy: impl Fn(f64) -> f64) -> Option<(u64, Stop)> {
        let mut history = AccuracyHistory::default();
        (0..rule.max_epochs).find_map(|epoch| {
            history.push(epoch, epoch, accuracy(epoch as f64));
            rule.decide(&history, &options).map(|why| (epoch, why))
        })
    }

    #[test]
    fn a_target_is_reached_or_out_of_reach() {
        let curve = |k: f64| 0.8 - 0.7 * libm::exp(-k / 8.0);
        let (epoch, why) = stop(OptStop::new(100, Some(0.7)), Options::paper(), curve).unwrap();
        assert_eq!((epoch, why), (16, Stop::Reached { accuracy: curve(16.0) }));
        let (epoch, why) = stop(OptStop::new(100, Some(0.95)), Options::paper(), curve).unwrap();
        assert!(
            epoch < 20 && matches!(why, Stop::OutOfReach { probability, .. } if probability > 0.9),
            "{epoch} {why:?}"
        );
    }

    #[test]
    fn a_plateau_may_not_be_the_last() {
        // The learning rate is cut in epoch 40.
        let stairs = |k: f64| if k < 40.0 { 0.55 - 0.4 / (k + 1.0) } else { 0.7 - 0.05 / (k - 39.0) };
        let early = stop(OptStop::new(100, None), Options::paper(), stairs).unwrap().0;
        assert!(early < 40, "{early}");
        // Another cut could follow at any time.
        assert_eq!(stop(OptStop::new(100, None), Options::default(), stairs), None);
    }

    #[test]
    fn no_forecast_of_the_first_half_ends_a_job() {
        let curve = |k: f64| 0.8 - 0.7 * libm::exp(-k / 8.0);
        let far = OptStop::new(100, Some(0.99));
        let careless = Options { cautious: false, ..Options::default() };
        assert!(stop(far, careless, curve).unwrap().0 < 49);
        let (epoch, why) = stop(far, Options::default(), curve).unwrap();
        assert!(epoch == 49 && matches!(why, Stop::OutOfReach { .. }), "{epoch} {why:?}");
    }

    #[test]
    fn a_target_at_the_recent_pace_is_not_out_of_reach() {
        // It rises until its end, as 1 − 1/(b·k + 1).
        let slow = |k: f64| 1.0 - 1.0 / ((k + 1.0) / 20.0 + 1.0);
        let reachable = OptStop::new(100, Some(slow(98.0)));
        let careless = Options { cautious: false, ..Options::default() };
        assert!(matches!(stop(reachable, careless, slow), Some((_, Stop::OutOfReach { .. }))));
        assert!(matches!(stop(reachable, Options::default(), slow), Some((98, Stop::Reached { .. }))));
        let beyond = OptStop::new(100, Some(slow(99.0) + 0.1));
        assert!(matches!(stop(beyond, Options::default(), slow), Some((50..90, Stop::OutOfReach { .. }))));
    }

    #[test]
    fn a_job_just_below_its_target_goes_on() {
        let flat = |k: f64| 0.8 - 0.7 / (k + 1.0);
        let rule = OptStop::new(100, Some(flat(97.0)));
        let careless = Options { cautious: false, ..Options::default() };
        assert!(matches!(stop(rule, careless, flat), Some((_, Stop::Settled { .. }))));
        assert!(matches!(stop(rule, Options::default(), flat), Some((97, Stop::Reached { .. }))));
    }

    #[test]
    fn settings_are_checked() {
        let rule = OptStop::new(10, Some(0.5));
        assert_eq!(rule.check(), Ok(()));
        for (wrong, says) in [
            (OptStop { target: Some(75.0), ..rule }, "target: 75 must be from 0 to 1"),
            (OptStop { tolerance: f64::NAN, ..rule }, "tolerance: NaN"),
            (OptStop { confidence: 1.0, ..rule }, "confidence: 1 must be from 0.5 to below 1"),
        ] {
            assert!(wrong.check().unwrap_err().to_string().contains(says));
        }
        assert_eq!(rule.decide(&AccuracyHistory::default(), &Options::default()), None);
    }
}
