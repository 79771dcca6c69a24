//! A manager and training programs that obey, for tests of the daemon.

use std::{
    collections::BTreeMap,
    future::Future,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    sync::mpsc,
    task::JoinHandle,
    time::{Instant, sleep},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Request, Status,
    service::{Interceptor, interceptor::InterceptedService},
    transport::Channel,
};
use trainmaster_core::{JobSpec, Settings};
use trainmaster_daemon::{Config, Daemon};
use trainmaster_proto::{
    job_from_spec,
    v1::{
        self, admin_client::AdminClient, feed_client::FeedClient, jobs_client::JobsClient,
        manager_client::ManagerClient, observation::Kind,
    },
};

/// Much longer than any test step takes. Only a failing test waits for it.
pub(crate) const LIMIT: Duration = Duration::from_secs(600);

/// Polls until there is a result.
pub(crate) async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut look: impl FnMut() -> F) -> T {
    let give_up = Instant::now() + LIMIT;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < give_up, "waited in vain for {what}");
        sleep(Duration::from_millis(10)).await;
    }
}

/// Settings of Optimus with frequent decisions, and without stability rules.
pub(crate) fn lively() -> Settings {
    Settings::from_toml("engine = \"optimus\"\nstability = \"off\"\n[parameters]\ninterval = \"100ms\"").unwrap()
}

pub(crate) fn config(folder: &std::path::Path) -> Config {
    let mut config = Config::new(folder);
    config.settings = lively();
    config.decision.fits_every = Duration::from_millis(50);
    config
}

/// A job of one to four workers and as many parameter servers.
pub(crate) fn spec(name: &str) -> JobSpec {
    let mut spec = JobSpec::minimal(name);
    spec.worker.max = 4;
    spec.worker.command = "train --worker".into();
    let server = spec.server.as_mut().unwrap();
    server.max = 4;
    server.command = "train --server".into();
    spec.convergence.max_epochs = 50;
    spec
}

/// A connection whose calls have a token, unless they have another one.
pub(crate) type Wire = InterceptedService<Channel, Bearer>;

/// Adds the token to calls without one.
#[derive(Clone)]
pub(crate) struct Bearer(Option<String>);

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let (Some(token), None) = (&self.0, request.metadata().get("authorization")) {
            request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        }
        Ok(request)
    }
}

/// Clients of one daemon.
#[derive(Clone)]
pub(crate) struct Clients {
    pub(crate) jobs: JobsClient<Wire>,
    pub(crate) admin: AdminClient<Wire>,
    pub(crate) feed: FeedClient<Wire>,
    pub(crate) manager: ManagerClient<Wire>,
}

impl Clients {
    /// The administrator's clients.
    pub(crate) async fn of(daemon: &Daemon) -> Self {
        Self::at(daemon.url(), Some(&admin_token(daemon))).await
    }

    /// Clients with a separate connection, with or without a token.
    pub(crate) async fn at(url: &str, token: Option<&str>) -> Self {
        let endpoint = Channel::from_shared(url.to_owned()).unwrap();
        Self::over(endpoint.connect().await.unwrap(), token)
    }

    pub(crate) fn over(channel: Channel, token: Option<&str>) -> Self {
        let wire = InterceptedService::new(channel, Bearer(token.map(str::to_owned)));
        Self {
            jobs: JobsClient::new(wire.clone()),
            admin: AdminClient::new(wire.clone()),
            feed: FeedClient::new(wire.clone()),
            manager: ManagerClient::new(wire),
        }
    }

    /// Creates a token as the administrator.
    pub(crate) async fn token(&self, name: &str, role: v1::TokenRole, of: &str) -> String {
        let (tenants, manager) = match role {
            v1::TokenRole::Submit => (vec![of.to_owned()], String::new()),
            _ => (Vec::new(), of.to_owned()),
        };
        let name = name.to_owned();
        let request =
            v1::CreateTokenRequest { name, role: role.into(), tenants, manager, ..v1::CreateTokenRequest::default() };
        self.admin.clone().create_token(request).await.unwrap().into_inner().secret
    }

