//! The commands without a daemon, run like by a user.

use std::{fs, path::Path, process::Command};

use serde_json::Value;
use tempfile::TempDir;

struct Ran {
    code: i32,
    out: String,
    err: String,
}

impl Ran {
    fn json(&self) -> Value {
        assert_eq!(self.code, 0, "{}", self.err);
        serde_json::from_str(&self.out).expect("one JSON document")
    }

    /// Asserts that the command failed with this code and one line on standard error with all of these words.
    #[track_caller]
    fn fails(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, code, "{}{}", self.out, self.err);
        assert_eq!(self.out, "");
        for word in words {
            assert!(self.err.contains(word), "{word:?} isn't in: {}", self.err);
        }
        if code != 2 {
            assert_eq!(self.err.lines().count(), 1, "{}", self.err);
        }
    }
}

fn trainmaster(folder: &Path, args: &[&str]) -> Ran {
    let output = Command::new(env!("CARGO_BIN_EXE_trainmaster")).args(args).current_dir(folder).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
}

/// Runs the command in a folder with one file.
fn with_file(text: &str, args: &[&str]) -> Ran {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("data.csv"), text).unwrap();
    trainmaster(folder.path(), args)
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

#[track_caller]
fn near(found: &[f64], truth: &[f64], tolerance: f64) {
    assert_eq!(found.len(), truth.len(), "{found:?}");
    for (found, truth) in found.iter().zip(truth) {
        assert!((found - truth).abs() <= tolerance * truth.abs(), "{found} isn't {truth} within {tolerance}");
    }
}

#[test]
fn every_command_has_help() {
    let folder = TempDir::new().unwrap();
    let all = trainmaster(folder.path(), &["--help"]);
    assert_eq!(all.code, 0);
    assert!(all.out.contains("Exit codes"), "{}", all.out);
    let commands = all.out.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let mut seen = 0;
    for command in commands.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help") {
        let help = trainmaster(folder.path(), &[command, "--help"]);
        assert_eq!(help.code, 0, "{command}");
        assert!(help.out.contains("Usage: trainmaster"), "{command}: {}", help.out);
        seen += 1;
    }
    assert!(seen >= 16, "{}", all.out);
}

#[test]
fn commands_without_a_daemon_accept_and_hide_its_options() {
    let folder = TempDir::new().unwrap();
    for args in [&["engines"][..], &["paa"], &["demo"], &["fit"], &["fit", "speed"], &["fit", "loss"]] {
        let help = trainmaster(folder.path(), &[args, &["--help"]].concat());
        assert!(help.code == 0 && !help.out.contains("--server ") && !help.out.contains("--ca"), "{}", help.out);
    }
    let serve = trainmaster(folder.path(), &["serve", "--help"]).out;
    assert!(serve.contains("--token-file") && !serve.contains("--server "), "{serve}");
    assert!(trainmaster(folder.path(), &["jobs", "--help"]).out.contains("--server "));
    let daemon = ["--server", "http://a:1", "--token-file", "/t", "--ca", "/c"];
    assert_eq!(trainmaster(folder.path(), &[&daemon[..], &["engines"]].concat()).code, 0);
    assert_eq!(trainmaster(folder.path(), &[&["engines"], &daemon[..]].concat()).code, 0);
}

