//! What the daemon is told: answers in order, and of each job only its newest state.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use tokio::sync::mpsc;
use trainmaster_proto::v1::{Delta, Enacted, EnactedResult, Observation, ObservedJob, Snapshot, observation::Kind};

use super::{cluster::Cluster, fleet::Answer};

/// Changes within this time travel together.
const TOGETHER: Duration = Duration::from_millis(20);
/// Answers that wait for a daemon that doesn't read; it gets a snapshot when it comes back.
const MOST_ANSWERS: usize = 10_000;

/// Messages to the daemon, as far as it is there.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    stream: Option<mpsc::Sender<Observation>>,
    /// What the daemon knows.
    told: BTreeMap<u64, ObservedJob>,
    answers: VecDeque<Enacted>,
    /// Something changed; not to be sent before this.
    flush_at: Option<Duration>,
}

impl Outbox {
    /// A new stream: begins with everything there is.
    pub(crate) fn open(
        &mut self,
        stream: mpsc::Sender<Observation>,
        cluster: &Cluster,
        jobs: BTreeMap<u64, ObservedJob>,
    ) {
        self.told = jobs;
        self.answers.clear();
        self.flush_at = None;
        let snapshot = Snapshot {
            servers: cluster.servers().iter().map(|server| server.to_wire()).collect(),
            jobs: self.told.values().cloned().collect(),
            owns_queue: false,
        };
        // The stream is new, so it has room.
        let sent = stream.try_send(observation(cluster, Kind::Snapshot(snapshot)));
        self.stream = sent.is_ok().then_some(stream);
    }

    /// The daemon is away.
    pub(crate) fn close(&mut self) {
        *self = Self::default();
    }

    /// Answers the plan of a decision.
    pub(crate) fn answer(&mut self, decision: u64, answers: Vec<Answer>) {
        for Answer { job, refused } in answers {
            if let Some(cause) = &refused {
                tracing::warn!(job, decision, cause, "refused a job's plan");
            }
            let result = if refused.is_some() { EnactedResult::Refused } else { EnactedResult::Accepted };
            self.answers.push_back(Enacted {
                decision,
                job,
                result: result.into(),
                cause: refused.unwrap_or_default(),
                retry_after_ms: 0,
            });
        }
        let beyond = self.answers.len().saturating_sub(MOST_ANSWERS);
        self.answers.drain(..beyond);
    }

    /// Something may have changed.
    pub(crate) fn touch(&mut self, now: Duration) {
        self.flush_at.get_or_insert(now.saturating_add(TOGETHER));
    }

    /// When [`flush`](Self::flush) is next of use.
    pub(crate) fn due(&self) -> Option<Duration> {
        self.flush_at
    }

    /// Sends what is due. Returns whether the daemon now knows the state of all jobs, or needn't.
    pub(crate) fn flush(
        &mut self,
        now: Duration,
        cluster: &Cluster,
        jobs: impl FnOnce() -> BTreeMap<u64, ObservedJob>,
    ) -> bool {
        if self.flush_at.is_none_or(|at| now < at) {
            return false;
        }
        self.flush_at = None;
        let Some(stream) = &self.stream else { return true };
        // A daemon that reads slowly gets fewer, larger messages.
        let full = |outbox: &mut Self| {
            outbox.flush_at = Some(now.saturating_add(TOGETHER));
            false
        };
        while let Some(answer) = self.answers.front() {
            match stream.try_send(observation(cluster, Kind::Enacted(answer.clone()))) {
                Ok(()) => self.answers.pop_front(),
                Err(_) => return full(self),
            };
        }
        let Ok(room) = stream.try_reserve() else { return full(self) };
        let jobs = jobs();
        let changed: BTreeMap<u64, ObservedJob> = jobs
            .iter()
            .filter(|(id, job)| self.told.get(id) != Some(job))
            .map(|(id, job)| (*id, job.clone()))
            .collect();
        if !changed.is_empty() {
            let delta = Delta { jobs: changed.values().cloned().collect(), ..Delta::default() };
            room.send(observation(cluster, Kind::Delta(delta)));
        }
        self.told.retain(|id, _| jobs.contains_key(id));
        self.told.extend(changed);
        true
    }
}

fn observation(cluster: &Cluster, kind: Kind) -> Observation {
    Observation { manager: cluster.name().to_owned(), kind: Some(kind) }
}
