//! The processes of slots.

use std::fmt;

use serde::{Deserialize, Serialize};
use trainmaster_manager::SlotId;

/// The process of a slot of an incarnation. At most one exists at a time.
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
