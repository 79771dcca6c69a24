//! What a slot is called, and where it goes.

use std::fmt;

use serde::{Deserialize, Serialize};
use trainmaster_proto::v1;

/// Parameter servers come first, so that they are started before the workers that look for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    Server,
    Worker,
}

impl Role {
    /// As in `TRAINMASTER_ROLE` and in file names.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Worker => "worker",
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        [Self::Server, Self::Worker].into_iter().find(|role| role.name() == name)
    }
}

/// A slot within an incarnation of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct SlotId {
    pub(crate) role: Role,
    pub(crate) index: u32,
}

impl fmt::Display for SlotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.role.name(), self.index)
    }
}

/// The one process that a slot of an incarnation can have at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct ProcessId {
    pub(crate) job: u64,
    pub(crate) incarnation: u32,
    #[serde(flatten)]
    pub(crate) slot: SlotId,
}

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "job {} incarnation {} {}", self.job, self.incarnation, self.slot)
    }
}

/// A part of one device, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Share {
    pub(crate) device: u32,
    pub(crate) milli: u32,
}

/// The virtual server of a slot and its share of that server's devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Placement {
    pub(crate) server: String,
    pub(crate) devices: Vec<Share>,
}

/// The role as the manager protocol has it.
pub(crate) fn role_to_wire(role: Role) -> v1::SlotRole {
    match role {
        Role::Worker => v1::SlotRole::Worker,
        Role::Server => v1::SlotRole::Server,
    }
}

/// The slot as the manager protocol has it.
pub(crate) fn to_wire(slot: SlotId, placement: &Placement, idle: bool) -> v1::Slot {
    v1::Slot {
        role: role_to_wire(slot.role).into(),
        index: slot.index,
        server: placement.server.clone(),
        devices: placement
            .devices
            .iter()
            .map(|share| v1::DeviceShare { device: share.device, milli: share.milli })
            .collect(),
        idle,
    }
}

/// The slot that a message names.
///
/// # Errors
/// The cause, where the role is unknown.
pub(crate) fn from_wire(slot: v1::Slot) -> Result<(SlotId, Placement), String> {
    let role = match v1::SlotRole::try_from(slot.role) {
        Ok(v1::SlotRole::Worker) => Role::Worker,
        Ok(v1::SlotRole::Server) => Role::Server,
        Err(_) => return Err(format!("slot role {} is unknown; allowed are 0 (worker) and 1 (server)", slot.role)),
    };
    let devices = slot.devices.iter().map(|share| Share { device: share.device, milli: share.milli }).collect();
    Ok((SlotId { role, index: slot.index }, Placement { server: slot.server, devices }))
}
