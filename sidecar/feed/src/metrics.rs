//! The feed's metrics.

use prometheus::{IntCounter, IntCounterVec, IntGauge, Registry};
use trainmaster_net::Adder;

/// The feed's metrics. Clones share the counters.
#[derive(Clone, Debug)]
pub struct FeedMetrics {
    pub(crate) accepted: IntCounter,
    pub(crate) ignored: IntCounter,
    pub(crate) shed: IntCounterVec,
    pub(crate) refused: IntCounterVec,
    pub(crate) watchers: IntGauge,
}

impl FeedMetrics {
    /// Registers the metrics.
    ///
    /// # Errors
    /// The registry already has metrics of these names.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let add = Adder(registry);
        Ok(Self {
            accepted: add.counter("reports_accepted_total", "Reports that were accepted and are on disk")?,
            ignored: add.counter(
                "reports_ignored_total",
                "Reports that were repeated, late, of another incarnation or with invalid content",
            )?,
            shed: add.counters(
                "reports_shed_total",
                "Reports that weren't read, by reason. `flood`: above a rate limit",
                "reason",
                &["flood", "unavailable"],
            )?,
            refused: add.counters(
                "feed_refused_total",
                "Refused calls of training programs, by reason",
                "reason",
                &["token", "job", "limit"],
            )?,
            watchers: add.gauge("feed_watchers", "Open watch streams of training programs")?,
        })
    }
}
