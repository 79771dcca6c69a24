//! The worth of an early completion (OASiS §III-C and §V).

use serde::{Deserialize, Serialize};

#[cfg(feature = "schema")]
use crate::amount::DurationText;
use crate::{forms, time::Span};

/// Maximum number of entries of a table.
const MOST_POINTS: usize = 64;

/// A job's worth by the time from its arrival to its end. It never rises with time.
///
/// ```
/// use trainmaster_core::{Span, job::{Utility, UtilityKind}};
/// let hours = |hours: i64| Span::seconds(3600 * hours);
/// let utility = Utility { value: 50.0, decay: 0.5, target: hours(6), ..Utility::new(UtilityKind::Sigmoid) };
/// assert_eq!(utility.at(hours(6)), 25.0);
/// assert!(utility.at(hours(1)) > 45.0 && utility.at(hours(12)) < 5.0);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Utility {
    /// The curve.
    pub kind: UtilityKind,
    /// The maximum worth (γ1 of a sigmoid).
    pub value: f64,
    /// Steepness of a sigmoid around its target, per hour (γ2). 0: constant. Above 4: like a deadline.
    #[serde(default)]
    pub decay: f64,
    /// Time after which half of the worth of a sigmoid or linear curve is gone (γ3), or all of a step's.
    #[serde(default, with = "forms::span")]
    #[cfg_attr(feature = "schema", schemars(with = "DurationText"))]
    pub target: Span,
    /// Entries of a table: the time from which on the job has this worth. Before the first entry it is
    /// [`value`](Self::value).
    #[serde(default, with = "forms::points")]
    #[cfg_attr(feature = "schema", schemars(with = "Vec<(DurationText, f64)>"))]
    pub points: Vec<(Span, f64)>,
}

/// The family of a [`Utility`], with t the time from arrival to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum UtilityKind {
    /// value / (1 + e^(decay·(t − target)))
    Sigmoid,
    /// value, at any time.
    Constant,
    /// value·(1 − t/(2·target)), at least 0.
    Linear,
    /// value up to the target, 0 after it.
    Step,
    /// According to [`Utility::points`].
    Table,
}

impl Utility {
    /// A curve of this kind with worth 1 for an immediate end, and nothing else set.
    pub fn new(kind: UtilityKind) -> Self {
        Self { kind, value: 1.0, decay: 0.0, target: Span::ZERO, points: Vec::new() }
    }

    /// Worth of an end at this time after the arrival.
    pub fn at(&self, elapsed: Span) -> f64 {
        let hours = |span: Span| span.as_seconds() / 3600.0;
        match self.kind {
            UtilityKind::Sigmoid => self.value / (1.0 + libm::exp(self.decay * (hours(elapsed) - hours(self.target)))),
            UtilityKind::Constant => self.value,
            UtilityKind::Linear if self.target <= Span::ZERO => {
                if elapsed <= Span::ZERO {
                    self.value
                } else {
                    0.0
                }
            }
            UtilityKind::Linear => self.value * (1.0 - hours(elapsed) / (2.0 * hours(self.target))).clamp(0.0, 1.0),
            UtilityKind::Step => {
                if elapsed <= self.target {
                    self.value
                } else {
                    0.0
                }
            }
            UtilityKind::Table => {
                let past = self.points.partition_point(|(from, _)| *from <= elapsed);
                past.checked_sub(1).map_or(self.value, |at| self.points[at].1)
            }
        }
    }

    /// The same curve under a site's cap: its worth is at most `most` at any time.
    pub fn capped(&self, most: f64) -> Self {
        let points = self.points.iter().map(|(from, worth)| (*from, worth.min(most))).collect();
        Self { value: self.value.min(most), points, ..self.clone() }
    }

    /// Returns the wrong key and what is allowed.
    pub(super) fn check(&self) -> Result<(), (&'static str, String)> {
        let worth = |worth: f64| (0.0..=1e9).contains(&worth);
        if !worth(self.value) {
            return Err(("utility.value", format!("{} must be from 0 to 10^9", self.value)));
        }
        if !(0.0..=1e6).contains(&self.decay) {
            return Err(("utility.decay", format!("{} must be from 0 to 10^6, per hour", self.decay)));
        }
        if (self.kind == UtilityKind::Table) == self.points.is_empty() {
            let problem = "a table needs at least one [time, worth], and no other kind has any";
            return Err(("utility.points", problem.into()));
        }
        if self.points.len() > MOST_POINTS {
            return Err(("utility.points", format!("{} entries must be at most {MOST_POINTS}", self.points.len())));
        }
        let mut last = (Span(-1), self.value);
        for &(from, value) in &self.points {
            if from <= last.0 || value > last.1 || !worth(value) {
                let problem =
                    format!("[{from}, {value}] must be later and worth no more than what comes before it ({})", last.1);
                return Err(("utility.points", problem));
            }
            last = (from, value);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3600;

    fn of(kind: UtilityKind) -> Utility {
        Utility { value: 8.0, decay: 1.0, target: Span::seconds(4 * HOUR), ..Utility::new(kind) }
    }

    #[test]
    fn the_curves_are_as_documented() {
        let at = |utility: &Utility, hours: i64| utility.at(Span::seconds(hours * HOUR));
        let sigmoid = of(UtilityKind::Sigmoid);
        assert_eq!(at(&sigmoid, 4), 4.0);
        assert!((at(&sigmoid, 5) - 8.0 / (1.0 + std::f64::consts::E)).abs() < 1e-12);
        // Far beyond the target the worth is 0, not NaN.
        assert_eq!(Utility { decay: 1e6, ..sigmoid.clone() }.at(Span(i64::MAX)), 0.0);
        assert_eq!(Utility { decay: 0.0, ..sigmoid }.at(Span(i64::MAX)), 4.0);
        assert_eq!(at(&of(UtilityKind::Constant), 1000), 8.0);
        assert_eq!([0, 4, 6, 8, 100].map(|hours| at(&of(UtilityKind::Linear), hours)), [8.0, 4.0, 2.0, 0.0, 0.0]);
        assert_eq!([0, 4, 5].map(|hours| at(&of(UtilityKind::Step), hours)), [8.0, 8.0, 0.0]);
        let points = vec![(Span::seconds(2 * HOUR), 3.0), (Span::seconds(3 * HOUR), 0.5)];
        let table = Utility { points, ..of(UtilityKind::Table) };
        assert_eq!([0, 1, 2, 3, 9].map(|hours| at(&table, hours)), [8.0, 8.0, 3.0, 0.5, 0.5]);
        assert_eq!([0, 2, 3].map(|hours| at(&table.capped(2.0), hours)), [2.0, 2.0, 0.5]);
        assert!(table.check().is_ok());
        assert!(Utility { points: vec![(Span(0), 9.0)], ..table }.check().is_err());
    }

    #[test]
    fn later_is_never_worth_more() {
        for kind in [UtilityKind::Sigmoid, UtilityKind::Constant, UtilityKind::Linear, UtilityKind::Step] {
            let worths: Vec<f64> = (0..40).map(|half| of(kind).at(Span::seconds(half * HOUR / 2))).collect();
            assert!(worths.windows(2).all(|pair| pair[1] <= pair[0]), "{kind:?}: {worths:?}");
        }
    }
}
