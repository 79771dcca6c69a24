//! The time of events: milliseconds since the Unix epoch. It never decreases, even across restarts.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use trainmaster_core::Time;

/// Follows the wall clock forward. If that jumps back, the time continues at its usual pace.
#[derive(Debug)]
pub struct Clock {
    base: Time,
    since: Instant,
}

impl Clock {
    /// Starts at the wall clock's time or at `last`, whichever is later.
    pub fn after(last: Time) -> Self {
        Self { base: wall().max(last), since: Instant::now() }
    }

    /// The current time.
    pub fn now(&mut self) -> Time {
        self.advance(wall(), Instant::now())
    }

    fn advance(&mut self, wall: Time, instant: Instant) -> Time {
        let passed = instant.saturating_duration_since(self.since).as_millis();
        let steady = Time(self.base.0.saturating_add(i64::try_from(passed).unwrap_or(i64::MAX)));
        if wall > steady {
            (self.base, self.since) = (wall, instant);
        }
        wall.max(steady)
    }
}

fn wall() -> Time {
    let passed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time(i64::try_from(passed.as_millis()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn time_goes_on_when_the_wall_clock_jumps_back() {
        let start = Instant::now();
        let mut clock = Clock { base: Time(1_000_000), since: start };
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(clock.advance(Time(1_000_010), at(10)), Time(1_000_010));
        // The wall clock jumps back by an hour, and a second still takes a second.
        assert_eq!(clock.advance(Time(-2_600_000), at(1010)), Time(1_001_010));
        // A jump forward is followed at once.
        assert_eq!(clock.advance(Time(5_000_000), at(1020)), Time(5_000_000));
        assert_eq!(clock.advance(Time(0), at(1030)), Time(5_000_010));
    }

    #[test]
    fn it_starts_no_earlier_than_the_last_run_ended() {
        let far = Time(i64::MAX / 2);
        assert!(Clock::after(far).now() >= far);
    }
}
