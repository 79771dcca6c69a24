//! Totals during the allocation of units: of the cluster, and of the limits of queues and tenants.

use std::collections::BTreeMap;

use crate::{
    ids::{QueueId, ResourceId, TenantId},
    job::Job,
    reason::{Reason, Scope},
    resources::Amounts,
    state::{Account, State},
};

/// The owner of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owner {
    Tenant(TenantId),
    Queue(QueueId),
}

impl Owner {
    /// Whether a job counts towards the limit.
    pub(crate) fn owns(self, job: &Job) -> bool {
        match self {
            Self::Tenant(id) => job.tenant == id,
            Self::Queue(id) => job.queue == id,
        }
    }
}

/// The amounts that are left to allocate.
#[derive(Clone)]
pub(crate) struct Ledger {
    cluster: Amounts,
    tenants: Vec<BTreeMap<ResourceId, i64>>,
    queues: Vec<BTreeMap<ResourceId, i64>>,
    limited: bool,
}

impl Ledger {
    /// All usable amounts within limits, with nothing allocated.
    pub(crate) fn of(state: &State) -> Self {
        let limits = |account: &Account| account.limits.clone();
        let tenants: Vec<_> = state.tenants.iter().map(limits).collect();
        let queues: Vec<_> = state.queues.iter().map(limits).collect();
        let limited = tenants.iter().chain(&queues).any(|limits| !limits.is_empty());
        let cluster = match state.settings.shape.oversubscribe {
            1001.. => state.present_servers().fold(Amounts::default(), |mut sum, server| {
                sum += &server.reservable().at_least_zero();
                sum
            }),
            _ => state.usable.clone(),
        };
        Self { cluster, tenants, queues, limited }
    }

    /// The amounts within limits that the plan leaves. The cluster's total isn't reduced, because the servers' room
    /// limits it.
    pub(crate) fn left(state: &State) -> Self {
        let mut ledger = Self::of(state);
        let accounts = ledger.tenants.iter_mut().zip(&state.tenants).chain(ledger.queues.iter_mut().zip(&state.queues));
        for (left, account) in accounts {
            left.iter_mut().for_each(|(resource, left)| *left -= account.planned[*resource]);
        }
        ledger
    }

    /// The amount of a resource that the cluster has left.
    pub(crate) fn left_of(&self, resource: ResourceId) -> i64 {
        self.cluster[resource]
    }

    /// Whether any queue or tenant has limits.
    pub(crate) fn is_limited(&self) -> bool {
        self.limited
    }

    /// Whether the job can get this much more.
    #[inline]
    pub(crate) fn has(&self, job: &Job, amounts: &Amounts) -> bool {
        amounts.fits(&self.cluster) && (!self.limited || self.limit_reason(job, amounts).is_none())
    }

    /// Takes the amounts. `times` = −1 returns them.
    #[inline]
    pub(crate) fn take(&mut self, job: &Job, amounts: &Amounts, times: i64) {
        self.cluster.add_times(amounts, -times);
        if !self.limited {
            return;
        }
        for left in [&mut self.tenants[job.tenant.0 as usize], &mut self.queues[job.queue.0 as usize]] {
            for (resource, left) in left.iter_mut() {
                *left -= times * amounts[*resource];
            }
        }
    }

    /// Whether slots of one job can keep the other from the limit of its tenant or queue.
    pub(crate) fn share_a_limit(&self, a: &Job, b: &Job) -> bool {
        let limits = |left: &BTreeMap<ResourceId, i64>| !left.is_empty();
        self.limited
            && ((a.tenant == b.tenant && limits(&self.tenants[a.tenant.0 as usize]))
                || (a.queue == b.queue && limits(&self.queues[a.queue.0 as usize])))
    }

    /// The amounts left within limits, by account.
    pub(crate) fn limits(&self) -> impl Iterator<Item = (Owner, ResourceId, i64)> + '_ {
        let owner = |of: fn(u32) -> Owner| move |(at, left): (usize, _)| (of(at as u32), left);
        let tenants = self.tenants.iter().enumerate().map(owner(|at| Owner::Tenant(TenantId(at))));
        let queues = self.queues.iter().enumerate().map(owner(|at| Owner::Queue(QueueId(at))));
        tenants.chain(queues).flat_map(|(owner, left): (Owner, &BTreeMap<_, _>)| {
            left.iter().map(move |(resource, left)| (owner, *resource, *left))
        })
    }

    fn limit_reason(&self, job: &Job, amounts: &Amounts) -> Option<(bool, ResourceId)> {
        let over = |left: &BTreeMap<ResourceId, i64>| {
            left.iter()
                .find(|(resource, left)| amounts[**resource] > 0 && amounts[**resource] > **left)
                .map(|(id, _)| *id)
        };
        over(&self.queues[job.queue.0 as usize])
            .map(|resource| (false, resource))
            .or_else(|| over(&self.tenants[job.tenant.0 as usize]).map(|resource| (true, resource)))
    }

    /// Why the amounts aren't left.
    pub(crate) fn reason(&self, state: &State, job: &Job, amounts: &Amounts) -> Reason {
        let (scope, resource, left, limit) = match self.limit_reason(job, amounts) {
            Some((true, resource)) => {
                let tenant = &state.tenants[job.tenant.0 as usize];
                let left = self.tenants[job.tenant.0 as usize][&resource];
                (Scope::Tenant(tenant.name.clone()), resource, left, tenant.limits[&resource])
            }
            Some((false, resource)) => {
                let queue = &state.queues[job.queue.0 as usize];
                let left = self.queues[job.queue.0 as usize][&resource];
                (Scope::Queue(queue.name.clone()), resource, left, queue.limits[&resource])
            }
            None => {
                let resource = amounts.first_excess(&self.cluster).unwrap_or(crate::resources::CPU);
                (Scope::Cluster, resource, self.cluster[resource], state.usable[resource])
            }
        };
        Reason::Exhausted { scope, resource, needed: amounts[resource], left, limit }
    }
}
