//! The connection to the scheduler, in a separate thread, so that training never waits for it.
//!
//! The thread keeps a `Watch` open, sends the outbox, and handles SIGTERM. Without the feed, training continues, and
//! both are tried again with increasing pauses.

use std::{
    io::Write,
    os::unix::net::UnixStream,
    path::PathBuf,
    sync::{Arc, Condvar, Mutex, MutexGuard, mpsc},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::Notify,
};
use tonic::{
    Code, Request, Status,
    metadata::{Ascii, MetadataValue},
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint},
};
use tracing::{debug, info, warn};
use trainmaster_proto::v1::{
    AcknowledgeRequest, Assignment, Progress, ReportRequest, SlotRole, WatchRequest, feed_client::FeedClient,
};

use crate::{
    id::Id,
    outbox::{Call, Outbox},
};

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(3);
const CALL_LIMIT: Duration = Duration::from_secs(10);

/// Events of the feed thread.
#[derive(Debug)]
pub(crate) enum News {
    Assigned(Assignment),
    /// SIGTERM or SIGINT.
    Terminate,
    /// The feed was away longer than the orphan grace.
    Orphaned,
}

/// The caller of the feed, and its options.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// None: only signals are handled.
    pub(crate) url: Option<String>,
    pub(crate) ca: Option<PathBuf>,
    pub(crate) token: String,
    pub(crate) job: u64,
    pub(crate) incarnation: u32,
    pub(crate) id: Id,
    /// Address of this process for its peers.
    pub(crate) address: String,
    pub(crate) grace: Duration,
}

/// The training thread's side.
pub(crate) struct Feed {
    caller: Caller,
    shared: Arc<Shared>,
    pub(crate) news: mpsc::Receiver<News>,
}

#[derive(Default)]
struct Shared {
    outbox: Mutex<Outbox>,
    filled: Notify,
    emptied: Condvar,
}

impl Shared {
    fn outbox(&self) -> MutexGuard<'_, Outbox> {
        self.outbox.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Feed {
    /// Starts the thread. It writes a byte to `waker` with every event, and closes it when it ends.
    ///
    /// # Errors
    ///
    /// The URL, token or certificate is invalid.
    pub(crate) fn start(caller: Caller, waker: UnixStream) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let (sender, news) = mpsc::channel();
        waker.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let guard = runtime.enter();
        let signals = [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?];
        let client = caller.url.as_deref().map(|url| connect(&caller, url)).transpose()?;
        drop(guard);
        let session = Session { caller: caller.clone(), shared: Arc::clone(&shared), sender, waker };
        thread::Builder::new().name("feed".into()).spawn(move || runtime.block_on(session.run(client, signals)))?;
        Ok(Self { caller, shared, news })
    }

    /// Queues progress without waiting.
    pub(crate) fn report(&self, progress: Progress) {
        if self.caller.url.is_some() {
            self.shared.outbox().report(progress);
            self.shared.filled.notify_one();
        }
    }

    /// Queues an acknowledgement without waiting.
    pub(crate) fn acknowledge(&self, revision: u32, leaving: bool, checkpoint_step: u64, checkpoint_ms: f64) {
        if self.caller.url.is_some() {
            self.shared.outbox().acknowledge(AcknowledgeRequest {
                job: self.caller.job.to_string(),
                incarnation: self.caller.incarnation,
                revision,
                role: SlotRole::from(self.caller.id.role).into(),
                index: self.caller.id.index,
                checkpoint_step,
                checkpoint_ms,
                leaving,
            });
            self.shared.filled.notify_one();
        }
    }

    /// Waits until the outbox is sent, at most for `limit`.
    pub(crate) fn farewell(self, limit: Duration) {
        let outbox = self.shared.outbox();
        let Ok((outbox, _)) = self.shared.emptied.wait_timeout_while(outbox, limit, |outbox| !outbox.is_empty()) else {
            return;
        };
        if !outbox.is_empty() || outbox.dropped() > 0 {
            warn!(dropped = outbox.dropped(), unsent = !outbox.is_empty(), "not everything reached the feed");
        }
    }
}

type Client = (FeedClient<Channel>, Option<MetadataValue<Ascii>>);

fn connect(caller: &Caller, url: &str) -> Result<Client> {
    let mut endpoint = Endpoint::from_shared(url.to_owned())
        .with_context(|| format!("--feed (TRAINMASTER_FEED) is \"{url}\"; http://host:port is expected"))?
        .connect_timeout(Duration::from_secs(5))
        .http2_keep_alive_interval(Duration::from_secs(20))
        .keep_alive_timeout(Duration::from_secs(10))
        .keep_alive_while_idle(true);
    match (endpoint.uri().scheme_str(), &caller.ca) {
        (Some("http"), _) => {}
        (Some("https"), Some(file)) => {
            let pem = std::fs::read(file)
                .with_context(|| format!("--feed-ca (TRAINMASTER_FEED_CA): can't read {}", file.display()))?;
            endpoint = endpoint.tls_config(ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem)))?;
        }
        (Some("https"), None) => bail!("--feed (TRAINMASTER_FEED) is https: --feed-ca (TRAINMASTER_FEED_CA) is needed"),
        _ => bail!("--feed (TRAINMASTER_FEED) is \"{url}\"; http://host:port or https://host:port is expected"),
    }
    let bearer = match caller.token.as_str() {
        "" => None,
        token => Some(
            format!("Bearer {token}")
                .parse()
                .context("--token (TRAINMASTER_TOKEN) has characters other than visible ASCII")?,
        ),
    };
    Ok((FeedClient::new(endpoint.connect_lazy()), bearer))
}

