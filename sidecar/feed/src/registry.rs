//! The assignments of all jobs, and the addresses of their slots.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use dashmap::{DashMap, mapref::one::RefMut};
use tokio::{
    runtime::Handle,
    sync::{Semaphore, watch},
    time::{Instant, sleep_until},
};
use tonic::Status;
use trainmaster_core::{Incarnation, JobId, Revision, Role, Span};
use trainmaster_proto::{SharedAssignment, role_from_wire, v1};

use crate::{
    FeedMetrics, Kept,
    callers::{Callers, FeedCaller},
    limits::{Bucket, Limits},
    watch::Watcher,
};

/// The desired state of a job's programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// Train.
    Run,
    /// Save a checkpoint, acknowledge, and end.
    #[default]
    Stop,
    /// The same for good: the job has ended.
    Over,
}

/// The assignment of a job for its programs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobAssignment {
    /// Name of the job. Programs use the name or the number.
    pub name: String,
    /// Owner of the job. The calls of a tenant's jobs are limited together.
    pub tenant: String,
    /// Cluster that the job came from; empty if it was submitted directly.
    pub cluster: String,
    /// Hash of its token. None if it reports without a token.
    pub token_hash: Option<[u8; 32]>,
    /// The incarnation that should run.
    pub incarnation: Incarnation,
    /// The revision of it.
    pub revision: Revision,
    /// The desired state.
    pub standing: Standing,
    /// Its slots: workers and parameter servers, with the names of their servers.
    pub slots: Vec<v1::Slot>,
    /// Work of the slots, if data chunks are scheduled one by one.
    pub work: Vec<v1::Work>,
    /// The batch, if the scheduler may choose it.
    pub batch: Option<v1::Batch>,
    /// Time within which a stopping program has to end.
    pub grace: Span,
    /// The highest accepted sequence number of each slot of this incarnation.
    pub accepted: BTreeMap<(Role, u32), u64>,
}

/// A slot of one incarnation.
pub(crate) type SlotKey = (Incarnation, Role, u32);

/// The content for watchers, created once for all of them.
#[derive(Debug, Default)]
pub(crate) struct View {
    pub(crate) assignment: SharedAssignment,
    pub(crate) incarnation: Incarnation,
    accepted: BTreeMap<(Role, u32), u64>,
}

/// Maximum number of watchers of a tenant's jobs that have no assignment yet.
const IDLE_WATCHERS: usize = 1024;
/// Time per watcher and slot. Changes of addresses are sent to all watchers, at intervals that keep their part of the
/// time small.
const TELLING: Duration = Duration::from_nanos(500);
/// Building a new content takes as long as sending it to this number of watchers.
const MAKING: usize = 100;

#[derive(Debug)]
struct Entry {
    given: JobAssignment,
    /// Address of each watching slot, and the stream that set it. A newer stream may replace it.
    addresses: BTreeMap<SlotKey, (String, u64)>,
    /// Slots whose program said that it ends.
    left: BTreeSet<SlotKey>,
    view: watch::Sender<Arc<View>>,
    reports: Bucket,
    bytes: Bucket,
    /// Bytes of its reports that wait for the disk.
    waiting: usize,
    /// Maximum number of slots so far.
    most_slots: usize,
    /// Time of the last publication, and whether another one is scheduled.
    published: Option<Instant>,
    stale: bool,
    /// A permit for one watcher, independent of the tenant's unread bytes.
    turn: Arc<Semaphore>,
}

/// Common state of one tenant's jobs.
#[derive(Debug)]
struct Tenant {
    bytes: Bucket,
    waiting: usize,
    jobs: usize,
    /// Room for unread bytes of its jobs' watchers.
    unread: Arc<Semaphore>,
    idle_watchers: usize,
}

/// The jobs by name.
#[derive(Debug)]
struct Names {
    /// Of active jobs.
    active: HashMap<String, JobId>,
    /// Ended jobs, with a counter as their time.
    over: Kept<(u64, JobId)>,
    ended: u64,
}

/// A thread that holds several locks took them in this order: names, a job, a tenant, a caller. While a large
/// assignment is published, calls for jobs in the same part of the table wait, and nothing else. The host sets, opens
/// and closes from one task at a time.
#[derive(Debug)]
struct Shared {
    names: Mutex<Names>,
    jobs: DashMap<JobId, Entry>,
    tenants: DashMap<String, Tenant>,
    callers: Callers,
    /// Number of streams so far.
    streams: AtomicU64,
    limits: Limits,
    metrics: FeedMetrics,
}

