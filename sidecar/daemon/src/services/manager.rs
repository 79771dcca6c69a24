//! The service for managers' adapters: it takes observations and sends plans.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::{Stream, StreamExt as _};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::{Instant, timeout_at},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use trainmaster_core::{Budget, JobSpec, text::shown};
use trainmaster_proto::{
    Observed, observed, spec_from_job,
    v1::{
        self,
        manager_server::{Manager, ManagerServer},
    },
};

use super::LARGE;
use crate::{
    Config,
    access::{Role, Who},
    host::{Command, Host},
    session::Outbox,
};

/// Maximum time until the first observation.
const FIRST: Duration = Duration::from_secs(30);
/// Maximum number of engines that check admissions at a time, including checks whose callers have left. Decisions need
/// threads too.
const ADMISSIONS: usize = 2;
/// Maximum number of a caller's waiting admission checks. Only one of them runs at a time, so a caller with many
/// doesn't delay others.
const QUESTIONS: usize = 64;
/// Maximum number of a caller's waiting observations, over all its streams, including ended ones.
const WAITING: usize = 4;

/// Serves `trainmaster.v1.Manager`. Clones share everything.
#[derive(Clone)]
pub(crate) struct ManagerService {
    host: Host,
    ttl: Duration,
    budget: Budget,
    turns: Arc<Turns>,
    streams: Arc<AtomicU64>,
}

impl ManagerService {
    /// `config` has the lifetime of plans and an engine's budget for an admission check.
    pub(crate) fn new(host: Host, config: &Config) -> Self {
        Self {
            host,
            ttl: config.plan_ttl,
            budget: config.budget(),
            turns: Arc::default(),
            streams: Arc::new(AtomicU64::new(1)),
        }
    }

    pub(crate) fn into_server(self) -> ManagerServer<Self> {
        ManagerServer::new(self).max_decoding_message_size(LARGE).max_encoding_message_size(LARGE)
    }
}

impl ManagerService {
    /// Serves a manager's stream until either end closes it. It returns at once, because a manager may wait for the
    /// answer before it sends anything.
    pub(crate) fn stream(&self, who: Who, observations: impl Observations) -> Plans {
        let (sender, receiver) = mpsc::channel(4);
        let stream = self.streams.fetch_add(1, Ordering::Relaxed);
        let (host, turns, ttl) = (self.host.clone(), self.turns.clone(), self.ttl);
        tokio::spawn(async move {
            if let Err(error) = serve(host, &turns, ttl, stream, who, observations, &sender).await {
                let _ = sender.send(Err(error)).await;
            }
        });
        Plans::new(receiver)
    }

    /// Whether a job would be admitted, and the engine's reason.
    async fn ask(&self, who: &Who, spec: JobSpec) -> Result<Result<(), String>, Status> {
        // Checked before anything is copied.
        let turn = self.turns.take(who.whose()).await?;
        let admission = match self.host.read(move |view| view.scheduler.admission(spec)).await? {
            Ok(Some(admission)) => admission,
            Ok(None) => return Ok(Ok(())),
            Err(error) => return Ok(Err(error.to_string())),
        };
        let budget = self.budget;
        let asked = tokio::task::spawn_blocking(move || {
            let answer = admission.run(budget);
            drop(turn);
            answer
        });
        asked.await.map_err(|error| Status::internal(error.to_string()))
    }
}

/// The turns of callers for admission checks and observations.
struct Turns {
    all: Arc<Semaphore>,
    /// Callers with running or waiting requests.
    each: Mutex<HashMap<String, Weak<Caller>>>,
}

/// A caller's permits.
struct Caller {
    waiting: Arc<Semaphore>,
    asking: Arc<Semaphore>,
    hearing: Arc<Semaphore>,
}

/// A turn, until it is dropped.
struct Turn<const N: usize> {
    _caller: Arc<Caller>,
    _permits: [OwnedSemaphorePermit; N],
}

