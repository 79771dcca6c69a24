//! The state: all that is known about the cluster, updated event by event.
//!
//! Copying a `State` takes microseconds at any size. The copy shares all tables, and later changes copy only the
//! changed parts. Names are interned to dense ids.

mod apply;
mod audit;
mod batches;
mod census;
mod changes;
mod charge;
mod describe;
mod directory;
mod gpu_types;
mod issue;
mod measured;
mod names;
mod never_fits;
mod note;
mod pending;
mod report;
mod room;
mod roster;
mod servers;
mod settle;
mod speed_tables;
mod sums;
mod topology;

use std::sync::Arc;

use imbl::{OrdMap, OrdSet, Vector};
use serde::{Deserialize, Serialize};

pub(crate) use self::batches::SavedNoise;
pub(crate) use self::charge::idle;
pub(crate) use self::gpu_types::TypesByTenant;
pub use self::{
    census::Count,
    changes::Change,
    charge::usage_by_server,
    describe::ServerRoom,
    directory::{Account, Model},
};
use self::{changes::Changes, directory::Directory};
pub(crate) use self::{
    pending::{Outbox, Pending},
    roster::Roster,
    sums::Sums,
};
use crate::{
    decision::{Allocation, Verdict},
    ids::{DecisionId, JobId, ResourceId, Revision, ServerId, Term},
    job::{Job, Utility},
    policy::{Inputs, Policy},
    reason::{Reason, Scope},
    resources::{Amounts, ResourceTypes},
    server::Server,
    settings::{Mode, Settings, Stability},
    tables::table,
    time::{Span, Time},
};

/// Maximum time for which open resyncs can delay decisions.
const LONGEST_SYNC: Span = Span::seconds(10);
/// Maximum time for which a job keeps its slots after a restart, in times of `stability.min_run`.
const LONGEST_RUN: i64 = 5;
/// The period of `stability.rescales_per_hour`.
const HOUR: Span = Span::seconds(3600);

/// The mandate of a job: what an engine may do with it now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mandate {
    /// Anything within its bounds.
    Free,
    /// The job keeps its slots (stability).
    Pinned(Arc<Allocation>),
    /// The engine can't plan the job: it is held, blocked by the manager, past its time limit, or was told to end.
    Closed,
}

/// The stability rule that pins a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeps {
    /// The last start was less than `min_run` ago, or it was a restart that hasn't paid back yet.
    MinRun {
        /// Time until the next restart is possible.
        left: Span,
    },
    /// The job has used up its `rescales_per_hour`.
    Rescales {
        /// Time until the next restart is possible. None: none is allowed at all.
        left: Option<Span>,
    },
    /// The job ends before a restart pays back (`payback`).
    NearEnd {
        /// Predicted time until its end.
        left: Span,
    },
}

/// The cluster, its jobs and the plan.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct State {
    /// The time of the last event.
    pub now: Time,
    /// Term of the scheduler process.
    pub term: Term,
    /// The last committed decision.
    pub decision: DecisionId,
    /// Scheduling mode.
    pub mode: Mode,
    /// Current settings.
    pub settings: Arc<Settings>,
    /// Resource names.
    pub resources: Arc<ResourceTypes>,
    /// Present servers and recently absent ones, by id. See [`Server::present`].
    pub servers: Vector<Arc<Server>>,
    /// Active jobs, in the order of their submission.
    #[serde(deserialize_with = "table")]
    pub jobs: OrdMap<JobId, Arc<Job>>,
    /// Tenants of active jobs, by id.
    pub tenants: Vector<Account>,
    /// Queues of active jobs, by id.
    pub queues: Vector<Account>,
    /// Data learnt per model, by tenant and model as `tenant/model`, or by model if all tenants
    /// [share](Settings::share_models) it. It includes the models of active jobs and recently used ones.
    #[serde(deserialize_with = "table")]
    pub models: OrdMap<Arc<str>, Arc<Model>>,
    /// Total capacity of all present servers, without foreign use.
    pub usable: Amounts,
    /// Total capacity of all present servers.
    pub capacity: Amounts,
    /// Learnt policies, by engine name.
    #[serde(deserialize_with = "table")]
    pub policies: OrdMap<Arc<str>, Arc<Policy>>,
    /// Managers and servers by name.
    pub(crate) roster: Roster,
    /// Tenants, queues, jobs and models by name.
    pub(crate) directory: Directory,
    /// Ended jobs whose slots may still exist.
    #[serde(deserialize_with = "table")]
    pub(crate) leaving: OrdMap<JobId, Arc<Job>>,
    /// Work that the scheduler has yet to do.
    pub(crate) pending: Pending,
    /// Whether the last decision left a job waiting for room. Only known if jobs can be stopped early.
    pub(crate) overloaded: bool,
    /// Messages that managers have yet to get.
    pub(crate) outbox: Outbox,
    /// Changes that the engine has yet to get.
    pub(crate) changes: Changes,
    /// Counts changes of room, limits and plan. While it is unchanged, earlier checks of room are still valid.
    #[serde(skip)]
    pub(crate) moved: u64,
    /// Active jobs that ask for closeness.
    #[serde(skip)]
    near: OrdSet<JobId>,
    /// The domains of the servers. None after servers or their labels have changed.
    #[serde(skip)]
    domains: Option<Arc<topology::Domains>>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            now: Time(i64::MIN),
            term: Term(0),
            decision: DecisionId(0),
            mode: Mode::Active,
            settings: Arc::default(),
            resources: Arc::default(),
            servers: Vector::new(),
            jobs: OrdMap::new(),
            tenants: Vector::new(),
            queues: Vector::new(),
            models: OrdMap::new(),
            usable: Amounts::default(),
            capacity: Amounts::default(),
            policies: OrdMap::new(),
            roster: Roster::default(),
            directory: Directory::default(),
            leaving: OrdMap::new(),
            pending: Pending::default(),
            overloaded: false,
            outbox: Outbox::default(),
            changes: Changes::default(),
            moved: 0,
            near: OrdSet::new(),
            domains: None,
        }
    }
}

