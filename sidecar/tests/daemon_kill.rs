//! A daemon that is killed at random points loses no acknowledged change, and repeats its decisions.

use std::{
    collections::BTreeMap,
    path::Path,
    process::Stdio,
    sync::{Arc, Mutex},
    time::Duration,
};

use rand_chacha::{
    ChaCha8Rng,
    rand_core::{RngCore, SeedableRng},
};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    task::JoinSet,
    time::{Instant, sleep},
};
use trainmaster_core::{
    Event, JobId, Scheduler,
    journal::Record,
    replay::{Replay, Replayed},
    text::hex,
};
use trainmaster_daemon::{ADMIN_TOKEN, read_journal};
use trainmaster_proto::v1;

use crate::support::{Clients, FakeManager, LIMIT, Trainer, World, servers, spec};

/// Number of kills, unless `TRAINMASTER_KILLS` sets it. `make test-all` has 1,000.
const KILLS: usize = 50;
const SEED: u64 = 20_260_801;
/// Number of active jobs, and epochs of each.
const ACTIVE: usize = 4;
const EPOCHS: u64 = 12;

const CONFIG: &str = r#"
    adapters = []
    plan_ttl = "0s"
    [scheduler]
    engine = "optimus"
    stability = "off"
    [scheduler.parameters]
    interval = "20ms"
    [decision]
    fits_every = "20ms"
    [journal]
    snapshot_records = 150
    ended_jobs = 20000
"#;

/// Knowledge of the clients: acknowledged calls and observations.
#[derive(Default)]
struct Known {
    /// Names of acknowledged jobs by number.
    submitted: BTreeMap<u64, String>,
    /// The last acknowledged step by job.
    steps: BTreeMap<u64, u64>,
    /// Jobs whose end was acknowledged.
    finished: Vec<u64>,
    /// Digests by decision, from `Status`.
    digests: BTreeMap<u64, String>,
    names: u32,
    reports: usize,
}

/// State that outlives a daemon.
#[derive(Clone, Default)]
struct Site {
    known: Arc<Mutex<Known>>,
    world: Arc<Mutex<World>>,
    trainers: Arc<tokio::sync::Mutex<BTreeMap<u64, Trainer>>>,
}

