//! What the manager says of a job.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{decision::Allocation, ids::Incarnation, time::Time};

/// What the manager says a job is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// No slot exists.
    #[default]
    Stopped,
    /// Slots exist; not all of them run yet.
    Starting,
    /// All observed slots run.
    Running,
    /// Leaving, with a checkpoint.
    Stopping,
}

/// What the manager last said of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    /// Its slots, of whatever incarnation; none where no slot exists.
    pub allocation: Option<Arc<Allocation>>,
    /// What they were doing.
    pub phase: Phase,
    /// The incarnation that they belong to.
    pub incarnation: Incarnation,
    /// When the job first ran.
    pub started: Option<Time>,
}