impl State {
    /// An active job.
    pub fn job(&self, id: JobId) -> Option<&Arc<Job>> {
        self.jobs.get(&id)
    }

    /// A job that is active, or that has ended and may still have slots.
    pub fn known_job(&self, id: JobId) -> Option<&Arc<Job>> {
        self.jobs.get(&id).or_else(|| self.leaving.get(&id))
    }

    /// The learnt policy of an engine, if it suits the engine's current inputs.
    pub fn policy(&self, engine: &str, inputs: &Inputs) -> Option<&Arc<Policy>> {
        self.policies.get(engine).filter(|policy| policy.suits(inputs))
    }

    /// An active job by its name or number.
    pub fn find_job(&self, name: &str) -> Option<&Arc<Job>> {
        let id = self.directory.job_names.get(name).copied().or_else(|| name.parse().ok().map(JobId))?;
        self.job(id)
    }

    /// A server by its id.
    ///
    /// # Panics
    /// With an id of another state.
    pub fn server(&self, id: ServerId) -> &Arc<Server> {
        &self.servers[id.index()]
    }

    /// A server by its name.
    pub fn find_server(&self, name: &str) -> Option<&Arc<Server>> {
        self.roster.server_ids.get(name).map(|id| self.server(*id))
    }

    /// The name of the manager that reports a server. `None` if the server is absent.
    pub fn manager_of(&self, id: ServerId) -> Option<&str> {
        let server = self.servers.get(id.index()).filter(|server| server.present)?;
        self.roster.managers.get(server.manager.0 as usize).map(|manager| &*manager.name)
    }

    /// The name of the manager that reports a server, or last reported it.
    pub fn last_manager_of(&self, id: ServerId) -> Option<&str> {
        let server = self.servers.get(id.index())?;
        self.roster.managers.get(server.manager.0 as usize).map(|manager| &*manager.name)
    }

    /// A server's name, or `?` if there is no such server.
    pub fn server_name(&self, id: ServerId) -> &str {
        self.servers.get(id.index()).map_or("?", |server| &server.name)
    }

    /// A job's name, or `a job that has ended` if it isn't active.
    pub fn job_name(&self, id: JobId) -> &str {
        self.jobs.get(&id).map_or("a job that has ended", |job| &job.spec.name)
    }

    /// Ended jobs that may still have slots.
    pub fn leaving_jobs(&self) -> &OrdMap<JobId, Arc<Job>> {
        &self.leaving
    }

    /// Servers that are present.
    pub fn present_servers(&self) -> impl Iterator<Item = &Arc<Server>> {
        self.servers.iter().filter(|server| server.present)
    }

    /// The mandate: what an engine can do with a job now.
    pub fn mandate(&self, job: &Job) -> Mandate {
        let is_over = matches!(job.verdict, Verdict::Stop(_)) || self.is_over_time(job);
        if job.held || is_over || self.is_blocked(job) {
            return Mandate::Closed;
        }
        match &job.verdict {
            Verdict::Run(allocation) if self.is_stable(job) => Mandate::Pinned(allocation.clone()),
            _ => Mandate::Free,
        }
    }

    /// Whether an engine can give the job this verdict now. For a pinned job, the work of its slots can change, but not
    /// the slots.
    pub(crate) fn may_become(&self, job: &Job, verdict: &Verdict) -> bool {
        match self.mandate(job) {
            Mandate::Free => true,
            Mandate::Closed => false,
            Mandate::Pinned(kept) => verdict.allocation().is_some_and(|next| next.slots() == kept.slots()),
        }
    }

