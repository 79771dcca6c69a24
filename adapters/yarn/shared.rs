//! Data shared by the main loop, the server and the poller.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tonic::{Code, Status};
use trainmaster_core::JobSpec;
use trainmaster_manager::{Daemon, Launch, Outbox};
use trainmaster_proto::v1::JobStatus;

use super::{
    actions::Work,
    cluster_state::ClusterState,
    config::{Accounts, Api, Config},
    translator::{Requests, Submitted, Translator},
    wire,
};

/// Maximum delay until a timeout is noticed.
pub(super) const TICK: Duration = Duration::from_secs(1);
/// Maximum duration of a call to the daemon.
const ANSWER: Duration = Duration::from_secs(30);

/// Data shared by the main loop and the server. The lock is never held during a wait.
pub(super) struct Shared {
    state: Mutex<State>,
    /// Notifies the main loop of work.
    pub(super) stirred: Notify,
    /// Signals that orders may have changed.
    pub(super) changed: watch::Sender<()>,
    pub(super) daemon: Arc<dyn Daemon>,
    pub(super) cluster: String,
    pub(super) api: Api,
    pub(super) accounts: Accounts,
    pub(super) began: Instant,
}

pub(super) struct State {
    pub(super) translator: Translator,
    /// Whether a snapshot with nodes arrived. Before that, the ResourceManager has just started and no node has
    /// registered.
    pub(super) has_seen: bool,
    /// Whether the daemon reported which jobs came from this cluster.
    pub(super) has_learnt: bool,
    /// Whether that is being queried again.
    is_learning: bool,
}

impl Shared {
    pub(super) fn new(config: Arc<Config>, daemon: Arc<dyn Daemon>, launch: &Launch) -> Self {
        let mut environment = BTreeMap::from([
            ("TRAINMASTER_FEED".to_owned(), launch.feed.clone()),
            ("TRAINMASTER_ORPHAN_GRACE_MS".to_owned(), launch.orphan_grace.as_millis().to_string()),
        ]);
        environment.extend(config.master.feed_ca.clone().map(|path| ("TRAINMASTER_FEED_CA".to_owned(), path)));
        let (cluster, api, accounts) = (config.name.clone(), config.api, config.accounts);
        let translator = Translator::new(config, environment);
        let state = Mutex::new(State { translator, has_seen: false, has_learnt: false, is_learning: false });
        let (changed, _) = watch::channel(());
        Self { state, stirred: Notify::new(), changed, daemon, cluster, api, accounts, began: Instant::now() }
    }

    pub(super) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls a function with the translator and the time.
    pub(super) fn look<T>(&self, look: impl FnOnce(&mut Translator, Duration) -> T) -> T {
        look(&mut self.state().translator, self.now())
    }

    /// Takes a snapshot, and returns the plan as its answer.
    pub(super) fn exchange(&self, cluster: wire::Cluster) -> Result<wire::Plan, Status> {
        let answer = {
            let (mut state, now) = (self.state(), self.now());
            state.translator.see(now, cluster);
            state.has_seen |= state.translator.has_nodes();
            state.translator.bridge_plan(now, clock_ms())
        };
        self.stirred.notify_one();
        answer.map_err(|_| Status::unavailable("there is no plan of the scheduler's to enforce"))
    }

    /// Takes the state from the REST API. Returns the actions in YARN, if there is a plan.
    pub(super) fn take_over(&self, cluster: ClusterState) -> Option<Work> {
        let work = {
            let (mut state, now) = (self.state(), self.now());
            state.translator.see_roles(now, cluster);
            state.has_seen |= state.translator.has_nodes();
            let plan = state.translator.bridge_plan(now, clock_ms()).ok();
            plan.map(|plan| {
                let translator = &state.translator;
                let priority = |id: &String| Some((id.clone(), translator.priority(id)?));
                Work {
                    priorities: plan.applications.iter().filter_map(|planned| priority(&planned.id)).collect(),
                    misplaced: translator.misplaced(),
                    plan,
                }
            })
        };
        self.stirred.notify_one();
        work
    }

