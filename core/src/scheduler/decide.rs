//! Decisions: when they are due, their tickets, and their commit.

use std::sync::Arc;

use super::{Failure, Outcome, Scheduler, Superseded, Ticket, Why};
use crate::{
    decision::{Decision, Source, Verdict},
    engine::Budget,
    ids::{DecisionId, JobId, TicketId},
    job::Job,
    journal::Record,
    settings::Mode,
    state::{Change, Sums},
    time::{Span, Time},
};

/// Time after which an engine that the fallback replaced is tried again.
const SECOND_CHANCE: Span = Span::seconds(600);

impl Scheduler {
    /// Time at which the next [`prepare`](Self::prepare) is due. `None` if nothing requires one, or during a resync.
    /// O(1).
    pub fn due(&self) -> Option<Time> {
        let state = &self.state;
        if state.is_syncing() || state.mode == Mode::Paused {
            return None;
        }
        let timer = state.next_timer();
        let engine = self.engine_due();
        match (timer, engine) {
            (Some(timer), Some(engine)) => Some(timer.min(engine)),
            (timer, engine) => timer.or(engine),
        }
        .map(|at| at.max(state.now))
    }

    fn engine_due(&self) -> Option<Time> {
        let state = &self.state;
        if state.jobs.is_empty() {
            return None;
        }
        let Some(last) = self.decided_at else { return Some(state.now) };
        let triggers = self.engine.triggers();
        let urgency = state.changes.urgency();
        let at_once = !state.pending.unsettled.is_empty()
            || state.pending.limits_changed
            || urgency.at_once
            || (urgency.arrival && triggers.arrival)
            || (urgency.departure && triggers.departure);
        if at_once {
            return Some(state.now);
        }
        let interval = triggers.interval.map(|interval| last + interval);
        match (interval, self.wake_at) {
            (Some(interval), Some(wake)) => Some(interval.min(wake)),
            (interval, wake) => interval.or(wake),
        }
    }

    /// Opens a ticket with a consistent copy of the state for the engine. Takes microseconds, plus the time to cut what
    /// no longer fits, and O(jobs) if jobs can be stopped early. If there are types of GPU, O(jobs), plus O(servers)
    /// for each different demand of waiting jobs with a choice (8 at most). If jobs ask for closeness, O(servers),
    /// and for each of them O(domains + servers of a domain). Supersedes an open older ticket.
    pub fn prepare(&mut self, at: Time) -> Ticket {
        let id = self.begin(at);
        self.record(|| Record::Prepared { at, ticket: id });
        Ticket {
            id,
            state: self.state.clone(),
            changes: self.state.changes.list().clone(),
            engine: self.engine.clone(),
            memo: self.memo.boxed(),
            index: self.index.take(),
        }
    }

    fn begin(&mut self, at: Time) -> TicketId {
        self.state.now = self.state.now.max(at);
        self.state.expire_timers();
        self.try_again();
        self.state.stop_early();
        if self.state.mode == Mode::Shadow {
            self.state.adopt_observed();
        }
        self.state.know_domains();
        self.state.choose_gpu_types();
        self.state.settle(&[]);
        // Jobs that were just evicted may get another domain.
        self.state.choose_domains();
        self.state.issue();
        let id = TicketId(self.next_ticket);
        self.next_ticket += 1;
        self.open = Some(id);
        self.state.changes.deliver(JobId(self.state.directory.next_job));
        id
    }

    /// Commits the outcome of the open ticket as the plan, as far as it still fits, and issues what has room.
    ///
    /// After a failure of the engine, the last plan stays in force, without evicted jobs, and the failure is counted.
    /// After `fallback_after` consecutive failures, the fallback engine decides. If it fails as often, the mode becomes
    /// [`Paused`](Mode::Paused).
    ///
    /// # Errors
    /// The ticket is no longer the open one.
    pub fn commit(&mut self, at: Time, outcome: Outcome) -> Result<Decision, Superseded> {
        if self.open != Some(outcome.ticket) {
            return Err(Superseded(outcome.ticket));
        }
        self.open = None;
        self.state.now = self.state.now.max(at);
        self.index = outcome.index;
        let fallback = self.is_fallback();
        let mut dropped = Vec::new();
        let source = match outcome.result {
            Ok((proposal, sums, memo)) => {
                self.memo = memo;
                self.failures = if fallback { self.state.settings.fallback_after } else { 0 };
                self.last_error = None;
                self.wake_at = proposal.wake_at;
                // Changes noted since then are in the next ticket.
                self.state.changes.delivered();
                dropped = self.lay(proposal.changes, sums, outcome.moved);
                match (fallback, dropped.is_empty()) {
                    (true, _) => Source::Fallback,
                    (false, true) => Source::Engine,
                    (false, false) => Source::Pruned,
                }
            }
            Err(error) => {
                self.state.changes.returned();
                self.wake_at = None;
                self.state.settle(&[]);
                self.fail(error);
                Source::Kept
            }
        };
        for id in &dropped {
            self.state.note(Change::Dropped(*id));
        }
        let decision = self.conclude(source, dropped);
        self.record_commit(outcome.ticket, outcome.budget, &decision);
        self.state.issue();
        Ok(decision)
    }

