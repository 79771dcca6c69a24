//! Effects that wait for the journal.

use trainmaster_core::{DecisionId, JobId};
use trainmaster_host::LateReply;

use super::{
    answers::{Reply, Submitted},
    streams::News,
};
use crate::store::writer::Writer;

/// An effect that waits until a batch is on disk or has failed.
pub(super) enum Effect {
    /// An answer that requires a durable record.
    Reply(LateReply),
    /// The answer to a submission. If the batch fails, the submission is undone.
    Submitted(JobId, Reply<Submitted>),
    /// Messages for managers and training programs.
    Publish(News),
    /// The decision comes into force.
    Settled(DecisionId, [u8; 32]),
}

pub(super) type Journal = trainmaster_host::Journal<Writer, Effect>;
