//! The service for jobs: submission, control, lists.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    pin::Pin,
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures_util::{Stream, stream};
use prost::Message;
use tokio::{
    sync::{Mutex, Semaphore, watch},
    task::spawn_blocking,
    time::{sleep, timeout},
};
use tonic::{Request, Response, Status};
use trainmaster_core::{JobSpec, Verdict, reason::Reason};
use trainmaster_feed::Token;
use trainmaster_manager::{CheckJob, Launch};
use trainmaster_proto::{
    CRASHING, Explained, external_from_wire, spec_from_job,
    v1::{
        self,
        jobs_server::{Jobs, JobsServer},
    },
};

use super::{SMALL, logs::LogSource};
use crate::{
    access::{Role, Scope, Who},
    ended::EndedJob,
    host::{Host, Submission, Submitted},
};

/// Minimum interval between a watcher's updates: for few jobs, for each job that is sent and each that isn't, and for
/// very many.
const PACE: Duration = Duration::from_millis(100);
const PACE_OF_SENT: Duration = Duration::from_millis(1);
const PACE_OF_OTHER: Duration = Duration::from_micros(50);
const LONGEST_PACE: Duration = Duration::from_secs(2);

/// Maximum time for looking up a job's programs, and maximum number of such checks at a time. Beyond, a job is taken
/// unchecked.
const LOOK_UP: Duration = Duration::from_secs(2);
const CHECKS: usize = 4;

/// Maximum number of jobs that a list is limited to, and maximum bytes of each name.
const MOST_NAMED: usize = 1000;
const LONGEST_NAME: usize = 128;

/// Serves `trainmaster.v1.Jobs`.
#[derive(Clone)]
pub(crate) struct JobsService {
    host: Host,
    /// The latest lists for watchers: of active jobs, and of all.
    lists: Arc<[Mutex<Option<Arc<Listed>>>; 2]>,
    logs: Arc<LogSource>,
    /// Of the manager that starts the jobs' programs.
    check: Option<Arc<ProgramCheck>>,
    checks: Arc<Semaphore>,
}

/// The check of jobs' programs by the adapter that starts them.
pub(crate) struct ProgramCheck {
    /// The adapter's name, which is its manager's.
    pub(crate) manager: Arc<str>,
    pub(crate) launch: Launch,
    pub(crate) check: CheckJob,
}

/// A list that watchers share.
struct Listed {
    version: u64,
    hash: blake3::Hash,
    reply: v1::ListReply,
    places: Places,
}

/// Where the jobs are in a list. Computed when a watcher first needs it.
#[derive(Default)]
struct Places {
    numbers: OnceLock<HashMap<u64, usize>>,
    /// Indices of all jobs, sorted by name, then number.
    names: OnceLock<Vec<usize>>,
}

impl Places {
    fn job<'a>(&self, jobs: &'a [v1::JobStatus], number: u64) -> Option<&'a v1::JobStatus> {
        let numbers = || jobs.iter().enumerate().map(|(at, job)| (job.job, at)).collect();
        jobs.get(*self.numbers.get_or_init(numbers).get(&number)?)
    }

    /// The jobs of a name, the newest first.
    fn named<'a>(&'a self, jobs: &'a [v1::JobStatus], name: &'a str) -> impl Iterator<Item = &'a v1::JobStatus> {
        let names = self.names.get_or_init(|| {
            let mut names: Vec<usize> = (0..jobs.len()).collect();
            names.sort_unstable_by_key(|at| (&jobs[*at].name, jobs[*at].job));
            names
        });
        let end = names.partition_point(|at| jobs[*at].name.as_str() <= name);
        names[..end].iter().rev().map(|at| &jobs[*at]).take_while(move |job| job.name == name)
    }
}

impl JobsService {
    pub(crate) fn new(host: Host, logs: LogSource, check: Option<ProgramCheck>) -> Self {
        let checks = Arc::new(Semaphore::new(CHECKS));
        Self { host, lists: Arc::default(), logs: Arc::new(logs), check: check.map(Arc::new), checks }
    }

    /// A list that is at least as new as a version. It is made once for all watchers.
    async fn shared(&self, all: bool, version: u64) -> Result<Arc<Listed>, Status> {
        let mut newest = self.lists[usize::from(all)].lock().await;
        if let Some(listed) = newest.as_ref().filter(|listed| listed.version >= version) {
            return Ok(listed.clone());
        }
        let reply = list(&self.host, all, false, Scope::All).await?;
        let listed = Listed { version, hash: blake3::hash(&reply.encode_to_vec()), reply, places: Places::default() };
        Ok(newest.insert(Arc::new(listed)).clone())
    }

