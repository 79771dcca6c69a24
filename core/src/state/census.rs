//! Numbers of jobs by tenant and by origin.

use std::sync::Arc;

use imbl::OrdMap;
use serde::{Deserialize, Serialize};

use crate::{job::Job, tables::table};

/// Numbers of jobs of one tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// Active jobs that were submitted here.
    pub own: usize,
    /// Ended jobs that were submitted here and may still have slots.
    pub own_leaving: usize,
    /// Active jobs that came from a manager.
    pub external: usize,
    /// Ended jobs that came from a manager and may still have slots.
    pub external_leaving: usize,
}

/// All counts, updated with each change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Census {
    #[serde(deserialize_with = "table")]
    pub(super) tenants: OrdMap<Arc<str>, Count>,
    #[serde(deserialize_with = "table")]
    pub(super) clusters: OrdMap<Arc<str>, usize>,
}

impl Census {
    /// Adds or removes one job.
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
