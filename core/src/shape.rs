//! Roles of slots, and how many slots of each role a job has.

use serde::{Deserialize, Serialize};

/// The role of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Role {
    /// Computes gradients.
    Worker,
    /// Keeps parameters.
    Server,
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Worker => "worker",
            Self::Server => "parameter server",
        })
    }
}

/// Numbers of workers and parameter servers: (w, p).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Shape {
    /// w.
    pub workers: u32,
    /// p; 0 for all-reduce.
    pub servers: u32,
}

impl Shape {
    /// The number of slots of a role.
    pub fn count(self, role: Role) -> u32 {
        match role {
            Role::Worker => self.workers,
            Role::Server => self.servers,
        }
    }

    /// Whether there are no slots.
    pub fn is_empty(self) -> bool {
        self.workers == 0 && self.servers == 0
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}w+{}p", self.workers, self.servers)
    }
}