fn spawn(folder: &Path) -> Child {
    Command::new(env!("CARGO_BIN_EXE_trainmaster"))
        .args(["--json", "serve", "--listen", "127.0.0.1:0", "--config"])
        .arg(folder.join("daemon.toml"))
        .arg("--state-dir")
        .arg(folder.join("state"))
        .env("TRAINMASTER_LOG", "error")
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

async fn start(folder: &Path) -> (Child, String) {
    let mut child = spawn(folder);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = tokio::time::timeout(LIMIT, lines.next_line()).await.expect("it starts").unwrap();
    let line = line.expect("it says where it serves");
    let serving: serde_json::Value = serde_json::from_str(&line).unwrap();
    (child, serving["url"].as_str().unwrap().to_owned())
}

/// The administrator's token from the first start.
fn token(folder: &Path) -> String {
    std::fs::read_to_string(folder.join("state").join(ADMIN_TOKEN)).unwrap().trim().to_owned()
}

/// Submits jobs while there are too few.
async fn submit(site: Site, clients: Clients) {
    loop {
        let name = {
            let mut known = site.known.lock().unwrap();
            let active = known.submitted.len() - known.finished.len();
            (active < ACTIVE).then(|| {
                known.names += 1;
                format!("job{}", known.names)
            })
        };
        let Some(name) = name else {
            sleep(Duration::from_millis(3)).await;
            continue;
        };
        if let Ok(reply) = clients.submit(&spec(&name)).await {
            site.known.lock().unwrap().submitted.insert(reply.job, name);
        }
    }
}

/// Trains all running jobs, one epoch each in turn.
async fn train(site: Site, clients: Clients) {
    loop {
        let plans: Vec<v1::JobPlan> = {
            let world = site.world.lock().unwrap();
            world.plans.values().filter(|plan| plan.action() == v1::Action::Run).cloned().collect()
        };
        for plan in plans {
            let job = plan.job;
            let mut trainers = site.trainers.lock().await;
            let trainer = trainers.entry(job).or_insert_with(|| Trainer::new(&clients, &plan));
            trainer.feed = clients.feed.clone();
            trainer.follow(&plan);
            let before = (trainer.seq, trainer.step);
            let mut progress = trainer.epoch();
            let after = (trainer.seq, trainer.step);
            // It may have to be sent again until the answer arrives, also because this task was cancelled.
            (trainer.seq, trainer.step) = before;
            progress.finished = u64::from(progress.epoch) >= EPOCHS;
            let finished = progress.finished;
            let Ok(reply) = trainer.send(vec![progress]).await else { continue };
            // The report was accepted before, and the daemon was killed before its answer.
            let repeated = reply.reason.contains("seen before") || reply.reason.contains("no active job");
            // Otherwise it belongs to an old incarnation, and is trained again in the next one.
            if reply.accepted || repeated {
                (trainer.seq, trainer.step) = after;
                let mut known = site.known.lock().unwrap();
                known.steps.insert(job, trainer.step);
                known.reports += 1;
                if finished && !known.finished.contains(&job) {
                    known.finished.push(job);
                }
            }
        }
        sleep(Duration::from_millis(1)).await;
    }
}

async fn look(site: Site, mut clients: Clients) {
    loop {
        if let Ok(status) = clients.admin.status(v1::StatusRequest {}).await {
            let status = status.into_inner();
            site.known.lock().unwrap().digests.insert(status.decision, status.digest);
        }
        sleep(Duration::from_millis(5)).await;
    }
}

/// Kills a daemon during its start, perhaps before it has recovered.
async fn die_young(folder: &Path, random: &mut ChaCha8Rng) {
    let mut child = spawn(folder);
    sleep(Duration::from_micros(random.next_u64() % 60_000)).await;
    child.start_kill().unwrap();
    child.wait().await.unwrap();
}

/// Runs the daemon until it is killed.
async fn live(folder: &Path, site: &Site, random: &mut ChaCha8Rng) {
    let (mut child, url) = start(folder).await;
    let clients = Clients::at(&url, Some(&token(folder))).await;
    let manager = FakeManager::attach_with(&clients, "fake", servers(2, 4), site.world.clone()).await;
    let mut tasks = JoinSet::new();
    tasks.spawn(submit(site.clone(), clients.clone()));
    tasks.spawn(train(site.clone(), clients.clone()));
    tasks.spawn(look(site.clone(), clients.clone()));
    sleep(Duration::from_micros(5_000 + random.next_u64() % 250_000)).await;
    child.start_kill().unwrap();
    child.wait().await.unwrap();
    // Answers from before the kill are received. There can't be others.
    tasks.shutdown().await;
    drop(manager);
}

/// Replays the whole journal over all daemons. Each starts with the state at the end of the previous one.
fn check_all(folder: &Path) {
    let mut replay: Option<Replay> = None;
    let mut lives = 0;
    for (at, record) in read_journal(&folder.join("state")).unwrap() {
        let record = Record::decode(&record).unwrap_or_else(|problem| panic!("record {at}: {problem}"));
        let Some(replay) = &mut replay else {
            let Record::Snapshot(saved) = record else { panic!("record {at} is no snapshot") };
            replay = Some(Replay::new(*saved).unwrap());
            continue;
        };
        lives += u32::from(matches!(record, Record::Event { event: Event::TermBegan(_), .. }));
        match replay.step(&record).unwrap() {
            Replayed::Decided(Err(difference)) => panic!("record {at}: {difference:?}"),
            Replayed::Snapshot { follows } => assert!(follows, "record {at} doesn't follow from those before it"),
            Replayed::Decided(Ok(_)) | Replayed::Event(_) | Replayed::Ticket => {}
        }
    }
    assert!(lives > 10, "{lives} lives are kept");
}

/// Replays the journal of the killed daemon, and compares it with the acknowledged calls.
fn check(folder: &Path, site: &Site) -> Scheduler {
    let records = read_journal(&folder.join("state")).unwrap();
    let scheduler = Scheduler::restore(records.iter().map(|(_, record)| record.as_slice())).unwrap();
    let known = site.known.lock().unwrap();
    for (at, record) in &records {
        let record = Record::decode(record).unwrap_or_else(|problem| panic!("record {at}: {problem}"));
        let Record::Committed { digest, .. } = &record else { continue };
        let decision = record.decision().unwrap().id.0;
        let digest = hex(digest);
        if let Some(seen) = known.digests.get(&decision) {
            assert_eq!(*seen, digest, "decision {decision}");
        }
    }
    if let Some((newest, _)) = known.digests.last_key_value() {
        assert!(scheduler.state().decision.0 >= *newest, "decision {newest} was shown and is gone");
    }
    for (job, name) in &known.submitted {
        let active = scheduler.state().job(JobId(*job));
        let over = known.finished.contains(job);
        let step = known.steps.get(job).copied().unwrap_or(0);
        match active {
            Some(active) => {
                assert_eq!(active.spec.name, *name);
                assert!(!over, "the end of {name} was acknowledged and is gone");
                assert!(active.learnt.progress.step >= step, "{name}: step {step} was acknowledged");
            }
            // It may have ended at the time of the kill, but never before its last epoch.
            None => assert!(
                over || step + crate::support::STEPS_PER_EPOCH >= EPOCHS * crate::support::STEPS_PER_EPOCH,
                "{name}"
            ),
        }
    }
    scheduler
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_killed_anywhere_loses_no_acknowledged_change() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("daemon.toml"), CONFIG).unwrap();
    let mut random = ChaCha8Rng::seed_from_u64(SEED);
    let site = Site::default();
    let kills = std::env::var("TRAINMASTER_KILLS").map_or(KILLS, |kills| kills.parse().unwrap());
    for kill in 0..kills {
        if kill % 5 == 4 {
            die_young(folder.path(), &mut random).await;
        } else {
            live(folder.path(), &site, &mut random).await;
        }
        check(folder.path(), &site);
    }
    check_all(folder.path());

    // A last daemon, under which all jobs end.
    let (mut child, url) = start(folder.path()).await;
    let clients = Clients::at(&url, Some(&token(folder.path()))).await;
    let manager = FakeManager::attach_with(&clients, "fake", servers(2, 4), site.world.clone()).await;
    let mut tasks = JoinSet::new();
    tasks.spawn(train(site.clone(), clients.clone()));
    let give_up = Instant::now() + LIMIT;
    let list = loop {
        let list = clients.list().await;
        if list.jobs.iter().all(|job| job.ended_ms.is_some()) {
            break list;
        }
        assert!(Instant::now() < give_up, "{:?}", list.jobs.iter().find(|job| job.ended_ms.is_none()));
        sleep(Duration::from_millis(10)).await;
    };
    tasks.shutdown().await;
    let (submitted, reports, seen) = {
        let known = site.known.lock().unwrap();
        (known.submitted.clone(), known.reports, known.digests.len())
    };
    for (job, name) in &submitted {
        let status = list.jobs.iter().find(|status| status.job == *job).unwrap_or_else(|| panic!("{name} is gone"));
        assert_eq!((status.name.as_str(), status.state.as_str()), (name.as_str(), "completed"));
        assert_eq!(status.step, EPOCHS * crate::support::STEPS_PER_EPOCH, "{name}");
    }
    manager.until("nothing to run", |world| world.running.is_empty().then_some(())).await;
    // Each daemon has its own term, even if it was killed before it could write the term.
    let terms = manager.look(|world| world.heard.iter().map(|plan| plan.term).collect::<Vec<_>>());
    assert!(
        terms.is_sorted() && terms.last().is_some_and(|term| (kills as u64 * 4 / 5..=kills as u64 + 1).contains(term)),
        "{:?}",
        terms.last()
    );
    child.start_kill().unwrap();
    child.wait().await.unwrap();
    let scheduler = check(folder.path(), &site);
    assert!(scheduler.state().jobs.is_empty());
    println!(
        "{kills} kills: {} jobs, {reports} reports acknowledged, {} decisions, {seen} digests seen",
        submitted.len(),
        scheduler.state().decision.0
    );
}
