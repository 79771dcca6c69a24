//! Slots of jobs, and their placements.

use std::fmt;

use serde::{Deserialize, Serialize};
use trainmaster_core::Role;
use trainmaster_proto::{role_from_wire, role_to_wire, v1};

/// A slot within an incarnation of a job. Workers come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SlotId {
    /// Worker or parameter server.
    #[serde(with = "role")]
    pub role: Role,
    /// Unique within the job and role.
    pub index: u32,
}

impl SlotId {
    /// The slot of a role and index.
    pub const fn new(role: Role, index: u32) -> Self {
        Self { role, index }
    }

    /// Reads the slot of a message.
    ///
    /// # Errors
    /// The role is unknown. The error lists the allowed ones.
    pub fn of(slot: &v1::Slot) -> Result<Self, String> {
        let unknown = |_| format!("slot role {} is unknown; allowed are 0 (worker) and 1 (server)", slot.role);
        Ok(Self { role: role_from_wire(slot.role).map_err(unknown)?, index: slot.index })
    }
}

/// "worker 3" or "server 0".
impl fmt::Display for SlotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", role::name(self.role), self.index)
    }
}

/// Roles as in programs and files: `worker` and `server`.
pub mod role {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use trainmaster_core::Role;

    /// A role's name.
    pub fn name(role: Role) -> &'static str {
        match role {
            Role::Worker => "worker",
            Role::Server => "server",
        }
    }

    /// Finds a role by its name.
    pub fn of(text: &str) -> Option<Role> {
        [Role::Worker, Role::Server].into_iter().find(|role| name(*role) == text)
    }

    /// Serialises a role as its name.
    ///
    /// # Errors
    /// The serializer's errors.
    pub fn serialize<S: Serializer>(role: &Role, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(name(*role))
    }

    /// Deserialises a role from its name.
    ///
    /// # Errors
    /// There is no such role.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Role, D::Error> {
        let text = String::deserialize(deserializer)?;
        of(&text).ok_or_else(|| D::Error::unknown_variant(&text, &["worker", "server"]))
    }
}

/// A part of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// Position in the server's list of devices.
    pub device: u32,
    /// Thousandths.
    pub milli: u32,
}

/// A slot's server and its devices there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// The server's name.
    pub server: String,
    /// Empty if the manager chooses the devices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<Share>,
}

impl Placement {
    /// Reads the placement of a message's slot.
    pub fn of(slot: &v1::Slot) -> Self {
        let devices = slot.devices.iter().map(|share| Share { device: share.device, milli: share.milli });
        Self { server: slot.server.clone(), devices: devices.collect() }
    }

    /// The slot for a message.
    pub fn to_wire(&self, slot: SlotId, idle: bool) -> v1::Slot {
        let devices = self.devices.iter().map(|share| v1::DeviceShare { device: share.device, milli: share.milli });
        v1::Slot {
            role: role_to_wire(slot.role).into(),
            index: slot.index,
            server: self.server.clone(),
            devices: devices.collect(),
            idle,
        }
    }
}
