//! The commands that call a daemon, run like by a user.

mod daemon;

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::Value;
use tempfile::TempDir;

use self::daemon::Daemon;

const JOB: &str = "mode = \"sync\"\nbatch = 64\nworker = { cpu = 1, max = 4 }\nserver = { cpu = 1, max = 4 }\n";

struct Ran {
    code: i32,
    out: String,
    err: String,
}

impl Ran {
    #[track_caller]
    fn works(self) -> String {
        assert_eq!((self.code, &*self.err), (0, ""), "{}", self.out);
        self.out
    }

    #[track_caller]
    fn json(self) -> Value {
        serde_json::from_str(&self.works()).expect("one JSON document")
    }

    /// Asserts that the command failed with this code and a message of one line with all of these words.
    #[track_caller]
    fn fails(self, code: i32, words: &[&str]) {
        assert_eq!(self.code, code, "{}{}", self.out, self.err);
        for word in words {
            assert!(self.err.contains(word), "{word:?} isn't in: {}", self.err);
        }
        assert!(self.err.starts_with("error: ") && self.err.lines().count() == 1, "{}", self.err);
    }
}

fn command(server: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trainmaster"));
    command.args(args).env("TRAINMASTER_SERVER", server).env_remove("TRAINMASTER_TOKEN_FILE");
    command
}

fn trainmaster(server: &str, args: &[&str]) -> Ran {
    finish(command(server, args).output().unwrap())
}

fn finish(output: std::process::Output) -> Ran {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
}

fn job_file(folder: &Path, name: &str) -> PathBuf {
    let path = folder.join(format!("{name}.toml"));
    fs::write(&path, format!("name = \"{name}\"\n{JOB}")).unwrap();
    path
}

fn submit(daemon: &Daemon, name: &str) -> Value {
    let folder = TempDir::new().unwrap();
    let file = job_file(folder.path(), name);
    trainmaster(&daemon.address, &["submit", file.to_str().unwrap(), "--json"]).json()
}

#[test]
fn a_job_is_submitted_listed_explained_and_cancelled() {
    let daemon = Daemon::start(None);
    let at = |args: &[&str]| trainmaster(&daemon.address, args);
    assert!(at(&["jobs"]).works().contains("no jobs; engine optimus, active, decision 7, the next now"));

    let submitted = submit(&daemon, "first");
    assert_eq!((&submitted["job"], &submitted["token"]), (&1.into(), &Value::Null), "nobody asked for the token");

    daemon.set(|jobs| {
        let job = &mut jobs[0];
        (job.state, job.reason) = ("running".into(), String::new());
        (job.workers, job.servers, job.step, job.epoch) = (3, 2, 1200, 12);
        (job.loss, job.speed, job.remaining_ms) = (Some(0.25), Some(4.5), Some(90_000));
        job.predicted_epochs = Some(46.0);
    });
    let table = at(&["jobs"]).works();
    for word in ["first", "running", "3w+2p", "12/~46", "1200", "0.2500", "in 1m 30s", "4.50", "1 job"] {
        assert!(table.contains(word), "{word} isn't in\n{table}");
    }
    assert!(!table.contains('\u{1b}'), "colours in a pipe: {table:?}");
    let list = at(&["jobs", "--json"]).json();
    assert_eq!((&list["decision"], &list["jobs"][0]["speed"]), (&7.into(), &4.5.into()));
    assert!(list["jobs"][0]["reason"].is_null() && list["next_decision_ms"] == 1, "{list}");

    let explained = at(&["explain", "first"]).works();
    assert!(explained.find("paused") < explained.find("may have"), "{explained}");
    assert_eq!(at(&["explain", "1", "--json"]).json()["findings"][0]["blocks"], true);

    assert!(at(&["pause", "first"]).works().contains("job first paused"));
    assert!(at(&["jobs"]).works().contains("held"));
    at(&["resume", "1"]).works();
    assert!(at(&["jobs"]).works().contains("resumed"));

    at(&["cancel", "1"]).works();
    assert!(at(&["jobs"]).works().starts_with("no jobs"));
    assert_eq!(at(&["jobs", "--all", "--json"]).json()["jobs"][0]["state"], "cancelled");
}