    /// Whether the manager refused the job so often that others get its room until the wait ends.
    fn is_blocked(&self, job: &Job) -> bool {
        job.issued.refusals >= self.settings.refusals
            && job.issued.blocked.as_ref().is_some_and(|(until, _)| *until > self.now)
    }

    pub(crate) fn is_over_time(&self, job: &Job) -> bool {
        job.limit_at().is_some_and(|at| at <= self.now)
    }

    /// Whether stability pins the job: it is within its minimum run time, has used up its restarts per hour, or is so
    /// near its end that a restart doesn't pay back.
    fn is_stable(&self, job: &Job) -> bool {
        let rule = || self.keeps_min_run(job).or_else(|| self.keeps_budget(job)).or_else(|| self.keeps_to_end(job));
        self.can_pin(job) && rule().is_some()
    }

    /// The stability rule that pins the job for the longest time, if one does.
    pub fn stability(&self, job: &Job) -> Option<Keeps> {
        if !self.can_pin(job) {
            return None;
        }
        let rules = [self.keeps_min_run(job), self.keeps_budget(job), self.keeps_to_end(job)];
        rules.into_iter().flatten().max_by_key(|rule| match rule {
            Keeps::MinRun { left } | Keeps::NearEnd { left } => *left,
            Keeps::Rescales { left } => left.unwrap_or(Span(i64::MAX)),
        })
    }

    /// Whether stability applies to the job: it has what is planned for it.
    fn can_pin(&self, job: &Job) -> bool {
        self.settings.stability.enabled
            && job.issued.allocation.is_some()
            && job.issued.allocation.as_ref() == job.verdict.allocation()
    }

    /// When the job was last told to start, and whether that was a restart for another shape or place. What it gained
    /// in place since then doesn't count.
    fn last_start(job: &Job) -> (Time, bool) {
        let (changed, restarted) = (job.issued.changed, job.issued.restarted_at.last().copied());
        if job.issued.revision == Revision(0) {
            return (changed, restarted == Some(changed));
        }
        (restarted.or(job.seen.started).unwrap_or(changed), restarted.is_some())
    }

    /// The time until which a job keeps its slots: from its last start on `min_run`, or after a restart as long as that
    /// takes to pay back, up to [`LONGEST_RUN`] times `min_run`: jobs report what a restart costs.
    pub(crate) fn keeps_until(&self, job: &Job) -> Time {
        let (started, _) = Self::last_start(job);
        started + self.keeps_for(job)
    }

    /// The length of that time.
    pub(crate) fn keeps_for(&self, job: &Job) -> Span {
        let Stability { min_run, payback, .. } = self.settings.stability;
        let (_, restarted) = Self::last_start(job);
        let cost = if restarted { Span::from_seconds(job.learnt.restart_cost.as_seconds() * payback) } else { min_run };
        cost.min(Span(min_run.0.saturating_mul(LONGEST_RUN))).max(min_run)
    }

    fn keeps_min_run(&self, job: &Job) -> Option<Keeps> {
        let until = self.keeps_until(job);
        (until > self.now).then(|| Keeps::MinRun { left: until - self.now })
    }

    fn keeps_budget(&self, job: &Job) -> Option<Keeps> {
        let hour_ago = Time(self.now.0 - HOUR.0);
        let restarts = &job.issued.restarted_at;
        let recent = &restarts[restarts.partition_point(|at| *at <= hour_ago)..];
        let over = recent.len().checked_sub(self.settings.stability.rescales_per_hour as usize)?;
        Some(Keeps::Rescales { left: recent.get(over).map(|at| *at - hour_ago) })
    }

    fn keeps_to_end(&self, job: &Job) -> Option<Keeps> {
        let cost = job.learnt.restart_cost.as_seconds() * self.settings.stability.payback;
        if cost <= 0.0 || job.learnt.fits.loss.is_none() {
            return None;
        }
        let left = job.remaining_time(job.shape()).filter(|left| left.as_seconds() < cost)?;
        Some(Keeps::NearEnd { left })
    }

    /// The earliest end of a refusal's wait or of a time limit.
    pub(crate) fn next_timer(&self) -> Option<Time> {
        self.pending.timers.get_min().map(|(at, _)| *at)
    }

