//! The server for plug-ins and ApplicationMasters. Answers come from memory. Only admission calls the daemon.

use std::{
    path::Path,
    pin::Pin,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use prometheus::Registry;
use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
    time::timeout,
};
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tonic::{Request, Response, Status, service::Routes};
use trainmaster_net::{LoadLimits, NetMetrics, Port, TlsFiles, TokenFile, guarded, secret};

use super::{
    YarnError,
    config::{Api, Config, Tls},
    door::{Application, Door},
    jobfile,
    shared::Shared,
    translator::NoPlan,
    wire::{
        self,
        bridge_server::{Bridge, BridgeServer},
        master_server::{Master, MasterServer},
    },
};

/// Maximum wait for the daemon's answer to an admission. YARN's client waits for it, and other clients wait too.
const ADMIT: Duration = Duration::from_millis(150);
/// Maximum size of a message. A large cluster's snapshot exceeds gRPC's default of 4 MiB.
const LARGE: usize = 256 << 20;
/// Maximum size of an ApplicationMaster's message, which is empty.
const SMALL: usize = 1 << 10;
/// Maximum number of simultaneous ApplicationMasters, and of connections, within the limit on open files.
const FOLLOWERS: usize = 1 << 16;
const CONNECTIONS: usize = 16_384;
/// The name of the file with the plug-ins' token in the adapter's own folder, if no other is configured.
const TOKEN: &str = "plug-ins.token";

/// Starts to listen. The returned future serves.
///
/// # Errors
/// The address is in use, or the certificate, the key or the token can't be used.
pub(super) async fn start(
    shared: Arc<Shared>,
    config: &Config,
    state_dir: &Path,
) -> Result<impl Future<Output = ()> + Send + use<>, YarnError> {
    let (token, tls) = (token(config, state_dir)?, config.tls.as_ref().map(tls).transpose()?);
    let listen = |error| YarnError::Listen { address: config.listen, error };
    let listener = TcpListener::bind(config.listen).await.map_err(listen)?;
    let address = listener.local_addr().map_err(listen)?;
    if let Some(file) = &token {
        tracing::info!(token_file = %file.path().display(), "YARN's plug-ins show this token");
    }
    let door = Door { shared: shared.clone(), token: token.map(Mutex::new) };
    let master = MasterServer::new(MasterService { shared: shared.clone() }).max_decoding_message_size(SMALL);
    let mut routes = Routes::new(master);
    // Without plug-ins, nobody can call as a plug-in.
    if config.api == Api::PlugIns {
        let bridge = BridgeServer::new(BridgeService { shared });
        routes = routes.add_service(bridge.max_decoding_message_size(LARGE).max_encoding_message_size(LARGE));
    }
    // With TLS, any host name is accepted, because the certificate identifies the server.
    let names = if tls.is_some() { trainmaster_net::Door::default() } else { trainmaster_net::Door::of([]) };
    let metrics = NetMetrics::register(&Registry::new()).expect("a new registry has no such names");
    let limits = LoadLimits { lists: FOLLOWERS, ..LoadLimits::default() };
    let router = guarded(routes.into_axum_router(), names, Arc::new(door), limits, metrics.clone());
    let port = Port { listener, router, tls, metrics, connections: CONNECTIONS };
    tracing::info!(%address, api = ?config.api, "listening for YARN's plug-ins and ApplicationMasters");
    Ok(port.serve(std::future::pending()))
}

/// The plug-ins' token. `None` without plug-ins. If no file is configured, it is created.
pub(super) fn token(config: &Config, state_dir: &Path) -> Result<Option<TokenFile>, YarnError> {
    if config.api == Api::Rest {
        return Ok(None);
    }
    let path = token_file(config, state_dir);
    if config.token_file.is_none() {
        secret::make(&path, "yarn").map_err(YarnError::Secret)?;
    }
    TokenFile::open(path).map(Some).map_err(YarnError::Secret)
}

/// The path of the plug-ins' token file.
pub(super) fn token_file(config: &Config, state_dir: &Path) -> std::path::PathBuf {
    config.token_file.clone().unwrap_or_else(|| state_dir.join(TOKEN))
}

pub(super) fn tls(Tls { cert, key }: &Tls) -> Result<trainmaster_net::Tls, YarnError> {
    let files = TlsFiles { cert: cert.clone(), key: key.clone(), ..TlsFiles::default() };
    trainmaster_net::Tls::read(files).map_err(|error| YarnError::Secret(error.to_string()))
}

