//! Read access to the owner's state.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use trainmaster_core::{Job, JobId, Role, Scheduler, ServerId, State, Verdict, text::shown};
use trainmaster_proto::{JOB_STATES, job_from_spec, job_state, job_status, mode_name, v1};

use super::owner::Owner;
use crate::{
    access::Scope,
    ended::{EndedJob, EndedJobs},
};

/// Most characters of a manager's message in a list. `explain` has all of it.
const LONGEST_IN_LISTS: usize = 200;

/// The current scheduler and the data beside it.
pub(crate) struct View<'a> {
    pub(crate) scheduler: &'a Scheduler,
    pub(crate) ended: &'a EndedJobs,
    pub(crate) settled: (u64, [u8; 32]),
    pub(crate) journal_error: Option<String>,
    owner: &'a Owner,
    now: i64,
}

/// A copy for lists that another thread makes.
pub(crate) struct Overview {
    state: State,
    ended: Vec<Arc<EndedJob>>,
    decision: u64,
    next_decision: Option<i64>,
    fallback: String,
    /// The managers' latest messages about jobs that should run and have no slots, as after a failure.
    said: HashMap<JobId, String>,
}

impl Owner {
    pub(super) fn view(&mut self) -> View<'_> {
        let now = self.clock.now().0;
        View {
            scheduler: &self.scheduler,
            ended: &self.ended,
            settled: (self.settled.0.0, self.settled.1),
            journal_error: self.journal.error().map(ToString::to_string),
            owner: self,
            now,
        }
    }
}

impl View<'_> {
    /// A copy for lists.
    pub(crate) fn overview(&self, with_ended: bool) -> Overview {
        Overview {
            state: self.scheduler.state().clone(),
            ended: if with_ended { self.ended.iter().cloned().collect() } else { Vec::new() },
            decision: self.settled.0,
            next_decision: self.next_decision(),
            fallback: self.fallback(),
            said: self.said(),
        }
    }

    /// O(messages).
    fn said(&self) -> HashMap<JobId, String> {
        let state = self.scheduler.state();
        let about = |id: &JobId| {
            let job = state.job(*id)?;
            let starts = job.seen.allocation.is_none() && matches!(state.effective(job), Verdict::Run(_));
            let (text, _) = self.owner.message(job).filter(|(_, present)| starts && *present)?;
            Some((*id, shown(text, LONGEST_IN_LISTS).into()))
        };
        self.owner.messages.keys().filter_map(about).collect()
    }

    /// The manager's latest message about an active job.
    pub(crate) fn message(&self, job: &Job) -> Option<&str> {
        self.owner.message(job).map(|(text, _)| text)
    }

    /// Attached managers.
    pub(crate) fn managers(&self) -> Vec<String> {
        self.owner.sessions.keys().cloned().collect()
    }

    /// The current time.
    pub(crate) fn now(&self) -> trainmaster_core::Time {
        trainmaster_core::Time(self.now)
    }

    /// Milliseconds since the last decision.
    pub(crate) fn decision_age(&self) -> Option<i64> {
        self.scheduler.decided_at().map(|at| self.now - at.0)
    }

    /// The engine that decides while the chosen one fails. Empty: none.
    pub(crate) fn fallback(&self) -> String {
        if self.scheduler.is_fallback() { self.scheduler.engine_name().to_owned() } else { String::new() }
    }

    /// The time of the next decision, if one is due.
    pub(crate) fn next_decision(&self) -> Option<i64> {
        self.scheduler.due().map(|at| at.0)
    }

    /// The answer about a job that isn't active or isn't the caller's.
    pub(crate) fn missing(&self, job: &str, scope: &Scope) -> String {
        self.owner.missing(job, scope)
    }
}

/// Number of active jobs by state.
pub(super) fn count(state: &State) -> [(&'static str, i64); JOB_STATES.len()] {
    let mut counts = JOB_STATES.map(|name| (name, 0));
    for job in state.jobs.values() {
        let name = job_state(state, job);
        let (_, count) = counts.iter_mut().find(|(known, _)| *known == name).expect("all states are in the table");
        *count += 1;
    }
    counts
}

impl Overview {
    /// The list of the jobs that a caller sees. Ended jobs come first, then active ones in the order of submission.
    /// With `specs`, active jobs contain their specifications.
    pub(crate) fn list(&self, specs: bool, scope: &Scope) -> v1::ListReply {
        let ended = self.ended.iter().map(|job| &job.status).filter(|status| scope.sees_status(status)).cloned();
        let active = self.state.jobs.values().filter(|job| scope.sees_job(job)).map(|job| {
            let mut status = job_status(&self.state, job);
            status.spec = specs.then(|| job_from_spec(&job.spec));
            if let Some(text) = self.said.get(&job.id) {
                status.reason.clone_from(text);
            }
            status
        });
        v1::ListReply {
            jobs: ended.chain(active).collect(),
            decision: self.decision,
            engine: self.state.settings.engine.clone(),
            mode: mode_name(self.state.mode).to_owned(),
            next_decision_ms: self.next_decision,
            fallback: self.fallback.clone(),
        }
    }

    /// The servers, with the jobs there that a caller sees. O(servers + slots, each with the log of the servers).
    pub(crate) fn servers(&self, scope: &Scope) -> v1::ServersReply {
        let mut present: BTreeMap<ServerId, v1::ServerStatus> = self
            .state
            .present_servers()
            .map(|server| {
                let room = self.state.server_room(server.id);
                let status = v1::ServerStatus {
                    name: server.name.to_string(),
                    manager: self.state.manager_of(server.id).unwrap_or_default().to_owned(),
                    draining: server.draining,
                    capacity: room.capacity.into_iter().collect(),
                    foreign: room.foreign.into_iter().collect(),
                    planned: room.planned.into_iter().collect(),
                    free: room.free.into_iter().collect(),
                    labels: server.labels.iter().map(|(key, value)| (key.clone(), value.clone())).collect(),
                    ..v1::ServerStatus::default()
                };
                (server.id, status)
            })
            .collect();
        for job in self.state.jobs.values() {
            let effective = self.state.effective(job);
            let given = match &effective {
                Verdict::Run(allocation) => Some(allocation),
                _ => job.seen.allocation.as_ref(),
            };
            let sees = scope.sees_job(job);
            for slot in given.into_iter().flat_map(|allocation| allocation.slots()) {
                let Some(server) = present.get_mut(&slot.server) else { continue };
                if !sees {
                    server.other_slots += 1;
                    continue;
                }
                if server.jobs.last().is_none_or(|last| last.job != job.id.0) {
                    let name = job.spec.name.clone();
                    server.jobs.push(v1::ServerJob { job: job.id.0, name, workers: 0, servers: 0 });
                }
                let there = server.jobs.last_mut().expect("it was added");
                match slot.role {
                    Role::Worker => there.workers += 1,
                    Role::Server => there.servers += 1,
                }
            }
        }
        v1::ServersReply { servers: present.into_values().collect() }
    }
}
