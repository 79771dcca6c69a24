//! What happens on the port.

use prometheus::{IntCounter, IntCounterVec, IntGauge, Opts, Registry};

/// The port's metrics; a clone counts into the same.
#[derive(Clone, Debug)]
pub(crate) struct NetMetrics {
    pub(super) connections: IntGauge,
    pub(super) failed: IntCounterVec,
    pub(super) refused: IntCounter,
    pub(super) panics: IntCounter,
}

impl NetMetrics {
    /// Registers them.
    pub(crate) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let metrics = Self {
            connections: IntGauge::new("trainmaster_connections", "Open connections")?,
            failed: IntCounterVec::new(
                Opts::new("trainmaster_connections_failed_total", "Connections that ended badly, by stage"),
                &["stage"],
            )?,
            refused: IntCounter::new("trainmaster_unauthenticated_total", "Calls without the admin token they need")?,
            panics: IntCounter::new("trainmaster_panics_total", "Calls that panicked and were answered as INTERNAL")?,
        };
        registry.register(Box::new(metrics.connections.clone()))?;
        registry.register(Box::new(metrics.failed.clone()))?;
        registry.register(Box::new(metrics.refused.clone()))?;
        registry.register(Box::new(metrics.panics.clone()))?;
        Ok(metrics)
    }
}
