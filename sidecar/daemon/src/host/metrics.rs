//! The owner's metrics.

use prometheus::{Gauge, GaugeVec, Histogram, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry};
use trainmaster_core::Span;
use trainmaster_host::{JournalMetrics, TicketMetrics};
use trainmaster_net::Adder;

/// Maximum number of examples per report. The sum can't overflow within years.
const MOST_EXAMPLES: u64 = 1 << 32;

/// The owner's metrics. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct HostMetrics {
    pub(super) tickets: TicketMetrics,
    pub(super) journal: JournalMetrics,
    pub(super) refusals: IntCounter,
    pub(super) event_errors: IntCounter,
    pub(super) shed: IntCounter,
    pub(super) shadow: IntGauge,
    pub(super) managers: IntGauge,
    pub(super) age: Gauge,
    pub(super) jobs: IntGaugeVec,
    pub(super) free_gpus: Gauge,
    pub(super) largest_free_gpus: GaugeVec,
    acknowledged: IntCounterVec,
    checkpoint_seconds: Histogram,
    examples: IntCounter,
}

/// The build, as a label of a metric that is always 1.
fn build_info(add: Adder<'_>) -> Result<(), prometheus::Error> {
    let gauge = add.gauges("build_info", "1; the label is the version of the daemon", "version")?;
    gauge.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
    Ok(())
}

const LONG: [f64; 8] = [0.01, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0];

impl HostMetrics {
    /// Registers the metrics.
    pub(crate) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let add = Adder(registry);
        build_info(add)?;
        Ok(Self {
            tickets: TicketMetrics::register(registry)?,
            journal: JournalMetrics::register(registry)?,
            refusals: add.counter("refusals_total", "Issued changes that a manager refused")?,
            event_errors: add.counter(
                "events_refused_total",
                "Observations of managers that were invalid, or about other managers' servers and jobs",
            )?,
            shed: add.counter("commands_shed_total", "Calls refused because the scheduler's queue was full")?,
            shadow: add
                .gauge("shadow_differences", "Jobs whose slots the last decision in shadow mode would have changed")?,
            managers: add.gauge("managers_connected", "Attached managers")?,
            age: add.real_gauge("decision_age_seconds", "Time since the last decision")?,
            jobs: add.gauges("jobs", "Active jobs, by state", "state")?,
            free_gpus: add.real_gauge("free_gpus", "GPUs that the plan leaves free")?,
            largest_free_gpus: add.real_gauges(
                "largest_free_gpus",
                "The most GPUs that the plan leaves free in one server, rack, block or zone",
                "level",
            )?,
            acknowledged: add.counters(
                "acknowledgements_total",
                "Acknowledgements of programs, by kind",
                "kind",
                &["leaving", "following"],
            )?,
            examples: add.counter("examples_total", "Trained examples, from accepted reports that state them")?,
            checkpoint_seconds: add.histogram(
                "checkpoint_seconds",
                "Time of writing a checkpoint, as programs report it",
                &LONG,
            )?,
        })
    }

    /// Counts an accepted report. Programs may report any number, so a report counts for at most one batch per step and
    /// [`MOST_EXAMPLES`], and the sum can't overflow.
    pub(super) fn trained(&self, examples: u64, steps: u32, batch: u64) {
        self.examples.inc_by(trained(examples, steps, batch));
    }

    pub(super) fn acknowledged(&self, leaving: bool, checkpoint: Span) {
        self.acknowledged.with_label_values(&[if leaving { "leaving" } else { "following" }]).inc();
        if checkpoint > Span::ZERO {
            self.checkpoint_seconds.observe(checkpoint.as_seconds());
        }
    }
}

fn trained(examples: u64, steps: u32, batch: u64) -> u64 {
    examples.min(u64::from(steps).saturating_mul(batch)).min(MOST_EXAMPLES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_counts_for_what_it_can_have_trained() {
        assert_eq!(trained(500, 2, 256), 500);
        assert_eq!(trained(600, 2, 256), 512);
        assert_eq!(trained(u64::MAX, u32::MAX, u64::MAX), MOST_EXAMPLES);
    }
}
