//! Group commit. Records gather during a write, and wait while the disk can't be written.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use trainmaster_core::journal::Record;

use crate::JournalMetrics;

/// First and longest delay before a failed write is repeated. The delay doubles with each failure.
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LONGEST_RETRY: Duration = Duration::from_secs(5);
/// Minimum bytes of records between two snapshots, as a multiple of the first one's bytes, up to a bound. A restart
/// reads these records.
const SNAPSHOTS: usize = 4;
const MOST_BETWEEN: usize = 64 << 20;
/// Bytes of gathered records from which observations of managers with their own tokens wait. A caller waits for up to
/// two writes, whose time grows with the gathered bytes.
const BEHIND: usize = 128 << 10;

/// Limits of a journal.
#[derive(Clone, Copy, Debug)]
pub struct JournalLimits {
    /// Minimum records between snapshots. They also have at least four times the last snapshot's bytes.
    pub snapshot_records: usize,
    /// Minimum bytes of records between snapshots, with the same exception.
    pub snapshot_bytes: usize,
    /// Maximum bytes of records in memory while the store can't be written. Beyond it, a snapshot replaces them.
    pub waiting_bytes: usize,
    /// Time after which an unfinished write counts as failed.
    pub write_limit: Duration,
}

impl Default for JournalLimits {
    fn default() -> Self {
        Self {
            snapshot_records: 10_000,
            snapshot_bytes: 16 << 20,
            waiting_bytes: 64 << 20,
            write_limit: Duration::from_secs(30),
        }
    }
}

/// A delayed answer. It gets the result of the write.
pub type LateReply = Box<dyn FnOnce(Result<(), &str>) + Send>;

/// The storage of a journal.
pub trait Store {
    /// Data that is written with the scheduler's records.
    type Beside: Beside;

    /// Begins an atomic write. A synchronous store returns the result. For any other, the host passes the result to
    /// [`Journal::written`] before the next write begins. The result of a failed write contains all of its data, which
    /// the journal writes again with newer records, or replaces by a snapshot.
    fn write(&mut self, write: Write<Self::Beside>) -> Option<Written<Self::Beside>>;
}

/// Data that is written with records.
pub trait Beside: Default {
    /// Whether there is nothing to write.
    fn is_empty(&self) -> bool;

    /// Appends later data.
    fn append(&mut self, later: Self);
}

impl Beside for () {
    fn is_empty(&self) -> bool {
        true
    }

    fn append(&mut self, (): Self) {}
}

/// An atomic write.
#[derive(Debug, Default)]
pub struct Write<B> {
    /// The scheduler's records, in order.
    pub records: Vec<Vec<u8>>,
    /// The data beside them.
    pub beside: B,
}

impl<B: Beside> Write<B> {
    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty() && self.beside.is_empty()
    }

    /// Appends a later write.
    pub fn append(&mut self, later: Self) {
        self.records.extend(later.records);
        self.beside.append(later.beside);
    }

    /// Bytes of its records.
    pub fn bytes(&self) -> usize {
        self.records.iter().map(Vec::len).sum()
    }

    /// Drops the records before the last snapshot. Returns the snapshot's bytes.
    fn forget_superseded(&mut self) -> usize {
        let Some(at) = self.records.iter().rposition(|record| Record::is_snapshot(record)) else { return 0 };
        self.records.drain(..at);
        self.records[0].len()
    }
}

/// The result of a write.
#[derive(Debug)]
pub struct Written<B> {
    /// The error with the data, if nothing was written.
    pub result: Result<(), (String, Write<B>)>,
    /// Bytes of its records.
    pub bytes: usize,
    /// Duration of the write.
    pub took: Duration,
}

/// The result of a batch: written, or the error.
pub type Outcome = Result<(), Arc<str>>;

#[derive(Debug)]
struct Broken<B> {
    error: Arc<str>,
    waiting: Write<B>,
    /// Records were dropped, so a snapshot must come next.
    overflow: bool,
    retry_at: Instant,
    pause: Duration,
    trying: bool,
}

#[derive(Debug)]
struct UnderWay<E> {
    effects: Vec<E>,
    begun: Instant,
}

/// Batches of records with their effects `E`, which follow the write. The next batch gathers during a write.
pub struct Journal<S: Store, E> {
    store: S,
    limits: JournalLimits,
    metrics: JournalMetrics,
    gathering: Write<S::Beside>,
    /// Bytes of its records.
    gathered: usize,
    effects: Vec<E>,
    under_way: Option<UnderWay<E>>,
    broken: Option<Broken<S::Beside>>,
    /// Records since the last snapshot.
    records: usize,
    bytes: usize,
    /// Bytes of the last snapshot.
    snapshot: usize,
}

