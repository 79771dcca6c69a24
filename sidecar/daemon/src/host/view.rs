//! Read access to the owner's state.

use std::sync::Arc;

use trainmaster_core::{Job, Scheduler, State};
use trainmaster_proto::{JOB_STATES, job_from_spec, job_state, job_status, mode_name, v1};

use super::owner::Owner;
use crate::{
    access::Scope,
    ended::{EndedJob, EndedJobs},
};

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
        }
    }

    /// The manager's latest message about an active job.
    pub(crate) fn message(&self, job: trainmaster_core::JobId) -> Option<&str> {
        self.owner.messages.get(&job).map(String::as_str)
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

impl Overview {
    /// Number of active jobs by state.
    pub(super) fn count(&self) -> [(&'static str, i64); JOB_STATES.len()] {
        let mut counts = JOB_STATES.map(|name| (name, 0));
        for job in self.state.jobs.values() {
            let name = job_state(&self.state, job);
            let (_, count) = counts.iter_mut().find(|(known, _)| *known == name).expect("all states are in the table");
            *count += 1;
        }
        counts
    }

    /// The list of the jobs that a caller sees. Ended jobs come first, then active ones in the order of submission.
    /// With `specs`, active jobs contain their specifications.
    pub(crate) fn list(&self, specs: bool, scope: &Scope) -> v1::ListReply {
        let ended = self.ended.iter().map(|job| &job.status).filter(|status| scope.sees_status(status)).cloned();
        let sees = |job: &&Arc<Job>| {
            scope.sees(&job.spec.tenant, job.external.as_ref().map(|external| external.cluster.as_str()))
        };
        let active =
            self.state.jobs.values().filter(sees).map(|job| v1::JobStatus {
                spec: specs.then(|| job_from_spec(&job.spec)),
                ..job_status(&self.state, job)
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
}
