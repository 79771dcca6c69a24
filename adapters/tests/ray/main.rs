//! The daemon with this adapter, and a real Ray cluster. It has a head, two raylets with simulated GPUs, and a driver
//! that creates placement groups as the Python package does.

use std::{
    collections::BTreeMap,
    env, fs,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use serde_json::{Value, json};
use tonic::Status;
use trainmaster_adapters::ray::{self, Config};
use trainmaster_core::JobSpec;
use trainmaster_manager::{Observations, Plans};
use trainmaster_proto::v1::{AdmitReply, JobStatus, Observation, ServerUse, observation::Kind};

/// Far longer than any step of the test. Only a failing test waits for it.
const LIMIT: Duration = Duration::from_secs(600);

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the repository")
}

/// A Python with Ray. Without one, the test is skipped and counted.
fn python() -> Option<PathBuf> {
    let install = Command::new(root().join("scripts/install")).arg("ray").output().expect("a script");
    if install.status.success() {
        let own = || root().join("target/ray-venv/bin/python");
        return Some(env::var_os("TRAINMASTER_RAY_PYTHON").map_or_else(own, PathBuf::from));
    }
    let errors = String::from_utf8_lossy(&install.stderr);
    let problem = format!("no Ray: {}", errors.lines().last().unwrap_or("scripts/install ray failed"));
    assert!(env::var("CI").as_deref() != Ok("true"), "{problem}");
    println!("skipped: {problem}");
    if let Some(file) = env::var_os("TRAINMASTER_SKIPS") {
        let file = fs::OpenOptions::new().append(true).create(true).open(file);
        let _ = file.and_then(|mut file| writeln!(file, "{problem}"));
    }
    None
}

/// The cluster, with the driver that executes requests.
struct Cluster {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    address: String,
    dashboard: String,
    driver: String,
    log: PathBuf,
}

impl Cluster {
    fn start(python: &Path, folder: &Path) -> Self {
        let log = folder.join("cluster.log");
        let errors = fs::File::create(&log).unwrap();
        let mut child = Command::new(python)
            .arg(root().join("adapters/tests/ray/cluster.py"))
            .env("RAY_AUTH_MODE", "disabled")
            .env("RAY_TMPDIR", folder)
            .env("REPORTER_UPDATE_INTERVAL_MS", "500")
            // Its minute is too short on a busy machine.
            .env("RAY_DASHBOARD_STARTUP_TIMEOUT_S", "400")
            // A killed raylet is detected after ten seconds. One that starts may take as long to answer.
            .env("RAY_health_check_period_ms", "500")
            .env("RAY_health_check_failure_threshold", "20")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .unwrap();
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let none = String::new;
        let mut cluster = Self { child, stdin, stdout, address: none(), dashboard: none(), driver: none(), log };
        let hello = cluster.answer();
        let of = |key: &str| hello[key].as_str().unwrap().to_owned();
        (cluster.address, cluster.dashboard, cluster.driver) = (of("address"), of("dashboard"), of("driver"));
        cluster
    }

    fn answer(&mut self) -> Value {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| {
            panic!("the cluster answered {line:?}: {error}\n{}", fs::read_to_string(&self.log).unwrap_or_default())
        })
    }

    fn ask(&mut self, command: &str, arguments: Value) -> Value {
        writeln!(self.stdin.as_mut().unwrap(), "{}", json!([command, arguments])).unwrap();
        self.answer()
    }

    /// The value of a key.
    fn read(&mut self, key: &str) -> Option<String> {
        self.ask("get", json!({ "key": key }))["value"].as_str().map(str::to_owned)
    }

    fn plan(&mut self, job: u64) -> Option<Value> {
        self.read(&format!("plan/{job}")).map(|text| serde_json::from_str(&text).unwrap())
    }

    /// Writes a driver's record of its job, with working slots of the given incarnation.
    fn record(&mut self, job: u64, name: &str, phase: &str, incarnation: u64, slots: &str) {
        let running = json!({ "incarnation": incarnation, "revision": 0, "slots": slots });
        let record = json!({
            "v": 1, "name": name, "driver": self.driver, "on_driver_death": "cancel", "phase": phase, "message": "",
            "running": running,
        });
        self.ask("put", json!({ "key": format!("job/{job}"), "value": record }));
    }
}

