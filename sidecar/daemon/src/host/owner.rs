//! The owner: everything that it has, and what follows from what happened.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::{Duration, Instant},
};

use tokio::{
    runtime::Handle,
    sync::{mpsc, oneshot, watch},
};
use trainmaster_core::{DecisionId, Event, EventError, JobId, Scheduler, Span, Time};
use trainmaster_feed::Feed;
use trainmaster_host::{Clock, JournalLimits, Outcome, Ran, TicketLimits, Tickets};
use trainmaster_proto::v1;

use super::{
    journal::{Effect, Journal},
    metrics::HostMetrics,
    said::Hearing,
    streams::{Attaching, OpenStream, Session},
};
use crate::{
    ended::EndedJobs,
    store::{Write, disk::Disk, writer::Written},
};

/// Nothing is further away than this: time is looked at again then.
pub(super) const LONGEST_SLEEP: Duration = Duration::from_secs(3600);

/// How the owner works.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostOptions {
    pub(crate) tickets: TicketLimits,
    pub(crate) journal: JournalLimits,
    /// How long a stopping program may take.
    pub(crate) grace: Span,
    pub(crate) jobs: JobLimits,
}

/// How many active jobs there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JobLimits {
    /// In all.
    pub(crate) all: usize,
    /// Of one tenant.
    pub(crate) tenant: usize,
}

impl Default for JobLimits {
    fn default() -> Self {
        Self { all: 20_000, tenant: 5000 }
    }
}

/// Everything that was recovered or made anew.
pub(crate) struct Opened {
    pub(crate) scheduler: Scheduler,
    pub(crate) disk: Disk,
    pub(crate) secrets: HashMap<JobId, String>,
    pub(crate) ended: EndedJobs,
    /// The first write: a snapshot, the term, and what the configuration changed.
    pub(crate) first: Write,
    pub(crate) clock: Clock,
}

/// What comes back from other threads.
pub(super) enum Internal {
    Written(Written),
    Ran(Ran),
}

pub(super) struct Owner {
    pub(super) scheduler: Scheduler,
    pub(super) options: HostOptions,
    pub(super) metrics: HostMetrics,
    pub(super) feed: Feed,
    pub(super) clock: Clock,
    pub(super) journal: Journal,
    pub(super) tickets: Tickets,
    pub(super) internal: mpsc::UnboundedSender<Internal>,
    /// Where engines and fits run.
    pub(super) threads: Handle,
    pub(super) secrets: HashMap<JobId, String>,
    pub(super) ended: EndedJobs,
    /// What managers last said about active jobs.
    pub(super) messages: HashMap<JobId, String>,
    /// Jobs to be ended once nothing of them is seen any more.
    pub(super) stopping: BTreeSet<JobId>,
    pub(super) sessions: BTreeMap<String, Session>,
    /// The open stream of each manager, from the moment it attaches.
    pub(super) streams: BTreeMap<String, OpenStream>,
    pub(super) attaching: Vec<Attaching>,
    pub(super) hearing: Hearing,
    /// Managers that sent a snapshot and wait for the full plan.
    pub(super) wants_full: BTreeSet<String>,
    /// A full plan waits for the disk: the next one is made once it was told.
    pub(super) full_waits: bool,
    /// Plans of jobs that just ended.
    pub(super) over: Vec<v1::JobPlan>,
    /// The decision and digest that are on disk and in force.
    pub(super) settled: (DecisionId, [u8; 32]),
    /// While the disk couldn't be written, managers and programs weren't told what they were given: they are told
    /// everything once it can.
    pub(super) withheld: bool,
    /// Incarnation and revision of each job as managers were last told, after they were on disk.
    pub(super) numbers: HashMap<u64, (u32, u32)>,
    /// Something happened that people may want to see.
    pub(super) dirty: bool,
    pub(super) changed: watch::Sender<u64>,
    pub(super) course: Course,
}

/// Whether it goes on.
pub(super) enum Course {
    Serving,
    /// The last records are being written; then these are told.
    Ending(Vec<oneshot::Sender<()>>),
}

impl Owner {
    pub(super) fn is_ending(&self) -> bool {
        matches!(self.course, Course::Ending(_))
    }

    /// Everything that follows from what happened: ends, decisions, plans, records.
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
                    // Everybody is told everything, once what gathered meanwhile is on disk as well.
                    self.wants_full.extend(self.sessions.keys().cloned());
                    let (decision, digest) = (self.scheduler.state().decision, self.scheduler.digest());
                    self.journal.then(Effect::Settled(decision, digest));
                }
            }
            Internal::Ran(ran) => self.returned(ran),
        }
    }

    /// Answers and publishes what is on disk now, or is known not to be.
    fn settle(&mut self, mut effects: Vec<Effect>, outcome: &Outcome) {
        self.dirty |= !effects.is_empty();
        // Whoever gets an answer finds the feed and the managers told already.
        effects.sort_by_key(|effect| !matches!(effect, Effect::Publish(_) | Effect::Settled(..)));
        for effect in effects {
            match effect {
                Effect::Reply(reply) => reply(outcome.as_ref().copied().map_err(|error| &**error)),
                Effect::Submitted(job, reply) => self.promise(job, reply, outcome),
                Effect::Publish(news) if outcome.is_ok() => self.deliver(news),
                // What is in no journal must not be acted on: a later life of the daemon would give the same numbers to
                // something else. What only takes away may be told.
                Effect::Publish(news) => self.deliver_what_takes(news),
                Effect::Settled(decision, digest) if outcome.is_ok() => self.settled = (decision, digest),
                Effect::Settled(..) => self.withheld = true,
            }
        }
    }

    /// Gives an event to the scheduler.
    pub(super) fn apply(&mut self, at: Time, event: Event) -> Result<(), EventError> {
        self.tickets.hear(&event);
        self.scheduler.apply(at, event)
    }

    /// Leaves a journal that the next start replays without running an engine: also after an upgrade.
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
