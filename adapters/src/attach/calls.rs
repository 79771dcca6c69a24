//! What an adapter asks of the daemon beside the stream.

use tonic::{
    Request, Status,
    metadata::{Ascii, MetadataValue},
    transport::Channel,
};
use trainmaster_core::JobSpec;
use trainmaster_proto::{
    job_from_spec,
    v1::{self, jobs_client::JobsClient, manager_client::ManagerClient},
};

use super::link::MOST_BYTES;

/// Calls to the daemon. Clones share a connection.
#[derive(Clone, Debug)]
pub(crate) struct Calls {
    channel: Channel,
    token: Option<MetadataValue<Ascii>>,
}

impl Calls {
    pub(super) fn new(channel: Channel, token: Option<MetadataValue<Ascii>>) -> Self {
        Self { channel, token }
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(token) = &self.token {
            request.metadata_mut().insert("authorization", token.clone());
        }
        request
    }

    /// Submits a job that came from a cluster; returns its number.
    pub(crate) async fn submit(&self, spec: &JobSpec, cluster: &str, native: &str) -> Result<u64, Status> {
        let external = v1::ExternalId { cluster: cluster.to_owned(), native: native.to_owned() };
        let request = v1::SubmitRequest { job: Some(job_from_spec(spec)), external: Some(external) };
        let reply = JobsClient::new(self.channel.clone()).submit(self.request(request)).await?;
        Ok(reply.into_inner().job)
    }

    /// The active jobs that came from a cluster; with `specs` each says what was submitted.
    pub(crate) async fn jobs_of(&self, cluster: &str, specs: bool) -> Result<Vec<v1::JobStatus>, Status> {
        let mut client = JobsClient::new(self.channel.clone()).max_decoding_message_size(MOST_BYTES);
        let reply = client.list(self.request(v1::ListRequest { all: false, specs })).await?.into_inner();
        let is_ours = |job: &v1::JobStatus| job.external.as_ref().is_some_and(|external| external.cluster == cluster);
        Ok(reply.jobs.into_iter().filter(is_ours).collect())
    }

    /// Cancels an active job.
    pub(crate) async fn cancel(&self, job: u64) -> Result<(), Status> {
        let request = v1::CancelRequest { job: job.to_string() };
        JobsClient::new(self.channel.clone()).cancel(self.request(request)).await.map(drop)
    }

    /// Whether a job would be let in.
    pub(crate) async fn admit(&self, spec: &JobSpec) -> Result<v1::AdmitReply, Status> {
        let request = v1::AdmitRequest { job: Some(job_from_spec(spec)) };
        let reply = ManagerClient::new(self.channel.clone()).admit(self.request(request)).await?;
        Ok(reply.into_inner())
    }
}
