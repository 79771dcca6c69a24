//! Observations of managers and reports of training programs.

use trainmaster_core::{
    Allocation, DecisionId, Enactment, End, Event, EventError, Incarnation, Job, JobId, Role, ServerSpec, Span, Time,
    text::shown,
};
use trainmaster_host::Answers;
use trainmaster_proto::{JobMessage, Observed, Progress};

use super::{
    answers::{HostError, Reply},
    journal::Effect,
    owner::{Owner, Told},
    said::Taking,
    streams::{Attaching, Brought, OpenStream},
};
use crate::{access::Who, session::Outbox};

/// Maximum number of attached managers. Each holds a whole plan in memory until it has read it.
const MOST_MANAGERS: usize = 64;
/// Time after which another manager may claim a server that left. A reboot is shorter.
const ANOTHERS: Span = Span::seconds(3600);
/// Maximum length of a manager's text about a job, in characters.
const LONGEST_MESSAGE: usize = 2000;

/// The manager of an observation.
#[derive(Clone, Copy)]
struct Speaker<'a> {
    name: &'a str,
    trusted: bool,
}

fn replaced() -> tonic::Status {
    tonic::Status::aborted("another stream of this manager was opened")
}

impl Owner {
    /// Attaches a manager's new stream and ends its old one. Messages to it wait until its snapshot is taken.
    pub(super) fn attach(&mut self, stream: u64, outbox: Outbox, observed: &Observed, who: &Who) -> Option<Outbox> {
        let manager = &observed.manager;
        let trusted = who.role.is_trusted();
        if self.streams.get(manager).is_some_and(|open| open.id > stream) {
            outbox.close(replaced());
            return None;
        }
        if self.streams.len() >= MOST_MANAGERS && !self.streams.contains_key(manager) {
            let problem = format!("{MOST_MANAGERS} managers are attached, and that is the most");
            outbox.close(tonic::Status::resource_exhausted(problem));
            return None;
        }
        if let Some(old) = self.sessions.remove(manager) {
            old.outbox.close(replaced());
        }
        self.attaching.retain(|waiting| {
            let same = waiting.manager == *manager;
            if same {
                waiting.outbox.close(replaced());
            }
            !same
        });
        tracing::info!(manager, who = &*who.words, "attached");
        self.streams.insert(
            manager.clone(),
            OpenStream { id: stream, trusted, takes_submissions: false, brought: Brought::default() },
        );
        Some(outbox)
    }

    /// Whether this is the manager's latest stream.
    pub(super) fn is_open(&self, manager: &str, stream: u64) -> bool {
        self.streams.get(manager).is_some_and(|open| open.id == stream)
    }

    pub(super) fn detach(&mut self, manager: &str, stream: u64) {
        self.attaching.retain(|waiting| waiting.stream != stream);
        if self.streams.get(manager).is_some_and(|open| open.id == stream) {
            self.streams.remove(manager);
        }
        if self.sessions.get(manager).is_some_and(|session| session.stream == stream) {
            tracing::info!(manager, "detached");
            self.sessions.remove(manager);
        }
        self.metrics.managers.set(self.sessions.len() as i64);
        self.dirty = true;
    }

    /// Begins to take an observation, event by event.
    pub(super) fn begin_observed(&mut self, observed: &Observed) {
        if observed.is_snapshot
            && let Some(open) = self.streams.get_mut(&observed.manager)
        {
            open.takes_submissions = observed.takes_submissions;
            open.brought = Brought::default();
        }
    }

    /// Keeps what a manager says of an incarnation of a job, if that was issued and nothing is known of a later one. An
    /// empty text without failures ends what was said. A snapshot doesn't tell when programs failed.
    pub(super) fn take_message(&mut self, manager: &str, is_snapshot: bool, message: JobMessage) {
        let JobMessage { job, incarnation, text, failures } = message;
        let is_quiet = text.is_empty() && failures == 0;
        if is_quiet && !self.messages.contains_key(&job) {
            return;
        }
        let speaker = self.speaker(manager);
        let found = self.scheduler.state().job(job);
        let its = found.is_some_and(|job| incarnation <= job.issued.incarnation && self.is_run_by(speaker, job));
        let known = self.messages.get(&job);
        if !its || known.is_some_and(|known| known.incarnation > incarnation) {
            return;
        }
        if is_quiet {
            self.messages.remove(&job);
            return;
        }
        let text: String = shown(&text, LONGEST_MESSAGE).into();
        let same = known.filter(|known| known.incarnation == incarnation);
        let fails_again = same.is_none_or(|known| failures > known.failures || !text.is_empty() && text != known.text);
        let failed = match failures > 0 && fails_again {
            true => (!is_snapshot).then(|| self.clock.now()),
            false => same.and_then(|known| known.failed),
        };
        self.messages.insert(job, Told { incarnation, text, failures, failed });
    }