impl<S: Store, E> Journal<S, E> {
    /// The effects wait for these records, which are written first.
    pub fn new(store: S, limits: JournalLimits, metrics: JournalMetrics, first: &[Vec<u8>]) -> Self {
        let mut journal = Self {
            store,
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

    /// The error, while the store can't be written.
    pub fn error(&self) -> Option<&Arc<str>> {
        self.broken.as_ref().map(|broken| &broken.error)
    }

    /// The data beside the records of the gathering batch.
    pub fn beside(&mut self) -> &mut S::Beside {
        &mut self.gathering.beside
    }

    /// Adds an effect of the gathering batch.
    pub fn then(&mut self, effect: E) {
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

    /// Adds records to the gathering batch.
    pub fn add(&mut self, records: Vec<Vec<u8>>) {
        self.count(&records);
        self.gathered += records.iter().map(Vec::len).sum::<usize>();
        self.gathering.records.extend(records);
    }

    /// Whether a newer snapshot is due. The records since the last one must have several times its bytes, so that
    /// snapshots are a small part of the written data.
    pub fn wants_snapshot(&self) -> bool {
        let grown = self.records >= self.limits.snapshot_records || self.bytes >= self.limits.snapshot_bytes;
        match &self.broken {
            // The snapshot is made when the write is repeated. An earlier one would be outdated by then.
            Some(broken) => broken.overflow && !broken.trying && broken.retry_at <= Instant::now(),
            None => grown && self.bytes >= MOST_BETWEEN.min(SNAPSHOTS * self.snapshot),
        }
    }

    /// Whether nothing waits to be written, or nothing can be.
    pub fn is_idle(&self) -> bool {
        self.under_way.is_none() && (self.broken.is_some() || (self.gathering.is_empty() && self.effects.is_empty()))
    }

    /// Whether the disk is slower than the incoming records. False if it can't be written at all.
    pub fn is_behind(&self) -> bool {
        self.under_way.is_some() && self.broken.is_none() && self.gathered > BEHIND
    }

    /// The time of the journal's next step without an event.
    pub fn wake_at(&self) -> Option<Instant> {
        let stalls = self.under_way.as_ref().filter(|_| self.broken.is_none());
        self.retry_at().or(stalls.map(|write| write.begun + self.limits.write_limit))
    }

    /// The time at which a failed write is repeated. Afterwards, a batch that needs a snapshot waits for open tickets.
    fn retry_at(&self) -> Option<Instant> {
        let waits =
            |broken: &&Broken<S::Beside>| !broken.trying && (!broken.overflow || broken.retry_at > Instant::now());
        self.broken.as_ref().filter(waits).map(|broken| broken.retry_at)
    }

    /// Repeats a failed write in the next step, without a further delay.
    pub fn retry_now(&mut self) {
        if let Some(broken) = &mut self.broken {
            broken.retry_at = Instant::now();
        }
    }

    /// Begins to write the gathered batch, if it is time. Returns effects that are due at once, with the result: a
    /// synchronous store wrote them, or the store can't be written.
    pub fn step(&mut self) -> Option<(Vec<E>, Outcome)> {
        let given_up = self.give_up_slow();
        let Some(broken) = &mut self.broken else {
            if self.under_way.is_none() && !(self.gathering.is_empty() && self.effects.is_empty()) {
                self.under_way = Some(UnderWay { effects: std::mem::take(&mut self.effects), begun: Instant::now() });
                self.gathered = 0;
                let written = self.store.write(std::mem::take(&mut self.gathering))?;
                return Some(self.written(written));
            }
            return None;
        };
        self.gathered = 0;
        let mut more = std::mem::take(&mut self.gathering);
        if more.forget_superseded() > 0 {
            broken.overflow = false;
        }
        if broken.overflow {
            more.records.clear();
        }
        broken.waiting.append(more);
        // A waiting snapshot may have any size, because nothing smaller can replace it.
        let snapshot = broken.waiting.forget_superseded();
        if broken.waiting.bytes() - snapshot > self.limits.waiting_bytes && !broken.overflow {
            tracing::warn!("records wait for the disk beyond their bound; a snapshot will replace them");
            broken.waiting.records = Vec::new();
            broken.overflow = true;
        }
        let mut outcome = Err(broken.error.clone());
        if !broken.trying && !broken.overflow && broken.retry_at <= Instant::now() {
            broken.trying = true;
            self.under_way = Some(UnderWay { effects: Vec::new(), begun: Instant::now() });
            let write = std::mem::take(&mut broken.waiting);
            if let Some(written) = self.store.write(write) {
                (_, outcome) = self.written(written);
            }
        }
        let mut effects = given_up;
        effects.append(&mut self.effects);
        (!effects.is_empty()).then_some((effects, outcome))
    }

    /// Treats a disk that doesn't answer as one that can't be written. Returns the effects that waited for the write.
    /// If it completes later, no caller relied on it.
    fn give_up_slow(&mut self) -> Vec<E> {
        let limit = self.limits.write_limit;
        let late = |write: &&mut UnderWay<E>| write.begun.elapsed() >= limit;
        let Some(write) = self.under_way.as_mut().filter(|_| self.broken.is_none()).filter(late) else {
            return Vec::new();
        };
        self.metrics.errors.inc();
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

    /// Takes the result of a write, and returns its effects.
    pub fn written(&mut self, written: Written<S::Beside>) -> (Vec<E>, Outcome) {
        let effects = self.under_way.take().map(|write| write.effects).unwrap_or_default();
        match written.result {
            Ok(()) => {
                if self.broken.is_none() || written.bytes > 0 {
                    self.metrics.seconds.observe(written.took.as_secs_f64());
                    self.metrics.bytes.inc_by(written.bytes as u64);
                    self.metrics.commits.inc();
                }
                if let Some(broken) = self.broken.as_mut().filter(|broken| broken.overflow) {
                    // Records were dropped meanwhile, so a snapshot must come next.
                    (broken.trying, broken.retry_at) = (false, Instant::now());
                } else if let Some(broken) = self.broken.take() {
                    tracing::warn!("the journal can be written again");
                    self.metrics.broken.set(0);
                    // Records that gathered during the attempt are part of the next one.
                    let mut next = broken.waiting;
                    next.append(std::mem::take(&mut self.gathering));
                    self.gathering = next;
                }
                (effects, Ok(()))
            }
            Err((problem, write)) => {
                self.metrics.errors.inc();
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

#[cfg(test)]
mod tests {
    use prometheus::Registry;
    use trainmaster_core::{Event, JobSpec, Scheduler, Settings, Time};

    use super::*;

    /// A store that writes at once, if it can.
    #[derive(Default)]
    struct Memory {
        fails: bool,
        records: Vec<Vec<u8>>,
    }

    impl Store for Memory {
        type Beside = ();

        fn write(&mut self, write: Write<()>) -> Option<Written<()>> {
            let bytes = write.bytes();
            let result = match self.fails {
                true => Err(("full".to_owned(), write)),
                false => {
                    self.records.extend(write.records);
                    Ok(())
                }
            };
            Some(Written { result, bytes, took: Duration::ZERO })
        }
    }

    fn journal(waiting_bytes: usize) -> Journal<Memory, &'static str> {
        let limits = JournalLimits { waiting_bytes, ..JournalLimits::default() };
        let metrics = JournalMetrics::register(&Registry::new()).unwrap();
        Journal::new(Memory::default(), limits, metrics, &[])
    }

    #[test]
    fn effects_come_with_the_records_before_them() {
        let mut journal = journal(1000);
        assert!(journal.step().is_none());
        journal.add(vec![vec![1; 10]]);
        journal.then("a");
        let (effects, outcome) = journal.step().unwrap();
        assert_eq!((effects, outcome.is_ok(), journal.store.records.len()), (vec!["a"], true, 1));
        journal.then("b");
        assert_eq!(journal.step().unwrap().0, ["b"], "nothing is to be written before it");
        assert!(journal.is_idle() && journal.step().is_none());
    }

    #[test]
    fn what_could_not_be_written_is_written_later_and_in_order() {
        let mut journal = journal(1000);
        journal.store.fails = true;
        for (at, effect) in ["a", "b"].into_iter().enumerate() {
            journal.add(vec![vec![at as u8; 10]]);
            journal.then(effect);
            let (effects, outcome) = journal.step().unwrap();
            assert_eq!((effects, outcome.is_err()), (vec![effect], true));
        }
        assert!(journal.error().unwrap().contains("full") && journal.wake_at().is_some());
        journal.store.fails = false;
        journal.retry_now();
        journal.add(vec![vec![2; 10]]);
        journal.then("c");
        let (effects, outcome) = journal.step().unwrap();
        assert_eq!((effects, outcome.is_ok()), (vec!["c"], true));
        assert!(journal.error().is_none() && journal.is_idle());
        assert_eq!(journal.store.records, [0, 1, 2].map(|at| vec![at; 10]));
    }

    #[test]
    fn a_snapshot_takes_the_place_of_more_than_may_wait() {
        let settings = Settings { engine: "fifo".into(), ..Settings::default() };
        let mut scheduler = Scheduler::new(settings).unwrap();
        scheduler.start_journal();
        let mut journal = journal(100);
        journal.store.fails = true;
        for at in 0..5 {
            let spec = Box::new(JobSpec::minimal(&format!("job{at}")));
            let event = Event::JobSubmitted { spec, external: None, token_hash: None };
            scheduler.apply(Time(1), event).unwrap();
            journal.add(scheduler.drain_journal());
            journal.step();
        }
        journal.store.fails = false;
        journal.retry_now();
        assert!(journal.wants_snapshot());
        assert!(scheduler.snapshot());
        journal.add(scheduler.drain_journal());
        journal.then("kept");
        let (effects, outcome) = journal.step().unwrap();
        assert_eq!((effects, outcome.is_ok()), (vec!["kept"], true));
        assert!(Record::is_snapshot(&journal.store.records[0]));
        let restored = Scheduler::restore(journal.store.records.iter().map(Vec::as_slice)).unwrap();
        assert_eq!(restored.digest(), scheduler.digest());
    }
}
