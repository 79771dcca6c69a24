//! The feed's metrics.

use prometheus::{IntCounter, IntCounterVec, IntGauge, Opts, Registry};

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
        let metrics = Self {
            accepted: IntCounter::new("trainmaster_reports_accepted_total", "Reports taken over and on disk")?,
            ignored: IntCounter::new(
                "trainmaster_reports_ignored_total",
                "Reports that were repeated, late, of another incarnation or nonsense",
            )?,
            shed: IntCounterVec::new(
                Opts::new("trainmaster_reports_shed_total", "Reports not looked at, by reason: flood or unavailable"),
                &["reason"],
            )?,
            refused: IntCounterVec::new(
                Opts::new("trainmaster_feed_refused_total", "Feed calls refused, by reason: token, job or limit"),
                &["reason"],
            )?,
            watchers: IntGauge::new("trainmaster_feed_watchers", "Open watch streams of training programs")?,
        };
        registry.register(Box::new(metrics.accepted.clone()))?;
        registry.register(Box::new(metrics.ignored.clone()))?;
        registry.register(Box::new(metrics.shed.clone()))?;
        registry.register(Box::new(metrics.refused.clone()))?;
        registry.register(Box::new(metrics.watchers.clone()))?;
        Ok(metrics)
    }
}
