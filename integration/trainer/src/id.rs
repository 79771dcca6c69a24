//! Identifiers of a job's processes.

use std::fmt;

use serde::{Deserialize, Serialize};
use trainmaster_proto::v1::SlotRole;

/// Role of a process. Servers order before workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, clap::ValueEnum)]
pub enum Role {
    /// Parameter server.
    Server,
    /// Worker.
    Worker,
}

/// A slot of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Id {
    /// Its role.
    pub role: Role,
    /// Its index among the job's slots of this role.
    pub index: u32,
}

impl Id {
    /// A worker.
    pub fn worker(index: u32) -> Self {
        Self { role: Role::Worker, index }
    }

    /// A parameter server.
    pub fn server(index: u32) -> Self {
        Self { role: Role::Server, index }
    }

    /// Whether it is a worker.
    pub fn is_worker(self) -> bool {
        self.role == Role::Worker
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", if self.is_worker() { "worker" } else { "server" }, self.index)
    }
}

impl From<Role> for SlotRole {
    fn from(role: Role) -> Self {
        match role {
            Role::Worker => Self::Worker,
            Role::Server => Self::Server,
        }
    }
}

impl From<SlotRole> for Role {
    fn from(role: SlotRole) -> Self {
        match role {
            SlotRole::Worker => Self::Worker,
            SlotRole::Server => Self::Server,
        }
    }
}
