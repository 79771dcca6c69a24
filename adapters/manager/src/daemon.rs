//! What an adapter asks of the daemon, wherever that is.

use std::{pin::Pin, sync::Arc, time::Duration};

use async_trait::async_trait;
use tokio::{sync::mpsc, time::sleep};
use tokio_stream::{Stream, StreamExt};
use tonic::Status;
use trainmaster_core::JobSpec;
use trainmaster_proto::v1;

const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// Observations under way before the next ones wait and are merged.
const IN_FLIGHT: usize = 64;

/// The stream of plans.
pub type Plans = Pin<Box<dyn Stream<Item = Result<v1::Plan, Status>> + Send>>;

/// The daemon: in the same process, or [elsewhere](super::Remote).
#[async_trait]
pub trait Daemon: Send + Sync {
    /// Opens a manager's stream. Only once the daemon is reached, [`Observations::open`] is called: it makes the
    /// manager's snapshot, which is the first observation.
    ///
    /// # Errors
    /// The daemon is away, or refuses the manager.
    async fn attach(&self, observations: Observations) -> Result<Plans, Status>;

    /// Submits a job that came from a cluster. Returns its number.
    ///
    /// # Errors
    /// The daemon is away, or refuses the job.
    async fn submit(&self, spec: &JobSpec, cluster: &str, native: &str) -> Result<u64, Status>;

    /// The active jobs that came from a cluster; with `specs` each with what was submitted.
    ///
    /// # Errors
    /// The daemon is away.
    async fn jobs_of(&self, cluster: &str, specs: bool) -> Result<Vec<v1::JobStatus>, Status>;

    /// Cancels an active job.
    ///
    /// # Errors
    /// The daemon is away, or there is no such job.
    async fn cancel(&self, job: u64) -> Result<(), Status>;

    /// Asks whether a job would be admitted.
    ///
    /// # Errors
    /// The daemon is away, or busy.
    async fn admit(&self, spec: &JobSpec) -> Result<v1::AdmitReply, Status>;
}

/// What a manager is to send on a stream.
#[derive(Debug)]
pub struct Observations(mpsc::Sender<Heard>);

impl Observations {
    /// The observations, as they come. The daemon may wait for the first one before it answers at all.
    ///
    /// # Errors
    /// The adapter ends.
    pub async fn open(self) -> Result<mpsc::Receiver<v1::Observation>, Status> {
        let (sender, receiver) = mpsc::channel(IN_FLIGHT);
        self.0.send(Heard::Opened(sender)).await.map_err(ends)?;
        Ok(receiver)
    }
}

fn ends(_: mpsc::error::SendError<Heard>) -> Status {
    Status::cancelled("the adapter ends")
}

/// What the stream to the daemon brings.
#[derive(Debug)]
pub(crate) enum Heard {
    /// A new stream is being opened: the first message into it is a snapshot.
    Opened(mpsc::Sender<v1::Observation>),
    /// The daemon answered.
    Attached,
    /// The stream ended, or never came to be.
    Lost,
    /// A plan came.
    Plan(v1::Plan),
}

/// Stays attached until the other end of `heard` is dropped: tries again, later and later, while the daemon is away.
pub(crate) async fn keep(manager: String, daemon: Arc<dyn Daemon>, heard: mpsc::Sender<Heard>) {
    let mut wait = FIRST_WAIT;
    let mut said = false;
    loop {
        let mut planned = false;
        let error = match attach(&*daemon, &heard, &mut planned).await {
            Ok(()) => Status::unavailable("the daemon closed the stream"),
            Err(error) => error,
        };
        if heard.send(Heard::Lost).await.is_err() {
            return;
        }
        if planned {
            wait = FIRST_WAIT;
            said = false;
        }
        // Once is enough, however long it stays away.
        if std::mem::replace(&mut said, true) {
            tracing::debug!(manager, %error, ?wait, "still not attached");
        } else {
            tracing::warn!(manager, %error, "not attached to the daemon; trying again");
        }
        sleep(wait).await;
        wait = (wait * 2).min(LONGEST_WAIT);
    }
}

async fn attach(daemon: &dyn Daemon, heard: &mpsc::Sender<Heard>, planned: &mut bool) -> Result<(), Status> {
    let mut plans = daemon.attach(Observations(heard.clone())).await?;
    heard.send(Heard::Attached).await.map_err(ends)?;
    while let Some(plan) = plans.next().await {
        *planned = true;
        heard.send(Heard::Plan(plan?)).await.map_err(ends)?;
    }
    Ok(())
}
