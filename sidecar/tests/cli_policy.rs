//! `trainmaster train-policy`, and policies under `simulate` and `serve`, run like by a user.
#![cfg(feature = "train")]

use std::{fs, path::Path, process::Command};

use serde_json::Value;
use tempfile::TempDir;

/// Exit code, standard output, standard error.
fn trainmaster(folder: &Path, args: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trainmaster"));
    let output = command.args(args).current_dir(folder).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

const TRAIN: &[&str] = &["train-policy", "--workload", "mlfs", "--jobs", "10", "--servers", "1", "--hidden", "4"];
const BRIEF: &[&str] = &["--steps", "1", "--pairs", "2", "--selection", "1", "--validation", "2", "--json"];

fn train(folder: &Path, file: &str, more: &[&str]) -> Value {
    let (code, out, err) = trainmaster(folder, &[TRAIN, BRIEF, &["--out", file], more].concat());
    assert_eq!(code, 0, "{err}");
    serde_json::from_str(&out).unwrap()
}

#[test]
fn the_same_seed_trains_the_same_policy_on_any_number_of_threads() {
    let folder = TempDir::new().unwrap();
    let answer = train(folder.path(), "a.toml", &["--seed", "3", "--threads", "1"]);
    train(folder.path(), "b.toml", &["--seed", "3", "--threads", "2"]);
    train(folder.path(), "c.toml", &["--seed", "4"]);
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    assert_eq!(read("a.toml"), read("b.toml"));
    assert_eq!(read("a.svg"), read("b.svg"));
    assert_ne!(read("a.toml"), read("c.toml"));
    assert!(read("a.svg").contains("held-out seeds"));
    assert_eq!(answer["curve"].as_array().unwrap().len(), 2, "{answer}");
    assert!(answer["shown"].as_u64() > Some(10) && answer["agreed"].as_f64() > Some(0.5), "{answer}");
    assert_eq!(answer["seeds"]["validation"], 33_000);
    // The baseline has one goal.
    assert_eq!(train(folder.path(), "rl.toml", &["--engine", "rl"])["par"], 1.0);
}

#[test]
fn impossible_trainings_are_refused_with_a_reason() {
    let folder = TempDir::new().unwrap();
    for (args, problem) in [
        (&["--engine", "fifo", "--out", "p.toml"][..], "follows no policy; those that do are mlfs, rl"),
        (&["--engine", "best", "--out", "p.toml"], "\"best\" is not an engine"),
        (&["--jobs", "0", "--out", "p.toml"], "jobs: 0 must be from 1"),
        (&["--workload", "none", "--out", "p.toml"], "is not a workload"),
    ] {
        let rest = if args[0] == "--workload" { &[][..] } else { &["--workload", "mlfs"] };
        let (code, _, err) = trainmaster(folder.path(), &[&["train-policy"], rest, args].concat());
        assert!(code == 2 && err.contains(problem), "{err}");
        assert!(!folder.path().join("p.toml").exists());
    }
    let (code, _, err) = trainmaster(folder.path(), &[TRAIN, BRIEF, &["--out", "nowhere/p.toml"]].concat());
    assert!(code == 1 && err.contains("nowhere/p.toml"), "{err}");
}

#[test]
fn a_missing_or_spoilt_policy_leaves_the_heuristic_in_charge() {
    let folder = TempDir::new().unwrap();
    let play = |policy: &[&str]| {
        let args = ["simulate", "--workload", "mlfs", "--jobs", "40", "--servers", "2", "--seeds", "1", "--no-timing"];
        let engines = ["--engines", "mlfs,mlf-h", "--set", "mlfs.stop=false", "--json"];
        let (code, out, err) = trainmaster(folder.path(), &[&args[..], &engines, policy].concat());
        assert_eq!(code, 0, "{err}");
        (serde_json::from_str::<Value>(&out).unwrap()["engines"].clone(), err)
    };
    let (none, quiet) = play(&["--policy", "none"]);
    assert_eq!((&none["mlfs"], quiet.as_str()), (&none["mlf-h"], ""));
    let (shipped, quiet) = play(&[]);
    assert_eq!(quiet, "");
    assert_ne!(shipped["mlfs"], shipped["mlf-h"]);
    fs::write(folder.path().join("spoilt.toml"), "format = 1\nengine = \"mlfs\"").unwrap();
    for file in ["missing.toml", "spoilt.toml"] {
        let (engines, warning) = play(&["--policy", file]);
        assert_eq!(engines, none);
        assert!(warning.contains("warning: policy") && warning.contains(file), "{warning}");
        assert!(warning.contains("engines decide by their heuristics"), "{warning}");
    }
}
