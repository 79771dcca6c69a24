//! `trainmaster simulate`, run like by a user.

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

const SMALL: &[&str] =
    &["--workload", "oasis-small", "--jobs", "6", "--seeds", "3", "--no-timing", "--stability", "off"];

#[test]
fn offline_bounds_the_utility_of_all_engines() {
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
fn early_stops_happen_under_the_engines_that_are_named() {
    let folder = TempDir::new().unwrap();
    let jobs = ["--workload", "mlfs-equal", "--jobs", "60", "--servers", "3", "--seeds", "1", "--no-timing"];
    let stopped = |more: &[&str]| {
        let engines = ["--engines", "srtf,other=srtf", "--json"];
        let (code, out, err) = simulate(folder.path(), &[&jobs[..], &engines, more].concat());
        assert_eq!(code, 0, "{err}");
        let answer: Value = serde_json::from_str(&out).unwrap();
        ["srtf", "other"].map(|engine| answer["engines"][engine]["stopped_early"].as_f64().unwrap() > 0.0)
    };
    assert_eq!(stopped(&[]), [false, false]);
    assert_eq!(stopped(&["--early-stop=other"]), [false, true]);
    assert_eq!(stopped(&["--early-stop"]), [true, true]);
    let (code, _, err) = simulate(folder.path(), &[&jobs[..], &["--engines", "srtf", "--early-stop=fifo"]].concat());
    assert!(code == 2 && err.contains("\"fifo\"") && err.contains("srtf"), "{code} {err}");
}

/// A_online's measured ratio (edge-cloud paper, Fig. 12): below 1.7 at the offline optimum's speed, and decreasing with
/// ε.
#[test]
fn jobs_in_chunks_are_near_the_relaxed_optimum_and_nearer_with_faster_workers() {
    let folder = TempDir::new().unwrap();
    let small = ["--workload", "edge", "--jobs", "10", "--servers", "10", "--seeds", "3", "--no-timing"];
    let compared = ["--engines", "edge,fifo,offline", "--stability", "off"];
    let ratios: Vec<f64> = ["1", "1.2", "1.5"]
        .map(|speed| {
            let args = [&small[..], &compared, &["--speed", speed, "--json"]].concat();
            let (code, out, err) = simulate(folder.path(), &args);
            assert_eq!(code, 0, "{err}");
            let answer: Value = serde_json::from_str(&out).unwrap();
            let best = &answer["offline"];
            let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{value} in {answer}"));
            let taken = number(&answer["engines"]["edge"]["average_jct_s"]);
            let (bound, fractional) = (number(&best["average_jct_s"]), number(&best["fractional_s"]));
            assert!((number(&best["ratios"]["edge"]) - taken / bound).abs() < 1e-6, "{best}");
            assert!((number(&best["fractional_ratios"]["edge"]) - taken / fractional).abs() < 1e-6, "{best}");
            assert!(number(&best["worst"]["edge"]) >= number(&best["ratios"]["edge"]) - 1e-9);
            assert!(number(&best["ratios"]["fifo"]) > number(&best["ratios"]["edge"]));
            if speed == "1" {
                assert!(bound <= taken, "nobody is sooner than the bound");
            }
            number(&best["ratios"]["edge"])
        })
        .into();
    assert!(ratios[0] < 1.7 && ratios[1] < ratios[0] && ratios[2] < ratios[1], "{ratios:?}");
    let (code, out, _) = simulate(folder.path(), &[&small[..], &compared].concat());
    assert!(
        code == 0 && out.contains("no schedule's jobs take less than") && out.contains("edge over offline"),
        "{out}"
    );
}

#[test]
fn offline_names_its_requirements() {
    let folder = TempDir::new().unwrap();
    for (args, allowed) in [
        (&["--workload", "oasis-small", "--engines", "offline"][..], "--engines oasis,offline"),
        (&["--workload", "philly", "--engines", "fifo,offline"], "oasis-small"),
        (&["--workload", "oasis", "--engines", "fifo,offline"], "--jobs"),
        (
            &["--workload", "oasis-small", "--engines", "fifo,offline", "--set", "offline.nodes=-1"],
            "nodes (a whole number, 0 or more)",
        ),
        (&["--workload", "oasis-small", "--engines", "fifo,offline", "--set", "offline.nodes=1.5"], "a whole number"),
        (&["--workload", "oasis-small", "--engines", "best"], "random, offline"),
        (&["--workload", "oasis-small", "--engines", "a.b=drf"], "letters, digits"),
        (&["--workload", "oasis-small", "--failures", "25"], "0 to 24"),
        (&["--workload", "edge", "--speed", "0"], "from 0.1 to 10"),
        (&["--workload", "optimus", "--speed", "2"], "edge and edge-testbed"),
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
    let args = ["--workload", "csv:jobs.csv", "--columns", "time=when,duration=seconds", "--servers", "50"];
    let more = ["--engines", "fifo", "--seeds", "1", "--no-timing", "--json", "--report", "page"];
    let (code, out, err) = simulate(folder.path(), &[&args[..], &more].concat());
    assert_eq!(code, 0, "{err}");
    let answer: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(answer["left_out"], 12);
    let fifo = &answer["engines"]["fifo"];
    assert_eq!((&fifo["admitted"], &fifo["unfinished"]), (&2.0.into(), &0.0.into()), "{answer}");
    assert!(err.contains("jobs.csv, line 4, column \"gpus\": \"none\"") && err.contains("12 rows"), "{err}");
    let page = fs::read_to_string(folder.path().join("page/index.html")).unwrap();
    for wanted in
        ["12 of the file's rows", "on the first 40 of 50 servers", "50 servers, 1 seed. ", "One seed, so that"]
    {
        assert!(page.contains(wanted), "{wanted} isn't in the page");
    }
}

#[test]
fn moved_data_is_reported() {
    let folder = TempDir::new().unwrap();
    let args =
        ["--workload", "edge-testbed", "--jobs", "4", "--engines", "fifo", "--seeds", "1", "--no-timing", "--json"];
    let (code, out, err) = simulate(folder.path(), &args);
    assert_eq!(code, 0, "{err}");
    let means = &serde_json::from_str::<Value>(&out).unwrap()["engines"]["fifo"];
    assert!(means["bytes_moved"].as_f64() > Some(1e8) && means["communication_s"].as_f64() > Some(60.0), "{out}");
    assert!(means["edge_utilisation"].is_number(), "{out}");
}

#[test]
fn deadlines_accuracies_and_load_are_reported() {
    let folder = TempDir::new().unwrap();
    let args = ["--workload", "mlfs", "--jobs", "40", "--servers", "4", "--engines", "mlfs,mlf-h,fifo", "--seeds", "1"];
    let (code, out, err) = simulate(folder.path(), &[&args[..], &["--no-timing", "--json"]].concat());
    assert_eq!(code, 0, "{err}");
    let engines = &serde_json::from_str::<Value>(&out).unwrap()["engines"];
    let of =
        |engine: &str, key: &str| engines[engine][key].as_f64().unwrap_or_else(|| panic!("{engine}: {key} in {out}"));
    for engine in ["mlfs", "mlf-h", "fifo"] {
        assert_eq!((of(engine, "unfinished"), of(engine, "failed_decisions")), (0.0, 0.0), "{engine}: {out}");
        for share in ["deadline_ratio", "accuracy_ratio", "accuracy_at_deadline", "mean_accuracy"] {
            assert!((0.05..=1.0).contains(&of(engine, share)), "{engine}: {share} in {out}");
        }
        assert!(of(engine, "bytes_moved") > 1e9 && of(engine, "waiting_s") >= 0.0, "{out}");
    }
    assert!(of("mlfs", "stopped_early") > 5.0, "{out}");
    assert_eq!((of("mlf-h", "stopped_early"), of("fifo", "overloads")), (0.0, 0.0), "{out}");
    // Jobs that share GPUs wait less than jobs that reserve whole ones.
    assert!(of("mlf-h", "waiting_s") < of("fifo", "waiting_s"), "{out}");
}

#[test]
fn preemptions_are_reported_for_each_engine() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("jobs.csv"), "time,gpus,duration\n0,2,10000\n1000,2,60\n").unwrap();
    let args = ["--workload", "csv:jobs.csv", "--columns", "time=time,gpus=gpus,duration=duration", "--servers", "1"];
    let more = ["--engines", "fifo,srtf", "--seeds", "1", "--no-timing"];
    let (code, out, err) = simulate(folder.path(), &[&args[..], &more, &["--json"]].concat());
    assert_eq!(code, 0, "{err}");
    let engines = &serde_json::from_str::<Value>(&out).unwrap()["engines"];
    for (engine, preemptions) in [("fifo", 0.0), ("srtf", 1.0)] {
        let means = &engines[engine];
        assert_eq!((&means["preemptions"], &means["unfinished"]), (&preemptions.into(), &0.0.into()), "{out}");
        assert_eq!((&means["bytes_moved"], &means["communication_s"]), (&0.0.into(), &0.0.into()), "{out}");
        assert_eq!(means["edge_utilisation"], means["utilisation"]);
    }
    let (_, text, _) = simulate(folder.path(), &[&args[..], &more, &["--report", "page"]].concat());
    assert!(text.contains("PREEMPTIONS"), "{text}");
    assert!(fs::read_to_string(folder.path().join("page/index.html")).unwrap().contains("<th>preemptions"));
}

