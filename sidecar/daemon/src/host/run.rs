//! The owner's task: it takes commands and has their effects carried out.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io, thread,
    time::Instant,
};

use tokio::{
    runtime::{Builder, Handle},
    sync::{mpsc, watch},
    time::sleep_until,
};
use trainmaster_core::Verdict;
use trainmaster_feed::Feed;
use trainmaster_host::Tickets;

use super::{
    command::Command,
    handle::{Host, STOPPING},
    journal::Journal,
    metrics::HostMetrics,
    owner::{Course, HostOptions, Internal, LONGEST_SLEEP, Opened, Owner},
    said::{Hearing, Said},
};
use crate::store::{disk::Disk, writer::Writer};

/// Maximum number of waiting commands. Further ones are refused.
const QUEUE: usize = 4096;
/// Maximum number of commands in a batch. Their events have the same time.
const BATCH: usize = 256;
/// Writes the records of the recovery and starts the owner. Engines and fits run on the current runtime.
///
/// # Errors
/// The first write fails, or the system provides no threads.
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
        journal: Journal::new(writer, options.journal, metrics.journal.clone(), &first.records),
        tickets: Tickets::new(options.tickets, metrics.tickets.clone()),
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
        predictions: metrics.predictions(),
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
        // All handles are dropped, so no command can come any more, not even for an orderly end.
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
            outbox.close(tonic::Status::unavailable(STOPPING));
        }
        self.feed.close();
        if let Some(error) = self.journal.error() {
            tracing::error!(%error, "what happened since the disk failed is lost; nothing of it was acknowledged");
        }
        let course = std::mem::replace(&mut self.course, Course::Serving);
        // The file closes before the end is announced.
        drop(self);
        if let Course::Ending(waiting) = course {
            for done in waiting {
                let _ = done.send(());
            }
        }
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
}