    pub(crate) async fn submit(&self, spec: &JobSpec) -> Result<v1::SubmitReply, Status> {
        let request = v1::SubmitRequest { job: Some(job_from_spec(spec)), external: None };
        Ok(self.jobs.clone().submit(request).await?.into_inner())
    }

    pub(crate) async fn cancel(&self, job: &str) -> Result<(), Status> {
        self.jobs.clone().cancel(v1::CancelRequest { job: job.into() }).await.map(drop)
    }

    pub(crate) async fn pause(&self, job: &str, resume: bool) -> Result<(), Status> {
        self.jobs.clone().pause(v1::PauseRequest { job: job.into(), resume }).await.map(drop)
    }

    pub(crate) async fn list(&self) -> v1::ListReply {
        self.jobs
            .clone()
            .list(v1::ListRequest { all: true, specs: false, ..v1::ListRequest::default() })
            .await
            .unwrap()
            .into_inner()
    }

    pub(crate) async fn job(&self, name: &str) -> Option<v1::JobStatus> {
        self.list().await.jobs.into_iter().rfind(|job| job.name == name)
    }

    pub(crate) async fn until_job(&self, name: &str, wanted: impl Fn(&v1::JobStatus) -> bool) -> v1::JobStatus {
        let last = Mutex::new(None);
        let look = || async {
            let job = self.job(name).await;
            last.lock().unwrap().clone_from(&job);
            job.filter(|job| wanted(job))
        };
        let give_up = Instant::now() + LIMIT;
        loop {
            if let Some(job) = look().await {
                return job;
            }
            assert!(Instant::now() < give_up, "waited in vain for {name}: {:?}", last.lock().unwrap());
            sleep(Duration::from_millis(10)).await;
        }
    }

    pub(crate) async fn status(&self) -> v1::StatusReply {
        self.admin.clone().status(v1::StatusRequest {}).await.unwrap().into_inner()
    }

    pub(crate) async fn mode(&self, mode: v1::SchedulingMode) -> v1::SchedulingMode {
        let reply = self.admin.clone().set_mode(v1::SetModeRequest { mode: mode.into() }).await;
        reply.unwrap().into_inner().previous()
    }

    pub(crate) async fn explain(&self, job: &str) -> Vec<String> {
        let reply = self.jobs.clone().explain(v1::ExplainRequest { job: job.into() }).await;
        reply.unwrap().into_inner().lines
    }
}

/// The administrator's token of the daemon.
pub(crate) fn admin_token(daemon: &Daemon) -> String {
    std::fs::read_to_string(daemon.admin_token()).unwrap().trim().to_owned()
}

/// A message with a token.
pub(crate) fn sign<T>(message: T, token: &str) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    request
}

/// Servers with `gpus` GPUs each.
pub(crate) fn servers(count: u32, gpus: usize) -> Vec<v1::Server> {
    let server = |at| v1::Server {
        name: format!("node{at}"),
        capacity: [("cpu".to_owned(), 32_000), ("memory".to_owned(), 65_536)].into(),
        devices: vec![v1::Device { kind: "gpu".into() }; gpus],
        ..v1::Server::default()
    };
    (0..count).map(server).collect()
}

/// State of the manager.
#[derive(Default)]
pub(crate) struct World {
    /// Existing slots by job.
    pub(crate) running: BTreeMap<u64, v1::ObservedJob>,
    /// The last plan of each job.
    pub(crate) plans: BTreeMap<u64, v1::JobPlan>,
    /// All received plans.
    pub(crate) heard: Vec<v1::Plan>,
    /// Refuse new slots.
    pub(crate) refuse: bool,
    /// What it says of each running job: text and failures.
    pub(crate) remark: (String, u32),
    /// The end of the stream.
    pub(crate) ended: Option<Status>,
}

/// A manager that enacts plans at once.
pub(crate) struct FakeManager {
    pub(crate) world: Arc<Mutex<World>>,
    pub(crate) observations: mpsc::Sender<v1::Observation>,
    task: JoinHandle<()>,
}