#[test]
fn unfinished_jobs_have_no_times_and_no_utility() {
    let folder = TempDir::new().unwrap();
    let small = ["--workload", "oasis-small", "--seeds", "2", "--no-timing"];
    let json = |more: &[&str]| -> Value {
        let (code, out, err) = simulate(folder.path(), &[&small, more, &["--json"]].concat());
        assert_eq!(code, 0, "{err}");
        serde_json::from_str(&out).unwrap()
    };
    let answer = json(&["--engines", "held=oasis,cancelled=oasis", "--set", "cancelled.rejected=cancelled"]);
    let (held, cancelled) = (&answer["engines"]["held"], &answer["engines"]["cancelled"]);
    assert!(held["rejected"].as_f64() > Some(0.0), "{answer}");
    for measure in ["utility", "average_jct_s", "median_jct_s", "makespan_s", "admitted", "rejected"] {
        assert_eq!(held[measure], cancelled[measure], "{measure} in {answer}");
    }
    let none = ["--engines", "drf,oasis", "--set", "oasis.bounds=l1 = 1e9, l2 = 1e9, u1 = { gpu = 1e9 }, u2 = {}"];
    let answer = json(&none);
    let oasis = &answer["engines"]["oasis"];
    assert!(oasis["average_jct_s"].is_null() && oasis["makespan_s"].is_null(), "{oasis}");
    assert!(oasis["intervals"]["average_jct_s"].is_null() && oasis["utility"] == 0.0, "{oasis}");
    let ratios = &answer["ratios"]["oasis vs drf"];
    assert!(ratios["average_jct"].is_null() && ratios["utility"] == 0.0, "{ratios}");
    let (_, text, _) = simulate(folder.path(), &[&small, &none[..]].concat());
    let row = text.lines().find(|line| line.starts_with("oasis ")).unwrap();
    let shown: Vec<&str> = row.split_whitespace().collect();
    // The times are unknown, but the utility is known.
    assert_eq!(shown[1..8], ["–", "–", "–", "–", "0.0", "±", "0.0"], "{text}");
    assert!(text.contains("which aren't the same under every engine"), "{text}");
    let (_, text, _) =
        simulate(folder.path(), &["--workload", "oasis-small", "--seeds", "1", "--jobs", "3", "--engines", "drf"]);
    assert!(text.contains("One seed") && !text.contains("95 %"), "{text}");
}

