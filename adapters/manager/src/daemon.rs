//! The calls from an adapter to the daemon, which is in the same process or remote.

use std::{pin::Pin, sync::Arc, time::Duration};

use async_trait::async_trait;
use tokio::{sync::mpsc, time::sleep};
use tokio_stream::{Stream, StreamExt};
use tonic::Status;
use trainmaster_core::JobSpec;
use trainmaster_proto::v1;

const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// Maximum number of observations in the stream's buffer. Later ones wait and are merged.
const IN_FLIGHT: usize = 64;

/// The stream of plans.
pub type Plans = Pin<Box<dyn Stream<Item = Result<v1::Plan, Status>> + Send>>;

/// The daemon: in the same process, or [remote](super::Remote).
#[async_trait]
pub trait Daemon: Send + Sync {
    /// Opens a manager's stream. [`Observations::open`] is called only after the daemon is reached: it takes the
    /// manager's snapshot, which is the first observation.
    ///
    /// # Errors
    /// The daemon isn't reachable, or refuses the manager.
    async fn attach(&self, observations: Observations) -> Result<Plans, Status>;

    /// Submits a job that came from a cluster. Returns its number.
    ///
    /// # Errors
    /// The daemon isn't reachable, or refuses the job.
    async fn submit(&self, spec: &JobSpec, cluster: &str, native: &str) -> Result<u64, Status>;

    /// Returns the active jobs that came from a cluster. With `specs`, each has its submitted specification.
    ///
    /// # Errors
    /// The daemon isn't reachable.
    async fn jobs_of(&self, cluster: &str, specs: bool) -> Result<Vec<v1::JobStatus>, Status>;

    /// Cancels an active job.
    ///
    /// # Errors
    /// The daemon isn't reachable, or there is no such job.
    async fn cancel(&self, job: u64) -> Result<(), Status>;

    /// Asks whether a job would be admitted.
    ///
    /// # Errors
    /// The daemon isn't reachable, or busy.
    async fn admit(&self, spec: &JobSpec) -> Result<v1::AdmitReply, Status>;
}

/// A manager's observations for one stream, not yet opened.
#[derive(Debug)]
pub struct Observations(mpsc::Sender<Heard>);

impl Observations {
    /// Returns the receiver of the observations. The daemon may wait for the first one before it answers the call.
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

/// An event of the stream to the daemon.
#[derive(Debug)]
pub(crate) enum Heard {
    /// A new stream is being opened. Its first message is a snapshot.
    Opened(mpsc::Sender<v1::Observation>),
    /// The daemon answered.
    Attached,
    /// The stream ended, or couldn't be opened.
    Lost,
    /// A plan arrived.
    Plan(v1::Plan),
}

/// Stays attached until the other end of `heard` is dropped. Reconnects while the daemon isn't reachable, with
/// increasing waits.
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
        // One warning per outage.
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
