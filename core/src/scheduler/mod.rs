//! The scheduler: a state machine that does no I/O. Events go in; a ticket carries a consistent copy to wherever the
//! engine runs; its outcome is committed against the state as it is then.

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

/// An engine that the fallback replaced is tried again after this.
const SECOND_CHANCE: Span = Span::seconds(600);

/// An outcome that can't be committed: a newer ticket was prepared, or this one was abandoned.
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
    /// Engine failures in a row, late tickets included; the fallback decides once there are too many.
    failures: u32,
    /// Since when the fallback decides.
    fallback_since: Option<Time>,
    next_ticket: u64,
    open: Option<TicketId>,
    open_fit: Option<TicketId>,
    /// Jobs of the open fit ticket: to be fitted again if it is lost.
    fitting: Vec<JobId>,
    digest: [u8; 32],
    decided_at: Option<Time>,
    wake_at: Option<Time>,
    records: Option<Vec<Vec<u8>>>,
    last_error: Option<Failure>,
}

impl Scheduler {
    /// An empty cluster under these settings.
    ///
    /// # Errors
    /// There is no such engine, a parameter isn't allowed, or limits name too many types of resources.
    pub fn new(settings: Settings) -> Result<Self, SettingsError> {
        let engine = build(&settings)?;
        let mut state = State::default();
        let event = Event::Configured(Box::new(settings));
        // The first event is the settings, so that the journal alone tells everything.
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

    /// The same with an engine that is in no registry, until the fallback or new settings replace it: for tests of
    /// what stands around engines.
    ///
    /// # Errors
    /// As [`new`](Self::new), for the engine that the settings name.
    #[doc(hidden)]
    pub fn with_engine(settings: Settings, engine: Arc<dyn AnyEngine>) -> Result<Self, SettingsError> {
        let mut scheduler = Self::new(settings)?;
        scheduler.replace_engine(engine);
        Ok(scheduler)
    }

    /// The same for a scheduler that is at work.
    #[doc(hidden)]
    pub fn replace_engine(&mut self, engine: Arc<dyn AnyEngine>) {
        self.supersede();
        self.memo = engine.new_memo();
        self.engine = engine;
        self.index = None;
    }

    /// From now on keeps a record of everything, to be taken with [`drain_journal`](Self::drain_journal); the first one
    /// is a snapshot. A ticket that is open is superseded, since replay could not finish it.
    pub fn start_journal(&mut self) {
        self.records = None;
        let now = self.state.now;
        for ticket in [self.open, self.open_fit].into_iter().flatten() {
            self.abandon(now, ticket, Why::Lost);
        }
        self.records = Some(Vec::new());
        self.snapshot();
    }

    /// The encoded records since the last call, in order. Written one after the other they are a journal.
    pub fn drain_journal(&mut self) -> Vec<Vec<u8>> {
        self.records.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Adds a snapshot to the journal: recovery starts at the last one. O(state). Returns false, and adds none, while a
    /// ticket is open: replay could not finish it.
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

    /// The cluster, its jobs and the plan.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Digest over all committed decisions.
    pub fn digest(&self) -> [u8; 32] {
        self.digest
    }

    /// When a decision was last committed.
    pub fn decided_at(&self) -> Option<Time> {
        self.decided_at
    }

    /// The engine's last failure, if it failed last time.
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

    /// Takes an event. O(what it changes); nothing is decided.
    ///
    /// # Errors
    /// The event can't be accepted; nothing changed but counts of nonsense.
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
            // What the engine before it still works on is of no use any more.
            self.replace_engine(engine);
            (self.failures, self.fallback_since) = (0, None);
            self.last_error = None;
            self.wake_at = None;
            self.decided_at = None;
        }
        self.state.issue();
        Ok(())
    }

    /// Of what was refused only what it changed is recorded: a count, and that time went on.
    fn record_event(&mut self, at: Time, event: Event, result: &Result<(), EventError>) {
        let event = match result {
            Ok(()) | Err(EventError::LateRefusal { .. }) => event,
            Err(EventError::Time { .. }) => return,
            Err(EventError::Report { job, .. }) => Event::ReportIgnored { job: *job },
            Err(_) => Event::Elapsed,
        };
        self.record(|| Record::Event { at, event });
    }

    /// Whether the engine in charge could ever run such a job.
    fn supports(&self, spec: &JobSpec) -> Result<(), EventError> {
        spec.validate()?;
        let engine = self.state.settings.engine.clone();
        self.engine.accepts(spec).map_err(|problem| EventError::Unsupported { engine, problem })
    }

    /// Checks a proposal against the state as it is, as [`Ticket::run`] does.
    ///
    /// # Errors
    /// The first rule that it breaks.
    pub fn check(&self, proposal: &crate::decision::Proposal) -> Result<(), crate::guard::Violation> {
        crate::guard::check(&self.state, proposal, self.engine.gang(), self.engine.limits()).map(drop)
    }

    /// The engine's memory between decisions as snapshots hold it: the version of its layout, and its bytes. For
    /// audits, and to compare replicas.
    pub fn memo_bytes(&self) -> (u32, Vec<u8>) {
        (self.engine.memo_version(), self.memo.bytes())
    }

