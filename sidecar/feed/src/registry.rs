//! What each job is given, and where its slots listen.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::watch;
use tonic::Status;
use trainmaster_core::{Incarnation, JobId, Revision, Role, Span};
use trainmaster_proto::v1;

use crate::{
    FeedMetrics,
    limits::{Bucket, Limits},
};

/// What a job's programs are to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// Train.
    Run,
    /// Write a checkpoint, acknowledge, leave.
    #[default]
    Stop,
    /// The same, for good: the job is over.
    Over,
}

/// What a job is given, as its programs are told.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobAssignment {
    /// Its name: programs may call it by that or by its number.
    pub name: String,
    /// Hash of its token; none where it reports without.
    pub token_hash: Option<[u8; 32]>,
    /// Which incarnation is to run.
    pub incarnation: Incarnation,
    /// Which revision of it.
    pub revision: Revision,
    /// What to do.
    pub standing: Standing,
    /// Its slots: workers and parameter servers, with their servers' names.
    pub slots: Vec<v1::Slot>,
    /// What they do, where data chunks are scheduled one by one.
    pub work: Vec<v1::Work>,
    /// How long a stopping program may take.
    pub grace: Span,
    /// The highest sequence number accepted from each slot of this incarnation.
    pub accepted: BTreeMap<(Role, u32), u64>,
}

/// A slot of one incarnation.
pub(crate) type SlotKey = (Incarnation, Role, u32);

/// What watchers are told, made once for all of them.
#[derive(Debug, Default)]
pub(crate) struct View {
    pub(crate) assignment: v1::Assignment,
    pub(crate) accepted: BTreeMap<(Role, u32), u64>,
}

#[derive(Debug)]
struct Entry {
    given: JobAssignment,
    /// Address of each slot that watches, and the stream that said so: it may be replaced by a newer one.
    addresses: BTreeMap<SlotKey, (String, u64)>,
    view: watch::Sender<Arc<View>>,
    bucket: Bucket,
}

#[derive(Debug, Default)]
struct Tables {
    jobs: HashMap<JobId, Entry>,
    /// Of jobs that are not over.
    names: HashMap<String, JobId>,
    over: VecDeque<JobId>,
    streams: u64,
    closed: bool,
}

#[derive(Debug)]
struct Shared {
    tables: Mutex<Tables>,
    limits: Limits,
    metrics: FeedMetrics,
}

/// The host's handle: says what each job is given. Clones share everything.
#[derive(Clone, Debug)]
pub struct Feed(Arc<Shared>);

/// Whom a call is about, and what it needs to be let in.
pub(crate) struct Identity {
    pub(crate) job: JobId,
    pub(crate) token_hash: Option<[u8; 32]>,
}

impl Feed {
    /// A feed without jobs.
    pub fn new(limits: Limits, metrics: FeedMetrics) -> Self {
        Self(Arc::new(Shared { tables: Mutex::default(), limits, metrics }))
    }

    /// The bounds it keeps.
    pub fn limits(&self) -> &Limits {
        &self.0.limits
    }

