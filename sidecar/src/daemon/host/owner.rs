//! The owner's task: commands in, effects out.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io, thread,
    time::{Duration, Instant},
};

use tokio::{
    runtime::{Builder, Handle},
    sync::{mpsc, oneshot, watch},
    time::sleep_until,
};
use trainmaster_core::{Budget, DecisionId, Event, EventError, JobId, Scheduler, Span, Time, Verdict};
use trainmaster_feed::Feed;
use trainmaster_proto::v1;

use super::{
    Command, Host, HostMetrics, JobLimits, JournalLimits,
    decide::{Deciding, Returned},
    hearing::{Hearing, Said},
    journal::{Effect, Journal, Outcome},
    publish::{Attaching, OpenStream, Session},
};
use crate::daemon::{
    clock::Clock,
    ended::EndedJobs,
    store::{
        Write,
        disk::Disk,
        writer::{Writer, Written},
    },
};

/// Commands that may wait; more are turned away.
const QUEUE: usize = 4096;
/// Commands of one batch: their events carry one time.
const BATCH: usize = 256;
/// Nothing is further away than this: time is looked at again then.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);

/// How the owner works.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostOptions {
    /// What an engine may take before its ticket is given up.
    pub(crate) decision_limit: Duration,
    /// Steps an engine is allowed.
    pub(crate) budget: Budget,
    /// How long a decision waits for fits.
    pub(crate) fits_wait: Duration,
    /// Between rounds of fits while reports come in.
    pub(crate) fits_every: Duration,
    pub(crate) journal: JournalLimits,
    /// How long a stopping program may take.
    pub(crate) grace: Span,
    pub(crate) jobs: JobLimits,
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
    Returned(Returned),
}

pub(super) struct Owner {
    pub(super) scheduler: Scheduler,
    pub(super) options: HostOptions,
    pub(super) metrics: HostMetrics,
    pub(super) feed: Feed,
    pub(super) clock: Clock,
    pub(super) journal: Journal,
    pub(super) deciding: Deciding,
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
    changed: watch::Sender<u64>,
    course: Course,
}

/// Whether it goes on.
enum Course {
    Serving,
    /// The last records are being written; then these are told.
    Ending(Vec<oneshot::Sender<()>>),
}

/// Writes what recovery made and starts the owner; what engines and fits need runs on the current runtime.
///
/// # Errors
/// The first write fails, or there are no threads.
pub(crate) fn start(
    opened: Opened,
    options: HostOptions,
    metrics: HostMetrics,
    feed: Feed,
) -> io::Result<(Host, thread::JoinHandle<()>)> {
    let Opened { scheduler, mut disk, secrets, ended, first, clock } = opened;
    let unwritten = |problem, disk: &Disk| io::Error::other(format!("{}: {problem}", disk.path().display()));
    disk.commit(&first).map_err(|problem| unwritten(problem, &disk))?;
    let (internal, returned) = mpsc::unbounded_channel();
    let done = internal.clone();
    let writer = Writer::start(disk, move |written| drop(done.send(Internal::Written(written))))?;
    let (commands, received) = mpsc::channel(QUEUE);
    let (changed, changes) = watch::channel(0);
    let host = Host { commands, changed: changes, metrics: metrics.clone() };
    let stopping = scheduler.state().jobs.values().filter(|job| matches!(job.verdict, Verdict::Stop(_)));
    let mut owner = Owner {
        stopping: stopping.map(|job| job.id).collect(),
        settled: (scheduler.state().decision, scheduler.digest()),
        journal: Journal::new(writer, options.journal, metrics.clone(), &first.records),
        deciding: Deciding::new(),
        threads: Handle::current(),
        messages: HashMap::new(),
        sessions: BTreeMap::new(),
        streams: BTreeMap::new(),
        attaching: Vec::new(),
        hearing: Hearing::default(),
        wants_full: BTreeSet::new(),
        full_waits: false,
        over: Vec::new(),
        withheld: false,
        numbers: HashMap::new(),
        dirty: false,
        course: Course::Serving,
        scheduler,
        options,
        metrics,
        feed,
        clock,
        internal,
        secrets,
        ended,
        changed,
    };
    owner.tell_feed_everything();
    let runtime = Builder::new_current_thread().enable_time().build()?;
    let work = move || runtime.block_on(owner.run(received, returned));
    let thread = thread::Builder::new().name("scheduler".into()).spawn(work)?;
    Ok((host, thread))
}