#[test]
fn wrong_usage_exits_with_2() {
    let folder = TempDir::new().unwrap();
    for args in [
        &["frobnicate"][..],
        &[],
        &["paa", "--blocks", "x"],
        &["paa", "--blocks", "x", "--servers", "0"],
        &["fit", "speed", "--csv", "x", "--mode", "half"],
        &["fit", "speed", "--csv", "x", "--mode", "sync", "--seed", "1"],
        &["fit", "speed", "--csv", "x", "--mode", "sync", "--choose"],
        &["fit", "loss", "--csv", "x", "--until", "1.5"],
        &["fit", "loss", "--csv", "x", "--until", "nan"],
    ] {
        trainmaster(folder.path(), args).fails(2, &[]);
    }
    // A negative number is a value, not an option.
    for (args, allowed) in [
        (&["fit", "loss", "--csv", "x", "--delta", "-1"][..], "above 0, at most 1"),
        (&["fit", "loss", "--csv", "x", "--max-epochs", "-1"], "-1 is not in 1.."),
        (&["fit", "speed", "--csv", "x", "--mode", "sync", "--batch", "-1"], "-1 is not in 1.."),
        (&["paa", "--blocks", "x", "--servers", "-1"], "-1 is not in 1..=1000000"),
        (&["fit", "speed", "--csv", "x", "--mode", "sync", "--sample", "3", "--seed", "-1"], "from 0 to"),
        (&["demo", "--seeds", "-1"], "-1 is not in 1..=100"),
        (&["demo", "--seeds", "101"], "101 is not in 1..=100"),
        (&["demo", "--seed", "1000000001"], "is not in 0..=1000000000"),
        (&["demo", "--limit", "0"], "0 is not in 1..=86400"),
    ] {
        trainmaster(folder.path(), args).fails(2, &[allowed]);
    }
    trainmaster(folder.path(), &["--json", "demo"]).fails(2, &["demo --json FILE"]);
}

/// Rows of groups whose network between servers is slower than within one.
fn groups() -> String {
    let mut text = "w,nodes,local_bsz,speed\n".to_owned();
    for (w, nodes) in [(1.0_f64, 1), (2.0, 1), (4.0, 1), (8.0, 1), (2.0, 2), (4.0, 2), (8.0, 2), (8.0, 8), (16.0, 4)] {
        for batch in [16.0, 32.0, 64.0] {
            let network = match (w > 1.0, nodes) {
                (false, _) => 0.0,
                (true, 1) => 0.02 + 0.001 * w,
                (true, _) => 0.3 + 0.005 * w,
            };
            text += &format!("{w},{nodes},{batch},{}\n", 1.0 / (0.05 + 0.004 * batch + network));
        }
    }
    text
}

#[test]
fn speeds_of_groups_follow_the_networks_levels() {
    let all = ["fit", "speed", "--csv", "data.csv", "--mode", "allreduce", "--json"];
    let sampled = [&all[..], &["--sample", "12"]].concat();
    let levels = with_file(&groups(), &sampled).json();
    assert!(levels["gamma"].as_f64().unwrap() > 1.0 && levels.get("cross").is_none(), "{levels}");
    assert_eq!((numbers(&levels["theta"]).len(), levels["points_used"].as_u64()), (6, Some(12)));
    assert!(levels["mape_unseen"].as_f64().unwrap() < 0.1, "{levels}");
    assert!((0.5..=1.0).contains(&levels["covered_unseen"].as_f64().unwrap()), "{levels}");
    let [w, nodes] = ["workers", "nodes"].map(|key| levels["next"][key].as_u64().unwrap());
    assert!(nodes <= w && w <= 8 * nodes, "no server has had more than eight: {levels}");
    let chosen = with_file(&groups(), &[&sampled[..], &["--choose"]].concat()).json();
    assert!(chosen["mape_unseen"].as_f64().unwrap() < 0.1, "{chosen}");
    let told = with_file(&groups(), &["fit", "speed", "--csv", "data.csv", "--mode", "allreduce", "--sample", "12"]);
    assert!(told.out.contains("θ5") && told.out.contains("intervals of 90 %"), "{}", told.out);

    // Without the servers, and as published, it is the other form, which can't explain these rows.
    let without = groups().replace("nodes", "hosts");
    let form = with_file(&without, &sampled).json();
    assert!(form.get("gamma").is_none() && numbers(&form["theta"]).len() == 4, "{form}");
    assert!(form["mape_unseen"].as_f64() > levels["mape_unseen"].as_f64(), "{form} {levels}");
    assert!(with_file(&groups(), &[&all[..], &["--paper"]].concat()).json().get("gamma").is_none());
    // Rows that the other form explains exactly.
    let theta = [0.004, 0.02, 0.5, 0.01];
    let exact = |w: f64, n: u32, m: f64| {
        let time = theta[0] * m + theta[1] + theta[2] * (w - 1.0) / w + theta[3] * w;
        format!("{w},{n},{m},{}\n", 1.0 / time)
    };
    let rows = [(1.0, 1), (2.0, 1), (2.0, 2), (3.0, 1), (4.0, 4), (6.0, 2), (8.0, 1), (12.0, 3), (16.0, 4)];
    let rows = rows.iter().flat_map(|(w, n)| [8.0, 64.0].map(|m| exact(*w, *n, m)));
    let fit = with_file(&rows.fold("w,nodes,local_bsz,speed\n".to_owned(), |text, row| text + &row), &all).json();
    assert!(fit.get("gamma").is_none() && fit["mape_all"].as_f64().unwrap() < 0.01, "{fit}");

    let args = ["fit", "speed", "--csv", "data.csv", "--mode", "allreduce"];
    with_file("w,nodes,speed\n2,2,1\n4,5,2\n", &args).fails(1, &["line 3", "\"nodes\"", "5", "4 workers"]);
    with_file("w,nodes,speed\n2,0,1\n", &args).fails(1, &["line 2", "\"nodes\"", "0", "from 1 to"]);
    with_file("w,batch,local_bsz,speed\n2,64,32,1\n", &args).fails(1, &["batch", "local_bsz"]);
    with_file("w,local_bsz,speed\n2,32,1\n", &[&args[..], &["--batch", "64"]].concat())
        .fails(1, &["--batch 64", "local_bsz"]);
}

