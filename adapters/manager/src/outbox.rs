//! Messages to the daemon. Answers keep their order. For each server and job only the newest state is sent.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::sync::mpsc;
use trainmaster_proto::v1::{
    self, Delta, Enacted, EnactedResult, Observation, ObservedJob, Server, ServerUse, Utilisation, observation::Kind,
};

/// Changes within this time are sent in one message.
const TOGETHER: Duration = Duration::from_millis(20);
/// Maximum number of waiting answers while the daemon doesn't read. It gets a snapshot when it attaches again.
const MOST_ANSWERS: usize = 10_000;

/// The answer to a job's plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanAnswer {
    /// The job's number.
    pub job: u64,
    /// Why the plan can't be carried out. `None`: it can.
    pub refused: Option<String>,
    /// When the scheduler can ask again. `None`: the scheduler chooses, with increasing waits.
    pub retry_after: Option<Duration>,
}

impl PlanAnswer {
    /// The plan is carried out.
    pub fn accepted(job: u64) -> Self {
        Self { job, refused: None, retry_after: None }
    }

    /// The plan can't be carried out, with the cause.
    pub fn refused(job: u64, cause: String) -> Self {
        Self { job, refused: Some(cause), retry_after: None }
    }
}

/// The state of all servers and jobs, as an adapter sees them.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// By name. If it is the same object as last time, the comparison is skipped.
    pub servers: Arc<BTreeMap<String, Server>>,
    /// By number.
    pub jobs: BTreeMap<u64, ObservedJob>,
}

/// Messages to the daemon. They are dropped while it isn't connected.
#[derive(Debug)]
pub struct Outbox {
    /// The manager's name.
    manager: String,
    /// Whether any submitter can state which of the manager's own jobs a submission is.
    takes_submissions: bool,
    stream: Option<mpsc::Sender<Observation>>,
    /// The state that the daemon knows.
    told: Snapshot,
    answers: VecDeque<Enacted>,
    /// Time of the next message, if something changed.
    flush_at: Option<Duration>,
}

impl Outbox {
    /// Creates a manager's outbox. With `takes_submissions`, any submitter can state which of the manager's own jobs a
    /// submission is.
    pub fn new(manager: String, takes_submissions: bool) -> Self {
        let told = Snapshot::default();
        Self { manager, takes_submissions, stream: None, told, answers: VecDeque::new(), flush_at: None }
    }

    /// Starts a new stream with a complete snapshot.
    pub fn open(&mut self, stream: mpsc::Sender<Observation>, snapshot: Snapshot) {
        self.answers.clear();
        self.flush_at = None;
        // The stream is new, so it has room.
        let sent = stream.try_send(self.whole(&snapshot));
        self.told = snapshot;
        self.stream = sent.is_ok().then_some(stream);
    }

    /// The connection to the daemon is lost.
    pub fn close(&mut self) {
        *self = Self::new(std::mem::take(&mut self.manager), self.takes_submissions);
    }

    /// Answers the plan of a decision.
    pub fn answer(&mut self, decision: u64, answers: Vec<PlanAnswer>) {
        for PlanAnswer { job, refused, retry_after } in answers {
            if let Some(cause) = &refused {
                tracing::warn!(job, decision, cause, "refused a job's plan");
            }
            let result = if refused.is_some() { EnactedResult::Refused } else { EnactedResult::Accepted };
            self.answers.push_back(Enacted {
                decision,
                job,
                result: result.into(),
                cause: refused.unwrap_or_default(),
                retry_after_ms: retry_after.map_or(0, |wait| wait.as_millis() as i64),
            });
        }
        let beyond = self.answers.len().saturating_sub(MOST_ANSWERS);
        self.answers.drain(..beyond);
    }

    /// Sends measured loads of servers, unless the list is empty. Returns false if they couldn't be sent. They aren't
    /// kept, because the next measurement is more useful.
    pub fn measured(&self, servers: Vec<ServerUse>) -> bool {
        let heard = |stream: &mpsc::Sender<Observation>| {
            stream.try_send(self.observation(Kind::Utilisation(Utilisation { servers: servers.clone() }))).is_ok()
        };
        servers.is_empty() || self.stream.as_ref().is_some_and(heard)
    }

    /// Notes that something may have changed.
    pub fn touch(&mut self, now: Duration) {
        self.flush_at.get_or_insert(now.saturating_add(TOGETHER));
    }

    /// The time of the next [`flush`](Self::flush).
    pub fn due(&self) -> Option<Duration> {
        self.flush_at
    }

    /// Sends waiting answers and changes, if they are due. Returns whether the daemon now knows the state of all jobs,
    /// or isn't connected. Cost: O(jobs), plus O(servers) if the servers changed.
    pub fn flush(&mut self, now: Duration, snapshot: impl FnOnce() -> Snapshot) -> bool {
        if self.flush_at.is_none_or(|at| now < at) {
            return false;
        }
        self.flush_at = None;
        let Some(stream) = &self.stream else { return true };
        // A slow daemon gets fewer, larger messages.
        while let Some(answer) = self.answers.front() {
            match stream.try_send(self.observation(Kind::Enacted(answer.clone()))) {
                Ok(()) => self.answers.pop_front(),
                Err(_) => return self.full(now),
            };
        }
        let Ok(room) = stream.try_reserve() else { return self.full(now) };
        let snapshot = snapshot();
        let delta = self.delta(&snapshot);
        if delta != Delta::default() {
            room.send(self.observation(Kind::Delta(delta)));
        }
        self.told = snapshot;
        true
    }

    fn full(&mut self, now: Duration) -> bool {
        self.flush_at = Some(now.saturating_add(TOGETHER));
        false
    }

    fn delta(&self, snapshot: &Snapshot) -> Delta {
        let mut delta = Delta { jobs: changed(&self.told.jobs, &snapshot.jobs), ..Delta::default() };
        if !Arc::ptr_eq(&self.told.servers, &snapshot.servers) {
            delta.servers = changed(&self.told.servers, &snapshot.servers);
            let left = self.told.servers.keys().filter(|name| !snapshot.servers.contains_key(*name));
            delta.servers_left = left.cloned().collect();
        }
        delta
    }

    fn whole(&self, snapshot: &Snapshot) -> Observation {
        self.observation(Kind::Snapshot(v1::Snapshot {
            servers: snapshot.servers.values().cloned().collect(),
            jobs: snapshot.jobs.values().cloned().collect(),
            owns_queue: false,
            takes_submissions: self.takes_submissions,
        }))
    }

    fn observation(&self, kind: Kind) -> Observation {
        Observation { manager: self.manager.clone(), kind: Some(kind) }
    }
}

fn changed<K: Ord, V: Clone + PartialEq>(told: &BTreeMap<K, V>, now: &BTreeMap<K, V>) -> Vec<V> {
    now.iter().filter(|(key, value)| told.get(key) != Some(value)).map(|(_, value)| value.clone()).collect()
}
