//! Group commit: what gathers while a write is under way, and what waits while the disk can't be written.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use trainmaster_core::{DecisionId, JobId, journal::Record};

use super::{
    answers::{Reply, Submitted},
    metrics::HostMetrics,
    streams::News,
};
use crate::daemon::store::{
    Write,
    writer::{Writer, Written},
};

/// First wait before a failed write is tried again; doubles up to the longest.
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LONGEST_RETRY: Duration = Duration::from_secs(5);
/// Records between two snapshots have so many times the bytes of the first one, up to a bound: a restart reads them
/// again.
const SNAPSHOTS: usize = 4;
const MOST_BETWEEN: usize = 64 << 20;
/// Managers with tokens of their own aren't listened to while so many bytes wait for the write under way: whoever waits
/// for an answer waits for two writes, and these are as long as what gathers.
const BEHIND: usize = 128 << 10;

/// Bounds of the journal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JournalLimits {
    /// Records between snapshots.
    pub(crate) snapshot_records: usize,
    /// Bytes of records between snapshots.
    pub(crate) snapshot_bytes: usize,
    /// Bytes of records kept in memory while the disk can't be written; beyond these a snapshot replaces them.
    pub(crate) waiting_bytes: usize,
    /// A write that takes longer counts as failed until it is done.
    pub(crate) write_limit: Duration,
}

/// Answers once it is known whether what was done is on disk, else with why not.
pub(super) type LateReply = Box<dyn FnOnce(Result<(), &str>) + Send>;

/// What is done once a batch is on disk, or known not to be.
pub(super) enum Effect {
    /// An answer that makes sense only once it is durable.
    Reply(LateReply),
    /// The answer to a submission: taken back if it can't be promised.
    Submitted(JobId, Reply<Submitted>),
    /// Managers and training programs hear of it.
    Publish(News),
    /// The decision that is now in force.
    Settled(DecisionId, [u8; 32]),
}

/// How a batch went: written, or why not.
pub(super) type Outcome = Result<(), Arc<str>>;

struct Broken {
    error: Arc<str>,
    waiting: Write,
    /// Records were dropped: only a snapshot can follow.
    overflow: bool,
    retry_at: Instant,
    pause: Duration,
    trying: bool,
}

struct UnderWay {
    effects: Vec<Effect>,
    begun: Instant,
}

pub(super) struct Journal {
    writer: Writer,
    limits: JournalLimits,
    metrics: HostMetrics,
    gathering: Write,
    /// Bytes of its records.
    gathered: usize,
    effects: Vec<Effect>,
    under_way: Option<UnderWay>,
    broken: Option<Broken>,
    /// Since the last snapshot.
    records: usize,
    bytes: usize,
    /// Bytes of the last snapshot.
    snapshot: usize,
}

impl Journal {
    /// After what was written first.
    pub(super) fn new(writer: Writer, limits: JournalLimits, metrics: HostMetrics, first: &[Vec<u8>]) -> Self {
        let mut journal = Self {
            writer,
            limits,
            metrics,
            gathering: Write::default(),
            gathered: 0,
            effects: Vec::new(),
            under_way: None,
            broken: None,
            records: 0,
            bytes: 0,
            snapshot: 0,
        };
        journal.count(first);
        journal
    }

    /// Why nothing can be promised now, if so.
    pub(super) fn error(&self) -> Option<&Arc<str>> {
        self.broken.as_ref().map(|broken| &broken.error)
    }

    /// What is written beside the records with the gathering batch.
    pub(super) fn beside(&mut self) -> &mut Write {
        &mut self.gathering
    }

    /// Done once the gathering batch is.
    pub(super) fn then(&mut self, effect: Effect) {
        self.effects.push(effect);
    }

    fn count(&mut self, records: &[Vec<u8>]) {
        for record in records {
            if Record::is_snapshot(record) {
                (self.records, self.bytes, self.snapshot) = (0, 0, record.len());
            } else {
                self.records += 1;
                self.bytes += record.len();
            }
        }
    }

    pub(super) fn add(&mut self, records: Vec<Vec<u8>>) {
        self.count(&records);
        self.gathered += records.iter().map(Vec::len).sum::<usize>();
        self.gathering.records.extend(records);
    }

    /// Whether recovery should soon start at a newer snapshot. Not before several times as much was written as the last
    /// one took, so that snapshots are a small part of what is written.
    pub(super) fn wants_snapshot(&self) -> bool {
        let grown = self.records >= self.limits.snapshot_records || self.bytes >= self.limits.snapshot_bytes;
        match &self.broken {
            // Needed as soon as the disk is to be tried again; before that it would only grow old.
            Some(broken) => broken.overflow && !broken.trying && broken.retry_at <= Instant::now(),
            None => grown && self.bytes >= MOST_BETWEEN.min(SNAPSHOTS * self.snapshot),
        }
    }

    /// Nothing waits to be written, or nothing can be.
    pub(super) fn is_idle(&self) -> bool {
        self.under_way.is_none() && (self.broken.is_some() || (self.gathering.is_empty() && self.effects.is_empty()))
    }

    /// Whether the disk is slower than what comes. One that can't be written at all isn't waited for.
    pub(super) fn is_behind(&self) -> bool {
        self.under_way.is_some() && self.broken.is_none() && self.gathered > BEHIND
    }