/// What `serve` refuses, `doctor` finds. Both name the file.
#[test]
fn an_engine_that_a_configuration_gets_wrong_is_named_with_its_file() {
    let wrong = [
        ("engine = \"optimos\"", "optimos"),
        ("engine = \"drf\"\nparameters = { placement = \"loose\" }", "loose"),
        ("engine = \"drf\"\nfallback = \"nobody\"", "nobody"),
    ];
    for (settings, word) in wrong {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("conf.toml"), format!("[scheduler]\n{settings}\n")).unwrap();
        let file = ["--config", "conf.toml", "--state-dir", "state"];
        // Nothing answers there.
        let doctor = trainmaster(folder.path(), &[&["doctor", "--server", "http://127.0.0.1:9"], &file[..]].concat());
        let found = doctor.out.lines().find(|line| line.contains("configuration")).unwrap_or_default().to_owned();
        assert!(found.contains("bad") && found.contains("conf.toml: [scheduler]: ") && found.contains(word), "{found}");
        let serve = trainmaster(folder.path(), &[&["serve"], &file[..]].concat());
        serve.fails(1, &["conf.toml: [scheduler]: ", word]);
        assert!(!folder.path().join("state").exists(), "nothing was started");
    }
}

#[test]
fn engines_are_listed_with_their_parameters() {
    let folder = TempDir::new().unwrap();
    let engines = trainmaster(folder.path(), &["engines", "--json"]).json();
    let names: Vec<_> = engines.as_array().unwrap().iter().map(|engine| engine["name"].as_str().unwrap()).collect();
    let known: Vec<_> = trainmaster_core::engines::REGISTRY.iter().map(|entry| entry.name).collect();
    assert_eq!(names, known);
    for engine in engines.as_array().unwrap() {
        assert!(engine["summary"].is_string() && engine["paper"].is_string(), "{engine}");
        for parameter in engine["parameters"].as_array().unwrap() {
            let keys: Vec<_> = parameter.as_object().unwrap().keys().map(String::as_str).collect();
            assert_eq!(keys, ["default", "meaning", "name"]);
            assert!(!parameter["default"].is_object() && !parameter["default"].is_null(), "{parameter}");
        }
    }
    let one = trainmaster(folder.path(), &["engines", "optimus"]);
    assert!(
        one.code == 0 && one.out.contains("interval") && one.out.contains("60s") && one.out.contains("10s"),
        "{}",
        one.out
    );
    assert_eq!(trainmaster(folder.path(), &["engines", "optimus", "--json"]).json(), engines[0]);
    assert_eq!(trainmaster(folder.path(), &["--json", "engines", "optimus"]).json(), engines[0]);
    trainmaster(folder.path(), &["engines", "optimum"]).fails(1, &["optimum", "optimus", "fifo"]);
}