    /// What the engine goes by at the moment, such as prices: see
    /// [`Engine::readings`](crate::engine::Engine::readings).
    pub fn readings(&self) -> Vec<(String, f64)> {
        self.engine.readings(&self.state, &mut *self.memo.boxed())
    }

    /// A copy of the engine's memory: for tests and benchmarks of an engine's own.
    #[doc(hidden)]
    pub fn memo(&self) -> Box<dyn AnyMemo> {
        self.memo.boxed()
    }

    /// Drops what the engine derived from the state; it is built anew when next needed.
    pub fn forget_index(&mut self) {
        self.index = None;
    }

    /// When the next [`prepare`](Self::prepare) is wanted; `None` while nothing happens, or a resync is open. O(1).
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

    /// Opens a ticket: a consistent copy for the engine. Costs microseconds plus what no longer fits; an older ticket
    /// that is still open is superseded.
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

    /// Makes the outcome of the open ticket the plan, as far as it still fits, and issues what its room allows.
    ///
    /// An engine that failed changes nothing: the last plan stands, less what was evicted, and the failure is counted.
    /// After `fallback_after` of them in a row the fallback engine decides; where that fails as often, the mode is
    /// [`Paused`](Mode::Paused) from then on.
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
                // What was noted since waits for the next ticket.
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

    /// Counts a failure of the engine in charge; after a few in a row the fallback takes over, and where that fails as
    /// often nobody is left to decide: every job is its manager's.
    fn fail(&mut self, error: Failure) {
        let was_fallback = self.is_fallback();
        let patience = self.state.settings.fallback_after;
        self.last_error = Some(error);
        self.failures = self.failures.saturating_add(1);
        if self.is_fallback() && !was_fallback {
            self.fallback_since = Some(self.state.now);
            let settings = self.state.settings.clone();
            // The registry knew both names when the settings were applied.
            let _ = self.choose_engine(&settings);
        } else if was_fallback && self.failures - patience >= patience.max(1) {
            self.failures = patience;
            if self.state.mode == Mode::Active {
                self.state.set_mode(Mode::Paused);
            }
        }
    }

    /// What made the engine fail may be over: after a while it has one more try.
    fn try_again(&mut self) {
        let settings = self.state.settings.clone();
        let over = self.fallback_since.is_some_and(|since| self.state.now - since >= SECOND_CHANCE);
        if over && self.is_fallback() && settings.fallback_after > 0 {
            (self.failures, self.fallback_since) = (settings.fallback_after - 1, None);
            // The registry knew it when the settings were applied.
            let _ = self.choose_engine(&settings);
        }
    }

    /// What the open ticket comes to will not be committed.
    fn supersede(&mut self) {
        self.open = None;
        self.state.changes.returned();
    }

    /// Lays a proposal over the plan. Jobs that ended, that are no longer the engine's, or whose new slots are where
    /// none may come any more, are left as they are.
    ///
    /// Where nothing moved since the guard checked it, O(jobs that change + servers that they touch); else O(slots of
    /// the jobs that change · log of a job's slots), and see [`State::settle`].
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
                // In the engine's index it is where it doesn't go.
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

    /// Gives a ticket up. Its engine's changes will be delivered again; being late counts as a failure of the engine.
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

    /// Fits what has reports that no fit knows, then prepares, runs and commits: for callers without a limit.
    pub fn decide(&mut self, at: Time) -> Decision {
        while let Some(ticket) = self.prepare_fits(at) {
            let outcome = ticket.run();
            let _ = self.commit_fits(at, outcome);
        }
        let outcome = self.prepare(at).run(Budget::UNLIMITED);
        self.commit(at, outcome).expect("no other ticket was opened")
    }

    /// What a ticket covers that won't be committed has news still, unless it has ended meanwhile.
    fn take_fits_back(&mut self) {
        for job in std::mem::take(&mut self.fitting) {
            if self.state.jobs.contains_key(&job) {
                self.state.pending.unfitted.insert(job);
            }
        }
    }

    /// Whether jobs have news that no ticket covers yet.
    pub fn has_news(&self) -> bool {
        !self.state.pending.unfitted.is_empty()
    }

    /// Opens a ticket for the fits of jobs that have news; `None` if none has. One covers [`FitTicket::MOST`] jobs, by
    /// turns of managers and their tenants; where more have news, others come in the next ones. O(n log n) in jobs with
    /// news.
    pub fn prepare_fits(&mut self, at: Time) -> Option<FitTicket> {
        if self.state.pending.unfitted.is_empty() && self.fitting.is_empty() {
            return None;
        }
        self.state.now = self.state.now.max(at);
        // A ticket that is still open is superseded by one that covers its jobs as well.
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

    /// Takes fits over.
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

    /// What managers are to be told since the last call, by job; also that a job is gone which they were told of
    /// before.
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

    /// What managers are to be told about every job, for a full plan: what isn't in it is gone.
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

/// Whether an engine can follow a policy; none means that it is to follow its own rules again.
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
