//! The owner's metrics.

use prometheus::{Gauge, Histogram, IntCounter, IntCounterVec, IntGauge, Registry};
use tonic::Code;
use trainmaster_core::{End, Job, Span, Time};
use trainmaster_host::{Census, ERRORS, JournalMetrics, TicketMetrics, build_info};
use trainmaster_net::Adder;
use trainmaster_proto::{end_name, v1};

use super::predictions::Predictions;

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
    pub(super) sampled: IntGauge,
    pub(super) census: Census,
    pub(super) submitted: IntCounter,
    refused: IntCounterVec,
    ended: IntCounterVec,
    first_start: Histogram,
    completion: Histogram,
    restart_seconds: Histogram,
    acknowledged: IntCounterVec,
    checkpoint_seconds: Histogram,
    examples: IntCounter,
    epochs_error: Histogram,
    remaining_error: Histogram,
}

/// Reasons for refused submissions, by the codes of their answers.
const REFUSALS: [(&str, &[Code]); 6] = [
    ("denied", &[Code::PermissionDenied, Code::Unauthenticated]),
    ("duplicate", &[Code::AlreadyExists]),
    ("full", &[Code::ResourceExhausted]),
    ("impossible", &[Code::FailedPrecondition]),
    ("invalid", &[Code::InvalidArgument]),
    (OTHER, &[]),
];
const OTHER: &str = "other";

const LONG: [f64; 8] = [0.01, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0];

const ENDS: [End; 4] = [End::Completed, End::Failed, End::Cancelled, End::Stopped];

const FIRST_START: &str =
    "Time from a job's submission to its first run. A job that its manager ran before counts from when it was known";

/// Up to a week.
const WAITS: [f64; 10] = [1.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 4.0 * 3600.0, 12.0 * 3600.0, 86_400.0, 604_800.0];

const EPOCHS_ERROR: &str = "Relative error of the epochs that the losses predicted in the first half of a job's \
                            epochs, of completed jobs";

const REMAINING_ERROR: &str = "Relative error of the time left that was predicted in the first half of a job's epochs, \
                               of completed jobs: by the fits, and by later changes of its slots";

/// The state of a watched job before an event.
#[derive(Clone, Copy, Debug)]
pub(super) struct Before {
    started: Option<Time>,
    restarts: Span,
}

impl Before {
    pub(super) fn of(job: &Job) -> Self {
        Self { started: job.seen.started, restarts: job.learnt.restart_total }
    }
}

impl HostMetrics {
    /// Registers the metrics.
    pub(crate) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let add = Adder(registry);
        build_info(registry)?;
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
            sampled: add.gauge(
                "sampled",
                "1 if the gauges of jobs, servers and decisions are current; 0 if the scheduler didn't answer in time",
            )?,
            census: Census::register(registry)?,
            submitted: add.counter("jobs_submitted_total", "Submitted jobs")?,
            refused: add.counters(
                "submissions_refused_total",
                "Refused submissions, by reason",
                "reason",
                &REFUSALS.map(|(word, _)| word),
            )?,
            ended: add.counters("jobs_ended_total", "Ended jobs, by state", "state", &ENDS.map(end_name))?,
            first_start: add.histogram("first_start_seconds", FIRST_START, &WAITS)?,
            completion: add.histogram(
                "completion_seconds",
                "Time from the submission to the end, of completed jobs",
                &WAITS,
            )?,
            restart_seconds: add.histogram(
                "restart_seconds",
                "Time that a job lost to a restart, from the order until it trained again",
                &LONG,
            )?,
            acknowledged: add.counters(
                "acknowledgements_total",
                "Acknowledgements of programs, by kind",
                "kind",
                &["leaving", "following"],
            )?,
            epochs_error: add.histogram("predicted_epochs_relative_error", EPOCHS_ERROR, &ERRORS)?,
            remaining_error: add.histogram("predicted_remaining_relative_error", REMAINING_ERROR, &ERRORS)?,
            examples: add.counter("examples_total", "Trained examples, from accepted reports that state them")?,
            checkpoint_seconds: add.histogram(
                "checkpoint_seconds",
                "Time of writing a checkpoint, as programs report it",
                &LONG,
            )?,
        })
    }

    /// Counts a refused submission.
    pub(crate) fn refused(&self, code: Code) {
        let word = REFUSALS.into_iter().find(|(_, codes)| codes.contains(&code)).map_or(OTHER, |(word, _)| word);
        self.refused.with_label_values(&[word]).inc();
    }

    /// The record of predictions, empty.
    pub(super) fn predictions(&self) -> Predictions {
        Predictions::new(self.epochs_error.clone(), self.remaining_error.clone())
    }

    /// Counts an accepted report. Programs may report any number, so a report counts for at most one batch per step and
    /// [`MOST_EXAMPLES`], and the sum can't overflow.
    pub(super) fn trained(&self, examples: u64, steps: u32, batch: u64) {
        self.examples.inc_by(trained(examples, steps, batch));
    }

    /// Follows a job that an observation or a report changed.
    pub(super) fn changed(&self, before: Before, job: &Job) {
        if let (None, Some(started)) = (before.started, job.seen.started) {
            self.first_start.observe((started - job.arrival).as_seconds().max(0.0));
        }
        let lost = Span(job.learnt.restart_total.0 - before.restarts.0);
        if lost > Span::ZERO {
            self.restart_seconds.observe(lost.as_seconds());
        }
    }

    /// Counts an ended job.
    pub(super) fn ended(&self, status: &v1::JobStatus) {
        self.ended.with_label_values(&[status.state.as_str()]).inc();
        if let Some(ended) = status.ended_ms.filter(|_| status.state == end_name(End::Completed)) {
            self.completion.observe(Span(ended - status.submitted_ms).as_seconds().max(0.0));
        }
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