/// Speeds of every pair up to 8 by 8, from a step time.
fn speeds(head: &str, row: impl Fn(f64, f64) -> String) -> String {
    let pairs = (1..=8).flat_map(|p| (1..=8).map(move |w| (f64::from(p), f64::from(w))));
    pairs.fold(format!("{head}\n"), |text, (p, w)| text + &row(p, w) + "\n")
}

#[test]
fn speeds_give_back_the_coefficients_they_were_made_from() {
    let theta = [0.01, 0.05, 0.1, 0.002, 0.003];
    let time = |p: f64, w: f64, m: f64| theta[0] * m / w + theta[1] + theta[2] * w / p + theta[3] * w + theta[4] * p;
    // Columns in another order, and an additional one.
    let text = speeds("w,host,p,speed", |p, w| format!("{w}, a b ,{p},{}", 1.0 / time(p, w, 128.0)));
    let fit =
        with_file(&text, &["fit", "speed", "--csv", "data.csv", "--mode", "sync", "--batch", "128", "--json"]).json();
    near(&numbers(&fit["theta"]), &theta, 0.05);
    assert_eq!(fit["points_used"], 64);
    assert!(fit["mape_all"].as_f64().unwrap() < 0.005, "{fit}");
    assert!(fit["mape_unseen"].is_null(), "{fit}");

    let sampled = ["fit", "speed", "--csv", "data.csv", "--mode", "sync", "--batch", "128", "--sample", "12", "--json"];
    let fit = with_file(&text, &sampled).json();
    assert_eq!(fit["points_used"], 12);
    assert!(fit["mape_unseen"].as_f64().unwrap() < 0.05, "{fit}");
    assert_eq!(fit, with_file(&text, &sampled).json());

    // Rows that are chosen as one would measure them.
    let error = |more: &[&str]| {
        let few = ["fit", "speed", "--csv", "data.csv", "--mode", "sync", "--batch", "128", "--sample", "5", "--json"];
        let fit = with_file(&text, &[&few[..], more].concat()).json();
        assert_eq!(fit["points_used"], 5);
        fit["mape_unseen"].as_f64().unwrap()
    };
    let mean = |more: &[&str]| {
        let seeds = ["1", "2", "3", "4", "5", "6"];
        seeds.iter().map(|seed| error(&[&["--seed", seed], more].concat())).sum::<f64>() / 6.0
    };
    let (chosen, random) = (mean(&["--choose"]), mean(&[]));
    assert!(chosen < random, "{chosen} {random}");
    assert_eq!(error(&["--choose"]), error(&["--choose"]));

    // The next shape to measure is within the measured numbers.
    let narrow = "p,w,speed\n2,1,1\n2,2,1.5\n2,3,2\n2,6,2.5\n2,6,2.6\n";
    let fit = with_file(narrow, &["fit", "speed", "--csv", "data.csv", "--mode", "sync", "--json"]).json();
    let (p, w) = (fit["next"]["servers"].as_u64().unwrap(), fit["next"]["workers"].as_u64().unwrap());
    assert!([1, 2, 4].contains(&p) && [1, 2, 4, 6, 8].contains(&w), "{fit}");
    assert!(p != 2 || [4, 8].contains(&w), "it isn't measured yet: {fit}");
    // Its advice can be followed from the first row on.
    let mut rows = "p,w,speed\n1,1,1\n".to_owned();
    for _ in 0..8 {
        let fit = with_file(&rows, &["fit", "speed", "--csv", "data.csv", "--mode", "sync", "--json"]).json();
        let [p, w] = ["servers", "workers"].map(|role| fit["next"][role].as_u64().unwrap());
        let row = format!("{p},{w},");
        assert!(!rows.contains(&format!("\n{row}")), "{row} twice");
        rows += &format!("{row}{}\n", 1.0 / time(p as f64, w as f64, 128.0));
    }
    let huge = "p,w,speed\n4294967295,4294967295,1\n";
    let fit = with_file(huge, &["fit", "speed", "--csv", "data.csv", "--mode", "sync", "--json"]).json();
    assert!(fit["next"]["workers"].as_u64().unwrap() <= u64::from(u32::MAX), "{fit}");
    let alone = with_file("w,speed\n1,1\n4,3\n", &["fit", "speed", "--csv", "data.csv", "--mode", "allreduce"]);
    assert!(alone.out.contains("The fit says least about w = "), "{}", alone.out);
    let both = with_file("p,w,speed\n2,1,1\n2,4,3\n", &["fit", "speed", "--csv", "data.csv", "--mode", "allreduce"]);
    assert!(both.out.contains("The fit says least about w = "), "{}", both.out);
    with_file(&text, &["fit", "speed", "--csv", "data.csv", "--mode", "sync", "--sample", "201", "--choose"])
        .fails(1, &["--sample 201", "at most 200"]);

    // A constant ratio causes a warning.
    let same = "p,w,speed\n1,2,1\n2,4,2\n3,6,2.5\n";
    let told = with_file(same, &["fit", "speed", "--csv", "data.csv", "--mode", "sync"]);
    assert!(told.out.contains("w/p is the same") && !told.out.contains("overlap"), "{}", told.out);
    assert!(told.out.contains("3 rows that differ can't determine 5 terms"), "{}", told.out);
    let again =
        with_file(&format!("{same}1,2,1.01\n"), &["fit", "speed", "--csv", "data.csv", "--mode", "async", "--json"]);
    let warnings = again.json()["warnings"].as_array().unwrap().len();
    assert_eq!(warnings, 2, "a row measured twice says no more about the terms: {}", again.out);

    // A batch for each row, instead of one for all.
    let text = speeds("p,w,batch,speed", |p, w| {
        let batch = if (p + w) % 2.0 == 0.0 { 64.0 } else { 256.0 };
        format!("{p},{w},{batch},{}", 1.0 / time(p, w, batch))
    });
    let fit = with_file(&text, &["fit", "speed", "--csv", "data.csv", "--mode", "sync", "--json"]).json();
    near(&numbers(&fit["theta"]), &theta, 0.05);
    with_file(&text, &["fit", "speed", "--csv", "data.csv", "--mode", "sync", "--batch", "64"])
        .fails(1, &["--batch 64", "column batch"]);
}