impl Default for Turns {
    fn default() -> Self {
        Self { all: Arc::new(Semaphore::new(ADMISSIONS)), each: Mutex::default() }
    }
}

impl Turns {
    /// Waits for a turn to check an admission. Each caller's checks run one after the other, and callers in the order
    /// of their requests.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED: the caller has too many waiting checks.
    async fn take(&self, whose: &str) -> Result<Turn<3>, Status> {
        let caller = self.caller(whose);
        let waiting = caller.waiting.clone().try_acquire_owned().map_err(|_| {
            let problem = format!("{QUESTIONS} questions of {whose} wait for an answer, and that is the most");
            Status::resource_exhausted(problem)
        })?;
        let open = "it is never closed";
        let asking = caller.asking.clone().acquire_owned().await.expect(open);
        let all = self.all.clone().acquire_owned().await.expect(open);
        Ok(Turn { _caller: caller, _permits: [waiting, asking, all] })
    }

    /// Waits until the caller has fewer waiting observations.
    async fn hear(&self, whose: &str) -> Turn<1> {
        let caller = self.caller(whose);
        let hearing = caller.hearing.clone().acquire_owned().await.expect("it is never closed");
        Turn { _caller: caller, _permits: [hearing] }
    }

    fn caller(&self, whose: &str) -> Arc<Caller> {
        // Each change leaves it consistent.
        let mut each = self.each.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(caller) = each.get(whose).and_then(Weak::upgrade) {
            return caller;
        }
        each.retain(|_, caller| caller.strong_count() > 0);
        let [waiting, asking, hearing] = [QUESTIONS, 1, WAITING].map(|permits| Arc::new(Semaphore::new(permits)));
        let caller = Arc::new(Caller { waiting, asking, hearing });
        each.insert(whose.to_owned(), Arc::downgrade(&caller));
        caller
    }
}

/// A manager's stream of plans.
pub(crate) type Plans = ReceiverStream<Result<v1::Plan, Status>>;

type Sender = mpsc::Sender<Result<v1::Plan, Status>>;

/// A manager's stream of observations.
pub(crate) trait Observations: Stream<Item = Result<v1::Observation, Status>> + Send + Unpin + 'static {}

impl<T: Stream<Item = Result<v1::Observation, Status>> + Send + Unpin + 'static> Observations for T {}

#[tonic::async_trait]
impl Manager for ManagerService {
    type AttachStream = Plans;

    async fn attach(
        &self,
        request: Request<Streaming<v1::Observation>>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        let who = Who::of(&request)?;
        Ok(Response::new(self.stream(who, request.into_inner())))
    }

    async fn admit(&self, request: Request<v1::AdmitRequest>) -> Result<Response<v1::AdmitReply>, Status> {
        let who = Who::of(&request)?;
        let job = request.into_inner().job.ok_or_else(|| Status::invalid_argument("job: is missing"))?;
        let refused = match spec_from_job(job) {
            Ok(mut spec) => {
                if let Role::Submit { .. } = who.role {
                    who.own(&mut spec, None)?;
                }
                self.ask(&who, spec).await?.err()
            }
            Err(error) => Some(error.to_string()),
        };
        Ok(Response::new(v1::AdmitReply { admitted: refused.is_none(), reason: refused.unwrap_or_default() }))
    }
}

async fn next(observations: &mut impl Observations) -> Result<Option<Observed>, Status> {
    Ok(observations.next().await.transpose()?.map(observed).transpose()?)
}

