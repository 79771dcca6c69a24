//! The owner's metrics.

use prometheus::{Gauge, GaugeVec, Histogram, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};
use trainmaster_core::Span;
use trainmaster_host::{Adder, JournalMetrics, TicketMetrics};

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

const LONG: [f64; 8] = [0.01, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0];

impl HostMetrics {
    /// Registers the metrics.
    pub(crate) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let add = Adder(registry);
        Ok(Self {
            tickets: TicketMetrics::register(registry)?,
            journal: JournalMetrics::register(registry)?,
            refusals: add.counter("refusals_total", "Issued changes that a manager refused")?,
            event_errors: add.counter("events_refused_total", "Events of managers that could not be accepted")?,
            shed: add.counter("commands_shed_total", "Calls turned away because the queue was full")?,
            shadow: add.gauge(
                "shadow_differences",
                "Jobs that the last decision in shadow mode would have had otherwise than observed",
            )?,
            managers: add.gauge("managers_connected", "Attached managers")?,
            age: {
                let gauge = Gauge::new("trainmaster_decision_age_seconds", "Time since the last decision")?;
                add.register(gauge)?
            },
            jobs: {
                let options = Opts::new("trainmaster_jobs", "Active jobs, by state");
                add.register(IntGaugeVec::new(options, &["state"])?)?
            },
            free_gpus: {
                let gauge = Gauge::new("trainmaster_free_gpus", "GPUs that the plan leaves free")?;
                add.register(gauge)?
            },
            largest_free_gpus: {
                let about = "The most GPUs that the plan leaves free in one server, rack, block or zone";
                let options = Opts::new("trainmaster_largest_free_gpus", about);
                add.register(GaugeVec::new(options, &["level"])?)?
            },
            acknowledged: add.counters("acknowledgements_total", "Acknowledgements of programs, by kind", "kind")?,
            examples: add.counter("examples_total", "Examples trained, by accepted reports that say so")?,
            checkpoint_seconds: add.histogram("checkpoint_seconds", "Time that checkpoints took", &LONG)?,
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
