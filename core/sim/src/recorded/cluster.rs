//! Recorded servers, with their arrivals, departures and foreign use.

use std::collections::BTreeMap;

use crate::workload::ServerChange;
use trainmaster_core::{decision::DeviceShare, server::ServerSpec, state::State, time::Time};

type Foreign = (BTreeMap<String, i64>, Vec<DeviceShare>);

#[derive(Default)]
pub(super) struct Cluster {
    /// Servers at the start of the recording.
    pub(super) first: Vec<ServerSpec>,
    pub(super) changes: Vec<(Time, ServerChange)>,
    /// Present servers, by name.
    there: BTreeMap<String, (ServerSpec, Foreign)>,
}

impl Cluster {
    pub(super) fn new(state: &State) -> Self {
        let mut cluster = Self::default();
        cluster.jump(state);
        // Foreign use refers to servers that are present.
        let (servers, uses) = std::mem::take(&mut cluster.changes)
            .into_iter()
            .partition::<Vec<_>, _>(|(_, change)| matches!(change, ServerChange::Set(_)));
        cluster.changes = uses;
        cluster.first = servers
            .into_iter()
            .filter_map(|(_, change)| match change {
                ServerChange::Set(server) => Some(server),
                _ => None,
            })
            .collect();
        cluster
    }

    /// Records a manager's description of a server, which a resync may repeat.
    pub(super) fn set(&mut self, at: Time, server: &ServerSpec) {
        let known = self.there.get_mut(&server.name);
        if known.as_ref().is_some_and(|(known, _)| known == server) {
            return;
        }
        match known {
            Some((known, _)) => *known = server.clone(),
            None => drop(self.there.insert(server.name.clone(), (server.clone(), Foreign::default()))),
        }
        self.changes.push((at, ServerChange::Set(server.clone())));
    }

    /// Records departures and foreign use.
    pub(super) fn look(&mut self, at: Time, state: &State) {
        let is_there = |name: &str| state.find_server(name).is_some_and(|server| server.present);
        let gone: Vec<String> = self.there.keys().filter(|name| !is_there(name)).cloned().collect();
        for name in gone {
            self.there.remove(&name);
            self.changes.push((at, ServerChange::Left(name)));
        }
        for (name, (_, foreign)) in &mut self.there {
            let now = state.find_server(name).map(|server| state.foreign_use(server.id)).unwrap_or_default();
            if *foreign != now {
                *foreign = now.clone();
                let (amounts, devices) = now;
                self.changes.push((at, ServerChange::ForeignUse { server: name.clone(), amounts, devices }));
            }
        }
    }

    /// Continues after a gap in the recording.
    pub(super) fn jump(&mut self, state: &State) {
        for server in state.present_servers() {
            self.set(state.now, &state.server_spec(server.id));
        }
        self.look(state.now, state);
    }
}
