//! The attacks.

use std::thread;

use axum::body::Bytes;
use prost::Message as _;
use tokio::{
    net::TcpStream,
    task::JoinSet,
    time::{Duration, timeout},
};
use tonic::{Response, Streaming};
use trainmaster_core::JobSpec;
use trainmaster_proto::{
    job_from_spec,
    v1::{self, observation::Kind},
};

use crate::{
    attacker::{Attacker, Attacking, ready},
    support::{Clients, FakeManager, observation, servers, sign, spec},
};

const REPORT: &str = "/trainmaster.v1.Feed/Report";
const SUBMIT: &str = "/trainmaster.v1.Jobs/Submit";

pub(crate) type Attack = fn(Attacker) -> Attacking;

/// The attacks, by description.
pub(crate) const ATTACKS: &[(&str, Attack)] = &[
    ("none: two threads of the attacker compute", |_| Box::pin(computing())),
    ("reports of 190,000 slot times, of new workers each time", |attacker| Box::pin(slot_times(attacker))),
    ("reports of 800,000 chunks each, of a dataset of 4·10⁹", |attacker| Box::pin(chunks(attacker))),
    ("4 MiB of empty messages without a token, 8 at a time", |attacker| Box::pin(attacker.crowd(8, undecoded))),
    ("jobs with 3.9 MB of labels, 4 at a time", |attacker| Box::pin(attacker.crowd(4, labels))),
    ("small jobs, 8 submitters at a time", |attacker| Box::pin(attacker.crowd(8, submissions))),
    ("300 watchers of the list who never read it, and jobs that come", |attacker| Box::pin(watchers(attacker))),
    ("300 watchers of 1,000 names that no job has, and jobs that come", |attacker| Box::pin(strangers(attacker))),
    ("400 programs of a job of 10,000 workers who read nothing", |attacker| Box::pin(unread(attacker))),
    ("addresses of 10,000 workers that come and go, 2 at a time", |attacker| Box::pin(addresses(attacker))),
    ("whole lists, 8 readers at a time", |attacker| Box::pin(attacker.crowd(8, lists))),
    ("explanations of a job that waits among 2,000, 8 readers at a time", |attacker| Box::pin(explanations(attacker))),
    ("3,000 connections that say nothing", |attacker| Box::pin(connections(attacker))),
    ("a manager with 100,000 servers, which change their names", |attacker| Box::pin(names(attacker))),
    ("a manager whose 20,000 servers come and go, among 2,000 jobs that wait", |attacker| Box::pin(leaving(attacker))),
    ("a manager that sends snapshots of 20,000 servers and of none, among 2,000 jobs", |attacker| {
        Box::pin(snapshots(attacker))
    }),
    ("a manager whose 5,000 servers change their devices, among jobs", |attacker| Box::pin(devices(attacker))),
];

async fn computing() {
    ready().await;
    for _ in 0..2 {
        thread::spawn(|| {
            loop {
                std::hint::spin_loop();
            }
        });
    }
    std::future::pending().await
}

async fn slot_times(attacker: Attacker) {
    reports(attacker, |round| {
        let times = (0..190_000).map(|at| v1::SlotTime { worker: round * 190_000 + at, step_ms: 5.0 });
        v1::Progress { slot_times: times.collect(), ..v1::Progress::default() }
    })
    .await;
}

async fn chunks(attacker: Attacker) {
    reports(attacker, |round| {
        let chunks = (0..800_000).map(|at| round * 800_000 + at).collect();
        v1::Progress { chunks, ..v1::Progress::default() }
    })
    .await;
}

/// Reports of a job's own slot, one after the other.
async fn reports(attacker: Attacker, what: impl Fn(u32) -> v1::Progress) {
    let report = |round: u32| {
        let seq = u64::from(round) + 1;
        let progress = v1::Progress { seq, step: seq, steps_per_epoch: 1000, ..what(round) };
        let (job, incarnation) = (attacker.job.to_string(), attacker.incarnation);
        let report = v1::ReportRequest { job, incarnation, progress: vec![progress], ..v1::ReportRequest::default() };
        Bytes::from(report.encode_to_vec())
    };
    let written: Vec<Bytes> = (0..60).map(report).collect();
    ready().await;
    let mut grpc = attacker.channel().await;
    for message in written.iter().cycle() {
        attacker.send(&mut grpc, REPORT, &attacker.own, message.clone()).await;
    }
}

fn undecoded(attacker: Attacker, _: usize) -> Attacking {
    Box::pin(async move {
        // The field `progress`, empty: two bytes each.
        let written = Bytes::from([0x2a, 0].repeat(2 << 20));
        ready().await;
        let mut grpc = attacker.channel().await;
        loop {
            attacker.send(&mut grpc, REPORT, &None, written.clone()).await;
        }
    })
}

