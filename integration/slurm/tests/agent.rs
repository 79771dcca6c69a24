//! `slurmctld/trainmaster` in a real slurmctld, with real training programs: what it does, and what it survives.

mod cluster;

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

use cluster::{Cluster, available, plugins, root, until};
use serde_json::Value;

const BOTH: &str = "SlurmctldPlugstack=trainmaster\nJobSubmitPlugins=trainmaster";
const LEASE: &str = "20s";

/// A training job of so many epochs; GPUs and servers are emulated, all else is real.
fn script(programs: &Path, epochs: u32) -> String {
    let steps = root().join("integration/slurm");
    format!(
        "#!/bin/bash\n#SBATCH -n 3 --gpus-per-node=2 -N 1\n#TRAINMASTER mode = sync\n#TRAINMASTER batch = 240\n\
         #TRAINMASTER worker.requested = 2\n#TRAINMASTER worker.max = 8\n#TRAINMASTER worker.gpu = 1\n\
         #TRAINMASTER worker.cpu = 1\n#TRAINMASTER server.requested = 1\n#TRAINMASTER server.max = 4\n\
         #TRAINMASTER server.cpu = 1\n#TRAINMASTER convergence.delta = 0\n\
         #TRAINMASTER convergence.max_epochs = {epochs}\n\
         export PATH={}:{}:$PATH\nexport TRAINMASTER_WORKERS=2 TRAINMASTER_SERVERS=1 TRAINMASTER_BATCH=240 \
         TRAINMASTER_DELTA=0 TRAINMASTER_MAX_EPOCHS={epochs}\n\
         trainmaster-step -- trainmaster-trainer --device-example-ms 0.5 --device-step-ms 10 --device-update-ms 5\n",
        programs.display(),
        steps.display()
    )
}

