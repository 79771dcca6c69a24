//! Accepting and serving connections: as many as are allowed, each with limits on how slow it may be, and on how long it
//! may be nobody's.

use std::{collections::VecDeque, future::Future, net::SocketAddr, sync::Arc, time::Duration};

use axum::{Router, body::Body};
use hyper::service::service_fn;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto, graceful::GracefulShutdown},
};
use rustix::process::{Resource, getrlimit};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::{AbortHandle, JoinSet},
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

use crate::{NetMetrics, Peer, Tls, patient::Patient, proof::Proof, tls};

/// A TLS handshake may take so long.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// The greeting of a connection, and the head of a request in HTTP/1, may take so long; also between requests.
const HEAD: Duration = Duration::from_secs(30);
/// Whoever says nothing for so long is asked whether it is there, and has as long to answer.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// Calls at a time on one connection.
const STREAMS: u32 = 1024;
/// Bytes of a call that are taken before anybody reads them: a call that is refused at its head, or for its length, costs no
/// more. On a connection all calls together have 16 times that.
const UNREAD: u32 = 64 << 10;
/// Bytes of an answer that wait for one who doesn't read it.
pub(crate) const SENDING: usize = 16 << 10;
/// Bytes of a request's headers.
const HEADERS: u32 = 8 << 10;
/// On a connection somebody who may has to call within so long.
const NOBODY: Duration = Duration::from_secs(30);
/// Connections that are nobody's yet: beyond these the oldest of them goes for each that comes.
const UNPROVEN: usize = 512;
/// Connections that are kept for callers who are [first](crate::Caller::first), beside those.
const FIRST: usize = 64;
/// Once the daemon stops, calls under way may take so long.
const FAREWELL: Duration = Duration::from_secs(5);

/// The port and what is served on it.
#[derive(Debug)]
pub struct Port {
    /// Where.
    pub listener: TcpListener,
    /// What: [`guarded`](crate::guarded).
    pub router: Router,
    /// Certificate and key, where it speaks TLS.
    pub tls: Option<Tls>,
    /// What happens on it.
    pub metrics: NetMetrics,
    /// Connections at a time; more wait to be accepted.
    pub connections: usize,
}

impl Port {
    /// Serves until `shutdown` resolves, then lets calls under way finish. Dropped, it drops the connections too.
    pub async fn serve(mut self, shutdown: impl Future<Output = ()>) {
        let mut shutdown = std::pin::pin!(shutdown);
        let most = affordable(self.connections);
        if most < self.connections {
            let wanted = self.connections;
            tracing::warn!(wanted, most, "fewer connections than there could be: the limit on open files is low");
        }
        let slots = Arc::new(Semaphore::new(most));
        let mut nobodys = Nobodys { most: UNPROVEN.min(most.div_ceil(4)), waiting: VecDeque::new() };
        let kept = nobodys.most + FIRST.min(most / 16);
        let others = Arc::new(Semaphore::new(most.saturating_sub(kept).max(1)));
        let graceful = GracefulShutdown::new();
        // Whoever drops this future drops the connections too.
        let mut open = JoinSet::new();
        let ends = |tls: &Tls| self.metrics.certificate_ends.set(tls.ends());
        self.tls.iter().for_each(ends);
        loop {
            let slot = tokio::select! {
                slot = slots.clone().acquire_owned() => slot.expect("never closed"),
                () = &mut shutdown => break,
            };
            let (stream, address) = tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok(accepted) => accepted,
                    Err(error) => {
                        // Out of file descriptors, perhaps: others will be closed.
                        self.metrics.failed.with_label_values(&["accept"]).inc();
                        tracing::warn!(%error, "can't accept a connection");
                        sleep(Duration::from_millis(50)).await;
                        continue;
                    }
                },
                Some(_) = open.join_next() => continue,
                // What is said of certificates is true although nobody calls.
                () = sleep(tls::LOOK), if self.tls.is_some() => {
                    if let Some(tls) = &mut self.tls {
                        tls.acceptor();
                        ends(tls);
                    }
                    continue;
                }
                () = &mut shutdown => break,
            };
            let _ = stream.set_nodelay(true);
            let connection = Connection {
                address,
                router: self.router.clone(),
                metrics: self.metrics.clone(),
                watcher: graceful.watcher(),
                proof: Arc::new(Proof::new(others.clone())),
            };
            let tls = self.tls.as_mut().map(Tls::acceptor);
            self.tls.iter().for_each(ends);
            let (proof, counted) = (connection.proof.clone(), Counted::new(&connection));
            let handle = open.spawn(async move {
                connection.begin(stream, tls).await;
                drop((counted, slot));
            });
            if nobodys.add(proof, handle) {
                self.metrics.failed.with_label_values(&["unproven"]).inc();
            }
        }
        drop(self.listener);
        let _ = timeout(FAREWELL, graceful.shutdown()).await;
    }
}

