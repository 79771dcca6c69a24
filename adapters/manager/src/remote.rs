//! The daemon at a network address.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use async_trait::async_trait;
use thiserror::Error;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Request, Status,
    metadata::{Ascii, MetadataValue},
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity},
};
use trainmaster_core::JobSpec;
use trainmaster_net::secret;
use trainmaster_proto::{
    job_from_spec,
    v1::{self, jobs_client::JobsClient, manager_client::ManagerClient},
};

use super::daemon::{Daemon, Observations, Plans};

/// Maximum size of a message. A large cluster's plan exceeds gRPC's default of 4 MiB.
const MOST_BYTES: usize = 256 << 20;

/// The daemon's address or certificate can't be used.
#[derive(Debug, Error)]
#[error("daemon {address:?}: {problem}; write http://host:port, or https://host:port")]
pub struct RemoteError {
    /// The given address.
    pub address: String,
    /// The problem.
    pub problem: String,
}

/// The daemon at an address, over gRPC. Clones share a connection for calls. Each stream has its own connection.
#[derive(Clone, Debug)]
pub struct Remote {
    endpoint: Endpoint,
    channel: Channel,
    token: Option<MetadataValue<Ascii>>,
}

impl Remote {
    /// The daemon at an address. The token, or the certificate with its key, is for daemons that accept it. Connects at
    /// the first call. Needs a Tokio runtime.
    ///
    /// # Errors
    /// The address, a certificate or the token can't be used.
    pub fn new(
        daemon: &str,
        token: Option<&str>,
        ca: Option<&Path>,
        certificate: Option<&(PathBuf, PathBuf)>,
    ) -> Result<Self, RemoteError> {
        let wrong = |problem: String| RemoteError { address: daemon.to_owned(), problem };
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
        Ok(Self { channel: endpoint.connect_lazy(), endpoint, token })
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(token) = &self.token {
            request.metadata_mut().insert("authorization", token.clone());
        }
        request
    }
}

#[async_trait]
impl Daemon for Remote {
    async fn attach(&self, observations: Observations) -> Result<Plans, Status> {
        let channel = self.endpoint.connect().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let mut client = ManagerClient::new(channel).max_decoding_message_size(MOST_BYTES);
        let request = self.request(ReceiverStream::new(observations.open().await?));
        Ok(Box::pin(client.attach(request).await?.into_inner()))
    }

    async fn submit(&self, spec: &JobSpec, cluster: &str, native: &str) -> Result<u64, Status> {
        let external = v1::ExternalId { cluster: cluster.to_owned(), native: native.to_owned() };
        let request = v1::SubmitRequest { job: Some(job_from_spec(spec)), external: Some(external) };
        let reply = JobsClient::new(self.channel.clone()).submit(self.request(request)).await?;
        Ok(reply.into_inner().job)
    }

    async fn jobs_of(&self, cluster: &str, specs: bool) -> Result<Vec<v1::JobStatus>, Status> {
        let mut client = JobsClient::new(self.channel.clone()).max_decoding_message_size(MOST_BYTES);
        let reply = client
            .list(self.request(v1::ListRequest { all: false, specs, ..v1::ListRequest::default() }))
            .await?
            .into_inner();
        let is_ours = |job: &v1::JobStatus| job.external.as_ref().is_some_and(|external| external.cluster == cluster);
        Ok(reply.jobs.into_iter().filter(is_ours).collect())
    }

    async fn cancel(&self, job: u64) -> Result<(), Status> {
        let request = v1::CancelRequest { job: job.to_string() };
        JobsClient::new(self.channel.clone()).cancel(self.request(request)).await.map(drop)
    }

    async fn admit(&self, spec: &JobSpec) -> Result<v1::AdmitReply, Status> {
        let request = v1::AdmitRequest { job: Some(job_from_spec(spec)) };
        Ok(ManagerClient::new(self.channel.clone()).admit(self.request(request)).await?.into_inner())
    }
}
