//! What the plug-ins and ApplicationMasters call. Answers come from memory; only admission asks the daemon.

use std::{
    fs,
    pin::Pin,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
    time::timeout,
};
use tokio_stream::{
    Stream,
    wrappers::{ReceiverStream, TcpListenerStream},
};
use tonic::{
    Request, Response, Status,
    metadata::MetadataMap,
    transport::{Identity, Server, ServerTlsConfig},
};

use super::{
    YarnError,
    agent::Shared,
    config::{Api, Config, SHORTEST_TOKEN, Tls},
    jobfile,
    secret::SecretHash,
    translator::NoPlan,
    wire::{
        self,
        bridge_server::{Bridge, BridgeServer},
        master_server::{Master, MasterServer},
    },
};

/// A client of YARN's waits for this answer, and others for it.
const ADMIT: Duration = Duration::from_millis(150);
/// A snapshot of a large cluster is far larger than gRPC's default of 4 MiB allows.
const LARGE: usize = 256 << 20;
/// What an ApplicationMaster or a client sends is small.
const SMALL: usize = 1 << 20;
/// Whoever says nothing for so long is asked whether it is there, and has as long to answer.
const KEEP_ALIVE: Duration = Duration::from_secs(20);

/// Listens; the future that is returned serves.
///
/// # Errors
/// The address is taken, or the certificate, the key or the token can't be used.
pub(super) async fn start(
    shared: Arc<Shared>,
    config: &Config,
) -> Result<impl Future<Output = ()> + Send + use<>, YarnError> {
    let (token, tls) = (token(config)?, config.tls.as_ref().map(identity).transpose()?);
    let listen = |error| YarnError::Listen { address: config.listen, error };
    let listener = TcpListener::bind(config.listen).await.map_err(listen)?;
    let address = listener.local_addr().map_err(listen)?;
    let mut server = Server::builder()
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .http2_keepalive_timeout(Some(KEEP_ALIVE))
        .tcp_nodelay(true);
    if let (Some(identity), Some(Tls { cert, .. })) = (tls, &config.tls) {
        let tls = ServerTlsConfig::new().identity(identity);
        server = server.tls_config(tls).map_err(|error| wrong(cert, causes(&error)))?;
    }
    // Without plug-ins whoever calls as one isn't.
    let bridge = (config.api == Api::PlugIns).then(|| {
        let bridge = BridgeServer::new(BridgeService { shared: shared.clone(), token });
        bridge.max_decoding_message_size(LARGE).max_encoding_message_size(LARGE)
    });
    let router = server
        .add_optional_service(bridge)
        .add_service(MasterServer::new(MasterService { shared }).max_decoding_message_size(SMALL));
    tracing::info!(%address, api = ?config.api, "listening for YARN's plug-ins and ApplicationMasters");
    Ok(async move {
        if let Err(error) = router.serve_with_incoming(TcpListenerStream::new(listener)).await {
            tracing::error!(error = causes(&error), "YARN can't be served any longer");
        }
    })
}

/// What the plug-ins have to show.
pub(super) fn token(config: &Config) -> Result<Option<SecretHash>, YarnError> {
    let Some(path) = &config.token_file else { return Ok(None) };
    let text = fs::read_to_string(path).map_err(|error| wrong(path, error.to_string()))?;
    if text.trim().len() < SHORTEST_TOKEN {
        return Err(wrong(path, format!("the token must have at least {SHORTEST_TOKEN} characters")));
    }
    Ok(Some(SecretHash::of(text.trim())))
}

pub(super) fn identity(tls: &Tls) -> Result<Identity, YarnError> {
    let read = |path| fs::read(path).map_err(|error| wrong(path, error.to_string()));
    Ok(Identity::from_pem(read(&tls.cert)?, read(&tls.key)?))
}

fn wrong(path: &std::path::Path, problem: String) -> YarnError {
    YarnError::Secret { path: path.to_owned(), problem }
}

/// An error with what caused it.
pub(super) fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// Serves the plug-ins.
struct BridgeService {
    shared: Arc<Shared>,
    token: Option<SecretHash>,
}

impl BridgeService {
    fn authenticate(&self, metadata: &MetadataMap) -> Result<(), Status> {
        let Some(hash) = self.token else { return Ok(()) };
        let given = metadata.get("authorization").and_then(|value| value.to_str().ok());
        let token = given.and_then(|text| text.strip_prefix("Bearer "));
        if token.is_some_and(|token| hash.matches(token.trim())) {
            return Ok(());
        }
        Err(Status::unauthenticated("the plug-ins need the token of token_file: authorization: Bearer <token>"))
    }
}

