//! A daemon's side of the manager protocol, and an adapter to test.

use std::{
    collections::BTreeMap,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    net::TcpListener,
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::{Instant, sleep},
};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Request, Response, Status, Streaming, transport::Server};
use trainmaster_adapters::local::{Cluster, LocalError, OnShutdown, Options, run};
use trainmaster_manager::Remote;
use trainmaster_proto::v1::{
    self, AdmitReply, AdmitRequest, Enacted, JobPlan, Observation, ObservedJob, Plan, Slot, SlotRole,
    manager_server::{Manager, ManagerServer},
    observation::Kind,
};

/// Far longer than any step of the tests. Only a failing test waits for it.
const LIMIT: Duration = Duration::from_secs(600);

/// What the daemon received so far.
#[derive(Debug, Default)]
pub(crate) struct View {
    pub(crate) servers: Vec<v1::Server>,
    pub(crate) jobs: BTreeMap<u64, ObservedJob>,
    /// The jobs of each stream's snapshot.
    pub(crate) snapshots: Vec<Vec<ObservedJob>>,
    pub(crate) enacted: Vec<Enacted>,
    /// The last measured load, by server.
    pub(crate) used: BTreeMap<String, v1::ServerUse>,
    /// The token that the last stream sent.
    pub(crate) authorization: Option<String>,
    plans: Option<mpsc::Sender<Result<Plan, Status>>>,
}

impl View {
    pub(crate) fn phase(&self, job: u64) -> Option<v1::ObservedPhase> {
        self.jobs.get(&job).map(ObservedJob::phase)
    }

    pub(crate) fn incarnation(&self, job: u64) -> Option<u32> {
        self.jobs.get(&job).map(|job| job.incarnation)
    }

    pub(crate) fn message(&self, job: u64) -> &str {
        self.jobs.get(&job).map_or("", |job| &job.message)
    }

    pub(crate) fn slots(&self, job: u64) -> Vec<(SlotRole, u32)> {
        self.jobs.get(&job).into_iter().flat_map(|job| &job.slots).map(|slot| (slot.role(), slot.index)).collect()
    }

    pub(crate) fn answer(&self, decision: u64, job: u64) -> Option<&Enacted> {
        self.enacted.iter().find(|enacted| (enacted.decision, enacted.job) == (decision, job))
    }
}

#[derive(Clone)]
struct Service(Arc<Mutex<View>>);

#[tonic::async_trait]
impl Manager for Service {
    type AttachStream = ReceiverStream<Result<Plan, Status>>;

