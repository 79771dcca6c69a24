//! Durability: restarts, a full disk, damage.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use tonic::Code;
use trainmaster_core::{Scheduler, journal::Record, text::hex};
use trainmaster_daemon::{Config, Daemon, Faults, read_journal};
use trainmaster_proto::{job_from_spec, v1};

use super::support::{Clients, FakeManager, Trainer, World, config, servers, spec, until};

/// The digest of a stopped daemon's journal, and the number of active jobs in it.
fn replay(folder: &Path) -> (String, usize) {
    let records = read_journal(folder).unwrap();
    let scheduler = Scheduler::restore(records.iter().map(|(_, record)| record.as_slice())).unwrap();
    let digest = hex(&scheduler.digest());
    (digest, scheduler.state().jobs.len())
}

/// The number of the last decision in a stopped daemon's journal.
fn last_decision(folder: &Path) -> u64 {
    let records = read_journal(folder).unwrap();
    Scheduler::restore(records.iter().map(|(_, record)| record.as_slice())).unwrap().state().decision.0
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_continues_from_the_journal() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(config(folder.path())).await.unwrap();
    let clients = Clients::of(&daemon).await;
    let manager = FakeManager::attach(&clients, "fake", servers(1, 4)).await;
    let job = clients.submit(&spec("one")).await.unwrap();
    let over = clients.submit(&spec("over")).await.unwrap();
    clients.until_job("over", |job| job.state == "running").await;
    clients.cancel("over").await.unwrap();
    let plan = manager.until_plan(job.job, |plan| plan.action() == v1::Action::Run).await;
    let mut trainer = Trainer::new(&clients, &plan);
    trainer.train(10).await;
    let fitted = clients.until_job("one", |job| job.predicted_epochs.is_some() && job.state == "running").await;
    let world = manager.world.clone();
    daemon.stop().await;
    let (digest, active) = replay(folder.path());
    assert_eq!(active, 1);
    let decided = last_decision(folder.path());

    let daemon = Daemon::start(config(folder.path())).await.unwrap();
    let clients = Clients::of(&daemon).await;
    let status = clients.status().await;
    // The daemon continues at once: a due decision may come before the call.
    assert!(status.digest == digest || status.decision > decided, "{status:?} after {digest} of {decided}");
    let back = clients.job("one").await.unwrap();
    assert_eq!((back.epoch, back.predicted_epochs, back.loss), (10, fitted.predicted_epochs, fitted.loss));
    let ended = clients.job("over").await.unwrap();
    assert_eq!((ended.job, ended.state.as_str()), (over.job, "cancelled"));

    // The manager receives the same plan under a new term, with the same token.
    world.lock().unwrap().heard.clear();
    let manager = FakeManager::attach_with(&clients, "fake", servers(1, 4), world).await;
    let full = manager.until("the full plan", |world| world.heard.first().cloned()).await;
    assert_eq!((full.full, full.term), (true, 2));
    assert_eq!((full.jobs[0].name.as_str(), full.jobs[0].token.as_str()), ("one", job.token.as_str()));
    let mut trainer = Trainer { seq: trainer.seq, step: trainer.step, ..Trainer::new(&clients, &full.jobs[0]) };
    trainer.train(1).await;
    assert!(trainer.finish().await.accepted);
    clients.until_job("one", |job| job.state == "completed").await;
    // Numbers are never reused.
    assert_eq!(clients.submit(&spec("one")).await.unwrap().job, over.job + 1);
    daemon.stop().await;
    // The chain of digests continues over both daemons.
    replay(folder.path());
}

/// A configuration with a disk that can fail, and so little room that waiting records are replaced by a snapshot.
fn faulty(folder: &Path) -> (Config, Faults) {
    let mut config = config(folder);
    config.journal.waiting_bytes = 2000;
    let faults = config.faults.clone();
    (config, faults)
}

/// Longer than several rounds of decisions, for events that must not happen meanwhile.
const ROUNDS: Duration = Duration::from_millis(600);

