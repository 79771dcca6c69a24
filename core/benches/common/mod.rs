//! Shared parts of the benchmarks: a clock and a median.

use rustix::time::{ClockId, clock_gettime};

/// CPU time of this thread since the clock's start. Other processes on the machine only affect it through caches.
pub(crate) struct Clock(f64);

impl Clock {
    pub(crate) fn start() -> Self {
        Self(cpu_ms())
    }

    /// Milliseconds since the start.
    pub(crate) fn ms(&self) -> f64 {
        cpu_ms() - self.0
    }
}

fn cpu_ms() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6
}

pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}
