//! The feed for training programs and the control socket, on their own thread. Slow clients never delay the agent, and
//! the agent never delays slurmctld.

use std::{
    fs, io,
    os::unix::{fs::PermissionsExt, net::UnixDatagram},
    path::{Path, PathBuf},
    sync::Arc,
    thread,
};

use async_trait::async_trait;
use prometheus::Registry;
use serde_json::json;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, UnixListener, UnixStream},
    runtime::Builder,
    sync::{mpsc, oneshot},
    time::{Duration, timeout},
};
use tonic::service::Routes;
use trainmaster_core::{Incarnation, JobId, Role};
use trainmaster_feed::{Acknowledgement, Feed, FeedHost, FeedMetrics, FeedService, JobKeeper, Limits, Unavailable};
use trainmaster_host::Answers;
use trainmaster_net::{Door, LoadLimits, NetMetrics, Port, Tls, TlsFiles, guarded};
use trainmaster_proto::Progress;

use crate::{config, control::Command};

/// Maximum number of requests that wait for the agent's next round. Others are refused.
const QUEUE: usize = 4096;
/// Maximum number of connections, and maximum bytes of unanswered requests, because they use slurmctld's memory.
const CONNECTIONS: usize = 10_000;
const REQUESTS_BYTES: usize = 32 << 20;
/// Maximum length of a control request, and maximum time for it.
const REQUEST_BYTES: u64 = 64 << 10;
const PATIENCE: Duration = Duration::from_secs(30);

/// A request to the agent.
pub(crate) enum Request {
    /// A slot's report.
    Report {
        job: JobId,
        incarnation: Incarnation,
        slot: (Role, u32),
        progress: Vec<Progress>,
        reply: oneshot::Sender<Result<Answers, Unavailable>>,
    },
    /// A command from the control socket.
    Control { command: Command, reply: oneshot::Sender<serde_json::Value> },
}

/// The agent's end of the services.
#[derive(Debug)]
pub(crate) struct Services {
    pub(crate) feed: Feed,
    pub(crate) requests: mpsc::Receiver<Request>,
    /// Dropping it ends the thread.
    _stop: oneshot::Sender<()>,
}

struct Host {
    requests: mpsc::Sender<Request>,
    wake: Wake,
}

/// Wakes the plugin's thread, as a job's submission does.
#[derive(Debug)]
struct Wake {
    socket: Option<UnixDatagram>,
    path: PathBuf,
}

impl Wake {
    fn new(path: PathBuf) -> Self {
        let socket = UnixDatagram::unbound().and_then(|socket| socket.set_nonblocking(true).map(|()| socket));
        Self { socket: socket.ok(), path }
    }

    fn up(&self) {
        if let Some(socket) = &self.socket {
            // If the socket is full, the thread will wake anyway.
            let _ = socket.send_to(b"r", &self.path);
        }
    }
}

impl Host {
    async fn ask<T>(&self, request: impl FnOnce(oneshot::Sender<T>) -> Request) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.requests.try_send(request(reply)).ok()?;
        self.wake.up();
        answer.await.ok()
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
        let answer = self.ask(|reply| Request::Report { job, incarnation, slot, progress, reply }).await;
        answer.unwrap_or_else(|| Err(Unavailable("the agent takes nothing now".into())))
    }

    async fn acknowledge(&self, _: Acknowledgement) {}
}

/// Opens the feed's port and the control socket, and serves both. `address` is the port's address for jobs, if it is
/// known.
///
/// # Errors
/// One of them can't be opened, or the thread can't be created.
pub(crate) fn start(
    feed: &config::Feed,
    address: Option<&str>,
    control: &Path,
    wake: &Path,
    registry: &Registry,
) -> io::Result<Services> {
    let files = |(cert, key): (&Path, &Path)| TlsFiles { cert: cert.into(), key: key.into(), ..TlsFiles::default() };
    let tls = feed.tls().map(|pair| Tls::read(files(pair)));
    let tls = tls.transpose().map_err(|error| io::Error::other(format!("feed: {error}")))?;
    let listen = feed.listen;
    let named = |error: io::Error| io::Error::new(error.kind(), format!("feed.listen: {listen}: {error}"));
    let listener = std::net::TcpListener::bind(listen).map_err(named)?;
    listener.set_nonblocking(true)?;
    // The socket of a killed slurmctld may still exist.
    let _ = fs::remove_file(control);
    let socket = std::os::unix::net::UnixListener::bind(control)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", control.display())))?;
    fs::set_permissions(control, fs::Permissions::from_mode(0o600))?;
    socket.set_nonblocking(true)?;

    let metrics = NetMetrics::register(registry).map_err(io::Error::other)?;
    let handle = Feed::new(Limits::default(), FeedMetrics::register(registry).map_err(io::Error::other)?);
    // Until Slurm was observed, a job's slots may be those of an earlier start.
    handle.close();
    let (requests, received) = mpsc::channel(QUEUE);
    let (stop, stopped) = oneshot::channel::<()>();
    let host = Arc::new(Host { requests, wake: Wake::new(wake.to_owned()) });
    let service = FeedService::new(handle.clone(), host.clone()).into_server();
    let door = if tls.is_some() { Door { names: None } } else { Door::of(address) };
    let keeper = Arc::new(JobKeeper::new(handle.clone(), CONNECTIONS));
    let limits = LoadLimits { request_bytes: REQUESTS_BYTES, ..LoadLimits::default() };
    let router =
        guarded(Routes::new(service).into_axum_router().reset_fallback(), door, keeper, limits, metrics.clone());
    let runtime = Builder::new_current_thread().enable_all().build()?;
    thread::Builder::new().name("trainmaster-feed".into()).spawn(move || {
        runtime.block_on(async move {
            let feed = async {
                match TcpListener::from_std(listener) {
                    Ok(listener) => {
                        let port = Port { listener, router, tls, metrics, connections: CONNECTIONS };
                        port.serve(std::future::pending()).await;
                    }
                    Err(error) => tracing::error!(%error, "no feed: training programs can't report"),
                }
            };
            let control = async {
                match UnixListener::from_std(socket) {
                    Ok(socket) => answer_all(&socket, &host).await,
                    Err(error) => tracing::error!(%error, "no control socket"),
                }
            };
            // If the feed fails, the control socket still works, so jobs can be paused.
            tokio::select! {
                _ = async { tokio::join!(feed, control) } => {}
                _ = stopped => {}
            }
        });
    })?;
    Ok(Services { feed: handle, requests: received, _stop: stop })
}

async fn answer_all(socket: &UnixListener, host: &Arc<Host>) {
    loop {
        let Ok((stream, _)) = socket.accept().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let host = host.clone();
        tokio::spawn(async move {
            let _ = timeout(PATIENCE, answer(stream, &host)).await;
        });
    }
}

/// Reads one line of JSON, and writes one.
async fn answer(stream: UnixStream, host: &Host) -> io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut line = String::new();
    BufReader::new(read.take(REQUEST_BYTES)).read_line(&mut line).await?;
    let reply = match serde_json::from_str(&line) {
        Ok(command) => host.ask(|reply| Request::Control { command, reply }).await,
        Err(error) => Some(json!({ "error": error.to_string() })),
    };
    let reply = reply.unwrap_or_else(|| json!({ "error": "the agent takes nothing now" }));
    write.write_all(format!("{reply}\n").as_bytes()).await
}