/// The feed thread's side.
struct Session {
    caller: Caller,
    shared: Arc<Shared>,
    sender: mpsc::Sender<News>,
    waker: UnixStream,
}

impl Session {
    async fn run(self, client: Option<Client>, signals: [Signal; 2]) {
        let [mut terminate, mut interrupt] = signals;
        let listen = async {
            loop {
                tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
                self.tell(News::Terminate);
            }
        };
        match client {
            Some(client) => {
                tokio::join!(listen, self.watch(client.clone()), self.deliver(client));
            }
            None => listen.await,
        }
    }

    fn tell(&self, news: News) {
        let _ = self.sender.send(news);
        // A full pipe has enough bytes to wake the other side.
        let _ = (&self.waker).write(&[1]);
    }

    async fn watch(&self, (mut client, bearer): Client) {
        let request = WatchRequest {
            job: self.caller.job.to_string(),
            incarnation: self.caller.incarnation,
            role: SlotRole::from(self.caller.id.role).into(),
            index: self.caller.id.index,
            address: self.caller.address.clone(),
        };
        let (mut away_since, mut pause, mut orphaned) = (Instant::now(), FIRST_PAUSE, false);
        loop {
            let opened = tokio::time::timeout(CALL_LIMIT, client.watch(sign(request.clone(), bearer.as_ref()))).await;
            let mut why = Status::deadline_exceeded("no answer");
            match opened {
                Ok(Ok(stream)) => {
                    let mut stream = stream.into_inner();
                    loop {
                        match stream.message().await {
                            Ok(Some(assignment)) => {
                                pause = FIRST_PAUSE;
                                self.tell(News::Assigned(assignment));
                            }
                            Ok(None) => {
                                why = Status::unavailable("the stream ended");
                                break;
                            }
                            Err(status) => {
                                why = status;
                                break;
                            }
                        }
                    }
                    if pause == FIRST_PAUSE {
                        away_since = Instant::now();
                    }
                }
                Ok(Err(status)) => why = status,
                Err(_) => {}
            }
            let away = away_since.elapsed();
            if away >= self.caller.grace && !orphaned {
                orphaned = true;
                self.tell(News::Orphaned);
            }
            info!(code = ?why.code(), message = why.message(), away_ms = away.as_millis() as u64, "the feed is away");
            // The pause also ends with the grace, however long pauses have become.
            let left = self.caller.grace.saturating_sub(away);
            tokio::time::sleep(if orphaned { pause } else { pause.min(left.max(FIRST_PAUSE)) }).await;
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }

    async fn deliver(&self, (mut client, bearer): Client) {
        let mut pause = FIRST_PAUSE;
        loop {
            let Some(call) = self.shared.outbox().next() else {
                self.shared.emptied.notify_all();
                self.shared.filled.notified().await;
                continue;
            };
            let answer = tokio::time::timeout(CALL_LIMIT, self.call(&mut client, bearer.as_ref(), &call)).await;
            match answer.unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer"))) {
                Ok(()) => {
                    self.shared.outbox().answered(&call);
                    pause = FIRST_PAUSE;
                }
                // Another attempt would get the same answer.
                Err(status) if status.code() == Code::InvalidArgument => {
                    warn!(message = status.message(), "the feed refuses a report");
                    self.shared.outbox().answered(&call);
                }
                Err(status) => {
                    debug!(code = ?status.code(), message = status.message(), "will be told to the feed later");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LAST_PAUSE);
                }
            }
        }
    }

    async fn call(
        &self,
        client: &mut FeedClient<Channel>,
        bearer: Option<&MetadataValue<Ascii>>,
        call: &Call,
    ) -> Result<(), Status> {
        match call {
            Call::Report(progress) => {
                let request = ReportRequest {
                    job: self.caller.job.to_string(),
                    incarnation: self.caller.incarnation,
                    role: SlotRole::from(self.caller.id.role).into(),
                    index: self.caller.id.index,
                    progress: progress.clone(),
                };
                let reply = client.report(sign(request, bearer)).await?.into_inner();
                if !reply.accepted {
                    debug!(reason = reply.reason, "the feed ignored a report");
                }
            }
            Call::Acknowledge(request) => {
                client.acknowledge(sign(request.clone(), bearer)).await?;
            }
        }
        Ok(())
    }
}

fn sign<T>(message: T, bearer: Option<&MetadataValue<Ascii>>) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(bearer) = bearer {
        request.metadata_mut().insert("authorization", bearer.clone());
    }
    request
}
