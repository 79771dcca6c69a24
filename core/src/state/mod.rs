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
mod measured;
mod names;
mod never_fits;
mod report;
mod servers;

use std::sync::Arc;

use imbl::{OrdMap, OrdSet, Vector};
use serde::{Deserialize, Serialize};

pub(crate) use self::charge::{idle, usage_by_server};
use self::{census::Census, changes::Changes};
pub use self::{
    census::Count,
    names::{Account, Model},
};
use crate::{
    decision::{Allocation, Verdict},
    guard::Sums,
    ids::{DecisionId, JobId, ManagerId, QueueId, ResourceId, ServerId, TenantId, Term},
    job::{Job, Utility},
    policy::{Inputs, Policy},
    reason::{Reason, Scope},
    resources::{Amounts, ResourceTypes},
    scheduler::Issue,
    server::Server,
    settings::{Mode, Settings},
    tables::table,
    time::{Span, Time},
};

/// Nobody keeps all others waiting for longer than this by telling what it has.
const LONGEST_SYNC: Span = Span::seconds(10);

/// Of more managers than this those without a server are forgotten.
const MANY_MANAGERS: usize = 64;

/// Something an engine may want to know about, since it last ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Change {
    /// A server came, left or changed, or the plan's use of it did.
    Server(ServerId),
    /// A job came, was held or released, progressed, or its predictions changed.
    Job(JobId),
    /// A job has trained another data chunk to its end.
    Trained(JobId),
    /// A job is over.
    Ended(JobId),
    /// What the engine proposed for this job no longer fitted at commit, or no longer fits.
    Dropped(JobId),
    /// Settings or limits.
    Settings,
    /// What a server carries was measured anew.
    Measured(ServerId),
}

