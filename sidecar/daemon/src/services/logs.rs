//! Streams of what jobs' programs print.

use std::time::{Duration, Instant};

use futures_util::{FutureExt as _, Stream, stream};
use tokio::{
    sync::watch,
    task::{JoinError, spawn_blocking},
    time::sleep,
};
use tonic::Status;
use trainmaster_core::JobId;
use trainmaster_manager::{Launch, LogPart, Logs, LogsOf, MOST_LOGS, OpenLogs};
use trainmaster_proto::v1;

use crate::{
    access::{Scope, Who},
    host::Host,
};

/// First and longest pause of a follower after which it looks for something new.
const PACE: Duration = Duration::from_millis(100);
const LONGEST_PACE: Duration = Duration::from_millis(800);
/// Minimum of the maximum time for which the programs of an ended job are followed.
const PATIENCE: Duration = Duration::from_secs(30);
/// Maximum bytes of a log's name in a request.
const LONGEST_NAME: usize = 64;

/// The adapter in this daemon that keeps logs, if one does.
#[derive(Clone, Debug)]
pub(crate) struct LogSource {
    adapter: Option<(Launch, OpenLogs)>,
    /// Maximum time for which an ended job's programs are followed.
    patience: Duration,
}

impl LogSource {
    /// That of an adapter. The programs of ended jobs are followed for the time that they may take to stop.
    pub(crate) fn new(adapter: Option<(Launch, OpenLogs)>, grace: Duration) -> Self {
        Self { adapter, patience: grace.max(PATIENCE) }
    }

    /// Opens the stream of a request.
    ///
    /// # Errors
    /// The caller sees no such job, or the job's logs aren't here.
    pub(crate) async fn open(
        &self,
        host: &Host,
        who: Who,
        request: v1::LogsRequest,
    ) -> Result<impl Stream<Item = Result<v1::LogsReply, Status>> + Send + use<>, Status> {
        let v1::LogsRequest { job, follow, tail, after } = request;
        if after.len() > MOST_LOGS || after.keys().any(|name| name.len() > LONGEST_NAME) {
            let problem = format!("after: must be at most {MOST_LOGS} logs with names of at most {LONGEST_NAME} bytes");
            return Err(Status::invalid_argument(problem));
        }
        let mut changes = host.changes();
        // The job may have ended already.
        changes.mark_changed();
        let found = find(host, job, who.scope()).await?;
        let Some((launch, logs)) = self.adapter.as_ref().filter(|_| found.manager.is_none()) else {
            let whose = found.manager.map_or_else(|| "its manager".to_owned(), |name| format!("its manager {name}"));
            let problem = format!("the logs of {} aren't here: {whose} keeps them, not this daemon", found.name);
            return Err(Status::failed_precondition(problem));
        };
        let of = LogsOf { job: found.id.0, name: found.name, tail, after: after.into_iter().collect() };
        let reading = Reading {
            logs: logs(launch, of),
            host: host.clone(),
            who,
            job: found.id,
            changes,
            course: if follow { Course::Active } else { Course::Last },
            patience: self.patience,
            pace: PACE,
        };
        Ok(stream::unfold(Some(reading), Reading::next))
    }
}

/// A job of a request.
struct Found {
    id: JobId,
    name: String,
    /// The manager that the job came from.
    manager: Option<String>,
}

async fn find(host: &Host, job: String, scope: Scope) -> Result<Found, Status> {
    let found = host.read(move |view| {
        if let Some(found) = view.scheduler.state().find_job(&job).filter(|job| scope.sees_job(job)) {
            let manager = found.external.as_ref().map(|external| external.cluster.clone());
            return Ok(Found { id: found.id, name: found.spec.name.clone(), manager });
        }
        let ended = view.ended.find(&job).filter(|ended| scope.sees_status(&ended.status));
        let Some(ended) = ended else { return Err(view.missing(&job, &scope)) };
        let manager = ended.status.external.as_ref().map(|external| external.cluster.clone());
        Ok(Found { id: ended.id(), name: ended.status.name.clone(), manager })
    });
    found.await?.map_err(Status::not_found)
}

/// A reader of logs.
struct Reading {
    logs: Box<dyn Logs>,
    host: Host,
    who: Who,
    job: JobId,
    changes: watch::Receiver<u64>,
    course: Course,
    patience: Duration,
    pace: Duration,
}

/// How long a reader goes on.
#[derive(Clone, Copy)]
enum Course {
    /// The job is active.
    Active,
    /// The job has ended, but its programs may write until then.
    Ended(Instant),
    /// Until the end of this round.
    Last,
}

impl Reading {
    /// The next part. It is read once the caller has room for it.
    async fn next(reading: Option<Self>) -> Option<(Result<v1::LogsReply, Status>, Option<Self>)> {
        let mut reading = reading?;
        loop {
            if let Some(over) = reading.who.over().now_or_never() {
                return Some((Err(over), None));
            }
            match reading.part().await {
                Err(error) => {
                    let problem = format!("the logs can't be read: {error}");
                    return Some((Err(Status::internal(problem)), None));
                }
                Ok((back, Some(LogPart { log, data, end, logs }))) => {
                    reading = back;
                    reading.pace = PACE;
                    let reply = v1::LogsReply { log, data, end, logs: logs as u32, job: reading.job.0 };
                    return Some((Ok(reply), Some(reading)));
                }
                Ok((back, None)) => reading = back,
            }
            if matches!(reading.course, Course::Last) {
                return None;
            }
            tokio::select! {
                over = reading.who.over() => return Some((Err(over), None)),
                () = sleep(reading.pace) => reading.pace = (2 * reading.pace).min(LONGEST_PACE),
            }
            match reading.advance().await {
                Ok(next) => reading = next,
                Err(error) => return Some((Err(error), None)),
            }
        }
    }

    /// Finds out whether this is the last round: what a program wrote before its end is there by now.
    async fn advance(mut self) -> Result<Self, Status> {
        if matches!(self.course, Course::Active) && self.changes.has_changed().unwrap_or(true) {
            self.changes.borrow_and_update();
            let job = self.job;
            if self.host.read(move |view| view.scheduler.state().job(job).is_none()).await? {
                self.course = Course::Ended(Instant::now() + self.patience);
            }
        }
        if let Course::Ended(until) = self.course {
            let logs = self.logs;
            let asked = spawn_blocking(move || (logs.is_written(), logs)).await;
            let (is_written, logs) = asked.map_err(|error| Status::internal(error.to_string()))?;
            let course = if is_written && Instant::now() < until { self.course } else { Course::Last };
            self = Self { logs, course, ..self };
        }
        Ok(self)
    }

    /// Reads on a thread that may wait for the disk.
    async fn part(mut self) -> Result<(Self, Option<LogPart>), std::io::Error> {
        let read = spawn_blocking(move || {
            let part = self.logs.next();
            (self, part)
        });
        let (reading, part) = read.await.map_err(|error: JoinError| std::io::Error::other(error))?;
        Ok((reading, part?))
    }
}