/// The host's handle, which sets the assignments of jobs. Clones share everything.
#[derive(Clone, Debug)]
pub struct Feed(Arc<Shared>);

/// Reports that wait for the disk. Dropped when they are written.
#[derive(Debug)]
pub(crate) struct Waiting {
    feed: Feed,
    job: JobId,
    tenant: String,
    bytes: usize,
}

impl Feed {
    /// A feed without jobs.
    pub fn new(limits: Limits, metrics: FeedMetrics) -> Self {
        let names = Names { active: HashMap::new(), over: Kept::new(limits.ended_jobs), ended: 0 };
        Self(Arc::new(Shared {
            names: Mutex::new(names),
            jobs: DashMap::new(),
            tenants: DashMap::new(),
            callers: Callers::default(),
            streams: AtomicU64::new(0),
            limits,
            metrics,
        }))
    }

    /// The limits.
    pub fn limits(&self) -> &Limits {
        &self.0.limits
    }

    pub(crate) fn metrics(&self) -> &FeedMetrics {
        &self.0.metrics
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        // Each change below leaves the names consistent, so a panic elsewhere doesn't corrupt them.
        self.0.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tenant(&self, name: &str) -> RefMut<'_, String, Tenant> {
        self.0.tenants.entry(name.to_owned()).or_insert_with(|| Tenant::new(&self.0.limits))
    }

    /// Identifies the job of a token, before any content of its call is read. O(1).
    ///
    /// # Errors
    /// UNAUTHENTICATED: there is no token, or no job has this one. UNAVAILABLE: the feed is closed.
    pub fn caller(&self, token: Option<&str>) -> Result<FeedCaller, Status> {
        // It may open meanwhile. Then this look at the jobs was too early.
        let was_closed = self.0.callers.is_closed();
        self.0.callers.find(token).map_err(|problem| {
            if was_closed || self.0.callers.is_closed() {
                return self.closed();
            }
            self.0.metrics.refused.with_label_values(&["token"]).inc();
            Status::unauthenticated(problem)
        })
    }

    fn closed(&self) -> Status {
        Status::unavailable("the feed is starting or stopping; come back later")
    }

    /// Sets the assignment of a job. Watchers receive relevant changes.
    pub fn set(&self, job: JobId, mut given: JobAssignment) {
        let over = given.standing == Standing::Over;
        if over && !self.end(job, &given) {
            return;
        }
        let mut entry = match self.0.jobs.entry(job) {
            dashmap::Entry::Occupied(entry) => {
                let entry = entry.into_ref();
                self.recount(job, &entry, &given);
                entry
            }
            dashmap::Entry::Vacant(place) => {
                let entry = place.insert(Entry::new(&self.0.limits));
                self.0.callers.add(job, given.token_hash, &given.tenant, given.slots.len());
                self.tenant(&given.tenant).jobs += 1;
                entry
            }
        };
        if given.slots.len() > entry.most_slots {
            entry.most_slots = given.slots.len();
            self.0.callers.grown(job, given.token_hash, entry.most_slots);
        }
        if entry.given.incarnation == given.incarnation {
            // More reports may have been accepted since the host's last look.
            for (slot, seq) in &entry.given.accepted {
                let newest = given.accepted.entry(*slot).or_default();
                *newest = (*newest).max(*seq);
            }
        }
        entry.left.retain(|(incarnation, ..)| *incarnation == given.incarnation);
        let name = (!over).then(|| given.name.clone());
        entry.given = given;
        entry.publish(job);
        drop(entry);
        if let Some(name) = name {
            self.names().active.insert(name, job);
        }
    }

    /// Enters an ended job, and forgets others for it. False if it is forgotten itself.
    fn end(&self, job: JobId, given: &JobAssignment) -> bool {
        let was_over = self.0.jobs.get(&job).is_some_and(|entry| entry.given.standing == Standing::Over);
        let mut names = self.names();
        if names.active.get(&given.name) == Some(&job) {
            names.active.remove(&given.name);
        }
        if was_over {
            return true;
        }
        names.ended += 1;
        let ended = names.ended;
        let gone = names.over.insert(&given.cluster, &given.tenant, (ended, job));
        drop(names);
        for (_, forgotten) in &gone {
            if let Some((_, entry)) = self.0.jobs.remove(forgotten) {
                self.0.callers.remove(*forgotten, entry.given.token_hash);
                self.leave(&entry.given.tenant);
            }
        }
        gone.iter().all(|(_, forgotten)| *forgotten != job)
    }

