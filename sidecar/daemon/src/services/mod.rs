//! The gRPC services: each asks the host and translates.

pub(crate) mod admin;
pub(crate) mod jobs;
pub(crate) mod manager;

use self::{jobs::JobsService, manager::ManagerService};

/// Bytes of one request of a person or a training program.
pub(crate) const SMALL: usize = 256 << 10;
/// Bytes of one message from or to a manager: a snapshot of a large cluster.
pub(crate) const LARGE: usize = 256 << 20;

/// What people and managers ask, over the port or within the process.
#[derive(Clone)]
pub(crate) struct Services {
    pub(crate) jobs: JobsService,
    pub(crate) manager: ManagerService,
}
