//! What the owner answers, and to what.

use std::any::Any;

use thiserror::Error;
use tokio::sync::oneshot;
use trainmaster_core::{EventError, JobId, JobSpec, job::ExternalId};
use trainmaster_feed::Token;

/// Why a command came to nothing.
#[derive(Debug, Error)]
pub(crate) enum HostError {
    /// Nothing was promised; try again later.
    #[error("{0}")]
    Unavailable(String),
    /// The scheduler can't accept it.
    #[error(transparent)]
    Refused(#[from] EventError),
    /// There is no such job.
    #[error("{0}")]
    Missing(String),
    /// It has ended, and isn't run again.
    #[error("{0}")]
    Over(String),
    /// There are as many as there may be.
    #[error("{0}")]
    Full(String),
    /// It is another's.
    #[error("{0}")]
    Denied(String),
}

impl From<HostError> for tonic::Status {
    fn from(error: HostError) -> Self {
        let text = error.to_string();
        match error {
            HostError::Unavailable(_) => Self::unavailable(text),
            HostError::Missing(_) | HostError::Refused(EventError::UnknownJob(_)) => Self::not_found(text),
            HostError::Refused(EventError::DuplicateName { .. }) => Self::already_exists(text),
            HostError::Full(_) => Self::resource_exhausted(text),
            HostError::Denied(_) => Self::permission_denied(text),
            HostError::Over(_) | HostError::Refused(EventError::NeverFits(_) | EventError::Unsupported { .. }) => {
                Self::failed_precondition(text)
            }
            HostError::Refused(_) => Self::invalid_argument(text),
        }
    }
}

pub(crate) type Reply<T> = oneshot::Sender<Result<T, HostError>>;

/// A job that is submitted.
pub(crate) struct Submission {
    pub(crate) spec: Box<JobSpec>,
    /// Where it came from.
    pub(crate) external: Option<ExternalId>,
    pub(crate) token: Token,
}

/// The job of a submission.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Submitted {
    pub(crate) job: JobId,
    /// Otherwise it was there already.
    pub(crate) is_new: bool,
}

/// Why what was done isn't written down, if it isn't: it holds, until the daemon is started anew.
pub(crate) type Unwritten = Option<String>;

/// Dropped once something was heard: of one manager only so much waits.
pub(crate) type Turn = Box<dyn Any + Send>;
