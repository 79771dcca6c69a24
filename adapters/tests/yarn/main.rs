//! The daemon with this adapter, and a simulated YARN: a ResourceManager's plug-ins, and ApplicationMasters.

#![cfg(feature = "yarn")]

mod fake;
mod rest;

use std::{
    env, fs,
    io::{BufRead, BufReader},
    net::TcpListener,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use fake::{TOKEN, Yarn};
use serde_json::Value;
use tonic::Code;
use trainmaster_adapters::yarn::wire::{Action, ApplicationState, Node, Standing};

const APP: &str = "application_1700000000000_0001";

fn job(name: &str, workers: u32) -> String {
    let worker =
        format!("{{ gpu = 1, cpu = 1, min = {workers}, max = {workers}, requested = {workers}, command = \"t\" }}");
    format!("name = {name:?}\nmode = \"allreduce\"\nbatch = 64\nworker = {worker}\n")
}

/// The daemon. It can be killed and started again.
struct Daemon {
    child: Child,
    program: PathBuf,
    url: String,
}

impl Daemon {
    fn start(folder: &Path, config: &Path, engine: &str) -> Self {
        // The test's executable is in `deps/`, in the program's folder.
        let program = env::current_exe().unwrap().ancestors().nth(2).unwrap().join("trainmaster");
        assert!(program.exists(), "{} isn't there: cargo build --bins", program.display());
        let log = fs::OpenOptions::new().append(true).create(true).open(folder.join("daemon.log")).unwrap();
        // Only some tests have a settings file.
        let own = folder.join("daemon.toml");
        let mut child = Command::new(&program)
            .args(["serve", "--json", "--listen", "127.0.0.1:0", "--engine", engine, "--adapter"])
            .arg(format!("yarn={}", config.display()))
            .args(own.exists().then(|| format!("--config={}", own.display())))
            .arg("--state-dir")
            .arg(folder.join("state"))
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let serving: Value = serde_json::from_str(&line).expect("a line that says where it serves");
        Self { child, program, url: serving["url"].as_str().unwrap().to_owned() }
    }

    fn ask(&self, arguments: &[&str]) -> Value {
        let output = Command::new(&self.program).args(["--server", &self.url]).args(arguments).arg("--json").output();
        serde_json::from_slice(&output.unwrap().stdout).unwrap_or_default()
    }

    fn jobs(&self) -> Vec<Value> {
        self.ask(&["jobs", "--all"])["jobs"].as_array().cloned().unwrap_or_default()
    }

    fn is(&self, name: &str, state: &str) -> Option<()> {
        self.jobs().iter().any(|job| job["name"] == name && job["state"] == state).then_some(())
    }

    /// Ends it as a power failure would.
    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Writes a configuration file. Returns its path, and the URL of the adapter.
fn configure(folder: &Path) -> (PathBuf, String) {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let config = folder.join("yarn.toml");
    let token = folder.join("yarn.token");
    fs::write(&token, TOKEN).unwrap();
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(&config, format!("listen = \"{address}\"\nplacement_timeout = \"20s\"\ntoken_file = {token:?}\n"))
        .unwrap();
    (config, format!("http://{address}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn applications_are_jobs_from_submission_to_end() {
    let folder = tempfile::tempdir().unwrap();
    let (config, url) = configure(folder.path());
    let mut daemon = Daemon::start(folder.path(), &config, "fifo");
    let mut yarn = Yarn::start(&url);
    yarn.submit(APP, &job("first", 2));
    yarn.until("the job running", |_| daemon.is("first", "running")).await;
    let running = daemon.jobs().remove(0);
    assert_eq!((&running["tenant"], &running["queue"]), (&"alice".into(), &"dl".into()));
    let orders = yarn.look(|world| world.orders[APP].clone());
    assert_eq!((orders.standing(), orders.slots.len(), orders.incarnation), (Standing::Run, 2, 1));
    assert_eq!(orders.environment["TRAINMASTER_FEED"], daemon.url);
    assert!(!orders.environment["TRAINMASTER_TOKEN"].is_empty());
    let containers = yarn.look(|world| world.app(APP).containers.clone());
    assert_eq!(yarn.impostor(APP).await, Code::Unauthenticated);

    // The daemon is killed together with the adapter. The same job continues in the same containers.
    daemon.kill();
    yarn.until("nobody there", |world| world.answer.as_ref()?.as_ref().err().map(drop)).await;
    daemon = Daemon::start(folder.path(), &config, "fifo");
    yarn.until("a plan again", |world| world.action(APP).filter(|(action, _)| *action == Action::Run)).await;
    yarn.until("the job running on", |_| daemon.is("first", "running")).await;
    assert_eq!(daemon.jobs().len(), 1, "it isn't submitted again");
    assert_eq!(yarn.look(|world| world.app(APP).containers.clone()), containers);

    // Invalid data beside it changes nothing.
    let odd = Node { id: "c:1".into(), name: "a".into(), state: 99, ..Node::default() };
    yarn.look(|world| {
        let twice = world.cluster.nodes[0].clone();
        let lost = Node { capacity: [("memory-mb".to_owned(), -7), ("vcores".to_owned(), i64::MIN)].into(), ..odd };
        world.cluster.nodes.extend([twice, lost, Node::default()]);
        let first = world.cluster.applications[0].clone();
        world.cluster.applications.push(first);
        world.app(APP).state = 77;
        world.answer = None;
    });
    yarn.until("an answer", |world| world.answer.take()?.ok()).await;
    yarn.until("the job running all the same", |_| daemon.is("first", "running")).await;
    yarn.look(|world| world.cluster.applications.truncate(1));

    // A second job with the name gets its number. An invalid one is killed, with the reason.
    let (second, third) = ("application_1700000000000_0002", "application_1700000000000_0003");
    yarn.submit(second, &job("first", 1));
    yarn.submit(third, "name = \"third\"\nworker = { gpus = 1 }");
    yarn.until("the second running", |_| daemon.is("first-2", "running")).await;
    let why = yarn.until("the third killed", |world| {
        let app = world.app(third);
        (app.state() == ApplicationState::Killed).then(|| app.diagnostics.clone())
    });
    assert!(why.await.contains("worker.gpus: unknown key"));

    // They end as applications do.
    yarn.look(|world| {
        world.app(APP).containers.clear();
        world.app(APP).set_state(ApplicationState::Succeeded);
        world.app(second).containers.clear();
        world.app(second).set_state(ApplicationState::Killed);
    });
    yarn.until("the job completed", |_| daemon.is("first", "completed")).await;
    yarn.until("the other cancelled", |_| daemon.is("first-2", "cancelled")).await;
    assert_eq!(daemon.jobs().len(), 2);

    // A job that is cancelled at the daemon is told to end.
    let fourth = "application_1700000000000_0004";
    yarn.submit(fourth, &job("fourth", 1));
    yarn.until("the fourth running", |_| daemon.is("fourth", "running")).await;
    daemon.ask(&["cancel", "fourth"]);
    let over = yarn.until("its end", |world| {
        world.orders.get(fourth).filter(|orders| orders.standing() == Standing::Over).cloned()
    });
    let over = over.await;
    assert!(!over.completed && over.reason.starts_with("cancelled"), "{over:?}");
    yarn.until("its containers gone", |world| world.app(fourth).containers.is_empty().then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn admission_is_answered_with_the_engines_reason() {
    let folder = tempfile::tempdir().unwrap();
    let (config, url) = configure(folder.path());
    let mut daemon = Daemon::start(folder.path(), &config, "oasis");
    let yarn = Yarn::start(&url);
    let verdict = yarn.admit("name = \"a\"\nworker = { cpus = 1 }").await.unwrap();
    assert!(!verdict.admitted && verdict.reason.contains("worker.cpus"), "{verdict:?}");
    // The answer is useless if it takes longer than a client can wait.
    let verdict = loop {
        match yarn.admit(&job("plain", 1)).await {
            Ok(verdict) => break verdict,
            Err(status) => assert_eq!(status.code(), Code::Unavailable, "{status}"),
        }
    };
    assert!(!verdict.admitted && verdict.reason.contains("engine \"oasis\" can't run it"), "{verdict:?}");
    daemon.kill();
}
