//! The manager's stream: required messages, received plans, refusals.

use std::sync::{Arc, Mutex};

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;
use trainmaster_core::JobSpec;
use trainmaster_daemon::Daemon;
use trainmaster_proto::v1::{self, ObservedPhase, observation::Kind};

use super::support::{Clients, FakeManager, World, config, observation, servers, spec, until};

/// A job with one worker and one parameter server.
fn smallest(name: &str) -> JobSpec {
    let mut spec = spec(name);
    spec.worker.max = 1;
    spec.server.as_mut().unwrap().max = 1;
    spec
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_begins_with_a_snapshot_that_makes_sense() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(config(folder.path())).await.unwrap();
    let clients = Clients::of(&daemon).await;
    let first = |kind: Kind, manager: &str| {
        let (mut client, first) = (clients.manager.clone(), observation(manager, kind));
        async move {
            let (sender, receiver) = mpsc::channel(1);
            sender.send(first).await.unwrap();
            client.attach(ReceiverStream::new(receiver)).await.unwrap().into_inner().message().await.unwrap_err()
        }
    };
    let delta = first(Kind::Delta(v1::Delta::default()), "fake").await;
    assert_eq!(delta.code(), Code::FailedPrecondition);
    assert!(delta.message().contains("must be a snapshot"));
    let nameless = first(Kind::Snapshot(v1::Snapshot::default()), "").await;
    assert_eq!(nameless.code(), Code::InvalidArgument);
    let mut wrong = servers(1, 1);
    wrong[0].capacity.insert("cpu".into(), -1);
    let wrong = first(Kind::Snapshot(v1::Snapshot { servers: wrong, ..v1::Snapshot::default() }), "fake").await;
    assert_eq!(wrong.message(), "server \"node0\".capacity.cpu: -1 must be 0 or more");
    assert_eq!(clients.status().await.managers, Vec::<String>::new());
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_stream_ends_the_older_and_learns_everything() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(config(folder.path())).await.unwrap();
    let clients = Clients::of(&daemon).await;
    let old = FakeManager::attach(&clients, "fake", servers(1, 2)).await;
    let job = clients.submit(&spec("one")).await.unwrap().job;
    clients.until_job("one", |job| job.state == "running").await;
    let incarnation = old.look(|world| world.plans[&job].incarnation);

    let world = std::sync::Arc::new(std::sync::Mutex::new(super::support::World {
        running: old.look(|world| world.running.clone()),
        ..Default::default()
    }));
    let new = FakeManager::attach_with(&clients, "fake", servers(1, 2), world).await;
    let ended = old.until("the old stream to end", |world| world.ended.clone()).await;
    assert_eq!(ended.code(), Code::Aborted);
    let full = new.until("the full plan", |world| world.heard.first().cloned()).await;
    assert!(full.full && full.term == 1 && full.ttl_ms == 60_000);
    assert_eq!((full.jobs.len(), full.jobs[0].job, full.jobs[0].incarnation), (1, job, incarnation));
    assert_eq!(clients.status().await.managers, ["fake"]);

    // A manager that returns without the job's slots receives the job again.
    drop(new);
    let empty = FakeManager::attach(&clients, "fake", servers(1, 2)).await;
    empty.until_plan(job, |plan| plan.action() == v1::Action::Run).await;
    clients.until_job("one", |job| job.state == "running" && job.incarnation > incarnation).await;
    daemon.stop().await;
}

/// Sends a snapshot and, immediately after it, a delta with more servers.
async fn attach_in_a_hurry(clients: &Clients, world: &Arc<Mutex<World>>, more: u32) -> FakeManager {
    let manager = FakeManager::attach_with(clients, "fake", servers(1, 2), world.clone()).await;
    let delta = v1::Delta { servers: servers(more, 2), ..v1::Delta::default() };
    manager.observations.send(observation("fake", Kind::Delta(delta))).await.unwrap();
    manager
}

