//! Tenants, queues, jobs and models by name. Each name is kept while a job has it, and a model's a while longer.

use std::{collections::BTreeMap, sync::Arc};

use imbl::OrdMap;
use serde::{Deserialize, Serialize};

use super::census::Census;
use crate::{
    fit::SpeedHistory,
    ids::{JobId, QueueId, ResourceId, TenantId},
    resources::Amounts,
    tables::table,
};

/// A queue or a tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// Its name; empty while no active job has it: the next new name takes its number.
    pub name: Arc<str>,
    /// The most it may be given; types that aren't in it are unlimited.
    pub limits: BTreeMap<ResourceId, i64>,
    /// What the plan gives it.
    pub planned: Amounts,
    /// Its active jobs.
    pub(crate) jobs: u32,
}

impl Account {
    /// The first type of which `planned + extra` is beyond the limit: (type, left, limit).
    pub fn excess(&self, extra: &Amounts) -> Option<(ResourceId, i64, i64)> {
        self.limits.iter().find_map(|(&resource, &limit)| {
            let left = limit - self.planned[resource];
            (extra[resource] > 0 && extra[resource] > left).then_some((resource, left, limit))
        })
    }
}

/// What jobs of one model have taught.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Model {
    /// Speeds of all its jobs.
    pub speeds: Arc<SpeedHistory>,
    /// What a worker was measured to use, on average; none: never measured.
    pub worker_use: Option<Amounts>,
    /// Likewise a parameter server.
    pub server_use: Option<Amounts>,
    /// Its active jobs.
    pub(crate) jobs: u32,
    /// Its turn to be forgotten, while it has none.
    pub(super) idle: Option<u64>,
}

/// Tenants, queues, jobs and models by name.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Directory {
    #[serde(deserialize_with = "table")]
    pub(crate) tenant_ids: OrdMap<Arc<str>, TenantId>,
    #[serde(deserialize_with = "table")]
    pub(crate) queue_ids: OrdMap<Arc<str>, QueueId>,
    #[serde(deserialize_with = "table")]
    pub(crate) job_names: OrdMap<Arc<str>, JobId>,
    /// The number of the next job.
    pub(crate) next_job: u64,
    /// Models without an active job, in the order in which they lost their last.
    #[serde(deserialize_with = "table")]
    pub(crate) idle_models: OrdMap<u64, Arc<str>>,
    /// How many jobs each tenant and cluster has.
    pub(crate) census: Census,
}

impl Default for Directory {
    fn default() -> Self {
        Self {
            tenant_ids: OrdMap::new(),
            queue_ids: OrdMap::new(),
            job_names: OrdMap::new(),
            next_job: 1,
            idle_models: OrdMap::new(),
            census: Census::default(),
        }
    }
}
