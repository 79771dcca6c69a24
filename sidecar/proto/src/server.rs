//! Conversion of servers and their foreign use.

use std::collections::BTreeMap;

use trainmaster_core::{DeviceShare, Event, JobId, Role, ServerSpec, SlotUse};

use crate::{
    ConvertError,
    slot::{shares_from_wire, shares_to_wire},
    v1,
};

/// Foreign use of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Foreign {
    /// Amounts by resource name, in sub-units.
    pub amounts: BTreeMap<String, i64>,
    /// Shares of its devices.
    pub devices: Vec<DeviceShare>,
}

/// Converts a server from its manager's description.
///
/// # Errors
/// A negative amount, a device share out of range, or no name. The core checks the rest.
pub fn server_from_wire(server: v1::Server) -> Result<(ServerSpec, Foreign), ConvertError> {
    if server.name.is_empty() {
        return Err(ConvertError::new("name", "\"\" must be a server's name"));
    }
    let outer = |error: ConvertError| error.inside(format_args!("server {:?}", server.name));
    for (field, amounts) in [("capacity", &server.capacity), ("foreign", &server.foreign)] {
        if let Some((name, value)) = amounts.iter().find(|(_, value)| **value < 0) {
            return Err(outer(ConvertError::new(format!("{field}.{name}"), format!("{value} must be 0 or more"))));
        }
    }
    let foreign = Foreign {
        amounts: server.foreign.into_iter().collect(),
        devices: shares_from_wire("foreign_devices", &server.foreign_devices).map_err(outer)?,
    };
    let spec = ServerSpec {
        name: server.name,
        capacity: server.capacity.into_iter().collect(),
        devices: server.devices.into_iter().map(|device| device.kind).collect(),
        labels: server.labels.into_iter().collect(),
        draining: server.draining,
    };
    Ok((spec, foreign))
}

/// Converts a server for the wire, for simulated managers.
pub fn server_to_wire(spec: &ServerSpec, foreign: &Foreign) -> v1::Server {
    v1::Server {
        name: spec.name.clone(),
        capacity: spec.capacity.clone().into_iter().collect(),
        devices: spec.devices.iter().map(|kind| v1::Device { kind: kind.clone() }).collect(),
        labels: spec.labels.clone().into_iter().collect(),
        draining: spec.draining,
        foreign: foreign.amounts.clone().into_iter().collect(),
        foreign_devices: shares_to_wire(&foreign.devices),
    }
}

/// Converts the measurements of one server.
pub(crate) fn measured(server: v1::ServerUse) -> Result<Event, ConvertError> {
    let outer = |error: ConvertError| error.inside(format_args!("server {:?}", server.server));
    let mut slots = Vec::with_capacity(server.slots.len());
    for (at, of) in server.slots.into_iter().enumerate() {
        let role = match v1::SlotRole::try_from(of.role) {
            Ok(v1::SlotRole::Worker) => Role::Worker,
            Ok(v1::SlotRole::Server) => Role::Server,
            Err(_) => {
                let error = ConvertError::unknown("role", of.role, "0 (worker) or 1 (parameter server)");
                return Err(outer(error.inside(format_args!("slots[{at}]"))));
            }
        };
        let devices = shares_from_wire("devices", &of.devices)
            .map_err(|error| outer(error.inside(format_args!("slots[{at}]"))))?;
        let used = of.used.into_iter().collect();
        slots.push(SlotUse { job: JobId(of.job), slot: (role, of.index), used, devices });
    }
    let devices = shares_from_wire("devices", &server.devices).map_err(outer)?;
    Ok(Event::Utilisation { used: server.used.into_iter().collect(), devices, slots, server: server.server })
}

/// The events of one described server. Foreign use is always included, so that old values are cleared.
pub(crate) fn events(manager: &str, server: v1::Server) -> Result<[Event; 2], ConvertError> {
    let (server, foreign) = server_from_wire(server)?;
    let used = Event::ForeignUse { server: server.name.clone(), amounts: foreign.amounts, devices: foreign.devices };
    Ok([Event::ServerSet { manager: manager.to_owned(), server }, used])
}
