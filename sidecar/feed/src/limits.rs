//! Limits of a job's use of the feed.

use std::time::Duration;

use tokio::time::Instant;

/// Limits of training programs' calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of reports in one request.
    pub reports_per_request: usize,
    /// Reports of one job per second, over all its slots. A burst of one full request is always accepted. Two hundred
    /// slot times or data chunks in a report count as another report.
    pub reports_per_second: u32,
    /// Bytes of one job's reports per second, over all its slots. A burst may have four times as many.
    pub job_bytes_per_second: u32,
    /// Bytes of all reports of a tenant's jobs per second. A burst may have four times as many.
    pub tenant_bytes_per_second: u32,
    /// Bytes in memory of one job's reports that wait for the disk. A tenant's jobs may have four times as many.
    pub waiting_bytes: usize,
    /// Unread bytes that were sent to the programs of a tenant's jobs. Each job may have one such answer in addition.
    pub unread_bytes: usize,
    /// Maximum number of streams that watch one job. If that is less: twice the maximum of slots that it ever had, and
    /// a few more.
    pub watchers_per_job: usize,
    /// Bytes of one request.
    pub message_bytes: usize,
    /// Maximum number of ended jobs whose programs still get the final state. Beyond it, jobs of the tenant with the
    /// most are forgotten first ([`Kept`]).
    ///
    /// [`Kept`]: crate::Kept
    pub ended_jobs: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            reports_per_request: 1000,
            reports_per_second: 1000,
            job_bytes_per_second: 256 << 10,
            tenant_bytes_per_second: 1 << 20,
            waiting_bytes: 4 << 20,
            unread_bytes: 8 << 20,
            watchers_per_job: 4096,
            message_bytes: 256 << 10,
            ended_jobs: 1000,
        }
    }
}

impl Limits {
    /// Rate of one job's reports.
    pub(crate) fn reports(&self) -> Rate {
        Rate { second: self.reports_per_second, burst: self.reports_per_request as f64 }
    }

    /// Rate of one job's bytes.
    pub(crate) fn job_bytes(&self) -> Rate {
        Rate { second: self.job_bytes_per_second, burst: 4.0 * f64::from(self.job_bytes_per_second) }
    }

    /// Rate of the bytes of a tenant's jobs.
    pub(crate) fn tenant_bytes(&self) -> Rate {
        Rate { second: self.tenant_bytes_per_second, burst: 4.0 * f64::from(self.tenant_bytes_per_second) }
    }
}

/// A rate per second, with a maximum burst.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    pub(crate) second: u32,
    burst: f64,
}

impl Rate {
    fn size(self) -> f64 {
        f64::from(self.second).max(self.burst)
    }
}

/// A token bucket: tokens refill with time, and callers without tokens have to wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket {
    level: f64,
    seen: Instant,
}

impl Bucket {
    pub(crate) fn full(rate: Rate) -> Self {
        Self { level: rate.size(), seen: Instant::now() }
    }

    /// Whether `count` tokens are available now.
    pub(crate) fn has(&mut self, count: usize, rate: Rate) -> bool {
        let now = Instant::now();
        let passed: Duration = now.saturating_duration_since(self.seen);
        self.seen = now;
        self.level = (self.level + passed.as_secs_f64() * f64::from(rate.second)).min(rate.size());
        self.level >= count as f64
    }

    /// Takes `count` available tokens.
    pub(crate) fn take(&mut self, count: usize) {
        self.level -= count as f64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_bucket_refills() {
        let rate = Rate { second: 5, burst: 10.0 };
        let mut bucket = Bucket::full(rate);
        let mut take = |count: usize| {
            let has = bucket.has(count, rate);
            if has {
                bucket.take(count);
            }
            has
        };
        assert!(take(10));
        assert!(!take(1));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(take(5));
        assert!(!take(1));
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert!(!take(11));
    }
}