#[test]
fn jobs_are_chosen_by_state_and_owner() {
    let daemon = Daemon::start(None);
    for name in ["first", "second", "third"] {
        submit(&daemon, name);
    }
    daemon.set(|jobs| {
        jobs[0].tenant = "vision".into();
        (jobs[1].tenant, jobs[1].state) = ("vision".into(), "running".into());
        jobs[2].tenant = "speech".into();
    });
    let names = |args: &[&str]| {
        let list = trainmaster(&daemon.address, &[&["jobs", "--json"], args].concat()).json();
        let names = list["jobs"].as_array().unwrap().iter().map(|job| job["name"].as_str().unwrap().to_owned());
        names.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(names(&["--tenant", "vision", "--state", "waiting"]), "first");
    assert_eq!(names(&["--sort", "tenant"]), "third first second");
    assert!(trainmaster(&daemon.address, &["jobs", "--wide"]).works().contains("speech"));

    let at = |args: &[&str]| trainmaster(&daemon.address, args);
    assert_eq!(at(&["cancel"]).code, 2, "nobody cancels all jobs by accident");
    assert_eq!(at(&["cancel", "--all", "first"]).code, 2);
    assert_eq!(at(&["cancel", "--tenant", "vision", "third"]).code, 2);
    assert_eq!(at(&["pause", "--queue", ""]).works().lines().count(), 3);
    assert_eq!(at(&["resume", "3"]).works(), "job 3 resumed\n");
    assert_eq!(at(&["resume", "--all"]).works(), "job 1 resumed\njob 2 resumed\n", "only those that are paused");
    assert_eq!(at(&["cancel", "--tenant", "vision"]).works(), "job 1 cancelled\njob 2 cancelled\n");
    let none = at(&["cancel", "--tenant", "vision"]);
    assert_eq!((none.code, &*none.err), (0, "note: no active job of tenant vision\n"));
    assert_eq!(at(&["cancel", "--all"]).works(), "job 3 cancelled\n");
}

#[test]
fn nodes_show_what_is_free_and_whose_the_rest_is() {
    let daemon = Daemon::start(None);
    let table = trainmaster(&daemon.address, &["nodes"]).works();
    for word in ["node-1", "2/4", "5.5/8", "first (2w+1p)", "node-2 (draining)", "4 slots of other jobs"] {
        assert!(table.contains(word), "{word} isn't in\n{table}");
    }
    let nodes = trainmaster(&daemon.address, &["nodes", "--free", "--json"]).json();
    assert_eq!((nodes["nodes"].as_array().unwrap().len(), &nodes["nodes"][0]["free"]["gpu"]), (1, &2000.into()));
    assert_eq!(trainmaster(&daemon.address, &["nodes", "--label", "zone=a"]).works(), "no nodes\n");
    assert_eq!(trainmaster(&daemon.address, &["nodes", "--label", "zone"]).code, 2);
}

#[test]
fn waiting_ends_with_the_jobs() {
    let daemon = Daemon::start(None);
    submit(&daemon, "first");
    submit(&daemon, "second");
    let at = |args: &[&str]| trainmaster(&daemon.address, args);
    at(&["wait", "nope"]).fails(1, &["there is no job \"nope\""]);
    at(&["wait", "first", "--timeout", "10ms"]).fails(1, &["timed out; not ended: first"]);
    assert_eq!(at(&["wait", "first", "--timeout", "5"]).code, 2);

    let mut waiting = command(&daemon.address, &["wait", "first", "2"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(waiting.stdout.take().unwrap()).lines();
    let end = |at: usize, state: &str| {
        daemon
            .set(|jobs| (jobs[at].state, jobs[at].reason, jobs[at].ended_ms) = (state.into(), String::new(), Some(1)));
    };
    end(0, "completed");
    assert_eq!(lines.next().unwrap().unwrap(), "job 1 (first) completed");
    end(1, "completed");
    assert_eq!(lines.next().unwrap().unwrap(), "job 2 (second) completed");
    assert!(lines.next().is_none() && waiting.wait().unwrap().success());

    end(1, "failed");
    let ran = at(&["wait", "first", "second"]);
    assert!(ran.out.contains("job 2 (second) failed"), "{}", ran.out);
    assert_eq!((ran.code, &*ran.err), (1, "error: not completed: second\n"));
}

#[test]
fn shells_complete_commands_of_adapters_too() {
    for shell in ["bash", "zsh", "fish"] {
        let script = trainmaster("", &["completions", shell]).works();
        assert!(script.contains("nodes") && script.contains("slurm") && script.contains("token-file"), "{shell}");
    }
    assert_eq!(trainmaster("", &["completions", "cmd"]).code, 2);
}

#[test]
fn refusals_are_said_without_noise() {
    let daemon = Daemon::start(None);
    submit(&daemon, "first");
    let at = |args: &[&str]| trainmaster(&daemon.address, args);
    at(&["explain", "nope"]).fails(1, &["error: job \"nope\" isn't known\n"]);
    at(&["plan", "--dry-run", "--engine", "oracle"]).fails(1, &["error: engine \"oracle\" isn't known; there are"]);
    // The other jobs are cancelled.
    let ran = at(&["cancel", "nope", "first"]);
    assert_eq!(ran.out, "job first cancelled\n");
    ran.fails(1, &["nope"]);
}

#[test]
fn a_mistake_in_one_job_file_submits_none() {
    let daemon = Daemon::start(None);
    let folder = TempDir::new().unwrap();
    let good = job_file(folder.path(), "good");
    let bad = folder.path().join("bad.toml");
    fs::write(&bad, "name = \"bad\"\nworker = { memory = 10 }\nserver = { cpu = 1 }\n").unwrap();
    let both = ["submit", good.to_str().unwrap(), bad.to_str().unwrap()];
    trainmaster(&daemon.address, &both).fails(1, &["bad.toml", "worker.memory", "10GiB"]);
    assert!(trainmaster(&daemon.address, &["jobs"]).works().starts_with("no jobs"));
    fs::write(&bad, "name = \"bad\"\n\nworkers = {}\n").unwrap();
    trainmaster(&daemon.address, &both).fails(1, &["bad.toml", "line 3", "workers"]);
    trainmaster(&daemon.address, &["submit", "nowhere.toml"]).fails(1, &["nowhere.toml can't be read"]);

    let twice = ["submit", good.to_str().unwrap(), good.to_str().unwrap()];
    let ran = trainmaster(&daemon.address, &twice);
    assert_eq!(ran.out, "job 1 (good) submitted; next decision now\n");
    ran.fails(1, &["good: a job of this name is active"]);
}

#[test]
fn a_jobs_token_is_shown_on_request() {
    let daemon = Daemon::start(None);
    let folder = TempDir::new().unwrap();
    let submit = |name: &str, more: &[&str]| {
        let file = job_file(folder.path(), name);
        trainmaster(&daemon.address, &[&["submit", "--show-token", file.to_str().unwrap()], more].concat())
    };
    let told = submit("good", &[]).works();
    assert_eq!(told, "job 1 (good) submitted; next decision now; its token, shown this once: secret-1\n");
    assert_eq!(submit("better", &["--json"]).json()["token"], "secret-2");
}

#[test]
fn texts_of_others_do_not_control_the_terminal() {
    let daemon = Daemon::start(None);
    submit(&daemon, "first");
    daemon.set(|jobs| jobs[0].state = "rejected".into());
    daemon.set(|jobs| jobs[0].reason = "\u{1b}]0;owned\u{7}\u{1b}[2J wait \u{202e}evil\r\n#".into());
    let wait = ["wait", "first", "--timeout", "1ms"];
    for args in [&["jobs"][..], &["explain", "first"], &["cancel", "\u{1b}[2J"], &["nodes"], &wait] {
        let ran = trainmaster(&daemon.address, args);
        let shown = format!("{}{}", ran.out, ran.err);
        let moves = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert!(!shown.contains(moves), "{args:?}: {shown:?}");
    }
    assert!(trainmaster(&daemon.address, &["jobs"]).works().contains("owned"));
    assert!(trainmaster(&daemon.address, &["jobs", "--json"]).json()["jobs"][0]["reason"].is_string());
}

#[test]
fn standard_input_is_a_file_too() {
    let daemon = Daemon::start(None);
    let mut command = command(&daemon.address, &["submit", "-"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(format!("name = \"piped\"\n{JOB}").as_bytes()).unwrap();
    assert!(finish(child.wait_with_output().unwrap()).works().contains("job 1 (piped) submitted"));
}

#[test]
fn without_a_daemon_the_exit_code_is_3() {
    for args in [&["jobs"][..], &["cancel", "1"], &["watch"], &["status"], &["mode", "paused"], &["plan", "--dry-run"]]
    {
        trainmaster("http://127.0.0.1:1", args).fails(3, &["no daemon at http://127.0.0.1:1", "`trainmaster serve`"]);
    }
    trainmaster("ftp://127.0.0.1", &["jobs"]).fails(2, &["--server", "ftp://127.0.0.1", "http"]);
}

#[test]
fn the_token_is_shown_from_its_file() {
    let daemon = Daemon::start(Some("open-sesame-and-close"));
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("token");
    let with = |text: &str| {
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        trainmaster(&daemon.address, &["jobs", "--token-file", file.to_str().unwrap()])
    };
    with("open-sesame-and-close\n").works();
    with("wrong-sesame-and-close").fails(1, &["wrong token", "--token-file"]);
    with("\n").fails(1, &["is empty"]);
    trainmaster(&daemon.address, &["jobs"]).fails(1, &["--token-file"]);
    for mode in [0o604, 0o620, 0o777] {
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        let open = trainmaster(&daemon.address, &["jobs", "--token-file", file.to_str().unwrap()]);
        open.fails(1, &[&format!("has mode {mode:o}, so others can read or change it"), "chmod 600"]);
    }
}

#[test]
fn the_mode_is_shown_and_set() {
    let daemon = Daemon::start(None);
    let at = |args: &[&str]| trainmaster(&daemon.address, args);
    assert!(at(&["mode"]).works().starts_with("active"));
    assert!(at(&["mode", "shadow"]).works().contains("was active"));
    assert_eq!(at(&["mode", "--json"]).json()["mode"], "shadow");
    assert_eq!(at(&["status", "--json"]).json()["mode"], "shadow");
    let status = at(&["status"]).works();
    assert!(status.contains("1.5s ago") && status.contains("local"), "{status}");
    assert_eq!(at(&["mode", "off"]).code, 2);
}

#[test]
fn a_dry_run_is_asked_for_by_name() {
    let daemon = Daemon::start(None);
    assert!(trainmaster(&daemon.address, &["plan"]).works().contains("nothing was changed"));
    let plan = trainmaster(&daemon.address, &["plan", "--dry-run", "--engine", "fifo", "--json"]).json();
    assert_eq!((&plan["engine"], &plan["changes"][0]["after"]), (&"fifo".into(), &"2w+1p on node1".into()));
    assert!(plan["changes"][0]["reason"].is_null(), "{plan}");
    assert!(trainmaster(&daemon.address, &["plan", "--dry-run"]).works().contains("nothing was changed"));
}

#[test]
fn watching_a_job_ends_with_it() {
    let daemon = Daemon::start(None);
    submit(&daemon, "first");
    submit(&daemon, "second");
    let none = trainmaster(&daemon.address, &["watch", "third"]);
    assert_eq!((none.code, none.err.contains("there is no job \"third\"")), (1, true), "{}", none.err);
    assert_eq!(trainmaster(&daemon.address, &["watch", "first", "--until-idle"]).code, 2);
    let mut watch = command(&daemon.address, &["watch", "first"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.next().unwrap().starts_with("job 1 (first): waiting"));
    daemon.set(|jobs| (jobs[0].ended_ms, jobs[0].state) = (Some(1), "completed".into()));
    let rest: Vec<String> = lines.collect();
    assert!(watch.wait().unwrap().success());
    assert!(rest.last().unwrap().starts_with("job 1 (first): completed"), "{rest:?}");
    assert!(rest.iter().all(|line| !line.contains("second")), "{rest:?}");
}

#[test]
fn top_shows_the_cluster_and_the_jobs() {
    let daemon = Daemon::start(None);
    submit(&daemon, "first");
    let text = trainmaster(&daemon.address, &["top"]).works();
    assert!(text.starts_with("CLUSTER") && text.contains("first"), "{text}");
    let top = trainmaster(&daemon.address, &["top", "--json"]).json();
    // The draining server doesn't count.
    let gpus = top["resources"].as_array().unwrap().iter().find(|resource| resource["name"] == "gpu").unwrap();
    assert_eq!((&gpus["capacity"], &gpus["used"]), (&4000.into(), &2000.into()), "{top}");
    assert_eq!((&top["jobs"][0]["name"], &top["tenants"][0]["waiting"]), (&"first".into(), &1.into()));
    assert_eq!(trainmaster(&daemon.address, &["top", "--every", "1ms"]).code, 2);
}

#[test]
fn watching_ends_when_no_job_is_left() {
    let daemon = Daemon::start(None);
    submit(&daemon, "first");
    let spawn = |args: &[&str]| command(&daemon.address, args).stdout(Stdio::piped()).spawn().unwrap();
    let mut watches = [&["watch", "--until-idle"][..], &["watch", "--until-idle", "--all", "--json"]].map(spawn);
    let mut outputs = watches.each_mut().map(|watch| BufReader::new(watch.stdout.take().unwrap()).lines());
    let mut printed = [String::new(), String::new()];
    // Reads what both print, up to a line with this word or to their ends.
    let mut read_to = |word: Option<&str>| {
        for (output, printed) in outputs.iter_mut().zip(&mut printed) {
            for line in output.map(Result::unwrap) {
                *printed += &format!("{line}\n");
                if word.is_some_and(|word| line.contains(word)) {
                    break;
                }
            }
        }
    };
    read_to(Some("waiting"));
    for epoch in 1..=3 {
        daemon.set(|jobs| (jobs[0].epoch, jobs[0].state) = (epoch, "running".into()));
        read_to(Some("running"));
    }
    daemon.set(|jobs| (jobs[0].ended_ms, jobs[0].state) = (Some(1), "completed".into()));
    read_to(None);
    assert!(watches.iter_mut().all(|watch| watch.wait().unwrap().success()));

    let [lines, objects] = printed;
    assert!(lines.starts_with("job 1 (first): waiting"), "{lines}");
    assert!(lines.lines().next().unwrap().ends_with("; next decision now"), "{lines}");
    assert!(!lines.lines().any(|line| line.contains("running") && line.contains("next decision")), "{lines}");
    assert!(lines.contains("running") && lines.ends_with("job 1 has left the list\n"), "{lines}");
    let last: Value = serde_json::from_str(objects.lines().last().unwrap()).unwrap();
    assert_eq!(last["jobs"][0]["state"], "completed");
    assert_eq!(objects.lines().count(), 5, "{objects}");
}

#[test]
fn certificates_that_never_end_are_refused() {
    let ran = trainmaster("https://127.0.0.1:1", &["jobs", "--ca", "/dev/zero"]);
    ran.fails(1, &["--ca /dev/zero can't be read: it has more than 1048576 bytes"]);
}

#[test]
fn the_doctor_exits_with_4_after_a_problem() {
    let folder = TempDir::new().unwrap();
    let state = folder.path().to_str().unwrap();
    let tokens = folder.path().join("tokens.json");
    fs::write(&tokens, "[{").unwrap();
    let ran = trainmaster("http://127.0.0.1:1", &["doctor", "--state-dir", state, "--json"]);
    fs::remove_file(&tokens).unwrap();
    let found: Value = serde_json::from_str(&ran.out).unwrap();
    ran.fails(4, &["problem"]);
    let checks = found["checks"].as_array().unwrap();
    let of = |part: &str| checks.iter().filter(|found| found["part"] == part).count();
    assert_eq!(checks[0]["verdict"], "bad");
    let tokens = checks.iter().find(|found| found["check"] == "tokens").unwrap();
    assert!(tokens["verdict"] == "bad" && tokens["detail"].as_str().unwrap().contains("tokens.json: EOF"), "{tokens}");
    assert!(of("machine") >= 3 && of(trainmaster_adapters::ADAPTERS.all[0].name) > 0, "{found}");

    let daemon = Daemon::start(None);
    let table = trainmaster(&daemon.address, &["doctor", "--state-dir", state]).out;
    for word in ["version", "journal", "managers", "disk space", "open files", "state folder"] {
        assert!(table.contains(word), "{word} isn't in\n{table}");
    }
    // A daemon on another machine is checked only by its own information.
    let elsewhere = trainmaster("http://203.0.113.1.invalid:1", &["doctor", "--json"]);
    assert_eq!(serde_json::from_str::<Value>(&elsewhere.out).unwrap()["checks"].as_array().unwrap().len(), 1);
}

#[test]
fn the_doctor_looks_at_the_daemons_folder_and_makes_none() {
    let daemon = Daemon::start(None);
    let home = TempDir::new().unwrap();
    let state = home.path().join("state").display().to_string();
    let doctor = |server: &str, more: &[&str]| {
        let mut command = command(server, &[&["doctor", "--json"], more].concat());
        let ran = finish(command.env("HOME", home.path()).env_remove("XDG_STATE_HOME").output().unwrap());
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0, "it only looks");
        let found: Value = serde_json::from_str(&ran.out).unwrap();
        let checks = found["checks"].as_array().unwrap().clone();
        let local = checks.iter().filter(|found| found["part"] == "local");
        let told = local.clone().any(|found| found["detail"].as_str().unwrap().contains("/nowhere/cluster.toml"));
        assert_eq!(told, server == daemon.address, "it looks at the adapters that the daemon runs: {found}");
        let folder = checks.into_iter().find(|found| found["part"] == "machine" && found["check"] == "state folder");
        let folder = folder.unwrap();
        (folder["verdict"].as_str().unwrap().to_owned(), folder["detail"].as_str().unwrap().to_owned())
    };
    let (verdict, detail) = doctor("http://127.0.0.1:1", &[]);
    assert!(verdict == "good" && detail.contains("/.local/state/trainmaster isn't there yet"), "{detail}");

    daemon.script.state_dir.lock().unwrap().clone_from(&state);
    let (verdict, detail) = doctor(&daemon.address, &[]);
    assert!(verdict == "good" && detail.starts_with(&state) && detail.ends_with("the daemon's"), "{detail}");
    let other = home.path().join("other").display().to_string();
    let (verdict, detail) = doctor(&daemon.address, &["--state-dir", &other]);
    assert!(verdict == "doubtful" && detail.starts_with(&other) && detail.contains(&state), "{detail}");
}

#[test]
fn what_an_engine_cannot_do_is_said_once() {
    let daemon = Daemon::start(None);
    let folder = TempDir::new().unwrap();
    let files = ["shares-1", "shares-2"].map(|name| job_file(folder.path(), name).display().to_string());
    let ran = trainmaster(&daemon.address, &["submit", &files[0], &files[1]]);
    assert_eq!((ran.code, ran.out.lines().count()), (0, 2), "{}", ran.out);
    assert_eq!(ran.err.matches("note: engine mlfs: tasks share no GPU\n").count(), 1, "{}", ran.err);
    assert!(ran.err.contains("note: shares-2: stop has no effect\n"), "{}", ran.err);
}

#[test]
fn notes_are_few_short_and_printable() {
    let daemon = Daemon::start(None);
    let folder = TempDir::new().unwrap();
    let ran = trainmaster(&daemon.address, &["submit", &job_file(folder.path(), "noisy").display().to_string()]);
    assert_eq!((ran.code, ran.err.lines().count()), (0, 9), "{}", ran.err);
    assert!(ran.err.ends_with("note: 992 more notes aren't shown\n"), "{}", ran.err);
    assert!(!ran.err.contains('\u{1b}') && ran.err.len() < 9 * 1100, "{}", ran.err);
}

#[test]
fn a_job_that_no_manager_starts_has_a_note() {
    let daemon = Daemon::start(None);
    trainmaster(&daemon.address, &["mode", "paused"]).works();
    let folder = TempDir::new().unwrap();
    let file = job_file(folder.path(), "first");
    let ran = trainmaster(&daemon.address, &["submit", file.to_str().unwrap()]);
    assert!(ran.code == 0 && ran.out.contains("submitted"), "{}", ran.out);
    assert!(ran.err.starts_with("note: scheduling is paused") && ran.err.lines().count() == 1, "{}", ran.err);
    let ran = trainmaster(&daemon.address, &["pause", "first"]);
    assert!(ran.code == 0 && ran.out.contains("paused"), "{}", ran.out);
    assert!(ran.err.starts_with("note: scheduling isn't active") && ran.err.lines().count() == 1, "{}", ran.err);
}