#[test]
fn every_training_mode_has_its_own_form() {
    let theta = [0.5, 0.1, 0.02, 0.01];
    let text = speeds("p,w,speed", |p, w| {
        format!("{p},{w},{}", w / (theta[0] + theta[1] * w / p + theta[2] * w + theta[3] * p))
    });
    let fit = with_file(&text, &["fit", "speed", "--csv", "data.csv", "--mode", "async", "--json"]).json();
    near(&numbers(&fit["theta"]), &theta, 0.05);

    let theta = [0.01, 0.1, 0.2, 0.003];
    let rows = (1..=32)
        .map(f64::from)
        .map(|w| format!("{w},{}\n", 1.0 / (theta[0] * 64.0 / w + theta[1] + theta[2] * (w - 1.0) / w + theta[3] * w)));
    let text = format!("w,speed\n{}", rows.collect::<String>());
    let args = ["fit", "speed", "--csv", "data.csv", "--mode", "allreduce", "--batch", "64", "--json"];
    let fit = with_file(&text, &args).json();
    assert!(fit["mape_all"].as_f64().unwrap() < 0.01, "{fit}");
    assert_eq!(fit["warnings"], Value::Array(Vec::new()));
    assert_eq!(fit["theta"].as_array().unwrap().len(), 4);
}

#[test]
fn speed_files_that_make_no_sense_are_named() {
    let speed = ["fit", "speed", "--csv", "data.csv", "--mode", "sync"];
    for (text, words) in [
        ("", &["data.csv", "\"p\"", "empty"][..]),
        ("p,w,speed\n", &["data.csv", "no row"]),
        ("p,speed\n1,1\n", &["\"w\"", "missing", "\"speed\""]),
        ("p,w,w,speed\n1,1,1,1\n", &["\"w\"", "twice"]),
        ("p,w,speed\n1,1,2\n1,2,NaN\n", &["line 3", "\"speed\"", "NaN", "above 0"]),
        ("p,w,speed\n1,1,-2\n", &["line 2", "\"speed\"", "-2", "above 0"]),
        ("p,w,speed\n1,1,inf\n", &["line 2", "inf"]),
        ("p,w,speed\n0,1,2\n", &["line 2", "\"p\"", "\"0\"", "from 1"]),
        ("p,w,speed\n1,1.5,2\n", &["line 2", "\"w\"", "1.5", "whole"]),
        ("p,w,speed\n1,,2\n", &["line 2", "\"w\"", "\"\""]),
        ("p,w,speed\n1,2\n", &["line 2", "2 values", "3"]),
        ("p,w,speed,batch\n1,2,3,0\n", &["line 2", "\"batch\""]),
    ] {
        with_file(text, &speed).fails(1, words);
    }
    with_file("p,w,speed\n1,1,2\n", &[&speed[..], &["--sample", "2"]].concat()).fails(1, &["--sample 2", "1 rows"]);
    with_file("", &["fit", "speed", "--csv", "nowhere.csv", "--mode", "sync"])
        .fails(1, &["nowhere.csv", "can't be read"]);
}

