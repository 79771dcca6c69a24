//! Metrics of journals and tickets.

use prometheus::{Histogram, IntCounter, IntCounterVec, IntGauge, Registry};
use trainmaster_core::{Source, State};
use trainmaster_net::Adder;

const FAST: [f64; 10] = [0.0005, 0.001, 0.002, 0.005, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0];
/// Limits of the buckets of relative errors.
pub const ERRORS: [f64; 8] = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0];

const SOURCES: [Source; 4] = [Source::Engine, Source::Pruned, Source::Fallback, Source::Kept];

fn word(source: Source) -> &'static str {
    match source {
        Source::Engine => "engine",
        Source::Pruned => "pruned",
        Source::Fallback => "fallback",
        Source::Kept => "kept",
    }
}

/// Registers the build, as labels of a metric that is always 1.
///
/// # Errors
/// The registry contains it already.
pub fn build_info(registry: &Registry) -> Result<(), prometheus::Error> {
    let labels = [("version", env!("CARGO_PKG_VERSION")), ("commit", option_env!("TRAINMASTER_COMMIT").unwrap_or(""))];
    let help = "1; the labels are the version, and the commit in a build of `scripts/dist`";
    Adder(registry).info("build_info", help, &labels)
}

/// Metrics of a journal. Clones share them.
#[derive(Clone, Debug)]
pub struct JournalMetrics {
    pub(crate) seconds: Histogram,
    pub(crate) bytes: IntCounter,
    pub(crate) commits: IntCounter,
    pub(crate) errors: IntCounter,
    pub(crate) broken: IntGauge,
}

impl JournalMetrics {
    /// Registers the metrics.
    ///
    /// # Errors
    /// The registry contains them already.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let add = Adder(registry);
        Ok(Self {
            seconds: add.histogram("journal_commit_seconds", "Time of one write of the journal", &FAST)?,
            bytes: add.counter("journal_bytes_total", "Bytes of records written to the journal")?,
            commits: add.counter("journal_commits_total", "Writes of the journal, each of many records")?,
            errors: add.counter("journal_errors_total", "Writes of the journal that failed")?,
            broken: add.gauge("journal_broken", "1 while the journal can't be written")?,
        })
    }
}

/// Metrics of decisions and fits. Clones share them.
#[derive(Clone, Debug)]
pub struct TicketMetrics {
    pub(crate) decision_seconds: Histogram,
    decisions: IntCounterVec,
    pub(crate) late: IntCounterVec,
    pub(crate) fit_seconds: Histogram,
    fit_error: Histogram,
    fits_failed: IntCounter,
}

impl TicketMetrics {
    /// Registers the metrics.
    ///
    /// # Errors
    /// The registry contains them already.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let add = Adder(registry);
        let decision = "Time from opening a ticket to its committed decision";
        let error = "Relative error of the fitted speed at the shape that a job just reported";
        let late = "Tickets given up because they took too long, by kind";
        Ok(Self {
            decision_seconds: add.histogram("decision_seconds", decision, &FAST)?,
            decisions: add.counters(
                "decisions_total",
                "Committed decisions, by their author",
                "source",
                &SOURCES.map(word),
            )?,
            late: add.counters("tickets_late_total", late, "kind", &["decision", "fits"])?,
            fit_seconds: add.histogram("fit_seconds", "Time of a round of fits", &FAST)?,
            fit_error: add.histogram("fit_speed_relative_error", error, &ERRORS)?,
            fits_failed: add.counter("fits_failed_total", "Jobs with losses that no curve could be fitted to")?,
        })
    }

    pub(crate) fn decided(&self, source: Source) {
        self.decisions.with_label_values(&[word(source)]).inc();
    }

    /// Counts a committed round of fits.
    pub(crate) fn fitted(&self, state: &State) {
        for job in state.jobs.values() {
            if job.learnt.fits.loss.is_none() && job.learnt.losses.last_epoch().is_some_and(|epoch| epoch > 5) {
                self.fits_failed.inc();
            }
            let Some(speed) = job.learnt.progress.speed.filter(|speed| *speed > 0.0) else { continue };
            let seen = job.seen.allocation.as_ref();
            let Some(predicted) = seen.and_then(|seen| job.speed(seen.shape())) else { continue };
            self.fit_error.observe((predicted - speed).abs() / speed);
        }
    }
}
