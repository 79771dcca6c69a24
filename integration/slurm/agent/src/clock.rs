//! Time as events carry it: milliseconds since the Unix epoch that never go back, also not across restarts.

use std::time::{SystemTime, UNIX_EPOCH};

use trainmaster_core::Time;

/// The wall clock, held where it was while that jumps back.
#[derive(Debug)]
pub(crate) struct Clock(Time);

impl Clock {
    /// Starts no earlier than `last`.
    pub(crate) fn after(last: Time) -> Self {
        Self(last)
    }

    /// The time now.
    pub(crate) fn now(&mut self) -> Time {
        let passed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.0 = self.0.max(Time(i64::try_from(passed.as_millis()).unwrap_or(i64::MAX)));
        self.0
    }
}
