//! How much of it a job may do.

use std::time::Duration;

use tokio::time::Instant;

/// Bounds on what training programs may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Reports in one request.
    pub reports_per_request: usize,
    /// Reports of one job in a second, over all its slots; a burst of one full request is always let through.
    pub reports_per_second: u32,
    /// Streams that watch one job.
    pub watchers_per_job: usize,
    /// Bytes of one request.
    pub message_bytes: usize,
    /// Jobs that ended whose programs are still told so.
    pub ended_jobs: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            reports_per_request: 1000,
            reports_per_second: 1000,
            watchers_per_job: 4096,
            message_bytes: 4 << 20,
            ended_jobs: 1000,
        }
    }
}

/// Tokens that refill with time: who takes too many has to wait.
#[derive(Debug)]
pub(crate) struct Bucket {
    level: f64,
    seen: Instant,
}

impl Bucket {
    pub(crate) fn full(limits: &Limits) -> Self {
        Self { level: size(limits), seen: Instant::now() }
    }

    /// Takes `count` if there are so many.
    pub(crate) fn take(&mut self, count: usize, limits: &Limits) -> bool {
        let now = Instant::now();
        let passed: Duration = now.saturating_duration_since(self.seen);
        self.seen = now;
        let refill = passed.as_secs_f64() * f64::from(limits.reports_per_second);
        self.level = (self.level + refill).min(size(limits));
        let enough = self.level >= count as f64;
        if enough {
            self.level -= count as f64;
        }
        enough
    }
}

fn size(limits: &Limits) -> f64 {
    f64::from(limits.reports_per_second).max(limits.reports_per_request as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_bucket_refills() {
        let limits = Limits { reports_per_request: 10, reports_per_second: 5, ..Limits::default() };
        let mut bucket = Bucket::full(&limits);
        assert!(bucket.take(10, &limits));
        assert!(!bucket.take(1, &limits));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(bucket.take(5, &limits));
        assert!(!bucket.take(1, &limits));
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert!(!bucket.take(11, &limits));
    }
}
