//! Conversion of slots.

use trainmaster_core::{
    Allocation, DeviceShare, ObservedSlot, Role, Slot, State,
    batch::Batch,
    decision::{Work, WorkItem, WorkState},
};

use crate::{ConvertError, v1};

/// A whole device, in thousandths.
const WHOLE: u32 = 1000;

/// Converts a role for the wire.
pub fn role_to_wire(role: Role) -> v1::SlotRole {
    match role {
        Role::Worker => v1::SlotRole::Worker,
        Role::Server => v1::SlotRole::Server,
    }
}

/// A role in JSON.
#[allow(clippy::trivially_copy_pass_by_ref)] // serde calls it with a reference to the field
pub(crate) fn role_to_json<S: serde::Serializer>(role: &i32, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(if *role == v1::SlotRole::Server as i32 { "server" } else { "worker" })
}

/// Converts a role.
///
/// # Errors
/// The number is neither a worker's nor a parameter server's.
pub fn role_from_wire(role: i32) -> Result<Role, ConvertError> {
    match v1::SlotRole::try_from(role) {
        Ok(v1::SlotRole::Worker) => Ok(Role::Worker),
        Ok(v1::SlotRole::Server) => Ok(Role::Server),
        Err(_) => Err(ConvertError::unknown("role", role, "0 (worker) or 1 (server)")),
    }
}

/// Converts all slots of an allocation, with the names of their servers.
pub fn slots_to_wire(state: &State, allocation: &Allocation) -> Vec<v1::Slot> {
    let slot = |slot: &Slot| v1::Slot {
        role: role_to_wire(slot.role).into(),
        index: slot.index,
        server: state.server_name(slot.server).to_owned(),
        devices: shares_to_wire(&slot.devices),
        idle: !allocation.is_busy(slot),
    };
    allocation.slots().iter().map(slot).collect()
}

/// Converts the work of an allocation's slots, if data chunks are scheduled one by one.
pub fn work_to_wire(allocation: &Allocation) -> Vec<v1::Work> {
    let work = |work: &Work| {
        let (state, rank) = match work.state {
            WorkState::Running => (v1::WorkState::Running, 0),
            WorkState::Queued(rank) => (v1::WorkState::Queued, rank),
            WorkState::Preempted => (v1::WorkState::Preempted, 0),
            WorkState::Done => (v1::WorkState::Done, 0),
        };
        let (WorkItem::Chunk(chunk) | WorkItem::Task(chunk)) = work.item;
        v1::Work { chunk, worker: work.slot.map(|(_, index)| index), state: state.into(), rank }
    };
    allocation.work().iter().map(work).collect()
}

/// Converts the batch of a job that may change it.
pub fn batch_to_wire(batch: Batch, submitted: u64) -> v1::Batch {
    v1::Batch { size: batch.size, local: batch.local, passes: batch.passes, submitted }
}

/// Converts an observed slot.
///
/// # Errors
/// An unknown role, no server, or an impossible share of a device.
pub fn observed_slot(slot: v1::Slot) -> Result<ObservedSlot, ConvertError> {
    if slot.server.is_empty() {
        return Err(ConvertError::new("server", "\"\" must be a server's name"));
    }
    Ok(ObservedSlot {
        role: role_from_wire(slot.role)?,
        index: slot.index,
        devices: if slot.idle { Vec::new() } else { shares_from_wire("devices", &slot.devices)? },
        server: slot.server,
    })
}

/// Converts an observed slot for the wire, for simulated managers.
pub fn observed_slot_to_wire(slot: &ObservedSlot) -> v1::Slot {
    v1::Slot {
        role: role_to_wire(slot.role).into(),
        index: slot.index,
        server: slot.server.clone(),
        devices: shares_to_wire(&slot.devices),
        idle: false,
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
