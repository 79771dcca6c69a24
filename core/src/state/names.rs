//! Names that jobs bring along: tenants, queues, models. Each is kept while a job has it, and models a while longer.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use imbl::{OrdMap, Vector};

use super::{Account, Count, State, census::Census};
use crate::{
    event::EventError,
    ids::{QueueId, ResourceId, TenantId},
    job::{Job, JobSpec},
    reason::{Reason, Scope},
    resources::{Amounts, ResourceTypes},
    settings::Settings,
};

/// Models without a job that are remembered: what runs again tomorrow starts from what was learnt today. A site trains
/// tens to hundreds of models; a history is some kilobytes.
const IDLE_MODELS: usize = 256;

/// The names that settings set limits under, and the limits.
pub(crate) type NamedLimits = BTreeMap<String, BTreeMap<String, i64>>;

impl State {
    /// How many jobs a tenant has. O(log tenants).
    pub fn count_of(&self, tenant: &str) -> Count {
        self.directory.census.tenants.get(tenant).copied().unwrap_or_default()
    }

    /// How many jobs came from a cluster, those that are over and of which something may still exist among them. O(log
    /// clusters).
    pub fn count_from(&self, cluster: &str) -> usize {
        self.directory.census.clusters.get(cluster).copied().unwrap_or_default()
    }

    /// Counted anew.
    pub(super) fn taken_census(&self) -> Census {
        let mut census = Census::default();
        self.jobs.values().for_each(|job| census.count(job, false, true));
        self.leaving.values().for_each(|job| census.count(job, true, true));
        census
    }

    /// Under which name a job's model is kept: its tenant's own, or where all share what is learnt the site's. Neither
    /// name has a slash in it.
    pub(super) fn model_key(&self, spec: &JobSpec) -> Arc<str> {
        match self.settings.share_models {
            true => spec.model.as_str().into(),
            false => format!("{}/{}", spec.tenant, spec.model).into(),
        }
    }

    /// Counts a job in under its tenant's, its queue's and its model's name, each made if it is new.
    ///
    /// O(names in use) for a new tenant or queue.
    pub(super) fn count_in(&mut self, spec: &JobSpec, model: &Arc<str>) -> (TenantId, QueueId) {
        let (settings, types) = (self.settings.clone(), &self.resources);
        let tenant =
            enter(&mut self.tenants, &mut self.directory.tenant_ids, &spec.tenant, &settings.tenants, types, TenantId);
        let queue =
            enter(&mut self.queues, &mut self.directory.queue_ids, &spec.queue, &settings.queues, types, QueueId);
        self.tenants[tenant.0 as usize].jobs += 1;
        self.queues[queue.0 as usize].jobs += 1;
        let model = Arc::make_mut(self.models.entry(model.clone()).or_default());
        model.jobs += 1;
        if let Some(turn) = model.idle.take() {
            self.directory.idle_models.remove(&turn);
        }
        (tenant, queue)
    }

    /// Counts it out again: names that no active job has are forgotten, models with something learnt once
    /// [enough others](IDLE_MODELS) have been idle for less long.
    pub(super) fn count_out(&mut self, job: &Job) {
        leave(&mut self.tenants, &mut self.directory.tenant_ids, job.tenant.0 as usize);
        leave(&mut self.queues, &mut self.directory.queue_ids, job.queue.0 as usize);
        let name = job.model.clone();
        let model = Arc::make_mut(self.models.get_mut(&name).expect("its job was counted in"));
        model.jobs -= 1;
        if model.jobs > 0 {
            return;
        }
        if model.speeds.is_empty() {
            self.models.remove(&name);
            return;
        }
        let turn = self.directory.idle_models.get_max().map_or(0, |(last, _)| last + 1);
        model.idle = Some(turn);
        self.directory.idle_models.insert(turn, name);
        if self.directory.idle_models.len() > IDLE_MODELS {
            let first = self.most_idle();
            let name = self.directory.idle_models.remove(&first).expect("it was found there");
            self.models.remove(&name);
        }
    }

    /// The turn of the model to be forgotten: of the tenant with the most of them, so that nobody makes others' be
    /// forgotten.
    fn most_idle(&self) -> u64 {
        let mut of: BTreeMap<&str, (usize, u64)> = BTreeMap::new();
        for (turn, name) in self.directory.idle_models.iter().rev() {
            let tenant = name.split_once('/').map_or("", |(tenant, _)| tenant);
            let (count, first) = of.entry(tenant).or_default();
            (*count, *first) = (*count + 1, *turn);
        }
        let most = of.values().max_by_key(|(count, first)| (*count, std::cmp::Reverse(*first)));
        most.map(|(_, first)| *first).expect("there are too many")
    }

    /// Takes the limits of new settings over.
    ///
    /// # Errors
    /// They name too many types of resources.
    pub(super) fn configure_limits(&mut self, settings: &Settings) -> Result<(), EventError> {
        let limits = || settings.queues.values().chain(settings.tenants.values());
        self.make_room_for_types(limits().flat_map(BTreeMap::keys).map(String::as_str), ResourceTypes::MOST)?;
        let types = Arc::make_mut(&mut self.resources);
        for name in limits().flat_map(BTreeMap::keys) {
            types.intern(name);
        }
        for (accounts, named) in [(&mut self.tenants, &settings.tenants), (&mut self.queues, &settings.queues)] {
            for account in accounts.iter_mut() {
                account.limits = limits_of(&account.name, named, &self.resources);
            }
        }
        Ok(())
    }

