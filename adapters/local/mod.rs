//! This machine, cut into virtual servers, as a manager: starts, watches and ends the processes of every job's slots.
//!
//! [`run`] attaches to a daemon over `manager.proto`. Plans go through a state machine without I/O (`fleet`), which
//! says what to start and whom to signal; the rest of this folder does so (`agent`, `process`), remembers it (`state`),
//! finds it again after a crash (`adopt`), and measures it (`measure`). See the folder's README for what a training
//! program is given and what remains after which kind of end.

mod adopt;
mod agent;
mod cluster;
mod command;
mod doctor;
mod entry;
mod fleet;
mod launch;
mod logs;
mod measure;
mod process;
mod retain;
mod scan;
mod slot;
mod state;
mod user;

use std::{io, path::PathBuf, time::Duration};

use thiserror::Error;

pub use self::{
    agent::run,
    cluster::{Cluster, VirtualServer},
    doctor::doctor,
    entry::INFO,
    user::RunAs,
};

/// A process that ends with one of these codes asks for all roles of its job to be started again from the last
/// checkpoint, as if a parameter server had been lost. 41 and 42 are `trainmaster-trainer`'s, for a lost server and a
/// lost chief; 75 (`EX_TEMPFAIL`) is for programs that have no codes of their own.
pub const RESTART_ALL_EXITS: [i32; 3] = [41, 42, 75];

/// A process that ends with this code says that starting again won't help, as `trainmaster-trainer` does when the loss
/// is no longer a number: the job has failed.
pub const HOPELESS_EXIT: i32 = 44;

/// How the adapter is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The feed's address that training programs are given.
    pub feed: String,
    /// Where the adapter keeps its records, and jobs their files and logs. One adapter per folder.
    pub state_dir: PathBuf,
    /// What becomes of the processes when the adapter ends.
    pub on_shutdown: OnShutdown,
    /// How long a training program goes on without its feed before it ends by itself.
    pub orphan_grace: Duration,
    /// The program of a job without a command; by default `trainmaster-trainer` beside this executable or in `PATH`.
    pub trainer_path: Option<PathBuf>,
    /// How failures are answered.
    pub restart: RestartPolicy,
    /// After a job's last process ended by itself with success, how long a plan that explains it otherwise may take to
    /// arrive before the job is reported complete.
    pub settle: Duration,
    /// After the first plan, how long processes of an earlier run may stay that no plan has named.
    pub claim: Duration,
    /// What is kept of jobs that ended.
    pub retention: Retention,
}

impl Options {
    /// The defaults for a feed and a state folder.
    pub fn new(feed: impl Into<String>, state_dir: impl Into<PathBuf>) -> Self {
        Self {
            feed: feed.into(),
            state_dir: state_dir.into(),
            on_shutdown: OnShutdown::Keep,
            orphan_grace: Duration::from_secs(300),
            trainer_path: None,
            restart: RestartPolicy::default(),
            settle: Duration::from_millis(500),
            claim: Duration::from_secs(5),
            retention: Retention::default(),
        }
    }
}

/// What becomes of the processes when the adapter ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnShutdown {
    /// They run on; the next adapter of the state folder adopts them.
    #[default]
    Keep,
    /// SIGTERM, the grace, SIGKILL; the adapter ends when all are gone.
    End,
}

/// How failures of a job's processes are answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestartPolicy {
    /// The wait after a slot's first failure; it doubles with each further one.
    pub first_delay: Duration,
    /// The longest wait.
    pub longest_delay: Duration,
    /// A process that ran this long made progress, as far as the adapter can see: its slot's failures are forgotten.
    pub steady: Duration,
    /// So many failures of one slot without progress end the job as failed.
    pub failures: u32,
}

impl Default for RestartPolicy {
    fn default() -> Self {
        Self {
            first_delay: Duration::from_millis(500),
            longest_delay: Duration::from_secs(30),
            steady: Duration::from_secs(60),
            failures: 8,
        }
    }
}

/// What is kept of jobs that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Folders (with checkpoints) and logs of so many jobs that ended last.
    pub jobs: usize,
    /// For at most this long.
    pub age: Duration,
    /// Logs of so many incarnations of a job.
    pub incarnations: usize,
}

impl Default for Retention {
    fn default() -> Self {
        Self { jobs: 20, age: Duration::from_secs(7 * 24 * 3600), incarnations: 5 }
    }
}

/// The adapter can't run. What goes wrong with a job or with the daemon is reported and survived instead.
#[derive(Debug, Error)]
pub enum LocalError {
    /// Another adapter uses the folder.
    #[error(
        "state folder {path} belongs to a running adapter; give each adapter a folder of its own",
        path = path.display(),
    )]
    Locked {
        /// The folder.
        path: PathBuf,
    },
    /// The state folder can't be used.
    #[error("state folder: {path}: {error}", path = path.display())]
    State {
        /// The file or folder.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// Jobs can't run as the user that the cluster file names.
    #[error("cluster file: {0}")]
    User(String),
}
