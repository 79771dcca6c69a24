//! Measures what one job, tenant or unauthenticated caller can do to others at worst. `make attacks` runs it.
//!
//! ```sh
//! attacks PROGRAM [OLDER_PROGRAM]
//! ```
//!
//! Each attack has its own daemon. A manager, a training job and an operator call the daemon all the time. Their waits
//! are measured before and during the attack, and so is the daemon's memory. The attacker is a process that prepares
//! its messages before and has the last CPU for itself, as if it ran on another machine; the daemon and the others have
//! the remaining CPUs. The first attack only computes, as a baseline of effects that the daemon doesn't cause. A single
//! run isn't sufficient for a p99, so each attack runs `ROUNDS=5` times, and the older program's once. `ONLY=labels`
//! selects the attacks with this word in their name. The output is a table of the medians in Markdown.

#[allow(dead_code)] // shared with the tests, which use all of it
#[path = "../tests/service/support.rs"]
mod support;

use std::{
    collections::BTreeMap,
    env, fs,
    future::Future,
    io,
    path::{Path, PathBuf},
    pin::Pin,
    process::Stdio,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, bail, ensure};
use axum::{body::Bytes, http::uri::PathAndQuery};
use prost::{
    Message as _,
    bytes::{Buf as _, BufMut as _},
};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    process::{Child, Command},
    task::JoinSet,
    time::{Duration, Instant, sleep, timeout},
};
use tonic::{
    Request, Status,
    client::Grpc,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    transport::Channel,
};
use trainmaster_core::{JobSpec, job::Dataset};
use trainmaster_proto::{
    job_from_spec,
    v1::{self, TokenRole, observation::Kind},
};

use self::support::{Clients, FakeManager, Trainer, observation, servers, sign, spec};

/// Time for the attacker's preparation, for the measurement before an attack, and for the attack.
const READY: Duration = Duration::from_secs(6);
const QUIET: Duration = Duration::from_secs(5);
const ATTACK: Duration = Duration::from_secs(8);
/// Interval between the calls of the measured callers.
const PACE: Duration = Duration::from_millis(20);

type Attacking = Pin<Box<dyn Future<Output = ()> + Send>>;

/// State of an attacker.
#[derive(Clone, Serialize, Deserialize)]
struct Attacker {
    url: String,
    /// Tokens, if the daemon requires them: of its job, for submission, for reading, and a manager's own.
    own: Option<String>,
    submit: Option<String>,
    read: Option<String>,
    manager: Option<String>,
    job: u64,
    incarnation: u32,
    /// Number of successful and of refused calls.
    #[serde(skip)]
    counts: Arc<[AtomicU64; 2]>,
}

impl Attacker {
    async fn clients(&self, token: &Option<String>) -> Clients {
        Clients::at(&self.url, token.as_deref()).await
    }

    fn count<T, E>(&self, answer: std::result::Result<T, E>) {
        self.counts[usize::from(answer.is_err())].fetch_add(1, Ordering::Relaxed);
    }

    /// Several tasks of the same kind at a time.
    async fn crowd(self, many: usize, what: fn(Self, usize) -> Attacking) {
        let mut crowd = JoinSet::new();
        for number in 0..many {
            crowd.spawn(what(self.clone(), number));
        }
        crowd.join_all().await;
    }

    /// Calls with an encoded message.
    async fn send(&self, grpc: &mut Grpc<Channel>, path: &'static str, token: &Option<String>, message: Bytes) {
        let mut request = Request::new(message);
        if let Some(token) = token {
            request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().expect("a token"));
        }
        if grpc.ready().await.is_ok() {
            self.count(grpc.unary(request, PathAndQuery::from_static(path), Written).await);
        }
    }

    async fn channel(&self) -> Grpc<Channel> {
        let channel = Channel::from_shared(self.url.clone()).expect("a URL").connect().await.expect("it listens");
        Grpc::new(channel)
    }
}

/// A codec for encoded messages.
#[derive(Default)]
struct Written;

