//! Accepts and serves connections. Their number is limited, and so is the time of each without progress or without an
//! admitted call.

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

/// Maximum time of a TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Maximum time of a connection's greeting, and of an HTTP/1 request's head, including the time between requests.
const HEAD: Duration = Duration::from_secs(30);
/// Time of silence after which a connection is pinged. It has the same time to answer.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// Maximum number of concurrent calls on one connection.
const STREAMS: u32 = 1024;
/// Bytes of a call that are buffered before it is read, so that a call that is refused at its head, or for its length,
/// costs no more. All calls of a connection together have 16 times as many.
const UNREAD: u32 = 64 << 10;
/// Bytes of an answer that wait for a slow reader.
pub(crate) const SENDING: usize = 16 << 10;
/// Bytes of a request's headers.
const HEADERS: u32 = 8 << 10;
/// Time within which a connection needs an admitted call.
const NOBODY: Duration = Duration::from_secs(30);
/// Maximum number of connections without an admitted call. Beyond it, each new one closes the oldest.
const UNPROVEN: usize = 512;
/// Additional connections for callers that are [first](crate::Caller::first).
const FIRST: usize = 64;
/// Time for calls in progress after the daemon stops.
const FAREWELL: Duration = Duration::from_secs(5);

/// A port and its services.
#[derive(Debug)]
pub struct Port {
    /// The listening socket.
    pub listener: TcpListener,
    /// The services, [`guarded`](crate::guarded).
    pub router: Router,
    /// Certificate and key, for TLS.
    pub tls: Option<Tls>,
    /// Metrics of the port.
    pub metrics: NetMetrics,
    /// Maximum number of connections. More wait to be accepted.
    pub connections: usize,
}

impl Port {
    /// Serves until `shutdown` resolves, then lets calls in progress finish. Dropping the future drops the connections
    /// too.
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
        // Dropping this future drops the connections too.
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
                        // Possibly there are no free file descriptors. Others will be closed.
                        self.metrics.failed.with_label_values(&["accept"]).inc();
                        tracing::warn!(%error, "can't accept a connection");
                        sleep(Duration::from_millis(50)).await;
                        continue;
                    }
                },
                Some(_) = open.join_next() => continue,
                // Updates the state of certificates even without calls.
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

/// Connections without an admitted call, the oldest first. Proven ones are removed when they are visited.
struct Nobodys {
    most: usize,
    waiting: VecDeque<(Arc<Proof>, AbortHandle)>,
}

impl Nobodys {
    /// Adds a connection. If there are too many, the oldest is closed, and true is returned. So connections without
    /// access don't keep others out. O(1) amortised.
    fn add(&mut self, proof: Arc<Proof>, handle: AbortHandle) -> bool {
        if self.waiting.len() >= self.most {
            self.waiting.retain(|(proof, handle)| !proof.is_given() && !handle.is_finished());
        }
        let oldest = if self.waiting.len() >= self.most { self.waiting.pop_front() } else { None };
        self.waiting.push_back((proof, handle));
        oldest.map(|(_, handle)| handle.abort()).is_some()
    }
}

/// Counts an open connection until it is dropped.
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

/// Limits the number of connections so that enough open files remain for everything else.
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
                // Gives the last answer time to be sent.
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
