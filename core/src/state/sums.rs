//! The plan's sums as a proposal leaves them.

use std::collections::BTreeMap;

use crate::{
    ids::{QueueId, ServerId, TenantId},
    resources::Amounts,
    server::Usage,
};

/// What a proposal makes of the plan's sums, found on the way: the commit need not add them up again.
#[derive(Debug, Default)]
pub(crate) struct Sums {
    /// All that is planned, on each server that the proposal touches.
    pub(crate) servers: Vec<(ServerId, Usage)>,
    /// What is added to each tenant that it touches.
    pub(crate) tenants: BTreeMap<TenantId, Amounts>,
    /// What is added to each queue that it touches.
    pub(crate) queues: BTreeMap<QueueId, Amounts>,
}
