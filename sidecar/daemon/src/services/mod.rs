//! The gRPC services. Each calls the host and converts messages.

pub(crate) mod admin;
pub(crate) mod jobs;
pub(crate) mod logs;
pub(crate) mod manager;

use self::{jobs::JobsService, manager::ManagerService};

/// Maximum bytes of a request of a person or a training program.
pub(crate) const SMALL: usize = 256 << 10;
/// Maximum bytes of a message from or to a manager: the snapshot of a large cluster.
pub(crate) const LARGE: usize = 256 << 20;

/// The services for people and managers, over the port or within the process.
#[derive(Clone)]
pub(crate) struct Services {
    pub(crate) jobs: JobsService,
    pub(crate) manager: ManagerService,
}