/// Serves the plug-ins.
struct BridgeService {
    shared: Arc<Shared>,
}

#[tonic::async_trait]
impl Bridge for BridgeService {
    async fn exchange(&self, request: Request<wire::Cluster>) -> Result<Response<wire::Plan>, Status> {
        self.shared.exchange(request.into_inner()).map(Response::new)
    }

    async fn admit(&self, request: Request<wire::Submission>) -> Result<Response<wire::Verdict>, Status> {
        let wire::Submission { user, queue, job, .. } = request.into_inner();
        let read = jobfile::read(&job, &user, &queue, self.shared.accounts);
        let check = |spec| self.shared.look(|translator, _| translator.check_size(&spec)).map(|()| spec);
        let mut spec = match read.and_then(check) {
            Ok(spec) => spec,
            Err(reason) => return Ok(Response::new(wire::Verdict { admitted: false, reason })),
        };
        // A name that another job has is no reason to reject the job, because it would get a name with its number.
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        spec.name = jobfile::numbered(&spec.name, &nanos.to_string());
        let late = |_| Status::unavailable(format!("the scheduler didn't answer within {ADMIT:?}"));
        let asked = timeout(ADMIT, self.shared.daemon.admit(&spec)).await.map_err(late)?;
        let reply = asked.map_err(|status| Status::unavailable(format!("the scheduler: {}", status.message())))?;
        Ok(Response::new(wire::Verdict { admitted: reply.admitted, reason: reply.reason }))
    }
}

/// Serves ApplicationMasters.
struct MasterService {
    shared: Arc<Shared>,
}

type Orders = Result<wire::Orders, Status>;

#[tonic::async_trait]
impl Master for MasterService {
    type FollowStream = Pin<Box<dyn Stream<Item = Orders> + Send>>;

    async fn follow(&self, request: Request<wire::FollowRequest>) -> Result<Response<Self::FollowStream>, Status> {
        let Some(Application(application)) = request.extensions().get().cloned() else {
            return Err(Status::internal("nobody asked who this is"));
        };
        let (sender, receiver) = mpsc::channel(1);
        let changes = self.shared.changed.subscribe();
        tokio::spawn(follow(self.shared.clone(), application, changes, sender));
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }
}