    /// Takes a submission.
    async fn take(&self, request: Request<v1::SubmitRequest>) -> Result<v1::SubmitReply, Status> {
        let who = Who::of(&request)?;
        let v1::SubmitRequest { job, external } = request.into_inner();
        let job = job.ok_or_else(|| Status::invalid_argument("job: is missing"))?;
        let mut spec = Box::new(spec_from_job(job)?);
        let external = external.map(external_from_wire).transpose()?;
        who.own(&mut spec, external.as_ref().map(|external| external.cluster.as_str()))?;
        if external.is_none() {
            spec = self.find_programs(spec).await?;
        }
        let mut random = [0; 16];
        getrandom::fill(&mut random)
            .map_err(|error| Status::internal(format!("no random bits for a token: {error}")))?;
        let token = Token::new(random);
        let mut text = token.reveal().to_owned();
        let Submitted { job, is_new } = self.host.submit(Submission { spec, external, token }, who).await?;
        if !is_new {
            text.clear();
        }
        let read = self.host.read(move |view| {
            let submitted = view.scheduler.state().job(job);
            let waits = submitted.is_some_and(|job| job.verdict == Verdict::Wait(Reason::NotConsidered));
            let caveats = submitted.map(|job| view.scheduler.caveats(&job.spec)).unwrap_or_default();
            (view.next_decision().filter(|_| waits), caveats)
        });
        let (next_decision_ms, notes) = read.await?;
        Ok(v1::SubmitReply { job: job.0, token: text, next_decision_ms, notes })
    }

    /// Looks up a job's programs, unless another manager has servers, and perhaps the programs.
    async fn find_programs(&self, spec: Box<JobSpec>) -> Result<Box<JobSpec>, Status> {
        let Some(check) = self.check.clone() else { return Ok(spec) };
        let manager = check.manager.clone();
        let is_alone = self.host.read(move |view| {
            let state = view.scheduler.state();
            let mut managers = state.present_servers().map(|server| state.manager_of(server.id)).peekable();
            managers.peek().is_some() && managers.all(|of| of == Some(&manager))
        });
        // A disk that hangs holds up few threads, and no job.
        let turn = self.checks.clone().try_acquire_owned();
        let (true, Ok(turn)) = (is_alone.await?, turn) else { return Ok(spec) };
        let copy = spec.clone();
        let checked = spawn_blocking(move || {
            let _turn = turn;
            (check.check)(&check.launch, &copy)
        });
        match timeout(LOOK_UP, checked).await {
            Ok(Ok(Err(problem))) => Err(Status::invalid_argument(problem)),
            _ => Ok(spec),
        }
    }

    pub(crate) fn into_server(self) -> JobsServer<Self> {
        JobsServer::new(self).max_decoding_message_size(SMALL)
    }
}

async fn list(host: &Host, all: bool, specs: bool, scope: Scope) -> Result<v1::ListReply, Status> {
    let overview = host.read(move |view| view.overview(all)).await?;
    Ok(overview.list(specs, &scope))
}

#[tonic::async_trait]
impl Jobs for JobsService {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<v1::ListReply, Status>> + Send>>;
    type LogsStream = Pin<Box<dyn Stream<Item = Result<v1::LogsReply, Status>> + Send>>;

    async fn submit(&self, request: Request<v1::SubmitRequest>) -> Result<Response<v1::SubmitReply>, Status> {
        let submitted = self.take(request).await;
        if let Err(status) = &submitted {
            self.host.refused(status.code());
        }
        submitted.map(Response::new)
    }

    async fn cancel(&self, request: Request<v1::CancelRequest>) -> Result<Response<v1::CancelReply>, Status> {
        let who = Who::of(&request)?;
        let unwritten = self.host.cancel(request.into_inner().job, who).await?;
        Ok(Response::new(v1::CancelReply { not_written: unwritten.unwrap_or_default() }))
    }

    async fn pause(&self, request: Request<v1::PauseRequest>) -> Result<Response<v1::PauseReply>, Status> {
        let who = Who::of(&request)?;
        let v1::PauseRequest { job, resume } = request.into_inner();
        let unwritten = self.host.hold(job, !resume, who).await?;
        Ok(Response::new(v1::PauseReply { not_written: unwritten.unwrap_or_default() }))
    }

    async fn list(&self, request: Request<v1::ListRequest>) -> Result<Response<v1::ListReply>, Status> {
        let who = Who::of(&request)?;
        let v1::ListRequest { all, specs, jobs } = request.into_inner();
        if specs && who.role == Role::Read {
            // Commands may contain secrets of the owner.
            return Err(Status::permission_denied("specs: a token to read doesn't show what was submitted"));
        }
        check_named(&jobs)?;
        if !jobs.is_empty() {
            if specs {
                return Err(Status::invalid_argument("specs: isn't for single jobs"));
            }
            let overview = self.host.read(|view| view.overview(true)).await?;
            return Ok(Response::new(overview.some(&jobs, &who.scope())));
        }
        Ok(Response::new(list(&self.host, all, specs, who.scope()).await?))
    }

