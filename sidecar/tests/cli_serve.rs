//! `trainmaster serve` and commands that call it, run like by a user. No manager is attached, so jobs wait.

use std::{
    fs,
    io::{self, BufRead, BufReader},
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Child, Command, Output, Stdio},
    sync::OnceLock,
    thread::sleep,
    time::{Duration, Instant},
};

use rustix::{
    fs::{CWD, FileType, Mode, mknodat},
    process::{Pid, Signal, kill_process},
};
use serde_json::Value;
use tempfile::TempDir;

const TOKEN: &str = "0123456789abcdef";

pub(crate) fn trainmaster(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trainmaster"));
    command
        .args(args)
        .env_remove("TRAINMASTER_SERVER")
        .env_remove("TRAINMASTER_TOKEN_FILE")
        .env_remove("TRAINMASTER_LOG")
        // Folder of the discovery files.
        .env("XDG_STATE_HOME", notes());
    command
}

/// A folder for this test program.
fn notes() -> &'static Path {
    static NOTES: OnceLock<TempDir> = OnceLock::new();
    NOTES.get_or_init(|| TempDir::new().unwrap()).path()
}

fn private(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

/// A daemon on a free port that ends with the test.
pub(crate) struct Served {
    child: Child,
    pub(crate) url: String,
}

impl Served {
    pub(crate) fn start(state: &Path, more: &[&str]) -> Self {
        Self::with("none", state, more)
    }

    /// With an adapter.
    fn with(adapter: &str, state: &Path, more: &[&str]) -> Self {
        Self::at("127.0.0.1:0", adapter, state, more)
    }

    /// At an address.
    pub(crate) fn at(listen: &str, adapter: &str, state: &Path, more: &[&str]) -> Self {
        let mut command = Self::command(listen, adapter, state, more);
        Self::of(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap())
    }

    pub(crate) fn command(listen: &str, adapter: &str, state: &Path, more: &[&str]) -> Command {
        let args = ["serve", "--json", "--listen", listen, "--adapter", adapter, "--state-dir"];
        trainmaster(&[&args[..], &[state.to_str().unwrap()], more].concat())
    }

    /// Waits until a daemon says where it serves.
    pub(crate) fn of(mut child: Child) -> Self {
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let serving: Value = serde_json::from_str(&line).expect("a line that says where it serves");
        Self { child, url: serving["url"].as_str().unwrap().to_owned() }
    }

    pub(crate) fn ask(&self, args: &[&str]) -> Output {
        trainmaster(&[&["--server", &self.url], args].concat()).output().unwrap()
    }

    #[track_caller]
    pub(crate) fn works(&self, args: &[&str]) -> String {
        let output = self.ask(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    #[track_caller]
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.works(&[args, &["--json"]].concat())).unwrap()
    }

    /// Ends the daemon as a service manager does.
    pub(crate) fn terminate(mut self) -> Option<i32> {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        self.child.wait().unwrap().code()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn job_file(folder: &Path) -> String {
    let path = folder.join("job.toml");
    let text =
        "name = \"first\"\nmode = \"sync\"\nbatch = 64\nworker = { cpu = 1, max = 4 }\nserver = { cpu = 1, max = 4 }\n";
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[track_caller]
pub(crate) fn refuses(output: &Output, code: i32, words: &[&str]) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    for word in words {
        assert!(text.contains(word), "{word:?} isn't in: {text}");
    }
}

#[test]
fn a_start_that_waits_for_a_pipe_can_be_ended() {
    let folder = TempDir::new().unwrap();
    let (pipe, state) = (folder.path().join("pipe"), folder.path().join("state"));
    mknodat(CWD, &pipe, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let adapter = format!("local={}", pipe.display());
    let args = ["serve", "--listen", "127.0.0.1:0", "--adapter", &adapter, "--state-dir", state.to_str().unwrap()];
    let mut command = trainmaster(&args);
    let mut child = command.env("TRAINMASTER_LOG", "error").stderr(Stdio::piped()).spawn().unwrap();
    let end = Instant::now() + Duration::from_secs(600);
    while !state.join("journal.redb").exists() {
        assert!(Instant::now() < end && child.try_wait().unwrap().is_none(), "it waits for the pipe");
        sleep(Duration::from_millis(20));
    }
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    refuses(&child.wait_with_output().unwrap(), 0, &["ended before it was ready"]);
}

#[test]
fn a_job_lives_from_submit_to_cancel() {
    let folder = TempDir::new().unwrap();
    let daemon = Served::start(&folder.path().join("state"), &["--engine", "fifo"]);
    let submitted = daemon.json(&["submit", &job_file(folder.path())]);
    assert_eq!((&submitted["job"], &submitted["name"]), (&1.into(), &"first".into()));
    assert!(submitted["token"].is_null(), "{submitted}");
    refuses(&daemon.ask(&["submit", &job_file(folder.path())]), 1, &["error: first: ", "\"first\""]);

    let jobs = daemon.json(&["jobs"]);
    assert_eq!((&jobs["engine"], &jobs["jobs"][0]["state"]), (&"fifo".into(), &"waiting".into()));
    assert!(daemon.works(&["jobs"]).contains("first"));
    let explained = daemon.json(&["explain", "first"]);
    assert_eq!((&explained["job"], &explained["findings"][0]["blocks"]), (&1.into(), &true.into()));
    assert!(daemon.works(&["explain", "1"]).starts_with("job 1, first: waiting\n✗"));

    daemon.works(&["pause", "first"]);
    assert!(daemon.works(&["explain", "first"]).contains("held"));
    daemon.works(&["resume", "first"]);
    assert_eq!(daemon.json(&["plan", "--dry-run", "--engine", "optimus"])["engine"], "optimus");
    assert_eq!(daemon.json(&["mode", "shadow"])["previous"], "active");
    assert_eq!(daemon.json(&["status"])["mode"], "shadow");
    refuses(&daemon.ask(&["plan", "--dry-run", "--engine", "optimum"]), 1, &["optimum"]);

    daemon.works(&["cancel", "1"]);
    assert_eq!(daemon.json(&["jobs"])["jobs"].as_array().unwrap().len(), 0);
    assert_eq!(daemon.json(&["jobs", "--all"])["jobs"][0]["state"], "cancelled");
    assert!(daemon.works(&["watch", "--until-idle"]).is_empty());
    refuses(&daemon.ask(&["cancel", "1"]), 1, &[]);
    assert_eq!(daemon.terminate(), Some(0));
}

/// Waits until `explain` has the words.
fn explains(daemon: &Served, job: &str, words: &str) {
    let end = Instant::now() + Duration::from_secs(600);
    loop {
        let explained = daemon.works(&["explain", job]);
        if explained.contains(words) {
            return;
        }
        assert!(Instant::now() < end, "{words:?} isn't in: {explained}");
        sleep(Duration::from_millis(100));
    }
}

/// Waits until as many programs have written these words to their logs.
fn are_told(logs: &Path, words: &str, programs: usize) {
    let told = || {
        let logs = fs::read_dir(logs).into_iter().flatten().flatten();
        let logs = logs.filter_map(|entry| fs::read_to_string(entry.path()).ok());
        logs.filter(|log| log.contains(words)).count()
    };
    let end = Instant::now() + Duration::from_secs(600);
    while told() < programs {
        assert!(Instant::now() < end, "{} of {programs} programs were told: {words}", told());
        sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_cut_model_gets_whole_groups_and_is_told_how_it_is_cut() {
    let folder = TempDir::new().unwrap();
    let cluster = folder.path().join("cluster.toml");
    fs::write(&cluster, "[[server]]\nname = \"a\"\ncpu = 8\nmemory = \"1GiB\"\n").unwrap();
    let state = folder.path().join("state");
    let daemon = Served::with(&format!("local={}", cluster.display()), &state, &["--engine", "fifo"]);
    let path = folder.path().join("job.toml");
    let submit = |requested: u32| {
        let text = format!(
            "name = \"cut\"\nmode = \"allreduce\"\nparallel = {{ tp = 2, pp = 2 }}\n\
             worker = {{ cpu = 1, max = 7, requested = {requested}, \
             command = \"sh -c 'echo tp=$TRAINMASTER_TP pp=$TRAINMASTER_PP ep=$TRAINMASTER_EP; sleep 600'\" }}\n"
        );
        fs::write(&path, text).unwrap();
        daemon.ask(&["submit", path.to_str().unwrap()])
    };
    refuses(&submit(6), 1, &["worker.requested", "6 isn't one of the job's sizes (multiples of 4); ask for 4"]);
    assert!(submit(4).status.success());
    explains(&daemon, "cut", "planned 4w+0p on a\n");
    explains(&daemon, "cut", "may have 4w+0p to 4w+0p, with multiples of 4 workers; requested 4w+0p");
    are_told(&state.join("adapters/local/logs/1-cut"), "tp=2 pp=2 ep=1", 4);
    daemon.works(&["cancel", "cut"]);
    daemon.works(&["watch", "--until-idle"]);
    assert_eq!(daemon.terminate(), Some(0));
}

#[test]
fn a_run_waits_for_its_daemon_and_calls_no_other() {
    let folder = TempDir::new().unwrap();
    let [cluster, state, end] = ["cluster.toml", "state", "end"].map(|name| folder.path().join(name));
    fs::write(&cluster, "[[server]]\nname = \"a\"\ncpu = 8\nmemory = \"1GiB\"\n").unwrap();
    let adapter = format!("local={}", cluster.display());
    let listen = format!("127.0.0.1:{}", trainmaster_conformance::free_port());
    let start = |state: &Path| Served::at(&listen, &adapter, state, &["--engine", "fifo"]);
    let daemon = start(&state);
    // It also ends with this test.
    let script = format!("while [ -d {} ] && [ ! -e {} ]; do sleep 0.1; done", folder.path().display(), end.display());
    let run = |name: &str| {
        let url = format!("http://{listen}");
        let mut command = trainmaster(&["--server", &url, "run", "--name", name, "--", "sh", "-c", &script]);
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let said = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        (child, said)
    };
    let (mut first, mut said) = run("first");
    assert!(said.any(|line| line.contains("job 1: running")));
    drop(daemon);
    assert!(said.any(|line| line.contains("the daemon is away; job 1 goes on")));
    // Another user's program takes over the address. It would get the administrator's token.
    let other = TcpListener::bind(&listen).unwrap();
    other.set_nonblocking(true).unwrap();
    sleep(Duration::from_secs(4));
    assert_eq!(other.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    drop(other);

    let daemon = start(&state);
    let (mut second, mut said_too) = run("second");
    assert!(said_too.any(|line| line.contains("job 2: running")));
    fs::write(&end, "").unwrap();
    let said: Vec<String> = said.collect();
    assert!(first.wait().unwrap().success(), "{said:#?}");
    assert!(second.wait().unwrap().success());

    // A daemon that doesn't know the job.
    fs::remove_file(end).unwrap();
    let (mut third, mut said) = run("third");
    assert!(said.any(|line| line.contains("job 3: running")));
    drop(daemon);
    let _daemon = start(&folder.path().join("other"));
    assert!(said.any(|line| line.contains("job 3 (third) isn't known to the daemon any more")));
    assert_eq!(third.wait().unwrap().code(), Some(1));
}

#[test]
fn a_wait_outlives_its_daemon_and_calls_no_other() {
    let folder = TempDir::new().unwrap();
    let state = folder.path().join("state");
    let listen = format!("127.0.0.1:{}", trainmaster_conformance::free_port());
    let start = || Served::at(&listen, "none", &state, &[]);
    let daemon = start();
    daemon.works(&["submit", &job_file(folder.path())]);
    daemon.works(&["pause", "first"]);
    let mut command = trainmaster(&["--server", &daemon.url, "wait", "first"]);
    let mut waiting = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(waiting.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(said.any(|line| line.contains("job 1 (first) is paused: held by a person")));
    drop(daemon);
    assert!(said.any(|line| line.contains("the daemon is away")));
    // Another user's program would get the administrator's token.
    let other = TcpListener::bind(&listen).unwrap();
    other.set_nonblocking(true).unwrap();
    sleep(Duration::from_secs(3));
    assert_eq!(other.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    drop(other);
    let daemon = start();
    daemon.works(&["cancel", "first"]);
    let output = waiting.wait_with_output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.starts_with("job 1 (first) cancelled: cancelled from ") && said.lines().count() == 1, "{said}");
    assert_eq!(output.status.code(), Some(1));
    // It is still kept.
    let ended = daemon.ask(&["wait", "1"]);
    assert_eq!((ended.status.code(), ended.stdout), (Some(1), said.into_bytes()));
}

#[test]
fn a_job_with_a_range_of_batches_is_told_its_batch() {
    let folder = TempDir::new().unwrap();
    let cluster = folder.path().join("cluster.toml");
    fs::write(&cluster, "[[server]]\nname = \"a\"\ncpu = 8\nmemory = \"1GiB\"\n").unwrap();
    let state = folder.path().join("state");
    let daemon = Served::with(&format!("local={}", cluster.display()), &state, &["--engine", "fifo"]);
    let path = folder.path().join("job.toml");
    let submit = |mode: &str, batch: &str| {
        let server = if mode == "allreduce" { "" } else { "server = { cpu = 1 }\n" };
        let text = format!(
            "name = \"free\"\nmode = \"{mode}\"\n{batch}\n{server}\
             worker = {{ cpu = 1, max = 3, requested = 3, command = \"sh -c 'echo batch=$TRAINMASTER_BATCH \
             of=$TRAINMASTER_BATCH_SUBMITTED local=$TRAINMASTER_BATCH_LOCAL passes=$TRAINMASTER_BATCH_PASSES.; \
             sleep 600'\" }}\n"
        );
        fs::write(&path, text).unwrap();
        daemon.ask(&["submit", path.to_str().unwrap()])
    };
    for (batch, parts) in [
        ("batch = { max = 64 }", ["batch.size", "is missing"]),
        ("batch = { size = 0, max = 64 }", ["batch.size", "0 must be a whole number of examples, at least 1"]),
        ("batch = { size = 64, max = 32 }", ["batch.max", "32 must be at least the submitted batch, 64"]),
        ("batch = { size = 64, min = 65 }", ["batch.min", "65 must be at most the submitted batch, 64"]),
        ("batch = { size = 2, max = 2 }", ["batch.max", "2 must be at least 3, so that each replica has an example"]),
        (
            "batch = { size = 64, local = 0 }",
            ["batch.local", "\"0\" must be a whole number of examples from 1 to 2^40"],
        ),
        ("batch = { size = 64, max = 1e9 }", ["batch.max", "must be a whole number of examples"]),
        ("batch = { size = 64, most = 128 }", ["batch.most", "unknown key; allowed are size, min, max, local"]),
        ("batch = \"large\"", ["batch", "\"large\" must be a number of examples, or a table such as"]),
        ("batch = { size = 64, max = 1099511627777 }", ["batch.max", "from 1 to 2^40"]),
        ("batch = { size = 64, max = 1099511627776, local = 1 }", ["batch.local", "1 is too few"]),
    ] {
        refuses(&submit("allreduce", batch), 1, &parts);
    }
    let words = "an async job's workers have separate batches";
    refuses(&submit("async", "batch = { size = 64, max = 128 }"), 1, &["batch.max", words]);
    assert!(submit("allreduce", "batch = { size = 64, max = 4096, local = 16 }").status.success());
    explains(&daemon, "free", "batch 66, of 64 to 4096 (2 passes of 11 on each replica): its program has reported no");
    are_told(&state.join("adapters/local/logs/1-free"), "batch=66 of=64 local=11 passes=2.", 3);
    daemon.works(&["cancel", "free"]);
    daemon.works(&["watch", "--until-idle"]);
    assert_eq!(daemon.terminate(), Some(0));
}

#[test]
fn a_job_leaves_a_server_that_is_missing_after_a_restart() {
    let folder = TempDir::new().unwrap();
    let server = |name: &str| format!("[[server]]\nname = \"{name}\"\ncpu = 2\nmemory = \"1GiB\"\n");
    let cluster = folder.path().join("cluster.toml");
    fs::write(&cluster, ["a", "b", "c", "d"].map(server).concat()).unwrap();
    let (adapter, state) = (format!("local={}", cluster.display()), folder.path().join("state"));
    let config = folder.path().join("config.toml");
    let rules = "[scheduler.stability]\nmin_run = \"0s\"\npayback = 0.0\nrescales_per_hour = 1000\n";
    fs::write(
        &config,
        format!("[scheduler]\nengine = \"optimus\"\n{rules}[scheduler.parameters]\ninterval = \"1s\"\n"),
    )
    .unwrap();
    let config = ["--config", config.to_str().unwrap()];
    let daemon = Served::with(&adapter, &state, &config);
    let submit = |daemon: &Served, name: &str, counts: &str| {
        let path = folder.path().join(name);
        let text = format!(
            "name = \"{name}\"\nmode = \"allreduce\"\n\
             worker = {{ cpu = 1, {counts}, command = \"sleep 600\" }}\n"
        );
        fs::write(&path, text).unwrap();
        daemon.works(&["submit", path.to_str().unwrap()]);
        until_state(daemon, name, "running");
    };
    submit(&daemon, "one", "max = 6");
    explains(&daemon, "one", "planned 6w+0p on a, b, c\n");
    submit(&daemon, "two", "min = 2");
    explains(&daemon, "two", "planned 2w+0p on d\n");
    assert_eq!(daemon.terminate(), Some(0));
    // The first job has to make room for the second one, which has to leave the missing server.
    fs::write(&cluster, ["a", "b"].map(server).concat()).unwrap();
    let daemon = Served::with(&adapter, &state, &config);
    explains(&daemon, "two", "planned 2w+0p on b\n");
    until_state(&daemon, "two", "running");
    for name in ["one", "two"] {
        daemon.works(&["cancel", name]);
    }
    daemon.works(&["watch", "--until-idle"]);
    assert_eq!(daemon.terminate(), Some(0));
}

/// Waits until a job is in a state.
fn until_state(daemon: &Served, job: &str, wanted: &str) {
    let end = Instant::now() + Duration::from_secs(600);
    loop {
        let jobs = daemon.json(&["jobs"]);
        let jobs = jobs["jobs"].as_array().unwrap();
        let found = jobs.iter().find(|found| found["name"] == job);
        if found.is_some_and(|found| found["state"] == wanted) {
            return;
        }
        assert!(Instant::now() < end, "{job} isn't {wanted}: {jobs:?}");
        sleep(Duration::from_millis(100));
    }
}

#[test]
fn jobs_stay_in_a_rack_of_the_cluster_file() {
    let folder = TempDir::new().unwrap();
    let server = |name: &str, rack: &str| {
        format!("[[server]]\nname = \"{name}\"\ncpu = 2\nmemory = \"1GiB\"\nlabels = {{ rack = \"{rack}\" }}\n")
    };
    let cluster = folder.path().join("cluster.toml");
    fs::write(&cluster, [server("a", "r1"), server("b", "r2"), server("c", "r2")].concat()).unwrap();
    let adapter = format!("local={}", cluster.display());
    let daemon = Served::with(&adapter, &folder.path().join("state"), &["--engine", "fifo"]);
    let submit = |name: &str, workers: u32| {
        let path = folder.path().join(name);
        let text = format!(
            "name = \"{name}\"\nmode = \"allreduce\"\ntopology = {{ require = \"rack\" }}\n\
             worker = {{ cpu = 1, min = {workers}, command = \"sleep 600\" }}\n"
        );
        fs::write(&path, text).unwrap();
        daemon.ask(&["submit", path.to_str().unwrap()])
    };
    let until = |job: &str, words: &str| explains(&daemon, job, words);
    assert!(submit("two", 2).status.success());
    until("two", "planned 2w+0p on a\n");
    assert!(submit("three", 3).status.success());
    until("three", "planned 3w+0p on b, c\n");
    until("three", "its slots may only be in rack r2: it requires one rack; 1 cpu are free there, 3 are requested");
    assert!(submit("waits", 2).status.success());
    until("waits", "needs 2 cpu; the cluster has 1 left of 6");
    let words = "all slots must be in one rack, and the smallest shape needs 5 cpu; the largest rack has 4 (rack r2)";
    refuses(&submit("five", 5), 1, &[words]);
    for job in ["waits", "three", "two"] {
        daemon.works(&["cancel", job]);
    }
    daemon.works(&["watch", "--until-idle"]);
    assert_eq!(daemon.terminate(), Some(0));
}

#[test]
fn a_daemon_remembers_and_has_its_folder_for_itself() {
    let folder = TempDir::new().unwrap();
    let state = folder.path().join("state");
    let first = Served::start(&state, &[]);
    first.works(&["submit", &job_file(folder.path())]);
    let second = ["serve", "--listen", "127.0.0.1:0", "--adapter", "none", "--state-dir", state.to_str().unwrap()];
    let output = trainmaster(&second).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(first.terminate(), Some(0));
    let again = Served::start(&state, &[]);
    assert_eq!(again.json(&["jobs"])["jobs"][0]["name"], "first");
}

#[test]
fn one_token_file_serves_both_ends() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("token");
    private(&file, &format!("{TOKEN}\n"));
    let token = ["--token-file", file.to_str().unwrap()];
    let daemon = Served::start(&folder.path().join("state"), &token);
    // Commands find this user's daemon with its token, but no other user's.
    daemon.works(&["jobs"]);
    daemon.works(&[&["jobs"][..], &token].concat());
    let other = TempDir::new().unwrap();
    let stranger = trainmaster(&["--server", &daemon.url, "jobs"]).env("XDG_STATE_HOME", other.path()).output();
    refuses(&stranger.unwrap(), 1, &["token", "--token-file"]);
}

#[test]
fn the_clients_variable_does_not_make_a_token_the_administrators() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("token");
    private(&file, &format!("{TOKEN}\n"));
    let state = folder.path().join("state");
    let mut command = Served::command("127.0.0.1:0", "none", &state, &[]);
    command.env("TRAINMASTER_TOKEN_FILE", &file);
    let daemon = Served::of(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap());
    refuses(&daemon.ask(&["--token-file", file.to_str().unwrap(), "jobs"]), 1, &["this token is not known"]);
    daemon.works(&["--token-file", state.join("admin.token").to_str().unwrap(), "jobs"]);
}

#[test]
fn a_first_start_makes_a_token_that_only_its_owner_reads() {
    let folder = TempDir::new().unwrap();
    let state = folder.path().join("state");
    let daemon = Served::start(&state, &[]);
    let file = state.join("admin.token");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&state), mode(&file)), (0o700, 0o600));
    // The folder of discovery files is in the default state folder.
    assert_eq!(mode(&notes().join("trainmaster")), 0o700);
    let token = fs::read_to_string(&file).unwrap();
    daemon.works(&["status"]);
    assert_eq!(daemon.terminate(), Some(0));
    assert_eq!(
        fs::read_dir(notes().join("trainmaster/daemons")).map_or(0, |found| {
            found
                .filter(|entry| {
                    fs::read_to_string(entry.as_ref().unwrap().path()).unwrap().contains(state.to_str().unwrap())
                })
                .count()
        }),
        0,
        "a daemon that ended is noted"
    );

    // The same token is valid after a restart. A file that others can read is refused.
    let daemon = Served::start(&state, &[]);
    assert_eq!(fs::read_to_string(&file).unwrap(), token);
    drop(daemon);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let args = ["serve", "--listen", "127.0.0.1:0", "--adapter", "none", "--state-dir", state.to_str().unwrap()];
    refuses(&trainmaster(&args).output().unwrap(), 1, &["admin.token", "mode 644", "chmod 600"]);
}

#[test]
fn tokens_are_created_rotated_and_revoked_while_it_runs() {
    let folder = TempDir::new().unwrap();
    let daemon = Served::start(&folder.path().join("state"), &[]);
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let vision = file("vision");
    let said = daemon.works(&["token", "create", "vision", "--role", "submit", "--tenant", "vision", "--out", &vision]);
    let secret = fs::read_to_string(&vision).unwrap().trim().to_owned();
    assert!(said.contains("vision") && !said.contains(&secret), "{said}");
    let with = |args: &[&str]| daemon.ask(&[args, &["--token-file", &vision]].concat());
    assert!(with(&["submit", &job_file(folder.path())]).status.success());
    assert_eq!(daemon.json(&["jobs"])["jobs"][0]["tenant"], "vision");
    refuses(&with(&["mode", "paused"]), 1, &["vision", "role submit", "admin"]);

    let turned = file("turned");
    daemon.works(&["token", "rotate", "vision", "--out", &turned]);
    refuses(&with(&["jobs"]), 1, &["not known"]);
    let turned = ["--token-file", &turned];
    assert!(daemon.ask(&[&["jobs"][..], &turned].concat()).status.success());
    let listed = daemon.works(&["token", "list"]);
    assert!(listed.contains("vision") && listed.contains("submit") && !listed.contains("tm_"), "{listed}");
    daemon.works(&["token", "revoke", "vision"]);
    refuses(&daemon.ask(&[&["jobs"][..], &turned].concat()), 1, &["not known"]);

    // The administrator's own token can be rotated too, and the command line uses the new one.
    let before = fs::read_to_string(folder.path().join("state/admin.token")).unwrap();
    daemon.works(&["token", "rotate", "admin"]);
    assert_ne!(fs::read_to_string(folder.path().join("state/admin.token")).unwrap(), before);
    daemon.works(&["status"]);
    private(Path::new(&vision), &before);
    refuses(&with(&["status"]), 1, &["not known"]);
    refuses(&daemon.ask(&["token", "create", "a b", "--role", "read"]), 1, &["a b"]);
    refuses(
        &daemon.ask(&["token", "create", "x", "--role", "submit", "--tenant", "a b"]),
        1,
        &["tenant \"a b\"", "letters"],
    );
    // The check comes before a secret is created that could not be written.
    let there = ["token", "create", "x", "--role", "read", "--out"];
    refuses(&daemon.ask(&[&there[..], &[&vision]].concat()), 1, &["--out", "there already"]);
    refuses(&daemon.ask(&[&there[..], &["/"]].concat()), 1, &["--out", "folder"]);
    refuses(&daemon.ask(&[&there[..], &["/nowhere/x"]].concat()), 1, &["--out", "/nowhere"]);
    assert_eq!(daemon.ask(&["token", "create", "x", "--role", "read", "--lasts", "0s"]).status.code(), Some(2));
    assert!(!daemon.works(&["token", "list"]).contains("read"));
    refuses(&daemon.ask(&["token", "create", "x", "--role", "submit"]), 1, &["tenant"]);
    refuses(&daemon.ask(&["token", "revoke", "nobody"]), 1, &["nobody"]);
}

#[test]
fn certificates_identify_callers_until_they_are_revoked() {
    let folder = TempDir::new().unwrap();
    let certs = folder.path().join("certs");
    let at = |name: &str| certs.join(name).to_str().unwrap().to_owned();
    let make_in = |dir: &Path, args: &[&str]| {
        let made =
            trainmaster(&[&["certs"], args, &["--json", "--dir", dir.to_str().unwrap()]].concat()).output().unwrap();
        assert!(made.status.success(), "{args:?}: {}", String::from_utf8_lossy(&made.stderr));
        serde_json::from_slice::<Value>(&made.stdout).unwrap()
    };
    let make = |args: &[&str]| make_in(&certs, args);
    make(&["init"]);
    let clients = [&["root", "--role", "admin"][..], &["ci", "--role", "submit", "--tenant", "vision"]];
    let [root, ci] = clients.map(|args| make(&[&["client"], args].concat()));
    let configuration = folder.path().join("serve.toml");
    let [cert, key, ca, crl] = ["server.pem", "server-key.pem", "ca.pem", "crl.pem"].map(at);
    let tls = format!("[tls]\ncert = {cert:?}\nkey = {key:?}\nca = {ca:?}\nclient_ca = {ca:?}\nclient_crl = {crl:?}\n");
    fs::write(&configuration, tls).unwrap();
    let daemon = Served::start(&folder.path().join("state"), &["--config", configuration.to_str().unwrap()]);
    // Without a discovery file and a token, the certificate alone identifies the caller.
    let stranger = TempDir::new().unwrap();
    let with = |who: &Value, args: &[&str]| {
        let named = ["--cert", who["cert"].as_str().unwrap(), "--key", who["key"].as_str().unwrap(), "--ca", &ca];
        let mut command = trainmaster(&[&["--server", &daemon.url][..], &named, args].concat());
        command.env("XDG_STATE_HOME", stranger.path()).output().unwrap()
    };
    assert!(with(&ci, &["submit", &job_file(folder.path())]).status.success());
    refuses(&with(&ci, &["mode", "paused"]), 1, &["certificate ci", "role submit", "admin"]);
    let listed = with(&root, &["jobs", "--json"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(listed["jobs"][0]["tenant"], "vision");

    // A renewal is for the same names.
    let names = |made: &Value| made["names"].to_string();
    assert!(names(&make(&["init", "--host", "scheduler.example.org"])).contains("scheduler.example.org"));
    assert!(names(&make(&["init"])).contains("scheduler.example.org"));
    let wrong = trainmaster(&["certs", "init", "--host", "a b", "--dir", certs.to_str().unwrap()]).output().unwrap();
    refuses(&wrong, 1, &["--host \"a b\""]);
    // An address without https, and a certificate authority that isn't trusted.
    for (url, hint) in [(daemon.url.replace("https", "http"), "write https://"), (daemon.url.clone(), "--ca")] {
        let mut command = trainmaster(&["--server", &url, "status"]);
        let output = command.env("XDG_STATE_HOME", stranger.path()).output().unwrap();
        assert!(String::from_utf8_lossy(&output.stderr).contains(hint), "{output:?}");
    }

    make(&["revoke", "ci"]);
    let began = Instant::now();
    while with(&ci, &["jobs"]).status.success() {
        assert!(began.elapsed() < Duration::from_secs(600), "it is never refused");
        sleep(Duration::from_millis(200));
    }
    let said = |output: Output| String::from_utf8(output.stderr).unwrap();
    let revoked = said(with(&ci, &["jobs"]));
    assert!(revoked.contains("refuses this client's certificate"), "{revoked}");
    // An unreadable revocation list doesn't restore access.
    let list = fs::read(certs.join("crl.pem")).unwrap();
    for text in ["garbage", ""] {
        fs::write(certs.join("crl.pem"), text).unwrap();
        sleep(Duration::from_millis(2500));
        assert!(!with(&ci, &["jobs"]).status.success(), "{text:?}");
    }
    fs::write(certs.join("crl.pem"), list).unwrap();
    assert!(with(&root, &["mode", "paused"]).status.success());
    // A certificate of another authority.
    let elsewhere = folder.path().join("elsewhere");
    make_in(&elsewhere, &["init"]);
    let other = make_in(&elsewhere, &["client", "root", "--role", "admin"]);
    let refused = with(&other, &["mode", "active"]);
    assert!(!refused.status.success());
    assert!(said(refused).contains("refuses this client's certificate"));
    assert_eq!(serde_json::from_slice::<Value>(&with(&root, &["status", "--json"]).stdout).unwrap()["mode"], "paused");
}

#[test]
fn a_configuration_that_makes_no_sense_is_named() {
    let folder = TempDir::new().unwrap();
    let state = folder.path().join("state");
    for (args, words) in [
        (&["--listen", "0.0.0.0:0"][..], &["0.0.0.0", "TLS", "certs"][..]),
        (&["--listen", "here"], &["here"]),
        (&["--engine", "optimum"], &["optimum", "optimus"]),
        (&["--set", "intervall=5s"], &["intervall", "interval"]),
        (&["--config", "nowhere.toml"], &["nowhere.toml"]),
        (&["--token-file", "nowhere"], &["nowhere"]),
    ] {
        let output =
            trainmaster(&[&["serve", "--state-dir", state.to_str().unwrap()], args].concat()).output().unwrap();
        refuses(&output, 1, words);
    }
    let twice = trainmaster(&["serve", "--tls-cert", "c.pem"]).output().unwrap();
    assert_eq!(twice.status.code(), Some(2));
}
