//! `trainmaster demo`, run like by a user: with a simulated training program and, for `edge` and `mlfs`, the real one.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// A training program with invented profiles. A job's process runs the script `does`.
fn trainer(folder: &Path, does: &str) -> PathBuf {
    let path = folder.join("trainer");
    let script = format!(
        "#!/bin/sh\nif [ \"$1\" = profile ]; then\ncase \"$*\" in\n\
         *allreduce*) printf 'p,w,speed\\n0,1,2\\n0,2,3\\n' ;;\n*) printf 'p,w,speed\\n1,1,2\\n1,2,3\\n' ;;\nesac\n\
         exit\nfi\n{does}\n"
    );
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn demo(folder: &Path, trainer: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trainmaster"));
    command.args(["demo", "--out", "pictures", "--json", "record.json", "--trainer"]).arg(trainer).args(args);
    command.current_dir(folder).env("FOLDER", folder).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[track_caller]
fn fails(output: &Output, words: &[&str]) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    for word in words {
        assert!(text.contains(word), "{word:?} isn't in: {text}");
    }
}

#[test]
fn engines_that_cannot_run_are_refused_before_anything_is_done() {
    let folder = TempDir::new().unwrap();
    let trainer = trainer(folder.path(), "exit 1");
    for (engines, words) in [
        ("fifo,drf,fifo", &["--engines fifo,drf,fifo", "fifo is named twice"][..]),
        ("optimum", &["--engines optimum", "optimus"]),
        ("fifo,", &["--engines"]),
        ("edge,drf", &["--engines edge,drf", "edge schedules data chunks", "name it alone"]),
        ("fifo,mlfs", &["--engines fifo,mlfs", "mlfs schedules tasks", "name it alone"]),
    ] {
        fails(&demo(folder.path(), &trainer, &["--engines", engines]).output().unwrap(), words);
    }
    assert!(!folder.path().join("pictures").exists());
    fails(&demo(folder.path(), Path::new("nowhere"), &[]).output().unwrap(), &["trainmaster-trainer was not found"]);
}

#[test]
fn incomplete_runs_are_not_compared() {
    let folder = TempDir::new().unwrap();
    // Exit code 44 means that another start doesn't help.
    let trainer = trainer(folder.path(), "exit 44");
    let output = demo(folder.path(), &trainer, &["--engines", "optimus,fifo", "--limit", "600"]).output().unwrap();
    fails(&output, &["error: 2 of 2 runs had jobs that did not complete"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("failed") && text.contains("counts in no mean and no ratio"), "{text}");
    assert!(text.contains("0 of 1"), "{text}");
    let record: Value = serde_json::from_slice(&fs::read(folder.path().join("record.json")).unwrap()).unwrap();
    assert_eq!(record["ratios"], Value::Object(serde_json::Map::new()));
    assert!(record["engines"]["fifo"]["average_jct_s"].is_null(), "{record}");
    assert_eq!(record["runs"][0]["complete"], false);
}

/// Waits for a file's first line.
fn first_line(child: &mut Child, path: &Path) -> String {
    loop {
        match fs::read_to_string(path) {
            Ok(text) if text.ends_with('\n') => return text.lines().next().unwrap().to_owned(),
            _ => assert!(child.try_wait().unwrap().is_none(), "the demo has ended"),
        }
        thread::sleep(Duration::from_millis(20));
    }
}

fn lives(pid: &str) -> bool {
    test_kill_process(Pid::from_raw(pid.parse().unwrap()).unwrap()).is_ok()
}

#[test]
fn an_interrupt_ends_the_jobs_first() {
    let folder = TempDir::new().unwrap();
    let trainer = trainer(folder.path(), "echo $$ >> \"$FOLDER/pids\"; exec sleep 600");
    let mut child = demo(folder.path(), &trainer, &["--engines", "fifo"]).spawn().unwrap();
    first_line(&mut child, &folder.path().join("pids"));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    fails(
        &child.wait_with_output().unwrap(),
        &["stopping", "error: ", "interrupted; all of the demo's processes have ended"],
    );
    let pids = fs::read_to_string(folder.path().join("pids")).unwrap();
    assert!(pids.lines().all(|pid| !lives(pid)), "{pids}");
}

#[test]
fn an_interrupt_ends_profiling() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("profiler");
    // Takes a moment to end in order, as the trainer does.
    let script = "#!/bin/sh\ntrap 'sleep 0.3; echo $$ >> \"$FOLDER/ended\"; exit 0' INT\necho $$ >> \"$FOLDER/pids\"\n\
                  while :; do sleep 0.05; done\n";
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let mut child = demo(folder.path(), &path, &[]).spawn().unwrap();
    first_line(&mut child, &folder.path().join("pids"));
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    fails(&child.wait_with_output().unwrap(), &["interrupted"]);
    let lines = |name: &str| {
        let text = fs::read_to_string(folder.path().join(name)).unwrap_or_default();
        let mut lines: Vec<_> = text.lines().map(ToOwned::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(lines("pids"), lines("ended"));
}

#[test]
fn edge_loses_and_regains_workers_sends_no_chunk_twice_and_all_jobs_end() {
    let folder = TempDir::new().unwrap();
    let trainer = Path::new(env!("CARGO_BIN_EXE_trainmaster")).with_file_name("trainmaster-trainer");
    assert!(trainer.is_file(), "{} is missing: cargo build --workspace --bins", trainer.display());
    let output = demo(folder.path(), &trainer, &["--engines", "edge"]).output().unwrap();
    let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    // The demo fails if a chunk was sent twice, or never.
    assert!(output.status.success(), "{out}\n{err}");
    let record: Value = serde_json::from_slice(&fs::read(folder.path().join("record.json")).unwrap()).unwrap();
    let jobs = record["jobs"].as_array().unwrap();
    assert_eq!(jobs.len(), 6);
    // Workers train chunks without waiting for each other. On a busy machine, a job may need more epochs than it has.
    let ends = ["converged", "through all its epochs"];
    for job in jobs {
        let reason = job["reason"].as_str().unwrap();
        assert!(ends.iter().any(|end| reason.starts_with(end)), "{}: {reason}", job["name"]);
        assert_eq!(job["incarnations"], 1, "{} was restarted", job["name"]);
    }
    let converged = jobs.iter().filter(|job| job["reason"].as_str().unwrap().starts_with(ends[0])).count();
    assert!(converged >= 3, "{converged} of 6 converged");
    let regained: u64 = jobs.iter().map(|job| job["regained"].as_u64().unwrap()).sum();
    assert!(regained > 0, "{out}");
}

#[test]
fn in_the_first_minute_a_job_shrinks_when_others_arrive() {
    let folder = TempDir::new().unwrap();
    let trainer = Path::new(env!("CARGO_BIN_EXE_trainmaster")).with_file_name("trainmaster-trainer");
    let output = demo(folder.path(), &trainer, &[]).output().unwrap();
    let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success(), "{out}\n{err}");
    let record: Value = serde_json::from_slice(&fs::read(folder.path().join("record.json")).unwrap()).unwrap();
    let names: Vec<&str> = record["jobs"].as_array().unwrap().iter().map(|job| job["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["resnet-50", "cnn-rand", "rnn-lstm", "resnext-110"]);
    let workers = |shape: &Value| shape.as_str().unwrap().split('w').next().unwrap().parse::<u32>().unwrap();
    let changes = record["jobs"][0]["rescales"].as_array().unwrap();
    assert!(changes.iter().any(|change| workers(&change["to"]) < workers(&change["from"])), "{out}");
    // Each change is a line, when it happens.
    let lines = err.lines().filter(|line| line.contains("resnet-50: ") && line.contains(" → ")).count();
    assert!(lines >= changes.len(), "{err}");
    assert!(out.contains("trainmaster demo --compare"), "{out}");
}

#[test]
fn mlfs_moves_a_task_from_an_overloaded_server_and_stops_a_job_early() {
    let folder = TempDir::new().unwrap();
    let trainer = Path::new(env!("CARGO_BIN_EXE_trainmaster")).with_file_name("trainmaster-trainer");
    assert!(trainer.is_file(), "{} is missing: cargo build --workspace --bins", trainer.display());
    let output = demo(folder.path(), &trainer, &["--engine", "mlfs"]).output().unwrap();
    let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    // The demo fails if no task moved, or no job was stopped early.
    assert!(output.status.success(), "{out}\n{err}");
    let record: Value = serde_json::from_slice(&fs::read(folder.path().join("record.json")).unwrap()).unwrap();
    let tasks = &record["runs"][0]["tasks"];
    let moved = tasks["moved"].as_array().unwrap();
    assert_eq!(moved.len(), 1, "{tasks}");
    assert_eq!(moved[0]["from"], tasks["overloaded"][0]);
    assert_ne!(moved[0]["to"], moved[0]["from"]);
    let jobs = record["jobs"].as_array().unwrap();
    assert_eq!(jobs.len(), 5);
    for job in jobs {
        let name = job["name"].as_str().unwrap();
        // A job with a moved task starts again from its checkpoint. Other jobs don't.
        assert_eq!(job["incarnations"], if moved[0]["job"] == name { 2 } else { 1 }, "{name}: {out}");
        let accuracy = &tasks["accuracies"][name];
        let (best, possible) = (accuracy["best"].as_f64().unwrap(), accuracy["possible"].as_f64().unwrap());
        if name == "resnet" {
            assert_eq!(job["state"], "stopped");
            assert!(job["epochs"].as_u64().unwrap() < 120, "{out}");
            assert!(best >= possible - 0.01, "{out}");
        } else {
            assert_eq!((&job["state"], &job["epochs"]), (&"completed".into(), &90.into()), "{name}: {out}");
        }
    }
}
