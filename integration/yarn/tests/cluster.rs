//! A real YARN for a test: `integration/yarn/cluster/start` starts it, and dropping the value ends it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    thread,
    time::{Duration, Instant, SystemTime},
};

use serde_json::Value;
use trainmaster_conformance::free_port;

/// More cores than any server of a scenario, so that all ApplicationMasters run on their own node.
const MASTER_CORES: u32 = 20;
/// Its memory exceeds the adapter's plausible maximum, so the daemon counts none of it.
const MASTERS: &str = "2000000000:120:0";

/// By the core's names: MiB, whole cores, whole GPUs.
pub(crate) type Amounts = BTreeMap<String, i64>;

/// The repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository")
}

/// Whether YARN is available. It is installed if it is missing. Without it the test is skipped and counted.
pub(crate) fn available() -> bool {
    let install = Command::new(root().join("scripts/install")).arg("yarn").output().expect("a script");
    if install.status.success() {
        return true;
    }
    let problem = format!("no YARN: {}", String::from_utf8_lossy(&install.stderr).trim());
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{problem}");
    println!("skipped: {problem}");
    if let Some(file) = std::env::var_os("TRAINMASTER_SKIPS") {
        use std::io::Write as _;
        let file = fs::OpenOptions::new().append(true).create(true).open(file);
        let _ = file.and_then(|mut file| writeln!(file, "golden scenarios: {problem}"));
    }
    false
}

/// Packs the plug-ins and the ApplicationMaster, unless they are up to date.
fn build() {
    let yarn = root().join("integration/yarn");
    let jars = ["rm", "master"].map(|module| yarn.join(format!("{module}/target/trainmaster-yarn-{module}.jar")));
    let packed = jars.iter().map(|jar| changed(jar)).min().flatten();
    let sources = ["pom.xml", "rm/pom.xml", "rm/src/main", "master/pom.xml", "master/src/main", "../../adapters/yarn"];
    if packed.is_some() && packed > sources.iter().map(|path| changed(&yarn.join(path))).max().flatten() {
        return;
    }
    let mvn = Command::new("mvn").args(["-q", "-B", "package", "-DskipTests"]).current_dir(yarn).output().expect("mvn");
    assert!(mvn.status.success(), "{}", String::from_utf8_lossy(&mvn.stdout));
}

/// Time of the last change of a file, or of any file in a folder.
fn changed(path: &Path) -> Option<SystemTime> {
    let within = fs::read_dir(path).into_iter().flatten().flatten().filter_map(|entry| changed(&entry.path()));
    let own = fs::metadata(path).ok()?.modified().ok();
    within.max().max(own)
}

/// Output of a program.
pub(crate) fn said(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().expect("a program");
    let stdout = String::from_utf8_lossy(&stdout).into_owned();
    assert!(status.success(), "{command:?}: {stdout}{}", String::from_utf8_lossy(&stderr));
    stdout
}

/// Waits for a result.
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(600);
    loop {
        if let Some(it) = look() {
            return it;
        }
        assert!(Instant::now() < end, "waited in vain: {what}");
        thread::sleep(Duration::from_millis(250));
    }
}

/// A running YARN.
pub(crate) struct Cluster {
    folder: tempfile::TempDir,
    web: String,
    classpath: String,
    adapter: u16,
    /// The ids of `nm1`, `nm2`, …, followed by the ApplicationMasters' node.
    nodes: Vec<String>,
}