    /// Makes room for types of these names beside those in use, if there are not to be more than `most`. What nothing
    /// uses is forgotten only where room is short: O(servers + jobs + models) then, O(names) else.
    ///
    /// # Errors
    /// They would be more; nothing is forgotten.
    pub(super) fn make_room_for_types<'a>(
        &mut self,
        names: impl Iterator<Item = &'a str> + Clone,
        most: usize,
    ) -> Result<(), EventError> {
        let new: BTreeSet<&str> = names.clone().filter(|name| self.resources.id(name).is_none()).collect();
        let wanted = self.resources.used() + new.len();
        let Some(first) = new.first().filter(|_| wanted > most) else { return Ok(()) };
        let unused = self.unused_types(names);
        if wanted - unused.len() > most {
            return Err(EventError::ResourceTypes { name: (*first).to_owned(), most });
        }
        unused.into_iter().for_each(|id| self.forget_type(id));
        Ok(())
    }

    /// The types that no server, no job and no limit counts in, those aside that are about to be used.
    fn unused_types<'a>(&self, names: impl Iterator<Item = &'a str>) -> Vec<ResourceId> {
        let mut used: BTreeSet<ResourceId> = names.filter_map(|name| self.resources.id(name)).collect();
        let mut count = |amounts: &Amounts| {
            used.extend(amounts.iter().filter(|(_, value)| *value != 0).map(|(id, _)| id));
        };
        for server in self.servers.iter() {
            [&server.foreign, &server.planned, &server.charged].into_iter().for_each(|usage| count(&usage.amounts));
            if server.present {
                count(&server.capacity);
            }
            if let Some(measured) = &server.measured {
                count(&measured.total.amounts);
                measured.slots.values().for_each(|usage| count(&usage.amounts));
            }
        }
        let demands = || self.jobs.values().chain(self.leaving.values()).flat_map(|job| [&job.worker, &job.server]);
        demands().for_each(|demand| count(&demand.amounts));
        used.extend(demands().filter_map(|demand| Some(demand.devices?.0)));
        used.extend(self.present_servers().flat_map(|server| server.devices.iter().copied()));
        let limits = self.settings.queues.values().chain(self.settings.tenants.values()).flat_map(BTreeMap::keys);
        used.extend(limits.filter_map(|name| self.resources.id(name)));
        self.resources.others().map(|(id, _)| id).filter(|id| !used.contains(id)).collect()
    }

    /// Another type may come in its place.
    fn forget_type(&mut self, id: ResourceId) {
        Arc::make_mut(&mut self.resources).forget(id);
        // What a model was measured to use of it.
        let uses = |known: &Option<Amounts>| known.as_ref().is_some_and(|known| known[id] != 0);
        let of: Vec<_> =
            self.models.iter().filter(|(_, model)| uses(&model.worker_use) || uses(&model.server_use)).collect();
        for key in of.into_iter().map(|(key, _)| key.clone()).collect::<Vec<_>>() {
            let model = Arc::make_mut(self.models.get_mut(&key).expect("found above"));
            [&mut model.worker_use, &mut model.server_use].into_iter().flatten().for_each(|known| known.clear(id));
        }
        // What servers had that are gone: they are described anew when they come back.
        for server in self.servers.iter_mut().filter(|server| server.capacity[id] != 0 || server.devices.contains(&id))
        {
            let server = Arc::make_mut(server);
            server.capacity = Amounts::default();
            server.devices = Arc::new([]);
        }
    }

    /// What of a job's smallest shape is more than its queue or tenant may ever be given.
    pub(super) fn beyond_limits(&self, spec: &JobSpec, least: &Amounts) -> Option<Reason> {
        let beyond = |scope: fn(Arc<str>) -> Scope, name: &str, named: &NamedLimits| {
            let limits = limits_of(name, named, &self.resources);
            let (resource, limit) = limits.into_iter().find(|(resource, limit)| least[*resource] > *limit)?;
            let scope = scope(name.into());
            Some(Reason::Exhausted { scope, resource, needed: least[resource], left: limit, limit })
        };
        beyond(Scope::Queue, &spec.queue, &self.settings.queues)
            .or_else(|| beyond(Scope::Tenant, &spec.tenant, &self.settings.tenants))
    }
}

fn limits_of(name: &str, named: &NamedLimits, types: &ResourceTypes) -> BTreeMap<ResourceId, i64> {
    let limits = named.get(name).into_iter().flatten();
    limits.filter_map(|(name, limit)| Some((types.id(name)?, *limit))).collect()
}

fn enter<Id: Copy>(
    accounts: &mut Vector<Account>,
    ids: &mut OrdMap<Arc<str>, Id>,
    name: &str,
    named: &NamedLimits,
    types: &ResourceTypes,
    id: fn(u32) -> Id,
) -> Id {
    if let Some(id) = ids.get(name) {
        return *id;
    }
    let free = accounts.iter().position(|account| account.jobs == 0);
    let at = free.unwrap_or_else(|| {
        accounts.push_back(Account::default());
        accounts.len() - 1
    });
    let name: Arc<str> = name.into();
    let limits = limits_of(&name, named, types);
    accounts[at] = Account { name: name.clone(), limits, ..Account::default() };
    ids.insert(name, id(at as u32));
    id(at as u32)
}

fn leave<Id: Copy>(accounts: &mut Vector<Account>, ids: &mut OrdMap<Arc<str>, Id>, at: usize) {
    let account = &mut accounts[at];
    account.jobs -= 1;
    if account.jobs == 0 {
        ids.remove(&account.name);
        *account = Account::default();
    }
}
