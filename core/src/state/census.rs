//! How many jobs there are, by whose they are and by what brought them.

use std::sync::Arc;

use imbl::OrdMap;
use serde::{Deserialize, Serialize};

use super::State;
use crate::{job::Job, tables::table};

/// Jobs of a tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// Active ones that were submitted here.
    pub own: usize,
    /// Those that are over and of which something may still exist.
    pub own_leaving: usize,
    /// Active ones that a manager has as well.
    pub external: usize,
    /// Likewise.
    pub external_leaving: usize,
}

/// All counts, kept with every change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Census {
    #[serde(deserialize_with = "table")]
    tenants: OrdMap<Arc<str>, Count>,
    #[serde(deserialize_with = "table")]
    clusters: OrdMap<Arc<str>, usize>,
}

impl Census {
    /// One more, or one less.
    pub(super) fn count(&mut self, job: &Job, leaving: bool, more: bool) {
        let tenant: Arc<str> = job.spec.tenant.as_str().into();
        let count = self.tenants.entry(tenant.clone()).or_default();
        let of = match (&job.external, leaving) {
            (None, false) => &mut count.own,
            (None, true) => &mut count.own_leaving,
            (Some(_), false) => &mut count.external,
            (Some(_), true) => &mut count.external_leaving,
        };
        *of = if more { *of + 1 } else { *of - 1 };
        if *count == Count::default() {
            self.tenants.remove(&tenant);
        }
        let Some(external) = &job.external else { return };
        let cluster: Arc<str> = external.cluster.as_str().into();
        let of = self.clusters.entry(cluster.clone()).or_default();
        *of = if more { *of + 1 } else { *of - 1 };
        if *of == 0 {
            self.clusters.remove(&cluster);
        }
    }
}

impl State {
    /// How many jobs a tenant has. O(log tenants).
    pub fn count_of(&self, tenant: &str) -> Count {
        self.census.tenants.get(tenant).copied().unwrap_or_default()
    }

    /// How many jobs came from a cluster, those that are over and of which something may still exist among them. O(log clusters).
    pub fn count_from(&self, cluster: &str) -> usize {
        self.census.clusters.get(cluster).copied().unwrap_or_default()
    }

    /// Counted anew.
    pub(super) fn taken_census(&self) -> Census {
        let mut census = Census::default();
        self.jobs.values().for_each(|job| census.count(job, false, true));
        self.leaving.values().for_each(|job| census.count(job, true, true));
        census
    }
}