/// Connections on which nobody was let in yet, the oldest first; those that are through are among them until looked at.
struct Nobodys {
    most: usize,
    waiting: VecDeque<(Arc<Proof>, AbortHandle)>,
}

impl Nobodys {
    /// Adds one; where they are too many the oldest ends, and true is returned: who knocks without a key keeps nobody out. O(1)
    /// amortised.
    fn add(&mut self, proof: Arc<Proof>, handle: AbortHandle) -> bool {
        if self.waiting.len() >= self.most {
            self.waiting.retain(|(proof, handle)| !proof.is_given() && !handle.is_finished());
        }
        let oldest = if self.waiting.len() >= self.most { self.waiting.pop_front() } else { None };
        self.waiting.push_back((proof, handle));
        oldest.map(|(_, handle)| handle.abort()).is_some()
    }
}

/// Counts an open connection, however it ends.
struct Counted {
    metrics: NetMetrics,
    proof: Arc<Proof>,
}

impl Counted {
    fn new(connection: &Connection) -> Self {
        connection.metrics.connections.inc();
        Self { metrics: connection.metrics.clone(), proof: connection.proof.clone() }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.metrics.connections.dec();
        self.proof.end();
    }
}

/// As many connections as wanted, as far as the limit on open files leaves some for everything else.
pub fn affordable(wanted: usize) -> usize {
    let limit = getrlimit(Resource::Nofile).current.and_then(|limit| usize::try_from(limit).ok());
    limit.map_or(wanted, |limit| wanted.min((limit / 4 * 3).max(1)))
}

struct Connection {
    address: SocketAddr,
    router: Router,
    metrics: NetMetrics,
    watcher: hyper_util::server::graceful::Watcher,
    proof: Arc<Proof>,
}

impl Connection {
    async fn begin(self, stream: TcpStream, tls: Option<TlsAcceptor>) {
        let (metrics, address) = (self.metrics.clone(), self.address);
        let failed = |stage: &str, error: &dyn std::fmt::Display| {
            metrics.failed.with_label_values(&[stage]).inc();
            tracing::debug!(%address, stage, %error, "a connection ended badly");
        };
        match tls {
            None => {
                if let Err(error) = self.serve(stream, [].into()).await {
                    failed("http", &error);
                }
            }
            Some(acceptor) => match timeout(HANDSHAKE, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => {
                    let certified = tls::uri_names(stream.get_ref().1.peer_certificates());
                    if let Err(error) = self.serve(stream, certified).await {
                        failed("http", &error);
                    }
                }
                Ok(Err(error)) => failed("tls", &error),
                Err(late) => failed("tls", &late),
            },
        }
    }

    async fn serve<S>(self, stream: S, certified: Arc<[String]>) -> Result<(), Box<dyn std::error::Error + Send + Sync>>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(HEADERS as usize);
        builder
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE)
            .max_concurrent_streams(STREAMS)
            .max_header_list_size(HEADERS)
            .max_send_buf_size(SENDING)
            .initial_stream_window_size(UNREAD)
            .initial_connection_window_size(16 * UNREAD);
        let peer = Peer { address: self.address, certified, proof: self.proof.clone() };
        let router = self.router;
        let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(peer.clone());
            router.clone().oneshot(request)
        });
        let connection = builder.serve_connection(TokioIo::new(Patient::new(stream, HEAD)), service).into_owned();
        let mut connection = std::pin::pin!(self.watcher.watch(connection));
        tokio::select! {
            ended = &mut connection => return ended,
            () = sleep(NOBODY), if !self.proof.is_given() => {}
            () = self.proof.over.notified() => {
                // What was answered last is on its way.
                let _ = timeout(Duration::from_secs(1), &mut connection).await;
                return Ok(());
            }
        }
        if !self.proof.is_given() {
            self.metrics.failed.with_label_values(&["unproven"]).inc();
            return Ok(());
        }
        tokio::select! {
            ended = connection => ended,
            () = self.proof.over.notified() => Ok(()),
            () = self.proof.ends() => Ok(()),
        }
    }
}