    /// Counts a failure of the current engine. After `fallback_after` consecutive ones the fallback takes over. If it
    /// fails as often, the mode becomes paused: all jobs are handed back to their managers.
    fn fail(&mut self, error: Failure) {
        let was_fallback = self.is_fallback();
        let patience = self.state.settings.fallback_after;
        self.last_error = Some(error);
        self.failures = self.failures.saturating_add(1);
        if self.is_fallback() && !was_fallback {
            self.fallback_since = Some(self.state.now);
            let settings = self.state.settings.clone();
            // Both names were in the registry when the settings were applied.
            let _ = self.choose_engine(&settings);
        } else if was_fallback && self.failures - patience >= patience.max(1) {
            self.failures = patience;
            if self.state.mode == Mode::Active {
                self.state.set_mode(Mode::Paused);
            }
        }
    }

    /// Gives a replaced engine another try after a while, because the cause of its failure may be gone.
    fn try_again(&mut self) {
        let settings = self.state.settings.clone();
        let over = self.fallback_since.is_some_and(|since| self.state.now - since >= SECOND_CHANCE);
        if over && self.is_fallback() && settings.fallback_after > 0 {
            (self.failures, self.fallback_since) = (settings.fallback_after - 1, None);
            // The name was in the registry when the settings were applied.
            let _ = self.choose_engine(&settings);
        }
    }

    /// Closes the open ticket. Its outcome can't be committed.
    pub(super) fn supersede(&mut self) {
        self.open = None;
        self.state.changes.returned();
    }

    /// Applies a proposal to the plan. It doesn't change jobs that have ended, jobs that the engine may no longer plan,
    /// or jobs whose new slots can no longer be placed.
    ///
    /// If nothing changed since the guard's check: O(jobs that change + servers that they touch). Otherwise O(slots of
    /// the jobs that change · log of a job's slots), plus the cost of `State::settle`.
    fn lay(&mut self, changes: Vec<(JobId, Verdict)>, sums: Sums, checked_at: u64) -> Vec<JobId> {
        let still = self.state.moved == checked_at;
        let may = |(id, verdict): &(JobId, Verdict)| {
            self.state.job(*id).is_some_and(|job| self.state.may_become(job, verdict))
        };
        if still && changes.iter().all(may) {
            self.state.set_checked(changes, sums);
            return Vec::new();
        }
        let mut dropped = Vec::new();
        let mut before = Vec::new();
        for (id, verdict) in changes {
            let job = self.state.job(id).cloned();
            let stands = |job: &Arc<Job>| {
                self.state.may_become(job, &verdict) && (still || self.state.takes_new_slots(job, &verdict))
            };
            let Some(job) = job.filter(stands) else {
                // The engine's index has the job at its proposed place. These changes let it correct that.
                let old = self.state.job(id).and_then(|job| job.verdict.allocation()).cloned();
                for slot in old.iter().chain(verdict.allocation()).flat_map(|allocation| allocation.slots()) {
                    self.state.note(Change::Server(slot.server));
                }
                dropped.extend(self.state.job(id).map(|job| job.id));
                continue;
            };
            if job.verdict.same_kind(&verdict) {
                continue;
            }
            before.push((id, job.verdict.clone()));
            drop(job);
            self.state.set_verdict(id, verdict);
        }
        before.sort_unstable_by_key(|(id, _)| *id);
        dropped.extend(self.state.settle(&before));
        dropped.sort_unstable();
        dropped.dedup();
        dropped
    }

    fn conclude(&mut self, source: Source, dropped: Vec<JobId>) -> Decision {
        let state = &mut self.state;
        state.record_load();
        let base = state.decision;
        state.decision = DecisionId(base.0 + 1);
        let revised = std::mem::take(&mut state.pending.revised);
        let changes = revised.iter().filter_map(|id| Some((*id, state.job(*id)?.verdict.clone()))).collect();
        self.decided_at = Some(state.now);
        Decision {
            term: state.term,
            id: state.decision,
            base,
            at: state.now,
            changes,
            source,
            dropped,
            wake_at: self.wake_at,
        }
    }

    fn record_commit(&mut self, ticket: TicketId, budget: Budget, decision: &Decision) {
        let delta = decision.encode();
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.digest);
        hasher.update(&delta);
        self.digest = *hasher.finalize().as_bytes();
        let (at, digest) = (decision.at, self.digest);
        self.record(|| Record::Committed { at, ticket, budget, delta, digest });
    }

    /// Abandons a ticket. The next one gets its changes again. A late ticket counts as a failure of the engine.
    pub fn abandon(&mut self, at: Time, ticket: TicketId, why: Why) {
        if self.open == Some(ticket) {
            self.supersede();
            self.state.now = self.state.now.max(at);
            if why == Why::Late {
                self.fail(Failure::Late);
            }
            self.record(|| Record::Abandoned { at, ticket, why });
        }
        if self.open_fit == Some(ticket) {
            self.open_fit = None;
            self.state.now = self.state.now.max(at);
            self.take_fits_back();
            self.record(|| Record::Abandoned { at, ticket, why });
        }
    }

    /// Runs all pending fits, then prepares, runs and commits a decision. For callers without a time limit.
    pub fn decide(&mut self, at: Time) -> Decision {
        while let Some(ticket) = self.prepare_fits(at) {
            let outcome = ticket.run();
            let _ = self.commit_fits(at, outcome);
        }
        let outcome = self.prepare(at).run(Budget::UNLIMITED);
        self.commit(at, outcome).expect("no other ticket was opened")
    }
}
