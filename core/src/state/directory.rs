//! Tenants, queues, jobs and models by name. A name is kept while a job uses it, and a model's name a while longer.

use std::{collections::BTreeMap, sync::Arc};

use imbl::OrdMap;
use serde::{Deserialize, Serialize};

use super::census::Census;
use crate::{
    fit::{NoiseHistory, SpeedHistory},
    ids::{JobId, QueueId, ResourceId, TenantId},
    resources::Amounts,
    tables::table,
};

/// A queue or a tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// The name. Empty while no active job uses it: then the next new name gets this number.
    pub name: Arc<str>,
    /// Limits by resource type. Types without an entry are unlimited.
    pub limits: BTreeMap<ResourceId, i64>,
    /// Total planned amounts.
    pub planned: Amounts,
    /// Number of active jobs.
    pub(crate) jobs: u32,
}

impl Account {
    /// The first type whose `planned + extra` exceeds the limit: (type, left, limit).
    pub fn excess(&self, extra: &Amounts) -> Option<(ResourceId, i64, i64)> {
        self.limits.iter().find_map(|(&resource, &limit)| {
            let left = limit - self.planned[resource];
            (extra[resource] > 0 && extra[resource] > left).then_some((resource, left, limit))
        })
    }
}

/// Data learnt from jobs of one model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Model {
    /// Speeds of all jobs of the model.
    pub speeds: Arc<SpeedHistory>,
    /// Gradient noise of its jobs that may choose their batch. Apart from the model in snapshots, which had none before
    /// version 18.
    #[serde(skip)]
    pub noise: Arc<NoiseHistory>,
    /// Average measured use of a worker. `None`: never measured.
    pub worker_use: Option<Amounts>,
    /// Average measured use of a parameter server.
    pub server_use: Option<Amounts>,
    /// Number of active jobs.
    pub(crate) jobs: u32,
    /// Position in the order of forgetting, while the model has no active job.
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
    /// Models without an active job, in the order in which their last job ended.
    #[serde(deserialize_with = "table")]
    pub(crate) idle_models: OrdMap<u64, Arc<str>>,
    /// Number of jobs per tenant and cluster.
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