impl Drop for Cluster {
    /// The end of its input ends it, together with all processes that it started.
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.child.wait();
    }
}

/// The daemon.
struct Daemon {
    child: Child,
    program: PathBuf,
    folder: PathBuf,
    url: String,
}

impl Daemon {
    fn start(folder: &Path, cluster: &Cluster, api: &str) -> Self {
        let folder = folder.join(api);
        fs::create_dir_all(&folder).unwrap();
        let config = folder.join("ray.toml");
        let Cluster { address, dashboard, .. } = cluster;
        let text = format!("address = {address:?}\ndashboard = {dashboard:?}\napi = {api:?}\n");
        fs::write(&config, text + "placement_timeout = \"3s\"\npoll = \"200ms\"\n").unwrap();
        // The test's executable is in `deps/`, in the program's folder.
        let program = env::current_exe().unwrap().ancestors().nth(2).unwrap().join("trainmaster");
        assert!(program.exists(), "{} isn't there: cargo build --bins", program.display());
        let mut child = Command::new(&program)
            .args(["serve", "--json", "--listen", "127.0.0.1:0", "--engine", "fifo", "--adapter"])
            .arg(format!("ray={}", config.display()))
            .arg("--state-dir")
            .arg(folder.join("state"))
            .env("XDG_STATE_HOME", &folder)
            .stdout(Stdio::piped())
            .stderr(fs::File::create(folder.join("daemon.log")).unwrap())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let serving: Value = serde_json::from_str(&line).expect("a line that says where it serves");
        let url = serving["url"].as_str().unwrap().to_owned();
        Self { child, program, folder, url }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.join("daemon.log")).unwrap()
    }

    fn ask(&self, arguments: &[&str]) -> Value {
        let mut command = Command::new(&self.program);
        command.args(["--server", &self.url, "--json", "--token-file"]).arg(self.folder.join("state/admin.token"));
        serde_json::from_slice(&command.args(arguments).output().unwrap().stdout).unwrap()
    }

    fn submit(&self, folder: &Path, name: &str, workers: u32) -> u64 {
        let file = folder.join(format!("{name}.toml"));
        let worker = format!("{{ gpu = 1, cpu = 1, min = {workers}, max = {workers}, requested = {workers} }}");
        fs::write(&file, format!("name = {name:?}\nmode = \"allreduce\"\nbatch = 64\nworker = {worker}\n")).unwrap();
        self.ask(&["submit", file.to_str().unwrap()])["job"].as_u64().unwrap()
    }

    fn job(&self, name: &str) -> Option<Value> {
        let jobs = self.ask(&["jobs", "--all"]);
        jobs["jobs"].as_array().unwrap().iter().find(|job| job["name"] == name).cloned()
    }

    fn is(&self, name: &str, state: &str) -> bool {
        self.job(name).is_some_and(|job| job["state"] == state)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[track_caller]
fn until<T>(what: &str, mut there: impl FnMut() -> Option<T>) -> T {
    let limit = Instant::now() + LIMIT;
    loop {
        if let Some(it) = there() {
            return it;
        }
        assert!(Instant::now() < limit, "waited in vain: {what}");
        thread::sleep(Duration::from_millis(100));
    }
}

fn servers(plan: &Value) -> Vec<&str> {
    plan["slots"].as_array().unwrap().iter().map(|slot| slot["server"].as_str().unwrap()).collect()
}

/// Waits for a job's plan to run, in an incarnation after `last`.
fn run(cluster: &mut Cluster, job: u64, last: u64) -> Value {
    until("a plan to run", || {
        cluster.plan(job).filter(|plan| plan["action"] == "run" && plan["incarnation"].as_u64() > Some(last))
    })
}

#[test]
fn jobs_run_where_the_plan_says_and_nodes_that_die_are_missed() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start(&python, folder.path());
    // All of the test has to work beside others' data, whether that is written before or later.
    cluster.ask("litter", json!({ "large": 200, "job": 7_000_005 }));
    let daemon = Daemon::start(folder.path(), &cluster, "auto");
    until("the nodes as servers", || cluster.read("server/b"));
    until("what was made up to go", || cluster.read("plan/7000001").is_none().then_some(()));
    observed_only(folder.path(), &mut cluster);
    loads_are_reported(&cluster);

    // A job that is placed as planned.
    let job = daemon.submit(folder.path(), "first", 1);
    cluster.ask("litter", json!({ "large": 0, "job": job }));
    let plan = run(&mut cluster, job, 0);
    let server = servers(&plan)[0].to_owned();
    let group = format!("trainmaster/{job}/1/0/w0");
    cluster.record(job, "first", "active", 1, "w0");
    cluster.ask("group", json!({ "name": group, "bundles": 1, "server": server }));
    until("the job running", || daemon.is("first", "running").then_some(()));
    let first = daemon.job("first").unwrap();
    assert_eq!((&first["slots"][0]["server"], &first["incarnation"]), (&server.as_str().into(), &1.into()));

    // Its group is gone, and so are its slots, until the driver creates it again.
    cluster.ask("remove", json!({ "name": group }));
    cluster.ask("group", json!({ "name": "somebody else's", "bundles": 2, "server": server, "placed": true }));
    until("the slots gone", || daemon.is("first", "starting").then_some(()));

    // Foreign use keeps it out. Its group can't be placed, which is reported to the driver and the user.
    cluster.ask("group", json!({ "name": group, "bundles": 1, "server": server }));
    until("a refusal", || {
        let explained = daemon.ask(&["explain", "first"]).to_string();
        explained.contains("was pending for 3s").then_some(())
    });
    cluster.ask("remove", json!({ "name": "somebody else's" }));
    let plan = until("another plan to run", || {
        cluster.plan(job).filter(|plan| plan["action"] == "run" && plan.get("refused").is_none())
    });
    let (incarnation, server) = (plan["incarnation"].as_u64().unwrap(), servers(&plan)[0].to_owned());
    let group = format!("trainmaster/{job}/{incarnation}/{}/w0", plan["revision"]);
    cluster.record(job, "first", "active", incarnation, "w0");
    cluster.ask("group", json!({ "name": group, "bundles": 1, "server": server }));
    until("the job running again", || daemon.is("first", "running").then_some(()));

    // The raylet is killed, and the job is planned onto the other node.
    cluster.ask("kill", json!({ "server": server }));
    let plan = run(&mut cluster, job, incarnation);
    let (incarnation, other) = (plan["incarnation"].as_u64().unwrap(), servers(&plan)[0].to_owned());
    assert_ne!(other, server);
    assert_eq!(cluster.read(&format!("server/{server}")), None);
    cluster.ask("remove", json!({ "name": group }));
    cluster.record(job, "first", "active", incarnation, "w0");
    let group = format!("trainmaster/{job}/{incarnation}/{}/w0", plan["revision"]);
    cluster.ask("group", json!({ "name": group, "bundles": 1, "server": other }));
    until("the job running elsewhere", || daemon.is("first", "running").then_some(()));

    // The driver reports completion, and the job's data is deleted.
    cluster.ask("remove", json!({ "name": group }));
    cluster.record(job, "first", "completed", incarnation, "");
    until("the job completed", || daemon.is("first", "completed").then_some(()));
    until("its plan and record gone", || {
        let left = cluster.plan(job).is_some() || cluster.read(&format!("job/{job}")).is_some();
        (!left).then_some(())
    });

    // A job without a living driver has failed.
    let job = daemon.submit(folder.path(), "second", 1);
    cluster.driver = "77000000".into();
    cluster.record(job, "second", "active", 1, "");
    until("the job failed", || daemon.is("second", "failed").then_some(()));

    let log = daemon.log();
    let said = |words: &str| log.matches(words).count();
    assert!(said("too long to be read") > 0 && said("too long to be read") < 20, "{log}");
    assert_eq!(said("a driver wrote what makes no sense"), 1, "{log}");
    assert!(said("not attached to the daemon") <= 1 && log.len() < 100_000, "{log}");
    assert!(!log.chars().any(|c| c.is_control() && c != '\n' && c != '\t'), "{log}");
}

