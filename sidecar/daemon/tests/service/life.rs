//! Jobs from submission to end.

use std::time::Duration;

use trainmaster_daemon::{Daemon, read_audit};
use trainmaster_proto::{
    job_from_spec,
    v1::{self, SchedulingMode},
};

use super::support::{Clients, FakeManager, Trainer, config, servers, spec, until};

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_planned_runs_is_rescaled_and_ends() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(config(folder.path())).await.unwrap();
    let clients = Clients::of(&daemon).await;
    let manager = FakeManager::attach(&clients, "fake", servers(2, 2)).await;

    let one = clients.submit(&spec("one")).await.unwrap();
    let plan = manager.until_plan(one.job, |plan| plan.action() == v1::Action::Run).await;
    assert_eq!((plan.name.as_str(), plan.token.as_str(), plan.incarnation), ("one", one.token.as_str(), 1));
    assert_eq!((plan.worker_command.as_str(), plan.server_command.as_str()), ("train --worker", "train --server"));
    assert_eq!((plan.environment["TRAINMASTER_MODE"].as_str(), plan.grace_ms), ("sync", 30_000));
    let status = clients.until_job("one", |job| job.state == "running").await;
    assert_eq!(status.slots.len() as u32, status.workers + status.servers);
    assert!(status.started_ms.is_some());

    let mut trainer = Trainer::new(&clients, &plan);
    trainer.train(20).await;
    let fitted = clients.until_job("one", |job| job.predicted_epochs.is_some() && job.remaining_ms.is_some()).await;
    assert_eq!((fitted.epoch, fitted.step), (20, 2000));
    assert!(fitted.loss.unwrap() < 0.3 && fitted.speed.unwrap() > 1.0);

    // A second job takes its share, and the first is resized while it runs.
    let before = clients.job("one").await.unwrap();
    let two = clients.submit(&spec("two")).await.unwrap();
    let plan_two = manager.until_plan(two.job, |plan| plan.action() == v1::Action::Run).await;
    let resized = clients.until_job("one", |job| job.rescales > 0 && job.state == "running").await;
    assert!((resized.incarnation, resized.revision) > (before.incarnation, before.revision));
    clients.until_job("two", |job| job.state == "running").await;

    let newest = manager.look(|world| world.plans[&one.job].clone());
    trainer.follow(&newest);
    trainer.train(3).await;
    assert!(trainer.finish().await.accepted);
    let ended = clients.until_job("one", |job| job.state == "completed").await;
    assert!(ended.reason.contains("converged at epoch 24"), "{}", ended.reason);
    assert!(ended.ended_ms.unwrap() >= ended.started_ms.unwrap());
    manager.until_plan(one.job, |plan| plan.action() == v1::Action::Stop && plan.name == "one").await;
    assert!(clients.explain("one").await[0].starts_with("completed: converged"));

    // Repeated reports after the end are ignored without an error.
    let late = trainer.finish().await;
    assert!(!late.accepted && late.reason.contains("no active job"), "{}", late.reason);

    // Its room goes to the other job.
    let small = (plan_two.slots.len(), plan_two.revision);
    manager.until_plan(two.job, |plan| (plan.slots.len(), plan.revision) != small).await;
    clients.cancel("two").await.unwrap();
    let ended = clients.until_job("two", |job| job.state == "cancelled").await;
    assert!(ended.reason.starts_with("cancelled from 127.0.0.1"), "{}", ended.reason);
    manager.until("both to be gone", |world| world.running.is_empty().then_some(())).await;

    daemon.stop().await;
    let audit: Vec<_> = read_audit(folder.path()).unwrap().into_iter().map(|entry| entry.what).collect();
    assert_eq!(audit, ["submit job 1 (one)", "submit job 2 (two)", "cancel job 2 (two)"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_settings_a_job_that_arrives_or_is_resumed_does_not_wait_for_the_round() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(trainmaster_daemon::Config::new(folder.path())).await.unwrap();
    let clients = Clients::of(&daemon).await;
    let _manager = FakeManager::attach(&clients, "fake", servers(2, 4)).await;
    // A job that arrives before the servers does wait for the round.
    until("the servers", || async { (clients.status().await.servers == 2).then_some(()) }).await;
    let mut spec = spec("first");
    (spec.worker.max, spec.server.as_mut().unwrap().max) = (2, 2);
    for name in ["first", "second"] {
        name.clone_into(&mut spec.name);
        clients.submit(&spec).await.unwrap();
        clients.until_job(name, |job| job.state == "running").await;
    }
    clients.pause("first", false).await.unwrap();
    clients.until_job("first", |job| job.state == "paused" && job.slots.is_empty()).await;
    clients.pause("first", true).await.unwrap();
    clients.until_job("first", |job| job.state == "running").await;
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn decisions_go_on_however_fast_reports_come_in() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(folder.path());
    config.decision.fits_every = Duration::ZERO;
    config.decision.fits_wait = Duration::from_secs(3600);
    config.limits.reports_per_second = 1_000_000;
    let daemon = Daemon::start(config).await.unwrap();
    let clients = Clients::of(&daemon).await;
    let manager = FakeManager::attach(&clients, "fake", servers(6, 4)).await;
    let mut tasks = tokio::task::JoinSet::new();
    for at in 0..24 {
        let mut spec = spec(&format!("job{at}"));
        spec.worker.max = 1;
        let job = clients.submit(&spec).await.unwrap().job;
        let plan = manager.until_plan(job, |plan| plan.action() == v1::Action::Run).await;
        let mut trainer = Trainer::new(&clients, &plan);
        tasks.spawn(async move {
            loop {
                let progress = trainer.epoch();
                let _ = trainer.send(vec![progress]).await;
            }
        });
    }
    let before = clients.status().await.decision;
    until("decisions", || async { (clients.status().await.decision > before + 5).then_some(()) }).await;
    tasks.shutdown().await;
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_held_job_releases_its_slots_and_continues_later() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(config(folder.path())).await.unwrap();
    let clients = Clients::of(&daemon).await;
    let manager = FakeManager::attach(&clients, "fake", servers(1, 2)).await;
    let job = clients.submit(&spec("held")).await.unwrap().job;
    clients.until_job("held", |job| job.state == "running").await;
    clients.pause("held", false).await.unwrap();
    let plan = manager.until_plan(job, |plan| plan.action() == v1::Action::Wait).await;
    assert!(plan.reason.contains("held by a person"), "{}", plan.reason);
    let held = clients.until_job("held", |job| job.state == "paused" && job.slots.is_empty()).await;
    assert!(held.reason.contains("held"), "{}", held.reason);
    clients.pause("1", true).await.unwrap();
    let again = clients.until_job("held", |job| job.state == "running").await;
    assert_eq!(again.incarnation, 2);
    assert_eq!(clients.pause("nobody", false).await.unwrap_err().code(), tonic::Code::NotFound);
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn modes_hand_jobs_back_and_take_them_over_again() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(config(folder.path())).await.unwrap();
    let clients = Clients::of(&daemon).await;
    let manager = FakeManager::attach(&clients, "fake", servers(1, 2)).await;
    let job = clients.submit(&spec("one")).await.unwrap().job;
    let running = clients.until_job("one", |job| job.state == "running").await;

    assert_eq!(clients.mode(SchedulingMode::Paused).await, SchedulingMode::Active);
    manager.until_plan(job, |plan| plan.action() == v1::Action::Release).await;
    let released = clients.until_job("one", |job| job.state == "released").await;
    assert_eq!((released.workers, released.incarnation), (running.workers, running.incarnation));
    let waiting = clients.submit(&spec("later")).await.unwrap().job;
    manager.until_plan(waiting, |plan| plan.action() == v1::Action::Release).await;
    // The status doesn't claim that it runs.
    let later = clients.job("later").await.unwrap();
    assert_eq!((later.state.as_str(), later.workers), ("released", 0));
    assert!(later.reason.ends_with("as 1w+1p; nothing of it runs there"), "{}", later.reason);
    let lines = clients.explain("later").await;
    assert!(lines.iter().any(|line| line.contains("whether it starts is up to its manager")), "{lines:?}");
    let metrics = super::net::get(&daemon, "/metrics").await;
    for line in ["trainmaster_jobs{state=\"released\"} 2", "trainmaster_jobs{state=\"running\"} 0"] {
        assert!(metrics.contains(line), "{line} is missing in {metrics}");
    }
    assert_eq!(clients.status().await.mode(), SchedulingMode::Paused);

    // In shadow mode the job is decided, but nothing is sent.
    assert_eq!(clients.mode(SchedulingMode::Shadow).await, SchedulingMode::Paused);
    let decision = clients.status().await.decision;
    until("decisions", || async { (clients.status().await.decision > decision + 2).then_some(()) }).await;
    assert_eq!(manager.look(|world| world.plans[&waiting].action()), v1::Action::Release);

    assert_eq!(clients.mode(SchedulingMode::Active).await, SchedulingMode::Shadow);
    manager.until_plan(job, |plan| plan.action() == v1::Action::Run).await;
    clients.until_job("one", |job| job.state == "running").await;
    daemon.stop().await;

    // The mode is kept over a restart.
    let daemon = Daemon::start(config(folder.path())).await.unwrap();
    let clients = Clients::of(&daemon).await;
    assert_eq!(clients.status().await.mode(), SchedulingMode::Active);
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn impossible_jobs_are_refused_with_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(config(folder.path())).await.unwrap();
    let clients = Clients::of(&daemon).await;
    let manager = FakeManager::attach(&clients, "fake", servers(1, 2)).await;
    manager.until("the first plan", |world| (!world.heard.is_empty()).then_some(())).await;
    clients.submit(&spec("one")).await.unwrap();

    let twice = clients.submit(&spec("one")).await.unwrap_err();
    assert_eq!(twice.code(), tonic::Code::AlreadyExists);
    assert!(twice.message().contains("\"one\" is the name of active job 1"), "{}", twice.message());
    let mut big = spec("big");
    big.worker.demand.insert("gpu".into(), 3000);
    let never = clients.submit(&big).await.unwrap_err();
    assert_eq!(never.code(), tonic::Code::FailedPrecondition);
    assert!(never.message().contains("needs 3 gpu on one server; the largest has 2 (node0)"), "{}", never.message());
    let mut wrong = spec("wrong");
    wrong.batch = 1;
    wrong.convergence.delta = 2.0;
    let wrong = clients.submit(&wrong).await.unwrap_err();
    assert_eq!(wrong.code(), tonic::Code::InvalidArgument);
    assert!(wrong.message().starts_with("convergence.delta: 2 must be"), "{}", wrong.message());
    assert_eq!(clients.cancel("nobody").await.unwrap_err().code(), tonic::Code::NotFound);

    // The check alone has the same answer, and changes nothing.
    let admit = |spec: trainmaster_core::JobSpec| {
        let mut client = clients.manager.clone();
        let job = Some(trainmaster_proto::job_from_spec(&spec));
        async move { client.admit(v1::AdmitRequest { job }).await.unwrap().into_inner() }
    };
    assert!(admit(spec("two")).await.admitted);
    assert!(admit(big).await.reason.contains("needs 3 gpu"));
    assert!(admit(spec("one")).await.reason.contains("unique among active jobs"));
    assert_eq!(clients.list().await.jobs.len(), 1);
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_changes_nothing_and_a_watch_streams_changes() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(config(folder.path())).await.unwrap();
    let clients = Clients::of(&daemon).await;
    let _manager = FakeManager::attach(&clients, "fake", servers(1, 2)).await;
    let mut watch = clients
        .jobs
        .clone()
        .watch(v1::ListRequest { all: false, specs: false, ..v1::ListRequest::default() })
        .await
        .unwrap()
        .into_inner();
    assert!(watch.message().await.unwrap().unwrap().jobs.is_empty());
    clients.submit(&spec("one")).await.unwrap();
    loop {
        let list = watch.message().await.unwrap().unwrap();
        assert_eq!((list.mode.as_str(), list.engine.as_str()), ("active", "optimus"));
        if list.jobs.iter().any(|job| job.state == "running") {
            break;
        }
    }
    clients.pause("one", false).await.unwrap();
    clients.until_job("one", |job| job.slots.is_empty()).await;
    let run = |engine: &str| {
        let (mut client, engine) = (clients.admin.clone(), engine.to_owned());
        async move { client.dry_run(v1::DryRunRequest { engine }).await }
    };
    clients.submit(&spec("two")).await.unwrap();
    let before = clients.until_job("two", |job| job.state == "running").await;
    clients.submit(&spec("three")).await.unwrap();
    let dry = run("fifo").await.unwrap().into_inner();
    assert_eq!(dry.engine, "fifo");
    assert!(dry.changes.iter().all(|change| !change.after.is_empty()), "{dry:?}");
    assert_eq!(clients.job("two").await.unwrap().incarnation, before.incarnation);
    let unknown = run("oracle").await.unwrap_err();
    assert_eq!(unknown.code(), tonic::Code::InvalidArgument);
    assert!(unknown.message().contains("\"oracle\" is not an engine; there are optimus"), "{}", unknown.message());
    daemon.stop().await;
    assert!(watch_ends(watch).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_of_some_jobs_follows_them_by_number() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(config(folder.path())).await.unwrap();
    let clients = Clients::of(&daemon).await;
    let watch = |jobs: Vec<String>| {
        let mut client = clients.jobs.clone();
        async move { client.watch(v1::ListRequest { jobs, ..v1::ListRequest::default() }).await }
    };
    let many = (0..1001).map(|number| number.to_string()).collect();
    let refused = watch(many).await.err().unwrap();
    assert_eq!((refused.code(), refused.message()), (tonic::Code::InvalidArgument, "jobs: 1001 must be at most 1000"));
    let refused = watch(vec!["x".repeat(129)]).await.err().unwrap();
    assert_eq!(refused.message(), "jobs: a name of 129 bytes must have at most 128");
    watch((0..1000).map(|number| format!("{number:0>128}")).collect()).await.unwrap();
    for name in ["one", "two", "three"] {
        clients.submit(&spec(name)).await.unwrap();
    }
    let wanted = ["one", "2", "4", "later"].map(str::to_owned).to_vec();
    let mut watch = watch(wanted).await.unwrap().into_inner();
    let mut seen = async |count: usize| {
        loop {
            let list = watch.message().await.unwrap().unwrap();
            if list.jobs.len() == count {
                return list.jobs.into_iter().map(|job| (job.job, job.state)).collect::<Vec<_>>();
            }
        }
    };
    let waits = |job: u64| (job, "waiting".to_owned());
    assert_eq!(seen(2).await, [waits(1), waits(2)]);
    clients.cancel("one").await.unwrap();
    clients.submit(&spec("one")).await.unwrap();
    // Its number was asked for, too. The ended one stays.
    assert_eq!(seen(3).await, [(1, "cancelled".to_owned()), waits(2), waits(4)]);
    clients.submit(&spec("one-more")).await.unwrap();
    clients.submit(&spec("later")).await.unwrap();
    assert_eq!(seen(4).await, [(1, "cancelled".to_owned()), waits(2), waits(4), waits(6)]);
    daemon.stop().await;
}

async fn watch_ends(mut watch: tonic::Streaming<v1::ListReply>) -> bool {
    while let Ok(Some(_)) = watch.message().await {}
    true
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_with_an_external_id_exists_once() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(config(folder.path())).await.unwrap();
    let clients = Clients::of(&daemon).await;
    let external = v1::ExternalId { cluster: "fake".into(), native: "application_1_0001".into() };
    let from = |clients: &Clients, name: &str, external: &v1::ExternalId| {
        let job = Some(job_from_spec(&spec(name)));
        let (mut jobs, external) = (clients.jobs.clone(), Some(external.clone()));
        async move { jobs.submit(v1::SubmitRequest { job, external }).await.map(tonic::Response::into_inner) }
    };
    let first = from(&clients, "one", &external).await.unwrap();
    // A caller that missed the answer repeats its call, perhaps under another name.
    let again = from(&clients, "one-1", &external).await.unwrap();
    assert_eq!((again.job, again.token.as_str()), (first.job, ""));
    assert_eq!(clients.list().await.jobs.len(), 1);
    let other = v1::ExternalId { native: "application_1_0002".into(), ..external.clone() };
    let taken = from(&clients, "one", &other).await.unwrap_err();
    assert_eq!(taken.code(), tonic::Code::AlreadyExists);
    let nobody = v1::ExternalId { native: String::new(), ..external.clone() };
    let wrong = from(&clients, "two", &nobody).await.unwrap_err();
    assert!(wrong.code() == tonic::Code::InvalidArgument && wrong.message().contains("external.native"), "{wrong}");

    // Plans name it, also after a restart and after its end.
    daemon.stop().await;
    let daemon = Daemon::start(config(folder.path())).await.unwrap();
    let clients = Clients::of(&daemon).await;
    let manager = FakeManager::attach(&clients, "fake", servers(2, 2)).await;
    let plan = manager.until_plan(first.job, |plan| plan.action() == v1::Action::Run).await;
    assert_eq!((plan.external.as_ref(), plan.ended.as_str()), (Some(&external), ""));
    assert_eq!(from(&clients, "one", &external).await.unwrap().job, first.job);
    assert_eq!(clients.job("one").await.unwrap().external.as_ref(), Some(&external));
    // The list contains the submitted job if requested.
    let told = v1::ListRequest { all: true, specs: true, ..v1::ListRequest::default() };
    let told = clients.jobs.clone().list(told).await.unwrap().into_inner();
    assert_eq!(told.jobs[0].spec, Some(job_from_spec(&spec("one"))));
    assert_eq!(clients.job("one").await.unwrap().spec, None);
    clients.cancel("one").await.unwrap();
    let plan = manager.until_plan(first.job, |plan| plan.action() == v1::Action::Stop).await;
    assert_eq!((plan.external.as_ref(), plan.ended.as_str()), (Some(&external), "cancelled"));
    let over = from(&clients, "one", &external).await.unwrap_err();
    assert!(over.code() == tonic::Code::FailedPrecondition && over.message().contains("cancelled"), "{over}");
    daemon.stop().await;
}
