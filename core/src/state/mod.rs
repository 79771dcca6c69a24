//! Everything known about the cluster, kept event by event.
//!
//! Copying a `State` costs microseconds at any size: the tables share their parts with the copy until one of them
//! changes, and then only what changed is copied. Names are interned to dense ids.

mod apply;
mod audit;
mod census;
mod changes;
mod charge;
mod describe;
mod directory;
mod issue;
mod measured;
mod names;
mod never_fits;
mod note;
mod pending;
mod report;
mod roster;
mod servers;
mod settle;
mod sums;

use std::sync::Arc;

use imbl::{OrdMap, Vector};
use serde::{Deserialize, Serialize};

pub(crate) use self::charge::{idle, usage_by_server};
pub use self::{
    census::Count,
    changes::Change,
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
    ids::{DecisionId, JobId, ResourceId, ServerId, Term},
    job::{Job, Utility},
    policy::{Inputs, Policy},
    reason::{Reason, Scope},
    resources::{Amounts, ResourceTypes},
    server::Server,
    settings::{Mode, Settings},
    tables::table,
    time::{Span, Time},
};

/// Nobody keeps all others waiting for longer than this by telling what it has.
const LONGEST_SYNC: Span = Span::seconds(10);

/// The mandate of a job: what an engine may do with it now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mandate {
    /// Anything within its bounds.
    Free,
    /// It keeps the slots it has (stability).
    Pinned(Arc<Allocation>),
    /// It isn't the engine's to plan: held, blocked by the manager, over its time.
    Closed,
}

/// The cluster, its jobs and the plan.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct State {
    /// The time of the last event.
    pub now: Time,
    /// Leader epoch.
    pub term: Term,
    /// The last committed decision.
    pub decision: DecisionId,
    /// Who is in charge.
    pub mode: Mode,
    /// What is configured.
    pub settings: Arc<Settings>,
    /// Resource names.
    pub resources: Arc<ResourceTypes>,
    /// Servers that are there, and those that left last, by id; see [`Server::present`].
    pub servers: Vector<Arc<Server>>,
    /// Active jobs, in the order of their submission.
    #[serde(deserialize_with = "table")]
    pub jobs: OrdMap<JobId, Arc<Job>>,
    /// Tenants of active jobs, by id.
    pub tenants: Vector<Account>,
    /// Queues of active jobs, by id.
    pub queues: Vector<Account>,
    /// What jobs of a model have taught, by tenant and model as `tenant/model`, or by model where all tenants
    /// [share](Settings::share_models): those of active jobs, and some that were used last.
    #[serde(deserialize_with = "table")]
    pub models: OrdMap<Arc<str>, Arc<Model>>,
    /// What all present servers have, less foreign use.
    pub usable: Amounts,
    /// What all present servers have.
    pub capacity: Amounts,
    /// What engines have learnt, by their names.
    #[serde(deserialize_with = "table")]
    pub policies: OrdMap<Arc<str>, Arc<Policy>>,
    /// Managers and servers by name.
    pub(crate) roster: Roster,
    /// Tenants, queues, jobs and models by name.
    pub(crate) directory: Directory,
    /// Jobs that are over, while some of their slots may still exist.
    #[serde(deserialize_with = "table")]
    pub(crate) leaving: OrdMap<JobId, Arc<Job>>,
    /// What the scheduler is yet to do.
    pub(crate) pending: Pending,
    /// What managers are yet to be sent.
    pub(crate) outbox: Outbox,
    /// What the engine is yet to learn.
    pub(crate) changes: Changes,
    /// Counts changes of room, of limits and of the plan: where it stands still, what fitted still fits.
    #[serde(skip)]
    pub(crate) moved: u64,
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
            outbox: Outbox::default(),
            changes: Changes::default(),
            moved: 0,
        }
    }
}

impl State {
    /// An active job.
    pub fn job(&self, id: JobId) -> Option<&Arc<Job>> {
        self.jobs.get(&id)
    }

    /// A job that is active, or over while something of it may still exist.
    pub fn known_job(&self, id: JobId) -> Option<&Arc<Job>> {
        self.jobs.get(&id).or_else(|| self.leaving.get(&id))
    }

    /// What an engine has learnt, if that suits what it shows a policy now.
    pub fn policy(&self, engine: &str, inputs: &Inputs) -> Option<&Arc<Policy>> {
        self.policies.get(engine).filter(|policy| policy.suits(inputs))
    }

    /// The active job of a name or number.
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

    /// The name of the manager that reports a server; `None` if it is gone.
    pub fn manager_of(&self, id: ServerId) -> Option<&str> {
        let server = self.servers.get(id.index()).filter(|server| server.present)?;
        self.roster.managers.get(server.manager.0 as usize).map(|manager| &*manager.name)
    }

    /// The name of the manager that reports a server, or reported it last.
    pub fn last_manager_of(&self, id: ServerId) -> Option<&str> {
        let server = self.servers.get(id.index())?;
        self.roster.managers.get(server.manager.0 as usize).map(|manager| &*manager.name)
    }

