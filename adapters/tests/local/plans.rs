//! Plans become processes, and processes become observations.

use super::support::*;
use trainmaster_proto::v1::{Action, DeviceShare, EnactedResult, ObservedPhase, SlotRole};

#[tokio::test]
async fn processes_of_an_all_reduce_job_know_their_ranks() {
    let state = State::new();
    let daemon = Daemon::start().await;
    let adapter = Adapter::start(&daemon.url(), options(state.path()));
    let script = "env > environment-$TRAINMASTER_INDEX; sleep 600";
    // The indices of workers may have gaps.
    let mut plan = job(7, 3, script).worker(1).worker(4);
    plan.environment.insert("TRAINMASTER_MODE".into(), "allreduce".into());
    let mut torchrun = job(8, 1, script).worker(0);
    torchrun.environment = [("TRAINMASTER_MODE", "allreduce"), ("PET_RDZV_BACKEND", "trainmaster")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
    daemon.plan(1, true, vec![plan, torchrun]).await;
    let mut ports = Vec::new();
    for (index, rank) in [(1, 0), (4, 1)] {
        let found = read(folder(state.path(), 7).join(format!("environment-{index}"))).await;
        for line in [
            &format!("RANK={rank}"),
            "WORLD_SIZE=2",
            "LOCAL_RANK=0",
            "LOCAL_WORLD_SIZE=1",
            &format!("NODE_RANK={rank}"),
            "MASTER_ADDR=127.0.0.1",
        ] {
            assert!(found.lines().any(|one| one == line), "{line} should be in {found}");
        }
        ports.extend(found.lines().find_map(|line| line.strip_prefix("MASTER_PORT=").map(ToOwned::to_owned)));
    }
    assert!(ports.len() == 2 && ports[0] == ports[1], "{ports:?}");
    let found = read(folder(state.path(), 8).join("environment-0")).await;
    assert!(!found.lines().any(|line| line.starts_with("RANK=") || line.starts_with("MASTER_")), "{found}");
    adapter.end().await;
    state.has_nothing_left();
}

#[tokio::test]
async fn a_job_starts_with_its_environment_and_completes() {
    let state = State::new();
    let daemon = Daemon::start().await;
    let adapter = Adapter::start(&daemon.url(), options(state.path()));
    let mut plan = job(7, 3, "env > environment-$TRAINMASTER_ROLE; echo hello; exit 0").worker(0).server(0);
    plan.environment.insert("BATCH".into(), "256".into());
    plan.environment.insert("TRAINMASTER_CHUNKS".into(), "4".into());
    plan.environment.insert("TRAINMASTER_UPLOAD".into(), "home".into());
    plan.environment.insert("TRAINMASTER_JOB".into(), "not for the job to say".into());
    plan.slots[0].devices = vec![DeviceShare { device: 1, milli: 1000 }];
    plan.slots[1].devices = vec![DeviceShare { device: 0, milli: 500 }];
    daemon.plan(1, true, vec![plan]).await;
    daemon.until("completion", |view| view.phase(7) == Some(ObservedPhase::Completed)).await;
    daemon.look(|view| {
        assert_eq!(view.answer(1, 7).unwrap().result(), EnactedResult::Accepted);
        assert_eq!((view.jobs[&7].incarnation, view.slots(7)), (3, Vec::new()));
        assert_eq!(view.authorization.as_deref(), Some("Bearer pass"));
        assert_eq!(view.servers.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(view.servers[1].devices[0].kind, "gpu:a100");
        assert_eq!(view.servers[0].capacity["cpu"], 8000);
    });

    let folder = folder(state.path(), 7);
    let worker = read(folder.join("environment-worker")).await;
    let server = read(folder.join("environment-server")).await;
    let checkpoints = folder.canonicalize().unwrap().join("checkpoints");
    assert!(checkpoints.is_dir());
    for line in [
        "BATCH=256",
        "TRAINMASTER_FEED=http://127.0.0.1:9",
        "TRAINMASTER_JOB=7",
        "TRAINMASTER_JOB_NAME=job-7",
        "TRAINMASTER_TOKEN=secret-token",
        "TRAINMASTER_ROLE=worker",
        "TRAINMASTER_INDEX=0",
        "TRAINMASTER_INCARNATION=3",
        "TRAINMASTER_REVISION=1",
        "TRAINMASTER_SERVER=a",
        "TRAINMASTER_ORPHAN_GRACE_MS=300000",
        "TRAINMASTER_DEVICES=1",
        "CUDA_VISIBLE_DEVICES=1",
        "CUDA_DEVICE_ORDER=PCI_BUS_ID",
        "TRAINMASTER_UPLOAD_MS=1500",
        &format!("TRAINMASTER_CHECKPOINT_DIR={}", checkpoints.display()),
        &format!("TRAINMASTER_DATA_DIR={}", checkpoints.with_file_name("data").join("a").display()),
    ] {
        assert!(worker.lines().any(|found| found == line), "{line} should be in {worker}");
    }
    // Server b's only device is the machine's third.
    for line in [
        "TRAINMASTER_ROLE=server",
        "TRAINMASTER_SERVER=b",
        "TRAINMASTER_DEVICES=0",
        "CUDA_VISIBLE_DEVICES=2",
        "TRAINMASTER_UPLOAD_MS=250",
    ] {
        assert!(server.lines().any(|found| found == line), "{line} should be in {server}");
    }
    assert_eq!(read(state.path().join("logs/7-job-7/3-worker-0.log")).await, "hello");
    adapter.end().await;
    state.has_nothing_left();
}

#[tokio::test]
async fn workers_come_and_go_while_the_others_stay() {
    let state = State::new();
    let daemon = Daemon::start().await;
    let adapter = Adapter::start(&daemon.url(), options(state.path()));
    daemon.plan(1, true, vec![job(1, 1, PATIENT).worker(0).server(0)]).await;
    let folder = folder(state.path(), 1);
    let (first, server) = (pid(&folder, "worker-0").await, pid(&folder, "server-0").await);

    daemon.plan(2, false, vec![job(1, 1, PATIENT).revision(2).worker(0).worker(1).server(0)]).await;
    let second = pid(&folder, "worker-1").await;
    let all = vec![(SlotRole::Worker, 0), (SlotRole::Worker, 1), (SlotRole::Server, 0)];
    daemon.until("three slots", |view| view.slots(1) == all && view.phase(1) == Some(ObservedPhase::Running)).await;
    assert!(lives(first) && lives(server));

    let shrunk = job(1, 1, PATIENT).revision(3).grace(50).worker(1).server(0);
    daemon.plan(3, false, vec![shrunk]).await;
    until_gone(first).await;
    let rest = vec![(SlotRole::Worker, 1), (SlotRole::Server, 0)];
    daemon.until("two slots", |view| view.slots(1) == rest && view.phase(1) == Some(ObservedPhase::Running)).await;
    assert!(lives(second) && lives(server));
    adapter.end().await;
    state.has_nothing_left();
}

#[tokio::test]
async fn a_new_incarnation_waits_until_the_old_one_is_gone() {
    let state = State::new();
    let daemon = Daemon::start().await;
    let adapter = Adapter::start(&daemon.url(), options(state.path()));
    // Saving a checkpoint takes time.
    let script = "echo start $TRAINMASTER_INCARNATION >> story; \
        trap 'sleep 0.3; echo stop $TRAINMASTER_INCARNATION >> story; exit 0' TERM; \
        echo $$ > pid-$TRAINMASTER_ROLE-$TRAINMASTER_INDEX; while :; do sleep 0.02; done";
    daemon.plan(1, true, vec![job(1, 1, script).worker(0).worker(1)]).await;
    let folder = folder(state.path(), 1);
    let old = (pid(&folder, "worker-0").await, pid(&folder, "worker-1").await);
    daemon.plan(2, true, vec![job(1, 2, script).worker(0).server(0)]).await;
    daemon.until("incarnation 2", |view| view.incarnation(1) == Some(2) && view.slots(1).len() == 2).await;
    assert!(!lives(old.0) && !lives(old.1));
    until_reads(folder.join("story"), "start 1\nstart 1\nstop 1\nstop 1\nstart 2\nstart 2").await;
    adapter.end().await;
    state.has_nothing_left();
}

#[tokio::test]
async fn waiting_keeps_the_checkpoint_and_dropping_ends_the_job() {
    let state = State::new();
    let daemon = Daemon::start().await;
    let adapter = Adapter::start(&daemon.url(), options(state.path()));
    let script = "trap 'echo saved > $TRAINMASTER_CHECKPOINT_DIR/model; exit 0' TERM; \
        echo $$ > pid-worker-0; while :; do sleep 0.02; done";
    daemon.plan(1, true, vec![job(1, 1, script).worker(0), job(2, 1, PATIENT).worker(0)]).await;
    pid(&folder(state.path(), 1), "worker-0").await;
    let other = pid(&folder(state.path(), 2), "worker-0").await;
    daemon.plan(2, false, vec![job(1, 1, "").action(Action::Wait)]).await;
    daemon.until("a stop", |view| view.phase(1) == Some(ObservedPhase::Stopped)).await;
    assert_eq!(read(folder(state.path(), 1).join("checkpoints/model")).await, "saved");
    assert!(lives(other), "a partial plan leaves other jobs alone");

    daemon.plan(3, true, vec![job(1, 1, "").action(Action::Wait)]).await;
    until_gone(other).await;
    daemon.until("the other's end", |view| view.phase(2) == Some(ObservedPhase::Stopped)).await;
    adapter.end().await;
    state.has_nothing_left();
}

#[tokio::test]
async fn a_released_job_is_left_alone() {
    let state = State::new();
    let daemon = Daemon::start().await;
    let adapter = Adapter::start(&daemon.url(), options(state.path()));
    daemon.plan(1, true, vec![job(1, 1, PATIENT).worker(0)]).await;
    let worker = pid(&folder(state.path(), 1), "worker-0").await;
    let released = |id| job(id, 1, "").action(Action::Release);
    daemon.plan(2, true, vec![released(1), released(2)]).await;
    daemon.until("an answer", |view| view.answer(2, 2).is_some()).await;
    assert!(lives(worker));
    daemon.look(|view| assert_eq!((view.phase(1), view.phase(2)), (Some(ObservedPhase::Running), None)));
    adapter.end().await;
    state.has_nothing_left();
}

#[tokio::test]
async fn what_cannot_be_done_is_refused_with_its_cause() {
    let state = State::new();
    let daemon = Daemon::start().await;
    let adapter = Adapter::start(&daemon.url(), options(state.path()));
    daemon.plan(1, true, vec![job(1, 1, PATIENT).worker(0)]).await;
    let worker = pid(&folder(state.path(), 1), "worker-0").await;

    let mut no_program = job(2, 1, PATIENT).worker(0);
    no_program.worker_command = "no-such-program".into();
    let mut overfull = job(3, 1, PATIENT).worker(0).worker(1);
    for slot in &mut overfull.slots {
        slot.devices = vec![DeviceShare { device: 0, milli: 600 }];
    }
    let mut garbage = job(4, 1, PATIENT).worker(0);
    garbage.action = 99;
    let mut climbing = job(5, 1, PATIENT).worker(0);
    climbing.name = "../up".into();
    let elsewhere = job(1, 2, PATIENT).with(SlotRole::Worker, 0, "nowhere");
    daemon.plan(2, false, vec![no_program, overfull, garbage, climbing, elsewhere]).await;
    for (id, part) in [(2, "no-such-program"), (3, "1200 thousandths"), (4, "99"), (5, "../up"), (1, "nowhere")] {
        daemon.until("an answer", |view| view.answer(2, id).is_some()).await;
        daemon.look(|view| {
            let answer = view.answer(2, id).unwrap();
            assert_eq!(answer.result(), EnactedResult::Refused, "{answer:?}");
            assert!(answer.cause.contains(part), "{answer:?} should contain {part:?}");
        });
    }
    assert!(lives(worker), "a refused change changes nothing");

    // A plan older than the one in force isn't even answered. The next plan's effect shows that it was read.
    daemon.plan(1, true, Vec::new()).await;
    daemon.plan(3, false, vec![job(1, 1, PATIENT).worker(0)]).await;
    daemon.until("an answer", |view| view.answer(3, 1).is_some()).await;
    assert!(lives(worker));
    adapter.end().await;
    state.has_nothing_left();
}
