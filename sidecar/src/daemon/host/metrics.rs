//! What the owner counts and measures.

use prometheus::{
    Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, core::Collector,
};
use trainmaster_core::{Source, Span};

/// Examples that one report may count: as many reports as would wrap a sum of these take years.
const MOST_EXAMPLES: u64 = 1 << 32;

/// The owner's metrics; a clone counts into the same.
#[derive(Clone, Debug)]
pub(crate) struct HostMetrics {
    pub(super) decision_seconds: Histogram,
    pub(super) decisions: IntCounterVec,
    pub(super) late: IntCounterVec,
    pub(super) refusals: IntCounter,
    pub(super) event_errors: IntCounter,
    pub(super) shed: IntCounter,
    pub(super) fit_seconds: Histogram,
    pub(super) fit_error: Histogram,
    pub(super) fits_failed: IntCounter,
    pub(super) shadow: IntGauge,
    pub(super) commit_seconds: Histogram,
    pub(super) commit_bytes: IntCounter,
    pub(super) commit_records: IntCounter,
    pub(super) commit_errors: IntCounter,
    pub(super) broken: IntGauge,
    pub(super) managers: IntGauge,
    pub(super) age: Gauge,
    pub(super) jobs: IntGaugeVec,
    acknowledged: IntCounterVec,
    checkpoint_seconds: Histogram,
    examples: IntCounter,
}

const FAST: [f64; 10] = [0.0005, 0.001, 0.002, 0.005, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0];
const SHARES: [f64; 8] = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0];
const LONG: [f64; 8] = [0.01, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0];

impl HostMetrics {
    /// Registers them.
    pub(crate) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let add = Adder(registry);
        Ok(Self {
            decision_seconds: add.histogram(
                "decision_seconds",
                "Time from opening a ticket to its committed decision",
                &FAST,
            )?,
            decisions: add.counters("decisions_total", "Committed decisions, by whose they are", "source")?,
            late: add.counters("tickets_late_total", "Tickets given up because they took too long, by kind", "kind")?,
            refusals: add.counter("refusals_total", "Issued changes that a manager refused")?,
            event_errors: add.counter("events_refused_total", "Events of managers that could not be accepted")?,
            shed: add.counter("commands_shed_total", "Calls turned away because the queue was full")?,
            fit_seconds: add.histogram("fit_seconds", "Time of a round of fits", &FAST)?,
            fit_error: add.histogram(
                "fit_speed_relative_error",
                "Relative error of the fitted speed at the shape that a job just reported",
                &SHARES,
            )?,
            fits_failed: add.counter("fits_failed_total", "Jobs with losses that no curve could be fitted to")?,
            shadow: add.gauge(
                "shadow_differences",
                "Jobs that the last decision in shadow mode would have had otherwise than observed",
            )?,
            commit_seconds: add.histogram("journal_commit_seconds", "Time of one write of the journal", &FAST)?,
            commit_bytes: add.counter("journal_bytes_total", "Bytes of records written to the journal")?,
            commit_records: add.counter("journal_commits_total", "Writes of the journal, each of many records")?,
            commit_errors: add.counter("journal_errors_total", "Writes of the journal that failed")?,
            broken: add.gauge("journal_broken", "1 while the journal can't be written")?,
            managers: add.gauge("managers_connected", "Attached managers")?,
            age: {
                let gauge = Gauge::new("trainmaster_decision_age_seconds", "Time since the last decision")?;
                add.register(gauge)?
            },
            jobs: {
                let options = Opts::new("trainmaster_jobs", "Active jobs, by state");
                add.register(IntGaugeVec::new(options, &["state"])?)?
            },
            acknowledged: add.counters("acknowledgements_total", "Acknowledgements of programs, by kind", "kind")?,
            examples: add.counter("examples_total", "Examples trained, by accepted reports that say so")?,
            checkpoint_seconds: add.histogram("checkpoint_seconds", "Time that checkpoints took", &LONG)?,
        })
    }

    pub(super) fn decided(&self, source: Source) {
        let source = match source {
            Source::Engine => "engine",
            Source::Pruned => "pruned",
            Source::Fallback => "fallback",
            Source::Kept => "kept",
        };
        self.decisions.with_label_values(&[source]).inc();
    }

    /// A report was accepted. A program says what it likes: a report counts for at most a batch a step, and no more than
    /// [`MOST_EXAMPLES`], so that the sum doesn't wrap.
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

/// Makes metrics with the common prefix and registers them.
struct Adder<'a>(&'a Registry);

impl Adder<'_> {
    fn register<C: Collector + Clone + 'static>(&self, metric: C) -> Result<C, prometheus::Error> {
        self.0.register(Box::new(metric.clone()))?;
        Ok(metric)
    }

    fn counter(&self, name: &str, help: &str) -> Result<IntCounter, prometheus::Error> {
        self.register(IntCounter::new(format!("trainmaster_{name}"), help)?)
    }

    fn counters(&self, name: &str, help: &str, label: &str) -> Result<IntCounterVec, prometheus::Error> {
        self.register(IntCounterVec::new(Opts::new(format!("trainmaster_{name}"), help), &[label])?)
    }

    fn gauge(&self, name: &str, help: &str) -> Result<IntGauge, prometheus::Error> {
        self.register(IntGauge::new(format!("trainmaster_{name}"), help)?)
    }

    fn histogram(&self, name: &str, help: &str, buckets: &[f64]) -> Result<Histogram, prometheus::Error> {
        let options = HistogramOpts::new(format!("trainmaster_{name}"), help).buckets(buckets.to_vec());
        self.register(Histogram::with_opts(options)?)
    }
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
