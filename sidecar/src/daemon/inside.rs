//! The daemon as adapters in the same process see it: the services of its port, without the port.

use async_trait::async_trait;
use futures_util::StreamExt as _;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status};
use trainmaster_core::JobSpec;
use trainmaster_manager::{Daemon, Plans};
use trainmaster_proto::{
    job_from_spec,
    v1::{self, jobs_server::Jobs as _, manager_server::Manager as _},
};

use super::{
    access::Who,
    services::{jobs::JobsService, manager::ManagerService},
};

/// What an adapter in this process asks. Its calls take the same path as those of an adapter outside.
pub(super) struct Inside {
    jobs: JobsService,
    manager: ManagerService,
    who: Who,
}

impl Inside {
    pub(super) fn new(jobs: JobsService, manager: ManagerService, adapter: &str) -> Self {
        Self { jobs, manager, who: Who::inside(adapter) }
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.extensions_mut().insert(self.who.clone());
        request
    }
}

#[async_trait]
impl Daemon for Inside {
    async fn attach(&self, observations: mpsc::Receiver<v1::Observation>) -> Result<Plans, Status> {
        let observations = ReceiverStream::new(observations).map(Ok);
        Ok(Box::pin(self.manager.stream(self.who.clone(), observations)))
    }

    async fn submit(&self, spec: &JobSpec, cluster: &str, native: &str) -> Result<u64, Status> {
        let external = v1::ExternalId { cluster: cluster.to_owned(), native: native.to_owned() };
        let request = v1::SubmitRequest { job: Some(job_from_spec(spec)), external: Some(external) };
        Ok(self.jobs.submit(self.request(request)).await?.into_inner().job)
    }

    async fn jobs_of(&self, cluster: &str, specs: bool) -> Result<Vec<v1::JobStatus>, Status> {
        let request = v1::ListRequest { all: false, specs };
        let mut jobs = self.jobs.list(self.request(request)).await?.into_inner().jobs;
        jobs.retain(|job| job.external.as_ref().is_some_and(|external| external.cluster == cluster));
        Ok(jobs)
    }

    async fn cancel(&self, job: u64) -> Result<(), Status> {
        self.jobs.cancel(self.request(v1::CancelRequest { job: job.to_string() })).await.map(drop)
    }

    async fn admit(&self, spec: &JobSpec) -> Result<v1::AdmitReply, Status> {
        let request = v1::AdmitRequest { job: Some(job_from_spec(spec)) };
        Ok(self.manager.admit(self.request(request)).await?.into_inner())
    }
}
