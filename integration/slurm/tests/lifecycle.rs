//! The agent during the ordinary life of training jobs, and its recovery.

use std::{fs, thread, time::Duration};

use serde_json::Value;

use super::{
    cluster::{available, until},
    site::{BOTH, DRF, Setup, training},
};

#[test]
fn training_jobs_are_sized_resized_and_survive() {
    if !available() {
        return;
    }
    // Shares change with each arriving or leaving job.
    let site = Setup { scheduler: DRF, ..Setup::default() }.start();
    let ordinary = site.sbatch(&["-n1", "--gpus-per-node=1", "-o", "/dev/null"], "#!/bin/sh\nsleep 1\n").unwrap();
    let first = site.submit("first", &training(200, "#TRAINMASTER worker.gpu = 1"));
    until("it runs", || site.state(&first) == "RUNNING");
    // It requested two workers, and gets more while it is alone.
    assert!(site.field(&first, "Comment").starts_with("trainmaster;"));
    let given = |id: &str| site.field(id, "AdminComment");
    until("Slurm says what it was given", || given(&first).contains("workers="));
    until("it trains", || site.output("first").contains("step"));
    let at_first = given(&first);

    // It is explained, and an invalid request is refused with a message.
    let explained = site.ask(&format!("{{\"command\":\"explain\",\"job\":\"{first}\"}}"));
    assert!(explained["findings"].as_array().is_some_and(|findings| !findings.is_empty()), "{explained}");
    let metrics = site.ask(r#"{"command":"metrics"}"#);
    let metrics = metrics["metrics"].as_str().expect("it is a text");
    for line in [
        "trainmaster_jobs{state=\"running\"} 1",
        "trainmaster_engine_info{engine=\"drf\"} 1",
        "trainmaster_refusals_total 0",
    ] {
        assert!(metrics.lines().any(|have| have == line), "{line}: {metrics}");
    }
    let unknown = site.ask(r#"{"command":"explain","job":"4711"}"#);
    assert!(unknown["error"].to_string().contains("4711"));

    // Other jobs take their share. The job restarts from its checkpoint with less, or moves. They train on until after
    // the crash: Slurm shows a job that it restarts when its training is done as cancelled.
    let others = ["b", "c", "d"].map(|name| site.submit(name, &training(60, "#TRAINMASTER worker.gpu = 1")));
    until("it changes", || given(&first).contains("workers=") && given(&first) != at_first);
    until("it goes on", || site.output("first").contains("resuming from a checkpoint"));
    assert_ne!(site.field(&first, "Restarts"), "0");

    // The controller crashes meanwhile. Nothing is lost, and decisions continue.
    site.saves();
    let before = site.status();
    site.restart("-KILL");
    until("the agent is back", || site.is_up());
    let names = |status: &Value| -> Vec<String> {
        let mut names: Vec<String> =
            status["jobs"].as_array().unwrap().iter().map(|job| job["name"].to_string()).collect();
        names.sort();
        names
    };
    let after = site.status();
    for name in names(&after) {
        assert!(names(&before).contains(&name), "{name} is new in {after}");
    }
    assert!(site.log().contains("jobs=") && !site.log().contains("can't be read"));

    // The configuration is read again while jobs run.
    site.scontrol(&["reconfigure"]);
    // A cancelled job is forgotten.
    site.run("scancel", &[&others[2]]);
    until("the agent forgets a cancelled job", || site.job(&others[2]).is_none());
    assert_eq!(site.state(&ordinary), "COMPLETED");

    // The job of a drained node moves. Slurm itself drains nodes on which a job started again after the crash.
    for node in ["node1", "node2", "node3"] {
        site.run("scontrol", &["update", &format!("nodename={node}"), "state=resume"]);
    }
    until("it runs again", || site.state(&first) == "RUNNING");
    let node = site.nodes(&first, "NodeList").first().expect("it runs").clone();
    site.scontrol(&["update", &format!("nodename={node}"), "state=drain", "reason=test"]);
    until("it moves", || site.state(&first) == "RUNNING" && !site.nodes(&first, "NodeList").contains(&node));
    site.scontrol(&["update", &format!("nodename={node}"), "state=resume"]);
    others[..2].iter().for_each(|id| site.completes(id));
    site.completes(&first);
    // Each epoch once: restarts continued from checkpoints.
    let epochs = site.output("first").lines().filter(|line| line.contains("epoch 199,")).count();
    assert_eq!(epochs, 1, "{}", site.output("first"));
}

#[test]
fn paused_or_removed_jobs_run_in_slurm_as_submitted() {
    if !available() {
        return;
    }
    // An engine that starts no job: all jobs wait.
    let scheduler = "engine = \"oasis\"\n[scheduler.parameters]\nrejected = \"held\"\n";
    let site = Setup { nodes: 2, scheduler, ..Setup::default() }.start();
    let job = training(3, "#TRAINMASTER worker.gpu = 1");
    let waiting = site.submit("waiting", &job);
    until("Slurm says why it waits", || site.show(&waiting).contains("why="));
    assert_eq!(site.state(&waiting), "PENDING");

    // The off switch: the job belongs to Slurm at once, and runs as submitted.
    let status = site.ask(r#"{"command":"mode","mode":"paused"}"#);
    assert_eq!(status["mode"], "paused");
    let at_once = site.submit("at-once", &job);
    site.completes(&at_once);
    site.completes(&waiting);
    let status = site.ask(r#"{"command":"mode","mode":"active"}"#);
    assert_eq!(status["mode"], "active");

    // Without the plugin, held jobs start when their leases end.
    let held = site.submit("held", &job);
    assert_eq!(site.state(&held), "PENDING");
    let conf = site.folder().join("etc/slurm.conf");
    let text = fs::read_to_string(&conf).unwrap();
    fs::write(&conf, text.replace(BOTH, "")).unwrap();
    site.restart("-TERM");
    thread::sleep(Duration::from_secs(1));
    site.completes(&held);
}
