//! The port's metrics.

use prometheus::{IntCounter, IntCounterVec, IntGauge, Opts, Registry};

/// The port's metrics. Clones share the counters.
#[derive(Clone, Debug)]
pub struct NetMetrics {
    pub(crate) connections: IntGauge,
    pub(crate) failed: IntCounterVec,
    pub(crate) refused: IntCounterVec,
    pub(crate) panics: IntCounter,
    pub(crate) certificate_ends: IntGauge,
}

impl NetMetrics {
    /// Registers the metrics.
    ///
    /// # Errors
    /// The registry already has metrics of these names.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let metrics = Self {
            connections: IntGauge::new("trainmaster_connections", "Open connections")?,
            failed: IntCounterVec::new(
                Opts::new(
                    "trainmaster_connections_failed_total",
                    "Connections that ended badly, by stage: accept, tls, http, or unproven where nobody was let in",
                ),
                &["stage"],
            )?,
            refused: IntCounterVec::new(
                Opts::new(
                    "trainmaster_calls_refused_total",
                    "Calls refused before they were read, by reason: page, token, role, share or other",
                ),
                &["reason"],
            )?,
            panics: IntCounter::new("trainmaster_panics_total", "Calls that panicked and were answered as INTERNAL")?,
            certificate_ends: IntGauge::new(
                "trainmaster_certificate_ends_seconds",
                "When the port's certificate ends, as a Unix time; 0 without TLS",
            )?,
        };
        registry.register(Box::new(metrics.connections.clone()))?;
        registry.register(Box::new(metrics.failed.clone()))?;
        registry.register(Box::new(metrics.refused.clone()))?;
        registry.register(Box::new(metrics.panics.clone()))?;
        registry.register(Box::new(metrics.certificate_ends.clone()))?;
        Ok(metrics)
    }

    /// Expiry of the port's certificate, in Unix seconds. `None` without TLS.
    pub fn certificate_ends(&self) -> Option<i64> {
        Some(self.certificate_ends.get()).filter(|&ends| ends != 0)
    }
}
