//! Failures and stragglers for workloads without their own.

use super::{Outage, Workload};
use crate::{draws::Draws, truth::Stragglers};
use trainmaster_core::time::{Span, Time};

/// Key of servers' random numbers, separate from those of jobs.
const FAILURES: u64 = 9 << 32;
/// Servers fail until this time after the last arrival, so that every run ends.
const AFTER: Span = Span::seconds(30 * 86_400);

impl Workload {
    /// Lets every server fail at random: `per_day` times per day of its presence on average, for `away` each time.
    /// Failures end with the workload, or 30 days after the last arrival.
    pub fn fail_servers(&mut self, per_day: f64, away: Span, seed: u64) {
        let last = self.jobs.iter().map(|job| job.arrival).max().unwrap_or_default();
        let end = self.end.unwrap_or(last + AFTER);
        let draws = Draws::new(seed).of(FAILURES);
        for server in 0..self.servers.len() {
            let draws = draws.of(server as u64);
            let mut at = Time(0);
            for number in 0.. {
                at = at + Span::from_seconds(draws.exponential(number) * 86_400.0 / per_day);
                if at >= end {
                    break;
                }
                let back = at + away;
                self.outages.push(Outage { server, at, back: Some(back) });
                at = back;
            }
        }
    }

    /// Lets the workers of all jobs slow down at times.
    pub fn slow_workers(&mut self, stragglers: Stragglers) {
        for job in &mut self.jobs {
            job.truth.stragglers = Some(stragglers);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::Workload;
    use trainmaster_core::{
        server::ServerSpec,
        time::{Span, Time},
    };

    #[test]
    fn servers_fail_at_the_requested_rate_and_return_in_between() {
        let mut workload = Workload {
            servers: vec![ServerSpec::default(); 40],
            end: Some(Time(20 * 86_400_000)),
            ..Workload::default()
        };
        let mut other = workload.clone();
        workload.fail_servers(2.0, Span::seconds(600), 1);
        // 1600 expected, with a deviation of 40.
        assert!((1400..1800).contains(&workload.outages.len()), "{}", workload.outages.len());
        for pair in workload.outages.windows(2).filter(|pair| pair[0].server == pair[1].server) {
            assert_eq!(pair[0].back, Some(pair[0].at + Span::seconds(600)));
            assert!(pair[0].back.unwrap() < pair[1].at);
        }
        other.fail_servers(2.0, Span::seconds(600), 2);
        assert_ne!(workload.outages, other.outages);
    }
}
