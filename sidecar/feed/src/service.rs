//! The gRPC service.

use std::sync::Arc;

use prost::Message;
use tonic::{
    Request, Response, Status,
    service::{Interceptor, interceptor::InterceptedService},
};
use trainmaster_core::{Incarnation, JobId, Revision, Role, Span};
use trainmaster_net::bearer;
use trainmaster_proto::{
    feed_server::{Feed as Service, FeedServer},
    progress, role_from_wire, v1,
};

use crate::{
    Acknowledgement, Feed, FeedCaller, FeedHost,
    watch::{Assignments, stream},
};

/// This number of slot times or data chunks counts as another report in a job's rate.
const PART: usize = 200;
/// Maximum length of a slot's address.
const LONGEST_ADDRESS: usize = 256;

/// Serves `trainmaster.v1.Feed`.
pub struct FeedService<H> {
    feed: Feed,
    host: Arc<H>,
}

impl<H: FeedHost> FeedService<H> {
    /// A service over a host and the handle that the host updates.
    pub fn new(feed: Feed, host: Arc<H>) -> Self {
        Self { feed, host }
    }

    /// The service for a server, with its message limit. The caller is checked before a message is read.
    pub fn into_server(self) -> InterceptedService<FeedServer<Self>, AskFirst> {
        let (most, feed) = (self.feed.limits().message_bytes, self.feed.clone());
        InterceptedService::new(FeedServer::new(self).max_decoding_message_size(most), AskFirst(feed))
    }

    /// The job of a call, if the caller may act for it.
    fn authenticate<T>(&self, request: &Request<T>, job: &str) -> Result<JobId, Status> {
        let caller = request.extensions().get::<FeedCaller>();
        let caller = caller.ok_or_else(|| Status::internal("nobody asked who calls"))?;
        self.feed.find(job, caller)
    }
}

/// Checks a call's token before its message is read.
#[derive(Clone, Debug)]
pub struct AskFirst(Feed);

impl Interceptor for AskFirst {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        let caller = self.0.caller(bearer(request.metadata().as_ref())?)?;
        request.extensions_mut().insert(caller);
        Ok(request)
    }
}

/// Approximate size of a request in memory.
fn memory(request: &v1::ReportRequest) -> usize {
    let of = |progress: &v1::Progress| {
        size_of::<v1::Progress>()
            + progress.slot_times.len() * size_of::<v1::SlotTime>()
            + progress.chunks.len() * size_of::<u32>()
    };
    request.progress.iter().map(of).sum()
}

fn slot(role: i32, index: u32) -> Result<(Role, u32), Status> {
    Ok((role_from_wire(role)?, index))
}

#[tonic::async_trait]
impl<H: FeedHost> Service for FeedService<H> {
    type WatchStream = Assignments;

    async fn watch(&self, request: Request<v1::WatchRequest>) -> Result<Response<Assignments>, Status> {
        let job = self.authenticate(&request, &request.get_ref().job)?;
        let request = request.into_inner();
        let (role, index) = slot(request.role, request.index)?;
        if request.address.len() > LONGEST_ADDRESS {
            let length = request.address.len();
            let problem = format!("address: {length} bytes must be at most {LONGEST_ADDRESS}, as host:port");
            return Err(Status::invalid_argument(problem));
        }
        let watcher = self.feed.watch(job, (Incarnation(request.incarnation), role, index), request.address)?;
        Ok(Response::new(stream(watcher)))
    }

    async fn report(&self, request: Request<v1::ReportRequest>) -> Result<Response<v1::ReportReply>, Status> {
        let job = self.authenticate(&request, &request.get_ref().job)?;
        let request = request.into_inner();
        let slot = slot(request.role, request.index)?;
        let metrics = self.feed.metrics();
        let count = request.progress.len();
        let most = self.feed.limits().reports_per_request;
        if count > most {
            metrics.refused.with_label_values(&["limit"]).inc();
            let problem = format!("progress: {count} reports must be at most {most} in one request");
            return Err(Status::invalid_argument(problem));
        }
        // Slot times and data chunks determine the length of a report.
        let parts = |progress: &v1::Progress| (progress.slot_times.len() + progress.chunks.len()) / PART;
        let cost = request.progress.iter().map(|progress| 1 + parts(progress)).sum();
        let waiting = match self.feed.admit(job, cost, request.encoded_len(), memory(&request)) {
            Ok(waiting) => waiting,
            Err(limit) => {
                metrics.shed.with_label_values(&["flood"]).inc_by(count as u64);
                let reason = format!("too many reports: {limit}; send these again later");
                return Ok(Response::new(v1::ReportReply { accepted: false, reason }));
            }
        };
        let incarnation = Incarnation(request.incarnation);
        let sequence: Vec<u64> = request.progress.iter().map(|progress| progress.seq).collect();
        let progress = request.progress.into_iter().map(progress).collect();
        let answered = self.host.report(job, incarnation, slot, progress).await;
        drop(waiting);
        let answers = answered.map_err(|error| {
            metrics.shed.with_label_values(&["unavailable"]).inc_by(count as u64);
            Status::unavailable(error.to_string())
        })?;
        let accepted = sequence.iter().zip(&answers).filter(|(_, answer)| answer.is_ok()).map(|(seq, _)| *seq);
        if let Some(newest) = accepted.clone().max() {
            self.feed.accepted(job, incarnation, slot, newest);
        }
        let taken = accepted.count();
        metrics.accepted.inc_by(taken as u64);
        metrics.ignored.inc_by((answers.len() - taken) as u64);
        let problem = answers.iter().find_map(|answer| answer.as_ref().err());
        let reason = match problem {
            None => String::new(),
            Some(problem) if answers.len() == 1 => problem.clone(),
            Some(problem) => format!("{} of {} ignored: {problem}", answers.len() - taken, answers.len()),
        };
        Ok(Response::new(v1::ReportReply { accepted: problem.is_none(), reason }))
    }

    async fn acknowledge(
        &self,
        request: Request<v1::AcknowledgeRequest>,
    ) -> Result<Response<v1::AcknowledgeReply>, Status> {
        let job = self.authenticate(&request, &request.get_ref().job)?;
        let request = request.into_inner();
        let took = request.checkpoint_ms;
        let (incarnation, slot) = (Incarnation(request.incarnation), slot(request.role, request.index)?);
        if request.leaving {
            self.feed.leaves(job, incarnation, slot);
        }
        self.host
            .acknowledge(Acknowledgement {
                job,
                incarnation,
                revision: Revision(request.revision),
                slot,
                checkpoint_step: request.checkpoint_step,
                checkpoint: Span(if took.is_finite() && took > 0.0 { took.round() as i64 } else { 0 }),
                leaving: request.leaving,
            })
            .await;
        Ok(Response::new(v1::AcknowledgeReply {}))
    }
}
