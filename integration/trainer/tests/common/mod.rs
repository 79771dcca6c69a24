//! A job of real processes on loopback, with a feed that the test controls.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use trainmaster_proto::v1::Progress;
use trainmaster_trainer::{checkpoint::Checkpoint, cli::Cli, id::Id, local::board::Board, settings::Settings};

/// Maximum wait. Normally all steps are much faster.
pub(crate) const LIMIT: Duration = Duration::from_secs(600);

/// A small model with non-trivial gradients, and steps slow enough for interventions.
pub(crate) const MODEL: &[&str] =
    &["--hidden=6", "--features=5", "--classes=4", "--examples=120", "--batch=24", "--momentum=0.5", "--delta=0"];

pub(crate) struct Job {
    pub(crate) board: Board,
    feed: Option<Runtime>,
    address: SocketAddr,
    children: BTreeMap<Id, Child>,
    pub(crate) folder: TempDir,
    flags: Vec<String>,
    incarnation: u32,
}

/// Slots of a number of workers and servers.
pub(crate) fn slots(workers: u32, servers: u32) -> BTreeMap<Id, String> {
    let ids = (0..servers).map(Id::server).chain((0..workers).map(Id::worker));
    ids.map(|id| (id, "here".to_owned())).collect()
}

impl Job {
    /// Starts a job with a process for each slot.
    pub(crate) fn start(workers: u32, servers: u32, flags: &[&str]) -> Self {
        let mut job = Self::prepare(workers, servers, flags);
        slots(workers, servers).into_keys().for_each(|id| job.spawn(id));
        job
    }

    /// The same without any process yet.
    pub(crate) fn prepare(workers: u32, servers: u32, flags: &[&str]) -> Self {
        let board = Board::new(7, slots(workers, servers));
        let mut job = Self {
            board,
            feed: None,
            address: "127.0.0.1:0".parse().unwrap(),
            children: BTreeMap::new(),
            folder: tempfile::tempdir().unwrap(),
            flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
            incarnation: 0,
        };
        job.feed_back();
        job
    }

    /// Starts the feed (again) at the same address.
    pub(crate) fn feed_back(&mut self) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        // A connection of another test may have the port meanwhile.
        wait("the feed's port", || {
            let served = runtime.block_on(self.board.serve(self.address));
            served.is_ok_and(|(address, _)| {
                self.address = address;
                true
            })
        });
        self.feed = Some(runtime);
    }

    /// Ends the feed with all its connections.
    pub(crate) fn feed_gone(&mut self) {
        self.feed.take().unwrap().shutdown_timeout(Duration::from_secs(5));
    }

    pub(crate) fn spawn(&mut self, id: Id) {
        let mut command = command();
        command
            .arg(format!("--feed=http://{}", self.address))
            .args(["--job=7", "--token=secret", "--job-name=test"])
            .arg(if id.is_worker() { "--role=worker" } else { "--role=server" })
            .arg(format!("--index={}", id.index))
            .arg(format!("--incarnation={}", self.incarnation))
            .arg("--checkpoint-dir")
            .arg(self.folder.path())
            .arg("--data-dir")
            .arg(self.data(id))
            .args(&self.flags);
        assert!(self.children.insert(id, command.spawn().unwrap()).is_none(), "{id} is still there");
    }

    /// Data folder of a slot, which is on its own server.
    pub(crate) fn data(&self, id: Id) -> PathBuf {
        self.folder.path().join(format!("data {id}"))
    }

    pub(crate) fn pid(&self, id: Id) -> u32 {
        self.children[&id].id()
    }

    /// Starts a new incarnation in another shape. The processes of the old one must be gone or ending.
    pub(crate) fn restart(&mut self, workers: u32, servers: u32) {
        self.incarnation += 1;
        self.board.restart(slots(workers, servers));
        self.children.clear();
        slots(workers, servers).into_keys().for_each(|id| self.spawn(id));
    }

    pub(crate) fn kill(&mut self, id: Id) {
        let mut child = self.children.remove(&id).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    pub(crate) fn signal(&self, id: Id, signal: Signal) {
        let pid = Pid::from_raw(self.children[&id].id().cast_signed()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Waits for a process to end, and returns its exit code.
    pub(crate) fn code(&mut self, id: Id) -> i32 {
        let mut child = self.children.remove(&id).unwrap();
        let begun = Instant::now();
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                return status.code().unwrap_or(-1);
            }
            if begun.elapsed() > LIMIT {
                let _ = child.kill();
                panic!("{id} doesn't end");
            }
            sleep(Duration::from_millis(5));
        }
    }

    /// Waits for all processes to end, and returns their exit codes.
    pub(crate) fn codes(&mut self) -> BTreeMap<Id, i32> {
        let ids: Vec<Id> = self.children.keys().copied().collect();
        ids.into_iter().map(|id| (id, self.code(id))).collect()
    }

    pub(crate) fn all_end_well(&mut self) {
        let codes = self.codes();
        assert!(codes.values().all(|code| *code == 0), "{codes:?}");
    }

    pub(crate) fn wait(&self, what: &str, mut condition: impl FnMut(&Board) -> bool) {
        wait(what, || condition(&self.board));
    }

    /// Waits until this step is reported.
    pub(crate) fn wait_step(&self, step: u64) {
        self.wait(&format!("step {step}"), |board| self::step(board) >= step);
    }

    /// Waits until the latest report has this number of workers.
    pub(crate) fn wait_workers(&self, workers: u32) {
        let latest = |board: &Board| board.reports().last().map(|report| report.workers);
        self.wait(&format!("{workers} workers"), |board| latest(board) == Some(workers));
    }

    /// The chief's slot.
    pub(crate) fn chief(&self) -> Id {
        *self.children.keys().next().unwrap()
    }

    /// The newest checkpoint.
    pub(crate) fn checkpoint(&self) -> Checkpoint {
        checkpoint(self.folder.path(), &self.flags)
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for child in self.children.values_mut() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if let Some(feed) = self.feed.take() {
            feed.shutdown_background();
        }
    }
}

