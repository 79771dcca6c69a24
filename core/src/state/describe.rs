//! Servers in the form of the events that describe them.

use std::collections::BTreeMap;

use super::State;
use crate::{
    decision::DeviceShare,
    ids::ServerId,
    resources::{Amounts, GPU},
    server::ServerSpec,
    settings::Mode,
};

impl State {
    /// A server as its manager described it.
    ///
    /// # Panics
    /// With an id of another state.
    pub fn server_spec(&self, id: ServerId) -> ServerSpec {
        let server = self.server(id);
        let mut own = server.capacity.clone();
        for &kind in &*server.devices {
            own.add(GPU, -1000);
            if kind != GPU {
                own.add(kind, -1000);
            }
        }
        ServerSpec {
            name: server.name.as_ref().to_owned(),
            capacity: self.table(&own),
            devices: server.devices.iter().map(|kind| self.resources.name(*kind).to_owned()).collect(),
            labels: (*server.labels).clone(),
            draining: server.draining,
        }
    }

    /// The foreign use of a server: amounts by resource name, and shares of devices.
    ///
    /// # Panics
    /// With an id of another state.
    pub fn foreign_use(&self, id: ServerId) -> (BTreeMap<String, i64>, Vec<DeviceShare>) {
        let foreign = &self.server(id).foreign;
        let shares = foreign.devices.iter().enumerate().filter(|(_, milli)| **milli > 0);
        let shares = shares.map(|(device, milli)| DeviceShare { device: device as u16, milli: *milli });
        (self.table(&foreign.amounts), shares.collect())
    }

    /// What a server has, and what of it is used and free. O(resource types).
    ///
    /// # Panics
    /// With an id of another state.
    pub fn server_room(&self, id: ServerId) -> ServerRoom {
        let server = self.server(id);
        let mut used = server.charged.amounts.clone();
        // Only in the active mode does the plan change anything.
        if self.mode == Mode::Active {
            for (resource, planned) in server.planned.amounts.iter() {
                used.add(resource, (planned - used[resource]).max(0));
            }
        }
        let mut free = server.reservable();
        free -= &used;
        let mut free = free.at_least_zero();
        // GPUs without a type may be used where all have one.
        let mut gpus = free[GPU];
        let kinds: Vec<_> = free.iter().filter(|(id, _)| self.resources.name(*id).starts_with("gpu:")).collect();
        for (kind, amount) in kinds {
            let left = amount.min(gpus);
            free.add(kind, left - amount);
            gpus -= left;
        }
        ServerRoom {
            capacity: self.table(&server.capacity),
            foreign: self.table(&server.foreign.amounts),
            used: self.table(&used),
            free: self.table(&free),
        }
    }

    /// The inverse of [`ResourceTypes::demand`](crate::resources::ResourceTypes::demand): the table for these amounts.
    fn table(&self, amounts: &Amounts) -> BTreeMap<String, i64> {
        let mut own = amounts.clone();
        // Typed GPUs are also counted in the total of all GPUs.
        let kinds = amounts.iter().filter(|(id, _)| self.resources.name(*id).starts_with("gpu:"));
        kinds.for_each(|(_, value)| own.add(GPU, -value));
        let named = own.iter().filter(|(_, value)| *value != 0);
        named.map(|(id, value)| (self.resources.name(id).to_owned(), value)).collect()
    }
}

/// Amounts of a server by resource name, in sub-units and without zeros. GPUs count by kind: `gpu`, `gpu:a100`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerRoom {
    /// What it has, with its devices.
    pub capacity: BTreeMap<String, i64>,
    /// What workloads use that Trainmaster doesn't manage.
    pub foreign: BTreeMap<String, i64>,
    /// What jobs have, and in the active mode also what is planned for jobs that don't have it yet.
    pub used: BTreeMap<String, i64>,
    /// What a job could get. More than the capacity in a pool that oversubscribes.
    pub free: BTreeMap<String, i64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{event::Event, time::Time};

    #[test]
    fn a_server_is_described_as_it_was() {
        let table = |pairs: &[(&str, i64)]| pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        let server = |name: &str, capacity: &[(&str, i64)], devices: &[&str]| ServerSpec {
            name: name.into(),
            capacity: table(capacity),
            devices: devices.iter().map(|kind| (*kind).to_owned()).collect(),
            labels: [("zone".to_owned(), name.to_owned())].into(),
            draining: name == "c",
        };
        let servers = [
            server("a", &[("cpu", 4000), ("memory", 1024)], &["gpu", "gpu:a100", "gpu:a100"]),
            server("b", &[("gpu:v100", 2000), ("gpu", 1000), ("licence", 3)], &[]),
            server("c", &[("cpu", 1)], &[]),
        ];
        let mut state = State::default();
        for server in &servers {
            let event = Event::ServerSet { manager: "m".into(), server: server.clone() };
            state.apply(Time(0), &event).unwrap();
        }
        let amounts: BTreeMap<String, i64> = table(&[("cpu", 500), ("gpu:v100", 1000)]);
        let devices = vec![DeviceShare { device: 1, milli: 300 }];
        let event = Event::ForeignUse { server: "a".into(), amounts: amounts.clone(), devices: devices.clone() };
        state.apply(Time(1), &event).unwrap();
        for (at, server) in servers.iter().enumerate() {
            assert_eq!(state.server_spec(ServerId(at as u32)), *server);
        }
        assert_eq!(state.foreign_use(ServerId(0)), (amounts, devices));
        assert_eq!(state.foreign_use(ServerId(1)), Default::default());
    }

    #[test]
    fn room_is_what_is_left_of_each_kind() {
        let table = |pairs: &[(&str, i64)]| pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        let mut state = State::default();
        let server = ServerSpec {
            name: "a".into(),
            capacity: table(&[("cpu", 4000)]),
            devices: ["gpu:a100", "gpu:a100", "gpu:v100"].map(str::to_owned).into(),
            labels: BTreeMap::new(),
            draining: false,
        };
        let apply = |state: &mut State, event: Event| state.apply(Time(0), &event).unwrap();
        apply(&mut state, Event::ServerSet { manager: "m".into(), server });
        let room = |state: &State| state.server_room(ServerId(0));
        let all = table(&[("cpu", 4000), ("gpu:a100", 2000), ("gpu:v100", 1000)]);
        assert_eq!((&room(&state).capacity, &room(&state).free), (&all, &all));
        assert!(room(&state).used.is_empty() && room(&state).foreign.is_empty());

        // A manager tells how many GPUs others use, but not which.
        let foreign = |amounts| Event::ForeignUse { server: "a".into(), amounts, devices: Vec::new() };
        apply(&mut state, foreign(table(&[("gpu", 2000), ("cpu", 1500)])));
        assert_eq!(room(&state).foreign, table(&[("gpu", 2000), ("cpu", 1500)]));
        let free = room(&state).free;
        assert_eq!(
            free.iter().filter(|(name, _)| name.starts_with("gpu")).map(|(_, amount)| amount).sum::<i64>(),
            1000
        );
        assert!(free.values().all(|amount| *amount > 0), "{free:?}");

        // Others use more than there is.
        apply(&mut state, foreign(table(&[("gpu", 9000), ("cpu", 9000)])));
        assert!(room(&state).free.is_empty(), "{:?}", room(&state).free);
    }
}
