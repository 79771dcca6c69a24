//! Managers and servers by name, including recently absent ones.

use std::sync::Arc;

use imbl::{OrdMap, OrdSet, Vector};
use serde::{Deserialize, Serialize};

use crate::{
    ids::{JobId, ManagerId, ServerId},
    server::Server,
    tables::table,
    time::Time,
};

/// Maximum number of managers before the ids of those without a server are reused.
const MANY_MANAGERS: usize = 64;
/// Maximum number of absent servers. Above it, half of them are forgotten.
pub(crate) const MOST_ABSENT: usize = 1024;

/// A cluster manager.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manager {
    /// The manager's name.
    pub(crate) name: Arc<str>,
    /// Servers and jobs mentioned in the open resync. `None` if no resync is open.
    pub(crate) sync: Option<(OrdSet<ServerId>, OrdSet<JobId>)>,
}

/// Managers and servers by name.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Roster {
    pub(crate) managers: Vector<Manager>,
    #[serde(deserialize_with = "table")]
    pub(crate) server_ids: OrdMap<Arc<str>, ServerId>,
    /// Absent servers, in the order in which they left.
    #[serde(deserialize_with = "table")]
    pub(crate) absent: OrdMap<u64, ServerId>,
    /// Time since which at least one resync has always been open.
    pub(crate) syncing_since: Option<Time>,
    /// Number of absent servers at which some are forgotten.
    pub(crate) forget_at: usize,
    /// Ids of forgotten servers, for reuse.
    pub(crate) free: Vector<ServerId>,
}

impl Default for Roster {
    fn default() -> Self {
        Self {
            managers: Vector::new(),
            server_ids: OrdMap::new(),
            absent: OrdMap::new(),
            syncing_since: None,
            forget_at: MOST_ABSENT,
            free: Vector::new(),
        }
    }
}

impl Roster {
    /// The id of a manager. A new name gets a new id. If there are many managers, it gets the id of one without a
    /// server.
    pub(crate) fn manager(&mut self, name: &str, servers: &Vector<Arc<Server>>) -> ManagerId {
        let known = self.managers.iter().position(|manager| &*manager.name == name);
        let at = known.unwrap_or_else(|| {
            let manager = Manager { name: name.into(), sync: None };
            // Names come and go with their servers.
            let free = (0..self.managers.len()).find(|at| {
                let none = |server: &Arc<Server>| server.manager.0 as usize != *at;
                self.managers.len() >= MANY_MANAGERS && self.managers[*at].sync.is_none() && servers.iter().all(none)
            });
            let at = free.unwrap_or(self.managers.len());
            if free.is_some() {
                self.managers[at] = manager
            } else {
                self.managers.push_back(manager)
            }
            at
        });
        ManagerId(at as u32)
    }
}
