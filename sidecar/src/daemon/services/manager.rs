//! What a cluster manager's adapter does: observations come in, plans go out.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{Semaphore, mpsc},
    time::{Instant, timeout_at},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use trainmaster_core::{Budget, JobSpec};
use trainmaster_proto::{
    Observed, observed, spec_from_job,
    v1::{
        self,
        manager_server::{Manager, ManagerServer},
    },
};

use super::LARGE;
use crate::daemon::{
    Config,
    host::{Command, Host},
    session::Outbox,
};

/// How long the first observation may take.
const FIRST: Duration = Duration::from_secs(30);
/// Engines that are asked about jobs at a time, for who has given up waiting included: decisions need threads too.
const ADMISSIONS: usize = 2;

/// Serves `trainmaster.v1.Manager`.
pub(crate) struct ManagerService {
    host: Host,
    ttl: Duration,
    budget: Budget,
    admissions: Arc<Semaphore>,
    streams: AtomicU64,
}

impl ManagerService {
    /// `config`: how long plans stand, and what an engine may take to say whether it would let a job in.
    pub(crate) fn new(host: Host, config: &Config) -> Self {
        Self {
            host,
            ttl: config.plan_ttl,
            budget: config.host_options().budget,
            admissions: Arc::new(Semaphore::new(ADMISSIONS)),
            streams: AtomicU64::new(1),
        }
    }

    pub(crate) fn into_server(self) -> ManagerServer<Self> {
        ManagerServer::new(self).max_decoding_message_size(LARGE).max_encoding_message_size(LARGE)
    }
}

impl ManagerService {
    /// Whether a job would be let in, and what the engine would say of it.
    async fn ask(&self, spec: JobSpec) -> Result<Result<(), String>, Status> {
        // Before anything is copied.
        let turn = self.admissions.clone().acquire_owned().await.expect("it is never closed");
        let admission = match self.host.read(move |view| view.scheduler.admission(spec)).await? {
            Ok(Some(admission)) => admission,
            Ok(None) => return Ok(Ok(())),
            Err(error) => return Ok(Err(error.to_string())),
        };
        let budget = self.budget;
        let asked = tokio::task::spawn_blocking(move || {
            let answer = admission.run(budget);
            drop(turn);
            answer
        });
        asked.await.map_err(|error| Status::internal(error.to_string()))
    }
}

type Plans = mpsc::Sender<Result<v1::Plan, Status>>;

#[tonic::async_trait]
impl Manager for ManagerService {
    type AttachStream = ReceiverStream<Result<v1::Plan, Status>>;

    async fn attach(
        &self,
        request: Request<Streaming<v1::Observation>>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        let (sender, receiver) = mpsc::channel(4);
        let stream = self.streams.fetch_add(1, Ordering::Relaxed);
        let (host, ttl) = (self.host.clone(), self.ttl);
        // Answered at once, so that a manager that waits for the answer before it speaks is served too.
        tokio::spawn(async move {
            if let Err(error) = serve(host, ttl, stream, request.into_inner(), &sender).await {
                let _ = sender.send(Err(error)).await;
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn admit(&self, request: Request<v1::AdmitRequest>) -> Result<Response<v1::AdmitReply>, Status> {
        let job = request.into_inner().job.ok_or_else(|| Status::invalid_argument("job: is missing"))?;
        let refused = match spec_from_job(job) {
            Ok(spec) => self.ask(spec).await?.err(),
            Err(error) => Some(error.to_string()),
        };
        Ok(Response::new(v1::AdmitReply { admitted: refused.is_none(), reason: refused.unwrap_or_default() }))
    }
}

async fn next(observations: &mut Streaming<v1::Observation>) -> Result<Option<Observed>, Status> {
    Ok(observations.message().await?.map(observed).transpose()?)
}

/// One stream, from its first snapshot to its end.
async fn serve(
    host: Host,
    ttl: Duration,
    stream: u64,
    mut observations: Streaming<v1::Observation>,
    plans: &Plans,
) -> Result<(), Status> {
    let first = tokio::time::timeout(FIRST, next(&mut observations));
    let first = first.await.map_err(|_| Status::deadline_exceeded("no snapshot came"))??;
    let Some(first) = first else { return Ok(()) };
    if !first.is_snapshot {
        return Err(Status::failed_precondition("the first observation of a stream must be a snapshot"));
    }
    let (manager, outbox) = (first.manager.clone(), Outbox::default());
    let attach = Command::Attach { stream, outbox: outbox.clone(), observed: first };
    if !host.tell(attach).await {
        return Err(Status::unavailable("the daemon is stopping"));
    }
    let ended = tokio::select! {
        ended = hear(&host, stream, &manager, &mut observations) => ended,
        ended = tell(&outbox, ttl, plans) => ended,
        () = plans.closed() => Ok(()),
    };
    host.tell(Command::Detach { manager, stream }).await;
    ended
}

async fn hear(
    host: &Host,
    stream: u64,
    manager: &str,
    observations: &mut Streaming<v1::Observation>,
) -> Result<(), Status> {
    while let Some(observed) = next(observations).await? {
        if observed.manager != manager {
            let problem = format!("manager: {:?} must stay {manager:?} on one stream", observed.manager);
            return Err(Status::invalid_argument(problem));
        }
        if !host.tell(Command::Observe { stream, observed }).await {
            return Err(Status::unavailable("the daemon is stopping"));
        }
    }
    Ok(())
}

/// Sends plans as they come, and an empty one in good time before the last runs out.
async fn tell(outbox: &Outbox, ttl: Duration, plans: &Plans) -> Result<(), Status> {
    let ttl_ms = i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX);
    let mut stamp = None;
    loop {
        let renew = stamp.filter(|_| ttl_ms > 0).map(|stamp| (Instant::now() + ttl / 3, stamp));
        let next = match renew {
            None => outbox.next().await,
            Some((at, (term, decision))) => match timeout_at(at, outbox.next()).await {
                Ok(next) => next,
                Err(_) => Ok(v1::Plan { term, decision, ..v1::Plan::default() }),
            },
        };
        let plan = next?;
        stamp = Some((plan.term, plan.decision));
        if plans.send(Ok(v1::Plan { ttl_ms, ..plan })).await.is_err() {
            return Ok(());
        }
    }
}
