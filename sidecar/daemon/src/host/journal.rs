//! What waits for the journal.

use trainmaster_core::{DecisionId, JobId};
use trainmaster_host::LateReply;

use super::{
    answers::{Reply, Submitted},
    streams::News,
};
use crate::store::writer::Writer;

/// What is done once a batch is on disk, or known not to be.
pub(super) enum Effect {
    /// An answer that makes sense only once it is durable.
    Reply(LateReply),
    /// The answer to a submission: taken back if it can't be promised.
    Submitted(JobId, Reply<Submitted>),
    /// Managers and training programs hear of it.
    Publish(News),
    /// The decision that is now in force.
    Settled(DecisionId, [u8; 32]),
}

pub(super) type Journal = trainmaster_host::Journal<Writer, Effect>;