    /// Updates callers and tenants to a known job's new assignment.
    fn recount(&self, job: JobId, entry: &Entry, given: &JobAssignment) {
        let (token, tenant) = (entry.given.token_hash, &entry.given.tenant);
        if token == given.token_hash && *tenant == given.tenant {
            return;
        }
        // A token that stays is known all the time: calls look it up meanwhile.
        let stays = token == given.token_hash;
        if !stays || token.is_some() {
            self.0.callers.add(job, given.token_hash, &given.tenant, entry.most_slots.max(given.slots.len()));
        }
        if !stays {
            self.0.callers.remove(job, token);
        }
        self.leave(tenant);
        self.tenant(&given.tenant).jobs += 1;
    }

    /// A tenant has one job less.
    fn leave(&self, tenant: &str) {
        self.0.tenants.remove_if_mut(tenant, |_, of| {
            of.jobs = of.jobs.saturating_sub(1);
            of.jobs == 0
        });
    }

    /// Ends all streams, because the host stops, or doesn't know its jobs yet. Programs continue, and try again.
    pub fn close(&self) {
        let mut names = self.names();
        self.0.callers.close();
        self.0.jobs.clear();
        self.0.tenants.clear();
        names.active.clear();
        names.over = Kept::new(self.0.limits.ended_jobs);
    }

    /// Opens a feed that was closed until its host knew its jobs. Until then, programs hear that they should come back
    /// later, not that their job is unknown.
    pub fn open(&self) {
        self.0.callers.open();
    }

    /// The error for an unknown job.
    pub(crate) fn absence(&self, job: &str) -> Status {
        if self.0.callers.is_closed() {
            return self.closed();
        }
        let name: String = job.chars().take(128).collect();
        Status::not_found(format!("there is no job {name:?}, or it ended long ago"))
    }

    /// Records an accepted report for later watchers.
    pub(crate) fn accepted(&self, job: JobId, incarnation: Incarnation, slot: (Role, u32), seq: u64) {
        let entry = self.0.jobs.get_mut(&job).filter(|entry| entry.given.incarnation == incarnation);
        if let Some(mut entry) = entry {
            let newest = entry.given.accepted.entry(slot).or_default();
            *newest = (*newest).max(seq);
        }
    }

    /// The last accepted report of a slot, as the job or else this view of it says.
    pub(crate) fn last_accepted(&self, job: JobId, view: &View, slot: (Role, u32)) -> u64 {
        let entry = self.0.jobs.get(&job);
        let accepted = entry.as_ref().map_or(&view.accepted, |entry| &entry.given.accepted);
        accepted.get(&slot).copied().unwrap_or(0)
    }

    /// The job of a name or number, if it belongs to the caller.
    ///
    /// # Errors
    /// NOT_FOUND: there is no such job. UNAUTHENTICATED: the token belongs to another job.
    pub(crate) fn find(&self, job: &str, caller: &FeedCaller) -> Result<JobId, Status> {
        let refused = &self.0.metrics.refused;
        let Some((id, token)) = self.named(job) else {
            refused.with_label_values(&["job"]).inc();
            return Err(self.absence(job));
        };
        if token.is_some() && token != caller.token {
            refused.with_label_values(&["token"]).inc();
            return Err(Status::unauthenticated(format!("the token is not that of job {job:?}")));
        }
        Ok(id)
    }

    fn named(&self, job: &str) -> Option<(JobId, Option<[u8; 32]>)> {
        let named = self.names().active.get(job).copied();
        let id = named.or_else(|| job.parse().ok().map(JobId)).or_else(|| {
            // An ended job keeps its name until a newer job takes it.
            let over: Vec<JobId> = self.names().over.iter().rev().map(|(_, id)| id).collect();
            over.into_iter().find(|id| self.0.jobs.get(id).is_some_and(|entry| entry.given.name == job))
        })?;
        let entry = self.0.jobs.get(&id)?;
        Some((id, entry.given.token_hash))
    }

