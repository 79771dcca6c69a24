//! Assignments of training programs, and their permissions.

use std::time::Duration;

use tonic::{Code, Streaming};
use trainmaster_core::{JobSpec, TrainingMode};
use trainmaster_daemon::Daemon;
use trainmaster_proto::v1::{self, AssignmentPhase, SlotRole};

use super::support::{Clients, FakeManager, STEPS_PER_EPOCH, Trainer, config, servers, sign, spec};

async fn watch(
    clients: &Clients,
    token: &str,
    job: &str,
    slot: (u32, SlotRole, u32),
    address: &str,
) -> Result<Streaming<v1::Assignment>, tonic::Status> {
    let (incarnation, role, index) = slot;
    let request = v1::WatchRequest { job: job.into(), incarnation, role: role.into(), index, address: address.into() };
    Ok(clients.feed.clone().watch(sign(request, token)).await?.into_inner())
}

async fn until_assigned(
    stream: &mut Streaming<v1::Assignment>,
    wanted: impl Fn(&v1::Assignment) -> bool,
) -> v1::Assignment {
    let read = async {
        loop {
            let assignment = stream.message().await.unwrap().expect("the stream goes on");
            if wanted(&assignment) {
                return assignment;
            }
        }
    };
    tokio::time::timeout(super::support::LIMIT, read).await.expect("an assignment as wanted")
}