impl Owner {
    async fn run(mut self, mut commands: mpsc::Receiver<Command>, mut returned: mpsc::UnboundedReceiver<Internal>) {
        // Every handle is gone: nobody can ask for anything any more, an orderly end included.
        let mut orphaned = false;
        loop {
            self.advance();
            self.hearing.rest();
            if self.is_ending() && self.journal.is_idle() {
                break;
            }
            let now = Instant::now();
            let heard = if self.is_ending() { None } else { self.hearing.wake_at(now, self.journal.is_behind()) };
            let wake = heard.unwrap_or(now + LONGEST_SLEEP).min(self.wake(now));
            tokio::select! {
                biased;
                Some(internal) = returned.recv() => self.take_back(internal),
                command = commands.recv(), if !orphaned => match command {
                    Some(command) => {
                        self.command(command);
                        for _ in 1..BATCH {
                            let Ok(command) = commands.try_recv() else { break };
                            self.command(command);
                        }
                    }
                    None => {
                        orphaned = true;
                        self.begin_stop(None);
                    }
                },
                () = std::future::ready(()), if heard.is_some_and(|at| at <= now) => {}
                () = sleep_until(wake.into()) => {}
            }
            if !self.is_ending() {
                self.hear();
            }
        }
        let attaching = self.attaching.iter().map(|waiting| &waiting.outbox).chain(self.hearing.outboxes());
        for outbox in self.sessions.values().map(|session| &session.outbox).chain(attaching) {
            outbox.close(tonic::Status::unavailable(super::STOPPING));
        }
        self.feed.close();
        if let Some(error) = self.journal.error() {
            tracing::error!(%error, "what happened since the disk failed is lost; nothing of it was acknowledged");
        }
        let course = std::mem::replace(&mut self.course, Course::Serving);
        // Closes the file before anybody is told that it is closed.
        drop(self);
        if let Course::Ending(waiting) = course {
            for done in waiting {
                let _ = done.send(());
            }
        }
    }

    fn is_ending(&self) -> bool {
        matches!(self.course, Course::Ending(_))
    }

    /// Everything that follows from what happened: ends, decisions, plans, records.
    fn advance(&mut self) {
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

    fn wake(&mut self, now: Instant) -> Instant {
        let due = if self.is_ending() { None } else { self.next_decision(now) };
        let wake = due.into_iter().chain(self.journal.wake_at()).min();
        wake.unwrap_or(now + LONGEST_SLEEP).min(now + LONGEST_SLEEP)
    }

    fn take_back(&mut self, internal: Internal) {
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
            Internal::Returned(returned) => self.returned(returned),
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
        if matches!(event, Event::Reported { .. } | Event::JobSubmitted { .. }) {
            self.deciding.news = true;
        }
        self.scheduler.apply(at, event)
    }

    fn command(&mut self, command: Command) {
        let at = self.clock.now();
        match command {
            Command::Submit { job, who, reply } => self.submit(at, job, who, reply),
            Command::Cancel { job, who, reply } => self.cancel(at, &job, who, reply),
            Command::Hold { job, held, who, reply } => self.hold(at, &job, held, who, reply),
            Command::SetMode { mode, who, reply } => self.set_mode(at, mode, who, reply),
            Command::Report { job, incarnation, slot, progress, reply } => {
                self.report(at, job, incarnation, slot, progress, reply);
            }
            Command::Note { who, what } => self.audit(at, &who, what),
            Command::Attach { stream, outbox, observed, who, turn } => {
                self.add_said(stream, Said::Attach { outbox, observed, who, turn });
            }
            Command::Observe { stream, observed, turn } => self.add_said(stream, Said::Observe { observed, turn }),
            Command::Detach { manager, stream } => self.add_said(stream, Said::Detach { manager }),
            Command::Read(look) => look(self.view()),
            Command::Stop(done) => self.begin_stop(Some(done)),
        }
    }

    /// Leaves a journal that the next start replays without running an engine: also after an upgrade.
    fn begin_stop(&mut self, done: Option<oneshot::Sender<()>>) {
        if let Course::Ending(waiting) = &mut self.course {
            return waiting.extend(done);
        }
        self.course = Course::Ending(done.into_iter().collect());
        self.give_up_tickets();
        self.scheduler.snapshot();
        self.journal.add(self.scheduler.drain_journal());
        self.journal.retry_now();
        if let Some((effects, outcome)) = self.journal.step() {
            self.settle(effects, &outcome);
        }
    }
}