/// Sends the orders whenever they change, until the receiver is gone.
async fn follow(
    shared: Arc<Shared>,
    application: String,
    mut changes: watch::Receiver<()>,
    sender: mpsc::Sender<Orders>,
) {
    let mut told = None;
    loop {
        changes.mark_unchanged();
        let orders = match shared.look(|translator, now| translator.orders(now, &application)) {
            Ok(Some(orders)) => Ok(orders),
            Ok(None) => Err(Status::not_found(format!("{application} is over"))),
            Err(NoPlan) => Err(Status::unavailable("there is no plan of the scheduler's yet")),
        };
        let ends = orders.is_err();
        if ends || orders.as_ref().ok() != told.as_ref() {
            told = orders.as_ref().ok().cloned();
            if sender.send(orders).await.is_err() || ends {
                return;
            }
        }
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            () = sender.closed() => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tokio::time::sleep;
    use tokio_stream::StreamExt as _;
    use tonic::{
        Code,
        transport::{Certificate, Channel, ClientTlsConfig},
    };
    use trainmaster_manager::testing::{away, launch};

    use super::{
        super::{door::APPLICATION, entry::INFO, wire::bridge_client::BridgeClient},
        *,
    };

    const TOKEN: &str = "correct-horse-battery";

    /// Serves with TLS and a token. Returns the certificate for clients.
    fn serve(folder: &Path, address: std::net::SocketAddr) -> Certificate {
        let pair = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        let path = |name: &str, text: &str| {
            trainmaster_net::secret::write(&folder.join(name), text).unwrap();
            folder.join(name)
        };
        let cert = path("cert.pem", &pair.cert.pem());
        let key = path("key.pem", &pair.signing_key.serialize_pem());
        let token = path("token", &format!("{TOKEN}\n"));
        let text =
            format!("listen = \"{address}\"\ntls = {{ cert = {cert:?}, key = {key:?} }}\ntoken_file = {token:?}\n");
        let launch = launch(folder, Some(&text));
        tokio::spawn((INFO.start)(launch, away(), Box::pin(std::future::pending())).unwrap());
        Certificate::from_pem(pair.cert.pem())
    }

    #[tokio::test]
    async fn plug_ins_need_the_token_and_masters_their_secret() {
        let folder = tempfile::tempdir().unwrap();
        let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let tls = ClientTlsConfig::new().ca_certificate(serve(folder.path(), address)).domain_name("localhost");
        let endpoint = Channel::from_shared(format!("https://{address}")).unwrap().tls_config(tls).unwrap();
        let channel = loop {
            match endpoint.connect().await {
                Ok(channel) => break channel,
                Err(_) => sleep(Duration::from_millis(20)).await,
            }
        };
        fn bearing<T>(message: T, token: Option<&str>) -> Request<T> {
            let mut request = Request::new(message);
            if let Some(token) = token {
                request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
            }
            request
        }
        let mut bridge = BridgeClient::new(channel.clone());
        let mut exchange = async |token: Option<&str>| {
            bridge.exchange(bearing(wire::Cluster::default(), token)).await.unwrap_err().code()
        };
        assert_eq!(exchange(None).await, Code::Unauthenticated);
        assert_eq!(exchange(Some("correct-horse-batterx")).await, Code::Unauthenticated);
        assert_eq!(exchange(Some(TOKEN)).await, Code::Unavailable, "let in, but the daemon is away");
        // A new token is valid without a restart.
        trainmaster_net::secret::write(&folder.path().join("token"), "another-horse-battery\n").unwrap();
        sleep(Duration::from_millis(1100)).await;
        assert_eq!(exchange(Some(TOKEN)).await, Code::Unauthenticated);
        assert_eq!(exchange(Some("another-horse-battery")).await, Code::Unavailable);
        let admitted = bridge.admit(wire::Submission::default()).await.unwrap_err();
        assert_eq!(admitted.code(), Code::Unauthenticated);
        let mut master = wire::master_client::MasterClient::new(channel);
        for application in [None, Some("application_1_1")] {
            let mut request = bearing(wire::FollowRequest {}, Some("abc"));
            if let Some(application) = application {
                request.metadata_mut().insert(APPLICATION, application.parse().unwrap());
            }
            assert_eq!(master.follow(request).await.unwrap_err().code(), Code::Unauthenticated);
        }
        // A client without TLS is refused.
        let plain = Channel::from_shared(format!("http://{address}")).unwrap().connect_lazy();
        assert!(BridgeClient::new(plain).exchange(wire::Cluster::default()).await.is_err());
    }

    /// A request of 200 MB without a token isn't read.
    #[tokio::test]
    async fn nothing_is_read_of_who_shows_no_token() {
        let folder = tempfile::tempdir().unwrap();
        let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let launch = launch(folder.path(), Some(&format!("listen = \"{address}\"")));
        let own = launch.state_dir.join(super::TOKEN);
        tokio::spawn((INFO.start)(launch, away(), Box::pin(std::future::pending())).unwrap());
        let body_read = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let stream = loop {
            match tokio::net::TcpStream::connect(address).await {
                Ok(stream) => break stream,
                Err(_) => sleep(Duration::from_millis(20)).await,
            }
        };
        let (mut client, connection) = hyper::client::conn::http2::handshake(
            hyper_util::rt::TokioExecutor::new(),
            hyper_util::rt::TokioIo::new(stream),
        )
        .await
        .unwrap();
        tokio::spawn(connection);
        let counted = body_read.clone();
        let chunks = tokio_stream::iter(0..200).map(move |_| {
            counted.fetch_add(1 << 20, std::sync::atomic::Ordering::Relaxed);
            Ok::<_, std::convert::Infallible>(hyper::body::Frame::data(hyper::body::Bytes::from(vec![0; 1 << 20])))
        });
        let request = hyper::Request::post(format!("http://{address}/trainmaster.yarn.v1.Bridge/Exchange"))
            .header("content-type", "application/grpc")
            .body(http_body_util::StreamBody::new(chunks))
            .unwrap();
        let answer = client.send_request(request).await.unwrap();
        assert_eq!(answer.headers()["grpc-status"], "16", "{answer:?}");
        assert!(body_read.load(std::sync::atomic::Ordering::Relaxed) < 20 << 20);
        // The token was created, and only its owner can read it.
        let token = trainmaster_net::secret::read(&own).unwrap();
        assert!(token.starts_with("trainmaster-yarn-"), "it has its own prefix");
    }
}
