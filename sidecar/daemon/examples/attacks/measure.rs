//! What others feel of an attack: their waits, and the memory and the journal of the daemon.

use std::{
    env, fs,
    path::Path,
    process::Stdio,
    sync::{Arc, Mutex, MutexGuard},
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{Child, Command},
    task::JoinSet,
    time::{Duration, Instant, sleep, timeout},
};
use trainmaster_core::{JobSpec, job::Dataset};
use trainmaster_proto::v1::{self, TokenRole};

use crate::{
    attacker::Attacker,
    kinds::TENANT,
    support::{Clients, FakeManager, Trainer, servers, spec},
};

/// Time for the attacker's preparation, for the measurement before an attack, and for the attack.
const READY: Duration = Duration::from_secs(6);
const QUIET: Duration = Duration::from_secs(5);
const ATTACK: Duration = Duration::from_secs(8);
/// Interval between the calls of the measured callers.
const PACE: Duration = Duration::from_millis(20);

const CONFIG: &str = r#"
    adapters = []
    [scheduler]
    engine = "optimus"
    stability = "off"
    [scheduler.parameters]
    interval = "1s"
"#;

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
pub(crate) type Felt = [f64; 8];

/// Runs an attack on a program.
pub(crate) async fn attack(program: &Path, number: usize) -> Result<Felt> {
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
    let mut attacking = Command::new("nice")
        .args(["-n", "19"])
        .arg(env::current_exe()?)
        .args(["--attacker", &number.to_string()])
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
