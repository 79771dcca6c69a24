//! The owner of the scheduler, and the handle that everybody else has.
//!
//! One task on a thread of its own takes commands in batches, stamps them with the time, applies them, and hands the
//! journal's records to the store. While one batch is being written the next one gathers; a command is answered once
//! its records are on disk. Engines and fits run on other threads.

mod decide;
mod events;
mod hearing;
mod jobs;
mod journal;
mod metrics;
mod owner;
mod publish;
mod recover;
mod view;

use std::any::Any;

use thiserror::Error;
use tokio::sync::{mpsc, oneshot, watch};
use trainmaster_core::{EventError, Incarnation, JobId, JobSpec, Mode, Role, job::ExternalId};
use trainmaster_feed::{Acknowledgement, FeedHost, Token, Unavailable};
use trainmaster_proto::{Observed, Progress};

pub(crate) use self::{
    jobs::JobLimits,
    journal::JournalLimits,
    metrics::HostMetrics,
    owner::{HostOptions, Opened, start},
    view::View,
};
use super::{
    access::{Role as Access, Who},
    session::Outbox,
};

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

/// What the owner is asked for.
pub(crate) enum Command {
    Submit {
        job: Submission,
        who: Who,
        reply: Reply<Submitted>,
    },
    Cancel {
        job: String,
        who: Who,
        reply: Reply<Unwritten>,
    },
    Hold {
        job: String,
        held: bool,
        who: Who,
        reply: Reply<Unwritten>,
    },
    SetMode {
        mode: Mode,
        who: Who,
        reply: Reply<(Mode, Unwritten)>,
    },
    /// Something about access was changed: for the audit.
    Note {
        who: Who,
        what: String,
    },
    Report {
        job: JobId,
        incarnation: Incarnation,
        slot: (Role, u32),
        progress: Vec<Progress>,
        reply: Reply<Answers>,
    },
    Attach {
        stream: u64,
        outbox: Outbox,
        observed: Observed,
        who: Who,
        turn: Turn,
    },
    Observe {
        stream: u64,
        observed: Observed,
        turn: Turn,
    },
    Detach {
        manager: String,
        stream: u64,
    },
    Read(Box<dyn FnOnce(View<'_>) + Send>),
    Stop(oneshot::Sender<()>),
}

/// Dropped once something was heard: of one manager only so much waits.
pub(crate) type Turn = Box<dyn Any + Send>;

/// For each report, why it was ignored, if it was.
pub(crate) type Answers = Vec<Result<(), String>>;

/// The handle. Clones are the same host.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    commands: mpsc::Sender<Command>,
    changed: watch::Receiver<u64>,
    metrics: HostMetrics,
}

const STOPPING: &str = "the daemon is stopping";

impl Host {
    /// Asks, and waits until the answer may be given.
    async fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, HostError> {
        let (reply, answer) = oneshot::channel();
        self.commands.try_send(command(reply)).map_err(|error| match error {
            // Better a quick no than a queue that nobody gets through.
            mpsc::error::TrySendError::Full(_) => {
                self.metrics.shed.inc();
                HostError::Unavailable("the scheduler has too much to do; try again later".into())
            }
            mpsc::error::TrySendError::Closed(_) => HostError::Unavailable(STOPPING.into()),
        })?;
        answer.await.unwrap_or_else(|_| Err(HostError::Unavailable(STOPPING.into())))
    }

    /// The same for administrators, who wait for room in the queue, and get it before whoever asks later: who can end
    /// what goes wrong isn't kept out by it.
    async fn ask_as<T>(&self, who: &Who, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, HostError> {
        if who.role != Access::Admin {
            return self.ask(command).await;
        }
        let (reply, answer) = oneshot::channel();
        if !self.tell(command(reply)).await {
            return Err(HostError::Unavailable(STOPPING.into()));
        }
        answer.await.unwrap_or_else(|_| Err(HostError::Unavailable(STOPPING.into())))
    }

    pub(crate) async fn submit(&self, job: Submission, who: Who) -> Result<Submitted, HostError> {
        self.ask(|reply| Command::Submit { job, who, reply }).await
    }

    pub(crate) async fn cancel(&self, job: String, who: Who) -> Result<Unwritten, HostError> {
        self.ask_as(&who.clone(), |reply| Command::Cancel { job, who, reply }).await
    }

    pub(crate) async fn hold(&self, job: String, held: bool, who: Who) -> Result<Unwritten, HostError> {
        self.ask_as(&who.clone(), |reply| Command::Hold { job, held, who, reply }).await
    }

    pub(crate) async fn set_mode(&self, mode: Mode, who: Who) -> Result<(Mode, Unwritten), HostError> {
        self.ask_as(&who.clone(), |reply| Command::SetMode { mode, who, reply }).await
    }

    /// Looks at the scheduler; `look` runs on its thread and must be quick.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        look: impl FnOnce(View<'_>) -> T + Send + 'static,
    ) -> Result<T, HostError> {
        self.ask(|reply| Command::Read(Box::new(move |view| drop(reply.send(Ok(look(view))))))).await
    }

    /// For what must not be lost: waits for room in the queue. False once the host has ended.
    pub(crate) async fn tell(&self, command: Command) -> bool {
        self.commands.send(command).await.is_ok()
    }

    /// Counts up with everything that may change what people see.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.clone()
    }

    /// Resolves once the owner is gone.
    pub(crate) async fn closed(&self) {
        self.commands.closed().await;
    }

    /// Writes what is left and ends the host.
    pub(crate) async fn stop(&self) {
        let (done, stopped) = oneshot::channel();
        if self.tell(Command::Stop(done)).await {
            let _ = stopped.await;
        }
    }
}

#[tonic::async_trait]
impl FeedHost for Host {
    async fn report(
        &self,
        job: JobId,
        incarnation: Incarnation,
        slot: (Role, u32),
        progress: Vec<Progress>,
    ) -> Result<Answers, Unavailable> {
        let answers = self.ask(|reply| Command::Report { job, incarnation, slot, progress, reply }).await;
        answers.map_err(|error| Unavailable(error.to_string()))
    }

    async fn acknowledge(&self, acknowledgement: Acknowledgement) {
        let Acknowledgement { job, incarnation, revision, slot: (role, index), leaving, .. } = acknowledgement;
        tracing::debug!(%job, %incarnation, %revision, %role, index, leaving, "acknowledged");
        self.metrics.acknowledged(leaving, acknowledgement.checkpoint);
    }
}
