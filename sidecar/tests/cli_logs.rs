//! What programs print, and what the daemon itself does: `logs`, the log's lines, traces.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _},
    path::{Path, PathBuf},
    process::{Child, ChildStderr, Command, Output, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;
use tempfile::TempDir;

use super::cli_serve::{Served, refuses, trainmaster};

/// A daemon with one virtual server that keeps its jobs when it ends.
fn daemon(listen: &str, folder: &Path) -> Served {
    let cluster = folder.join("cluster.toml");
    fs::write(&cluster, "[[server]]\nname = \"a\"\ncpu = 8\nmemory = \"1GiB\"\n").unwrap();
    let adapter = format!("local={}", cluster.display());
    Served::at(listen, &adapter, &folder.join("state"), &["--engine", "fifo"])
}

/// A token of a role, in a file.
fn token(daemon: &Served, folder: &Path, name: &str, args: &[&str]) -> PathBuf {
    let path = folder.join(format!("{name}.token"));
    daemon.works(&[&["token", "create", name, "--out", path.to_str().unwrap()], args].concat());
    path
}

/// Runs a command as another user, who doesn't find the daemon's state.
fn as_user(daemon: &Served, token: &Path, home: &Path, args: &[&str]) -> Output {
    let own = ["--server", &daemon.url, "--token-file", token.to_str().unwrap()];
    trainmaster(&[&own, args].concat()).env("XDG_STATE_HOME", home).output().unwrap()
}

#[test]
fn those_who_may_submit_read_the_logs_of_their_jobs_and_nobody_else_does() {
    let folder = TempDir::new().unwrap();
    let daemon = daemon("127.0.0.1:0", folder.path());
    let vision = token(&daemon, folder.path(), "vision", &["--role", "submit", "--tenant", "vision"]);
    let speech = token(&daemon, folder.path(), "speech", &["--role", "submit", "--tenant", "speech"]);
    let board = token(&daemon, folder.path(), "board", &["--role", "read"]);
    let job = folder.path().join("job.toml");
    let end = folder.path().join("end");
    let text = format!(
        "name = \"net\"\nmode = \"allreduce\"\nworker = {{ cpu = 1, max = 2, requested = 2, command = \"sh -c 'echo \
         first; echo begun by $TRAINMASTER_INDEX; while [ -d {0} ] && [ ! -e {1} ]; do sleep 0.1; done; \
         printf last'\" }}\n",
        folder.path().display(),
        end.display(),
    );
    fs::write(&job, text).unwrap();
    let ask = |token: &Path, args: &[&str]| as_user(&daemon, token, folder.path(), args);
    assert!(ask(&vision, &["submit", job.to_str().unwrap()]).status.success());
    refuses(&ask(&speech, &["logs", "net"]), 1, &["there is no job \"net\" of tenant speech"]);
    refuses(&ask(&board, &["logs", "net"]), 1, &["has the role read", "submit, admin"]);
    refuses(&ask(&vision, &["logs", "other"]), 1, &["there is no job \"other\""]);
    refuses(&ask(&vision, &["--json", "logs", "net"]), 2, &["leave --json out"]);

    let own = ["--server", &daemon.url, "--token-file", vision.to_str().unwrap(), "logs", "net", "--follow"];
    let mut following = trainmaster(&own).env("XDG_STATE_HOME", folder.path()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(following.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut begun: Vec<String> = lines.by_ref().filter(|line| line.contains("begun")).take(2).collect();
    // The first lines may come before there are several logs.
    begun.iter_mut().for_each(|line| *line = line.trim_start_matches(|c| c != 'b').to_owned());
    begun.sort();
    assert_eq!(begun, ["begun by 0", "begun by 1"]);

    let now = ask(&vision, &["logs", "net"]);
    let now = String::from_utf8(now.stdout).unwrap();
    assert_eq!(now, "[1-worker-0] first\n[1-worker-0] begun by 0\n[1-worker-1] first\n[1-worker-1] begun by 1\n");
    let tail = String::from_utf8(ask(&vision, &["logs", "net", "-n", "1"]).stdout).unwrap();
    assert_eq!(tail, "[1-worker-0] begun by 0\n[1-worker-1] begun by 1\n");

    fs::write(&end, "").unwrap();
    let rest: Vec<String> = lines.collect();
    assert_eq!(rest, ["last", "last"], "it ends with the job, with all that was printed");
    assert!(following.wait().unwrap().success());
    let after = String::from_utf8(ask(&vision, &["logs", "1", "--tail", "0"]).stdout).unwrap();
    assert_eq!(after, "");
    assert!(String::from_utf8(ask(&vision, &["logs", "1"]).stdout).unwrap().contains("last"));
    refuses(&ask(&speech, &["logs", "1"]), 1, &["there is no job \"1\" of tenant speech"]);
}

#[test]
fn a_reader_of_logs_has_a_share_and_ends_with_its_token() {
    let folder = TempDir::new().unwrap();
    let daemon = daemon("127.0.0.1:0", folder.path());
    let job = folder.path().join("job.toml");
    let command = format!("sh -c 'echo up; while [ -d {} ]; do sleep 0.1; done'", folder.path().display());
    let text = format!("name = \"net\"\nmode = \"allreduce\"\nworker = {{ cpu = 1, command = \"{command}\" }}\n");
    fs::write(&job, text).unwrap();
    daemon.works(&["submit", job.to_str().unwrap()]);
    let submits = ["--role", "submit", "--tenant", "default"];
    let [one, other] = ["one", "other"].map(|name| token(&daemon, folder.path(), name, &submits));
    let follow = |token: &Path| {
        let own = ["--server", &daemon.url, "--token-file", token.to_str().unwrap(), "logs", "-f", "net"];
        let mut command = trainmaster(&own);
        command.env("XDG_STATE_HOME", folder.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut following = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(following.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "up\n");
        following
    };
    let mut greedy: Vec<Child> = (0..16).map(|_| follow(&one)).collect();
    let more = || as_user(&daemon, &one, folder.path(), &["logs", "net"]);
    refuses(&more(), 1, &["token one may have 16 logs being read at a time"]);
    greedy[0].kill().unwrap();
    greedy.remove(0).wait().unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    while !more().status.success() {
        assert!(Instant::now() < end, "a reader that went away still counts");
    }
    let others = follow(&other);

    daemon.works(&["token", "revoke", "one"]);
    let last = greedy.pop().unwrap().wait_with_output().unwrap();
    refuses(&last, 1, &["revoked"]);
    for mut following in greedy {
        assert_eq!(following.wait().unwrap().code(), Some(1));
    }
    daemon.works(&["cancel", "net"]);
    assert!(others.wait_with_output().unwrap().status.success(), "another token's reader goes on to the end");
}

#[test]
fn what_a_program_prints_after_the_end_of_its_job_is_shown_too() {
    let folder = TempDir::new().unwrap();
    let daemon = daemon("127.0.0.1:0", folder.path());
    let job = folder.path().join("job.toml");
    let text = format!(
        "name = \"net\"\nmode = \"allreduce\"\nworker = {{ cpu = 1, command = \"sh -c 'trap \\\"sleep 1; echo saved; \
         exit\\\" TERM; echo up; while [ -d {} ]; do sleep 0.1; done'\" }}\n",
        folder.path().display(),
    );
    fs::write(&job, text).unwrap();
    daemon.works(&["submit", job.to_str().unwrap()]);
    let mut command = trainmaster(&["--server", &daemon.url, "logs", "-f", "net"]);
    let mut following = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(following.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next().unwrap(), "up");
    daemon.works(&["cancel", "net"]);
    // The shell may say that the signal ended its sleep.
    assert_eq!(lines.collect::<Vec<_>>().last().map(String::as_str), Some("saved"));
    assert!(following.wait().unwrap().success());
}

#[test]
fn a_reader_of_logs_goes_on_where_it_was_when_the_daemon_is_back() {
    let folder = TempDir::new().unwrap();
    let listen = format!("127.0.0.1:{}", trainmaster_conformance::free_port());
    let daemon = self::daemon(&listen, folder.path());
    let job = folder.path().join("job.toml");
    let [step, end] = ["step", "end"].map(|name| folder.path().join(name));
    let text = format!(
        "name = \"net\"\nmode = \"allreduce\"\nworker = {{ cpu = 1, command = \"sh -c 'echo one; while [ -d {0} ] && \
         [ ! -e {1} ]; do sleep 0.1; done; echo two; while [ -d {0} ] && [ ! -e {2} ]; do sleep 0.1; done; \
         echo three'\" }}\n",
        folder.path().display(),
        step.display(),
        end.display(),
    );
    fs::write(&job, text).unwrap();
    daemon.works(&["submit", job.to_str().unwrap()]);
    let mut command = trainmaster(&["--server", &daemon.url, "logs", "-f", "net"]);
    let mut following = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(following.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut said = BufReader::new(following.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next().unwrap(), "one");
    drop(daemon);
    assert!(said.any(|line| line.contains("the daemon is away; this waits for it")));
    fs::write(&step, "").unwrap();
    let daemon = self::daemon(&listen, folder.path());
    assert_eq!(lines.next().unwrap(), "two");
    // A reader that began near the end goes on there, too.
    let mut command = trainmaster(&["--server", &daemon.url, "logs", "-f", "net", "--tail", "1"]);
    let mut late = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut rest = BufReader::new(late.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut late_said = BufReader::new(late.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(rest.next().unwrap(), "two");
    drop(daemon);
    assert!(late_said.any(|line| line.contains("the daemon is away; this waits for it")));
    let _daemon = self::daemon(&listen, folder.path());
    fs::write(&end, "").unwrap();
    // How a program ended that another daemon had started isn't known, so it may have run once more, also as another
    // incarnation with a log of its own.
    let plain = |line: String| line.rsplit(' ').next().unwrap().to_owned();
    let printed = [vec!["one".to_owned(), "two".into()], lines.map(plain).collect()].concat();
    assert!(following.wait().unwrap().success());
    let logs = (1..10).map(|run| folder.path().join(format!("state/adapters/local/logs/1-net/{run}-worker-0.log")));
    let logs: String = logs.filter_map(|log| fs::read_to_string(log).ok()).collect();
    assert_eq!(printed, logs.lines().collect::<Vec<_>>(), "each line is printed once");
    assert!(printed.len() >= 3);
    assert_eq!(rest.map(plain).collect::<Vec<_>>(), printed[2..]);
    assert!(late.wait().unwrap().success());
}

/// A daemon whose log is read.
fn logging(state: &Path, more: &[&str]) -> (Served, BufReader<ChildStderr>) {
    let mut command = Served::command("127.0.0.1:0", "none", state, more);
    let mut child: Child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let log = BufReader::new(child.stderr.take().unwrap());
    (Served::of(child), log)
}

fn job_file(folder: &Path) -> String {
    let path = folder.join("job.toml");
    fs::write(&path, "name = \"first\"\nmode = \"allreduce\"\nworker = { cpu = 1 }\n").unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn the_log_is_json_if_asked() {
    let folder = TempDir::new().unwrap();
    let config = folder.path().join("daemon.toml");
    fs::write(&config, "log_format = \"json\"\n").unwrap();
    for more in [&["--log-format", "json"][..], &["--config", config.to_str().unwrap()]] {
        let (daemon, mut log) = logging(&folder.path().join("state"), more);
        let file = job_file(folder.path());
        daemon.works(&["submit", &file]);
        daemon.works(&["cancel", "first"]);
        assert_eq!(daemon.terminate(), Some(0));
        let mut text = String::new();
        log.read_to_string(&mut text).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
        let ended = lines.iter().find(|line| line["message"] == "a job ended").expect("the job's end");
        assert_eq!((&ended["name"], &ended["level"]), (&"first".into(), &"INFO".into()));
        assert!(ended["timestamp"].is_string() && ended["target"].is_string(), "{ended}");
    }
}

#[test]
fn an_engine_that_lets_jobs_wait_for_a_timer_says_so() {
    let folder = TempDir::new().unwrap();
    for (flags, warns) in [
        (&["--engine", "drf"][..], true),
        (&["--engine", "drf", "--set", "on_change=true"], false),
        (&["--engine", "optimus"], false),
        (&["--engine", "fifo"], false),
    ] {
        let (daemon, mut log) = logging(&folder.path().join("state"), flags);
        assert_eq!(daemon.terminate(), Some(0));
        let mut text = String::new();
        log.read_to_string(&mut text).unwrap();
        assert_eq!(text.contains("on_change = true"), warns, "{flags:?}: {text}");
    }
}

#[test]
fn a_setting_of_the_environment_is_between_the_file_and_the_flag() {
    let folder = TempDir::new().unwrap();
    let config = folder.path().join("daemon.toml");
    fs::write(&config, "listen = \"127.0.0.1:1\"\nlog_format = \"json\"\n[scheduler]\nengine = \"fifo\"\n").unwrap();
    let printed = |flags: &[&str], variables: &[(&str, &str)]| {
        let mut command: Command = trainmaster(&[&["serve", "--print-config"], flags].concat());
        let output = command.envs(variables.iter().copied()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        toml::from_str::<toml::Table>(&String::from_utf8(output.stdout).unwrap()).unwrap()
    };
    let file = ("TRAINMASTER_CONFIG", config.to_str().unwrap());
    let table = printed(&[], &[file]);
    assert_eq!(table["listen"].as_str(), Some("127.0.0.1:1"));
    let variables =
        [file, ("TRAINMASTER_LISTEN", ":2"), ("TRAINMASTER_ENGINE", "drf"), ("TRAINMASTER_LOG_FORMAT", "text")];
    let table = printed(&[], &variables);
    assert_eq!(table["listen"].as_str(), Some("127.0.0.1:2"));
    assert_eq!(table["log_format"].as_str(), Some("text"));
    assert_eq!(table["scheduler"]["engine"].as_str(), Some("drf"));
    assert_eq!(printed(&["--listen", ":3"], &variables)["listen"].as_str(), Some("127.0.0.1:3"));
    let mut command = trainmaster(&["serve", "--print-config"]);
    let output = command.env("TRAINMASTER_LOG_FORMAT", "xml").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && text.contains("xml") && text.contains("json"), "{text}");
}

#[test]
fn a_collector_with_tls_is_refused() {
    let folder = TempDir::new().unwrap();
    let state = folder.path().join("state");
    for address in ["https://127.0.0.1:4317", "127.0.0.1:4317", "http://"] {
        let args = ["serve", "--state-dir", state.to_str().unwrap(), "--listen", "127.0.0.1:0", "--otlp", address];
        refuses(&trainmaster(&args).output().unwrap(), 1, &["otlp: ", address, "\"http://127.0.0.1:4317\""]);
    }
}
