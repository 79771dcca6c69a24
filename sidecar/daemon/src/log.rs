//! The form of the log, and lines that couldn't be logged.

use prometheus::{IntCounter, Registry};
use serde::{Deserialize, Serialize};
use tracing_appender::non_blocking::ErrorCounter;
use trainmaster_net::Adder;

/// The form of the log's lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line, with the fields at its top level.
    Json,
}

/// Number of log lines that were dropped because they couldn't be written. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct LogLines(Option<ErrorCounter>);

impl LogLines {
    /// The dropped lines of a writer.
    pub fn of(counter: ErrorCounter) -> Self {
        Self(Some(counter))
    }

    /// Number of dropped lines.
    pub fn dropped(&self) -> u64 {
        self.0.as_ref().map_or(0, |counter| counter.dropped_lines() as u64)
    }
}

/// The number as a metric.
#[derive(Clone)]
pub(super) struct LogMetric {
    lines: LogLines,
    counter: IntCounter,
}

impl LogMetric {
    pub(super) fn register(lines: LogLines, registry: &Registry) -> Result<Self, prometheus::Error> {
        let help = "Log lines that were dropped, because they couldn't be written";
        Ok(Self { lines, counter: Adder(registry).counter("log_lines_dropped_total", help)? })
    }

    /// Updates the metric.
    pub(super) fn update(&self) {
        self.counter.inc_by(self.lines.dropped().saturating_sub(self.counter.get()));
    }
}