/// 4·(1/(0.2k + 1) + 0.1)/1.1 for 60 epochs; the largest is 4.
fn losses(head: &str, steps: u32) -> String {
    let loss = |k: u32| 4.0 * (1.0 / (0.2 * f64::from(k) + 1.0) + 0.1) / 1.1;
    (0..60).fold(format!("{head}\n"), |text, k| text + &format!("{},{}\n", k * steps, loss(k)))
}

#[test]
fn losses_give_back_the_curve_they_were_made_from() {
    let args = ["fit", "loss", "--csv", "data.csv", "--until", "0.5", "--delta", "0.002", "--patience", "3", "--json"];
    let fit = with_file(&losses("epoch,loss", 1), &args).json();
    assert_eq!(fit["family"], "inverse");
    near(&numbers(&fit["beta"]), &[0.22, 1.1, 0.1 / 1.1], 0.01);
    assert!(fit["rmse"].as_f64().unwrap() < 1e-4, "{fit}");
    let last = fit["actual_final"].as_f64().unwrap();
    near(&[fit["predicted_final"].as_f64().unwrap()], &[last], 1e-3);
    // 0.2/((0.2(k−1)+1)(0.2k+1)) < 0.002·1.1 from k = 44 on. Three consecutive epochs end with 46.
    let at = fit["converges_at"].as_f64().unwrap();
    let interval = numbers(&fit["interval"]);
    assert!((45.0..=47.0).contains(&at) && interval[0] <= at && at <= interval[1], "{fit}");

    // With steps, the answer is in steps. By default a row is an epoch.
    let by_step = with_file(&losses("step,loss", 250), &args).json();
    assert_eq!(by_step["converges_at"].as_f64().unwrap(), 250.0 * at);
    assert_eq!(by_step["predicted_final"], fit["predicted_final"]);
    let told = with_file(&losses("step,loss", 250), &[&args[..], &["--steps-per-epoch", "250"]].concat()).json();
    assert_eq!(told["converges_at"], by_step["converges_at"]);
}

#[test]
fn a_converged_curve_has_its_epoch() {
    let args = ["fit", "loss", "--csv", "data.csv", "--delta", "0.01", "--json"];
    let fit = with_file(&losses("epoch,loss", 1), &args).json();
    // 0.2/((0.2(k−1)+1)(0.2k+1)) < 0.011 from k = 17 on.
    assert_eq!(fit["converges_at"], 19.0);
    assert_eq!(numbers(&fit["interval"]), [19.0, 19.0]);
}

#[test]
fn a_loss_that_rises_has_not_converged() {
    let rows = (0..30).map(|k| format!("{k},{}\n", 1.0 + 0.05 * f64::from(k)));
    let rising = format!("epoch,loss\n{}", rows.collect::<String>());
    let told = with_file(&rising, &["fit", "loss", "--csv", "data.csv"]);
    assert!(told.out.contains("because it rises") && !told.out.contains("Has converged"), "{}", told.out);
    assert_eq!(with_file(&rising, &["fit", "loss", "--csv", "data.csv", "--json"]).json()["rises"], true);
    // A constant loss with a little noise has converged.
    let rows = (0..30).map(|k| format!("{k},{}\n", if k % 2 == 0 { 1.0 } else { 1.004 }));
    let flat = format!("epoch,loss\n{}", rows.collect::<String>());
    let told = with_file(&flat, &["fit", "loss", "--csv", "data.csv"]);
    assert!(told.out.contains("Has converged at epoch 3."), "{}", told.out);
    assert_eq!(with_file(&flat, &["fit", "loss", "--csv", "data.csv", "--json"]).json()["rises"], false);
}

