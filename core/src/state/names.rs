//! The names in job files: tenants, queues, models. A name is kept while a job uses it, and a model's name a while
//! longer.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use imbl::{OrdMap, Vector};

use super::{Account, Count, State, census::Census};
use crate::{
    event::EventError,
    fit::TypeFactor,
    ids::{QueueId, ResourceId, TenantId},
    job::{Job, JobSpec, TrainingMode},
    reason::{Reason, Scope},
    resources::{Amounts, ResourceTypes},
    settings::Settings,
};

/// Maximum number of models without a job that are kept, so that a later job starts from the known speeds. A site
/// trains tens to hundreds of models. A history has some kilobytes.
const IDLE_MODELS: usize = 256;

/// The limits in the settings, by name.
pub(crate) type NamedLimits = BTreeMap<String, BTreeMap<String, i64>>;

impl State {
    /// Number of jobs of a tenant. O(log tenants).
    pub fn count_of(&self, tenant: &str) -> Count {
        self.directory.census.tenants.get(tenant).copied().unwrap_or_default()
    }

    /// Number of jobs from a cluster, including ended ones that may still have slots. O(log clusters).
    pub fn count_from(&self, cluster: &str) -> usize {
        self.directory.census.clusters.get(cluster).copied().unwrap_or_default()
    }

    /// The census, recomputed.
    pub(super) fn taken_census(&self) -> Census {
        let mut census = Census::default();
        self.jobs.values().for_each(|job| census.count(job, false, true));
        self.leaving.values().for_each(|job| census.count(job, true, true));
        census
    }

    /// The name of a job's model among the models: with its tenant, or without it if the site shares learnt data, and
    /// with what makes its speeds incomparable to those of other jobs. The speed functions of synchronous jobs include
    /// the batch, that of asynchronous ones doesn't. Names contain no slash and no colon.
    pub(super) fn model_key(&self, spec: &JobSpec) -> Arc<str> {
        let model = match self.settings.share_models {
            true => spec.model.clone(),
            false => format!("{}/{}", spec.tenant, spec.model),
        };
        match spec.mode {
            TrainingMode::Sync => format!("{model}:sync").into(),
            TrainingMode::Async => format!("{model}:async:{}", spec.batch).into(),
            TrainingMode::AllReduce => format!("{model}:allreduce").into(),
        }
    }

    /// Adds a job to its tenant, queue and model, and creates the new ones.
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

    /// Removes a job from its tenant, queue and model. Names without an active job are forgotten. A model with known
    /// speeds is kept until it is the longest idle of too many ([`IDLE_MODELS`]).
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

    /// The turn of the model to forget. It is chosen from the tenant with most idle models, so that no tenant evicts
    /// the models of others.
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

    /// Applies the limits of new settings.
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

    /// Makes room for the resource types of these names, if the total doesn't exceed `most`. Unused types are forgotten
    /// only if room is short: then O(servers + jobs + models), else O(names).
    ///
    /// # Errors
    /// The total would exceed `most`. Nothing is forgotten.
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

    /// Types that no server, job or limit uses, except those of these names.
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

    /// Forgets a type, so that another one can take its place.
    fn forget_type(&mut self, id: ResourceId) {
        Arc::make_mut(&mut self.resources).forget(id);
        // Remove it from the measured use of models.
        let uses = |known: &Option<Amounts>| known.as_ref().is_some_and(|known| known[id] != 0);
        let of: Vec<_> =
            self.models.iter().filter(|(_, model)| uses(&model.worker_use) || uses(&model.server_use)).collect();
        for key in of.into_iter().map(|(key, _)| key.clone()).collect::<Vec<_>>() {
            let model = Arc::make_mut(self.models.get_mut(&key).expect("found above"));
            [&mut model.worker_use, &mut model.server_use].into_iter().flatten().for_each(|known| known.clear(id));
        }
        // Remove the speeds with it.
        let of_it = |known: &TypeFactor| known.server_type == id.0;
        let has = |job: &Job| {
            let fit = job.learnt.fits.speed.as_ref();
            job.learnt.speeds.has_type(id.0) || fit.is_some_and(|fit| fit.factors.iter().any(of_it))
        };
        let jobs: Vec<_> = self.jobs.values().filter(|job| has(job)).map(|job| job.id).collect();
        for id_of in jobs {
            let job = self.job_mut(id_of).expect("found above");
            Arc::make_mut(&mut job.learnt.speeds).forget_type(id.0);
            if let Some(fit) = &mut Arc::make_mut(&mut job.learnt.fits).speed {
                fit.factors.retain(|known| !of_it(known));
            }
            self.pending.unfitted.insert(id_of);
        }
        let models: Vec<_> = self.models.iter().filter(|(_, model)| model.speeds.has_type(id.0)).collect();
        for key in models.into_iter().map(|(key, _)| key.clone()).collect::<Vec<_>>() {
            let model = Arc::make_mut(self.models.get_mut(&key).expect("found above"));
            Arc::make_mut(&mut model.speeds).forget_type(id.0);
        }
        // Remove the capacity of absent servers that had it. They are described again when they return.
        for server in self.servers.iter_mut().filter(|server| server.capacity[id] != 0 || server.devices.contains(&id))
        {
            let server = Arc::make_mut(server);
            server.capacity = Amounts::default();
            server.devices = Arc::new([]);
        }
    }

    /// The excess of a job's smallest shape over the limit of its queue or tenant.
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