    /// A server's name, or its number if there is no such server.
    pub fn server_name(&self, id: ServerId) -> &str {
        self.servers.get(id.index()).map_or("?", |server| &server.name)
    }

    /// A job's name, or a dash if it is no longer active.
    pub fn job_name(&self, id: JobId) -> &str {
        self.jobs.get(&id).map_or("a job that has ended", |job| &job.spec.name)
    }

    /// Jobs that are over, but of which something may still exist.
    pub fn leaving_jobs(&self) -> &OrdMap<JobId, Arc<Job>> {
        &self.leaving
    }

    /// Servers that are there.
    pub fn present_servers(&self) -> impl Iterator<Item = &Arc<Server>> {
        self.servers.iter().filter(|server| server.present)
    }

    /// What an engine may do with a job now.
    pub fn mandate(&self, job: &Job) -> Mandate {
        if job.held || self.is_blocked(job) || self.is_over_time(job) {
            return Mandate::Closed;
        }
        match &job.verdict {
            Verdict::Run(allocation) if self.is_stable(job) => Mandate::Pinned(allocation.clone()),
            _ => Mandate::Free,
        }
    }

    /// Whether an engine may give it this verdict now. Of a pinned job only what its slots do may change, not the
    /// slots.
    pub(crate) fn may_become(&self, job: &Job, verdict: &Verdict) -> bool {
        match self.mandate(job) {
            Mandate::Free => true,
            Mandate::Closed => false,
            Mandate::Pinned(kept) => verdict.allocation().is_some_and(|next| next.slots() == kept.slots()),
        }
    }

    /// Whether the manager refused it so often that others get its room until the wait is over.
    fn is_blocked(&self, job: &Job) -> bool {
        job.issued.refusals >= self.settings.refusals
            && job.issued.blocked.as_ref().is_some_and(|(until, _)| *until > self.now)
    }

    pub(crate) fn is_over_time(&self, job: &Job) -> bool {
        job.limit_at().is_some_and(|at| at <= self.now)
    }

    /// Whether stability keeps it as it is: inside its minimum run time, over its rescale budget, or so near its end
    /// that no restart pays.
    fn is_stable(&self, job: &Job) -> bool {
        let rules = &self.settings.stability;
        if !rules.enabled
            || job.issued.allocation.is_none()
            || job.issued.allocation.as_ref() != job.verdict.allocation()
        {
            return false;
        }
        if self.now - job.issued.changed < rules.min_run {
            return true;
        }
        let hour_ago = Time(self.now.0 - 3_600_000);
        let recent = job.issued.rescaled_at.iter().filter(|at| **at > hour_ago).count();
        if recent >= rules.rescales_per_hour as usize {
            return true;
        }
        let cost = job.learnt.restart_cost.as_seconds() * rules.payback;
        cost > 0.0
            && job.learnt.fits.loss.is_some()
            && job.remaining_time(job.shape()).is_some_and(|left| left.as_seconds() < cost)
    }

    /// When a refusal's wait or a time limit ends, at the earliest.
    pub(crate) fn next_timer(&self) -> Option<Time> {
        self.pending.timers.get_min().map(|(at, _)| *at)
    }

    /// The limit that refuses `extra` to a job: its tenant's or its queue's.
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

    /// What a manager should know of a job now: its verdict, cut to what is issued, in the mode that is set.
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

    /// What a job is worth by the time of its end, within the site's cap; `None` where its owner doesn't say.
    pub fn utility(&self, job: &Job) -> Option<Utility> {
        job.spec.utility.as_ref().map(|utility| utility.capped(self.settings.caps.utility))
    }

    /// A job's urgency within the site's cap; `None` where its owner doesn't say.
    pub fn urgency(&self, job: &Job) -> Option<u32> {
        job.spec.urgency.map(|urgency| urgency.min(self.settings.caps.urgency))
    }

    /// Forgets what the host has asked about, which no journal holds.
    pub(crate) fn forget_told(&mut self) {
        self.outbox = Outbox::default();
    }

    pub(crate) fn job_mut(&mut self, id: JobId) -> Option<&mut Job> {
        self.jobs.get_mut(&id).map(Arc::make_mut)
    }

    pub(crate) fn server_mut(&mut self, id: ServerId) -> &mut Server {
        Arc::make_mut(&mut self.servers[id.index()])
    }

    /// Whether a manager's resync is open: nothing is prepared meanwhile, for some seconds at most, however many
    /// managers begin one after the other.
    pub fn is_syncing(&self) -> bool {
        self.roster.syncing_since.is_some_and(|since| self.now - since < LONGEST_SYNC)
    }

    /// Sets a job's verdict and keeps all sums. O(slots of the old and new allocation).
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

    /// Sets verdicts whose sums the guard has found, on this very state. O(jobs + servers that they touch).
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