fn address(assignment: &v1::Assignment, role: SlotRole) -> &str {
    let peer = assignment.peers.iter().find(|peer| peer.slot.as_ref().is_some_and(|slot| slot.role() == role));
    &peer.expect("a slot of the role").address
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_learn_of_each_other_and_of_changes() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(config(folder.path())).await.unwrap();
    let clients = Clients::of(&daemon).await;
    let manager = FakeManager::attach(&clients, "fake", servers(1, 1)).await;
    let job = clients.submit(&spec("one")).await.unwrap();
    let plan = manager.until_plan(job.job, |plan| plan.action() == v1::Action::Run).await;

    let mut worker = watch(&clients, &job.token, "one", (1, SlotRole::Worker, 0), "node0:1").await.unwrap();
    let first = until_assigned(&mut worker, |_| true).await;
    assert_eq!((first.job, first.incarnation, first.phase(), first.last_seq), (job.job, 1, AssignmentPhase::Run, 0));
    assert_eq!((address(&first, SlotRole::Worker), address(&first, SlotRole::Server)), ("node0:1", ""));
    assert_eq!(first.grace_ms, 30_000);

    let number = job.job.to_string();
    let server = watch(&clients, &job.token, &number, (1, SlotRole::Server, 0), "node0:2").await.unwrap();
    let both = until_assigned(&mut worker, |seen| address(seen, SlotRole::Server) == "node0:2").await;
    assert_eq!(both.peers.len(), plan.slots.len());

    // A restarted program replaces its address. The end of the old stream doesn't remove the new address.
    let again = watch(&clients, &job.token, "one", (1, SlotRole::Server, 0), "node0:3").await.unwrap();
    until_assigned(&mut worker, |seen| address(seen, SlotRole::Server) == "node0:3").await;
    drop(server);
    drop(again);
    until_assigned(&mut worker, |seen| address(seen, SlotRole::Server).is_empty()).await;

    let mut trainer = Trainer::new(&clients, &plan);
    trainer.train(3).await;
    let mut back = watch(&clients, &job.token, "one", (1, SlotRole::Worker, 0), "node0:4").await.unwrap();
    assert_eq!(until_assigned(&mut back, |_| true).await.last_seq, 3);

    let request = v1::AcknowledgeRequest {
        job: "one".into(),
        incarnation: 1,
        checkpoint_ms: 2000.0,
        leaving: true,
        ..Default::default()
    };
    clients.feed.clone().acknowledge(sign(request, &job.token)).await.unwrap();
    let metrics = super::net::get(&daemon, "/metrics").await;
    // No more examples than the steps of the batch have.
    let trained = format!("trainmaster_examples_total {}", 3 * STEPS_PER_EPOCH * spec("one").batch);
    for counted in [
        trained.as_str(),
        "trainmaster_acknowledgements_total{kind=\"leaving\"} 1",
        "trainmaster_checkpoint_seconds_sum 2",
    ] {
        assert!(metrics.contains(counted), "{counted}: {metrics}");
    }

    clients.pause("one", false).await.unwrap();
    let stop = until_assigned(&mut back, |seen| seen.phase() == AssignmentPhase::Stop).await;
    assert_eq!(stop.incarnation, 1);
    clients.pause("one", true).await.unwrap();
    // In another incarnation, this program has to end, and its sequence numbers don't count.
    let moved = until_assigned(&mut back, |seen| seen.incarnation == 2).await;
    assert_eq!((moved.phase(), moved.last_seq), (AssignmentPhase::Run, 0));
    clients.cancel("one").await.unwrap();
    until_assigned(&mut back, |seen| seen.phase() == AssignmentPhase::Stop).await;
    daemon.stop().await;
    assert_eq!(worker_end(back).await, Code::Unavailable);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_batch_follows_the_noise_that_a_program_reports() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(config(folder.path())).await.unwrap();
    let clients = Clients::of(&daemon).await;
    let manager = FakeManager::attach(&clients, "fake", servers(1, 1)).await;
    let mut one = JobSpec { mode: TrainingMode::AllReduce, server: None, batch: 64, ..spec("one") };
    one.labels = [("batch.max", "4096"), ("batch.local", "128")].map(|(key, value)| (key.into(), value.into())).into();
    let job = clients.submit(&one).await.unwrap();
    let plan = manager.until_plan(job.job, |plan| plan.action() == v1::Action::Run).await;
    let told = |name: &str| plan.environment.get(name).map(String::as_str);
    let names = ["", "_SUBMITTED", "_LOCAL", "_PASSES"].map(|name| format!("TRAINMASTER_BATCH{name}"));
    assert_eq!(names.each_ref().map(|name| told(name)), ["64", "64", "64", "1"].map(Some));
    let mut worker = watch(&clients, &job.token, "one", (1, SlotRole::Worker, 0), "node0:1").await.unwrap();
    let batch = |size, local, passes| Some(v1::Batch { size, local, passes, submitted: 64 });
    assert_eq!(until_assigned(&mut worker, |_| true).await.batch, batch(64, 64, 1));
    let report = |seq: u64, progress: v1::Progress| {
        let progress = v1::Progress { seq, step: seq * 10, steps: 10, duration_ms: 1000.0, workers: 1, ..progress };
        let request = v1::ReportRequest {
            job: "one".into(),
            incarnation: 1,
            role: SlotRole::Worker.into(),
            index: 0,
            progress: vec![progress],
        };
        let mut feed = clients.feed.clone();
        let request = sign(request, &job.token);
        async move { feed.report(request).await.unwrap().into_inner() }
    };
    let noise = |sqr, var| v1::Progress { batch: Some(64), grad_sqr: sqr, grad_var: var, ..v1::Progress::default() };
    // What can't be true is left out, and the rest of the report counts.
    for (seq, strange) in
        (1..).zip([noise(Some(f64::NAN), Some(1.0)), noise(Some(1.0), None), noise(Some(-1.0), Some(1.0))])
    {
        assert!(report(seq, strange).await.accepted);
    }
    let known = clients.explain("one").await.join("\n");
    assert!(known.contains("batch 64, of 64 to 4096") && known.contains("no usable gradient noise yet"), "{known}");
    for seq in 4..=6 {
        assert!(report(seq, noise(Some(0.5), Some(50_000.0))).await.accepted);
    }
    let larger = until_assigned(&mut worker, |seen| seen.batch.is_some_and(|batch| batch.size > 64)).await;
    assert_eq!((larger.incarnation, larger.revision), (1, 0), "the program goes on");
    let chosen = larger.batch.unwrap();
    assert!(chosen.size <= 4096 && chosen.local <= 128, "{chosen:?}");
    assert_eq!(chosen.size, chosen.local * u64::from(chosen.passes));
    let known = clients.explain("one").await.join("\n");
    assert!(known.contains("noise of 100000 examples") && known.contains("its last report is of 64"), "{known}");
    daemon.stop().await;
}

