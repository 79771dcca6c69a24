//! What the feed asks of whoever owns the scheduler.

use thiserror::Error;
use trainmaster_core::{Incarnation, JobId, Revision, Role, Span};
use trainmaster_proto::Progress;

/// The host can't take anything now: its queue is full, or its journal can't be written. Training programs keep what
/// they have and try again.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct Unavailable(pub String);

/// "I have written a checkpoint and am about to stop", or "I follow this revision now".
#[derive(Clone, Debug, PartialEq)]
pub struct Acknowledgement {
    /// Which job.
    pub job: JobId,
    /// Its program's incarnation.
    pub incarnation: Incarnation,
    /// The revision that is followed now.
    pub revision: Revision,
    /// Who of it.
    pub slot: (Role, u32),
    /// Step of the checkpoint that a later incarnation resumes from.
    pub checkpoint_step: u64,
    /// Time the checkpoint took.
    pub checkpoint: Span,
    /// It stops now.
    pub leaving: bool,
}

/// Owner of the scheduler, as the feed sees it.
#[tonic::async_trait]
pub trait FeedHost: Send + Sync + 'static {
    /// Takes reports of one slot in order. The answer is given once what was accepted survives a crash: for each, why
    /// it was ignored, if it was.
    ///
    /// # Errors
    /// Nothing was promised; the caller is to try again later.
    async fn report(
        &self,
        job: JobId,
        incarnation: Incarnation,
        slot: (Role, u32),
        progress: Vec<Progress>,
    ) -> Result<Vec<Result<(), String>>, Unavailable>;

    /// A slot follows a revision, or leaves.
    async fn acknowledge(&self, acknowledgement: Acknowledgement);
}