#[test]
fn options_that_contradict_the_file_are_refused() {
    let loss = |head, steps, more: &[&str]| {
        with_file(&losses(head, steps), &[&["fit", "loss", "--csv", "data.csv", "--delta", "0.002"], more].concat())
    };
    loss("epoch,loss", 1, &["--steps-per-epoch", "10"]).fails(1, &["--steps-per-epoch 10", "data.csv", "epoch"]);
    loss("epoch,loss", 1, &["--max-epochs", "58"]).fails(1, &["--max-epochs 58", "epoch 59", "59 or more"]);
    loss("step,loss", 250, &["--max-epochs", "10"]).fails(1, &["--max-epochs 10", "epoch 59 (step 14750)"]);
    assert_eq!(loss("epoch,loss", 1, &["--max-epochs", "59"]).code, 0);
    let capped = loss("epoch,loss", 1, &["--until", "0.3", "--max-epochs", "30"]);
    assert!(capped.out.contains("Doesn't converge before epoch 30, the last allowed."), "{}", capped.out);
}

#[test]
fn loss_files_that_make_no_sense_are_named() {
    for (text, words) in [
        ("", &["\"epoch\"", "empty"][..]),
        ("epoch,loss\n", &["no row"]),
        ("epoch,loss\n1,2\n2,1\n", &["data.csv", "2 epochs", "needs 3"]),
        ("time,loss\n1,2\n", &["\"epoch\"", "\"time\""]),
        ("step,val\n1,2\n", &["\"loss\"", "missing"]),
        ("step,loss\n1,2\n1,NaN\n", &["line 3", "\"loss\"", "NaN"]),
        ("step,loss\n1,-2\n", &["line 2", "\"loss\"", "-2", "0 or more"]),
        ("step,loss\n-1,2\n", &["line 2", "\"step\""]),
        ("step,loss\n10,2\n5,1\n", &["line 3", "\"step\"", "5", "10"]),
        ("step,loss\n1,2\n1,2\n1,2\n", &["one step"]),
        ("epoch,loss\n1,0\n2,0\n3,0\n", &["all losses are 0"]),
    ] {
        with_file(text, &["fit", "loss", "--csv", "data.csv"]).fails(1, words);
    }
}

#[test]
fn blocks_are_assigned_piece_by_piece() {
    let spread = with_file("90\n20\n\n10\n", &["paa", "--blocks", "data.csv", "--servers", "2", "--json"]).json();
    assert_eq!((&spread["size_spread"], &spread["requests"]), (&0.into(), &4.into()));
    let servers = spread["servers"].as_array().unwrap();
    assert_eq!(servers.len(), 2);
    let mut covered = [0_u64; 3];
    for server in servers {
        let pieces = server["pieces"].as_array().unwrap();
        assert_eq!(server["requests"].as_u64().unwrap(), pieces.len() as u64);
        let size: u64 = pieces.iter().map(|piece| piece["length"].as_u64().unwrap()).sum();
        assert_eq!(server["size"].as_u64().unwrap(), size);
        for piece in pieces {
            covered[piece["block"].as_u64().unwrap() as usize] += piece["length"].as_u64().unwrap();
        }
    }
    assert_eq!(covered, [90, 20, 10]);
    let table = with_file("90\n20\n10\n", &["paa", "--blocks", "data.csv", "--servers", "2"]);
    assert!(table.out.contains("3 blocks, 1 of them cut"), "{}", table.out);
}

#[test]
fn block_files_that_make_no_sense_are_named() {
    for (text, words) in [
        ("", &["data.csv", "no block"][..]),
        ("1\n-2\n", &["line 2", "\"-2\"", "whole number"]),
        ("1\nNaN\n", &["line 2", "NaN"]),
        ("18446744073709551615\n1\n", &["more than"]),
    ] {
        with_file(text, &["paa", "--blocks", "data.csv", "--servers", "2"]).fails(1, words);
    }
}
