//! The owner: its state, and the effects of events.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::{Duration, Instant},
};

use tokio::{
    runtime::Handle,
    sync::{mpsc, oneshot, watch},
};
use trainmaster_core::{DecisionId, Event, EventError, Incarnation, JobId, Scheduler, Span, Time};
use trainmaster_feed::Feed;
use trainmaster_host::{Clock, JournalLimits, Outcome, Ran, TicketLimits, Tickets};
use trainmaster_proto::v1;

use super::{
    journal::{Effect, Journal},
    metrics::{Before, HostMetrics},
    predictions::Predictions,
    said::Hearing,
    streams::{Attaching, OpenStream, Session},
};
use crate::{
    ended::EndedJobs,
    store::{Write, disk::Disk, writer::Written},
};

/// Maximum sleep until the next check of the time.
pub(super) const LONGEST_SLEEP: Duration = Duration::from_secs(3600);

/// Options of the owner.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostOptions {
    pub(crate) tickets: TicketLimits,
    pub(crate) journal: JournalLimits,
    /// Maximum time for a program to stop.
    pub(crate) grace: Span,
    pub(crate) jobs: JobLimits,
}

/// Maximum numbers of active jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JobLimits {
    /// In total.
    pub(crate) all: usize,
    /// Per tenant.
    pub(crate) tenant: usize,
}

impl Default for JobLimits {
    fn default() -> Self {
        Self { all: 20_000, tenant: 5000 }
    }
}

/// The recovered or new state.
pub(crate) struct Opened {
    pub(crate) scheduler: Scheduler,
    pub(crate) disk: Disk,
    pub(crate) secrets: HashMap<JobId, String>,
    pub(crate) ended: EndedJobs,
    /// The first write: a snapshot, the term, and changes of the configuration.
    pub(crate) first: Write,
    pub(crate) clock: Clock,
}

/// A manager's text about an active job.
pub(super) struct Told {
    pub(super) incarnation: Incarnation,
    pub(super) text: String,
    pub(super) failures: u32,
    /// When the last failure was told, if it was told as it happened.
    pub(super) failed: Option<Time>,
}

/// Results of other threads.
pub(super) enum Internal {
    Written(Written),
    Ran(Ran),
}

pub(super) struct Owner {
    pub(super) scheduler: Scheduler,
    pub(super) options: HostOptions,
    pub(super) metrics: HostMetrics,
    pub(super) predictions: Predictions,
    pub(super) feed: Feed,
    pub(super) clock: Clock,
    pub(super) journal: Journal,
    pub(super) tickets: Tickets,
    pub(super) internal: mpsc::UnboundedSender<Internal>,
    /// The runtime for engines and fits.
    pub(super) threads: Handle,
    pub(super) secrets: HashMap<JobId, String>,
    pub(super) ended: EndedJobs,
    /// The managers' latest texts about active jobs.
    pub(super) messages: HashMap<JobId, Told>,
    /// Jobs that end once they have no slots any more.
    pub(super) stopping: BTreeSet<JobId>,
    pub(super) sessions: BTreeMap<String, Session>,
    /// The open stream of each manager, from its attachment on.
    pub(super) streams: BTreeMap<String, OpenStream>,
    pub(super) attaching: Vec<Attaching>,
    pub(super) hearing: Hearing,
    /// Managers that sent a snapshot and wait for the full plan.
    pub(super) wants_full: BTreeSet<String>,
    /// Whether a full plan waits for the disk. The next one is made after it is sent.
    pub(super) full_waits: bool,
    /// Plans of jobs that have just ended.
    pub(super) over: Vec<v1::JobPlan>,
    /// The decision and digest that are on disk and in force.
    pub(super) settled: (DecisionId, [u8; 32]),
    /// Whether messages were withheld because the disk couldn't be written. Everything is sent once it can.
    pub(super) withheld: bool,
    /// Incarnation and revision of each job in the latest durable message to managers.
    pub(super) numbers: HashMap<u64, (u32, u32)>,
    /// Whether the visible state changed.
    pub(super) dirty: bool,
    pub(super) changed: watch::Sender<u64>,
    pub(super) course: Course,
}

/// The state of the task.
pub(super) enum Course {
    Serving,
    /// The last records are being written. These callers are notified afterwards.
    Ending(Vec<oneshot::Sender<()>>),
}

