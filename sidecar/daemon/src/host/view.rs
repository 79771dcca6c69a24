//! Read access to the owner's state.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use trainmaster_core::{Job, JobId, Role, Scheduler, Server, ServerId, State, Time, Verdict, text::shown};
use trainmaster_proto::{CRASHING, job_from_spec, job_state, job_status, mode_name, v1};

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
    pub(super) state: State,
    ended: Vec<Arc<EndedJob>>,
    decision: u64,
    next_decision: Option<i64>,
    fallback: String,
    /// What the managers say of jobs that should run and don't, or failed.
    remarks: HashMap<JobId, Remark>,
}

/// What a manager says of a job that should run.
struct Remark {
    text: String,
    failures: u32,
    failed: Option<Time>,
    /// Whether nothing of it runs.
    is_down: bool,
}

impl Remark {
    /// After its first failure, a slot is just started again.
    fn is_crashing(&self) -> bool {
        self.failures > 1
    }
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
            remarks: self.remarks(),
        }
    }

    /// O(messages).
    fn remarks(&self) -> HashMap<JobId, Remark> {
        let about = |id: &JobId| Some((*id, self.remark(self.scheduler.state().job(*id)?)?));
        self.owner.messages.keys().filter_map(about).collect()
    }

    fn remark(&self, job: &Job) -> Option<Remark> {
        let (told, _) = self.owner.message(job).filter(|(_, is_present)| *is_present)?;
        let is_down = job.seen.allocation.is_none();
        let is_worth_it =
            (is_down || told.failures > 0) && matches!(self.scheduler.state().effective(job), Verdict::Run(_));
        is_worth_it.then(|| {
            let text = shown(&told.text, LONGEST_IN_LISTS).into();
            Remark { text, failures: told.failures, failed: told.failed, is_down }
        })
    }

    /// The state of an active job, as lists name it.
    pub(crate) fn job_state(&self, job: &Job) -> &'static str {
        named_state(&self.scheduler.state().effective(job), job, self.remark(job).as_ref())
    }

    /// The manager's latest message about an active job.
    pub(crate) fn message(&self, job: &Job) -> Option<&str> {
        self.owner.message(job).map(|(told, _)| &*told.text).filter(|text| !text.is_empty())
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

fn named_state(verdict: &Verdict, job: &Job, remark: Option<&Remark>) -> &'static str {
    if remark.is_some_and(Remark::is_crashing) { CRASHING } else { job_state(verdict, job) }
}

impl Overview {
    /// The list of the jobs that a caller sees. Ended jobs come first, then active ones in the order of submission.
    /// With `specs`, active jobs contain their specifications.
    pub(crate) fn list(&self, specs: bool, scope: &Scope) -> v1::ListReply {
        let ended = self.ended.iter().map(|job| &job.status).filter(|status| scope.sees_status(status)).cloned();
        let active = self
            .state
            .jobs
            .values()
            .filter(|job| scope.sees_job(job))
            .map(|job| v1::JobStatus { spec: specs.then(|| job_from_spec(&job.spec)), ..self.status(job) });
        v1::ListReply { jobs: ended.chain(active).collect(), ..self.shell() }
    }

    /// Some jobs by number or name, each once, as far as a caller sees them. O(names · log jobs + ended jobs).
    pub(crate) fn some(&self, names: &[String], scope: &Scope) -> v1::ListReply {
        let ended = || self.ended.iter().map(|job| &job.status).filter(|status| scope.sees_status(status));
        let by_number: HashMap<u64, &v1::JobStatus> = ended().map(|status| (status.job, status)).collect();
        let mut by_name: HashMap<&str, &v1::JobStatus> = HashMap::new();
        for status in ended() {
            let newest = by_name.entry(&status.name).or_insert(status);
            if status.job > newest.job {
                *newest = status;
            }
        }
        let mut found = BTreeMap::new();
        for name in names {
            if let Some(job) = self.state.find_job(name).filter(|job| scope.sees_job(job)) {
                found.entry(job.id.0).or_insert_with(|| self.status(job));
                continue;
            }
            let number = name.parse().ok().and_then(|number: u64| by_number.get(&number));
            if let Some(&status) = number.or_else(|| by_name.get(name.as_str())) {
                found.entry(status.job).or_insert_with(|| status.clone());
            }
        }
        v1::ListReply { jobs: found.into_values().collect(), ..self.shell() }
    }

