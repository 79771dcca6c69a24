//! Accepting and serving connections: as many as are allowed, each with limits on how slow it may be.

use std::{future::Future, net::SocketAddr, sync::Arc, time::Duration};

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
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

use super::{NetMetrics, patient::Patient};
use crate::daemon::services::Peer;

/// A TLS handshake may take so long.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// The greeting of a connection, and the head of a request in HTTP/1, may take so long; also between requests.
const HEAD: Duration = Duration::from_secs(30);
/// Whoever says nothing for so long is asked whether it is there, and has as long to answer.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// Calls at a time on one connection.
const STREAMS: u32 = 1024;
/// Bytes of a request's headers.
const HEADERS: u32 = 64 << 10;
/// Once the daemon stops, calls under way may take so long.
const FAREWELL: Duration = Duration::from_secs(5);

/// The port and what is served on it.
pub(crate) struct Port {
    pub(crate) listener: TcpListener,
    pub(crate) router: Router,
    pub(crate) tls: Option<TlsAcceptor>,
    pub(crate) metrics: NetMetrics,
    /// Connections at a time.
    pub(crate) connections: usize,
}

impl Port {
    /// Serves until `shutdown` resolves, then lets calls under way finish.
    pub(crate) async fn serve(self, shutdown: impl Future<Output = ()>) {
        let mut shutdown = std::pin::pin!(shutdown);
        let slots = Arc::new(Semaphore::new(affordable(self.connections)));
        let graceful = GracefulShutdown::new();
        // Whoever drops this future drops the connections too.
        let mut open = JoinSet::new();
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
                () = &mut shutdown => break,
            };
            let _ = stream.set_nodelay(true);
            let connection = Connection {
                address,
                router: self.router.clone(),
                metrics: self.metrics.clone(),
                watcher: graceful.watcher(),
            };
            let tls = self.tls.clone();
            open.spawn(async move {
                connection.begin(stream, tls).await;
                drop(slot);
            });
        }
        drop(self.listener);
        let _ = timeout(FAREWELL, graceful.shutdown()).await;
    }
}

/// As many connections as wanted, as far as they leave file descriptors for everything else.
fn affordable(wanted: usize) -> usize {
    let limit = getrlimit(Resource::Nofile).current.and_then(|limit| usize::try_from(limit).ok());
    let most = limit.map_or(wanted, |limit| (limit / 4 * 3).max(1));
    if most < wanted {
        tracing::warn!(wanted, most, "fewer connections than configured: the limit on open files is low");
    }
    wanted.min(most)
}

struct Connection {
    address: SocketAddr,
    router: Router,
    metrics: NetMetrics,
    watcher: hyper_util::server::graceful::Watcher,
}

impl Connection {
    async fn begin(self, stream: TcpStream, tls: Option<TlsAcceptor>) {
        self.metrics.connections.inc();
        let (metrics, address) = (self.metrics.clone(), self.address);
        let failed = |stage: &str, error: &dyn std::fmt::Display| {
            metrics.failed.with_label_values(&[stage]).inc();
            tracing::debug!(%address, stage, %error, "a connection ended badly");
        };
        match tls {
            None => {
                if let Err(error) = self.serve(stream).await {
                    failed("http", &error);
                }
            }
            Some(tls) => match timeout(HANDSHAKE, tls.accept(stream)).await {
                Ok(Ok(stream)) => {
                    if let Err(error) = self.serve(stream).await {
                        failed("http", &error);
                    }
                }
                Ok(Err(error)) => failed("tls", &error),
                Err(late) => failed("tls", &late),
            },
        }
        metrics.connections.dec();
    }

    async fn serve<S>(self, stream: S) -> Result<(), Box<dyn std::error::Error + Send + Sync>>
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
            .initial_stream_window_size(1 << 20)
            .initial_connection_window_size(4 << 20);
        let peer = Peer { address: self.address, with_token: false };
        let router = self.router;
        let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(peer);
            router.clone().oneshot(request)
        });
        let connection = builder.serve_connection(TokioIo::new(Patient::new(stream, HEAD)), service).into_owned();
        self.watcher.watch(connection).await
    }
}
