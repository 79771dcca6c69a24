//! Rate limits of callers.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use dashmap::DashMap;
use tonic::Status;

/// Number of callers whose rate is remembered. Beyond it, callers without recent calls are forgotten.
const REMEMBERED: usize = 4096;
const LONG: Duration = Duration::from_secs(60);

/// A rate limit.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Calls per second.
    pub second: f64,
    /// Maximum burst of calls.
    pub burst: f64,
}

/// Remaining calls by caller.
#[derive(Debug, Default)]
pub struct Paces(DashMap<Arc<str>, Pace>);

#[derive(Debug)]
struct Pace {
    left: f64,
    seen: Instant,
}

impl Paces {
    /// Takes one call from a caller's limit. O(1); beyond 4,096 callers within a minute, O(callers) for each new one.
    ///
    /// # Errors
    /// The limit is reached.
    pub fn take(&self, key: &Arc<str>, Rate { second, burst }: Rate) -> Result<(), Status> {
        let mut now = Instant::now();
        if !self.0.contains_key(key) && self.0.len() >= REMEMBERED {
            self.0.retain(|_, pace| now.duration_since(pace.seen) < LONG);
        }
        let mut pace = self.0.entry(key.clone()).or_insert(Pace { left: burst, seen: now });
        // Another call of this caller may have come between.
        now = now.max(pace.seen);
        pace.left = (pace.left + now.duration_since(pace.seen).as_secs_f64() * second).min(burst);
        pace.seen = now;
        if pace.left < 1.0 {
            let problem = format!("{key} may make {second} calls in a second; try again later");
            return Err(Status::resource_exhausted(problem));
        }
        pace.left -= 1.0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_callers_above_their_rate_wait() {
        let (paces, rate) = (Paces::default(), Rate { second: 0.001, burst: 3.0 });
        let (greedy, modest): (Arc<str>, Arc<str>) = ("job 1".into(), "job 2".into());
        (0..3).for_each(|_| paces.take(&greedy, rate).unwrap());
        let refused = paces.take(&greedy, rate).unwrap_err();
        assert_eq!(refused.message(), "job 1 may make 0.001 calls in a second; try again later");
        paces.take(&modest, rate).unwrap();
    }
}