    /// Whether a job may send these reports now, with their bytes, and store them in memory.
    ///
    /// # Errors
    /// The exceeded limit with its value. The reports should be sent again later.
    pub(crate) fn admit(&self, job: JobId, reports: usize, bytes: usize, memory: usize) -> Result<Waiting, String> {
        let limits = &self.0.limits;
        let mut tenant = String::new();
        if let Some(mut entry) = self.0.jobs.get_mut(&job) {
            tenant.clone_from(&entry.given.tenant);
            let mut of = self.tenant(&tenant);
            if !entry.reports.has(reports, limits.reports()) {
                return Err(format!("a job may send {} in a second", limits.reports_per_second));
            }
            if !entry.bytes.has(bytes, limits.job_bytes()) {
                return Err(format!("a job may send {} bytes in a second", limits.job_bytes_per_second));
            }
            if !of.bytes.has(bytes, limits.tenant_bytes()) {
                return Err(format!("a tenant's jobs may send {} bytes in a second", limits.tenant_bytes_per_second));
            }
            let most = limits.waiting_bytes;
            if entry.waiting + memory > most || of.waiting + memory > 4 * most {
                return Err(format!("of one job {most} bytes may wait for the disk, of its tenant four times as many"));
            }
            entry.reports.take(reports);
            entry.bytes.take(bytes);
            of.bytes.take(bytes);
            entry.waiting += memory;
            of.waiting += memory;
        }
        Ok(Waiting { feed: self.clone(), job, tenant, bytes: memory })
    }

    /// Whether the program of a slot of this incarnation has said that it ends, and has closed its stream since.
    ///
    /// A program that says so without an address counts at once. The feed forgets it at a restart of the host. O(log
    /// slots).
    pub fn has_left(&self, job: JobId, incarnation: Incarnation, (role, index): (Role, u32)) -> bool {
        let slot = (incarnation, role, index);
        let entry = self.0.jobs.get(&job);
        entry.is_some_and(|entry| entry.left.contains(&slot) && !entry.addresses.contains_key(&slot))
    }

    /// Notes that the program of a slot ends. At most as many slots are kept as the job ever had. Those of other
    /// incarnations are ignored.
    pub(crate) fn leaves(&self, job: JobId, incarnation: Incarnation, (role, index): (Role, u32)) {
        let Some(mut entry) = self.0.jobs.get_mut(&job) else { return };
        if entry.given.incarnation == incarnation && entry.left.len() < entry.most_slots {
            entry.left.insert((incarnation, role, index));
        }
    }

    /// Adds a watcher. Its address is known while the returned guard exists.
    ///
    /// # Errors
    /// NOT_FOUND: the job was forgotten meanwhile. RESOURCE_EXHAUSTED: it has too many watchers.
    pub(crate) fn watch(&self, job: JobId, slot: SlotKey, address: String) -> Result<Watcher, Status> {
        let Some(mut entry) = self.0.jobs.get_mut(&job) else { return Err(self.absence(&job.0.to_string())) };
        let most = self.0.limits.watchers_per_job.min(entry.most_watchers());
        if entry.view.receiver_count() >= most {
            self.0.metrics.refused.with_label_values(&["limit"]).inc();
            return Err(Status::resource_exhausted(format!("{job} has {most} watchers, and that is the most")));
        }
        let mut tenant = self.tenant(&entry.given.tenant);
        let idle = (entry.most_slots == 0).then(|| entry.given.tenant.clone());
        if idle.is_some() {
            if tenant.idle_watchers >= IDLE_WATCHERS {
                self.0.metrics.refused.with_label_values(&["limit"]).inc();
                let problem =
                    format!("{IDLE_WATCHERS} watch jobs of {} that were given nothing yet", entry.given.tenant);
                return Err(Status::resource_exhausted(problem));
            }
            tenant.idle_watchers += 1;
        }
        let unread = tenant.unread.clone();
        drop(tenant);
        let stream = self.0.streams.fetch_add(1, Relaxed);
        let listens = !address.is_empty();
        if listens {
            entry.addresses.insert(slot, (address.clone(), stream));
            self.tell(job, &mut entry);
        }
        self.0.metrics.watchers.inc();
        let (view, turn) = (entry.view.subscribe(), entry.turn.clone());
        Ok(Watcher { feed: self.clone(), job, slot, stream, view, idle, address, turn, unread })
    }

