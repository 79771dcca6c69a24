//! Time stamps from the host: milliseconds that never decrease.

use std::{
    fmt,
    ops::{Add, Sub},
};

use serde::{Deserialize, Serialize};

/// A point in time, in milliseconds since an origin that the host chose once. It never decreases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Time(pub i64);

/// A duration in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Span(pub i64);

impl Span {
    /// A duration of zero.
    pub const ZERO: Self = Self(0);

    /// A duration of whole seconds.
    pub const fn seconds(seconds: i64) -> Self {
        Self(seconds * 1000)
    }

    /// The duration for a number of seconds. Fractions of a millisecond are dropped. Values that don't fit are clamped,
    /// and NaN gives zero.
    pub fn from_seconds(seconds: f64) -> Self {
        Self((seconds * 1000.0) as i64)
    }

    /// The duration in seconds.
    pub fn as_seconds(self) -> f64 {
        self.0 as f64 / 1000.0
    }
}

impl Add<Span> for Time {
    type Output = Self;
    fn add(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl Sub for Time {
    type Output = Span;
    fn sub(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Display for Span {
    /// The two largest units: `2d 3h`, `1m 30s`, `250ms`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.unsigned_abs();
        if self.0 < 0 {
            f.write_str("-")?;
        }
        let (days, hours, minutes, seconds) = (ms / 86_400_000, ms / 3_600_000 % 24, ms / 60_000 % 60, ms / 1000 % 60);
        match (days, hours, minutes, seconds) {
            (0, 0, 0, 0) => write!(f, "{ms}ms"),
            (0, 0, 0, s) if ms < 10_000 && ms % 1000 >= 100 => write!(f, "{s}.{}s", ms % 1000 / 100),
            (0, 0, 0, s) => write!(f, "{s}s"),
            (0, 0, m, 0) => write!(f, "{m}m"),
            (0, 0, m, s) => write!(f, "{m}m {s}s"),
            (0, h, 0, _) => write!(f, "{h}h"),
            (0, h, m, _) => write!(f, "{h}h {m}m"),
            (d, 0, ..) => write!(f, "{d}d"),
            (d, h, ..) => write!(f, "{d}d {h}h"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_show_their_two_largest_units() {
        for (ms, text) in [
            (0, "0ms"),
            (250, "250ms"),
            (1500, "1.5s"),
            (12_700, "12s"),
            (90_000, "1m 30s"),
            (7_200_000, "2h"),
            (183_600_000, "2d 3h"),
        ] {
            assert_eq!(Span(ms).to_string(), text);
        }
    }
}