/// The program under test, without the environment of the test run.
pub(crate) fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trainmaster-trainer"));
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"TRAINMASTER_") {
            command.env_remove(name);
        }
    }
    let log = std::env::var("TRAINER_TEST_LOG").unwrap_or_else(|_| "error".to_owned());
    command.env("RUST_LOG", log).stdin(Stdio::null());
    command
}

pub(crate) fn checkpoint(folder: &Path, flags: &[String]) -> Checkpoint {
    let flags = [&["test".to_owned()], flags].concat();
    let Cli { training, .. } = clap::Parser::parse_from(flags);
    let settings = Settings::new(&training, None).unwrap();
    Checkpoint::read(folder, &settings.fingerprint()).unwrap().expect("a checkpoint")
}

/// The result of a job of this length and model with one worker and one server.
pub(crate) fn reference(flags: &[&str]) -> Checkpoint {
    let mut job = Job::start(1, 1, flags);
    job.all_end_well();
    job.checkpoint()
}

pub(crate) fn step(board: &Board) -> u64 {
    board.reports().last().map_or(0, |progress: &Progress| progress.step)
}

pub(crate) fn wait(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < LIMIT, "waited in vain for {what}");
        sleep(Duration::from_millis(5));
    }
}

/// Bits of all parameters and of the momentum. Equal bits mean identical training.
pub(crate) fn bits(checkpoint: &Checkpoint) -> Vec<u32> {
    checkpoint.parameters.iter().chain(&checkpoint.velocity).map(|value| value.to_bits()).collect()
}

/// Asserts identical training.
pub(crate) fn assert_same(one: &Checkpoint, other: &Checkpoint) {
    assert_eq!((one.step, &one.losses, one.epoch), (other.step, &other.losses, other.epoch));
    assert_eq!(bits(one), bits(other));
}

/// Ends an endless job of [`MODEL`], and compares it with an undisturbed one of as many steps.
pub(crate) fn stop_and_compare(job: &mut Job) {
    job.board.stop(20_000);
    job.all_end_well();
    let reached = job.checkpoint();
    let steps = format!("--max-steps={}", reached.step);
    assert_same(&reached, &reference(&[MODEL, &["--max-epochs=1000000", &steps]].concat()));
}