    async fn servers(&self, request: Request<v1::ServersRequest>) -> Result<Response<v1::ServersReply>, Status> {
        let scope = Who::of(&request)?.scope();
        let overview = self.host.read(|view| view.overview(false)).await?;
        // Thousands of servers take a while.
        let reply = spawn_blocking(move || overview.servers(&scope)).await;
        reply.map(Response::new).map_err(|error| Status::internal(error.to_string()))
    }

    async fn explain(&self, request: Request<v1::ExplainRequest>) -> Result<Response<v1::ExplainReply>, Status> {
        let scope = Who::of(&request)?.scope();
        let job = request.into_inner().job;
        let explained = self.host.read(move |view| {
            let Some(found) = view.scheduler.state().find_job(&job).filter(|job| scope.sees_job(job)) else {
                let ended = view.ended.find(&job).filter(|ended| scope.sees_status(&ended.status));
                return ended.map(|ended| explain_ended(ended)).ok_or_else(|| view.missing(&job, &scope));
            };
            let explanation = view.scheduler.explain(view.now(), found.id).expect("it is active");
            let mut lines: Vec<String> = explanation.findings.iter().map(|finding| finding.text.clone()).collect();
            let state = view.job_state(found);
            let message = view.message(found).map(|message| format!("its manager says: {message}"));
            // Nothing matters more about a job that crashes.
            let at = if state == CRASHING { 0 } else { lines.len() };
            lines.splice(at..at, message);
            let explained = Explained { state, explanation };
            let json = serde_json::to_string(&explained).expect("an explanation is plain data");
            Ok(v1::ExplainReply { lines, json })
        });
        explained.await?.map(Response::new).map_err(Status::not_found)
    }

    async fn watch(&self, request: Request<v1::ListRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let (who, changes) = (Who::of(&request)?, self.host.changes());
        let v1::ListRequest { all, jobs, specs } = request.into_inner();
        if specs {
            return Err(Status::invalid_argument("specs: isn't for a watch"));
        }
        check_named(&jobs)?;
        let named = (!jobs.is_empty()).then(|| Named::new(jobs));
        let (scope, all) = (who.scope(), all || named.is_some());
        let watch = Watching { jobs: self.clone(), all, named, who, scope, changes, last: None, pace: PACE };
        // The list is made once the watcher has room for it.
        Ok(Response::new(Box::pin(stream::unfold(Some(watch), Watching::next))))
    }

    async fn logs(&self, request: Request<v1::LogsRequest>) -> Result<Response<Self::LogsStream>, Status> {
        let who = Who::of(&request)?;
        Ok(Response::new(Box::pin(self.logs.open(&self.host, who, request.into_inner()).await?)))
    }
}

/// A watcher of the list.
struct Watching {
    jobs: JobsService,
    all: bool,
    /// The jobs that it is limited to.
    named: Option<Named>,
    who: Who,
    scope: Scope,
    changes: watch::Receiver<u64>,
    /// The hash of the last list.
    last: Option<blake3::Hash>,
    /// Pause before the next update.
    pace: Duration,
}

/// The jobs that a watcher named, and their numbers once they are found. A later job of the same name is another one.
struct Named(BTreeMap<String, Option<u64>>);

impl Named {
    fn new(names: Vec<String>) -> Self {
        Self(names.into_iter().map(|name| (name.clone(), name.parse().ok())).collect())
    }

    /// These jobs of a list, as far as the watcher sees them. O(names · log jobs + jobs of these names that it can't
    /// see), after O(jobs · log jobs) once for each list. A name that no job has is searched in each list.
    fn choose(&mut self, list: &Listed, scope: &Scope) -> Vec<v1::JobStatus> {
        let jobs = &list.reply.jobs;
        for (name, number) in self.0.iter_mut().filter(|(_, number)| number.is_none()) {
            *number = list.places.named(jobs, name).find(|job| scope.sees_status(job)).map(|job| job.job);
        }
        let numbers: BTreeSet<u64> = self.0.values().copied().flatten().collect();
        let found = numbers.iter().filter_map(|number| list.places.job(jobs, *number));
        found.filter(|job| scope.sees_status(job)).cloned().collect()
    }
}

