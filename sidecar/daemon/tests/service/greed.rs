//! One caller's use doesn't affect others: connections, room for jobs, servers that are absent for a moment.

use std::path::Path;

use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};
use trainmaster_core::JobSpec;
use trainmaster_daemon::{Config, Daemon};
use trainmaster_proto::{
    job_from_spec,
    v1::{self, TokenRole, observation::Kind},
};

use super::support::{Clients, FakeManager, LIMIT, config, lively, observation, servers, spec, until};

/// A configuration with these limits.
fn limited(folder: &Path, limits: &str) -> Config {
    let text = format!("state_dir = {folder:?}\nlisten = \"127.0.0.1:0\"\nadapters = []\n[limits]\n{limits}");
    let mut config = Config::from_toml(&text).unwrap();
    config.settings = lively();
    config
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_leave_connections_to_administrators() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(folder.path());
    config.limits.connections = 64;
    let daemon = Daemon::start(config).await.unwrap();
    let admin = Clients::of(&daemon).await;
    let (mut held, mut refused) = (Vec::new(), 0);
    for tenant in ["a", "b"] {
        // The jobs need not run.
        let job = admin.submit(&JobSpec { tenant: tenant.into(), ..spec(tenant) }).await.unwrap();
        for _ in 0..40 {
            let clients = Clients::at(daemon.url(), Some(&job.token)).await;
            let nothing = v1::ReportRequest { job: job.job.to_string(), ..v1::ReportRequest::default() };
            match timeout(LIMIT, clients.feed.clone().report(nothing)).await.expect("an answer") {
                Err(full) if full.code() == Code::ResourceExhausted => refused += 1,
                _ => held.push(clients),
            }
        }
    }
    // A quarter is reserved for connections without an admitted call, and a sixteenth for administrators and adapters.
    assert_eq!((held.len(), refused), (44, 36));
    let admin = timeout(LIMIT, Clients::of(&daemon)).await.unwrap();
    timeout(LIMIT, admin.mode(v1::SchedulingMode::Paused)).await.expect("the off switch works");
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_taken_away_ends_its_connections() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(config(folder.path())).await.unwrap();
    let admin = Clients::of(&daemon).await;
    let token = admin.token("s", TokenRole::Submit, "nlp").await;
    let connections = || async {
        let page = super::net::get(&daemon, "/metrics").await;
        let line = page.lines().find_map(|line| line.strip_prefix("trainmaster_connections "));
        line.and_then(|count| count.parse::<i64>().ok()).expect("it is counted")
    };
    let mut held = Vec::new();
    for _ in 0..8 {
        let clients = Clients::at(daemon.url(), Some(&token)).await;
        clients.list().await;
        held.push(clients);
    }
    let before = connections().await;
    admin.admin.clone().revoke_token(v1::RevokeTokenRequest { name: "s".into() }).await.unwrap();
    until("their end", || async { (connections().await <= before - 8).then_some(()) }).await;
    admin.status().await;
    daemon.stop().await;
}

/// The observations of a manager with one server that ignores plans.
async fn deaf(clients: &Clients, name: &str) -> mpsc::Sender<v1::Observation> {
    let mut own = servers(1, 8);
    own[0].name = "its-own".into();
    let (observations, receiver) = mpsc::channel(64);
    let snapshot = v1::Snapshot { servers: own, ..v1::Snapshot::default() };
    observations.send(observation(name, Kind::Snapshot(snapshot))).await.unwrap();
    let mut plans = clients.manager.clone().attach(ReceiverStream::new(receiver)).await.unwrap().into_inner();
    tokio::spawn(async move { while let Ok(Some(_)) = plans.message().await {} });
    observations
}

