//! The gRPC service.

use std::sync::Arc;

use tonic::{Request, Response, Status, metadata::MetadataMap};
use trainmaster_core::{Incarnation, JobId, Revision, Role, Span};
use trainmaster_proto::{
    progress, role_from_wire,
    v1::{
        self,
        feed_server::{Feed as Service, FeedServer},
    },
};

use crate::{
    Acknowledgement, Feed, FeedHost, bearer, token_matches,
    watch::{Assignments, stream},
};

/// So many times of slots count as a report of their own against a job's rate.
const SLOT_TIMES: usize = 200;
/// Longest address that a slot may give.
const LONGEST_ADDRESS: usize = 256;

/// Serves `trainmaster.v1.Feed`.
pub struct FeedService<H> {
    feed: Feed,
    host: Arc<H>,
}

impl<H: FeedHost> FeedService<H> {
    /// Over a host and the handle it fills.
    pub fn new(feed: Feed, host: Arc<H>) -> Self {
        Self { feed, host }
    }

    /// As a service to add to a server, with the message limit set.
    pub fn into_server(self) -> FeedServer<Self> {
        let most = self.feed.limits().message_bytes;
        FeedServer::new(self).max_decoding_message_size(most)
    }

    /// Who is called for, if the caller may.
    fn authenticate(&self, metadata: &MetadataMap, job: &str) -> Result<JobId, Status> {
        let refused = &self.feed.metrics().refused;
        let Some(identity) = self.feed.find(job) else {
            refused.with_label_values(&["job"]).inc();
            return Err(self.feed.absence(job));
        };
        let Some(hash) = identity.token_hash else { return Ok(identity.job) };
        let token = bearer(metadata).inspect_err(|_| refused.with_label_values(&["token"]).inc())?;
        if !token_matches(token, &hash) {
            refused.with_label_values(&["token"]).inc();
            return Err(Status::unauthenticated(format!("the token is not that of job {job:?}")));
        }
        Ok(identity.job)
    }
}

fn slot(role: i32, index: u32) -> Result<(Role, u32), Status> {
    Ok((role_from_wire(role)?, index))
}

#[tonic::async_trait]
impl<H: FeedHost> Service for FeedService<H> {
    type WatchStream = Assignments;

    async fn watch(&self, request: Request<v1::WatchRequest>) -> Result<Response<Assignments>, Status> {
        let job = self.authenticate(request.metadata(), &request.get_ref().job)?;
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
        let job = self.authenticate(request.metadata(), &request.get_ref().job)?;
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
        // Times of slots are what can make a report long.
        let cost = request.progress.iter().map(|progress| 1 + progress.slot_times.len() / SLOT_TIMES).sum();
        if !self.feed.admit(job, cost) {
            metrics.shed.with_label_values(&["flood"]).inc_by(count as u64);
            let second = self.feed.limits().reports_per_second;
            let reason = format!("too many reports: a job may send {second} in a second; send these again later");
            return Ok(Response::new(v1::ReportReply { accepted: false, reason }));
        }
        let incarnation = Incarnation(request.incarnation);
        let sequence: Vec<u64> = request.progress.iter().map(|progress| progress.seq).collect();
        let progress = request.progress.into_iter().map(progress).collect();
        let answers = self.host.report(job, incarnation, slot, progress).await.map_err(|error| {
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
        let job = self.authenticate(request.metadata(), &request.get_ref().job)?;
        let request = request.into_inner();
        let took = request.checkpoint_ms;
        self.host
            .acknowledge(Acknowledgement {
                job,
                incarnation: Incarnation(request.incarnation),
                revision: Revision(request.revision),
                slot: slot(request.role, request.index)?,
                checkpoint_step: request.checkpoint_step,
                checkpoint: Span(if took.is_finite() && took > 0.0 { took.round() as i64 } else { 0 }),
                leaving: request.leaving,
            })
            .await;
        Ok(Response::new(v1::AcknowledgeReply {}))
    }
}