fn labels(attacker: Attacker, number: usize) -> Attacking {
    Box::pin(async move {
        let job = |round: usize| {
            let labels = (0..60_000).map(|at| (format!("{at:0>20}"), "x".repeat(40))).collect();
            let job = JobSpec { labels, tenant: TENANT.into(), ..spec(&format!("labels-{number}-{round}")) };
            Bytes::from(v1::SubmitRequest { job: Some(job_from_spec(&job)), external: None }.encode_to_vec())
        };
        let written: Vec<Bytes> = (0..15).map(job).collect();
        ready().await;
        let mut grpc = attacker.channel().await;
        for message in written.iter().cycle() {
            attacker.send(&mut grpc, SUBMIT, &attacker.submit, message.clone()).await;
        }
    })
}

fn submissions(attacker: Attacker, number: usize) -> Attacking {
    Box::pin(async move {
        ready().await;
        let clients = attacker.clients(&attacker.submit).await;
        for round in 0.. {
            let job = JobSpec { tenant: TENANT.into(), ..spec(&format!("small-{number}-{round}")) };
            attacker.count(clients.submit(&job).await);
        }
    })
}

async fn watchers(attacker: Attacker) {
    let held = watching(&attacker, Vec::new()).await;
    submissions(attacker, 0).await;
    drop(held);
}

async fn strangers(attacker: Attacker) {
    let names = (0..1000).map(|name| format!("{name:0>128}")).collect();
    let held = watching(&attacker, names).await;
    for (clients, answer) in held {
        tokio::spawn(async move {
            let (_clients, Some(mut answer)) = (clients, answer) else { return };
            while let Ok(Some(_)) = answer.message().await {}
        });
    }
    submissions(attacker, 0).await;
}

/// 300 watchers of these jobs, or of all.
async fn watching(attacker: &Attacker, jobs: Vec<String>) -> Vec<(Clients, Option<Streaming<v1::ListReply>>)> {
    ready().await;
    let mut held = Vec::new();
    for _ in 0..300 {
        let clients = attacker.clients(&attacker.read).await;
        let request = v1::ListRequest { all: true, specs: false, jobs: jobs.clone() };
        let answer = clients.jobs.clone().watch(request).await;
        attacker.count(answer.as_ref());
        held.push((clients, answer.ok().map(Response::into_inner)));
    }
    held
}

/// A job of 10,000 workers with a thousandth of a CPU each, and its token.
async fn wide(attacker: &Attacker) -> (u64, Option<String>) {
    let clients = attacker.clients(&attacker.submit).await;
    let mut wide = JobSpec { tenant: TENANT.into(), ..spec("wide") };
    (wide.worker.min, wide.worker.requested, wide.worker.max) = (10_000, 10_000, 10_000);
    wide.worker.demand = [("cpu".to_owned(), 1)].into();
    let reply = clients.submit(&wide).await.expect("it is let in");
    clients.until_job("wide", |job| job.state == "running").await;
    (reply.job, Some(reply.token))
}

fn watch(job: u64, index: u32) -> v1::WatchRequest {
    let address = if index > 0 { format!("host:{index}") } else { String::new() };
    v1::WatchRequest { job: job.to_string(), incarnation: 1, index, address, ..v1::WatchRequest::default() }
}

async fn unread(attacker: Attacker) {
    let (job, token) = wide(&attacker).await;
    ready().await;
    // The unread assignments change all the time.
    let flapping = tokio::spawn(flap(attacker.clone(), job, token.clone(), 1));
    let mut held = Vec::new();
    for _ in 0..8 {
        let clients = attacker.clients(&token).await;
        for _ in 0..50 {
            let mut feed = clients.feed.clone();
            let answer = feed.watch(sign(watch(job, 0), token.as_deref().unwrap_or_default())).await;
            attacker.count(answer.as_ref());
            held.push((clients.clone(), answer));
        }
    }
    let _ = flapping.await;
}

/// A watcher whose address appears and disappears.
async fn flap(attacker: Attacker, job: u64, token: Option<String>, index: u32) {
    let clients = attacker.clients(&token).await;
    loop {
        let mut feed = clients.feed.clone();
        attacker.count(feed.watch(sign(watch(job, index), token.as_deref().unwrap_or_default())).await);
    }
}

async fn addresses(attacker: Attacker) {
    let (job, token) = wide(&attacker).await;
    ready().await;
    tokio::join!(flap(attacker.clone(), job, token.clone(), 1), flap(attacker, job, token, 2));
}

fn lists(attacker: Attacker, _: usize) -> Attacking {
    Box::pin(async move {
        ready().await;
        let clients = attacker.clients(&attacker.read).await;
        loop {
            attacker.count(
                clients
                    .jobs
                    .clone()
                    .list(v1::ListRequest { all: true, specs: false, ..v1::ListRequest::default() })
                    .await,
            );
        }
    })
}