impl Owner {
    pub(super) fn is_ending(&self) -> bool {
        matches!(self.course, Course::Ending(_))
    }

    /// The effects of events: ends, decisions, plans, records.
    pub(super) fn advance(&mut self) {
        let now = self.clock.now();
        self.end_stopped(now);
        if self.journal.wants_snapshot() && self.scheduler.snapshot() {
            tracing::debug!("took a snapshot");
        }
        if !self.is_ending() {
            self.decide(now);
        }
        self.publish();
        let records = self.scheduler.drain_journal();
        self.dirty |= !records.is_empty();
        self.journal.add(records);
        if let Some((effects, outcome)) = self.journal.step() {
            self.settle(effects, &outcome);
        }
        if std::mem::take(&mut self.dirty) {
            self.changed.send_modify(|count| *count += 1);
        }
    }

    pub(super) fn wake(&mut self, now: Instant) -> Instant {
        let held = self.holds_decisions();
        let due = (!self.is_ending()).then(|| self.tickets.wake(&self.scheduler, self.clock.now(), held)).flatten();
        let wake = due.into_iter().chain(self.journal.wake_at()).min();
        wake.unwrap_or(now + LONGEST_SLEEP).min(now + LONGEST_SLEEP)
    }

    pub(super) fn take_back(&mut self, internal: Internal) {
        match internal {
            Internal::Written(written) => {
                let (effects, outcome) = self.journal.written(written);
                self.settle(effects, &outcome);
                if self.withheld && self.journal.error().is_none() {
                    // Full messages go out once the records that gathered meanwhile are on disk too.
                    self.wants_full.extend(self.sessions.keys().cloned());
                    let (decision, digest) = (self.scheduler.state().decision, self.scheduler.digest());
                    self.journal.then(Effect::Settled(decision, digest));
                }
            }
            Internal::Ran(ran) => self.returned(ran),
        }
    }

    /// Sends the answers and messages of a batch that is on disk or has failed.
    fn settle(&mut self, mut effects: Vec<Effect>, outcome: &Outcome) {
        self.dirty |= !effects.is_empty();
        // The feed and the managers are updated before any caller is answered.
        effects.sort_by_key(|effect| !matches!(effect, Effect::Publish(_) | Effect::Settled(..)));
        for effect in effects {
            match effect {
                Effect::Reply(reply) => reply(outcome.as_ref().copied().map_err(|error| &**error)),
                Effect::Submitted(job, reply) => self.promise(job, reply, outcome),
                Effect::Publish(news) if outcome.is_ok() => self.deliver(news),
                // A message without a record must not take effect, because a restarted daemon would use the same
                // numbers for something else. A message that only takes resources away may be sent.
                Effect::Publish(news) => self.deliver_what_takes(news),
                Effect::Settled(decision, digest) if outcome.is_ok() => self.settled = (decision, digest),
                Effect::Settled(..) => self.withheld = true,
            }
        }
    }

    /// Applies an event to the scheduler.
    pub(super) fn apply(&mut self, at: Time, event: Event) -> Result<(), EventError> {
        self.tickets.hear(&event);
        let job = match &event {
            Event::Observed { job, .. } | Event::Reported { job, .. } => Some(*job),
            _ => None,
        };
        let has_report = matches!(event, Event::Reported { .. });
        let before = job.and_then(|job| self.scheduler.state().job(job)).map(|job| (job.id, Before::of(job)));
        self.scheduler.apply(at, event)?;
        if let Some((id, before)) = before
            && let Some(job) = self.scheduler.state().job(id)
        {
            self.metrics.changed(before, job);
            if has_report {
                self.predictions.reported(at, job);
            }
        }
        Ok(())
    }

    /// Writes a snapshot, so that the next start replays no decision, even after an upgrade.
    pub(super) fn begin_stop(&mut self, done: Option<oneshot::Sender<()>>) {
        if let Course::Ending(waiting) = &mut self.course {
            return waiting.extend(done);
        }
        self.course = Course::Ending(done.into_iter().collect());
        let now = self.clock.now();
        self.tickets.give_up(&mut self.scheduler, now);
        self.scheduler.snapshot();
        self.journal.add(self.scheduler.drain_journal());
        self.journal.retry_now();
        if let Some((effects, outcome)) = self.journal.step() {
            self.settle(effects, &outcome);
        }
    }
}
