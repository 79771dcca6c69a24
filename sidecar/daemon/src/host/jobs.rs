//! Commands on jobs, and the end of jobs.

use std::sync::Arc;

use trainmaster_core::{End, Event, EventError, Job, JobId, Mode, Time, Verdict, explain::Topic, text::shown};
use trainmaster_feed::{JobAssignment, Standing};
use trainmaster_host::Outcome;
use trainmaster_proto::{Explained, end_name, job_status, mode_name, v1};

use super::{
    answers::{HostError, Reply, Submission, Submitted, Unwritten},
    journal::Effect,
    owner::{Owner, Told},
};
use crate::{
    access::{Role, Scope, Who},
    ended::EndedJob,
    store::Audit,
};

impl Owner {
    pub(super) fn submit(&mut self, at: Time, job: Submission, who: Who, reply: Reply<Submitted>) {
        if self.journal.error().is_some() {
            return self.unavailable(reply);
        }
        let Submission { spec, external, token } = job;
        if let Some(external) = &external {
            // Only the manager may name its own jobs.
            let takes = || self.streams.get(&external.cluster).is_some_and(|open| open.takes_submissions);
            if matches!(who.role, Role::Submit { .. }) && !takes() {
                let problem = format!(
                    "external.cluster: {:?} is no manager that is attached and lets others say what its jobs are",
                    external.cluster
                );
                let _ = reply.send(Err(HostError::Denied(problem)));
                return;
            }
            // Only the manager knows the owner of its job, so a tenant that claims it doesn't block others.
            let is_manager = matches!(who.role, Role::Manager { .. });
            let is_it = |tenant: &str| is_manager || spec.tenant == tenant;
            // The submitter may have missed the answer, or may have restarted.
            let same = |job: &&Arc<Job>| job.external.as_ref() == Some(external) && is_it(&job.spec.tenant);
            if let Some(job) = self.scheduler.state().jobs.values().find(same) {
                let there = Submitted { job: job.id, is_new: false };
                return self.reply_later(reply, there);
            }
            if let Some(ended) = self.ended.of(external, is_it) {
                let _ = reply.send(Err(HostError::Over(over(ended))));
                return;
            }
        }
        if let Some(full) = self.full(&who, &spec.tenant, external.is_some()) {
            let _ = reply.send(Err(HostError::Full(full)));
            return;
        }
        let name = spec.name.clone();
        let event = Event::JobSubmitted { spec, external, token_hash: Some(token.hash()) };
        if let Err(error) = self.apply(at, event) {
            let _ = reply.send(Err(error.into()));
            return;
        }
        self.metrics.submitted.inc();
        let job = self.scheduler.state().find_job(&name).expect("just submitted").id;
        self.secrets.insert(job, token.reveal().to_owned());
        self.journal.beside().secrets.push((job, Some(token.reveal().to_owned())));
        self.audit(at, &who, format!("submit {job} ({name})"));
        self.journal.then(Effect::Submitted(job, reply));
    }

    /// The reason against another job, if any. O(log tenants).
    fn full(&self, who: &Who, tenant: &str, is_external: bool) -> Option<String> {
        let (state, limits) = (self.scheduler.state(), self.options.jobs);
        let (active, leaving) = (state.jobs.len(), state.leaving_jobs().len());
        if active >= limits.all {
            return Some(format!("there are {active} jobs, and that is the most (limits.jobs)"));
        }
        // Jobs count until their manager reports that their slots are gone.
        let ended = |count| format!("{count} jobs that have ended still have slots, as their managers say");
        if active + leaving >= 2 * limits.all {
            return Some(format!("{}; with {active} others that is the most (twice limits.jobs)", ended(leaving)));
        }
        if let Role::Manager { name: Some(name) } = &who.role {
            let most = (limits.all / 2).max(1);
            if state.count_from(name) >= most {
                let problem = "that is the most, with those that have ended and still have slots (half of limits.jobs)";
                return Some(format!("manager {name} has {most} jobs, and {problem}"));
            }
        }
        // Jobs of managers don't count against a tenant's own submissions.
        let count = state.count_of(tenant);
        let (active, leaving) = match is_external {
            true => (count.external, count.external_leaving),
            false => (count.own, count.own_leaving),
        };
        if active >= limits.tenant {
            let which = if is_external { " from managers" } else { "" };
            let limit = "that is the most (limits.jobs_per_tenant)";
            return Some(format!("tenant {tenant} has {active} jobs{which}, and {limit}"));
        }
        if active + leaving >= 2 * limits.tenant {
            let ended = ended(leaving);
            return Some(format!("of tenant {tenant} {ended}; that is the most (twice limits.jobs_per_tenant)"));
        }
        None
    }

    /// Completes a submission that is on disk, or undoes it. The submitter retries with the same name or origin.
    pub(super) fn promise(&mut self, job: JobId, reply: Reply<Submitted>, outcome: &Outcome) {
        if let Err(error) = outcome {
            let at = self.clock.now();
            let message = "its submission could not be written down".to_owned();
            self.retract(at, job, message);
            let _ = reply.send(Err(HostError::Unavailable(error.to_string())));
            return;
        }
        let _ = reply.send(Ok(Submitted { job, is_new: true }));
    }

