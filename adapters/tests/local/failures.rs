//! Failing processes, daemons that stop, and killed adapters.

use std::{env, fs, process};

use super::support::*;
use tokio::process::Command;
use trainmaster_adapters::local::{LocalError, OnShutdown, run};
use trainmaster_proto::v1::{ObservedPhase, SlotRole};

#[tokio::test]
async fn a_crashed_worker_is_started_again_alone() {
    let state = State::new();
    let daemon = Daemon::start().await;
    let adapter = Adapter::start(&daemon.url(), options(state.path()));
    let script = format!(
        "if [ $TRAINMASTER_ROLE$TRAINMASTER_INDEX = worker1 ] && [ ! -e crashed ]; \
         then echo boom; touch crashed; exit 3; fi; {PATIENT}"
    );
    daemon.plan(1, true, vec![job(1, 1, &script).worker(0).worker(1).server(0)]).await;
    let folder = folder(state.path(), 1);
    let (worker, server) = (pid(&folder, "worker-0").await, pid(&folder, "server-0").await);
    pid(&folder, "worker-1").await;
    daemon.until("all slots", |view| view.slots(1).len() == 3 && !view.message(1).is_empty()).await;
    daemon.look(|view| {
        for part in ["worker 1", "exit code 3", "1-worker-1.log", "boom"] {
            assert!(view.message(1).contains(part), "{:?} should contain {part:?}", view.message(1));
        }
    });
    assert!(lives(worker) && lives(server));
    adapter.end().await;
    state.has_nothing_left();
}

#[tokio::test]
async fn a_crashed_server_takes_all_roles_with_it() {
    let state = State::new();
    let daemon = Daemon::start().await;
    let adapter = Adapter::start(&daemon.url(), options(state.path()));
    let script = format!(
        "echo start >> starts-$TRAINMASTER_ROLE; \
         if [ $TRAINMASTER_ROLE = server ] && [ ! -e crashed ]; \
         then while [ ! -e pid-worker-0 ]; do sleep 0.02; done; touch crashed; kill -9 $$; fi; {PATIENT}"
    );
    daemon.plan(1, true, vec![job(1, 1, &script).worker(0).server(0)]).await;
    let folder = folder(state.path(), 1);
    pid(&folder, "server-0").await;
    daemon.until("both slots", |view| view.slots(1).len() == 2 && view.message(1).contains("signal 9")).await;
    for role in ["worker", "server"] {
        until_reads(folder.join(format!("starts-{role}")), "start\nstart").await;
    }
    adapter.end().await;
    state.has_nothing_left();
}

#[tokio::test]
async fn a_job_that_only_fails_is_given_up() {
    let state = State::new();
    let daemon = Daemon::start().await;
    let adapter = Adapter::start(&daemon.url(), options(state.path()));
    let script = "echo start >> starts; echo no data; exit 5";
    let other = format!("[ $TRAINMASTER_INDEX = 0 ] || exec sh -c '{script}'; {}", PATIENT.replace('\'', "\""));
    daemon.plan(1, true, vec![job(1, 1, &other).worker(0).worker(1)]).await;
    daemon.until("the end", |view| view.phase(1) == Some(ObservedPhase::Failed) && view.slots(1).is_empty()).await;
    assert_eq!(read(folder(state.path(), 1).join("starts")).await, "start\nstart\nstart");
    daemon.look(|view| {
        for part in ["worker 1", "exit code 5", "no data", "given up after 3"] {
            assert!(view.message(1).contains(part), "{:?} should contain {part:?}", view.message(1));
        }
    });
    // A new incarnation starts a new attempt.
    daemon.plan(2, true, vec![job(1, 2, PATIENT).worker(0)]).await;
    daemon.until("another try", |view| view.phase(1) == Some(ObservedPhase::Running)).await;
    adapter.end().await;
    state.has_nothing_left();
}