    /// The limit of the job's queue or tenant that refuses `extra`.
    pub fn account_excess(&self, job: &Job, extra: &Amounts) -> Option<Reason> {
        let tenant = &self.tenants[job.tenant.0 as usize];
        let queue = &self.queues[job.queue.0 as usize];
        let exhausted = |scope, (resource, left, limit): (ResourceId, i64, i64)| Reason::Exhausted {
            scope,
            resource,
            needed: extra[resource],
            left,
            limit,
        };
        if let Some(excess) = queue.excess(extra) {
            return Some(exhausted(Scope::Queue(queue.name.clone()), excess));
        }
        tenant.excess(extra).map(|excess| exhausted(Scope::Tenant(tenant.name.clone()), excess))
    }

    /// The verdict to tell a manager: the job's verdict, reduced to the issued slots, in the current mode.
    pub fn effective(&self, job: &Job) -> Verdict {
        if self.mode != Mode::Active {
            let given =
                job.issued.allocation.as_ref().or(job.seen.allocation.as_ref()).map(|allocation| allocation.shape());
            return Verdict::Release(given.filter(|shape| !shape.is_empty()).unwrap_or_else(|| job.spec.requested()));
        }
        match (&job.verdict, &job.issued.allocation) {
            (Verdict::Run(_), Some(issued)) if !job.issued.revoked => Verdict::Run(issued.clone()),
            (Verdict::Run(_), _) => Verdict::Wait(job.issued.reason.clone().unwrap_or(Reason::NotConsidered)),
            (verdict, _) => verdict.clone(),
        }
    }

    /// A job's worth by its completion time, within the site's cap. `None` if the job file sets no utility.
    pub fn utility(&self, job: &Job) -> Option<Utility> {
        job.spec.utility.as_ref().map(|utility| utility.capped(self.settings.caps.utility))
    }

    /// A job's urgency within the site's cap. `None` if the job file sets none.
    pub fn urgency(&self, job: &Job) -> Option<u32> {
        job.spec.urgency.map(|urgency| urgency.min(self.settings.caps.urgency))
    }

    /// A job's priority within the site's cap.
    pub fn priority(&self, job: &Job) -> i32 {
        job.spec.priority.min(self.settings.caps.priority)
    }

    /// Forgets what the host was told, because no journal contains it.
    pub(crate) fn forget_told(&mut self) {
        self.outbox = Outbox::default();
    }

    pub(crate) fn job_mut(&mut self, id: JobId) -> Option<&mut Job> {
        self.jobs.get_mut(&id).map(Arc::make_mut)
    }

    pub(crate) fn server_mut(&mut self, id: ServerId) -> &mut Server {
        Arc::make_mut(&mut self.servers[id.index()])
    }

    /// Whether a manager's resync is open. Meanwhile no decision is prepared, for at most a few seconds, even if
    /// several managers resync one after the other.
    pub fn is_syncing(&self) -> bool {
        self.roster.syncing_since.is_some_and(|since| self.now - since < LONGEST_SYNC)
    }

    /// Sets a job's verdict and updates all sums. O(slots of the old and new allocation).
    pub(crate) fn set_verdict(&mut self, id: JobId, verdict: Verdict) {
        let Some(job) = self.jobs.get(&id).cloned() else { return };
        self.moved += 1;
        if let Some(old) = job.verdict.allocation() {
            self.add_planned(&job, old, -1);
        }
        if let Some(new) = verdict.allocation() {
            self.add_planned(&job, new, 1);
        }
        drop(job);
        let job = self.job_mut(id).expect("looked up above");
        job.verdict = verdict;
        self.pending.revised.insert(id);
        self.pending.unissued.insert(id);
    }

    /// Sets verdicts with the sums that the guard computed on this same state. O(jobs + servers that they touch).
    pub(crate) fn set_checked(&mut self, changes: Vec<(JobId, Verdict)>, sums: Sums) {
        self.moved += 1;
        for (server, planned) in sums.servers {
            self.server_mut(server).planned = planned;
            self.note(Change::Server(server));
        }
        for (tenant, extra) in &sums.tenants {
            self.tenants[tenant.0 as usize].planned += extra;
        }
        for (queue, extra) in &sums.queues {
            self.queues[queue.0 as usize].planned += extra;
        }
        for (id, verdict) in changes {
            let job = self.job_mut(id).expect("checked");
            if !job.verdict.same_kind(&verdict) {
                job.verdict = verdict;
                self.pending.revised.insert(id);
                self.pending.unissued.insert(id);
            }
        }
    }

    fn add_planned(&mut self, job: &Job, allocation: &Allocation, times: i64) {
        let mut total = Amounts::default();
        for (server, usage) in usage_by_server(self, job, allocation) {
            total.add_times(&usage.amounts, times);
            self.server_mut(server).planned.add_usage(&usage, times);
            self.note(Change::Server(server));
        }
        self.tenants[job.tenant.0 as usize].planned += &total;
        self.queues[job.queue.0 as usize].planned += &total;
    }
}
