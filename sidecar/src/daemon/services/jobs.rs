//! What a person or a program asks about jobs.

use std::time::Duration;

use tokio::{sync::mpsc, time::sleep};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};
use trainmaster_feed::Token;
use trainmaster_proto::{
    spec_from_job,
    v1::{
        self,
        jobs_server::{Jobs, JobsServer},
    },
};

use super::{SMALL, who};
use crate::daemon::{ended::EndedJob, host::Host};

/// A watcher is told at most so often.
const PACE: Duration = Duration::from_millis(100);

/// Serves `trainmaster.v1.Jobs`.
pub(crate) struct JobsService(pub(crate) Host);

impl JobsService {
    pub(crate) fn into_server(self) -> JobsServer<Self> {
        JobsServer::new(self).max_decoding_message_size(SMALL)
    }
}

async fn list(host: &Host, all: bool) -> Result<v1::ListReply, Status> {
    let overview = host.read(move |view| view.overview(all)).await?;
    Ok(overview.list())
}

#[tonic::async_trait]
impl Jobs for JobsService {
    type WatchStream = ReceiverStream<Result<v1::ListReply, Status>>;

    async fn submit(&self, request: Request<v1::SubmitRequest>) -> Result<Response<v1::SubmitReply>, Status> {
        let who = who(&request);
        let job = request.into_inner().job.ok_or_else(|| Status::invalid_argument("job: is missing"))?;
        let spec = spec_from_job(job)?;
        let mut random = [0; 16];
        getrandom::fill(&mut random)
            .map_err(|error| Status::internal(format!("no random bits for a token: {error}")))?;
        let token = Token::new(random);
        let text = token.reveal().to_owned();
        let job = self.0.submit(spec, token, who).await?;
        Ok(Response::new(v1::SubmitReply { job: job.0, token: text }))
    }

    async fn cancel(&self, request: Request<v1::CancelRequest>) -> Result<Response<v1::CancelReply>, Status> {
        let who = who(&request);
        self.0.cancel(request.into_inner().job, who).await?;
        Ok(Response::new(v1::CancelReply {}))
    }

    async fn pause(&self, request: Request<v1::PauseRequest>) -> Result<Response<v1::PauseReply>, Status> {
        let who = who(&request);
        let v1::PauseRequest { job, resume } = request.into_inner();
        self.0.hold(job, !resume, who).await?;
        Ok(Response::new(v1::PauseReply {}))
    }

    async fn list(&self, request: Request<v1::ListRequest>) -> Result<Response<v1::ListReply>, Status> {
        Ok(Response::new(list(&self.0, request.into_inner().all).await?))
    }

    async fn explain(&self, request: Request<v1::ExplainRequest>) -> Result<Response<v1::ExplainReply>, Status> {
        let job = request.into_inner().job;
        let explained = self.0.read(move |view| {
            let Some(found) = view.scheduler.state().find_job(&job) else {
                let ended = view.ended.find(&job).map(|ended| explain_ended(ended));
                return ended.ok_or_else(|| view.missing(&job));
            };
            let explanation = view.scheduler.explain(found.id).expect("it is active");
            let mut lines: Vec<String> = explanation.findings.iter().map(|finding| finding.text.clone()).collect();
            lines.extend(view.message(found.id).map(|message| format!("its manager says: {message}")));
            let json = serde_json::to_string(&explanation).expect("an explanation is plain data");
            Ok(v1::ExplainReply { lines, json })
        });
        explained.await?.map(Response::new).map_err(Status::not_found)
    }

    async fn watch(&self, request: Request<v1::ListRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let all = request.into_inner().all;
        let (sender, receiver) = mpsc::channel(1);
        let (host, mut changes) = (self.0.clone(), self.0.changes());
        tokio::spawn(async move {
            let mut last = None;
            loop {
                changes.mark_unchanged();
                match list(&host, all).await {
                    Ok(list) if last.as_ref() == Some(&list) => {}
                    Ok(list) => {
                        if sender.send(Ok(list.clone())).await.is_err() {
                            return;
                        }
                        last = Some(list);
                    }
                    Err(error) => {
                        let _ = sender.send(Err(error)).await;
                        return;
                    }
                }
                tokio::select! {
                    changed = changes.changed() => if changed.is_err() { return },
                    () = sender.closed() => return,
                }
                // What comes in meanwhile is told at once.
                sleep(PACE).await;
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

fn explain_ended(ended: &EndedJob) -> v1::ExplainReply {
    let v1::JobStatus { state, reason, .. } = &ended.status;
    let first = if reason.is_empty() { state.clone() } else { format!("{state}: {reason}") };
    let lines = std::iter::once(first).chain(ended.lines.iter().map(|line| format!("when it ended: {line}")));
    v1::ExplainReply { lines: lines.collect(), json: ended.json.clone() }
}
