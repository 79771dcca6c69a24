//! The daemon for adapters in the same process: the port's services without the port.

use std::{future::Future, panic::AssertUnwindSafe};

use async_trait::async_trait;
use futures_util::{FutureExt as _, StreamExt as _};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};
use trainmaster_core::JobSpec;
use trainmaster_manager::{Daemon, Observations, Plans};
use trainmaster_proto::{
    job_from_spec,
    v1::{self, jobs_server::Jobs as _, manager_server::Manager as _},
};

use super::{
    access::Who,
    services::{jobs::JobsService, manager::ManagerService},
};

/// The client of an adapter in this process. Its calls take the same path as those of an external adapter.
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

/// The port's answer to a panic. The adapter tries again and survives.
async fn caught<T>(call: impl Future<Output = Result<Response<T>, Status>>) -> Result<T, Status> {
    let answer = AssertUnwindSafe(call).catch_unwind().await;
    answer.map_err(|_| Status::internal("the daemon failed; its log says why"))?.map(Response::into_inner)
}

#[async_trait]
impl Daemon for Inside {
    async fn attach(&self, observations: Observations) -> Result<Plans, Status> {
        let observations = ReceiverStream::new(observations.open().await?).map(Ok);
        Ok(Box::pin(self.manager.stream(self.who.clone(), observations)))
    }

    async fn submit(&self, spec: &JobSpec, cluster: &str, native: &str) -> Result<u64, Status> {
        let external = v1::ExternalId { cluster: cluster.to_owned(), native: native.to_owned() };
        let request = v1::SubmitRequest { job: Some(job_from_spec(spec)), external: Some(external) };
        Ok(caught(self.jobs.submit(self.request(request))).await?.job)
    }

    async fn jobs_of(&self, cluster: &str, specs: bool) -> Result<Vec<v1::JobStatus>, Status> {
        let request = v1::ListRequest { all: false, specs, ..v1::ListRequest::default() };
        let mut jobs = caught(self.jobs.list(self.request(request))).await?.jobs;
        jobs.retain(|job| job.external.as_ref().is_some_and(|external| external.cluster == cluster));
        Ok(jobs)
    }

    async fn cancel(&self, job: u64) -> Result<(), Status> {
        caught(self.jobs.cancel(self.request(v1::CancelRequest { job: job.to_string() }))).await.map(drop)
    }

    async fn admit(&self, spec: &JobSpec) -> Result<v1::AdmitReply, Status> {
        let request = v1::AdmitRequest { job: Some(job_from_spec(spec)) };
        caught(self.manager.admit(self.request(request))).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_an_answer() {
        let failed = caught::<()>(async { panic!("on purpose") }).await.unwrap_err();
        assert_eq!(failed.code(), tonic::Code::Internal);
        assert_eq!(caught(async { Ok(Response::new(1)) }).await.unwrap(), 1);
    }
}