#[tonic::async_trait]
impl Bridge for BridgeService {
    async fn exchange(&self, request: Request<wire::Cluster>) -> Result<Response<wire::Plan>, Status> {
        self.authenticate(request.metadata())?;
        self.shared.exchange(request.into_inner()).map(Response::new)
    }

    async fn admit(&self, request: Request<wire::Submission>) -> Result<Response<wire::Verdict>, Status> {
        self.authenticate(request.metadata())?;
        let wire::Submission { user, queue, job, .. } = request.into_inner();
        let read = jobfile::read(&job, &user, &queue);
        let check = |spec| self.shared.look(|translator, _| translator.check_size(&spec)).map(|()| spec);
        let mut spec = match read.and_then(check) {
            Ok(spec) => spec,
            Err(reason) => return Ok(Response::new(wire::Verdict { admitted: false, reason })),
        };
        // Another job's name is no reason to reject it: it gets one with its number then.
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        spec.name = jobfile::numbered(&spec.name, &nanos.to_string());
        let late = |_| Status::unavailable(format!("the scheduler didn't answer within {ADMIT:?}"));
        let asked = timeout(ADMIT, self.shared.calls.admit(&spec)).await.map_err(late)?;
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
        let wire::FollowRequest { application, secret } = request.into_inner();
        // Who is unknown and who is wrong hear the same.
        let known = self.shared.look(|translator, _| translator.secret(&application));
        if !known.is_some_and(|hash| hash.matches(&secret)) {
            return Err(Status::unauthenticated(format!(
                "{application:?} isn't known, or this isn't the secret it was submitted with"
            )));
        }
        let (sender, receiver) = mpsc::channel(1);
        let changes = self.shared.changed.subscribe();
        tokio::spawn(follow(self.shared.clone(), application, changes, sender));
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }
}

/// Tells the orders whenever they differ from those that were told, until nobody listens.
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
    use tonic::{
        Code,
        transport::{Certificate, Channel, ClientTlsConfig},
    };

    use super::{
        super::{entry::INFO, wire::bridge_client::BridgeClient},
        *,
    };
    use crate::Launch;

    const TOKEN: &str = "correct-horse-battery";

    /// Serves with TLS and a token; the certificate that clients trust.
    fn serve(folder: &Path, address: std::net::SocketAddr) -> Certificate {
        let pair = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        let path = |name: &str, text: &str| {
            fs::write(folder.join(name), text).unwrap();
            folder.join(name)
        };
        let cert = path("cert.pem", &pair.cert.pem());
        let key = path("key.pem", &pair.signing_key.serialize_pem());
        let token = path("token", &format!("{TOKEN}\n"));
        let text =
            format!("listen = \"{address}\"\ntls = {{ cert = {cert:?}, key = {key:?} }}\ntoken_file = {token:?}\n");
        let launch = Launch::for_test(folder, Some(&text));
        tokio::spawn((INFO.start)(launch, Box::pin(std::future::pending())).unwrap());
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
        let mut bridge = BridgeClient::new(channel.clone());
        let mut exchange = async |token: Option<&str>| {
            let mut request = Request::new(wire::Cluster::default());
            if let Some(token) = token {
                request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
            }
            bridge.exchange(request).await.unwrap_err().code()
        };
        assert_eq!(exchange(None).await, Code::Unauthenticated);
        assert_eq!(exchange(Some("correct-horse-batterx")).await, Code::Unauthenticated);
        assert_eq!(exchange(Some(TOKEN)).await, Code::Unavailable, "let in, but the daemon is away");
        let admitted = bridge.admit(wire::Submission::default()).await.unwrap_err();
        assert_eq!(admitted.code(), Code::Unauthenticated);
        let mut master = wire::master_client::MasterClient::new(channel);
        let request = wire::FollowRequest { application: "application_1_1".into(), secret: "abc".into() };
        assert_eq!(master.follow(request).await.unwrap_err().code(), Code::Unauthenticated);
        // Who speaks without TLS isn't heard.
        let plain = Channel::from_shared(format!("http://{address}")).unwrap().connect_lazy();
        assert!(BridgeClient::new(plain).exchange(wire::Cluster::default()).await.is_err());
    }
}