#[test]
fn an_unwritable_page_is_reported_before_any_run() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("names.csv"), "").unwrap();
    let (code, out, err) = simulate(folder.path(), &[SMALL, &["--engines", "fifo", "--report", "names.csv"]].concat());
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(err.contains("--report names.csv can't be made"), "{err}");
    // An error that occurs at the end affects the page, but not the answer.
    fs::create_dir_all(folder.path().join("page/index.html")).unwrap();
    let (code, out, err) = simulate(folder.path(), &[SMALL, &["--engines", "fifo", "--report", "page"]].concat());
    assert!(code == 1 && out.contains("fifo") && err.contains("index.html can't be written"), "{out}{err}");
}

#[test]
fn stability_is_on_unless_it_is_turned_off() {
    let folder = TempDir::new().unwrap();
    let jobs = ["--workload", "optimus-poisson", "--jobs", "30", "--servers", "4", "--seeds", "1"];
    let args = [&jobs[..], &["--engines", "goodput", "--no-timing", "--json"]].concat();
    let played = |more: &[&str]| {
        let (code, out, err) = simulate(folder.path(), &[&args[..], more].concat());
        assert_eq!(code, 0, "{err}");
        out
    };
    assert_eq!(played(&[]), played(&["--stability", "on"]));
    assert_ne!(played(&[]), played(&["--stability", "off"]));
    let (code, _, err) = simulate(folder.path(), &[&args[..], &["--stability", "some"]].concat());
    assert!(code == 2 && err.contains("'some'") && err.contains("on, off"), "{code} {err}");
}

#[test]
fn failures_and_stragglers_cost_time() {
    let folder = TempDir::new().unwrap();
    let average = |more: &[&str]| {
        let args =
            ["--workload", "optimus", "--jobs", "6", "--seeds", "2", "--engines", "drf", "--no-timing", "--json"];
        let (code, out, err) = simulate(folder.path(), &[&args, more].concat());
        assert_eq!(code, 0, "{err}");
        let answer: Value = serde_json::from_str(&out).unwrap();
        answer["engines"]["drf"]["average_jct_s"].as_f64().unwrap_or_else(|| panic!("{answer}"))
    };
    let calm = average(&[]);
    assert!(average(&["--failures", "24"]) > calm);
    assert!(average(&["--stragglers", "6"]) > calm);
    assert_eq!(average(&["--failures", "0"]), calm);
}

#[test]
fn the_page_of_a_comparison_needs_no_network_and_plots_prices_where_there_are_some() {
    let folder = TempDir::new().unwrap();
    let (code, _, err) = simulate(
        folder.path(),
        &[SMALL, &["--engines", "oasis,fifo,offline", "--set", "offline.nodes=20", "--report", "page"]].concat(),
    );
    assert_eq!(code, 0, "{err}");
    let page = fs::read_to_string(folder.path().join("page/index.html")).unwrap();
    for wanted in [
        "Job completion times",
        "Utilisation",
        "Utility earned",
        "Prices of oasis",
        "gpu of workers",
        "unfinished",
        "Offline over fifo",
    ] {
        assert!(page.contains(wanted), "{wanted} isn't in the page");
    }
    assert!(!page.contains("Prices of fifo"));
    let outside = page.replace("http://www.w3.org/2000/svg", "");
    assert!(!outside.contains("http") && !outside.contains("<script"), "it would ask the network");
}
