//! `trainmaster simulate`, run as a user runs it.

use std::{fs, path::Path, process::Command};

use serde_json::Value;
use tempfile::TempDir;

/// Exit code, standard output, standard error.
fn simulate(folder: &Path, args: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trainmaster"));
    let output = command.arg("simulate").args(args).current_dir(folder).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

const SMALL: &[&str] = &["--workload", "oasis-small", "--jobs", "6", "--seeds", "3", "--no-timing"];

#[test]
fn offline_bounds_what_every_engine_earns() {
    let folder = TempDir::new().unwrap();
    let compared = ["--engines", "oasis,rrh,fifo,offline", "--set", "offline.nodes=20"];
    let (code, out, err) = simulate(folder.path(), &[SMALL, &compared, &["--json"]].concat());
    assert_eq!(code, 0, "{err}");
    let answer: Value = serde_json::from_str(&out).unwrap();
    let best = &answer["offline"];
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{value} in {answer}"));
    let (utility, bound) = (number(&best["utility"]), number(&best["bound"]));
    assert!(0.0 < utility && utility <= bound * (1.0 + 1e-9), "{best}");
    for engine in ["oasis", "rrh", "fifo"] {
        let earned = number(&answer["engines"][engine]["utility"]);
        assert!(0.0 < earned && earned <= bound * (1.0 + 1e-9), "{engine} earns {earned} of at most {bound}");
        assert!((number(&best["ratios"][engine]) - utility / earned).abs() < 1e-6);
    }
    assert!(answer["engines"]["offline"].is_null(), "it is no engine");
    let (code, again, _) = simulate(folder.path(), &[SMALL, &compared].concat());
    assert_eq!(code, 0);
    assert!(again.contains("Offline: schedules worth") && again.contains("Offline over oasis"), "{again}");
}

#[test]
fn offline_says_what_it_needs() {
    let folder = TempDir::new().unwrap();
    for (args, allowed) in [
        (&["--workload", "oasis-small", "--engines", "offline"][..], "--engines oasis,offline"),
        (&["--workload", "philly", "--engines", "fifo,offline"], "oasis-small"),
        (&["--workload", "oasis", "--engines", "fifo,offline"], "--jobs"),
        (&["--workload", "oasis-small", "--engines", "fifo,offline", "--set", "offline.nodes=-1"], "nodes (0 or more)"),
        (&["--workload", "oasis-small", "--engines", "fifo,offline", "--set", "offline.solver=gurobi"], "microlp"),
    ] {
        let (code, out, err) = simulate(folder.path(), args);
        assert_eq!((code, out.as_str()), (2, ""), "{err}");
        assert!(err.contains(allowed), "{allowed:?} isn't in: {err}");
    }
}

#[test]
fn rows_that_make_no_sense_are_named_counted_and_left_out() {
    let folder = TempDir::new().unwrap();
    let mut rows = String::from("when,gpus,seconds\n0,1,60\n5,2,90\n");
    for line in 0..12 {
        rows.push_str(&format!("{line},none,60\n"));
    }
    fs::write(folder.path().join("jobs.csv"), rows).unwrap();
    let args = ["--workload", "csv:jobs.csv", "--columns", "time=when,duration=seconds", "--servers", "2"];
    let more = ["--engines", "fifo", "--seeds", "1", "--no-timing", "--json"];
    let (code, out, err) = simulate(folder.path(), &[&args[..], &more].concat());
    assert_eq!(code, 0, "{err}");
    let answer: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(answer["left_out"], 12);
    let fifo = &answer["engines"]["fifo"];
    assert_eq!((&fifo["admitted"], &fifo["unfinished"]), (&2.0.into(), &0.0.into()), "{answer}");
    assert!(err.contains("jobs.csv, line 4, column \"gpus\": \"none\"") && err.contains("12 rows"), "{err}");
}
