//! The daemon with this adapter, and a real ResourceManager without plug-ins, over its REST API only.

use std::{
    env, fs,
    io::Write,
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    thread::sleep,
    time::{Duration, Instant},
};

use serde_json::Value;

use super::Daemon;

/// Far longer than any step of the test. Only a failing test waits for it.
const LIMIT: Duration = Duration::from_secs(600);
const ROUND: Duration = Duration::from_millis(200);

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the repository")
}

/// Runs a script of the repository. Returns its output if it fails.
fn script(name: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Result<(), String> {
    let mut command = Command::new(root().join(name));
    let output = command.args(arguments).envs(environment.iter().copied()).output().expect("a script");
    let text = [output.stdout, output.stderr].concat();
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&text).into_owned()) }
}

/// Whether YARN can be installed. Otherwise the test is skipped and counted.
fn is_installable() -> bool {
    let Err(errors) = script("scripts/install", &["yarn"], &[]) else { return true };
    let problem = format!("no YARN: {}", errors.lines().last().unwrap_or("scripts/install yarn failed"));
    assert!(env::var("CI").as_deref() != Ok("true"), "{problem}");
    println!("skipped: {problem}");
    if let Some(file) = env::var_os("TRAINMASTER_SKIPS") {
        let file = fs::OpenOptions::new().append(true).create(true).open(file);
        let _ = file.and_then(|mut file| writeln!(file, "{problem}"));
    }
    false
}

/// A ResourceManager with NodeManagers.
struct Cluster {
    folder: PathBuf,
    web: String,
    classpath: String,
}

impl Cluster {
    /// Starts it. Its queues are `default`, which gets every application, and `dl`.
    fn start(folder: &Path, address: &str) -> Self {
        let master = root().join("integration/yarn/master/target/trainmaster-yarn-master.jar");
        if !master.exists() {
            let pom = root().join("integration/yarn/pom.xml");
            let built = Command::new("mvn").args(["-q", "-B", "-DskipTests", "package", "-f"]).arg(pom).status();
            assert!(built.is_ok_and(|status| status.success()), "the ApplicationMaster can't be built");
        }
        let folder = folder.join("cluster");
        let queues = "yarn.scheduler.capacity.root.queues=default,dl\n\
            yarn.scheduler.capacity.root.default.capacity=50\n\
            yarn.scheduler.capacity.root.dl.capacity=50\n\
            yarn.scheduler.capacity.root.dl.user-limit-factor=100\n\
            yarn.scheduler.capacity.queue-mappings=u:%user:default\n\
            yarn.scheduler.capacity.queue-mappings-override.enable=true";
        let address = format!("trainmaster.yarn.address={address}");
        let environment = [
            ("NODES", "2048:8:2 2048:8:0"),
            ("QUEUES", queues),
            ("PROPERTIES", &address),
            ("NM_PROPERTIES", &address),
            ("HTTPS", "1"),
        ];
        let started = script("integration/yarn/cluster/start", &[folder.to_str().unwrap()], &environment);
        let told = fs::read_to_string(folder.join("env")).unwrap_or_default();
        let of = |key: &str| {
            let line = told.lines().find_map(|line| line.strip_prefix(&format!("export {key}=")));
            line.unwrap_or_default().trim_matches('"').to_owned()
        };
        let classpath = [master.display().to_string(), of("HADOOP_CONF_DIR"), of("TRAINMASTER_YARN_CLASSPATH")];
        let cluster = Self { web: of("TRAINMASTER_YARN_WEB"), classpath: classpath.join(":"), folder };
        started.expect("a cluster");
        cluster
    }

    fn get(&self, path: &str) -> Value {
        let url = format!("{}/ws/v1/cluster/{path}", self.web);
        let answer = Command::new("curl").args(["-fsS", "-m", "10", "--cacert"]).arg(self.ca()).arg(&url).output();
        let answer = answer.expect("curl");
        serde_json::from_slice(&answer.stdout).unwrap_or_default()
    }

    /// The certificate of its REST API.
    fn ca(&self) -> PathBuf {
        self.folder.join("ca.pem")
    }

    fn app(&self, id: &str) -> Value {
        self.get(&format!("apps/{id}"))["app"].clone()
    }
}

impl Cluster {
    fn stop(&self) {
        let _ = script("integration/yarn/cluster/stop", &[self.folder.to_str().unwrap()], &[]);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.stop();
    }
}

fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let limit = Instant::now() + LIMIT;
    loop {
        if let Some(it) = look() {
            return it;
        }
        assert!(Instant::now() < limit, "waited in vain: {what}");
        sleep(ROUND);
    }
}

/// The output of `trainmaster yarn submit`.
fn submit(daemon: &Daemon, config: &Path, folder: &Path, job: &str) -> Result<String, String> {
    let file = folder.join("job.toml");
    fs::write(&file, job).unwrap();
    let mut command = Command::new(&daemon.program);
    command
        .args(["yarn", "submit", "--json", "--server", &daemon.url, "--token-file"])
        .arg(folder.join("alice.token"))
        .arg(&file);
    let output = command.env("TRAINMASTER_YARN", config).env("HADOOP_USER_NAME", "alice").output().unwrap();
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    Ok(said["application"].as_str().unwrap().to_owned())
}

