//! The manager's observation of a job.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{decision::Allocation, ids::Incarnation, time::Time};

/// What a job does, as observed by its manager.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// No slot exists.
    #[default]
    Stopped,
    /// Slots exist, but not all of them run yet.
    Starting,
    /// All observed slots run.
    Running,
    /// The job saves a checkpoint and leaves.
    Stopping,
}

/// The manager's last observation of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    /// The job's slots, of any incarnation. `None` if no slot exists.
    pub allocation: Option<Arc<Allocation>>,
    /// The phase of the slots.
    pub phase: Phase,
    /// The incarnation of the slots.
    pub incarnation: Incarnation,
    /// Time of the first run.
    pub started: Option<Time>,
}