async fn explanations(attacker: Attacker) {
    jobs(&attacker, 2000).await;
    attacker.crowd(8, explained).await;
}

fn explained(attacker: Attacker, _: usize) -> Attacking {
    Box::pin(async move {
        ready().await;
        let clients = attacker.clients(&attacker.read).await;
        loop {
            let request = v1::ExplainRequest { job: "waits-0-0".into() };
            attacker.count(clients.jobs.clone().explain(request).await);
        }
    })
}

async fn connections(attacker: Attacker) {
    ready().await;
    let address = attacker.url.trim_start_matches("http://").to_owned();
    let mut held = Vec::new();
    for _ in 0..3000 {
        let connected = timeout(Duration::from_secs(1), TcpStream::connect(&address)).await;
        attacker.count(connected.as_ref().map_err(drop).and_then(|stream| stream.as_ref().map_err(drop)));
        held.push(connected);
    }
    std::future::pending().await
}

async fn names(attacker: Attacker) {
    ready().await;
    let clients = attacker.clients(&attacker.manager).await;
    let manager = FakeManager::attach(&clients, TENANT, Vec::new()).await;
    let of = |round: usize| {
        let server = |at| v1::Server { name: format!("server-{round}-{at}"), ..v1::Server::default() };
        (0..20_000).map(server).collect::<Vec<_>>()
    };
    for round in 0.. {
        let left = if round == 0 { Vec::new() } else { of(round - 1) };
        let delta = v1::Delta {
            servers: of(round),
            servers_left: left.into_iter().map(|server| server.name).collect(),
            ..v1::Delta::default()
        };
        attacker.count(manager.observations.send(observation(TENANT, Kind::Delta(delta))).await);
        if round >= 5 {
            break;
        }
    }
    std::future::pending().await
}

/// Submits `many` jobs of the attacker.
async fn jobs(attacker: &Attacker, many: usize) {
    let mut crowd = JoinSet::new();
    for number in 0..8 {
        let clients = attacker.clients(&attacker.submit).await;
        crowd.spawn(async move {
            for round in 0..many / 8 {
                let job = JobSpec { tenant: TENANT.into(), ..spec(&format!("waits-{number}-{round}")) };
                let _ = clients.submit(&job).await;
            }
        });
    }
    crowd.join_all().await;
}

async fn leaving(attacker: Attacker) {
    jobs(&attacker, 2000).await;
    let clients = attacker.clients(&attacker.manager).await;
    let manager = FakeManager::attach(&clients, TENANT, Vec::new()).await;
    let names = || (0..20_000).map(|at| format!("server-{at}"));
    let there: Vec<_> = names().map(|name| v1::Server { name, ..v1::Server::default() }).collect();
    let delta = |servers, servers_left| Kind::Delta(v1::Delta { servers, servers_left, ..v1::Delta::default() });
    ready().await;
    loop {
        for kind in [delta(there.clone(), Vec::new()), delta(Vec::new(), names().collect())] {
            attacker.count(manager.observations.send(observation(TENANT, kind)).await);
        }
    }
}

async fn snapshots(attacker: Attacker) {
    jobs(&attacker, 2000).await;
    let clients = attacker.clients(&attacker.manager).await;
    let manager = FakeManager::attach(&clients, TENANT, Vec::new()).await;
    let server = |at| v1::Server { name: format!("server-{at}"), ..v1::Server::default() };
    let of = |count| v1::Snapshot { servers: (0..count).map(server).collect(), ..v1::Snapshot::default() };
    let (all, none) = (of(20_000), of(0));
    ready().await;
    loop {
        for snapshot in [all.clone(), none.clone(), none.clone(), none.clone()] {
            attacker.count(manager.observations.send(observation(TENANT, Kind::Snapshot(snapshot))).await);
        }
    }
}

async fn devices(attacker: Attacker) {
    jobs(&attacker, 1000).await;
    let clients = attacker.clients(&attacker.manager).await;
    let of = |kind: &str| {
        let devices = vec![v1::Device { kind: kind.to_owned() }; 8];
        let server = |server| v1::Server { devices: devices.clone(), ..server };
        let named = |(at, server)| v1::Server { name: format!("server-{at}"), ..server };
        servers(5000, 0).into_iter().enumerate().map(named).map(server).collect::<Vec<_>>()
    };
    let (one, other) = (of("gpu:a100"), of("gpu:h100"));
    let manager = FakeManager::attach(&clients, TENANT, one.clone()).await;
    ready().await;
    loop {
        for servers in [other.clone(), one.clone()] {
            let delta = v1::Delta { servers, ..v1::Delta::default() };
            attacker.count(manager.observations.send(observation(TENANT, Kind::Delta(delta))).await);
        }
    }
}

/// Tenant of the attacker.
pub(crate) const TENANT: &str = "mallory";
