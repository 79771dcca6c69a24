//! The scheduler: a state machine without I/O. The host feeds it events. A ticket carries a consistent copy of the
//! state to the thread that runs the engine, and its outcome is committed to the current state.

mod preview;
mod ticket;

use std::sync::Arc;

use thiserror::Error;

pub use self::{
    preview::Admission,
    ticket::{Failure, FitOutcome, FitTicket, Outcome, Ticket},
};
pub use crate::journal::Why;
use crate::{
    decision::{Decision, Issue, Source, Verdict},
    engine::{AnyEngine, AnyIndex, AnyMemo, Budget},
    engines::{self},
    event::{Event, EventError},
    ids::{DecisionId, JobId, TicketId},
    job::{Job, JobSpec},
    journal::{Record, Saved},
    policy::{Policy, PolicyError},
    settings::{Mode, Settings, SettingsError},
    state::{Change, State, Sums},
    time::{Span, Time},
};

/// Time after which an engine that the fallback replaced is tried again.
const SECOND_CHANCE: Span = Span::seconds(600);

/// The outcome can't be committed: a newer ticket was prepared, or this one was abandoned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{0} is superseded")]
pub struct Superseded(pub TicketId);

/// The policy core.
///
/// ```
/// use trainmaster_core::{Event, JobSpec, Scheduler, ServerSpec, Settings, Time, Verdict};
///
/// let mut scheduler = Scheduler::new(Settings { engine: "fifo".into(), ..Settings::default() }).unwrap();
/// let server = ServerSpec {
///     name: "node1".into(),
///     capacity: [("cpu".to_owned(), 16_000)].into(),
///     devices: vec!["gpu".into(); 2],
///     ..ServerSpec::default()
/// };
/// scheduler.apply(Time(0), Event::ServerSet { manager: "local".into(), server }).unwrap();
/// let spec = Box::new(JobSpec::minimal("mnist"));
/// scheduler.apply(Time(1), Event::JobSubmitted { spec, external: None, token_hash: None }).unwrap();
/// let decision = scheduler.decide(Time(2));
/// assert!(matches!(decision.changes[0].1, Verdict::Run(_)));
/// ```
pub struct Scheduler {
    state: State,
    engine: Arc<dyn AnyEngine>,
    memo: Box<dyn AnyMemo>,
    index: AnyIndex,
    /// Number of consecutive failures of the engine, including late tickets. After too many, the fallback decides.
    failures: u32,
    /// Time since which the fallback decides.
    fallback_since: Option<Time>,
    next_ticket: u64,
    open: Option<TicketId>,
    open_fit: Option<TicketId>,
    /// Jobs of the open fit ticket. They are fitted again if the ticket is lost.
    fitting: Vec<JobId>,
    digest: [u8; 32],
    decided_at: Option<Time>,
    wake_at: Option<Time>,
    records: Option<Vec<Vec<u8>>>,
    last_error: Option<Failure>,
}

impl Scheduler {
    /// A scheduler for an empty cluster under these settings.
    ///
    /// # Errors
    /// There is no such engine, a parameter isn't allowed, or limits name too many types of resources.
    pub fn new(settings: Settings) -> Result<Self, SettingsError> {
        let engine = build(&settings)?;
        let mut state = State::default();
        let event = Event::Configured(Box::new(settings));
        // The first event contains the settings, so that the journal is complete without other data.
        state.apply(Time(i64::MIN), &event).map_err(|error| SettingsError::new("queues", error))?;
        let memo = engine.new_memo();
        Ok(Self {
            state,
            engine,
            memo,
            index: None,
            failures: 0,
            fallback_since: None,
            next_ticket: 1,
            open: None,
            open_fit: None,
            fitting: Vec::new(),
            digest: [0; 32],
            decided_at: None,
            wake_at: None,
            records: None,
            last_error: None,
        })
    }