#[test]
fn a_manager_without_plug_ins_is_observed_ordered_and_told_to_kill() {
    if !is_installable() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let cluster = Cluster::start(folder.path(), &address);
    assert!(cluster.web.starts_with("https://"), "{}", cluster.web);
    // An ApplicationMaster took more than 10 s to come on a busy machine. One that doesn't leave is killed after this.
    let configure = |name: &str, java: &str| {
        let config = folder.path().join(name);
        let text = format!(
            "api = \"rest\"\nlisten = {address:?}\nresourcemanager = {:?}\nca = {:?}\nmaster_timeout = \"40s\"\n\
             [master]\njava = {java:?}\nclasspath = {:?}\nmemory = \"256MiB\"\n",
            cluster.web,
            cluster.ca(),
            cluster.classpath
        );
        fs::write(&config, text).unwrap();
        config
    };
    let config = configure("yarn.toml", "java");
    // Its programs aren't training programs, and don't receive the request to leave.
    fs::write(folder.path().join("daemon.toml"), "grace = \"1s\"\n").unwrap();
    let mut daemon = Daemon::start(folder.path(), &config, "fifo");
    let job = |name: &str, more: &str| {
        format!(
            "name = {name:?}\nqueue = \"dl\"\nmode = \"allreduce\"\nbatch = 64\n{more}\n\
             worker = {{ gpu = 1, cpu = 1, memory = \"128MiB\", min = 2, max = 2, requested = 2, \
             command = \"sleep 600\" }}\n"
        )
    };
    until("the nodes", || (daemon.ask(&["status"])["servers"].as_u64() >= Some(2)).then_some(()));

    // The user has their own token.
    let token = folder.path().join("alice.token");
    let created =
        daemon.ask(&["token", "create", "alice", "--role=submit", "--tenant=alice", "--out", token.to_str().unwrap()]);
    assert!(token.exists(), "{created}");

    // The engine refuses the job while the client waits, so it is never submitted to YARN.
    let refused =
        submit(&daemon, &config, folder.path(), &job("never", "constraints = { labels = { rack = \"r9\" } }"));
    let refused = refused.unwrap_err();
    assert!(refused.contains("Refused by Trainmaster: "), "{refused}");
    assert_eq!(cluster.get("apps")["apps"]["app"], Value::Null);

    let application = submit(&daemon, &config, folder.path(), &job("first", "")).unwrap();
    until("the job running", || daemon.is("first", "running"));
    let workers = |application: &str| {
        let attempt = application.replace("application", "appattempt");
        let told = cluster.get(&format!("apps/{application}/appattempts/{attempt}_000001/containers"));
        let workers = told["container"].as_array()?.iter().filter(|container| container["priority"] == 20);
        let workers: Vec<_> = workers.map(|container| container["containerId"].clone()).collect();
        (workers.len() == 2).then_some(workers)
    };
    let containers = until("its containers", || workers(&application));
    until("its containers as the daemon sees them", || {
        let running = daemon.jobs().into_iter().find(|job| job["name"] == "first")?;
        (running["state"] == "running" && running["workers"] == 2).then_some(())
    });
    // NodeManagers measure the memory of its ApplicationMaster.
    let state = folder.path().join("state");
    until("a load", || {
        let journal = daemon.ask(&["replay", state.to_str().unwrap()]);
        (journal["events"]["utilisation"].as_u64() > Some(0)).then_some(())
    });
    // YARN's own rules put it into `default` first.
    let told = until("its queue", || Some(cluster.app(&application)).filter(|told| told["queue"] == "root.dl"));
    assert!(told["applicationTags"].as_str().unwrap().starts_with("trainmaster-secret-"), "{told}");
    assert_eq!((&told["user"], &told["state"]), (&"alice".into(), &"RUNNING".into()));

    // The daemon is killed together with the adapter. Running jobs don't change.
    daemon.kill();
    daemon = Daemon::start(folder.path(), &config, "fifo");
    until("the job running on", || daemon.is("first", "running"));
    sleep(Duration::from_secs(3));
    let first = daemon.jobs().remove(0);
    let state = (&first["state"], &first["incarnation"], &first["workers"]);
    assert_eq!(state, (&"running".into(), &1.into(), &2.into()), "{first}");
    assert_eq!(workers(&application).as_ref(), Some(&containers), "{told}");

    // Its ApplicationMaster is told of its end.
    daemon.ask(&["cancel", "first"]);
    let ended = until("its end", || Some(cluster.app(&application)).filter(|told| told["state"] == "FINISHED"));
    assert_eq!(ended["finalStatus"], "FAILED");
    assert!(ended["diagnostics"].as_str().unwrap().contains("cancelled"), "{ended}");

    // An ApplicationMaster that doesn't follow its orders is killed.
    let deaf = folder.path().join("deaf");
    fs::write(&deaf, "#!/bin/sh\nexec sleep 600\n").unwrap();
    fs::set_permissions(&deaf, fs::Permissions::from_mode(0o755)).unwrap();
    let second = submit(&daemon, &configure("deaf.toml", deaf.to_str().unwrap()), folder.path(), &job("second", ""));
    let second = second.unwrap();
    until("its priority", || (cluster.app(&second)["priority"] == 1).then_some(()));
    daemon.ask(&["cancel", "second"]);
    let killed = until("it to be killed", || Some(cluster.app(&second)).filter(|told| told["state"] == "KILLED"));
    assert!(killed["diagnostics"].as_str().unwrap().contains("cancelled"), "{killed}");
}
