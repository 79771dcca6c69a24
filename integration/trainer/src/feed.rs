//! The connection to the scheduler, on the I/O thread, so that training never waits for it.
//!
//! It keeps a `Watch` open, sends the outbox, and handles SIGTERM. Without the feed, training continues, and
//! both are tried again with increasing pauses.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::{
    runtime::Handle,
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
    time::timeout,
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
    args::SlotArgs,
    id::Id,
    outbox::{Call, Outbox},
};

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(3);
const CALL_LIMIT: Duration = Duration::from_secs(10);

/// Events of the feed.
#[derive(Debug)]
pub(crate) enum News {
    Assigned(Assignment),
    /// SIGTERM or SIGINT.
    Terminate,
    /// The feed was away longer than the orphan grace.
    Orphaned,
    /// This connection failed in an unforeseen way.
    Abandoned,
}

/// The caller of the feed: its slot, and its address for its peers.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) slot: SlotArgs,
    pub(crate) id: Id,
    pub(crate) address: String,
}

/// The training thread's side.
pub(crate) struct Feed {
    caller: Caller,
    outbox: watch::Sender<Outbox>,
}

impl Feed {
    /// Starts on the I/O thread. `tell` is called there for every event.
    ///
    /// # Errors
    ///
    /// The URL, token or certificate is invalid.
    pub(crate) fn start(caller: Caller, io: &Handle, tell: impl Fn(News) + Send + Sync + 'static) -> Result<Self> {
        let _context = io.enter();
        let outbox = watch::Sender::new(Outbox::default());
        let signals = [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?];
        let client = caller.slot.feed.as_deref().map(|url| connect(&caller, url)).transpose()?;
        let session = Session { caller: caller.clone(), outbox: outbox.clone(), tell };
        io.spawn(session.run(client, signals));
        Ok(Self { caller, outbox })
    }

    /// Queues progress without waiting.
    pub(crate) fn report(&self, progress: Progress) {
        if self.caller.slot.feed.is_some() {
            self.outbox.send_modify(|outbox| outbox.report(progress));
        }
    }

    /// Queues an acknowledgement without waiting.
    pub(crate) fn acknowledge(&self, revision: u32, leaving: bool, checkpoint_step: u64, checkpoint_ms: f64) {
        if self.caller.slot.feed.is_some() {
            let request = AcknowledgeRequest {
                job: self.caller.slot.job.to_string(),
                incarnation: self.caller.slot.incarnation,
                revision,
                role: SlotRole::from(self.caller.id.role).into(),
                index: self.caller.id.index,
                checkpoint_step,
                checkpoint_ms,
                leaving,
            };
            self.outbox.send_modify(|outbox| outbox.acknowledge(request));
        }
    }

    /// Waits until the outbox is sent, at most for `limit`.
    pub(crate) fn farewell(self, limit: Duration, io: &Handle) {
        let mut outbox = self.outbox.subscribe();
        let sent = io.block_on(async { timeout(limit, outbox.wait_for(Outbox::is_empty)).await.is_ok() });
        let dropped = outbox.borrow().dropped();
        if !sent || dropped > 0 {
            warn!(dropped, unsent = !sent, "not everything reached the feed");
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
    match (endpoint.uri().scheme_str(), &caller.slot.feed_ca) {
        (Some("http"), _) => {}
        (Some("https"), Some(file)) => {
            let pem = std::fs::read(file)
                .with_context(|| format!("--feed-ca (TRAINMASTER_FEED_CA): can't read {}", file.display()))?;
            endpoint = endpoint.tls_config(ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem)))?;
        }
        (Some("https"), None) => bail!("--feed (TRAINMASTER_FEED) is https: --feed-ca (TRAINMASTER_FEED_CA) is needed"),
        _ => bail!("--feed (TRAINMASTER_FEED) is \"{url}\"; http://host:port or https://host:port is expected"),
    }
    let bearer = match caller.slot.token.as_str() {
        "" => None,
        token => Some(
            format!("Bearer {token}")
                .parse()
                .context("--token (TRAINMASTER_TOKEN) has characters other than visible ASCII")?,
        ),
    };
    Ok((FeedClient::new(endpoint.connect_lazy()), bearer))
}

/// The I/O thread's side.
struct Session<T: Fn(News)> {
    caller: Caller,
    outbox: watch::Sender<Outbox>,
    tell: T,
}

impl<T: Fn(News)> Drop for Session<T> {
    fn drop(&mut self) {
        (self.tell)(News::Abandoned);
    }
}

impl<T: Fn(News)> Session<T> {
    async fn run(self, client: Option<Client>, signals: [Signal; 2]) {
        let [mut terminate, mut interrupt] = signals;
        let listen = async {
            loop {
                tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
                (self.tell)(News::Terminate);
            }
        };
        match client {
            Some(client) => {
                tokio::join!(listen, self.watch(client.clone()), self.deliver(client));
            }
            None => listen.await,
        }
    }

    async fn watch(&self, (mut client, bearer): Client) {
        let request = WatchRequest {
            job: self.caller.slot.job.to_string(),
            incarnation: self.caller.slot.incarnation,
            role: SlotRole::from(self.caller.id.role).into(),
            index: self.caller.id.index,
            address: self.caller.address.clone(),
        };
        let grace = Duration::from_millis(self.caller.slot.orphan_grace_ms);
        let (mut away_since, mut pause, mut orphaned) = (Instant::now(), FIRST_PAUSE, false);
        loop {
            let opened = timeout(CALL_LIMIT, client.watch(sign(request.clone(), bearer.as_ref()))).await;
            let why = match opened.unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer"))) {
                Ok(stream) => {
                    let mut stream = stream.into_inner();
                    let end = loop {
                        match stream.message().await {
                            Ok(Some(assignment)) => {
                                pause = FIRST_PAUSE;
                                (self.tell)(News::Assigned(assignment));
                            }
                            Ok(None) => break Status::unavailable("the stream ended"),
                            Err(status) => break status,
                        }
                    };
                    if pause == FIRST_PAUSE {
                        away_since = Instant::now();
                    }
                    end
                }
                Err(status) => status,
            };
            let away = away_since.elapsed();
            if away >= grace && !orphaned {
                orphaned = true;
                (self.tell)(News::Orphaned);
            }
            info!(code = ?why.code(), message = why.message(), away_ms = away.as_millis() as u64, "the feed is away");
            // The pause also ends with the grace, however long pauses have become.
            let left = grace.saturating_sub(away);
            tokio::time::sleep(if orphaned { pause } else { pause.min(left.max(FIRST_PAUSE)) }).await;
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }

    async fn deliver(&self, (mut client, bearer): Client) {
        let (mut pause, mut filled) = (FIRST_PAUSE, self.outbox.subscribe());
        loop {
            let next = filled.borrow_and_update().next();
            let Some(call) = next else {
                let _ = filled.changed().await; // fails without a sender, and this session has one
                continue;
            };
            let answer = timeout(CALL_LIMIT, self.call(&mut client, bearer.as_ref(), &call)).await;
            match answer.unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer"))) {
                Ok(()) => {
                    self.outbox.send_modify(|outbox| outbox.answered(&call));
                    pause = FIRST_PAUSE;
                }
                // Another attempt would get the same answer.
                Err(status) if status.code() == Code::InvalidArgument => {
                    warn!(message = status.message(), "the feed refuses a report");
                    self.outbox.send_modify(|outbox| outbox.answered(&call));
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
                    job: self.caller.slot.job.to_string(),
                    incarnation: self.caller.slot.incarnation,
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
