//! The scheduler: a state machine without I/O. The host feeds it events. A ticket carries a consistent copy of the
//! state to the thread that runs the engine, and its outcome is committed to the current state.

mod decide;
mod fits;
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
    decision::Issue,
    engine::{AnyEngine, AnyIndex, AnyMemo},
    engines,
    event::{Event, EventError},
    ids::{JobId, TicketId},
    job::{JobSpec, StopChoice},
    journal::{Record, Saved},
    policy::{Policy, PolicyError},
    settings::{Settings, SettingsError},
    state::State,
    time::Time,
};

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
            domains: self.state.saved_domains(),
            tables: self.state.saved_tables(),
            batches: self.state.saved_batches(),
            noises: self.state.saved_noises(),
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
        scheduler.state.restore_domains(saved.domains);
        scheduler.state.restore_tables(saved.tables);
        scheduler.state.restore_batches(saved.batches);
        scheduler.state.restore_noises(saved.noises);
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

    /// What the submitter of a job should know: what the engine can't do on the present servers, and a rule for early
    /// stops that nobody applies. O(servers).
    pub fn caveats(&self, spec: &JobSpec) -> Vec<String> {
        let engine = self.engine_name();
        let cannot = self.engine.caveat(&self.state).map(|caveat| format!("engine {engine}: {caveat}"));
        let applied = self.state.settings.early_stop || self.engine.stops_early();
        let void = spec.stop_under_load != StopChoice::Epochs && !applied;
        let void = void.then(|| {
            format!(
                "{}: stop and stop_under_load have no effect: early_stop is off in [scheduler], and engine {engine} \
                 ends no job early",
                spec.name
            )
        });
        cannot.into_iter().chain(void).collect()
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