impl Codec for Written {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Written {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> std::result::Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for Written {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> std::result::Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

const REPORT: &str = "/trainmaster.v1.Feed/Report";
const SUBMIT: &str = "/trainmaster.v1.Jobs/Submit";

type Attack = fn(Attacker) -> Attacking;

/// The attacks, by description.
const ATTACKS: &[(&str, Attack)] = &[
    ("none: two threads of the attacker compute", |_| Box::pin(computing())),
    ("reports of 190,000 slot times, of new workers each time", |attacker| Box::pin(slot_times(attacker))),
    ("reports of 800,000 chunks each, of a dataset of 4·10⁹", |attacker| Box::pin(chunks(attacker))),
    ("4 MiB of empty messages without a token, 8 at a time", |attacker| Box::pin(attacker.crowd(8, undecoded))),
    ("jobs with 3.9 MB of labels, 4 at a time", |attacker| Box::pin(attacker.crowd(4, labels))),
    ("small jobs, 8 submitters at a time", |attacker| Box::pin(attacker.crowd(8, submissions))),
    ("300 watchers of the list who never read it, and jobs that come", |attacker| Box::pin(watchers(attacker))),
    ("400 programs of a job of 10,000 workers who read nothing", |attacker| Box::pin(unread(attacker))),
    ("addresses of 10,000 workers that come and go, 2 at a time", |attacker| Box::pin(addresses(attacker))),
    ("whole lists, 8 readers at a time", |attacker| Box::pin(attacker.crowd(8, lists))),
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
    ready().await;
    let mut held = Vec::new();
    for _ in 0..300 {
        let clients = attacker.clients(&attacker.read).await;
        let answer = clients.jobs.clone().watch(v1::ListRequest { all: true, specs: false }).await;
        attacker.count(answer.as_ref());
        held.push((clients, answer));
    }
    submissions(attacker, 0).await;
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
            attacker.count(clients.jobs.clone().list(v1::ListRequest { all: true, specs: false }).await);
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

const TENANT: &str = "mallory";

const CONFIG: &str = r#"
    adapters = []
    [scheduler]
    engine = "optimus"
    stability = "off"
    [scheduler.parameters]
    interval = "1s"
"#;

/// Waits until the attack begins, after its messages are prepared.
async fn ready() {
    let left =
        env::var("ATTACK_AT").ok().and_then(|at| at.parse().ok()).map(|at| UNIX_EPOCH + Duration::from_millis(at));
    let left = left.and_then(|at: SystemTime| at.duration_since(SystemTime::now()).ok());
    sleep(left.unwrap_or_default()).await;
}

/// The attacker's process: attacks until the end of its standard input, and prints the numbers of successful and of
/// refused calls.
async fn attacker(number: usize) -> Result<()> {
    let attacker: Attacker =
        serde_json::from_str(io::stdin().lines().next().context("nobody said whom to attack")??.as_str())?;
    let attacking = tokio::spawn(ATTACKS[number].1(attacker.clone()));
    tokio::task::spawn_blocking(|| io::copy(&mut io::stdin(), &mut io::sink())).await??;
    attacking.abort();
    let [done, refused] = &*attacker.counts;
    println!("{} {}", done.load(Ordering::Relaxed), refused.load(Ordering::Relaxed));
    Ok(())
}

/// A daemon in a separate process.
struct Served {
    child: Child,
    folder: tempfile::TempDir,
    url: String,
    token: Option<String>,
}

impl Served {
    async fn start(program: &Path) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let config = folder.path().join("daemon.toml");
        fs::write(&config, CONFIG)?;
        let state = folder.path().join("state");
        let mut child = Command::new(program)
            .args(["--json", "serve", "--listen", "127.0.0.1:0", "--config"])
            .arg(&config)
            .arg("--state-dir")
            .arg(&state)
            .env("XDG_STATE_HOME", folder.path())
            .env("TRAINMASTER_LOG", "off")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| program.display().to_string())?;
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let line = lines.next_line().await?.context("it says nothing")?;
        let serving: serde_json::Value = serde_json::from_str(&line)?;
        let url = serving["url"].as_str().context("no url")?.to_owned();
        let token = fs::read_to_string(state.join("admin.token")).ok().map(|text| text.trim().to_owned());
        Ok(Self { child, folder, url, token })
    }

    /// Resident memory in MB.
    fn memory(&self) -> f64 {
        let status = self.child.id().and_then(|pid| fs::read_to_string(format!("/proc/{pid}/status")).ok());
        let kib = status.as_deref().unwrap_or_default().lines().find_map(|line| line.strip_prefix("VmRSS:"));
        kib.and_then(|text| text.trim_end_matches("kB").trim().parse::<f64>().ok()).unwrap_or(f64::NAN) / 1024.0
    }

    /// Size of the journal in MB.
    fn journal(&self) -> f64 {
        fs::metadata(self.folder.path().join("state/journal.redb")).map_or(0.0, |data| data.len() as f64 / 1e6)
    }
}

/// Durations of a caller's calls in milliseconds, and the start of the pending one.
#[derive(Default)]
struct Waits(Mutex<(Vec<f64>, Option<Instant>)>);

impl Waits {
    fn lock(&self) -> MutexGuard<'_, (Vec<f64>, Option<Instant>)> {
        self.0.lock().expect("nobody panics")
    }