/// A manager reports that a job runs and has ended, but that its slot still exists.
async fn end_in_place(admin: &Clients, observations: &mpsc::Sender<v1::Observation>, job: u64, name: &str) {
    let slot = v1::Slot { server: "its-own".into(), ..v1::Slot::default() };
    for phase in [v1::ObservedPhase::Running, v1::ObservedPhase::Completed] {
        let slots = vec![slot.clone()];
        let job = v1::ObservedJob { job, phase: phase.into(), slots, ..v1::ObservedJob::default() };
        let delta = v1::Delta { jobs: vec![job], ..v1::Delta::default() };
        observations.send(observation("m", Kind::Delta(delta))).await.unwrap();
    }
    admin.until_job(name, |job| job.ended_ms.is_some()).await;
}

/// Submits a job of a manager's cluster.
async fn bring(clients: &Clients, cluster: &str, native: String, tenant: &str) -> Result<u64, Status> {
    let job = JobSpec { tenant: tenant.into(), ..spec(&format!("{cluster}-{native}")) };
    let external = Some(v1::ExternalId { cluster: cluster.into(), native });
    let request = v1::SubmitRequest { job: Some(job_from_spec(&job)), external };
    Ok(clients.jobs.clone().submit(request).await?.into_inner().job)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manager_takes_no_tenants_room() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(limited(folder.path(), "jobs = 20\njobs_per_tenant = 6")).await.unwrap();
    let admin = Clients::of(&daemon).await;
    let manager = Clients::at(daemon.url(), Some(&admin.token("m", TokenRole::Manager, "m").await)).await;
    let (mut brought, mut problems) = (0, Vec::new());
    for (at, tenant) in (0..24).map(|at| (at, ["vision", "nlp", "invented"][at % 3])) {
        match bring(&manager, "m", format!("app-{at}"), tenant).await {
            Ok(_) => brought += 1,
            Err(full) => problems.push((full.code(), full.message().to_owned())),
        }
    }
    assert_eq!(brought, 10, "{problems:?}");
    assert!(problems.iter().all(|(code, why)| *code == Code::ResourceExhausted && why.contains("half of limits.jobs")));
    // These jobs don't count for the tenant's own submissions.
    for at in 0..6 {
        admin.submit(&JobSpec { tenant: "vision".into(), ..spec(&format!("own-{at}")) }).await.unwrap();
    }
    let full = admin.submit(&JobSpec { tenant: "vision".into(), ..spec("one-more") }).await.unwrap_err();
    assert!(full.message().contains("limits.jobs_per_tenant"), "{full}");
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_that_ended_and_are_still_seen_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(limited(folder.path(), "jobs = 10")).await.unwrap();
    let admin = Clients::of(&daemon).await;
    let clients = Clients::at(daemon.url(), Some(&admin.token("m", TokenRole::Manager, "m").await)).await;
    let observations = deaf(&clients, "m").await;
    let mut full = None;
    for at in 0..40 {
        let job = match bring(&clients, "m", format!("app-{at}"), "vision").await {
            Ok(job) => job,
            Err(why) => {
                full = Some((at, why));
                break;
            }
        };
        end_in_place(&admin, &observations, job, &format!("m-app-{at}")).await;
    }
    let (at, why) = full.expect("it is refused some time");
    assert!(at <= 20 && why.code() == Code::ResourceExhausted, "{at} {why}");
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unreleased_slots_do_not_block_submissions() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(limited(folder.path(), "jobs = 20\njobs_per_tenant = 5")).await.unwrap();
    let admin = Clients::of(&daemon).await;
    let clients = Clients::at(daemon.url(), Some(&admin.token("m", TokenRole::Manager, "m").await)).await;
    let observations = deaf(&clients, "m").await;
    for at in 0..10 {
        let job = bring(&clients, "m", format!("app-{at}"), "vision").await.unwrap();
        end_in_place(&admin, &observations, job, &format!("m-app-{at}")).await;
    }
    assert!(bring(&clients, "m", "one-more".into(), "vision").await.unwrap_err().message().contains("half of"));
    for at in 0..5 {
        admin.submit(&JobSpec { tenant: "vision".into(), ..spec(&format!("own-{at}")) }).await.unwrap();
    }
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_observation_delays_no_others() {
    const MANY: u32 = 30_000;
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(config(folder.path())).await.unwrap();
    let admin = Clients::of(&daemon).await;
    let manager = FakeManager::attach(&admin, "m", Vec::new()).await;
    let servers = (0..MANY).map(|at| v1::Server { name: format!("s{at}"), ..v1::Server::default() }).collect();
    let delta = v1::Delta { servers, ..v1::Delta::default() };
    manager.observations.send(observation("m", Kind::Delta(delta))).await.unwrap();
    let mut parts = 0;
    loop {
        match admin.status().await.servers {
            0 => {}
            MANY => break,
            _ => parts += 1,
        }
    }
    assert!(parts > 0, "whoever asked waited until all of it was taken");
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_absent_for_a_moment_keeps_its_manager() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(config(folder.path())).await.unwrap();
    let admin = Clients::of(&daemon).await;
    let token =
        async |name: &str| Clients::at(daemon.url(), Some(&admin.token(name, TokenRole::Manager, name).await)).await;
    let (mine, theirs) = (token("mine").await, token("theirs").await);
    let manager = FakeManager::attach(&mine, "mine", servers(2, 2)).await;
    let mut other = servers(1, 1);
    other[0].name = "other".into();
    let thief = FakeManager::attach(&theirs, "theirs", other.clone()).await;
    let servers_there = |count: u32| {
        let admin = admin.clone();
        async move { until("servers", || async { (admin.status().await.servers == count).then_some(()) }).await }
    };
    servers_there(3).await;
    let delta = |servers, servers_left| Kind::Delta(v1::Delta { servers, servers_left, ..v1::Delta::default() });
    let reboots = delta(Vec::new(), vec!["node0".into(), "nobody".into()]);
    manager.observations.send(observation("mine", reboots)).await.unwrap();
    servers_there(2).await;
    // The observation is applied when the second server is there.
    other[0].name = "heard".into();
    let taken = delta([servers(1, 2), other].concat(), Vec::new());
    thief.observations.send(observation("theirs", taken)).await.unwrap();
    servers_there(3).await;
    manager.observations.send(observation("mine", delta(servers(1, 2), Vec::new()))).await.unwrap();
    servers_there(4).await;
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_leave_in_parts_and_all_of_them() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(config(folder.path())).await.unwrap();
    let admin = Clients::of(&daemon).await;
    let others = FakeManager::attach(&admin, "others", servers(2, 4)).await;
    let clients = Clients::at(daemon.url(), Some(&admin.token("m", TokenRole::Manager, "m").await)).await;
    let own = |count| {
        let named = |(at, server)| v1::Server { name: format!("own{at}"), ..server };
        servers(count, 0).into_iter().enumerate().map(named).collect::<Vec<_>>()
    };
    let manager = FakeManager::attach(&clients, "m", own(1700)).await;
    let there = async |count: u32| {
        until("the servers", || async { (admin.status().await.servers == count).then_some(()) }).await;
    };
    there(1702).await;
    // A server that a snapshot doesn't mention, and one that has left.
    let snapshot = v1::Snapshot { servers: own(3), ..v1::Snapshot::default() };
    manager.observations.send(observation("m", Kind::Snapshot(snapshot))).await.unwrap();
    there(5).await;
    let delta = v1::Delta { servers: own(1700), ..v1::Delta::default() };
    manager.observations.send(observation("m", Kind::Delta(delta))).await.unwrap();
    there(1702).await;
    let names = own(1700).into_iter().chain(servers(2, 4)).map(|server| server.name);
    let delta = v1::Delta { servers_left: names.clone().chain(names).collect(), ..v1::Delta::default() };
    manager.observations.send(observation("m", Kind::Delta(delta))).await.unwrap();
    there(2).await;
    drop(others);
    daemon.stop().await;
}
