//! The handle of the owner for all others.

use std::time::Duration;

use async_trait::async_trait;
use tokio::{
    sync::{OwnedMutexGuard, mpsc, oneshot, watch},
    task,
    time::timeout,
};
use trainmaster_core::{Incarnation, Job, JobId, Mode, Role, Verdict};
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

/// The handle. Clones share the host.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) changed: watch::Receiver<u64>,
    pub(super) metrics: HostMetrics,
}

/// Maximum time until the scheduler's thread has made a copy for the metrics. Prometheus waits 10 s by default.
const SAMPLING: Duration = Duration::from_secs(5);

pub(super) const STOPPING: &str = "the daemon is stopping";

impl Host {
    /// Sends a command and waits for its answer.
    async fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, HostError> {
        let (reply, answer) = oneshot::channel();
        self.commands.try_send(command(reply)).map_err(|error| match error {
            // A quick refusal is better than a long queue.
            mpsc::error::TrySendError::Full(_) => {
                self.metrics.shed.inc();
                HostError::Unavailable("the scheduler has too much to do; try again later".into())
            }
            mpsc::error::TrySendError::Closed(_) => HostError::Unavailable(STOPPING.into()),
        })?;
        answer.await.unwrap_or_else(|_| Err(HostError::Unavailable(STOPPING.into())))
    }

    /// Like [`Self::ask`], for administrators. They wait for room in a full queue, before later callers, because they
    /// can stop its cause.
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

    /// Reads the scheduler's state. `look` runs on its thread and must be quick.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        look: impl FnOnce(View<'_>) -> T + Send + 'static,
    ) -> Result<T, HostError> {
        self.ask(|reply| Command::Read(Box::new(move |view| drop(reply.send(Ok(look(view))))))).await
    }

    /// Sends a command that must not be lost. It waits for room in the queue. False once the host has ended.
    pub(crate) async fn tell(&self, command: Command) -> bool {
        self.commands.send(command).await.is_ok()
    }

    /// A counter that increases with each change of the visible state.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.clone()
    }

    /// Counts a refused submission.
    pub(crate) fn refused(&self, code: tonic::Code) {
        self.metrics.refused(code);
    }

    /// Resolves once the owner has ended.
    pub(crate) async fn closed(&self) {
        self.commands.closed().await;
    }

    /// Writes the remaining records and ends the host.
    pub(crate) async fn stop(&self) {
        let (done, stopped) = oneshot::channel();
        if self.tell(Command::Stop(done)).await {
            let _ = stopped.await;
        }
    }
}

#[async_trait]
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
    /// Updates the sampled gauges. The scheduler's thread only makes a copy. If it has none within a while, the gauges
    /// stay as they were, and one of them tells so. It holds the lock even if its caller goes away meanwhile.
    pub(crate) async fn measure(&self, alone: OwnedMutexGuard<()>) -> Option<OwnedMutexGuard<()>> {
        let sample = |view: View<'_>| {
            let engine = view.scheduler.engine_name().to_owned();
            (view.overview(false), engine, view.now(), view.decision_age())
        };
        let copy = timeout(SAMPLING, self.read(sample)).await;
        self.metrics.sampled.set(i64::from(matches!(copy, Ok(Ok(_)))));
        let Ok(Ok((overview, engine, now, age))) = copy else { return Some(alone) };
        let metrics = self.metrics.clone();
        let sampled = task::spawn_blocking(move || {
            metrics.age.set(age.unwrap_or(0) as f64 / 1000.0);
            let name_of = |verdict: &Verdict, job: &Job| overview.job_state(verdict, job);
            metrics.census.sample(&overview.state, name_of, &engine, now);
            alone
        });
        sampled.await.ok()
    }
}