    fn begin(&self) {
        self.lock().1 = Some(Instant::now());
    }

    fn end(&self) {
        let mut waits = self.lock();
        let began = waits.1.take().expect("it has begun");
        waits.0.push(began.elapsed().as_secs_f64() * 1e3);
    }

    /// The calls since the last time, including the pending one.
    fn take(&self) -> Vec<f64> {
        let mut waits = self.lock();
        let waiting = waits.1.map(|began| began.elapsed().as_secs_f64() * 1e3);
        std::mem::take(&mut waits.0).into_iter().chain(waiting).collect()
    }
}

/// The 99th percentile of all waits since the last time, and the longest.
fn waited(watched: &[Arc<Waits>]) -> (f64, f64) {
    let mut waits: Vec<f64> = watched.iter().flat_map(|waits| waits.take()).collect();
    waits.sort_by(f64::total_cmp);
    let p99 = waits.get((waits.len() * 99 / 100).min(waits.len().saturating_sub(1)));
    (p99.copied().unwrap_or(f64::NAN), waits.last().copied().unwrap_or(f64::NAN))
}

/// Effects of an attack on a program: memory and journal in MB, p99 of others before and during it in milliseconds,
/// their ratio, the longest wait, and the numbers of successful and of refused calls of the attacker.
type Felt = [f64; 8];

async fn attack(program: &Path, number: usize, cpu: usize) -> Result<Felt> {
    let served = Served::start(program).await?;
    let admin = Clients::at(&served.url, served.token.as_deref()).await;
    let manager = FakeManager::attach(&admin, "fake", servers(8, 4)).await;
    admin.submit(&spec("honest")).await?;
    let dataset = |chunks| Some(Dataset { chunks, batches_per_chunk: 1, epochs: 1, ..Dataset::default() });
    let mallory = |chunks| JobSpec { tenant: TENANT.into(), dataset: dataset(chunks), ..spec(TENANT) };
    // Tries sizes that may be refused.
    for chunks in [4_000_000_000, 1_000_000, 10_000] {
        if admin.submit(&mallory(chunks)).await.is_ok() {
            break;
        }
    }
    let running = |name: &'static str| {
        let admin = admin.clone();
        async move { admin.until_job(name, |job| job.state == "running").await.job }
    };
    let plan = manager.until_plan(running("honest").await, |plan| plan.action() == v1::Action::Run).await;
    let job = manager.until_plan(running(TENANT).await, |plan| plan.action() == v1::Action::Run).await;
    let token = async |name: &str, role: TokenRole, of: &str| match &served.token {
        Some(_) => Some(admin.token(name, role, of).await),
        None => None,
    };
    let attacker = Attacker {
        url: served.url.clone(),
        submit: token("s", TokenRole::Submit, TENANT).await,
        read: token("r", TokenRole::Read, "").await,
        manager: token("m", TokenRole::Manager, TENANT).await,
        own: Some(job.token),
        job: job.job,
        incarnation: job.incarnation,
        counts: Arc::default(),
    };

    let waits = [Arc::new(Waits::default()), Arc::new(Waits::default())];
    let [trains, looks] = waits.clone();
    let mut watched = JoinSet::new();
    let mut trainer = Trainer::new(&admin, &plan);
    watched.spawn(async move {
        loop {
            trains.begin();
            let progress = v1::Progress { finished: false, ..trainer.epoch() };
            let _ = trainer.send(vec![progress]).await;
            trains.end();
            sleep(PACE).await;
        }
    });
    let mut operator = Clients::at(&served.url, served.token.as_deref()).await.admin;
    watched.spawn(async move {
        loop {
            looks.begin();
            let _ = operator.status(v1::StatusRequest {}).await;
            looks.end();
            sleep(PACE).await;
        }
    });

