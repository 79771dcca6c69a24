//! Answers of the owner.

use std::any::Any;

use thiserror::Error;
use tokio::sync::oneshot;
use trainmaster_core::{EventError, JobId, JobSpec, job::ExternalId};
use trainmaster_feed::Token;

/// Reasons why a command had no effect.
#[derive(Debug, Error)]
pub(crate) enum HostError {
    /// The daemon is busy. The caller may try again later.
    #[error("{0}")]
    Unavailable(String),
    /// The scheduler rejected it.
    #[error(transparent)]
    Refused(#[from] EventError),
    /// The job doesn't exist.
    #[error("{0}")]
    Missing(String),
    /// The job has ended.
    #[error("{0}")]
    Over(String),
    /// A limit is reached.
    #[error("{0}")]
    Full(String),
    /// It belongs to another caller.
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

/// A submitted job.
pub(crate) struct Submission {
    pub(crate) spec: Box<JobSpec>,
    /// Its external origin.
    pub(crate) external: Option<ExternalId>,
    pub(crate) token: Token,
}

/// The result of a submission.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Submitted {
    pub(crate) job: JobId,
    /// Whether the job is new. Otherwise it existed already.
    pub(crate) is_new: bool,
}

/// Why a change isn't in the journal, if it isn't. The change is in force until the daemon restarts.
pub(crate) type Unwritten = Option<String>;

/// A permit that ends once an observation is taken. The number of a manager's permits is limited.
pub(crate) type Turn = Box<dyn Any + Send>;