    pub(super) fn act(self: &Arc<Self>, outbox: &mut Outbox, tasks: &mut JoinSet<()>) {
        let now = self.now();
        let mut state = self.state();
        let Requests { submit, cancel, refused, look_up } = state.translator.step(now);
        if look_up && !std::mem::replace(&mut state.is_learning, true) {
            tasks.spawn(self.clone().learn_again());
        }
        for (decision, answer) in refused {
            outbox.answer(decision, vec![answer]);
        }
        let loads = state.translator.measured(now);
        if !outbox.measured(loads) {
            state.translator.forget_loads();
        }
        outbox.touch(now);
        drop(state);
        if !submit.is_empty() {
            tasks.spawn(self.clone().submit(submit));
        }
        for job in cancel {
            tasks.spawn(self.clone().cancel(job));
        }
        self.changed.send_replace(());
    }

    /// Fetches from the daemon which applications are which jobs, from before this adapter's start.
    pub(super) async fn learn_jobs(self: Arc<Self>) {
        let jobs = loop {
            match self.ask_for_jobs().await {
                Some(jobs) => break jobs,
                None => sleep(TICK).await,
            }
        };
        let (mut state, now) = (self.state(), self.now());
        state.translator.learn(now, jobs);
        state.has_learnt = true;
        drop(state);
        self.stirred.notify_one();
    }

    /// Fetches them again later, if only the daemon knows an application's job.
    async fn learn_again(self: Arc<Self>) {
        let jobs = self.ask_for_jobs().await;
        let (mut state, now) = (self.state(), self.now());
        state.is_learning = false;
        if let Some(jobs) = jobs {
            state.translator.learn(now, jobs);
        }
        drop(state);
        self.stirred.notify_one();
    }

    async fn ask_for_jobs(&self) -> Option<Vec<JobStatus>> {
        let asked = timeout(ANSWER, self.daemon.jobs_of(&self.cluster, self.api == Api::Rest)).await;
        match asked.unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer"))) {
            Ok(jobs) => Some(jobs),
            Err(status) => {
                tracing::debug!(%status, "the daemon doesn't tell its jobs; trying again");
                None
            }
        }
    }

    /// Submits jobs one after another, in their order.
    async fn submit(self: Arc<Self>, jobs: Vec<(String, JobSpec)>) {
        for (application, spec) in jobs {
            self.submit_one(application, spec).await;
        }
    }

    async fn submit_one(&self, application: String, spec: JobSpec) {
        let asked = timeout(ANSWER, self.daemon.submit(&spec, &self.cluster, &application)).await;
        let answer = match asked.unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer"))) {
            Ok(job) => {
                tracing::info!(application, job, name = spec.name, "submitted an application's job");
                Submitted::Job(job)
            }
            Err(status) => judge(&application, &status),
        };
        self.look(|translator, now| translator.submitted(now, &application, answer));
        self.stirred.notify_one();
    }

    async fn cancel(self: Arc<Self>, job: u64) {
        let asked = timeout(ANSWER, self.daemon.cancel(job)).await;
        match asked.unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer"))) {
            Ok(()) => tracing::info!(job, "cancelled the job of an application that was killed"),
            // It has ended in another way.
            Err(status) if status.code() == Code::NotFound => {}
            Err(status) => {
                tracing::warn!(job, %status, "can't cancel the job of an application that was killed; trying again");
                self.look(|translator, _| translator.cancel_failed(job));
            }
        }
    }
}

/// The meaning of a refused submission.
fn judge(application: &str, status: &Status) -> Submitted {
    match status.code() {
        Code::AlreadyExists => Submitted::NameTaken(status.message().to_owned()),
        Code::InvalidArgument | Code::FailedPrecondition => Submitted::Refused(status.message().to_owned()),
        _ => {
            tracing::debug!(application, %status, "can't submit an application's job; trying again");
            Submitted::Away
        }
    }
}

/// Unix time.
fn clock_ms() -> i64 {
    let passed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    passed.as_millis() as i64
}