/// A stream, from its first snapshot to its end.
async fn serve(
    host: Host,
    turns: &Turns,
    ttl: Duration,
    stream: u64,
    who: Who,
    mut observations: impl Observations,
    plans: &Sender,
) -> Result<(), Status> {
    let first = tokio::time::timeout(FIRST, next(&mut observations));
    let first = first.await.map_err(|_| Status::deadline_exceeded("no snapshot came"))??;
    let Some(first) = first else { return Ok(()) };
    if !first.is_snapshot {
        return Err(Status::failed_precondition("the first observation of a stream must be a snapshot"));
    }
    let (manager, outbox) = (first.manager.clone(), Outbox::default());
    if let Role::Manager { name: Some(name) } = &who.role
        && *name != manager
    {
        let problem = format!("manager: \"{}\" must be {name:?}: this token is that manager's", shown(&manager, 128));
        return Err(Status::permission_denied(problem));
    }
    let turn = tokio::select! {
        turn = turns.hear(who.whose()) => Box::new(turn),
        () = plans.closed() => return Ok(()),
    };
    let attach = Command::Attach { stream, outbox: outbox.clone(), observed: first, who: who.clone(), turn };
    if !host.tell(attach).await {
        return Err(Status::unavailable("the daemon is stopping"));
    }
    let ended = tokio::select! {
        ended = hear(&host, turns, who.whose(), stream, &manager, &mut observations) => ended,
        ended = tell(&outbox, ttl, plans) => ended,
        over = who.over() => Err(over),
        () = plans.closed() => Ok(()),
    };
    host.tell(Command::Detach { manager, stream }).await;
    ended
}

async fn hear(
    host: &Host,
    turns: &Turns,
    whose: &str,
    stream: u64,
    manager: &str,
    observations: &mut impl Observations,
) -> Result<(), Status> {
    loop {
        let Some(observed) = next(observations).await? else { return Ok(()) };
        if observed.manager != manager {
            let problem = format!("manager: {:?} must stay {manager:?} on one stream", observed.manager);
            return Err(Status::invalid_argument(problem));
        }
        let turn = Box::new(turns.hear(whose).await);
        if !host.tell(Command::Observe { stream, observed, turn }).await {
            return Err(Status::unavailable("the daemon is stopping"));
        }
    }
}

/// Sends plans when they change, and an empty one before the last expires.
async fn tell(outbox: &Outbox, ttl: Duration, plans: &Sender) -> Result<(), Status> {
    let ttl_ms = i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX);
    let mut stamp = None;
    loop {
        let renew = stamp.filter(|_| ttl_ms > 0).map(|stamp| (Instant::now() + ttl / 3, stamp));
        let next = match renew {
            None => outbox.next().await,
            Some((at, (term, decision))) => match timeout_at(at, outbox.next()).await {
                Ok(next) => next,
                Err(_) => Ok(v1::Plan { term, decision, ..v1::Plan::default() }),
            },
        };
        let plan = next?;
        stamp = Some((plan.term, plan.decision));
        if plans.send(Ok(v1::Plan { ttl_ms, ..plan })).await.is_err() {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use tokio::task::{JoinSet, yield_now};

    use super::*;

    #[tokio::test]
    async fn nobody_waits_for_anothers_many_questions() {
        let turns = Arc::new(Turns::default());
        let first = turns.take("greedy").await.unwrap();
        let mut waiting = JoinSet::new();
        for _ in 1..QUESTIONS {
            let turns = turns.clone();
            waiting.spawn(async move { turns.take("greedy").await.map(drop) });
        }
        while turns.caller("greedy").waiting.available_permits() > 0 {
            yield_now().await;
        }
        let refused = turns.take("greedy").await.err().unwrap();
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
        assert!(refused.message().contains("64 questions of greedy"), "{refused}");
        // One of two places is in use, however many checks wait.
        for _ in 0..3 {
            drop(turns.take("modest").await.unwrap());
        }
        drop(first);
        while let Some(turn) = waiting.join_next().await {
            turn.unwrap().unwrap();
        }
        // Waiting observations of an ended stream still count for their caller.
        let mut heard = Vec::new();
        for _ in 0..WAITING {
            heard.push(turns.hear("greedy").await);
        }
        assert!(turns.hear("greedy").now_or_never().is_none());
        drop(turns.hear("modest").await);
        heard.pop();
        drop(turns.hear("greedy").await);
        drop(heard);
        turns.caller("modest");
        assert_eq!(turns.each.lock().unwrap().len(), 1, "who asks nothing is forgotten");
    }
}