    /// A scheduler with an engine outside the registry, until the fallback or new settings replace it. For tests.
    ///
    /// # Errors
    /// As for [`new`](Self::new), about the engine in the settings.
    #[doc(hidden)]
    pub fn with_engine(settings: Settings, engine: Arc<dyn AnyEngine>) -> Result<Self, SettingsError> {
        let mut scheduler = Self::new(settings)?;
        scheduler.replace_engine(engine);
        Ok(scheduler)
    }

    /// Replaces the engine of a running scheduler.
    #[doc(hidden)]
    pub fn replace_engine(&mut self, engine: Arc<dyn AnyEngine>) {
        self.supersede();
        self.memo = engine.new_memo();
        self.engine = engine;
        self.index = None;
    }

    /// Starts a journal. Its records are taken by [`drain_journal`](Self::drain_journal). The first one is a snapshot.
    /// An open ticket is superseded, because replay couldn't finish it.
    pub fn start_journal(&mut self) {
        self.records = None;
        let now = self.state.now;
        for ticket in [self.open, self.open_fit].into_iter().flatten() {
            self.abandon(now, ticket, Why::Lost);
        }
        self.records = Some(Vec::new());
        self.snapshot();
    }

    /// The encoded records since the last call, in order. Concatenated, they form the journal.
    pub fn drain_journal(&mut self) -> Vec<Vec<u8>> {
        self.records.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Adds a snapshot to the journal. Recovery starts at the last one. O(state). While a ticket is open, adds none and
    /// returns false, because replay couldn't finish the ticket.
    pub fn snapshot(&mut self) -> bool {
        if self.records.is_none() || self.open.is_some() || self.open_fit.is_some() {
            return false;
        }
        let saved = self.saved();
        self.record(|| Record::Snapshot(Box::new(saved)));
        true
    }

    pub(crate) fn saved(&self) -> Saved {
        let (memo_version, memo) = self.memo_bytes();
        Saved {
            state: self.state.clone(),
            memo_version,
            memo,
            failures: self.failures,
            fallback_since: self.fallback_since,
            next_ticket: self.next_ticket,
            digest: self.digest,
            decided_at: self.decided_at,
            wake_at: self.wake_at,
        }
    }

    fn record(&mut self, record: impl FnOnce() -> Record) {
        if let Some(records) = &mut self.records {
            records.push(record().encode());
        }
    }

    pub(crate) fn from_saved(saved: Saved) -> Result<Self, SettingsError> {
        let mut scheduler = Self::new((*saved.state.settings).clone())?;
        scheduler.failures = saved.failures;
        scheduler.fallback_since = saved.fallback_since;
        scheduler.choose_engine(&saved.state.settings)?;
        scheduler.memo =
            scheduler.engine.read_memo(saved.memo_version, &saved.memo).unwrap_or_else(|| scheduler.engine.new_memo());
        scheduler.state = saved.state;
        scheduler.next_ticket = saved.next_ticket;
        scheduler.digest = saved.digest;
        scheduler.decided_at = saved.decided_at;
        scheduler.wake_at = saved.wake_at;
        Ok(scheduler)
    }

    /// The state: the cluster, its jobs and the plan.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Digest over all committed decisions.
    pub fn digest(&self) -> [u8; 32] {
        self.digest
    }

    /// Time of the last committed decision.
    pub fn decided_at(&self) -> Option<Time> {
        self.decided_at
    }

    /// The engine's last failure, if its last decision failed.
    pub fn last_error(&self) -> Option<&Failure> {
        self.last_error.as_ref()
    }

    /// Whether the fallback engine is in charge.
    pub fn is_fallback(&self) -> bool {
        self.failures >= self.state.settings.fallback_after
    }

    /// The name of the engine in charge.
    pub fn engine_name(&self) -> &str {
        let settings = &self.state.settings;
        if self.is_fallback() { &settings.fallback } else { &settings.engine }
    }

    /// Whether a ticket is open.
    pub fn is_deciding(&self) -> bool {
        self.open.is_some()
    }

    /// Applies an event without a decision. O(what it changes).
    ///
    /// # Errors
    /// The event can't be accepted. Only counts of ignored inputs have changed.
    pub fn apply(&mut self, at: Time, event: Event) -> Result<(), EventError> {
        let engine = match &event {
            Event::Configured(settings) => Some(build(settings)?),
            _ => None,
        };
        match &event {
            Event::JobSubmitted { spec, .. } => self.supports(spec)?,
            Event::PolicySet { engine, policy } => check_policy(engine, policy.as_deref())?,
            _ => {}
        }
        let result = self.state.apply(at, &event);
        self.record_event(at, event, &result);
        result?;
        if let Some(engine) = engine {
            // The open ticket of the previous engine is useless.
            self.replace_engine(engine);
            (self.failures, self.fallback_since) = (0, None);
            self.last_error = None;
            self.wake_at = None;
            self.decided_at = None;
        }
        self.state.issue();
        Ok(())
    }

    /// For a refused event, the journal records only its effects: a count, and the time.
    fn record_event(&mut self, at: Time, event: Event, result: &Result<(), EventError>) {
        let event = match result {
            Ok(()) | Err(EventError::LateRefusal { .. }) => event,
            Err(EventError::Time { .. }) => return,
            Err(EventError::Report { job, .. }) => Event::ReportIgnored { job: *job },
            Err(_) => Event::Elapsed,
        };
        self.record(|| Record::Event { at, event });
    }

    /// Checks whether the current engine can run such a job.
    fn supports(&self, spec: &JobSpec) -> Result<(), EventError> {
        spec.validate()?;
        let engine = self.state.settings.engine.clone();
        self.engine.accepts(spec).map_err(|problem| EventError::Unsupported { engine, problem })
    }

    /// Checks a proposal against the current state, as [`Ticket::run`] does.
    ///
    /// # Errors
    /// The first violated rule.
    pub fn check(&self, proposal: &crate::decision::Proposal) -> Result<(), crate::guard::Violation> {
        crate::guard::check(&self.state, proposal, self.engine.gang(), self.engine.limits()).map(drop)
    }

    /// The engine's memo as in snapshots: the version of its layout, and its bytes. For audits, and to compare
    /// replicas.
    pub fn memo_bytes(&self) -> (u32, Vec<u8>) {
        (self.engine.memo_version(), self.memo.bytes())
    }

    /// The engine's current readings, such as prices: see [`Engine::readings`](crate::engine::Engine::readings).
    pub fn readings(&self) -> Vec<(String, f64)> {
        self.engine.readings(&self.state, &mut *self.memo.boxed())
    }

    /// A copy of the engine's memo, for tests and benchmarks of an engine.
    #[doc(hidden)]
    pub fn memo(&self) -> Box<dyn AnyMemo> {
        self.memo.boxed()
    }

    /// Drops the engine's index. It is rebuilt when it is next needed.
    pub fn forget_index(&mut self) {
        self.index = None;
    }

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
    /// no longer fits. Supersedes an open older ticket.
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
        if self.state.mode == Mode::Shadow {
            self.state.adopt_observed();
        }
        self.state.settle(&[]);
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
    fn supersede(&mut self) {
        self.open = None;
        self.state.changes.returned();
    }

    /// Applies a proposal to the plan. It doesn't change jobs that have ended, jobs that the engine may no longer plan,
    /// or jobs whose new slots can no longer be placed.
    ///
    /// If nothing changed since the guard's check: O(jobs that change + servers that they touch). Otherwise O(slots of
    /// the jobs that change · log of a job's slots), plus the cost of [`State::settle`].
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

    /// Marks the jobs of a lost fit ticket for the next one, except those that have ended.
    fn take_fits_back(&mut self) {
        for job in std::mem::take(&mut self.fitting) {
            if self.state.jobs.contains_key(&job) {
                self.state.pending.unfitted.insert(job);
            }
        }
    }

    /// Whether jobs have reports that no fit ticket covers yet.
    pub fn has_news(&self) -> bool {
        !self.state.pending.unfitted.is_empty()
    }

    /// Opens a ticket for the fits of jobs with new reports. `None` if there are none. A ticket covers
    /// [`FitTicket::MOST`] jobs, in turns of managers and their tenants. Further jobs are in the next tickets. O(n log
    /// n) in the jobs with new reports.
    pub fn prepare_fits(&mut self, at: Time) -> Option<FitTicket> {
        if self.state.pending.unfitted.is_empty() && self.fitting.is_empty() {
            return None;
        }
        self.state.now = self.state.now.max(at);
        // An open ticket is superseded by one that also covers its jobs.
        self.take_fits_back();
        let id = TicketId(self.next_ticket);
        self.fitting = ticket::turns(&self.state, id);
        for job in &self.fitting {
            self.state.pending.unfitted.remove(job);
        }
        let state = &self.state;
        let jobs = self
            .fitting
            .iter()
            .filter_map(|id| state.job(*id))
            .map(|job| (job.clone(), state.models.get(&job.model).cloned()))
            .collect();
        self.next_ticket += 1;
        self.open_fit = Some(id);
        self.record(|| Record::FitsPrepared { at, ticket: id });
        Some(FitTicket { id, jobs })
    }

    /// Commits fits.
    ///
    /// # Errors
    /// A newer fit ticket was prepared, or this one was abandoned.
    pub fn commit_fits(&mut self, at: Time, outcome: FitOutcome) -> Result<(), Superseded> {
        if self.open_fit != Some(outcome.ticket) {
            return Err(Superseded(outcome.ticket));
        }
        self.open_fit = None;
        self.fitting.clear();
        self.state.now = self.state.now.max(at);
        for (id, fits) in outcome.fits {
            if let Some(job) = self.state.job_mut(id) {
                job.learnt.fits = Arc::new(fits);
                self.state.note(Change::Job(id));
            }
        }
        self.record(|| Record::FitsCommitted { at, ticket: outcome.ticket });
        Ok(())
    }

    /// The messages for managers since the last call, by job. This includes the end of jobs that managers were told of
    /// earlier.
    pub fn take_issues(&mut self) -> Vec<Issue> {
        let unsent = std::mem::take(&mut self.state.outbox.unsent);
        let issues: Vec<Issue> = unsent.iter().filter_map(|id| self.issue_of(*id)).collect();
        for issue in &issues {
            if self.state.outbox.farewells.remove(&issue.job).is_none() {
                self.state.outbox.told.insert(issue.job);
            }
        }
        issues
    }

    /// The messages for managers about all jobs, for a full plan. Jobs that aren't in it are gone.
    pub fn all_issues(&self) -> Vec<Issue> {
        self.state.jobs.keys().chain(self.state.leaving.keys()).filter_map(|id| self.issue_of(*id)).collect()
    }

    fn issue_of(&self, id: JobId) -> Option<Issue> {
        let state = &self.state;
        let active = || state.job(id).map(|job| job.issue_of(state.effective(job)));
        let leaving = || state.leaving.get(&id).map(|job| job.issue_of(job.verdict.clone()));
        active().or_else(leaving).or_else(|| state.outbox.farewells.get(&id).cloned())
    }

    fn choose_engine(&mut self, settings: &Settings) -> Result<(), SettingsError> {
        self.engine = if self.is_fallback() {
            engines::find(&settings.fallback)?.build(&Default::default())?
        } else {
            build(settings)?
        };
        self.memo = self.engine.new_memo();
        self.index = None;
        Ok(())
    }
}

/// Whether an engine can use a policy. `None` returns it to its own rules.
fn check_policy(engine: &str, policy: Option<&Policy>) -> Result<(), PolicyError> {
    let inputs = engines::policy_inputs(engine)?;
    match policy {
        None => Ok(()),
        Some(policy) if policy.engine() == engine => policy.check(inputs),
        Some(policy) => Err(PolicyError::Foreign { given: policy.engine().into(), wanted: engine.into() }),
    }
}

fn build(settings: &Settings) -> Result<Arc<dyn AnyEngine>, SettingsError> {
    let fallback =
        engines::find(&settings.fallback).map_err(|error| SettingsError { key: "fallback".into(), ..error })?;
    fallback.build(&Default::default())?;
    engines::find(&settings.engine)?.build(&settings.parameters)
}