#[tokio::test(flavor = "multi_thread")]
async fn on_a_full_disk_nothing_is_accepted_or_decided_and_jobs_can_be_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let (config, faults) = faulty(folder.path());
    let daemon = Daemon::start(config).await.unwrap();
    let clients = Clients::of(&daemon).await;
    let manager = FakeManager::attach(&clients, "fake", servers(1, 8)).await;
    let mut jobs = Vec::new();
    for name in ["one", "held", "cancelled"] {
        let job = clients.submit(&spec(name)).await.unwrap().job;
        jobs.push((job, manager.until_plan(job, |plan| plan.action() == v1::Action::Run).await));
        clients.until_job(name, |job| job.state == "running").await;
    }
    let mut trainer = Trainer::new(&clients, &jobs[0].1);
    trainer.follow(&manager.look(|world| world.plans[&jobs[0].0].clone()));
    trainer.train(3).await;

    faults.set_full(true);
    let report = trainer.epoch();
    let refused = trainer.send(vec![report.clone()]).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(refused.message().starts_with("journal can't be written: "), "{}", refused.message());
    assert_eq!(clients.submit(&spec("two")).await.unwrap_err().code(), Code::Unavailable);
    assert!(clients.status().await.journal_error.starts_with("journal can't be written"));
    assert!(super::net::get(&daemon, "/metrics").await.contains("trainmaster_journal_broken 1"));

    // The off switch: revoked access is revoked, with a warning that a restart would undo it.
    let unwritten = |said: &str| assert!(said.starts_with("journal can't be written"), "{said:?}");
    let cancel = v1::CancelRequest { job: "cancelled".into() };
    unwritten(&clients.jobs.clone().cancel(cancel).await.unwrap().into_inner().not_written);
    manager.until_plan(jobs[2].0, |plan| plan.action() == v1::Action::Stop).await;
    let hold = v1::PauseRequest { job: "held".into(), resume: false };
    unwritten(&clients.jobs.clone().pause(hold).await.unwrap().into_inner().not_written);
    manager.until_plan(jobs[1].0, |plan| plan.action() == v1::Action::Wait).await;

    // Nothing new is decided, although a decision is due.
    let before = clients.status().await.decision;
    let incarnation = clients.job("one").await.unwrap().incarnation;
    let left = v1::Delta { servers: servers(2, 8), servers_left: vec!["node0".into()], ..v1::Delta::default() };
    let moved = super::support::observation("fake", v1::observation::Kind::Delta(left));
    manager.observations.send(moved).await.unwrap();
    until("the servers", || async { (clients.status().await.servers == 1).then_some(()) }).await;
    tokio::time::sleep(ROUNDS).await;
    assert_eq!(clients.status().await.decision, before);
    assert_eq!(clients.job("one").await.unwrap().incarnation, incarnation);

    let pause = v1::SetModeRequest { mode: v1::SchedulingMode::Paused.into() };
    unwritten(&clients.admin.clone().set_mode(pause).await.unwrap().into_inner().not_written);
    manager.until_plan(jobs[0].0, |plan| plan.action() == v1::Action::Release).await;
    assert_eq!(clients.status().await.mode(), v1::SchedulingMode::Paused);

    // Once there is room, all records are written, and the daemon continues.
    faults.set_full(false);
    until("the journal", || async { clients.status().await.journal_error.is_empty().then_some(()) }).await;
    clients.mode(v1::SchedulingMode::Active).await;
    let two = clients.submit(&spec("two")).await.unwrap();
    assert!(two.job > jobs[2].0);
    clients.until_job("one", |job| job.state == "running" && job.incarnation > incarnation).await;
    trainer.follow(&manager.look(|world| world.plans[&jobs[0].0].clone()));
    trainer.train(2).await;
    let (step, before) = (trainer.step, clients.job("one").await.unwrap());
    daemon.stop().await;

    let daemon = Daemon::start(super::support::config(folder.path())).await.unwrap();
    let clients = Clients::of(&daemon).await;
    let back = clients.job("one").await.unwrap();
    assert_eq!((back.step, back.epoch, back.incarnation), (step, before.epoch, before.incarnation));
    assert!(clients.job("held").await.unwrap().reason.contains("held"));
    assert_eq!(clients.job("cancelled").await.unwrap().state, "cancelled");
    assert!(clients.job("two").await.is_some());
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_lost_on_a_full_disk_were_not_sent() {
    let folder = tempfile::tempdir().unwrap();
    let (config, faults) = faulty(folder.path());
    let mut told: BTreeMap<(u64, u32, u32), Vec<v1::Slot>> = BTreeMap::new();
    let world = Arc::new(Mutex::new(World::default()));
    for life in 0..6_u32 {
        let daemon = until("the file to be free", || async { Daemon::start(config.clone()).await.ok() }).await;
        let clients = Clients::of(&daemon).await;
        let manager = FakeManager::attach_with(&clients, "fake", servers(2, 4), world.clone()).await;
        let name = format!("job{life}");
        clients.submit(&spec(&name)).await.unwrap();
        clients.until_job(&name, |job| job.state == "running").await;
        // All following changes are lost: servers that leave and return, and a job that is held and resumed.
        faults.set_full(true);
        let gone = format!("node{}", life % 2);
        let left = v1::Delta { servers_left: vec![gone], ..v1::Delta::default() };
        let left = super::support::observation("fake", v1::observation::Kind::Delta(left));
        manager.observations.send(left).await.unwrap();
        clients.pause(&name, false).await.unwrap();
        tokio::time::sleep(ROUNDS / 2).await;
        clients.pause(&name, true).await.unwrap();
        tokio::time::sleep(ROUNDS / 2).await;
        drop(clients);
        drop(daemon);
        drop(manager);
        faults.set_full(false);
        for plan in world.lock().unwrap().heard.drain(..) {
            for job in plan.jobs.into_iter().filter(|job| job.action() == v1::Action::Run) {
                let numbers = (job.job, job.incarnation, job.revision);
                let known = told.entry(numbers).or_insert_with(|| job.slots.clone());
                assert_eq!(*known, job.slots, "job, incarnation and revision {numbers:?} were given twice");
            }
        }
    }
    assert!(told.len() > 6, "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_does_not_answer_is_a_full_one() {
    let folder = tempfile::tempdir().unwrap();
    let (mut config, faults) = faulty(folder.path());
    config.journal.write_limit = Duration::from_secs(3);
    let daemon = Daemon::start(config).await.unwrap();
    let clients = Clients::of(&daemon).await;
    let manager = FakeManager::attach(&clients, "fake", servers(1, 4)).await;
    let job = clients.submit(&spec("one")).await.unwrap().job;
    manager.until_plan(job, |plan| plan.action() == v1::Action::Run).await;

    faults.set_stuck(true);
    let refused = clients.submit(&spec("two")).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(refused.message().contains("has not answered for 3s"), "{}", refused.message());
    // From now on calls fail at once, and nothing is decided.
    assert_eq!(clients.submit(&spec("three")).await.unwrap_err().code(), Code::Unavailable);
    let before = clients.status().await.decision;
    clients.pause("one", false).await.unwrap();
    manager.until_plan(job, |plan| plan.action() == v1::Action::Wait).await;
    tokio::time::sleep(ROUNDS).await;
    assert_eq!(clients.status().await.decision, before);

    faults.set_stuck(false);
    until("the journal", || async { clients.status().await.journal_error.is_empty().then_some(()) }).await;
    assert!(super::net::get(&daemon, "/metrics").await.contains("trainmaster_journal_broken 0"));
    clients.submit(&spec("two")).await.unwrap();
    clients.pause("one", true).await.unwrap();
    clients.until_job("one", |job| job.state == "running").await;
    let incarnation = clients.job("one").await.unwrap().incarnation;
    daemon.stop().await;
    assert_eq!(replay(folder.path()).1, 2);
    let daemon = Daemon::start(super::support::config(folder.path())).await.unwrap();
    let back = Clients::of(&daemon).await.job("one").await.unwrap();
    assert!(back.incarnation >= incarnation);
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_submission_that_cannot_be_promised_is_taken_back() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    let faults = config.faults.clone();
    let daemon = Daemon::start(config).await.unwrap();
    let clients = Clients::of(&daemon).await;
    faults.set_full(true);
    let external = Some(v1::ExternalId { cluster: "elsewhere".into(), native: "a1".into() });
    let request = v1::SubmitRequest { job: Some(job_from_spec(&spec("one"))), external };
    // The first failed write is this call's own.
    let refused = clients.jobs.clone().submit(request.clone()).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    faults.set_full(false);
    until("the journal", || async { clients.status().await.journal_error.is_empty().then_some(()) }).await;
    let again = clients.jobs.clone().submit(request).await.unwrap().into_inner();
    assert_eq!(clients.list().await.jobs.iter().filter(|job| job.state == "cancelled").count(), 1);
    assert_eq!(again.job, 2);
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_keep_the_journal_short() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(folder.path());
    config.journal.snapshot_records = 50;
    config.journal.history_bytes = 0;
    config.journal.ended_jobs = 5;
    let daemon = Daemon::start(config.clone()).await.unwrap();
    let clients = Clients::of(&daemon).await;
    let manager = FakeManager::attach(&clients, "fake", servers(1, 4)).await;
    for at in 0..10 {
        let job = clients.submit(&spec(&format!("job{at}"))).await.unwrap().job;
        let plan = manager.until_plan(job, |plan| plan.action() == v1::Action::Run).await;
        let mut trainer = Trainer::new(&clients, &plan);
        trainer.train(20).await;
        assert!(trainer.finish().await.accepted);
    }
    assert_eq!(clients.list().await.jobs.len(), 5);
    daemon.stop().await;
    let records = read_journal(folder.path()).unwrap();
    // The number of records between two snapshots depends on their sizes.
    let snapshots: Vec<u64> =
        records.iter().filter(|(_, record)| Record::is_snapshot(record)).map(|(at, _)| *at).collect();
    assert!(records[0].0 > 0 && snapshots[0] == records[0].0, "from {}, {snapshots:?}", records[0].0);
    assert_eq!(snapshots.len(), 2, "all before the last but one go");
    replay(folder.path());
    let daemon = Daemon::start(config).await.unwrap();
    assert_eq!(Clients::of(&daemon).await.list().await.jobs.len(), 5);
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn other_settings_hold_from_the_next_start() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(folder.path());
    let daemon = Daemon::start(config.clone()).await.unwrap();
    let clients = Clients::of(&daemon).await;
    clients.submit(&spec("one")).await.unwrap();
    daemon.stop().await;
    config.settings.engine = "fifo".into();
    config.settings.parameters.clear();
    let daemon = Daemon::start(config).await.unwrap();
    let clients = Clients::of(&daemon).await;
    assert_eq!((clients.status().await.engine.as_str(), clients.status().await.jobs), ("fifo", 1));
    let _manager = FakeManager::attach(&clients, "fake", servers(1, 1)).await;
    clients.until_job("one", |job| job.state == "running").await;
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_cut_off_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(config(folder.path())).await.unwrap();
    let clients = Clients::of(&daemon).await;
    clients.submit(&spec("one")).await.unwrap();
    daemon.stop().await;
    let path = folder.path().join("journal.redb");
    let whole = fs::read(&path).unwrap();
    let cut = &whole[..whole.len() / 2];
    fs::write(&path, cut).unwrap();
    let error = Daemon::start(config(folder.path())).await.unwrap_err().to_string();
    assert!(error.contains("journal.redb"), "{error}");
    assert_eq!(fs::read(&path).unwrap().len(), cut.len());
    fs::write(&path, whole).unwrap();
    let daemon = Daemon::start(config(folder.path())).await.unwrap();
    assert!(Clients::of(&daemon).await.job("one").await.is_some());
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_daemon_ends_with_a_complete_journal() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    let faults = config.faults.clone();
    let daemon = Daemon::start(config.clone()).await.unwrap();
    let clients = Clients::of(&daemon).await;
    let manager = FakeManager::attach(&clients, "fake", servers(1, 4)).await;
    clients.submit(&spec("one")).await.unwrap();
    clients.until_job("one", |job| job.state == "running").await;
    faults.set_stuck(true);
    let slow = tokio::spawn({
        let clients = clients.clone();
        async move { clients.submit(&spec("two")).await }
    });
    until("the submission to be taken", || async { clients.job("two").await.map(drop) }).await;
    drop(daemon);
    assert!(slow.await.unwrap().is_err(), "it was never answered");
    // Time in which repeated attempts to close would fill the journal with snapshots.
    tokio::time::sleep(Duration::from_millis(300)).await;
    faults.set_stuck(false);
    drop(manager);

    // Its threads end, and only they hold the file.
    let daemon = until("the file to be free", || async { Daemon::start(config.clone()).await.ok() }).await;
    let clients = Clients::of(&daemon).await;
    assert!(clients.job("one").await.is_some() && clients.job("two").await.is_some());
    daemon.stop().await;
    let records = read_journal(folder.path()).unwrap();
    assert!(records[0].0 < 200, "the journal began to grow at its end: it is at record {}", records[0].0);
    replay(folder.path());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_takes_too_long_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(folder.path());
    config.decision.limit = Duration::from_nanos(1);
    let daemon = Daemon::start(config).await.unwrap();
    let clients = Clients::of(&daemon).await;
    let _manager = FakeManager::attach(&clients, "fake", servers(1, 1)).await;
    clients.submit(&spec("one")).await.unwrap();
    until("late tickets", || async {
        let metrics = super::net::get(&daemon, "/metrics").await;
        let late =
            metrics.lines().find(|line| line.starts_with("trainmaster_tickets_late_total{kind=\"decision\"}"))?;
        (late.rsplit(' ').next()?.parse::<u32>().ok()? >= 2).then_some(())
    })
    .await;
    // The daemon still serves, and its journal replays, whatever the order of these events.
    assert!(clients.job("one").await.is_some());
    daemon.stop().await;
    replay(folder.path());
}
