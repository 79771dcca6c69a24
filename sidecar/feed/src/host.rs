//! The interface between the feed and the owner of the scheduler.

use async_trait::async_trait;
use thiserror::Error;
use trainmaster_core::{Incarnation, JobId, Revision, Role, Span};
use trainmaster_proto::Progress;

/// The host can't take messages now: its queue is full, or its journal can't be written. Training programs keep their
/// messages and try again.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct Unavailable(pub String);

/// A program's message that it has saved a checkpoint and is about to end, or that it follows a revision.
#[derive(Clone, Debug, PartialEq)]
pub struct Acknowledgement {
    /// The job.
    pub job: JobId,
    /// Incarnation of its program.
    pub incarnation: Incarnation,
    /// The revision that it follows now.
    pub revision: Revision,
    /// Role and index of the slot.
    pub slot: (Role, u32),
    /// Step of the checkpoint from which a later incarnation starts.
    pub checkpoint_step: u64,
    /// Duration of the checkpoint.
    pub checkpoint: Span,
    /// Whether the program ends now.
    pub leaving: bool,
}

/// The owner of the scheduler.
#[async_trait]
pub trait FeedHost: Send + Sync + 'static {
    /// Takes reports of one slot in order. The answer comes when the accepted ones are on disk. For each report it
    /// contains the reason if the report was ignored.
    ///
    /// # Errors
    /// No report was accepted. The caller should try again later.
    async fn report(
        &self,
        job: JobId,
        incarnation: Incarnation,
        slot: (Role, u32),
        progress: Vec<Progress>,
    ) -> Result<Vec<Result<(), String>>, Unavailable>;

    /// A slot follows a revision, or ends.
    async fn acknowledge(&self, acknowledgement: Acknowledgement);
}