impl Cluster {
    /// Starts a cluster of `nodes` nodes without resources.
    pub(crate) fn start(nodes: usize, queues: &BTreeSet<String>) -> Self {
        build();
        let folder = tempfile::Builder::new().prefix("trainmaster-golden").tempdir().expect("a scratch folder");
        let yarn = folder.path().join("yarn");
        let adapter = free_port();
        let share = 100.0 / queues.len() as f64;
        let names: Vec<&str> = queues.iter().map(String::as_str).collect();
        let of_each = names.iter().map(|name| {
            let key = format!("yarn.scheduler.capacity.root.{name}");
            format!("{key}.capacity={share}\n{key}.maximum-capacity=100\n{key}.user-limit-factor=100\n")
        });
        let queues = of_each.collect::<String>() + &format!("yarn.scheduler.capacity.root.queues={}", names.join(","));
        // A NodeManager without any resources would be refused.
        let small = vec!["64:1:0"; nodes].join(" ");
        let mut start = Command::new(root().join("integration/yarn/cluster/start"));
        start.arg(&yarn).arg(format!("127.0.0.1:{adapter}"));
        start.env("NODES", format!("{small} {MASTERS}")).env("QUEUES", queues).env(
            "PROPERTIES",
            format!(
                "yarn.nm.liveness-monitor.expiry-interval-ms=6000\n\
                 yarn.scheduler.maximum-allocation-mb=65536\n\
                 yarn.scheduler.maximum-allocation-vcores={MASTER_CORES}\n\
                 trainmaster.yarn.admission.deadline-ms=10000"
            ),
        );
        let mut cluster = Self { folder, web: String::new(), classpath: String::new(), adapter, nodes: Vec::new() };
        said(&mut start);
        cluster.web = cluster.variable("TRAINMASTER_YARN_WEB");
        cluster.classpath = cluster.variable("TRAINMASTER_YARN_CLASSPATH");
        cluster.nodes = (1..=nodes).map(|number| cluster.id(number)).collect();
        cluster
    }

    fn yarn(&self) -> PathBuf {
        self.folder.path().join("yarn")
    }

    fn variable(&self, name: &str) -> String {
        let env = fs::read_to_string(self.yarn().join("env")).unwrap();
        let line = env.lines().find_map(|line| line.strip_prefix(&format!("export {name}=")));
        line.unwrap().replace('"', "")
    }

    fn id(&self, number: usize) -> String {
        let site = fs::read_to_string(self.yarn().join(format!("nm{number}/conf/yarn-site.xml"))).unwrap();
        let (_, address) = site.split_once("<name>yarn.nodemanager.address</name><value>").unwrap();
        let (address, _) = address.split_once('<').unwrap();
        let port = address.rsplit_once(':').unwrap().1;
        let nodes = self.get("nodes");
        let ids = nodes["nodes"]["node"].as_array().unwrap().iter().map(|node| node["id"].as_str().unwrap().to_owned());
        ids.into_iter().find(|id| id.ends_with(&format!(":{port}"))).unwrap()
    }

    pub(crate) fn nodes(&self) -> &[String] {
        &self.nodes
    }

    /// `yarn.toml` for the daemon and its clients.
    pub(crate) fn settings(&self) -> String {
        let Self { adapter, web, classpath, .. } = self;
        let jar = root().join("integration/yarn/master/target/trainmaster-yarn-master.jar");
        let (jar, conf) = (jar.display(), self.yarn().join("conf"));
        let (conf, token) = (conf.display(), self.yarn().join("plug-ins.token"));
        // The machine's load isn't part of a scenario.
        format!(
            "measure = \"off\"\nlisten = \"127.0.0.1:{adapter}\"\nresourcemanager = \"{web}\"\ntoken_file = {token:?}\n\
             accounts = \"job\"\n\
             placement_timeout = \"5m\"\nmaster_timeout = \"5m\"\n[master]\nclasspath = \"{jar}:{conf}:{classpath}\"\n\
             memory = \"256MiB\"\n\
             vcores = {MASTER_CORES}\n"
        )
    }

    /// A folder for a run, kept as long as the cluster.
    pub(crate) fn scratch(&self, name: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::create_dir_all(&path).unwrap();
        path
    }

    /// The answer of the ResourceManager's REST API.
    pub(crate) fn get(&self, path: &str) -> Value {
        serde_json::from_str(&said(&mut self.curl(path))).unwrap()
    }

    fn curl(&self, path: &str) -> Command {
        let mut curl = Command::new("curl");
        curl.args(["-fsS", "-m", "30", "-H", "Content-Type: application/json"]);
        curl.arg(format!("{}/ws/v1/cluster/{path}", self.web));
        curl
    }