async fn until_servers(clients: &Clients, count: u32) {
    let seen = || async { (clients.status().await.servers == count).then_some(()) };
    until(&format!("{count} servers"), seen).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manager_is_heard_before_its_attachment_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    let faults = config.faults.clone();
    let daemon = Daemon::start(config).await.unwrap();
    let clients = Clients::of(&daemon).await;
    let mut both = spec("both");
    (both.worker.min, both.worker.requested) = (4, 4);
    let job = clients.submit(&both).await.unwrap().job;

    faults.set_stuck(true);
    let manager = attach_in_a_hurry(&clients, &Arc::default(), 2).await;
    until_servers(&clients, 2).await;
    assert!(manager.look(|world| world.heard.is_empty()), "nothing is told before it is written");
    faults.set_stuck(false);
    // The job needs the servers of the snapshot and those of the delta.
    manager.until_plan(job, |plan| plan.action() == v1::Action::Run).await;
    clients.until_job("both", |job| job.state == "running").await;
    assert!(manager.look(|world| world.heard[0].full));
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_that_come_and_go_while_the_disk_is_slow_leave_the_last_one() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    let faults = config.faults.clone();
    let daemon = Daemon::start(config).await.unwrap();
    let clients = Clients::of(&daemon).await;
    let ended = |manager: &FakeManager| manager.look(|world| world.ended.as_ref().map(tonic::Status::code));

    faults.set_stuck(true);
    // Streams that were replaced while being written, or before, and one that ended by itself.
    let first = attach_in_a_hurry(&clients, &Arc::default(), 2).await;
    until_servers(&clients, 2).await;
    let second = attach_in_a_hurry(&clients, &Arc::default(), 3).await;
    until_servers(&clients, 3).await;
    let third = attach_in_a_hurry(&clients, &Arc::default(), 4).await;
    until_servers(&clients, 4).await;
    drop(third);
    let last = attach_in_a_hurry(&clients, &Arc::default(), 5).await;
    until_servers(&clients, 5).await;
    faults.set_stuck(false);

    last.until("its plan", |world| world.heard.first().cloned()).await;
    for replaced in [&first, &second] {
        replaced.until("its end", |world| world.ended.clone()).await;
        assert_eq!(ended(replaced), Some(Code::Aborted));
        assert!(replaced.look(|world| world.heard.is_empty()), "it was replaced before it could be told anything");
    }
    assert_eq!(clients.status().await.managers, ["fake"]);
    // The last stream still works in both directions.
    let delta = v1::Delta { servers: servers(6, 2), ..v1::Delta::default() };
    last.observations.send(observation("fake", Kind::Delta(delta))).await.unwrap();
    until_servers(&clients, 6).await;
    let job = clients.submit(&spec("one")).await.unwrap().job;
    last.until_plan(job, |plan| plan.action() == v1::Action::Run).await;

    // A stream that ended before it was written leaves nothing behind.
    faults.set_stuck(true);
    let gone = attach_in_a_hurry(&clients, &Arc::default(), 7).await;
    until_servers(&clients, 7).await;
    drop(gone);
    let detached = || async {
        // The scheduler has processed its end, so the next stream's messages come after it.
        let metrics = super::net::get(&daemon, "/metrics").await;
        metrics.contains("trainmaster_managers_connected 0").then_some(())
    };
    until("the end of its stream", detached).await;
    faults.set_stuck(false);
    clients.submit(&spec("two")).await.unwrap();
    assert_eq!(clients.status().await.managers, Vec::<String>::new());
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_lost_servers_move() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(config(folder.path())).await.unwrap();
    let clients = Clients::of(&daemon).await;
    let manager = FakeManager::attach(&clients, "fake", servers(2, 1)).await;
    let small = smallest("one");
    clients.submit(&small).await.unwrap();
    let there = clients.until_job("one", |job| job.state == "running").await.slots[0].server.clone();
    manager.look(|world| assert_eq!(world.running.len(), 1));
    let delta = v1::Delta { servers_left: vec![there.clone()], ..v1::Delta::default() };
    manager.observations.send(observation("fake", Kind::Delta(delta))).await.unwrap();
    let moved = clients.until_job("one", |job| job.state == "running" && job.incarnation > 1).await;
    assert!(moved.slots.iter().all(|slot| slot.server != there), "{moved:?}");
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_managers_message_about_an_end_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(config(folder.path())).await.unwrap();
    let clients = Clients::of(&daemon).await;
    let manager = FakeManager::attach(&clients, "fake", servers(1, 4)).await;
    let said = |job: u64, phase: ObservedPhase, message: &str| v1::ObservedJob {
        job,
        incarnation: 1,
        slots: Vec::new(),
        phase: phase.into(),
        message: message.into(),
        failures: 0,
    };
    for (name, phase, state) in
        [("good", ObservedPhase::Completed, "completed"), ("bad", ObservedPhase::Failed, "failed")]
    {
        let job = clients.submit(&spec(name)).await.unwrap().job;
        clients.until_job(name, |job| job.state == "running").await;
        let words = "worker 0 ended with exit code 3 (log /tmp/x)";
        manager.say("fake", said(job, phase, words)).await;
        let ended = clients.until_job(name, |job| job.state == state).await;
        assert_eq!(ended.reason, words);
        assert_eq!(clients.explain(name).await[0], format!("{state}: {words}"));
        manager.until_plan(job, |plan| plan.action() == v1::Action::Stop).await;
    }
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_list_says_why_a_program_starts_again() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(config(folder.path())).await.unwrap();
    let clients = Clients::of(&daemon).await;
    let manager = FakeManager::attach(&clients, "fake", servers(2, 1)).await;
    let small = smallest("one");
    let job = clients.submit(&small).await.unwrap().job;
    let there = clients.until_job("one", |job| job.state == "running").await.slots[0].server.clone();
    let starting = |incarnation: u32, message: &str| v1::ObservedJob {
        job,
        incarnation,
        slots: Vec::new(),
        phase: ObservedPhase::Starting.into(),
        message: message.into(),
        failures: 0,
    };
    let words = "worker 0 ended with exit code 1 (log /tmp/x: \"no data\"); failure 1 of 8, again after 500ms";
    // A text about what was never issued keeps no other away.
    manager.say("fake", starting(u32::MAX, "of the future")).await;
    manager.say("fake", starting(1, words)).await;
    let started = clients.until_job("one", |job| job.reason == words).await;
    assert_eq!((started.state.as_str(), started.failures, started.failed_ms), ("starting", 0, None));
    manager.say("fake", v1::ObservedJob { failures: 1, ..starting(1, words) }).await;
    let failed = clients.until_job("one", |job| job.failures == 1).await;
    assert_eq!((failed.state.as_str(), failed.reason.as_str()), ("starting", words));
    assert!(failed.failed_ms.unwrap() >= failed.submitted_ms);
    // Somewhere else, it's a start like any other.
    let delta = v1::Delta { servers_left: vec![there], ..v1::Delta::default() };
    manager.observations.send(observation("fake", Kind::Delta(delta))).await.unwrap();
    let moved = clients.until_job("one", |job| job.state == "running" && job.incarnation > 1).await;
    manager.say("fake", starting(moved.incarnation, "")).await;
    clients.until_job("one", |job| job.reason.ends_with("its manager is starting it")).await;
    // What its manager says of the old one comes late. The next message shows that this one was read.
    manager.say("fake", starting(1, words)).await;
    let long = "\u{1}".repeat(5000);
    manager.say("fake", starting(moved.incarnation, &long)).await;
    let job = clients.until_job("one", |job| !job.reason.ends_with("its manager is starting it")).await;
    assert!(job.reason != words && job.reason.chars().count() <= 210, "{}", job.reason);
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_crashes_while_some_of_it_runs_and_is_mended() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(config(folder.path())).await.unwrap();
    let clients = Clients::of(&daemon).await;
    let manager = FakeManager::attach(&clients, "fake", servers(2, 1)).await;
    let job = clients.submit(&smallest("one")).await.unwrap().job;
    let slots = clients.until_job("one", |job| job.state == "running").await.slots;
    let running = |failures: u32, message: &str| v1::ObservedJob {
        job,
        incarnation: 1,
        slots: slots.clone(),
        phase: ObservedPhase::Running.into(),
        message: message.into(),
        failures,
    };
    manager.say("fake", running(1, "worker 0 fell")).await;
    let once = clients.until_job("one", |job| job.failures == 1).await;
    assert_eq!((once.state.as_str(), once.reason.as_str()), ("running", "worker 0 fell"));
    manager.say("fake", running(u32::MAX, "worker 0 fell")).await;
    let crashing = clients.until_job("one", |job| job.state == "crashing").await;
    assert_eq!((crashing.failures, crashing.workers), (u32::MAX, once.workers));
    assert!(crashing.failed_ms >= once.failed_ms);
    let metrics = super::net::get(&daemon, "/metrics").await;
    assert!(metrics.contains("trainmaster_jobs{state=\"crashing\"} 1"), "{metrics}");
    // Without a living program, it has its slots and doesn't wait for them.
    let down =
        v1::ObservedJob { slots: Vec::new(), phase: ObservedPhase::Starting.into(), ..running(4, "worker 0 fell") };
    manager.say("fake", down).await;
    clients.until_job("one", |job| job.failures == 4).await;
    let metrics = super::net::get(&daemon, "/metrics").await;
    for line in ["jobs{state=\"crashing\"} 1", "waiting_jobs{reason=\"starting\"} 0", "longest_wait_seconds 0"] {
        assert!(metrics.contains(&format!("\ntrainmaster_{line}\n")), "{line}: {metrics}");
    }
    // Failures without a text still count, and say nothing new.
    manager.say("fake", running(2, "")).await;
    let silent = clients.until_job("one", |job| job.failures == 2).await;
    assert_eq!((silent.state.as_str(), silent.reason.as_str()), ("crashing", ""));
    assert_eq!(silent.failed_ms, crashing.failed_ms, "nothing new");
    for (failures, state) in [(0, "running"), (3, "crashing"), (0, "running")] {
        manager.say("fake", running(failures, "")).await;
        let job = clients.until_job("one", |job| job.failures == failures).await;
        assert_eq!(job.state, state);
    }
    // A snapshot doesn't say when the programs failed.
    let snapshot = |failures: u32| {
        let jobs = vec![running(failures, "worker 0 fell")];
        observation("fake", Kind::Snapshot(v1::Snapshot { servers: servers(2, 1), jobs, ..v1::Snapshot::default() }))
    };
    // It answers the plan that follows with the same.
    manager.world.lock().unwrap().remark = ("worker 0 fell".into(), 3);
    manager.observations.send(snapshot(3)).await.unwrap();
    assert_eq!(clients.until_job("one", |job| job.failures == 3).await.failed_ms, None);
    clients.pause("one", false).await.unwrap();
    let held = clients.until_job("one", |job| job.held && job.slots.is_empty()).await;
    assert!(["stopping", "paused"].contains(&held.state.as_str()) && held.failures == 0, "{held:?}");
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_waited_out() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(config(folder.path())).await.unwrap();
    let clients = Clients::of(&daemon).await;
    let manager = FakeManager::attach(&clients, "fake", servers(1, 2)).await;
    manager.world.lock().unwrap().refuse = true;
    clients.submit(&spec("one")).await.unwrap();
    let refused = clients.until_job("one", |job| job.reason.contains("not today")).await;
    assert_eq!(refused.state, "waiting");
    manager.world.lock().unwrap().refuse = false;
    clients.until_job("one", |job| job.state == "running").await;
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_past_its_time_is_stopped_and_over() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(config(folder.path())).await.unwrap();
    let clients = Clients::of(&daemon).await;
    let manager = FakeManager::attach(&clients, "fake", servers(1, 2)).await;
    let mut limited = spec("one");
    limited.time_limit = Some(trainmaster_core::Span(200));
    let job = clients.submit(&limited).await.unwrap().job;
    manager.until_plan(job, |plan| plan.action() == v1::Action::Stop).await;
    let ended = clients.until_job("one", |job| job.state == "stopped" && job.ended_ms.is_some()).await;
    assert!(ended.reason.contains("time limit of 200ms"), "{}", ended.reason);
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_manager_receives_jobs_on_its_own_servers() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(config(folder.path())).await.unwrap();
    let clients = Clients::of(&daemon).await;
    let named = |prefix: &str, gpus| {
        let mut servers = servers(1, gpus);
        servers[0].name = format!("{prefix}-node");
        servers
    };
    let one = FakeManager::attach(&clients, "one", named("one", 1)).await;
    let two = FakeManager::attach(&clients, "two", named("two", 0)).await;
    two.until("its first plan", |world| (!world.heard.is_empty()).then_some(())).await;
    let small = smallest("job");
    let job = clients.submit(&small).await.unwrap().job;
    // Its only GPU is there.
    one.until_plan(job, |plan| plan.action() == v1::Action::Run).await;
    clients.until_job("job", |job| job.state == "running").await;
    assert!(two.look(|world| world.plans.get(&job).is_none_or(|plan| plan.action() != v1::Action::Run)));
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_is_renewed_before_it_expires() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(folder.path());
    config.plan_ttl = std::time::Duration::from_millis(150);
    let daemon = Daemon::start(config).await.unwrap();
    let clients = Clients::of(&daemon).await;
    let manager = FakeManager::attach(&clients, "fake", servers(1, 2)).await;
    let renewed = |world: &super::support::World| (world.heard.len() >= 4).then(|| world.heard.clone());
    let plans = manager.until("renewals", renewed).await;
    assert!(plans[0].full && plans[1..].iter().all(|plan| !plan.full && plan.jobs.is_empty() && plan.ttl_ms == 150));
    daemon.stop().await;
}