async fn worker_end(mut stream: Streaming<v1::Assignment>) -> Code {
    loop {
        match stream.message().await {
            Ok(Some(_)) => {}
            Ok(None) => return Code::Ok,
            Err(status) => return status.code(),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_gives_access_to_its_own_job_only() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(config(folder.path())).await.unwrap();
    let clients = Clients::of(&daemon).await;
    let one = clients.submit(&spec("one")).await.unwrap();
    let two = clients.submit(&spec("two")).await.unwrap();
    assert_ne!(one.token, two.token);
    let slot = (0, SlotRole::Worker, 0);
    assert!(watch(&clients, &one.token, "one", slot, "").await.is_ok());
    let code = |token: &str, job: &str| {
        let (clients, token, job) = (clients.clone(), token.to_owned(), job.to_owned());
        async move { watch(&clients, &token, &job, slot, "").await.unwrap_err().code() }
    };
    assert_eq!(code(&two.token, "one").await, Code::Unauthenticated);
    assert_eq!(code("", "one").await, Code::Unauthenticated);
    assert_eq!(code(&one.token, "nobody").await, Code::NotFound);
    let bare = v1::ReportRequest { job: "one".into(), ..v1::ReportRequest::default() };
    assert_eq!(clients.feed.clone().report(bare).await.unwrap_err().code(), Code::Unauthenticated);
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nonsense_is_ignored_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(config(folder.path())).await.unwrap();
    let clients = Clients::of(&daemon).await;
    let manager = FakeManager::attach(&clients, "fake", servers(1, 1)).await;
    let job = clients.submit(&spec("one")).await.unwrap();
    let plan = manager.until_plan(job.job, |plan| plan.action() == v1::Action::Run).await;
    let mut trainer = Trainer::new(&clients, &plan);
    trainer.train(2).await;

    let nan = v1::Progress { loss: Some(f64::NAN), ..trainer.epoch() };
    let reply = trainer.send(vec![nan]).await.unwrap();
    assert_eq!((reply.accepted, reply.reason.as_str()), (false, "its loss is not a number"));
    let back = v1::Progress { step: 10, ..trainer.epoch() };
    assert_eq!(trainer.send(vec![back]).await.unwrap().reason, "its step went back");
    let seen = v1::Progress { seq: 1, ..trainer.epoch() };
    let good = trainer.epoch();
    let reply = trainer.send(vec![seen, good]).await.unwrap();
    assert_eq!(reply.reason, "1 of 2 ignored: its sequence number was seen before");
    let endless = v1::Progress { duration_ms: f64::INFINITY, ..trainer.epoch() };
    assert_eq!(trainer.send(vec![endless]).await.unwrap().reason, "a duration is negative or not a number");
    trainer.incarnation = 7;
    let other = trainer.epoch();
    assert_eq!(trainer.send(vec![other]).await.unwrap().reason, "it is of another incarnation");

    let lines = clients.explain("one").await;
    assert!(lines.iter().any(|line| line.starts_with("ignored 5 reports")), "{lines:?}");
    let after = clients.job("one").await.unwrap();
    assert!(after.loss.unwrap().is_finite() && after.step > 200);
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_is_shed_and_the_connection_stays() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(folder.path());
    config.limits.reports_per_second = 10;
    config.limits.watchers_per_job = 2;
    let daemon = Daemon::start(config).await.unwrap();
    let clients = Clients::of(&daemon).await;
    let manager = FakeManager::attach(&clients, "fake", servers(1, 1)).await;
    let job = clients.submit(&spec("one")).await.unwrap();
    let plan = manager.until_plan(job.job, |plan| plan.action() == v1::Action::Run).await;
    let mut trainer = Trainer::new(&clients, &plan);

    let many: Vec<_> = (0..1001).map(|_| trainer.epoch()).collect();
    let refused = trainer.send(many).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("1001 reports must be at most 1000"), "{}", refused.message());
    let burst: Vec<_> = (0..1000).map(|_| trainer.epoch()).collect();
    assert!(trainer.send(burst.clone()).await.unwrap().accepted);
    let shed = trainer.send(burst).await.unwrap();
    assert!(!shed.accepted && shed.reason.starts_with("too many reports"), "{}", shed.reason);
    // A little later there is room again for the refilled amount.
    let give_up = tokio::time::Instant::now() + super::support::LIMIT;
    loop {
        let next = trainer.epoch();
        if trainer.send(vec![next]).await.unwrap().accepted {
            break;
        }
        assert!(tokio::time::Instant::now() < give_up);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    let slot = (1, SlotRole::Worker, 0);
    let _first = watch(&clients, &job.token, "one", slot, "").await.unwrap();
    let _second = watch(&clients, &job.token, "one", slot, "").await.unwrap();
    let third = watch(&clients, &job.token, "one", slot, "").await.unwrap_err();
    assert_eq!(third.code(), Code::ResourceExhausted);
    let metrics = super::net::get(&daemon, "/metrics").await;
    assert!(metrics.contains("trainmaster_reports_shed_total{reason=\"flood\"} 1"), "{metrics}");
    daemon.stop().await;
}
