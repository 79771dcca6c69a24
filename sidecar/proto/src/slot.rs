//! Slots: one worker or parameter server on one server.

use trainmaster_core::{DeviceShare, ObservedSlot, Role, Slot, State};

use crate::{ConvertError, v1};

/// A whole device, in thousandths.
const WHOLE: u32 = 1000;

/// Worker or parameter server.
pub fn role_to_wire(role: Role) -> v1::SlotRole {
    match role {
        Role::Worker => v1::SlotRole::Worker,
        Role::Server => v1::SlotRole::Server,
    }
}

/// Worker or parameter server.
///
/// # Errors
/// Neither.
pub fn role_from_wire(role: i32) -> Result<Role, ConvertError> {
    match v1::SlotRole::try_from(role) {
        Ok(v1::SlotRole::Worker) => Ok(Role::Worker),
        Ok(v1::SlotRole::Server) => Ok(Role::Server),
        Err(_) => Err(ConvertError::unknown("role", role, "0 (worker) or 1 (server)")),
    }
}

/// A planned slot, with its server's name.
pub fn slot_to_wire(state: &State, slot: &Slot) -> v1::Slot {
    v1::Slot {
        role: role_to_wire(slot.role).into(),
        index: slot.index,
        server: state.server_name(slot.server).to_owned(),
        devices: shares_to_wire(&slot.devices),
    }
}

/// All of an allocation's slots.
pub fn slots_to_wire(state: &State, slots: &[Slot]) -> Vec<v1::Slot> {
    slots.iter().map(|slot| slot_to_wire(state, slot)).collect()
}

/// A slot as a manager sees it.
///
/// # Errors
/// An unknown role, no server, or a share that no device has.
pub fn observed_slot(slot: v1::Slot) -> Result<ObservedSlot, ConvertError> {
    if slot.server.is_empty() {
        return Err(ConvertError::new("server", "\"\" must be a server's name"));
    }
    Ok(ObservedSlot {
        role: role_from_wire(slot.role)?,
        index: slot.index,
        devices: shares_from_wire("devices", &slot.devices)?,
        server: slot.server,
    })
}

/// A slot as a manager sees it, for those who play one.
pub fn observed_slot_to_wire(slot: &ObservedSlot) -> v1::Slot {
    v1::Slot {
        role: role_to_wire(slot.role).into(),
        index: slot.index,
        server: slot.server.clone(),
        devices: shares_to_wire(&slot.devices),
    }
}

pub(crate) fn shares_to_wire(shares: &[DeviceShare]) -> Vec<v1::DeviceShare> {
    let share = |share: &DeviceShare| v1::DeviceShare { device: share.device.into(), milli: share.milli.into() };
    shares.iter().map(share).collect()
}

pub(crate) fn shares_from_wire(field: &str, shares: &[v1::DeviceShare]) -> Result<Vec<DeviceShare>, ConvertError> {
    let read = |(at, share): (usize, &v1::DeviceShare)| {
        let wrong = |part: &str, value: u32, allowed: &str| {
            ConvertError::new(format!("{field}[{at}].{part}"), format!("{value} must be {allowed}"))
        };
        let device = u16::try_from(share.device).map_err(|_| wrong("device", share.device, "from 0 to 65535"))?;
        if !(1..=WHOLE).contains(&share.milli) {
            return Err(wrong("milli", share.milli, "from 1 to 1000 thousandths of a device"));
        }
        Ok(DeviceShare { device, milli: share.milli as u16 })
    };
    shares.iter().enumerate().map(read).collect()
}