/// Where the training program is; built if it is missing, with the features of whoever tests the workspace.
fn programs() -> PathBuf {
    let built = Command::new(env!("CARGO")).args(["build", "--locked", "--workspace", "--bins"]).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    root().join("target/debug")
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn start(nodes: u32, extra: &str, scheduler: &str) -> Cluster {
    let port = free_port();
    let config = format!(
        "poll = \"300ms\"\n[feed]\nlisten = \"127.0.0.1:{port}\"\n[slurm]\nlease = \"{LEASE}\"\nfeed = \
         \"http://127.0.0.1:{port}\"\n[scheduler]\n{scheduler}"
    );
    let plugins = plugins();
    Cluster::start(nodes, extra, Some(&plugins), |folder| {
        fs::create_dir_all(folder.join("etc")).unwrap();
        fs::write(folder.join("etc/trainmaster.toml"), config).unwrap();
    })
}

const OPTIMUS: &str = "engine = \"optimus\"\nstability = \"off\"\n[scheduler.parameters]\ninterval = \"4s\"\n\
                       between_rounds = true\nshrink_to_fit = true\nspare_gpus = true\n";

/// What the agent answers on its control socket.
fn ask(cluster: &Cluster, request: &str) -> Value {
    let mut stream =
        UnixStream::connect(cluster.folder().join("state/trainmaster/control")).expect("the agent listens");
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    writeln!(stream, "{request}").unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
}

fn is_up(cluster: &Cluster) -> bool {
    UnixStream::connect(cluster.folder().join("state/trainmaster/control")).is_ok()
}

fn submit(cluster: &Cluster, name: &str, script: &str) -> String {
    let out = cluster.folder().join(format!("out-{name}"));
    cluster.sbatch(&["-J", name, "-o", out.to_str().unwrap()], script).unwrap()
}

fn state(cluster: &Cluster, id: &str) -> String {
    cluster.field(id, "JobState")
}

fn log(cluster: &Cluster) -> String {
    fs::read_to_string(cluster.folder().join("log/slurmctld.log")).unwrap()
}

/// The controller ends as a crash would end it, or in good order, and is started again.
fn restart(cluster: &Cluster, signal: &str) {
    let file = cluster.folder().join("run/slurmctld.pid");
    let pid = fs::read_to_string(&file).unwrap().trim().to_owned();
    assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    until("slurmctld ends", || !Path::new("/proc").join(&pid).exists());
    let started = cluster.run("slurmctld", &[]);
    assert!(started.status.success(), "{}", String::from_utf8_lossy(&started.stderr));
    until("slurmctld is back", || cluster.run("scontrol", &["ping"]).status.success());
    // For whoever stops the cluster.
    let pid = fs::read_to_string(&file).unwrap();
    let mut pids = fs::OpenOptions::new().append(true).open(cluster.folder().join("run/pids")).unwrap();
    writeln!(pids, "{}", pid.trim()).unwrap();
}

#[test]
fn training_jobs_are_sized_resized_and_survive() {
    if !available() {
        return;
    }
    let programs = programs();
    let cluster = start(3, BOTH, OPTIMUS);
    until("the agent is up", || is_up(&cluster));
    let ordinary = cluster.sbatch(&["-n1", "--gpus-per-node=1", "-o", "/dev/null"], "#!/bin/sh\nsleep 1\n").unwrap();
    let first = submit(&cluster, "first", &script(&programs, 200));
    until("it runs", || state(&cluster, &first) == "RUNNING");
    // It was asked for with two workers, and alone it gets more.
    assert!(cluster.field(&first, "Comment").starts_with("trainmaster;"));
    let given = |id: &str| cluster.field(id, "AdminComment");
    until("Slurm says what it was given", || given(&first).contains("workers="));
    let trained = || fs::read_to_string(cluster.folder().join("out-first")).unwrap_or_default();
    until("it trains", || trained().contains("step"));
    let at_first = given(&first);

    // Others want their part: it is restarted from its checkpoint with less, or moves.
    let others: Vec<String> =
        ["b", "c", "d"].iter().map(|name| submit(&cluster, name, &script(&programs, 40))).collect();
    until("it changes", || given(&first).contains("workers=") && given(&first) != at_first);
    until("it goes on", || trained().contains("resuming from a checkpoint"));
    assert_ne!(cluster.field(&first, "Restarts"), "0");

    // The controller crashes in the middle of all that: nothing is lost, and decisions go on.
    let before = ask(&cluster, r#"{"command":"status"}"#);
    restart(&cluster, "-KILL");
    until("the agent is back", || is_up(&cluster));
    let after = ask(&cluster, r#"{"command":"status"}"#);
    let names = |status: &Value| -> Vec<String> {
        let mut names: Vec<String> =
            status["jobs"].as_array().unwrap().iter().map(|job| job["name"].to_string()).collect();
        names.sort();
        names
    };
    for name in names(&after) {
        assert!(names(&before).contains(&name), "{name} is new in {after}");
    }
    assert!(log(&cluster).contains("jobs=") && !log(&cluster).contains("can't be read"));
    assert_ne!(state(&cluster, &first), "FAILED");

    // A drained node's job moves.
    let node = cluster.field(&first, "NodeList").split(['[', ',']).next().unwrap().to_owned();
    if node.starts_with("node") && node.len() > 4 {
        cluster.run("scontrol", &["update", &format!("nodename={node}"), "state=drain", "reason=test"]);
    }
    // A cancelled one is forgotten.
    cluster.run("scancel", &[&others[2]]);
    until("the agent forgets a cancelled job", || {
        let status = ask(&cluster, r#"{"command":"status"}"#);
        !status["jobs"].as_array().unwrap().iter().any(|job| job["id"].as_u64() == others[2].parse().ok())
    });
    assert_ne!(state(&cluster, &others[0]), "FAILED");
    assert_eq!(state(&cluster, &ordinary), "COMPLETED");

    // Explained, and refused with words.
    let explained = ask(&cluster, &format!("{{\"command\":\"explain\",\"job\":\"{first}\"}}"));
    assert!(explained["findings"].as_array().is_some_and(|findings| !findings.is_empty()), "{explained}");
    let unknown = ask(&cluster, r#"{"command":"explain","job":"4711"}"#);
    assert!(unknown["error"].to_string().contains("4711"));
    cluster.run("scancel", &[&first]);
}

#[test]
fn paused_or_gone_jobs_are_slurms_as_they_were_submitted() {
    if !available() {
        return;
    }
    let programs = programs();
    // An engine that lets nobody run: all jobs wait.
    let cluster = start(2, BOTH, "engine = \"oasis\"\n[scheduler.parameters]\nrejected = \"held\"\n");
    until("the agent is up", || is_up(&cluster));
    let waiting = submit(&cluster, "waiting", &script(&programs, 3));
    until("the agent knows it", || {
        ask(&cluster, r#"{"command":"status"}"#)["jobs"].as_array().is_some_and(|jobs| !jobs.is_empty())
            || cluster.field(&waiting, "AdminComment").contains("why=")
    });
    assert_eq!(state(&cluster, &waiting), "PENDING");

    // The kill switch: at once it is Slurm's, and runs as submitted.
    let status = ask(&cluster, r#"{"command":"mode","mode":"paused"}"#);
    assert_eq!(status["mode"], "paused");
    let at_once = submit(&cluster, "at-once", &script(&programs, 3));
    until("a job runs while Trainmaster is paused", || state(&cluster, &at_once) == "COMPLETED");
    let status = ask(&cluster, r#"{"command":"mode","mode":"active"}"#);
    assert_eq!(status["mode"], "active");

    // Without the plugin held jobs start when their leases run out.
    let held = submit(&cluster, "held", &script(&programs, 3));
    assert_eq!(state(&cluster, &held), "PENDING");
    let conf = cluster.folder().join("etc/slurm.conf");
    let text = fs::read_to_string(&conf).unwrap();
    fs::write(&conf, text.replace(BOTH, "")).unwrap();
    restart(&cluster, "-TERM");
    thread::sleep(Duration::from_secs(1));
    until("it starts within the lease", || ["RUNNING", "COMPLETED"].contains(&state(&cluster, &held).as_str()));
    until("it completes", || state(&cluster, &held) == "COMPLETED");
}
