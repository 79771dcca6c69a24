//! `trainmaster serve` and the commands against it, run as a user runs them. No manager is attached: jobs wait.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Output, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

const TOKEN: &str = "0123456789abcdef";

fn trainmaster(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trainmaster"));
    command
        .args(args)
        .env_remove("TRAINMASTER_SERVER")
        .env_remove("TRAINMASTER_TOKEN_FILE")
        .env_remove("TRAINMASTER_LOG");
    command
}

/// A daemon on a free port, ended with the test.
struct Served {
    child: Child,
    url: String,
}

impl Served {
    fn start(state: &Path, more: &[&str]) -> Self {
        let args = ["serve", "--json", "--listen", "127.0.0.1:0", "--adapter", "none", "--state-dir"];
        let mut command = trainmaster(&[&args[..], &[state.to_str().unwrap()], more].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let serving: Value = serde_json::from_str(&line).expect("a line that says where it serves");
        Self { child, url: serving["url"].as_str().unwrap().to_owned() }
    }

    fn ask(&self, args: &[&str]) -> Output {
        trainmaster(&[&["--server", &self.url], args].concat()).output().unwrap()
    }

    #[track_caller]
    fn works(&self, args: &[&str]) -> String {
        let output = self.ask(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    #[track_caller]
    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.works(&[args, &["--json"]].concat())).unwrap()
    }

    /// As a service manager ends it.
    fn terminate(mut self) -> Option<i32> {
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
fn refuses(output: &Output, code: i32, words: &[&str]) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    for word in words {
        assert!(text.contains(word), "{word:?} isn't in: {text}");
    }
}

#[test]
fn a_job_lives_from_submit_to_cancel() {
    let folder = TempDir::new().unwrap();
    let daemon = Served::start(&folder.path().join("state"), &["--engine", "fifo"]);
    let submitted = daemon.json(&["submit", &job_file(folder.path())]);
    assert_eq!((&submitted["job"], &submitted["name"]), (&1.into(), &"first".into()));
    assert!(submitted["token"].as_str().unwrap().len() >= 16, "{submitted}");
    refuses(&daemon.ask(&["submit", &job_file(folder.path())]), 1, &["error: first: ", "\"first\""]);

    let jobs = daemon.json(&["jobs"]);
    assert_eq!((&jobs["engine"], &jobs["jobs"][0]["state"]), (&"fifo".into(), &"waiting".into()));
    assert!(daemon.works(&["jobs"]).contains("first"));
    let explained = daemon.json(&["explain", "first"]);
    assert_eq!((&explained["job"], &explained["findings"][0]["blocks"]), (&1.into(), &true.into()));
    assert!(daemon.works(&["explain", "1"]).starts_with('✗'));

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
    fs::write(&file, format!("{TOKEN}\n")).unwrap();
    let token = ["--token-file", file.to_str().unwrap()];
    let daemon = Served::start(&folder.path().join("state"), &token);
    refuses(&daemon.ask(&["jobs"]), 1, &["token", "--token-file"]);
    daemon.works(&[&["jobs"][..], &token].concat());
}

#[test]
fn a_configuration_that_makes_no_sense_is_named() {
    let folder = TempDir::new().unwrap();
    let state = folder.path().join("state");
    for (args, words) in [
        (&["--listen", "0.0.0.0:0"][..], &["0.0.0.0", "TLS", "token"][..]),
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