    pub(crate) fn metrics(&self) -> &FeedMetrics {
        &self.0.metrics
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        // Every change below leaves the tables whole, so a panic elsewhere doesn't spoil them.
        self.0.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says what a job is given now; its watchers hear of it if it makes a difference to them.
    pub fn set(&self, job: JobId, mut given: JobAssignment) {
        let limits = &self.0.limits;
        let mut tables = self.tables();
        let over = given.standing == Standing::Over;
        if over {
            if tables.names.get(&given.name) == Some(&job) {
                tables.names.remove(&given.name);
            }
            let known = tables.over.contains(&job);
            if !known {
                tables.over.push_back(job);
            }
            while tables.over.len() > limits.ended_jobs {
                let oldest = tables.over.pop_front().expect("it is longer than its limit");
                tables.jobs.remove(&oldest);
            }
            if limits.ended_jobs == 0 {
                return;
            }
        } else {
            tables.names.insert(given.name.clone(), job);
        }
        let entry = tables.jobs.entry(job).or_insert_with(|| Entry {
            given: JobAssignment::default(),
            addresses: BTreeMap::new(),
            view: watch::Sender::new(Arc::default()),
            bucket: Bucket::full(limits),
        });
        if entry.given.incarnation == given.incarnation {
            // Reports may have been answered since the host looked.
            for (slot, seq) in &entry.given.accepted {
                let newest = given.accepted.entry(*slot).or_default();
                *newest = (*newest).max(*seq);
            }
        }
        entry.given = given;
        entry.publish(job);
    }

    /// Ends all streams: the host stops. Programs go on and come back to whoever takes over.
    pub fn close(&self) {
        let mut tables = self.tables();
        tables.closed = true;
        tables.jobs.clear();
    }

    /// What callers are told once a job is not known.
    pub(crate) fn absence(&self, job: &str) -> Status {
        if self.tables().closed {
            return Status::unavailable("the feed is stopping; come back later");
        }
        let name: String = job.chars().take(128).collect();
        Status::not_found(format!("there is no job {name:?}, or it ended long ago"))
    }

    /// Notes what was accepted, for those who watch later.
    pub(crate) fn accepted(&self, job: JobId, incarnation: Incarnation, slot: (Role, u32), seq: u64) {
        let mut tables = self.tables();
        let entry = tables.jobs.get_mut(&job).filter(|entry| entry.given.incarnation == incarnation);
        if let Some(entry) = entry {
            let newest = entry.given.accepted.entry(slot).or_default();
            *newest = (*newest).max(seq);
        }
    }

    /// The job of a name or number.
    pub(crate) fn find(&self, job: &str) -> Option<Identity> {
        let tables = self.tables();
        let id = tables.names.get(job).copied().or_else(|| job.parse().ok().map(JobId));
        // A job that is over still has its name, unless a newer job took it.
        let id = id.or_else(|| {
            tables
                .over
                .iter()
                .rev()
                .copied()
                .find(|id| tables.jobs.get(id).is_some_and(|entry| entry.given.name == job))
        })?;
        let entry = tables.jobs.get(&id)?;
        Some(Identity { job: id, token_hash: entry.given.token_hash })
    }

    /// Whether a job may send so many reports now.
    pub(crate) fn admit(&self, job: JobId, reports: usize) -> bool {
        let mut tables = self.tables();
        tables.jobs.get_mut(&job).is_none_or(|entry| entry.bucket.take(reports, &self.0.limits))
    }

    /// Adds a watcher; its address is known for as long as the returned guard lives.
    ///
    /// # Errors
    /// NOT_FOUND: the job was forgotten meanwhile; RESOURCE_EXHAUSTED: it has too many watchers.
    pub(crate) fn watch(&self, job: JobId, slot: SlotKey, address: String) -> Result<Watcher, Status> {
        let mut guard = self.tables();
        let tables = &mut *guard;
        let Some(entry) = tables.jobs.get_mut(&job) else {
            drop(guard);
            return Err(self.absence(&job.0.to_string()));
        };
        let most = self.0.limits.watchers_per_job;
        if entry.view.receiver_count() >= most {
            self.0.metrics.refused.with_label_values(&["limit"]).inc();
            return Err(Status::resource_exhausted(format!("{job} has {most} watchers, and that is the most")));
        }
        tables.streams += 1;
        let stream = tables.streams;
        let listens = !address.is_empty();
        if listens {
            entry.addresses.insert(slot, (address, stream));
            entry.publish(job);
        }
        self.0.metrics.watchers.inc();
        Ok(Watcher { feed: self.clone(), job, slot, stream, view: entry.view.subscribe() })
    }

    fn unwatch(&self, watcher: &Watcher) {
        self.0.metrics.watchers.dec();
        let mut tables = self.tables();
        let Some(entry) = tables.jobs.get_mut(&watcher.job) else { return };
        if entry.addresses.get(&watcher.slot).is_some_and(|(_, stream)| *stream == watcher.stream) {
            entry.addresses.remove(&watcher.slot);
            entry.publish(watcher.job);
        }
    }
}

impl Entry {
    /// Tells the watchers, if it makes a difference to them.
    fn publish(&mut self, job: JobId) {
        let given = &self.given;
        let peers = given.slots.iter().map(|slot| {
            let key =
                trainmaster_proto::role_from_wire(slot.role).ok().map(|role| (given.incarnation, role, slot.index));
            let address = key.and_then(|key| self.addresses.get(&key)).map(|(address, _)| address.clone());
            v1::Peer { slot: Some(slot.clone()), address: address.unwrap_or_default() }
        });
        let phase = match given.standing {
            Standing::Run => v1::AssignmentPhase::Run,
            Standing::Stop | Standing::Over => v1::AssignmentPhase::Stop,
        };
        let assignment = v1::Assignment {
            job: job.0,
            incarnation: given.incarnation.0,
            revision: given.revision.0,
            peers: peers.collect(),
            phase: phase.into(),
            grace_ms: given.grace.0,
            last_seq: 0,
            work: given.work.clone(),
        };
        let accepted = &given.accepted;
        self.view.send_if_modified(|view| {
            let news = view.assignment != assignment;
            *view = Arc::new(View { assignment, accepted: accepted.clone() });
            news
        });
    }
}

/// A stream that watches a job.
#[derive(Debug)]
pub(crate) struct Watcher {
    feed: Feed,
    job: JobId,
    slot: SlotKey,
    stream: u64,
    view: watch::Receiver<Arc<View>>,
}

impl Watcher {
    /// What the slot is to be told now; later changes count as news.
    pub(crate) fn look(&mut self) -> v1::Assignment {
        let view = self.view.borrow_and_update().clone();
        let mut assignment = view.assignment.clone();
        let (incarnation, role, index) = self.slot;
        if assignment.incarnation == incarnation.0 {
            let tables = self.feed.tables();
            let accepted = tables.jobs.get(&self.job).map_or(&view.accepted, |entry| &entry.given.accepted);
            assignment.last_seq = accepted.get(&(role, index)).copied().unwrap_or(0);
        }
        assignment
    }

    /// Waits for news.
    ///
    /// # Errors
    /// The job is forgotten, or the feed stops.
    pub(crate) async fn changed(&mut self) -> Result<(), Status> {
        self.view.changed().await.map_err(|_| self.feed.absence(&self.job.0.to_string()))
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.feed.unwatch(self);
    }
}