#[tokio::test]
async fn jobs_go_on_while_the_daemon_is_away() {
    let state = State::new();
    let daemon = Daemon::start().await;
    let adapter = Adapter::start(&daemon.url(), options(state.path()));
    let jobs = || vec![job(1, 1, PATIENT).worker(0), job(2, 1, "while [ ! -e end ]; do sleep 0.02; done").worker(0)];
    daemon.plan(1, true, jobs()).await;
    let worker = pid(&folder(state.path(), 1), "worker-0").await;
    daemon.until("both jobs", |view| view.slots(1).len() == 1 && view.slots(2).len() == 1).await;
    let address = daemon.stop().await;
    // This process ends meanwhile.
    fs::write(folder(state.path(), 2).join("end"), "").unwrap();

    let daemon = Daemon::at(address).await;
    daemon.until("a snapshot", |view| view.slots(1).len() == 1).await;
    daemon.plan(1, true, jobs()).await;
    daemon.until("the result", |view| view.phase(2) == Some(ObservedPhase::Completed)).await;
    daemon.look(|view| assert!(view.answer(1, 1).is_some(), "a new stream's first plan is answered as a whole"));
    assert!(lives(worker));
    adapter.end().await;
    state.has_nothing_left();
}

/// An adapter in its own process: this test binary again, with only the test below.
struct Child(tokio::process::Child);

impl Child {
    fn start(daemon: &str, state: &std::path::Path) -> Self {
        let child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "failures::adapter_in_a_process_of_its_own", "--nocapture"])
            .env("ADAPTER_DAEMON", daemon)
            .env("ADAPTER_STATE", state)
            .stdout(process::Stdio::null())
            .stderr(process::Stdio::null())
            .kill_on_drop(true)
            .spawn();
        Self(child.unwrap())
    }

    async fn kill(mut self) {
        self.0.kill().await.unwrap();
    }
}

/// Not a test by itself: [`Child`] runs it.
#[tokio::test]
async fn adapter_in_a_process_of_its_own() {
    let (Ok(daemon), Some(state)) = (env::var("ADAPTER_DAEMON"), env::var_os("ADAPTER_STATE")) else { return };
    run(cluster(), options(state.as_ref()), remote(&daemon), std::future::pending()).await.unwrap();
}

#[tokio::test]
async fn a_killed_adapters_processes_are_adopted() {
    let state = State::new();
    let daemon = Daemon::start().await;
    let adapter = Child::start(&daemon.url(), state.path());
    let plan = |id| job(id, 1, PATIENT).worker(0).server(0);
    daemon.plan(1, true, vec![plan(1), plan(2), plan(3)]).await;
    let mut pids = Vec::new();
    for id in [1, 2, 3] {
        pids.push((pid(&folder(state.path(), id), "worker-0").await, pid(&folder(state.path(), id), "server-0").await));
    }
    adapter.kill().await;
    // It is killed while no adapter runs, so that only its own group is left.
    assert!(process::Command::new("kill").args(["-9", &pids[2].0.to_string()]).status().unwrap().success());
    until_gone(pids[2].0).await;

    let adapter = Adapter::start(&daemon.url(), options(state.path()));
    daemon.until("the second snapshot", |view| view.snapshots.len() == 2).await;
    daemon.look(|view| {
        let slots: Vec<_> = view.snapshots[1].iter().map(|job| (job.job, job.slots.len())).collect();
        assert_eq!(slots, [(1, 2), (2, 2), (3, 1)]);
        assert_eq!(view.snapshots[1][0].phase(), ObservedPhase::Running);
    });
    // Job 1 continues, job 2 is no longer planned, and job 3's missing slot is started again.
    daemon.plan(2, true, vec![plan(1), plan(3)]).await;
    daemon.until("job 3", |view| view.slots(3).len() == 2).await;
    until_gone(pids[1].0).await;
    until_gone(pids[1].1).await;
    assert!(lives(pids[0].0) && lives(pids[0].1) && lives(pids[2].1));

    // An adopted process is watched like any other.
    let worker = folder(state.path(), 1).join("pid-worker-0");
    fs::remove_file(&worker).unwrap();
    assert!(process::Command::new("kill").args(["-9", &pids[0].0.to_string()]).status().unwrap().success());
    read(&worker).await;
    assert!(lives(pids[0].1));
    adapter.end().await;
    state.has_nothing_left();
}