    async fn attach(&self, request: Request<Streaming<Observation>>) -> Result<Response<Self::AttachStream>, Status> {
        let authorization = request.metadata().get("authorization").map(|value| value.to_str().unwrap().to_owned());
        let mut observations = request.into_inner();
        // Nothing is answered before the snapshot, as a real daemon may do.
        let first = observations.message().await?.and_then(|observation| observation.kind);
        let Some(Kind::Snapshot(snapshot)) = first else {
            return Err(Status::invalid_argument("the first observation must be a snapshot"));
        };
        let (plans, receiver) = mpsc::channel(16);
        {
            let mut view = self.0.lock().unwrap();
            view.servers = snapshot.servers;
            view.jobs = snapshot.jobs.iter().map(|job| (job.job, job.clone())).collect();
            view.snapshots.push(snapshot.jobs);
            view.plans = Some(plans);
            view.authorization = authorization;
        }
        let view = self.0.clone();
        tokio::spawn(async move {
            while let Ok(Some(observation)) = observations.message().await {
                let mut view = view.lock().unwrap();
                match observation.kind {
                    Some(Kind::Delta(delta)) => {
                        view.jobs.extend(delta.jobs.into_iter().map(|job| (job.job, job)));
                    }
                    Some(Kind::Enacted(enacted)) => view.enacted.push(enacted),
                    Some(Kind::Utilisation(measured)) => {
                        view.used.extend(measured.servers.into_iter().map(|used| (used.server.clone(), used)));
                    }
                    other => panic!("unexpected {other:?}"),
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn admit(&self, _: Request<AdmitRequest>) -> Result<Response<AdmitReply>, Status> {
        Ok(Response::new(AdmitReply { admitted: true, reason: String::new() }))
    }
}

/// A daemon that the test controls.
pub(crate) struct Daemon {
    pub(crate) address: SocketAddr,
    view: Arc<Mutex<View>>,
    server: JoinHandle<()>,
}

impl Daemon {
    pub(crate) async fn start() -> Self {
        Self::at("127.0.0.1:0".parse().unwrap()).await
    }

    pub(crate) async fn at(address: SocketAddr) -> Self {
        // The port of a stopped daemon may not be free at once.
        let listener = loop {
            match TcpListener::bind(address).await {
                Ok(listener) => break listener,
                Err(_) => sleep(Duration::from_millis(20)).await,
            }
        };
        let address = listener.local_addr().unwrap();
        let view = Arc::<Mutex<View>>::default();
        let service = ManagerServer::new(Service(view.clone()));
        let server = tokio::spawn(async move {
            Server::builder().add_service(service).serve_with_incoming(TcpListenerStream::new(listener)).await.unwrap();
        });
        Self { address, view, server }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Waits until the received messages satisfy `wanted`.
    pub(crate) async fn until(&self, what: &str, wanted: impl Fn(&View) -> bool) {
        let give_up = Instant::now() + LIMIT;
        while !wanted(&self.view.lock().unwrap()) {
            assert!(Instant::now() < give_up, "waited in vain for {what}: {:#?}", self.view.lock().unwrap());
            sleep(Duration::from_millis(10)).await;
        }
    }

    pub(crate) fn look<T>(&self, look: impl FnOnce(&View) -> T) -> T {
        look(&self.view.lock().unwrap())
    }

    /// Waits until an adapter is attached and sends it a plan.
    pub(crate) async fn plan(&self, decision: u64, full: bool, jobs: Vec<JobPlan>) {
        self.until("an adapter", |view| view.plans.is_some()).await;
        let plans = self.look(|view| view.plans.clone().unwrap());
        plans.send(Ok(Plan { term: 1, decision, ttl_ms: 0, jobs, full })).await.unwrap();
    }

    /// Stops, and closes all connections.
    pub(crate) async fn stop(self) -> SocketAddr {
        self.view.lock().unwrap().plans = None;
        self.server.abort();
        let _ = self.server.await;
        self.address
    }
}

pub(crate) const CLUSTER: &str = r#"
    grace = "20s"
    measure = "100ms"
    [[server]]
    name = "a"
    gpu = 2
    cpu = 8
    labels = { upload = "9s", "upload.home" = "1500ms" }
    [[server]]
    name = "b"
    gpu = ["a100"]
    cpu = 8
    labels = { upload = "250ms" }
"#;

pub(crate) fn cluster() -> Cluster {
    cluster_with("")
}

/// The test's cluster, with settings before its servers.
pub(crate) fn cluster_with(settings: &str) -> Cluster {
    Cluster::parse(&format!("{settings}\n{CLUSTER}"), "test").unwrap()
}

pub(crate) fn options(state: &Path) -> Options {
    let mut options = Options::new("http://127.0.0.1:9", state);
    options.on_shutdown = OnShutdown::End;
    options.restart.first_delay = Duration::from_millis(20);
    options.restart.failures = 3;
    options.settle = Duration::from_millis(100);
    options.claim = Duration::from_millis(200);
    options
}

/// The daemon at an address, with a token.
pub(crate) fn remote(daemon: &str) -> Arc<Remote> {
    Arc::new(Remote::new(daemon, Some("pass"), None, None).unwrap())
}

/// An adapter in this process.
pub(crate) struct Adapter {
    shutdown: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<(), LocalError>>,
}

impl Adapter {
    /// Starts on the test's cluster.
    pub(crate) fn start(daemon: &str, options: Options) -> Self {
        Self::on(cluster(), daemon, options)
    }

    pub(crate) fn on(cluster: Cluster, daemon: &str, options: Options) -> Self {
        let (shutdown, told) = oneshot::channel();
        let told = async move {
            let _ = told.await;
        };
        Self { shutdown: Some(shutdown), task: tokio::spawn(run(cluster, options, remote(daemon), told)) }
    }

    pub(crate) async fn end(mut self) {
        self.shutdown.take().unwrap().send(()).unwrap();
        tokio::time::timeout(LIMIT, self.task).await.expect("the adapter should end").unwrap().unwrap();
    }
}

/// A job's plan under construction.
pub(crate) fn job(id: u64, incarnation: u32, script: &str) -> JobPlan {
    JobPlan {
        job: id,
        name: format!("job-{id}"),
        action: v1::Action::Run.into(),
        incarnation,
        revision: 1,
        worker_command: format!("sh -c {}", quoted(script)),
        token: "secret-token".into(),
        grace_ms: 10_000,
        ..JobPlan::default()
    }
}

/// Quotes a script for a command, which is split as a shell does.
fn quoted(script: &str) -> String {
    format!("'{}'", script.replace('\'', "'\\''"))
}

pub(crate) trait PlanExt: Sized {
    fn with(self, role: SlotRole, index: u32, server: &str) -> Self;

    fn worker(self, index: u32) -> Self {
        self.with(SlotRole::Worker, index, "a")
    }

    fn server(self, index: u32) -> Self {
        self.with(SlotRole::Server, index, "b")
    }

    fn action(self, action: v1::Action) -> Self;

    fn grace(self, ms: i64) -> Self;

    fn revision(self, revision: u32) -> Self;
}

impl PlanExt for JobPlan {
    fn with(mut self, role: SlotRole, index: u32, server: &str) -> Self {
        self.slots.push(Slot { role: role.into(), index, server: server.into(), devices: Vec::new(), idle: false });
        self
    }

    fn action(mut self, action: v1::Action) -> Self {
        self.action = action.into();
        self.slots.clear();
        self
    }

    fn grace(mut self, ms: i64) -> Self {
        self.grace_ms = ms;
        self
    }

    fn revision(mut self, revision: u32) -> Self {
        self.revision = revision;
        self
    }
}

/// Runs until it gets SIGTERM, and then exits with 0. Writes its pid to a file.
pub(crate) const PATIENT: &str = "echo $$ > pid-$TRAINMASTER_ROLE-$TRAINMASTER_INDEX.tmp; \
    mv pid-$TRAINMASTER_ROLE-$TRAINMASTER_INDEX.tmp pid-$TRAINMASTER_ROLE-$TRAINMASTER_INDEX; \
    trap 'exit 0' TERM; while :; do sleep 0.02; done";

/// The folder in which the processes of [`job`] run.
pub(crate) fn folder(state: &Path, id: u64) -> PathBuf {
    state.join(format!("jobs/{id}-job-{id}"))
}

/// Waits until a file isn't empty, and returns its text without surrounding blanks.
pub(crate) async fn read(path: impl AsRef<Path>) -> String {
    read_if(path.as_ref(), |text| !text.is_empty()).await
}

/// Waits until a file has this text, apart from surrounding blanks.
pub(crate) async fn until_reads(path: impl AsRef<Path>, wanted: &str) {
    read_if(path.as_ref(), |text| text == wanted).await;
}

async fn read_if(path: &Path, wanted: impl Fn(&str) -> bool) -> String {
    let give_up = Instant::now() + LIMIT;
    loop {
        let text = fs::read_to_string(path).unwrap_or_default();
        if wanted(text.trim()) {
            return text.trim().to_owned();
        }
        assert!(Instant::now() < give_up, "waited in vain for {}: {text:?}", path.display());
        sleep(Duration::from_millis(10)).await;
    }
}

/// The pid that [`PATIENT`] wrote to its file.
pub(crate) async fn pid(folder: &Path, slot: &str) -> i32 {
    read(folder.join(format!("pid-{slot}"))).await.parse().unwrap()
}

/// Whether a process of that pid exists and hasn't ended.
pub(crate) fn lives(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

pub(crate) async fn until_gone(pid: i32) {
    let give_up = Instant::now() + LIMIT;
    while lives(pid) {
        assert!(Instant::now() < give_up, "process {pid} should be gone");
        sleep(Duration::from_millis(10)).await;
    }
}

/// A state folder. Its processes are ended when it is dropped, even if the test fails.
pub(crate) struct State(tempfile::TempDir);

impl State {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// All processes with the folder's marker.
    fn processes(&self) -> Vec<i32> {
        let Ok(id) = fs::read_to_string(self.path().join("id")) else { return Vec::new() };
        let marker = format!("TRAINMASTER_STATE={id}");
        let carries = |pid: &i32| {
            let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environ.split(|byte| *byte == 0).any(|variable| variable == marker.as_bytes())
        };
        let pids = fs::read_dir("/proc").unwrap().flatten();
        pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(carries).collect()
    }

    /// Asserts that no process of the folder is left, and no record.
    pub(crate) fn has_nothing_left(&self) {
        assert_eq!(self.processes(), Vec::<i32>::new(), "processes are left");
        assert_eq!(fs::read_dir(self.path().join("slots")).unwrap().count(), 0, "records are left");
    }
}

impl Drop for State {
    fn drop(&mut self) {
        for pid in self.processes() {
            let _ = std::process::Command::new("kill").args(["-9", &pid.to_string()]).status();
        }
    }
}
