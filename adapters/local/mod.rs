//! This machine as a manager, divided into virtual servers. The adapter starts, watches and ends the processes of all
//! jobs' slots.
//!
//! [`run`] attaches to a daemon over `manager.proto`. A state machine without I/O (`fleet`) turns plans into processes
//! to start and to signal. The rest of this folder carries that out (`agent`, `process`), records it (`state`),
//! recovers it after a crash (`adopt`), and measures it (`measure`). The folder's README describes the environment of
//! training programs, and what remains after each kind of end.

mod adopt;
mod agent;
mod cluster;
mod command;
mod doctor;
mod entry;
mod fleet;
mod gpus;
mod launch;
mod log_reader;
mod logs;
mod measure;
mod process;
mod ranks;
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

/// Exit codes by which a process requests a restart of all roles of its job from the last checkpoint, as after the loss
/// of a parameter server. 41 and 42 are `trainmaster-trainer`'s, for a lost server and a lost chief; 75 (`EX_TEMPFAIL`)
/// is for programs without their own codes.
pub const RESTART_ALL_EXITS: [i32; 3] = [41, 42, 75];

/// Exit code by which a process states that a restart won't help. Then the job has failed. `trainmaster-trainer` uses
/// it when the loss is no longer a number.
pub const HOPELESS_EXIT: i32 = 44;

/// The adapter's settings.
#[derive(Clone, Debug)]
pub struct Options {
    /// The feed's address for training programs.
    pub feed: String,
    /// The folder for the adapter's records and for jobs' files and logs. One adapter per folder.
    pub state_dir: PathBuf,
    /// What happens to the processes when the adapter ends.
    pub on_shutdown: OnShutdown,
    /// How long a training program continues without its feed before it ends by itself.
    pub orphan_grace: Duration,
    /// The program of a job without a command. The default is `trainmaster-trainer` in this executable's folder or in
    /// `PATH`.
    pub trainer_path: Option<PathBuf>,
    /// The reaction to failures.
    pub restart: RestartPolicy,
    /// Time after a successful exit of a job's last process before the job is reported complete. A plan that explains
    /// the exit otherwise can arrive in that time.
    pub settle: Duration,
    /// Time after the first plan before processes of an earlier run are stopped, unless a plan has named them.
    pub claim: Duration,
    /// Retention of the files of ended jobs.
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

/// What happens to the processes when the adapter ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnShutdown {
    /// They continue. The next adapter of the state folder adopts them.
    #[default]
    Keep,
    /// SIGTERM, the grace, SIGKILL. The adapter ends when all processes are gone.
    End,
}

/// The reaction to failures of a job's processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestartPolicy {
    /// The wait after a slot's first failure. It doubles with each further one.
    pub first_delay: Duration,
    /// Maximum wait.
    pub longest_delay: Duration,
    /// A process that ran for this time is assumed to have made progress. Its slot's failures are forgotten.
    pub steady: Duration,
    /// The number of failures of one slot without progress after which the job has failed.
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

/// Retention of the files of ended jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Number of ended jobs whose folders (with checkpoints) and logs are kept. The last ones are kept.
    pub jobs: usize,
    /// Maximum age of the kept files.
    pub age: Duration,
    /// Number of incarnations of a job whose logs are kept.
    pub incarnations: usize,
}

impl Default for Retention {
    fn default() -> Self {
        Self { jobs: 20, age: Duration::from_secs(7 * 24 * 3600), incarnations: 5 }
    }
}

/// An error that keeps the adapter from running. Errors of a job or of the daemon are reported instead, and the adapter
/// continues.
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
        /// The cause.
        error: io::Error,
    },
    /// Jobs can't run as the cluster file's user.
    #[error("cluster file: {0}")]
    User(String),
}