/// Another daemon, over REST. It observes the cluster and changes nothing.
fn observed_only(folder: &Path, cluster: &mut Cluster) {
    // By its name, the group is of a job of that daemon, as an earlier run could have left it.
    let group = json!({ "name": "trainmaster/1/1/0/w0-1", "bundles": 2, "server": "a" });
    cluster.ask("group", group.clone());
    let daemon = Daemon::start(folder, cluster, "rest");
    assert_eq!(daemon.submit(folder, "observed", 1), 1);
    until("a refusal", || {
        let explained = daemon.ask(&["explain", "observed"]);
        let why = explained.to_string().contains("observing only; set api = \\\"auto\\\"");
        (why && explained["observed"]["workers"] == 2).then_some(())
    });
    assert!(cluster.plan(1).is_none());
    cluster.ask("remove", json!({ "name": group["name"] }));
}

/// A daemon that only listens.
struct Listener(mpsc::Sender<Observation>);

#[async_trait]
impl trainmaster_manager::Daemon for Listener {
    async fn attach(&self, observations: Observations) -> Result<Plans, Status> {
        let (mut observations, heard) = (observations.open().await?, self.0.clone());
        tokio::spawn(async move {
            while let Some(observation) = observations.recv().await {
                let _ = heard.send(observation);
            }
        });
        Ok(Box::pin(tokio_stream::pending()))
    }

