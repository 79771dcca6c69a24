//! The stream to the daemon: attached again and again, with a growing wait while it is away.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use thiserror::Error;
use tokio::{sync::mpsc, time::sleep};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Request, Status,
    metadata::{Ascii, MetadataValue},
    transport::{Certificate, ClientTlsConfig, Endpoint, Identity},
};
use trainmaster_net::secret;
use trainmaster_proto::v1::{self, manager_client::ManagerClient};

const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// Observations under way before the next ones wait and are merged.
const IN_FLIGHT: usize = 64;
/// A plan of a large cluster is far larger than gRPC's default of 4 MiB allows.
pub(super) const MOST_BYTES: usize = 256 << 20;

/// What the stream brings.
#[derive(Debug)]
pub(crate) enum Heard {
    /// A new stream is being opened: the first message into it is a snapshot.
    Opened(mpsc::Sender<v1::Observation>),
    /// The daemon answered.
    Attached,
    /// The stream ended, or never came to be.
    Lost,
    Plan(v1::Plan),
}

/// The daemon's address or certificate can't be used.
#[derive(Debug, Error)]
#[error("daemon {address:?}: {problem}; write http://host:port, or https://host:port")]
pub(crate) struct LinkError {
    pub(crate) address: String,
    pub(crate) problem: String,
}

/// How to reach the daemon.
pub(crate) struct Link {
    endpoint: Endpoint,
    token: Option<MetadataValue<Ascii>>,
}

impl Link {
    /// # Errors
    /// The address, the authority's certificate or the token can't be used.
    pub(crate) fn new(daemon: &str, token: Option<&str>, ca: Option<&Path>) -> Result<Self, LinkError> {
        Self::certified(daemon, token, ca, None)
    }

    /// With a certificate of its own and its key, where the daemon goes by these.
    ///
    /// # Errors
    /// As [`Self::new`]; or they can't be used.
    pub(crate) fn certified(
        daemon: &str,
        token: Option<&str>,
        ca: Option<&Path>,
        certificate: Option<&(PathBuf, PathBuf)>,
    ) -> Result<Self, LinkError> {
        let wrong = |problem: String| LinkError { address: daemon.to_owned(), problem };
        let endpoint = Endpoint::from_shared(daemon.to_owned()).map_err(|error| wrong(error.to_string()))?;
        let mut endpoint = endpoint
            .connect_timeout(Duration::from_secs(5))
            .http2_keep_alive_interval(Duration::from_secs(10))
            .keep_alive_timeout(Duration::from_secs(20));
        if let Some(path) = ca {
            let read = |path: &Path| std::fs::read(path).map_err(|error| wrong(format!("{}: {error}", path.display())));
            let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(path)?));
            if let Some((certificate, key)) = certificate {
                let secret = secret::read_text(key);
                let secret = secret.map_err(|problem| wrong(format!("{}: {problem}", key.display())))?;
                tls = tls.identity(Identity::from_pem(read(certificate)?, secret));
            }
            endpoint = endpoint.tls_config(tls).map_err(|error| wrong(error.to_string()))?;
        } else if daemon.starts_with("https:") {
            return Err(wrong("https needs the certificate authority's file".into()));
        }
        let token = token.map(|token| format!("Bearer {token}").parse());
        let token =
            token.transpose().map_err(|_| wrong("the token has characters that a header can't carry".into()))?;
        Ok(Self { endpoint, token })
    }

    /// For calls beside the stream, over a connection of their own that is made when it is needed.
    #[cfg(feature = "yarn")]
    pub(crate) fn calls(&self) -> super::Calls {
        super::Calls::new(self.endpoint.connect_lazy(), self.token.clone())
    }

    /// Stays attached until the other end of `heard` is dropped.
    pub(crate) async fn keep(self, heard: mpsc::Sender<Heard>) {
        let mut wait = FIRST_WAIT;
        let mut said = false;
        loop {
            let mut planned = false;
            let error = match self.attach(&heard, &mut planned).await {
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
            // Once is enough, however long it stays away.
            if std::mem::replace(&mut said, true) {
                tracing::debug!(%error, ?wait, "still not attached");
            } else {
                tracing::warn!(%error, daemon = %self.endpoint.uri(), "not attached to the daemon; trying again");
            }
            sleep(wait).await;
            wait = (wait * 2).min(LONGEST_WAIT);
        }
    }

    async fn attach(&self, heard: &mpsc::Sender<Heard>, planned: &mut bool) -> Result<(), Status> {
        let channel = self.endpoint.connect().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let mut client = ManagerClient::new(channel).max_decoding_message_size(MOST_BYTES);
        let (sender, receiver) = mpsc::channel(IN_FLIGHT);
        let gone = |_| Status::cancelled("the adapter ends");
        // The daemon may wait for the snapshot before it answers at all.
        heard.send(Heard::Opened(sender)).await.map_err(gone)?;
        let mut request = Request::new(ReceiverStream::new(receiver));
        if let Some(token) = &self.token {
            request.metadata_mut().insert("authorization", token.clone());
        }
        let mut plans = client.attach(request).await?.into_inner();
        heard.send(Heard::Attached).await.map_err(gone)?;
        while let Some(plan) = plans.message().await? {
            *planned = true;
            heard.send(Heard::Plan(plan)).await.map_err(gone)?;
        }
        Ok(())
    }
}