impl FakeManager {
    pub(crate) async fn attach(clients: &Clients, name: &str, servers: Vec<v1::Server>) -> Self {
        Self::attach_with(clients, name, servers, Arc::default()).await
    }

    /// The same manager as before, with its running slots.
    pub(crate) async fn attach_with(
        clients: &Clients,
        name: &str,
        servers: Vec<v1::Server>,
        world: Arc<Mutex<World>>,
    ) -> Self {
        let (observations, receiver) = mpsc::channel(64);
        let jobs = world.lock().unwrap().running.values().cloned().collect();
        let snapshot = v1::Snapshot { servers, jobs, ..v1::Snapshot::default() };
        observations.send(observation(name, Kind::Snapshot(snapshot))).await.unwrap();
        let mut client = clients.manager.clone().max_decoding_message_size(64 << 20);
        let mut plans = client.attach(ReceiverStream::new(receiver)).await.unwrap().into_inner();
        let (name, sender, shared) = (name.to_owned(), observations.clone(), world.clone());
        let task = tokio::spawn(async move {
            loop {
                match plans.message().await {
                    Ok(Some(plan)) => {
                        for seen in obey(&mut shared.lock().unwrap(), plan) {
                            // Never waits, because the test would hang if the daemon doesn't read.
                            let _ = sender.try_send(observation(&name, seen));
                        }
                    }
                    Ok(None) => {
                        shared.lock().unwrap().ended = Some(Status::ok("ended"));
                        return;
                    }
                    Err(error) => {
                        shared.lock().unwrap().ended = Some(error);
                        return;
                    }
                }
            }
        });
        Self { world, observations, task }
    }

    pub(crate) fn look<T>(&self, look: impl FnOnce(&World) -> T) -> T {
        look(&self.world.lock().unwrap())
    }

    pub(crate) async fn until<T>(&self, what: &str, look: impl Fn(&World) -> Option<T>) -> T {
        until(what, || async { self.look(&look) }).await
    }

    /// Waits until the last plan of a job satisfies `wanted`.
    pub(crate) async fn until_plan(&self, job: u64, wanted: impl Fn(&v1::JobPlan) -> bool) -> v1::JobPlan {
        let look = |world: &World| world.plans.get(&job).filter(|plan| wanted(plan)).cloned();
        self.until(&format!("a plan of job {job}"), look).await
    }

    /// Reports the state of a job.
    pub(crate) async fn say(&self, name: &str, job: v1::ObservedJob) {
        let delta = v1::Delta { jobs: vec![job], ..v1::Delta::default() };
        self.observations.send(observation(name, Kind::Delta(delta))).await.unwrap();
    }
}