    async fn submit(&self, _: &JobSpec, _: &str, _: &str) -> Result<u64, Status> {
        Err(Status::unimplemented("not needed"))
    }

    async fn jobs_of(&self, _: &str, _: bool) -> Result<Vec<JobStatus>, Status> {
        Err(Status::unimplemented("not needed"))
    }

    async fn cancel(&self, _: u64) -> Result<(), Status> {
        Err(Status::unimplemented("not needed"))
    }

    async fn admit(&self, _: &JobSpec) -> Result<AdmitReply, Status> {
        Err(Status::unimplemented("not needed"))
    }
}

/// The loads that the adapter reports follow the machine's. Both nodes are this machine, with four cores each.
fn loads_are_reported(cluster: &Cluster) {
    let Cluster { address, dashboard, .. } = cluster;
    let text = format!("address = {address:?}\ndashboard = {dashboard:?}\napi = \"rest\"\npoll = \"200ms\"\n");
    let config = Config::parse(&(text + "measure = \"200ms\""), "test").unwrap();
    let (sender, heard) = mpsc::channel();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.spawn(ray::run(config, Arc::new(Listener(sender)), std::future::pending()));
    let mut latest: BTreeMap<String, ServerUse> = BTreeMap::new();
    let mut say = |what: &str, least: i64| {
        let cpu = |used: &ServerUse| used.used.get("cpu").copied();
        while !["a", "b"].iter().all(|name| latest.get(*name).and_then(cpu).is_some_and(|cpu| cpu >= least)) {
            let Some(Kind::Utilisation(measured)) = heard.recv_timeout(LIMIT).expect(what).kind else { continue };
            for used in measured.servers {
                assert!(used.slots.is_empty() && used.used.keys().all(|name| name == "cpu"), "{used:?}");
                assert!(used.server != "head" && cpu(&used).is_none_or(|cpu| (0..=4000).contains(&cpu)), "{used:?}");
                latest.insert(used.server.clone(), used);
            }
        }
    };
    say("the nodes' loads", 0);
    let cores = thread::available_parallelism().unwrap().get();
    let burn = || Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
    let mut burners: Vec<Child> = (0..2 * cores).map(|_| burn()).collect();
    say("busy nodes", 3800);
    for burner in &mut burners {
        burner.kill().unwrap();
        burner.wait().unwrap();
    }
}
