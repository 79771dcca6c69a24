//! Lines that the log could not take.

use prometheus::{IntCounter, Registry};
use tracing_appender::non_blocking::ErrorCounter;

/// How many lines of the log were dropped, because nobody could write them. Clones count the same.
#[derive(Clone, Debug, Default)]
pub struct LogLines(Option<ErrorCounter>);

impl LogLines {
    /// Those that a writer drops.
    pub fn of(counter: ErrorCounter) -> Self {
        Self(Some(counter))
    }

    /// How many there were.
    pub fn dropped(&self) -> u64 {
        self.0.as_ref().map_or(0, |counter| counter.dropped_lines() as u64)
    }
}

/// The same as a metric.
#[derive(Clone)]
pub(super) struct LogMetric {
    lines: LogLines,
    counter: IntCounter,
}

impl LogMetric {
    pub(super) fn register(lines: LogLines, registry: &Registry) -> Result<Self, prometheus::Error> {
        let help = "Lines of the log that were dropped, because standard error took none";
        let counter = IntCounter::new("trainmaster_log_lines_dropped_total", help)?;
        registry.register(Box::new(counter.clone()))?;
        Ok(Self { lines, counter })
    }

    /// Brings it up to date.
    pub(super) fn update(&self) {
        self.counter.inc_by(self.lines.dropped().saturating_sub(self.counter.get()));
    }
}