    /// A later submission with the same origin is a new job.
    fn retract(&mut self, at: Time, job: JobId, message: String) {
        let ended = self.last_words(at, job, End::Cancelled, Some(message));
        if self.apply(at, Event::JobEnded { job, end: End::Cancelled }).is_ok()
            && let Some(mut ended) = ended
        {
            ended.status.external = None;
            self.keep_ended(ended);
        }
    }

    pub(super) fn cancel(&mut self, at: Time, job: &str, who: Who, reply: Reply<Unwritten>) {
        let Some((id, name, reply)) = self.named(job, &who, reply) else { return };
        match self.end_job(at, id, End::Cancelled, Some(format!("cancelled from {}", who.words))) {
            Ok(()) => {
                self.audit(at, &who, format!("cancel {id} ({name})"));
                self.reply_anyway(reply, |unwritten| unwritten);
            }
            Err(error) => drop(reply.send(Err(error.into()))),
        }
    }

    pub(super) fn hold(&mut self, at: Time, job: &str, held: bool, who: Who, reply: Reply<Unwritten>) {
        let Some((id, name, reply)) = self.named(job, &who, reply) else { return };
        match self.apply(at, Event::JobHeld { job: id, held }) {
            Ok(()) => {
                self.audit(at, &who, format!("{} {id} ({name})", if held { "pause" } else { "resume" }));
                self.reply_anyway(reply, |unwritten| unwritten);
            }
            Err(error) => drop(reply.send(Err(error.into()))),
        }
    }

    pub(super) fn set_mode(&mut self, at: Time, mode: Mode, who: Who, reply: Reply<(Mode, Unwritten)>) {
        let previous = self.scheduler.state().mode;
        match self.apply(at, Event::ModeSet(mode)) {
            Ok(()) => {
                tracing::warn!(mode = mode_name(mode), who = &*who.words, "the mode was set");
                self.audit(at, &who, format!("mode {} instead of {}", mode_name(mode), mode_name(previous)));
                self.reply_anyway(reply, move |unwritten| (previous, unwritten));
            }
            Err(error) => drop(reply.send(Err(error.into()))),
        }
    }

    /// The active job with this name or number, if the caller sees it. Otherwise the answer is sent.
    fn named<T>(&self, job: &str, who: &Who, reply: Reply<T>) -> Option<(JobId, String, Reply<T>)> {
        let scope = who.scope();
        if let Some(found) = self.scheduler.state().find_job(job)
            && scope.sees_job(found)
        {
            return Some((found.id, found.spec.name.clone(), reply));
        }
        let _ = reply.send(Err(HostError::Missing(self.missing(job, &scope))));
        None
    }

    /// The answer about a job that isn't active or isn't the caller's.
    pub(super) fn missing(&self, job: &str, scope: &Scope) -> String {
        match self.ended.find(job).filter(|ended| scope.sees_status(&ended.status)) {
            Some(ended) => over(ended),
            // The answer contains only the beginning of a long name.
            None => format!("there is no job \"{}\"{}", shown(job, 128), scope.words()),
        }
    }

    fn unavailable<T>(&self, reply: Reply<T>) {
        let error = self.journal.error().map(ToString::to_string).unwrap_or_default();
        let _ = reply.send(Err(HostError::Unavailable(error)));
    }