    // It prepares before the measurement of the quiet time begins.
    let at = SystemTime::now() + READY + QUIET;
    let mut attacking = Command::new(env::current_exe()?)
        .args(["--attacker", &number.to_string()])
        .env("ATTACK_CPU", cpu.to_string())
        .env("ATTACK_AT", at.duration_since(UNIX_EPOCH)?.as_millis().to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut told = attacking.stdin.take().expect("piped");
    told.write_all(&[&serde_json::to_vec(&attacker)?, &b"\n"[..]].concat()).await?;
    sleep(READY).await;
    waited(&waits);
    sleep(at.duration_since(SystemTime::now()).unwrap_or_default()).await;
    let ((before, _), memory, journal) = (waited(&waits), served.memory(), served.journal());
    let (end, mut most) = (Instant::now() + ATTACK, memory);
    while Instant::now() < end {
        sleep(Duration::from_millis(20)).await;
        most = most.max(served.memory());
    }
    let (during, longest) = waited(&waits);
    drop(told);
    // An attacker without answers doesn't end.
    let said = match timeout(Duration::from_secs(30), attacking.wait_with_output()).await {
        Ok(said) => String::from_utf8_lossy(&said?.stdout).into_owned(),
        Err(_) => String::new(),
    };
    let mut counts = said.split_whitespace().map(|count| count.parse().unwrap_or(f64::NAN));
    let mut count = || counts.next().unwrap_or(f64::NAN);
    let (memory, journal) = (most - memory, served.journal() - journal);
    Ok([memory, journal, before, during, during / before, longest, count(), count()])
}

/// A row of the table: the medians over all rounds, and the minimum and maximum of the ratio.
fn row(times: &[Felt]) -> String {
    let sorted = |column: usize| {
        let mut numbers: Vec<f64> = times.iter().map(|felt| felt[column]).collect();
        numbers.sort_by(f64::total_cmp);
        numbers
    };
    let median = |column| sorted(column)[times.len() / 2];
    let ratios = sorted(4);
    let range = match ratios[..] {
        [least, .., most] => format!(" ({least:.1} to {most:.1})"),
        _ => String::new(),
    };
    let [memory, journal, before, during, ratio, longest, done, refused] = std::array::from_fn(median);
    format!(
        "{memory:.0} | {journal:.1} | {before:.1} | {during:.1} | {ratio:.1}{range} | {longest:.0} | {done:.0} | \
         {refused:.0} |"
    )
}

/// Restricts this thread, and the threads and processes that it starts, to these CPUs.
fn run_on(cpus: &[usize]) -> Result<()> {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|&cpu| set.set(cpu));
    Ok(sched_setaffinity(None, &set)?)
}

fn main() -> Result<()> {
    if let [flag, number] = &env::args().skip(1).collect::<Vec<_>>()[..]
        && flag == "--attacker"
    {
        run_on(&[env::var("ATTACK_CPU").context("the attacker has a CPU")?.parse()?])?;
        return tokio::runtime::Runtime::new()?.block_on(attacker(number.parse()?));
    }
    let may = sched_getaffinity(None)?;
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| may.is_set(cpu)).collect();
    let [others @ .., last] = &cpus[..] else { bail!("no CPU") };
    ensure!(!others.is_empty(), "the attacker needs a CPU, and the daemon another one");
    run_on(others)?;
    let programs: Vec<PathBuf> = env::args_os().skip(1).map(PathBuf::from).collect();
    ensure!((1..=2).contains(&programs.len()), "attacks PROGRAM [OLDER_PROGRAM]");
    let rounds: usize = env::var("ROUNDS").map_or(Ok(1), |text| text.parse()).context("ROUNDS is a number")?;
    let only = env::var("ONLY").unwrap_or_default();
    let attacks: Vec<(usize, &str)> =
        ATTACKS.iter().map(|(name, _)| *name).enumerate().filter(|(_, name)| name.contains(&only)).collect();
    let mut felt: BTreeMap<(usize, &str), Vec<Felt>> = BTreeMap::new();
    // All attacks run in each round, so that a slow period of this machine doesn't affect only one of them.
    for round in 1..=rounds.max(1) {
        for &(number, name) in &attacks {
            for (which, program) in
                ["this", "older"].into_iter().zip(&programs).filter(|(which, _)| *which == "this" || round == 1)
            {
                // Each attack has its own runtime, so that it leaves nothing for the next.
                let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
                let times = runtime.block_on(attack(program, number, *last));
                runtime.shutdown_background();
                let times = times.with_context(|| format!("{name}, {which} program"))?;
                eprintln!("{round}/{rounds} {name} | {which} | {}", row(&[times]));
                felt.entry((number, which)).or_default().push(times);
            }
        }
    }
    println!(
        "| attack | program | memory, MB | journal, MB | others' p99 before, ms | during, ms | ratio | longest, ms | \
         let in | refused |"
    );
    println!("|---|---|--:|--:|--:|--:|--:|--:|--:|--:|");
    for ((number, which), times) in &felt {
        println!("| {} | {which} | {}", ATTACKS[*number].0, row(times));
    }
    Ok(())
}