#[tokio::test]
async fn an_adopted_process_can_say_that_it_succeeded() {
    let state = State::new();
    let daemon = Daemon::start().await;
    let adapter = Child::start(&daemon.url(), state.path());
    let script = "echo $$ > pid-worker-0; until [ -e go ]; do sleep 0.05; done; touch \"$TRAINMASTER_DONE_FILE\"";
    let plan = || vec![job(1, 1, script).worker(0)];
    daemon.plan(1, true, plan()).await;
    let folder = folder(state.path(), 1);
    pid(&folder, "worker-0").await;
    adapter.kill().await;
    let adapter = Adapter::start(&daemon.url(), options(state.path()));
    daemon.until("the second snapshot", |view| view.snapshots.len() == 2).await;
    daemon.plan(2, true, plan()).await;
    fs::write(folder.join("go"), "").unwrap();
    daemon.until("completion", |view| view.phase(1) == Some(ObservedPhase::Completed)).await;
    daemon.look(|view| assert_eq!(view.message(1), ""));
    adapter.end().await;
    state.has_nothing_left();
}

#[tokio::test]
async fn a_process_is_found_that_was_started_but_not_yet_recorded() {
    let state = State::new();
    let daemon = Daemon::start().await;
    let adapter = Child::start(&daemon.url(), state.path());
    daemon.plan(1, true, vec![job(1, 1, PATIENT).worker(0).worker(1)]).await;
    let folder = folder(state.path(), 1);
    let pids = (pid(&folder, "worker-0").await, pid(&folder, "worker-1").await);
    adapter.kill().await;
    // The record as if the adapter had been killed a moment earlier, and a record of a start that never happened.
    let record = state.path().join("slots/1-1-worker-0.json");
    let text = read(&record).await;
    assert!(!text.contains("secret-token"), "{text}");
    let mut intent: serde_json::Value = serde_json::from_str(&text).unwrap();
    intent["pid"] = serde_json::Value::Null;
    intent["start"] = serde_json::Value::Null;
    fs::write(&record, intent.to_string()).unwrap();
    intent["index"] = 7.into();
    fs::write(state.path().join("slots/1-1-worker-7.json"), intent.to_string()).unwrap();
    // A process whose record is lost.
    fs::write(state.path().join("slots/1-1-worker-1.json"), "{").unwrap();

    let adapter = Adapter::start(&daemon.url(), options(state.path()));
    daemon.until("the second snapshot", |view| view.snapshots.len() == 2).await;
    daemon.look(|view| assert_eq!(view.slots(1), [(SlotRole::Worker, 0)]));
    until_gone(pids.1).await;
    assert!(lives(pids.0));
    fs::remove_file(state.path().join("slots/1-1-worker-1.unreadable")).unwrap();
    adapter.end().await;
    state.has_nothing_left();
}

#[tokio::test]
async fn whenever_the_adapter_is_killed_nothing_is_lost_from_sight() {
    let state = State::new();
    let daemon = Daemon::start().await;
    for round in 1..=6 {
        let adapter = Child::start(&daemon.url(), state.path());
        daemon.until("its snapshot", |view| view.snapshots.len() == round * 2 - 1).await;
        let id = round as u64;
        let plan = (0..12).fold(job(id, 1, "sleep 600"), |plan, index| plan.worker(index));
        daemon.plan(id, true, vec![plan]).await;
        // While processes are being started.
        let (records, some) = (state.path().join("slots"), round * 2 - 1);
        while fs::read_dir(&records).unwrap().count() < some {
            tokio::task::yield_now().await;
        }
        adapter.kill().await;
        let adapter = Adapter::start(&daemon.url(), options(state.path()));
        daemon.until("a snapshot", |view| view.snapshots.len() == round * 2).await;
        adapter.end().await;
        state.has_nothing_left();
    }
}

#[tokio::test]
async fn another_jobs_leftovers_are_not_taken_for_the_planned_one() {
    let state = State::new();
    let daemon = Daemon::start().await;
    let mut keep = options(state.path());
    keep.on_shutdown = OnShutdown::Keep;
    let adapter = Adapter::start(&daemon.url(), keep);
    daemon.plan(9, true, vec![job(1, 1, PATIENT).worker(0)]).await;
    let old = pid(&folder(state.path(), 1), "worker-0").await;
    adapter.end().await;
    assert!(lives(old), "it was to be kept");

    let adapter = Adapter::start(&daemon.url(), options(state.path()));
    daemon.until("the second snapshot", |view| view.snapshots.len() == 2).await;
    // The daemon lost its store: the same number and incarnation, but another token.
    let mut plan = job(1, 1, &PATIENT.replace("pid-", "new-pid-")).worker(0);
    plan.token = "another-token".into();
    daemon.plan(1, true, vec![plan]).await;
    read(folder(state.path(), 1).join("new-pid-worker-0")).await;
    assert!(!lives(old));
    adapter.end().await;
    state.has_nothing_left();
}