    fn reply_later<T: Send + 'static>(&mut self, reply: Reply<T>, answer: T) {
        self.journal.then(Effect::Reply(Box::new(move |outcome| {
            let _ = reply.send(outcome.map(|()| answer).map_err(|error| HostError::Unavailable(error.to_owned())));
        })));
    }

    /// Answers a command that always takes effect: once it is on disk, or at once with the reason why it isn't.
    fn reply_anyway<T: Send + 'static>(
        &mut self,
        reply: Reply<T>,
        answer: impl FnOnce(Unwritten) -> T + Send + 'static,
    ) {
        self.journal.then(Effect::Reply(Box::new(move |outcome| {
            let _ = reply.send(Ok(answer(outcome.err().map(ToOwned::to_owned))));
        })));
    }

    pub(super) fn audit(&mut self, at: Time, who: &Who, what: String) {
        tracing::info!(who = &*who.words, what, "audit");
        self.journal.beside().audits.push(Audit { at: at.0, who: who.words.to_string(), what });
    }

    /// Ends a job: keeps its last status, tells managers and programs, and forgets its token.
    pub(super) fn end_job(
        &mut self,
        at: Time,
        job: JobId,
        end: End,
        message: Option<String>,
    ) -> Result<(), EventError> {
        let ended = self.last_words(at, job, end, message);
        let last = self.scheduler.state().job(job).filter(|_| end == End::Completed).cloned();
        self.apply(at, Event::JobEnded { job, end })?;
        if let Some(last) = last {
            self.predictions.completed(at, &last);
        }
        if let Some(ended) = ended {
            self.keep_ended(ended);
        }
        Ok(())
    }

    /// The manager's latest message about an active job, and whether it is about the present incarnation.
    pub(super) fn message(&self, job: &Job) -> Option<(&Told, bool)> {
        let told = self.messages.get(&job.id)?;
        Some((told, told.incarnation == job.issued.incarnation))
    }

    /// The record of an active job for the time after its end.
    pub(super) fn last_words(&self, at: Time, job: JobId, end: End, message: Option<String>) -> Option<EndedJob> {
        let state = self.scheduler.state();
        let found = state.job(job)?;
        let mut status = job_status(state, found);
        end_name(end).clone_into(&mut status.state);
        if let Some((told, true)) = self.message(found).filter(|(told, _)| told.failures > 0) {
            (status.failures, status.failed_ms) = (told.failures, told.failed.map(|at| at.0));
        }
        // A failure can be told of an incarnation that the next one was about to replace.
        let said = || self.message(found).filter(|(_, present)| *present || end == End::Failed);
        status.reason = message.or_else(|| said().map(|(told, _)| told.text.clone())).unwrap_or_default();
        if let Verdict::Stop(reason) = &found.verdict {
            status.reason = reason.describe_to(state, &found.spec.tenant);
        }
        status.ended_ms = Some(at.0);
        status.remaining_ms = None;
        let mut explanation = self.scheduler.explain(at, job)?;
        // No decision follows, and no more losses come.
        let predicts = found.learnt.fits.convergence.is_some();
        explanation.findings.retain(|finding| match finding.topic {
            Topic::Decision | Topic::Stability => false,
            Topic::Convergence => predicts,
            _ => true,
        });
        let lines = explanation.findings.iter().map(|finding| finding.text.clone()).collect();
        let json = serde_json::to_string(&Explained { state: &status.state, explanation });
        let json = json.expect("an explanation is plain data");
        Some(EndedJob { status, lines, json, token_hash: found.token_hash })
    }

    /// Follows the end of a job in the core.
    pub(super) fn keep_ended(&mut self, ended: EndedJob) {
        let job = ended.id();
        let (name, state, reason) = (&ended.status.name, &ended.status.state, &ended.status.reason);
        tracing::info!(name, state, reason, "a job ended");
        self.metrics.ended(&ended.status);
        self.messages.remove(&job);
        self.predictions.forget(job);
        self.stopping.remove(&job);
        self.secrets.remove(&job);
        self.over.push(v1::JobPlan {
            job: job.0,
            name: name.clone(),
            tenant: ended.status.tenant.clone(),
            action: v1::Action::Stop.into(),
            incarnation: ended.status.incarnation,
            revision: ended.status.revision,
            reason: format!("{state}: {reason}"),
            grace_ms: self.options.grace.0,
            external: ended.status.external.clone(),
            ended: state.clone(),
            ..v1::JobPlan::default()
        });
        let ended = Arc::new(ended);
        let forgotten = self.ended.add(ended.clone());
        let beside = self.journal.beside();
        beside.secrets.push((job, None));
        beside.ended.push(ended);
        beside.forgotten.extend(forgotten);
    }

    /// The last assignment of an ended job's programs.
    pub(super) fn last_assignment(&self, ended: &EndedJob) -> JobAssignment {
        JobAssignment {
            name: ended.status.name.clone(),
            tenant: ended.status.tenant.clone(),
            cluster: ended.status.external.as_ref().map_or_else(String::new, |external| external.cluster.clone()),
            token_hash: ended.token_hash,
            incarnation: trainmaster_core::Incarnation(ended.status.incarnation),
            revision: trainmaster_core::Revision(ended.status.revision),
            standing: Standing::Over,
            grace: self.options.grace,
            ..JobAssignment::default()
        }
    }

    /// Ends the jobs that the scheduler has stopped and that have no slots any more. In other modes than active, its
    /// stops are advice.
    pub(super) fn end_stopped(&mut self, at: Time) {
        if self.scheduler.state().mode != Mode::Active {
            return;
        }
        let gone = |job: &Job| job.seen.allocation.is_none() && job.issued.allocation.is_none();
        let jobs = &self.scheduler.state().jobs;
        let over: Vec<JobId> =
            self.stopping.iter().copied().filter(|id| jobs.get(id).is_none_or(|job| gone(job))).collect();
        for job in over {
            self.stopping.remove(&job);
            let still = self.scheduler.state().job(job).is_some_and(|job| matches!(job.verdict, Verdict::Stop(_)));
            if still && let Err(error) = self.end_job(at, job, End::Stopped, None) {
                tracing::error!(%error, "a stopped job can't be ended");
            }
        }
    }
}

/// The answer about an ended job.
fn over(ended: &EndedJob) -> String {
    format!("{} ({}) has ended: {}", ended.id(), ended.status.name, ended.status.state)
}