    fn speaker<'a>(&self, name: &'a str) -> Speaker<'a> {
        Speaker { name, trusted: self.is_trusted(name) }
    }

    pub(super) fn is_trusted(&self, manager: &str) -> bool {
        self.streams.get(manager).is_some_and(|open| open.trusted)
    }

    /// Takes one event of an observation.
    pub(super) fn take_event(&mut self, manager: &str, mut event: Event, wrong: &mut (u64, Option<String>)) {
        let (at, speaker) = (self.clock.now(), self.speaker(manager));
        // All errors of an observation make one log line.
        let count = |owner: &Self, problem: String, wrong: &mut (u64, Option<String>)| {
            owner.metrics.event_errors.inc();
            wrong.0 += 1;
            wrong.1.get_or_insert(problem);
        };
        if let Event::ServersLeft { names } = &mut event {
            names.sort();
            names.dedup();
            names.retain(|name| {
                let problem = self.not_its_server(speaker, name).or_else(|| self.unknown(name));
                let is_there = self.scheduler.state().find_server(name).is_some_and(|server| server.present);
                let fine = problem.is_none() && is_there;
                problem.into_iter().for_each(|problem| count(self, problem, wrong));
                fine
            });
            if names.is_empty() {
                return;
            }
        }
        if let Event::Observed { job, slots, .. } = &event
            && slots.is_empty()
            && let Some(open) = self.streams.get_mut(speaker.name)
        {
            open.brought.gives_up(*job);
        }
        if self.is_elsewhere(speaker, &event) {
            return;
        }
        if let Some(problem) = self.objection(speaker, &event).or_else(|| self.beyond_its_share(speaker, &event)) {
            return count(self, problem, wrong);
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
            // A manager may still mention a job that has just ended here.
            Err(EventError::UnknownJob(job)) => {
                tracing::debug!(%job, "a manager speaks of a job that is not active")
            }
            Err(error) => count(self, error.to_string(), wrong),
        }
    }

    /// Ends an observation that is completely taken or not wanted any more.
    pub(super) fn taken(&mut self, stream: u64, taking: Taking, is_open: bool) {
        let Taking { manager, is_snapshot, outbox, wrong: (wrong, first), .. } = taking;
        if let Some(first) = first {
            tracing::warn!(manager, wrong, first, "a manager tells what can't be, or what is another's");
        }
        if !is_open {
            return outbox.into_iter().for_each(|outbox| outbox.close(replaced()));
        }
        if is_snapshot {
            self.wants_full.insert(manager.clone());
        }
        self.attaching.extend(outbox.map(|outbox| Attaching { manager, stream, outbox }));
    }

    /// The objection to an event of an unknown server.
    fn unknown(&self, server: &str) -> Option<String> {
        let is_known = self.scheduler.state().find_server(server).is_some();
        (!is_known).then(|| EventError::UnknownServer(shown(server, 64).into()).to_string())
    }

    /// The objection to an event of another manager's server, even if that manager is briefly away.
    fn not_its_server(&self, speaker: Speaker<'_>, name: &str) -> Option<String> {
        let state = self.scheduler.state();
        let server = state.find_server(name)?;
        let home = state.last_manager_of(server.id).filter(|home| *home != speaker.name)?;
        // The manager may have a new name, or another adapter may have replaced it. A server may also have moved.
        let is_free = !self.streams.contains_key(home) || !server.present;
        if speaker.trusted && is_free {
            return None;
        }
        let (name, back) = (shown(name, 64), (server.left_at + ANOTHERS) - state.now);
        if server.present {
            return Some(format!("server {name:?} is {home}'s"));
        }
        (back > Span::ZERO).then(|| format!("server {name:?} is {home}'s, which may bring it back for another {back}"))
    }

    /// Whether any of these slots is on a manager's server, or on one that the manager was the last to bring.
    fn is_on(&self, speaker: Speaker<'_>, allocation: Option<&Allocation>) -> bool {
        let state = self.scheduler.state();
        let mut slots = allocation.into_iter().flat_map(Allocation::slots);
        slots.any(|slot| state.last_manager_of(slot.server) == Some(speaker.name))
    }

    /// Whether a manager runs a job: the job came from it, was sent to it, or has slots on its servers.
    fn is_run_by(&self, speaker: Speaker<'_>, job: &Job) -> bool {
        job.external.as_ref().is_some_and(|external| external.cluster == speaker.name)
            || self.is_on(speaker, job.issued.allocation.as_deref())
            || self.is_on(speaker, job.seen.allocation.as_deref())
            || self.sessions.get(speaker.name).is_some_and(|session| session.told.contains(&job.id.0))
    }

    /// The objection to an event about another manager's server or job.
    fn objection(&self, speaker: Speaker<'_>, event: &Event) -> Option<String> {
        let state = self.scheduler.state();
        let job = |id: JobId| state.known_job(id);
        let is_free =
            |job: &Job| job.external.is_none() && job.seen.allocation.is_none() && job.issued.allocation.is_none();
        let anothers = |job: &Job| format!("{} ({}) is not run by it", job.id, job.spec.name);
        match event {
            Event::ServerSet { server: ServerSpec { name, .. }, .. }
            | Event::ForeignUse { server: name, .. }
            | Event::Utilisation { server: name, .. } => self.not_its_server(speaker, name),
            Event::JobEnded { job: id, .. } => {
                job(*id).filter(|job| !self.is_run_by(speaker, job)).map(|job| anothers(job))
            }
            // An adapter in the daemon also answers for waiting jobs.
            Event::Enacted { job: id, .. } => job(*id)
                .filter(|job| !(self.is_run_by(speaker, job) || speaker.trusted && is_free(job)))
                .map(|job| anothers(job)),
            Event::Observed { job: id, slots, .. } => {
                if let Some(problem) = slots.iter().find_map(|slot| self.not_its_server(speaker, &slot.server)) {
                    return Some(problem);
                }
                let job = job(*id).filter(|job| !self.is_run_by(speaker, job))?;
                // A trusted adapter may report a job that no other manager runs. Others may not, because a manager can
                // end the jobs that it runs.
                (!(is_free(job) && speaker.trusted)).then(|| anothers(job))
            }
            _ => None,
        }
    }

    /// The objection to an event that exceeds the manager's share.
    fn beyond_its_share(&mut self, speaker: Speaker<'_>, event: &Event) -> Option<String> {
        let open = self.streams.get_mut(speaker.name).filter(|open| !open.trusted)?;
        let counted = match event {
            Event::ServerSet { server, .. } => open.brought.server(server),
            Event::ServersLeft { names } => {
                names.iter().for_each(|name| open.brought.without(name));
                Ok(())
            }
            Event::Observed { job, slots, .. } => {
                // A slot counts twice while it is replaced, and until it has left.
                let most = self.scheduler.state().known_job(*job).map(|job| {
                    let most = job.spec.bounds().most();
                    4 * (most.workers as usize + most.servers as usize) + 64
                });
                match most.filter(|most| slots.len() > *most) {
                    Some(most) => Err(format!("{} slots of {job} must be at most {most}", slots.len())),
                    None => open.brought.slots(*job, slots.len()),
                }
            }
            Event::ForeignUse { amounts, .. } => open.brought.resources(amounts.keys()),
            Event::Utilisation { used, slots, .. } => {
                open.brought.resources(used.keys().chain(slots.iter().flat_map(|of| of.used.keys())))
            }
            _ => Ok(()),
        };
        counted.err()
    }

    /// Whether a manager reports that it has no slots of a job that moved to another manager.
    fn is_elsewhere(&self, speaker: Speaker<'_>, event: &Event) -> bool {
        let Event::Observed { job, slots, .. } = event else { return false };
        let seen = self.scheduler.state().job(*job).and_then(|job| job.seen.allocation.as_deref());
        slots.is_empty() && seen.is_some() && !self.is_on(speaker, seen)
    }

    fn refused(&self, decision: DecisionId, job: JobId, cause: &str) {
        self.metrics.refusals.inc();
        let name = self.scheduler.state().job_name(job);
        tracing::warn!(name, %decision, cause, "a manager refused what a job was given");
    }

    /// Ends jobs that a manager with its own queue no longer has. Their last status is kept.
    fn end_sync(&mut self, at: Time, event: Event) -> Result<(), EventError> {
        let ends = match &event {
            Event::SyncEnd { manager, .. } => self.scheduler.state().missing_in_sync(manager),
            _ => Vec::new(),
        };
        let ends: Vec<_> = ends
            .into_iter()
            .filter_map(|job| {
                Some((self.scheduler.state().job(job)?.clone(), self.last_words(at, job, End::Completed, None)?))
            })
            .collect();
        self.apply(at, event)?;
        for (job, ended) in ends {
            if self.scheduler.state().job(job.id).is_none() {
                self.predictions.completed(at, &job);
                self.keep_ended(ended);
            }
        }
        Ok(())
    }

    /// Takes a slot's report. Invalid reports are counted on their job. The end of the training ends the job.
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
        for progress in progress {
            // A job with a fixed batch has no use for it.
            let chooses = self.scheduler.state().job(job).is_some_and(|job| job.batching().is_some());
            if let Some(event) = progress.batch_event(job, incarnation, slot).filter(|_| chooses) {
                let _ = self.apply(at, event);
            }
            let Progress { report, examples, finished, converged, .. } = progress;
            let (epoch, step, steps) = (report.epoch, report.step, report.steps);
            let taken = self.apply(at, Event::Reported { job, incarnation, slot, report });
            answers.push(trainmaster_host::answer(taken));
            let accepted = answers.last().is_some_and(Result::is_ok);
            if let Some(job) = self.scheduler.state().job(job).filter(|_| accepted) {
                let used = job.batching().and_then(|batching| Some(batching.used?.min(batching.range.max)));
                self.metrics.trained(examples, steps, used.unwrap_or(job.spec.batch));
            }
            if finished && accepted {
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