    /// When the journal has to be looked at again by itself.
    pub(super) fn wake_at(&self) -> Option<Instant> {
        let stalls = self.under_way.as_ref().filter(|_| self.broken.is_none());
        self.retry_at().or(stalls.map(|write| write.begun + self.limits.write_limit))
    }

    /// When a failed write is to be tried again. Past that, what waits for a snapshot waits for open tickets.
    fn retry_at(&self) -> Option<Instant> {
        let waits = |broken: &&Broken| !broken.trying && (!broken.overflow || broken.retry_at > Instant::now());
        self.broken.as_ref().filter(waits).map(|broken| broken.retry_at)
    }

    /// The last chance of what waits.
    pub(super) fn retry_now(&mut self) {
        if let Some(broken) = &mut self.broken {
            broken.retry_at = Instant::now();
        }
    }

    /// Hands over what gathered, if it is time; returns what can be said at once because nothing can be promised.
    pub(super) fn step(&mut self) -> Option<(Vec<Effect>, Outcome)> {
        let given_up = self.give_up_slow();
        let Some(broken) = &mut self.broken else {
            if self.under_way.is_none() && !(self.gathering.is_empty() && self.effects.is_empty()) {
                self.under_way = Some(UnderWay { effects: std::mem::take(&mut self.effects), begun: Instant::now() });
                self.writer.write(std::mem::take(&mut self.gathering));
                self.gathered = 0;
            }
            return None;
        };
        self.gathered = 0;
        let mut more = std::mem::take(&mut self.gathering);
        if let Some(at) = more.records.iter().rposition(|record| Record::is_snapshot(record)) {
            // Whatever it took part in before is in it.
            more.records.drain(..at);
            broken.waiting.records.clear();
            broken.overflow = false;
        }
        if broken.overflow {
            more.records.clear();
        }
        broken.waiting.append(more);
        if broken.waiting.bytes() > self.limits.waiting_bytes && !broken.overflow {
            tracing::warn!("records wait for the disk beyond their bound; a snapshot will replace them");
            broken.waiting.records = Vec::new();
            broken.overflow = true;
        }
        if !broken.trying && !broken.overflow && broken.retry_at <= Instant::now() {
            broken.trying = true;
            self.under_way = Some(UnderWay { effects: Vec::new(), begun: Instant::now() });
            self.writer.write(std::mem::take(&mut broken.waiting));
        }
        let mut effects = given_up;
        effects.append(&mut self.effects);
        (!effects.is_empty()).then(|| (effects, Err(broken.error.clone())))
    }

    /// A disk that doesn't answer is one that can't be written, as far as anybody who waits is concerned. What waited
    /// for the write is returned: should it be done one day after all, nobody relied on it.
    fn give_up_slow(&mut self) -> Vec<Effect> {
        let limit = self.limits.write_limit;
        let late = |write: &&mut UnderWay| write.begun.elapsed() >= limit;
        let Some(write) = self.under_way.as_mut().filter(|_| self.broken.is_none()).filter(late) else {
            return Vec::new();
        };
        self.metrics.commit_errors.inc();
        self.metrics.broken.set(1);
        let error: Arc<str> = format!("journal can't be written: the disk has not answered for {limit:?}").into();
        tracing::error!(%error, "nothing is acknowledged until the disk can be written again");
        let retry_at = Instant::now();
        self.broken = Some(Broken {
            error,
            waiting: Write::default(),
            overflow: false,
            retry_at,
            pause: FIRST_RETRY,
            trying: true,
        });
        std::mem::take(&mut write.effects)
    }

    /// A write is done; returns what waited for it.
    pub(super) fn written(&mut self, written: Written) -> (Vec<Effect>, Outcome) {
        let effects = self.under_way.take().map(|write| write.effects).unwrap_or_default();
        match written.result {
            Ok(()) => {
                if self.broken.is_none() || written.bytes > 0 {
                    self.metrics.commit_seconds.observe(written.took.as_secs_f64());
                    self.metrics.commit_bytes.inc_by(written.bytes as u64);
                    self.metrics.commit_records.inc();
                }
                if let Some(broken) = self.broken.as_mut().filter(|broken| broken.overflow) {
                    // Records were dropped meanwhile: only a snapshot can follow.
                    (broken.trying, broken.retry_at) = (false, Instant::now());
                } else if let Some(broken) = self.broken.take() {
                    tracing::warn!("the journal can be written again");
                    self.metrics.broken.set(0);
                    // What gathered during the attempt goes first into the next one.
                    let mut next = broken.waiting;
                    next.append(std::mem::take(&mut self.gathering));
                    self.gathering = next;
                }
                (effects, Ok(()))
            }
            Err((problem, write)) => {
                self.metrics.commit_errors.inc();
                self.metrics.broken.set(1);
                let error: Arc<str> = format!("journal can't be written: {problem}").into();
                let pause = self.broken.as_ref().map_or(FIRST_RETRY, |broken| (broken.pause * 2).min(LONGEST_RETRY));
                if self.broken.is_none() {
                    tracing::error!(%error, "nothing is acknowledged until the disk can be written again");
                }
                let mut waiting = write;
                let mut overflow = false;
                if let Some(broken) = self.broken.take() {
                    overflow = broken.overflow;
                    waiting.append(broken.waiting);
                }
                self.broken = Some(Broken {
                    error: error.clone(),
                    waiting,
                    overflow,
                    retry_at: Instant::now() + pause,
                    pause,
                    trying: false,
                });
                (effects, Err(error))
            }
        }
    }
}