impl Drop for FakeManager {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub(crate) fn observation(manager: &str, kind: Kind) -> v1::Observation {
    v1::Observation { manager: manager.into(), kind: Some(kind) }
}

fn obey(world: &mut World, plan: v1::Plan) -> Vec<Kind> {
    let mut said = Vec::new();
    let mut seen = Vec::new();
    if plan.full {
        let named: Vec<u64> = plan.jobs.iter().map(|job| job.job).collect();
        world.plans.retain(|job, _| named.contains(job));
        // Jobs that aren't in the plan are removed.
        let gone: Vec<u64> = world.running.keys().copied().filter(|job| !named.contains(job)).collect();
        for job in gone {
            let stopped = world.running.remove(&job).unwrap();
            seen.push(v1::ObservedJob { slots: Vec::new(), phase: v1::ObservedPhase::Stopped.into(), ..stopped });
        }
    }
    for job in &plan.jobs {
        world.plans.insert(job.job, job.clone());
        match job.action() {
            v1::Action::Run if world.refuse => said.push(Kind::Enacted(v1::Enacted {
                decision: plan.decision,
                job: job.job,
                result: v1::EnactedResult::Refused.into(),
                cause: "not today".into(),
                retry_after_ms: 50,
            })),
            v1::Action::Run => {
                let running = v1::ObservedJob {
                    job: job.job,
                    incarnation: job.incarnation,
                    slots: job.slots.clone(),
                    phase: v1::ObservedPhase::Running.into(),
                    message: world.remark.0.clone(),
                    failures: world.remark.1,
                };
                world.running.insert(job.job, running.clone());
                seen.push(running);
            }
            v1::Action::Release => {}
            v1::Action::Wait | v1::Action::Stop | v1::Action::Reject => {
                world.running.remove(&job.job);
                seen.push(v1::ObservedJob {
                    job: job.job,
                    incarnation: job.incarnation,
                    slots: Vec::new(),
                    phase: v1::ObservedPhase::Stopped.into(),
                    message: String::new(),
                    failures: 0,
                });
            }
        }
    }
    world.heard.push(plan);
    if !seen.is_empty() {
        said.push(Kind::Delta(v1::Delta { jobs: seen, ..v1::Delta::default() }));
    }
    said
}

/// The first worker of a job, with its reports.
pub(crate) struct Trainer {
    pub(crate) feed: FeedClient<Wire>,
    pub(crate) job: String,
    pub(crate) token: String,
    pub(crate) incarnation: u32,
    pub(crate) seq: u64,
    pub(crate) step: u64,
    pub(crate) shape: (u32, u32),
}

pub(crate) const STEPS_PER_EPOCH: u64 = 100;

impl Trainer {
    pub(crate) fn new(clients: &Clients, plan: &v1::JobPlan) -> Self {
        let mut trainer = Self {
            feed: clients.feed.clone(),
            job: plan.job.to_string(),
            token: plan.token.clone(),
            incarnation: 0,
            seq: 0,
            step: 0,
            shape: (1, 1),
        };
        trainer.follow(plan);
        trainer
    }

    /// Follows a new plan as a program does: a new incarnation restarts its counters.
    pub(crate) fn follow(&mut self, plan: &v1::JobPlan) {
        if plan.incarnation != self.incarnation {
            self.incarnation = plan.incarnation;
            self.seq = 0;
        }
        let count = |role: v1::SlotRole| plan.slots.iter().filter(|slot| slot.role() == role).count() as u32;
        self.shape = (count(v1::SlotRole::Worker), count(v1::SlotRole::Server));
    }

    /// The progress of one epoch, not sent yet.
    pub(crate) fn epoch(&mut self) -> v1::Progress {
        let (workers, servers) = self.shape;
        self.seq += 1;
        self.step += STEPS_PER_EPOCH;
        let epoch = self.step / STEPS_PER_EPOCH;
        // More of both is faster, with a cost for each worker.
        let step_ms = 8.0 / f64::from(workers) + 3.0 * f64::from(workers) / f64::from(servers.max(1)) + 1.0;
        v1::Progress {
            seq: self.seq,
            step: self.step,
            epoch: epoch as u32,
            steps_per_epoch: STEPS_PER_EPOCH,
            loss: Some(1.0 / (0.4 * epoch as f64 + 1.0) + 0.1),
            examples: STEPS_PER_EPOCH * 256,
            steps: STEPS_PER_EPOCH as u32,
            duration_ms: step_ms * STEPS_PER_EPOCH as f64,
            workers,
            servers,
            restart_ms: (self.seq == 1).then_some(100.0),
            ..v1::Progress::default()
        }
    }

    pub(crate) async fn send(&mut self, progress: Vec<v1::Progress>) -> Result<v1::ReportReply, Status> {
        let request = v1::ReportRequest {
            job: self.job.clone(),
            incarnation: self.incarnation,
            role: v1::SlotRole::Worker.into(),
            index: 0,
            progress,
        };
        Ok(self.feed.report(sign(request, &self.token)).await?.into_inner())
    }

    pub(crate) async fn train(&mut self, epochs: usize) {
        for _ in 0..epochs {
            let progress = self.epoch();
            let reply = self.send(vec![progress]).await.unwrap();
            assert!(reply.accepted, "{}", reply.reason);
        }
    }

    pub(crate) async fn finish(&mut self) -> v1::ReportReply {
        let progress = v1::Progress { finished: true, converged: true, ..self.epoch() };
        self.send(vec![progress]).await.unwrap()
    }
}
