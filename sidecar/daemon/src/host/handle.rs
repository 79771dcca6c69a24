//! The handle that everybody but the owner has.

use tokio::sync::{mpsc, oneshot, watch};
use trainmaster_core::{Incarnation, JobId, Mode, Role};
use trainmaster_feed::{Acknowledgement, FeedHost, Unavailable};
use trainmaster_host::Answers;
use trainmaster_proto::Progress;

use super::{
    answers::{HostError, Reply, Submission, Submitted, Unwritten},
    command::Command,
    metrics::HostMetrics,
    view::View,
};
use crate::access::{Role as Access, Who};

/// The handle. Clones are the same host.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) changed: watch::Receiver<u64>,
    pub(super) metrics: HostMetrics,
}

pub(super) const STOPPING: &str = "the daemon is stopping";

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

impl Host {
    /// Brings the gauges up to date that are only looked at. The scheduler's thread only hands out a copy.
    pub(crate) async fn measure(&self) -> Result<(), HostError> {
        let (overview, age) = self.read(|view| (view.overview(false), view.decision_age())).await?;
        self.metrics.age.set(age.unwrap_or(0) as f64 / 1000.0);
        for (name, count) in overview.count() {
            self.metrics.jobs.with_label_values(&[name]).set(count);
        }
        Ok(())
    }
}
