//! What managers see and training programs report.

use std::collections::BTreeSet;

use trainmaster_core::{DecisionId, Enactment, End, Event, EventError, Incarnation, JobId, Role, Slot, Time};
use trainmaster_proto::{Observed, Progress};

use super::{Answers, HostError, Reply, journal::Effect, owner::Owner, publish::Attaching};
use crate::daemon::session::Outbox;

/// Managers at a time: each waits with the whole plan in memory until it has read it.
const MOST_MANAGERS: usize = 64;
/// Characters that are kept of what a manager says about a job.
const LONGEST_MESSAGE: usize = 2000;

impl Owner {
    /// A manager opened a stream: it ends the one it had.
    pub(super) fn attach(&mut self, at: Time, stream: u64, outbox: Outbox, observed: Observed) {
        let manager = observed.manager.clone();
        if self.streams.len() >= MOST_MANAGERS && !self.streams.contains_key(&manager) {
            let problem = format!("{MOST_MANAGERS} managers are attached, and that is the most");
            return outbox.close(tonic::Status::resource_exhausted(problem));
        }
        let replaced = tonic::Status::aborted("another stream of this manager was opened");
        if let Some(old) = self.sessions.remove(&manager) {
            old.outbox.close(replaced.clone());
        }
        self.attaching.retain(|waiting| {
            let same = waiting.manager == manager;
            if same {
                waiting.outbox.close(replaced.clone());
            }
            !same
        });
        tracing::info!(manager, "attached");
        self.streams.insert(manager.clone(), stream);
        self.attaching.push(Attaching { manager, stream, outbox });
        self.take_observed(at, observed);
    }

    pub(super) fn observe(&mut self, at: Time, stream: u64, observed: Observed) {
        let manager = observed.manager.as_str();
        let open = self.streams.get(manager) == Some(&stream);
        // A stream that was replaced may still have had something to say; the newer one's snapshot said it all.
        if open {
            self.take_observed(at, observed);
        }
    }

    pub(super) fn detach(&mut self, manager: &str, stream: u64) {
        self.attaching.retain(|waiting| waiting.stream != stream);
        if self.streams.get(manager) == Some(&stream) {
            self.streams.remove(manager);
        }
        if self.sessions.get(manager).is_some_and(|session| session.stream == stream) {
            tracing::info!(manager, "detached");
            self.sessions.remove(manager);
        }
        self.metrics.managers.set(self.sessions.len() as i64);
        self.dirty = true;
    }

    fn take_observed(&mut self, at: Time, observed: Observed) {
        for (job, message) in &observed.messages {
            if self.scheduler.state().job(*job).is_some() {
                self.messages.insert(*job, message.chars().take(LONGEST_MESSAGE).collect());
            }
        }
        if observed.is_snapshot {
            self.wants_full.insert(observed.manager.clone());
        }
        for event in observed.events {
            if self.is_elsewhere(&observed.manager, &event) {
                continue;
            }
            let result = match &event {
                Event::JobEnded { job, end } => self.end_job(at, *job, *end, None),
                Event::SyncEnd { owns_queue: true, .. } => self.end_sync(at, event),
                Event::Enacted { job, result: Enactment::Refused { cause, .. }, decision } => {
                    self.refused(*decision, *job, cause);
                    self.apply(at, event)
                }
                _ => self.apply(at, event),
            };
            match result {
                Ok(()) => {}
                // A manager may still speak of a job that ended here a moment ago.
                Err(EventError::UnknownJob(job)) => {
                    tracing::debug!(%job, "a manager speaks of a job that is not active")
                }
                Err(error) => {
                    self.metrics.event_errors.inc();
                    tracing::warn!(manager = observed.manager, %error, "an observation can't be accepted");
                }
            }
        }
    }

    /// Whether a manager says that it has nothing of a job that another manager runs: it moved away from here.
    fn is_elsewhere(&self, manager: &str, event: &Event) -> bool {
        let Event::Observed { job, slots, .. } = event else { return false };
        let state = self.scheduler.state();
        let seen = state.job(*job).and_then(|job| job.observed.as_ref());
        let mine = |slot: &Slot| self.homes.get(state.server_name(slot.server)).is_none_or(|home| home == manager);
        slots.is_empty() && seen.is_some_and(|seen| !seen.slots().iter().any(mine))
    }

    fn refused(&self, decision: DecisionId, job: JobId, cause: &str) {
        self.metrics.refusals.inc();
        let name = self.scheduler.state().job_name(job);
        tracing::warn!(name, %decision, cause, "a manager refused what a job was given");
    }

    /// A manager that owns its queue no longer has some jobs: the core ends them, and their last status is kept.
    fn end_sync(&mut self, at: Time, event: Event) -> Result<(), EventError> {
        let before: BTreeSet<JobId> = self.scheduler.state().jobs.keys().copied().collect();
        let statuses: Vec<_> =
            before.iter().filter_map(|job| self.last_words(at, *job, End::Completed, None)).collect();
        self.apply(at, event)?;
        for ended in statuses {
            if self.scheduler.state().job(ended.id()).is_none() {
                self.keep_ended(ended);
            }
        }
        Ok(())
    }

    /// A slot reported. Nonsense is counted on its job; the end of the training ends the job.
    pub(super) fn report(
        &mut self,
        at: Time,
        job: JobId,
        incarnation: Incarnation,
        slot: (Role, u32),
        progress: Vec<Progress>,
        reply: Reply<Answers>,
    ) {
        if let Some(error) = self.journal.error() {
            let _ = reply.send(Err(HostError::Unavailable(error.to_string())));
            return;
        }
        let mut answers = Vec::with_capacity(progress.len());
        for Progress { report, finished, converged, .. } in progress {
            let (epoch, step) = (report.epoch, report.step);
            let taken = self.apply(at, Event::Reported { job, incarnation, slot, report });
            answers.push(match taken {
                Ok(()) => Ok(()),
                Err(EventError::Report { problem, .. }) => Err(problem.to_owned()),
                Err(error) => Err(error.to_string()),
            });
            if finished && answers.last().is_some_and(Result::is_ok) {
                let how = if converged { "converged" } else { "through all its epochs" };
                let message = format!("{how} at epoch {epoch}, step {step}");
                if let Err(error) = self.end_job(at, job, End::Completed, Some(message)) {
                    tracing::error!(%error, "a job that just reported can't be ended");
                }
            }
        }
        self.journal.then(Effect::Reply(Box::new(move |outcome| {
            let answer = outcome.map(|()| answers).map_err(|error| HostError::Unavailable(error.to_owned()));
            let _ = reply.send(answer);
        })));
    }
}
