//! Servers in the form of the events that describe them.

use std::collections::BTreeMap;

use super::State;
use crate::{
    decision::DeviceShare,
    ids::ServerId,
    resources::{Amounts, GPU},
    server::ServerSpec,
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

    /// What a server has, and what of it is used and free.
    ///
    /// # Panics
    /// With an id of another state.
    pub fn server_room(&self, id: ServerId) -> ServerRoom {
        let server = self.server(id);
        let mut free = server.reservable();
        free -= &server.planned.amounts;
        ServerRoom {
            capacity: self.table(&server.capacity),
            foreign: self.table(&server.foreign.amounts),
            planned: self.table(&server.planned.amounts),
            free: self.table(&free.at_least_zero()),
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
    /// What the plan gives to jobs.
    pub planned: BTreeMap<String, i64>,
    /// What a plan could still give.
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
}