    /// The state of a job by its verdict in force.
    pub(super) fn job_state(&self, verdict: &Verdict, job: &Job) -> &'static str {
        named_state(verdict, job, self.remarks.get(&job.id))
    }

    fn status(&self, job: &Job) -> v1::JobStatus {
        let mut status = job_status(&self.state, job);
        if let Some(remark) = self.remarks.get(&job.id) {
            let is_worse = remark.is_down || remark.is_crashing() || status.reason.is_empty();
            if is_worse && !remark.text.is_empty() {
                status.reason.clone_from(&remark.text);
            }
            if remark.failures > 0 {
                (status.failures, status.failed_ms) = (remark.failures, remark.failed.map(|at| at.0));
            }
            if remark.is_crashing() {
                CRASHING.clone_into(&mut status.state);
            }
        }
        status
    }

    /// A list without jobs.
    fn shell(&self) -> v1::ListReply {
        v1::ListReply {
            jobs: Vec::new(),
            decision: self.decision,
            engine: self.state.settings.engine.clone(),
            mode: mode_name(self.state.mode).to_owned(),
            next_decision_ms: self.next_decision,
            fallback: self.fallback.clone(),
        }
    }

    /// The servers, with the jobs there that a caller sees. O(servers · resource types + slots · log servers).
    pub(crate) fn servers(&self, scope: &Scope) -> v1::ServersReply {
        let status = |server: &Arc<Server>| {
            let room = self.state.server_room(server.id);
            let status = v1::ServerStatus {
                name: server.name.to_string(),
                manager: self.state.manager_of(server.id).unwrap_or_default().to_owned(),
                draining: server.draining,
                capacity: room.capacity.into_iter().collect(),
                foreign: room.foreign.into_iter().collect(),
                used: room.used.into_iter().collect(),
                free: room.free.into_iter().collect(),
                labels: server.labels.iter().map(|(key, value)| (key.clone(), value.clone())).collect(),
                ..v1::ServerStatus::default()
            };
            (server.id, status)
        };
        let mut servers: BTreeMap<ServerId, v1::ServerStatus> = self.state.present_servers().map(status).collect();
        let active = self.state.jobs.values().map(|job| (job, Some(self.state.effective(job))));
        // Jobs that have ended, but not all their programs.
        let leaving = self.state.leaving_jobs().values().map(|job| (job, None));
        for (job, verdict) in active.chain(leaving) {
            let planned = match &verdict {
                Some(Verdict::Run(allocation)) => Some(allocation),
                _ => None,
            };
            // Slots stay charged until their release is observed.
            let mut there: BTreeMap<ServerId, [u32; 2]> = BTreeMap::new();
            for allocation in [planned, job.seen.allocation.as_ref()].into_iter().flatten() {
                let mut counts: BTreeMap<ServerId, [u32; 2]> = BTreeMap::new();
                for slot in allocation.slots() {
                    counts.entry(slot.server).or_default()[usize::from(slot.role == Role::Server)] += 1;
                }
                for (server, counts) in counts {
                    let most = there.entry(server).or_default();
                    *most = [most[0].max(counts[0]), most[1].max(counts[1])];
                }
            }
            for (server, [workers, parameter_servers]) in there {
                let Some(server) = servers.get_mut(&server) else { continue };
                if scope.sees_job(job) {
                    let name = job.spec.name.clone();
                    server.jobs.push(v1::ServerJob { job: job.id.0, name, workers, servers: parameter_servers });
                } else {
                    server.other_slots += workers + parameter_servers;
                }
            }
        }
        v1::ServersReply { servers: servers.into_values().collect() }
    }
}