#[tokio::test]
async fn nothing_is_left_behind_not_even_the_stubborn() {
    let state = State::new();
    let daemon = Daemon::start().await;
    let adapter = Adapter::start(&daemon.url(), options(state.path()));
    // It ignores SIGTERM. It has a child in its group and one in another session.
    let script = "trap '' TERM; sleep 600 & echo $! > pid-child-0; setsid sleep 600 & echo $! > pid-child-1; \
        echo $$ > pid-worker-0; while :; do sleep 600; done";
    daemon.plan(1, true, vec![job(1, 1, script).grace(50).worker(0)]).await;
    let folder = folder(state.path(), 1);
    let pids = [pid(&folder, "worker-0").await, pid(&folder, "child-0").await, pid(&folder, "child-1").await];
    adapter.end().await;
    for pid in pids {
        until_gone(pid).await;
    }
    state.has_nothing_left();
}

#[tokio::test]
async fn what_a_slot_leaves_ends_with_it() {
    let state = State::new();
    let daemon = Daemon::start().await;
    let adapter = Adapter::start(&daemon.url(), options(state.path()));
    let script = "sleep 600 & echo $! > pid-child-0; setsid sleep 600 & echo $! > pid-child-1; exit 0";
    daemon.plan(1, true, vec![job(1, 1, script).worker(0)]).await;
    daemon.until("completion", |view| view.phase(1) == Some(ObservedPhase::Completed)).await;
    for child in ["child-0", "child-1"] {
        assert!(!lives(pid(&folder(state.path(), 1), child).await), "{child} lives");
    }
    // As torchrun's training processes, whose agent was killed. The next process of the slot finds them gone.
    let script = "[ ! -e pid-child-2 ] || { grep -qs '^State:.[^ZX]' /proc/$(cat pid-child-2)/status && \
        echo two > both || echo one > both; sleep 600; }; setsid sleep 600 & echo $! > pid-child-2; sleep 0.2; \
        kill -9 $$";
    daemon.plan(2, true, vec![job(2, 1, script).worker(0)]).await;
    assert_eq!(read(folder(state.path(), 2).join("both")).await.trim(), "one");
    adapter.end().await;
    state.has_nothing_left();
}

#[tokio::test]
async fn nothing_starts_that_is_not_on_record() {
    let state = State::new();
    let daemon = Daemon::start().await;
    let mut stubborn = options(state.path());
    stubborn.restart.failures = u32::MAX;
    let adapter = Adapter::start(&daemon.url(), stubborn);
    daemon.until("a snapshot", |view| view.snapshots.len() == 1).await;
    fs::remove_dir(state.path().join("slots")).unwrap();
    let script = format!("ls ../../slots > records; {PATIENT}");
    daemon.plan(1, true, vec![job(1, 1, &script).worker(0)]).await;
    daemon.until("a failure", |view| !view.message(1).is_empty()).await;
    daemon.look(|view| assert_eq!((view.slots(1), view.phase(1)), (Vec::new(), Some(ObservedPhase::Starting))));
    assert!(!folder(state.path(), 1).join("records").exists());
    fs::create_dir(state.path().join("slots")).unwrap();
    pid(&folder(state.path(), 1), "worker-0").await;
    let records = read(folder(state.path(), 1).join("records")).await;
    assert!(records.contains("1-1-worker-0.json"), "{records}");
    adapter.end().await;
    state.has_nothing_left();
}

#[tokio::test]
async fn two_adapters_never_share_a_state_folder() {
    let state = State::new();
    let daemon = Daemon::start().await;
    let adapter = Adapter::start(&daemon.url(), options(state.path()));
    daemon.until("a snapshot", |view| view.snapshots.len() == 1).await;
    let second = run(cluster(), options(state.path()), remote(&daemon.url()), std::future::pending()).await;
    assert!(matches!(second, Err(LocalError::Locked { .. })), "{second:?}");
    adapter.end().await;
}