    /// Publishes a changed address to a job's watchers: at once, or some time after the last publication.
    fn tell(&self, job: JobId, entry: &mut Entry) {
        let due = entry.published.map(|last| last + entry.pace());
        match (due.filter(|due| *due > Instant::now()), Handle::try_current()) {
            (Some(due), Ok(runtime)) => {
                if !std::mem::replace(&mut entry.stale, true) {
                    let feed = self.clone();
                    runtime.spawn(async move {
                        sleep_until(due).await;
                        if let Some(mut entry) = feed.0.jobs.get_mut(&job).filter(|entry| entry.stale) {
                            entry.publish(job);
                        }
                    });
                }
            }
            _ => entry.publish(job),
        }
    }

    /// Removes a watcher.
    pub(crate) fn unwatch(&self, watcher: &Watcher) {
        self.0.metrics.watchers.dec();
        if let Some(mut tenant) = watcher.idle.as_ref().and_then(|tenant| self.0.tenants.get_mut(tenant)) {
            tenant.idle_watchers = tenant.idle_watchers.saturating_sub(1);
        }
        let Some(mut entry) = self.0.jobs.get_mut(&watcher.job) else { return };
        if entry.addresses.get(&watcher.slot).is_some_and(|(_, stream)| *stream == watcher.stream) {
            entry.addresses.remove(&watcher.slot);
            self.tell(watcher.job, &mut entry);
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let shared = &self.feed.0;
        if let Some(mut entry) = shared.jobs.get_mut(&self.job) {
            entry.waiting = entry.waiting.saturating_sub(self.bytes);
        }
        if let Some(mut tenant) = shared.tenants.get_mut(&self.tenant) {
            tenant.waiting = tenant.waiting.saturating_sub(self.bytes);
        }
    }
}

impl Tenant {
    fn new(limits: &Limits) -> Self {
        Self {
            bytes: Bucket::full(limits.tenant_bytes()),
            waiting: 0,
            jobs: 0,
            unread: Arc::new(Semaphore::new(limits.unread_bytes)),
            idle_watchers: 0,
        }
    }
}

impl Entry {
    fn new(limits: &Limits) -> Self {
        Self {
            given: JobAssignment::default(),
            addresses: BTreeMap::new(),
            left: BTreeSet::new(),
            view: watch::Sender::new(Arc::default()),
            reports: Bucket::full(limits.reports()),
            bytes: Bucket::full(limits.job_bytes()),
            waiting: 0,
            most_slots: 0,
            published: None,
            stale: false,
            turn: Arc::new(Semaphore::new(1)),
        }
    }

    /// One program per slot, another one that replaces it, and an observer.
    fn most_watchers(&self) -> usize {
        (2 * self.most_slots + 16).max(64)
    }

    /// Minimum time between publications of addresses.
    fn pace(&self) -> Duration {
        let watchers = self.view.receiver_count() + MAKING;
        TELLING.saturating_mul(u32::try_from(watchers * self.given.slots.len()).unwrap_or(u32::MAX))
    }

    /// Publishes the assignment if it changed. O(slots), and the same for each watcher.
    fn publish(&mut self, job: JobId) {
        (self.published, self.stale) = (Some(Instant::now()), false);
        let given = &self.given;
        let peers = given.slots.iter().map(|slot| {
            let key = role_from_wire(slot.role).ok().map(|role| (given.incarnation, role, slot.index));
            (slot, key.and_then(|key| self.addresses.get(&key)).map_or("", |(address, _)| address))
        });
        let phase = match given.standing {
            Standing::Run => v1::AssignmentPhase::Run,
            Standing::Stop | Standing::Over => v1::AssignmentPhase::Stop,
        };
        let frame = v1::Assignment {
            job: job.0,
            incarnation: given.incarnation.0,
            revision: given.revision.0,
            peers: Vec::new(),
            phase: phase.into(),
            grace_ms: given.grace.0,
            last_seq: 0,
            work: given.work.clone(),
            batch: given.batch,
        };
        let (assignment, accepted) = (SharedAssignment::new(&frame, peers), given.accepted.clone());
        self.view.send_if_modified(|view| {
            let news = view.assignment != assignment;
            *view = Arc::new(View { assignment, incarnation: given.incarnation, accepted });
            news
        });
    }
}
