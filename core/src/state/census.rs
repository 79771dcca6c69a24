//! How many jobs there are, by whose they are and by what brought them.

use std::sync::Arc;

use imbl::OrdMap;
use serde::{Deserialize, Serialize};

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
    pub(super) tenants: OrdMap<Arc<str>, Count>,
    #[serde(deserialize_with = "table")]
    pub(super) clusters: OrdMap<Arc<str>, usize>,
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
