//! Panics inside slurmctld, and foreign jobs that take planned nodes.

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::{
    cluster::{Plugins, available, until},
    site::{Setup, Site, training},
};

const GPU: &str = "#TRAINMASTER worker.gpu = 1";

/// Orders a fault, from now on or in the next round.
fn order(site: &Site, fault: impl Into<Value>) {
    // A round that panics doesn't answer.
    let mut control = UnixStream::connect(site.folder().join("state/trainmaster/control")).expect("the agent listens");
    writeln!(control, "{}", json!({ "command": "fault", "fault": fault.into() })).unwrap();
    let _ = control.read_to_string(&mut String::new());
}

fn pid(site: &Site) -> String {
    fs::read_to_string(site.folder().join("run/slurmctld.pid")).unwrap().trim().to_owned()
}

#[test]
fn engines_that_panic_hand_jobs_back() {
    if !available() {
        return;
    }
    let site = Setup { nodes: 2, plugins: Plugins::Faulty, ..Setup::default() }.start();
    let before = pid(&site);
    let running = site.submit("running", &training(60, GPU));
    until("it runs", || site.state(&running) == "RUNNING");
    order(&site, "engine");
    let held = site.submit("held", &training(3, GPU));
    // The engine panics three times, then the fallback three times. Then scheduling is paused.
    until("scheduling is paused", || site.status()["mode"] == "paused");
    site.completes(&held);
    assert!(site.show(&held).contains("NumTasks=3"), "as it was submitted: {}", site.show(&held));
    let log = site.log();
    for words in [
        "on purpose, in the engine",
        "the fallback engine decides from now on",
        "paused, all jobs are their manager's again",
    ] {
        assert!(log.contains(words), "{words:?} is missing in the log");
    }
    // Running jobs continue, new jobs start as usual, and an administrator can resume scheduling.
    site.completes(&site.submit("later", &training(3, GPU)));
    site.completes(&running);
    assert_eq!(pid(&site), before, "slurmctld lives");
    assert_eq!(site.ask(r#"{"command":"mode","mode":"active"}"#)["mode"], "active");
}

#[test]
fn after_a_panic_the_agent_continues_from_its_journal_and_pauses_after_another() {
    if !available() {
        return;
    }
    let site = Setup { nodes: 2, plugins: Plugins::Faulty, ..Setup::default() }.start();
    let before = pid(&site);
    let running = site.submit("running", &training(60, GPU));
    until("it trains", || site.job(&running).is_some_and(|job| job["epoch"].as_f64() > Some(0.0)));
    order(&site, "round");
    until("it went on", || site.log().contains("going on from the journal after a panic") && site.is_up());
    assert_eq!(site.status()["mode"], "active");
    let job = site.job(&running).expect("it is known");
    assert!(job["epoch"].as_f64() > Some(0.0), "{job}");
    // Decisions continue.
    let next = site.submit("next", &training(3, GPU));
    until("it is decided", || site.show(&next).contains("workers="));

    order(&site, "round");
    until("it pauses", || site.log().contains("paused after a second panic") && site.is_up());
    assert_eq!(site.status()["mode"], "paused");
    let released = site.submit("released", &training(3, GPU));
    for id in [&released, &next, &running] {
        site.completes(id);
    }
    assert!(site.show(&released).contains("NumTasks=3"), "as it was submitted: {}", site.show(&released));
    assert_eq!(pid(&site), before, "slurmctld lives");
}

#[test]
fn nodes_taken_by_other_jobs_are_planned_again() {
    if !available() {
        return;
    }
    let scheduler = "engine = \"fifo\"\nstability = \"off\"\nrefusal_backoff = \"3s\"\n";
    let slurm = "lease = \"10m\"\npatience = \"3s\"";
    let site = Setup { nodes: 2, plugins: Plugins::Faulty, scheduler, slurm, ..Setup::default() }.start();
    // Between the agent's check of Slurm and the order, a foreign job takes a node.
    let taken = site.folder().join("taken");
    order(&site, json!({ "late": taken }));
    let wide = "#TRAINMASTER worker.gpu = 4\n#TRAINMASTER worker.min = 2\n#SBATCH -N 2 -n 4 --gpus-per-node=4";
    let job = training(20, wide).replace("server.requested = 1", "server.requested = 2");
    let job = site.submit("wide", &job);
    let thief = ["-w", "node1", "-n", "1", "--gpus-per-node=4", "-o", "/dev/null"];
    let thief = site.sbatch(&thief, "#!/bin/sh\nsleep 600\n").unwrap();
    until("it is there first", || site.state(&thief) == "RUNNING");
    fs::write(taken, "").unwrap();
    until("Slurm says what our job was given", || site.show(&job).contains("workers=2"));
    assert_eq!(site.state(&job), "PENDING");
    until("it is held again, with a reason", || site.show(&job).contains("why="));
    let (orders, refusals) = (site.status()["orders"].as_u64(), site.status()["refusals"].as_u64());
    let since = Instant::now();
    thread::sleep(Duration::from_secs(5));
    let status = site.status();
    // An error loop would have one order in each round of 300 ms.
    let seconds = since.elapsed().as_secs();
    let now = |key: &str| status[key].as_u64().unwrap();
    assert!(now("orders") <= orders.unwrap() + seconds, "an error loop: {orders:?}, {status}");
    assert!(now("refusals") <= refusals.unwrap() + seconds / 2, "{refusals:?}, {status}");
    // A job that waited only for that node runs after it.
    site.run("scancel", &[&thief]);
    site.completes(&job);
    assert_eq!(site.field(&job, "NumNodes"), "2");
}