/// A cluster manager.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manager {
    /// Its name.
    pub name: Arc<str>,
    /// While a resync is open: servers and jobs it has mentioned.
    pub(crate) sync: Option<(OrdSet<ServerId>, OrdSet<JobId>)>,
}

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
    /// Models without an active job, in the order in which they lost their last.
    #[serde(deserialize_with = "table")]
    pub(crate) idle_models: OrdMap<u64, Arc<str>>,
    /// What all present servers have, less foreign use.
    pub usable: Amounts,
    /// What all present servers have.
    pub capacity: Amounts,
    /// What engines have learnt, by their names.
    #[serde(deserialize_with = "table")]
    pub policies: OrdMap<Arc<str>, Arc<Policy>>,
    pub(crate) managers: Vector<Manager>,
    #[serde(deserialize_with = "table")]
    pub(crate) server_ids: OrdMap<Arc<str>, ServerId>,
    /// Servers that aren't there, in the order in which they left.
    #[serde(deserialize_with = "table")]
    pub(crate) absent: OrdMap<u64, ServerId>,
    pub(crate) census: Census,
    /// Since when there has always been one whose resync is open.
    pub(crate) syncing_since: Option<Time>,
    /// So many of them are too many.
    pub(crate) forget_at: usize,
    /// Numbers of servers that are forgotten.
    pub(crate) free: Vector<ServerId>,
    #[serde(deserialize_with = "table")]
    pub(crate) tenant_ids: OrdMap<Arc<str>, TenantId>,
    #[serde(deserialize_with = "table")]
    pub(crate) queue_ids: OrdMap<Arc<str>, QueueId>,
    #[serde(deserialize_with = "table")]
    pub(crate) job_names: OrdMap<Arc<str>, JobId>,
    /// Over, but some of their slots may still exist.
    #[serde(deserialize_with = "table")]
    pub(crate) leaving: OrdMap<JobId, Arc<Job>>,
    pub(crate) next_job: u64,
    /// Servers where the plan may no longer fit.
    pub(crate) unsettled: OrdSet<ServerId>,
    /// A limit may have shrunk.
    pub(crate) limits_changed: bool,
    /// Jobs whose verdict changed since the last decision.
    pub(crate) revised: OrdSet<JobId>,
    /// Jobs whose plan is not (or not wholly) issued.
    pub(crate) unissued: OrdSet<JobId>,
    /// Planned jobs that wait for room on a server: tried again when something there is released.
    pub(crate) parked: OrdSet<(ServerId, JobId)>,
    /// Jobs whose issued part changed since the host last asked.
    pub(crate) unsent: OrdSet<JobId>,
    /// Jobs that the host asked about at least once, and that aren't forgotten yet.
    pub(crate) told: OrdSet<JobId>,
    /// The last word on jobs of which nothing is left, until the host asks.
    #[serde(deserialize_with = "table")]
    pub(crate) farewells: OrdMap<JobId, Issue>,
    /// Jobs with reports that their fits don't know.
    pub(crate) unfitted: OrdSet<JobId>,
    /// When something about a job ends by itself: a time limit, a refusal's wait.
    pub(crate) timers: OrdSet<(Time, JobId)>,
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
            idle_models: OrdMap::new(),
            usable: Amounts::default(),
            capacity: Amounts::default(),
            policies: OrdMap::new(),
            managers: Vector::new(),
            server_ids: OrdMap::new(),
            absent: OrdMap::new(),
            census: Census::default(),
            syncing_since: None,
            forget_at: servers::MOST_ABSENT,
            free: Vector::new(),
            tenant_ids: OrdMap::new(),
            queue_ids: OrdMap::new(),
            job_names: OrdMap::new(),
            leaving: OrdMap::new(),
            next_job: 1,
            unsettled: OrdSet::new(),
            limits_changed: false,
            revised: OrdSet::new(),
            unissued: OrdSet::new(),
            parked: OrdSet::new(),
            unsent: OrdSet::new(),
            told: OrdSet::new(),
            farewells: OrdMap::new(),
            unfitted: OrdSet::new(),
            timers: OrdSet::new(),
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
        let id = self.job_names.get(name).copied().or_else(|| name.parse().ok().map(JobId))?;
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
        self.server_ids.get(name).map(|id| self.server(*id))
    }

    /// The name of the manager that reports a server; `None` if it is gone.
    pub fn manager_of(&self, id: ServerId) -> Option<&str> {
        let server = self.servers.get(id.index()).filter(|server| server.present)?;
        self.managers.get(server.manager.0 as usize).map(|manager| &*manager.name)
    }

    /// The name of the manager that reports a server, or reported it last.
    pub fn last_manager_of(&self, id: ServerId) -> Option<&str> {
        let server = self.servers.get(id.index())?;
        self.managers.get(server.manager.0 as usize).map(|manager| &*manager.name)
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

    /// Whether an engine may give it this verdict now. Of a pinned job only what its slots do may change, not the slots.
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
        self.timers.get_min().map(|(at, _)| *at)
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
        (self.unsent, self.told, self.farewells) = Default::default();
    }

    pub(crate) fn job_mut(&mut self, id: JobId) -> Option<&mut Job> {
        self.jobs.get_mut(&id).map(Arc::make_mut)
    }

    pub(crate) fn server_mut(&mut self, id: ServerId) -> &mut Server {
        Arc::make_mut(&mut self.servers[id.index()])
    }

    pub(crate) fn manager(&mut self, name: &str) -> ManagerId {
        let known = self.managers.iter().position(|manager| &*manager.name == name);
        let at = known.unwrap_or_else(|| {
            let manager = Manager { name: name.into(), sync: None };
            // Names come and go with their servers.
            let free = (0..self.managers.len()).find(|at| {
                let none = |server: &Arc<Server>| server.manager.0 as usize != *at;
                self.managers.len() >= MANY_MANAGERS
                    && self.managers[*at].sync.is_none()
                    && self.servers.iter().all(none)
            });
            let at = free.unwrap_or(self.managers.len());
            if free.is_some() {
                self.managers[at] = manager
            } else {
                self.managers.push_back(manager)
            }
            at
        });
        ManagerId(at as u32)
    }

    /// Whether a manager's resync is open: nothing is prepared meanwhile, for some seconds at most, whoever begins one after the other.
    pub fn is_syncing(&self) -> bool {
        self.syncing_since.is_some_and(|since| self.now - since < LONGEST_SYNC)
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
        self.revised.insert(id);
        self.unissued.insert(id);
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
                self.revised.insert(id);
                self.unissued.insert(id);
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