/// # Errors
/// Too many jobs are named, or a name is too long.
fn check_named(jobs: &[String]) -> Result<(), Status> {
    let (count, longest) = (jobs.len(), jobs.iter().map(String::len).max().unwrap_or(0));
    if count > MOST_NAMED {
        return Err(Status::invalid_argument(format!("jobs: {count} must be at most {MOST_NAMED}")));
    }
    if longest > LONGEST_NAME {
        return Err(Status::invalid_argument(format!(
            "jobs: a name of {longest} bytes must have at most {LONGEST_NAME}"
        )));
    }
    Ok(())
}

impl Watching {
    /// The visible part of a list, and its hash. O(jobs), or as [`Named::choose`].
    fn mine(&mut self, list: &Listed) -> (v1::ListReply, blake3::Hash) {
        if self.scope == Scope::All && self.named.is_none() {
            return (list.reply.clone(), list.hash);
        }
        let seen = || list.reply.jobs.iter().filter(|status| self.scope.sees_status(status)).cloned().collect();
        let jobs = match &mut self.named {
            Some(named) => named.choose(list, &self.scope),
            None => seen(),
        };
        let mine = v1::ListReply { jobs, ..shell(&list.reply) };
        let hash = blake3::hash(&mine.encode_to_vec());
        (mine, hash)
    }

    async fn next(watch: Option<Self>) -> Option<(Result<v1::ListReply, Status>, Option<Self>)> {
        let mut watch = watch?;
        loop {
            if watch.last.is_some() {
                // Changes during the pause are sent together.
                sleep(watch.pace).await;
                tokio::select! {
                    biased;
                    over = watch.who.over() => return Some((Err(over), None)),
                    changed = watch.changes.changed() => changed.ok()?,
                }
            }
            let version = *watch.changes.borrow_and_update();
            let (list, hash) = match watch.jobs.shared(watch.all, version).await {
                Err(error) => return Some((Err(error), None)),
                // Unchanged jobs aren't copied.
                Ok(list) if watch.last == Some(list.hash) => continue,
                Ok(list) => {
                    let mine = watch.mine(&list);
                    let [all, sent] = [&list.reply, &mine.0].map(|list| list.jobs.len().min(100_000) as u32);
                    let pace = PACE_OF_SENT * sent + PACE_OF_OTHER * all.saturating_sub(sent);
                    watch.pace = pace.clamp(PACE, LONGEST_PACE);
                    mine
                }
            };
            if watch.last.replace(hash) != Some(hash) {
                return Some((Ok(list), Some(watch)));
            }
        }
    }
}

/// A list without its jobs.
fn shell(list: &v1::ListReply) -> v1::ListReply {
    let v1::ListReply { decision, engine, mode, next_decision_ms, fallback, .. } = list;
    v1::ListReply {
        jobs: Vec::new(),
        decision: *decision,
        engine: engine.clone(),
        mode: mode.clone(),
        next_decision_ms: *next_decision_ms,
        fallback: fallback.clone(),
    }
}

fn explain_ended(ended: &EndedJob) -> v1::ExplainReply {
    let v1::JobStatus { state, reason, .. } = &ended.status;
    let first = if reason.is_empty() { state.clone() } else { format!("{state}: {reason}") };
    let lines = std::iter::once(first).chain(ended.lines.iter().map(|line| format!("when it ended: {line}")));
    v1::ExplainReply { lines: lines.collect(), json: ended.json.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watched_name_is_the_newest_visible_job_of_that_name() {
        let job = |(number, name, tenant): (u64, &str, &str)| v1::JobStatus {
            job: number,
            name: name.into(),
            tenant: tenant.into(),
            ..v1::JobStatus::default()
        };
        let jobs = [(1, "b", "x"), (7, "a", "y"), (3, "a", "x"), (5, "a", "x"), (9, "ab", "x"), (2, "", "x")];
        let reply = v1::ListReply { jobs: jobs.map(job).into(), ..v1::ListReply::default() };
        let listed = Listed { version: 1, hash: blake3::hash(b""), reply, places: Places::default() };
        let seen = |names: &[&str], scope: &Scope| {
            let mut named = Named::new(names.iter().map(|name| (*name).into()).collect());
            named.choose(&listed, scope).iter().map(|job| job.job).collect::<Vec<_>>()
        };
        let x = Scope::Tenants(["x".to_owned()].into());
        assert_eq!((seen(&["a"], &Scope::All), seen(&["a"], &x)), (vec![7], vec![5]));
        assert_eq!(seen(&["aa", "z", "b", "ab"], &x), [1, 9]);
        // By number, whether there is such a job or not, and no job twice.
        assert_eq!((seen(&["3", "b", "1", "4"], &x), seen(&["7"], &x)), (vec![1, 3], vec![]));
    }
}