    pub(crate) fn kill_application(&self, id: &str) {
        let mut put = self.curl(&format!("apps/{id}/state?user.name=tester"));
        said(put.args(["-X", "PUT", "-d", r#"{"state": "KILLED"}"#]));
    }

    /// Runs an operation that the REST API doesn't have: it supports memory and cores only.
    fn operator(&self, what: &str, nodes: &BTreeMap<usize, Amounts>) -> String {
        let mut java = Command::new("java");
        java.args(["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp"]);
        java.arg(format!("{}:{}", self.yarn().join("conf").display(), self.classpath));
        java.arg(root().join("integration/yarn/tests/Operator.java")).arg(what).env("HADOOP_USER_NAME", "guest");
        for (node, amounts) in nodes {
            let amounts: Vec<String> = known(amounts).map(|(name, amount)| format!("{name}:{amount}")).into();
            java.arg(format!("{}={}", self.nodes[*node], amounts.join(",")));
        }
        said(&mut java)
    }

    /// Starts a foreign application that uses these amounts of a node. Returns its id.
    pub(crate) fn occupy(&self, node: usize, amounts: &Amounts) -> String {
        self.operator("occupy", &[(node, amounts.clone())].into()).lines().last().expect("an id").to_owned()
    }

    /// Resources of a running node, in the scheduler's units. None for a lost node.
    fn has(&self, node: usize) -> Option<BTreeMap<String, i64>> {
        let answer = &self.get(&format!("nodes/{}", self.nodes[node]))["node"];
        let parts = ["availableResource", "usedResource"];
        let parts = parts.map(|part| answer[part]["resourceInformations"]["resourceInformation"].as_array());
        let mut has = BTreeMap::new();
        for part in parts.into_iter().flatten().flatten() {
            *has.entry(part["name"].as_str()?.to_owned()).or_default() += part["value"].as_i64()?;
        }
        (answer["state"] == "RUNNING").then_some(has)
    }

    /// Sets the resources of nodes. A lost node returns for that.
    pub(crate) fn provide(&self, wanted: &BTreeMap<usize, Amounts>) {
        let mut nodes = wanted.clone();
        nodes.retain(|node, amounts| {
            let has = self.has(*node);
            if has.is_none() && !amounts.is_empty() {
                self.start_again(*node, amounts);
            }
            has.is_some_and(|has| has != known(amounts).into())
        });
        if !nodes.is_empty() {
            self.operator("provide", &nodes);
        }
        for (node, amounts) in wanted.iter().filter(|(_, amounts)| !amounts.is_empty()) {
            until("a node's resources", || self.has(*node).filter(|has| *has == known(amounts).into()));
        }
    }

    fn start_again(&self, node: usize, amounts: &Amounts) {
        let name = format!("nm{}", node + 1);
        let keys = [
            ("yarn-site.xml", "yarn.nodemanager.resource.memory-mb"),
            ("yarn-site.xml", "yarn.nodemanager.resource.cpu-vcores"),
            ("node-resources.xml", "yarn.nodemanager.resource-type.yarn.io/gpu"),
        ];
        for ((file, key), (_, amount)) in keys.into_iter().zip(known(amounts)) {
            let file = self.yarn().join(&name).join("conf").join(file);
            let text = fs::read_to_string(&file).unwrap();
            let (before, after) = text.split_once(&format!("<name>{key}</name><value>")).unwrap();
            let (_, after) = after.split_once('<').unwrap();
            fs::write(&file, format!("{before}<name>{key}</name><value>{amount}<{after}")).unwrap();
        }
        said(Command::new(root().join("integration/yarn/cluster/daemon")).arg(self.yarn()).arg(name));
    }

    /// Kills a node, and waits until the ResourceManager detects it.
    pub(crate) fn lose(&self, node: usize) {
        let pids = fs::read_to_string(self.yarn().join("run/pids")).unwrap();
        let name = format!(" nm{}", node + 1);
        let pid = pids.lines().rev().find_map(|line| line.strip_suffix(&name)).unwrap();
        said(Command::new("kill").args(["-KILL", pid]));
        until("a lost node", || self.has(node).is_none().then_some(()));
    }
}

/// Amounts with YARN's names and units.
fn known(amounts: &Amounts) -> [(String, i64); 3] {
    let of = |name: &str| amounts.get(name).copied().unwrap_or(0);
    // YARN refuses nodes and applications without memory.
    [("memory-mb", of("memory").max(1)), ("vcores", of("cpu")), ("yarn.io/gpu", of("gpu"))]
        .map(|(name, amount)| (name.to_owned(), amount))
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if thread::panicking()
            && let Ok(log) = fs::read_to_string(self.yarn().join("log/rm.log"))
        {
            let lines: Vec<&str> = log.lines().collect();
            eprintln!("{}", lines[lines.len().saturating_sub(30)..].join("\n"));
        }
        let _ = Command::new(root().join("integration/yarn/cluster/stop")).arg(self.yarn()).output();
    }
}
