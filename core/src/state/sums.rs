//! The plan's sums after a proposal.

use std::collections::BTreeMap;

use crate::{
    ids::{QueueId, ServerId, TenantId},
    resources::Amounts,
    server::Usage,
};

/// The plan's sums after a proposal. The guard computes them, so the commit needn't.
#[derive(Debug, Default)]
pub(crate) struct Sums {
    /// Total planned use of each server that the proposal touches.
    pub(crate) servers: Vec<(ServerId, Usage)>,
    /// Amounts added per tenant.
    pub(crate) tenants: BTreeMap<TenantId, Amounts>,
    /// Amounts added per queue.
    pub(crate) queues: BTreeMap<QueueId, Amounts>,
}
