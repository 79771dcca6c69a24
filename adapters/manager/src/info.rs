//! An adapter's description, as hosts need it to run the adapter.

use std::{
    future::Future,
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use rustix::fs::{Access, access};
use trainmaster_core::JobSpec;

use super::{
    daemon::Daemon,
    logs::{Logs, LogsOf},
};

/// A running adapter. It ends after its shutdown, or with the error that stopped it.
pub type Running = Pin<Box<dyn Future<Output = anyhow::Result<()>> + Send>>;

/// Resolves when the adapter has to end.
pub type Shutdown = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The values that a host gives every adapter. Manager-specific values are in the adapter's configuration file.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The adapter's configuration file. `None`: the adapter's defaults.
    pub config: Option<PathBuf>,
    /// The feed's address for training programs, such as `http://127.0.0.1:7070`; usually the daemon's.
    pub feed: String,
    /// A folder for this adapter alone.
    pub state_dir: PathBuf,
    /// Whether the jobs' processes end with the adapter. Otherwise they run until it starts again.
    pub end_jobs: bool,
    /// How long a training program continues without its feed before it ends by itself.
    pub orphan_grace: Duration,
    /// The program of jobs without a command.
    pub trainer: Option<PathBuf>,
}

/// The adapters of a build, and their commands. The program creates this list and passes it to the daemon and the
/// command line.
#[derive(Clone, Copy, Debug, Default)]
pub struct Adapters {
    /// In the order of display.
    pub all: &'static [AdapterInfo],
    /// By the adapter's name.
    pub commands: &'static [(&'static str, &'static [AdapterCommand])],
}

impl Adapters {
    /// Finds an adapter by its name.
    ///
    /// # Errors
    /// There is no such adapter. The error lists the available ones.
    pub fn find(&self, name: &str) -> Result<&'static AdapterInfo, String> {
        self.all.iter().find(|adapter| adapter.name == name).ok_or_else(|| {
            let known: Vec<_> = self.all.iter().map(|adapter| adapter.name).collect();
            match &known[..] {
                [] => "there is no adapter in this build".into(),
                known => format!("there is no such adapter in this build; there are {}", known.join(", ")),
            }
        })
    }
}

/// One adapter.
#[derive(Clone, Copy, Debug)]
pub struct AdapterInfo {
    /// Its name in `--adapter <name>[=<config>]`.
    pub name: &'static str,
    /// One line, for people.
    pub summary: &'static str,
    /// Whether a daemon without any `--adapter` runs this one.
    pub default: bool,
    /// A commented configuration file to start from.
    pub sample: &'static str,
    /// Checks whether this adapter could run here. An unreadable configuration is one of the results.
    pub doctor: fn(&Launch) -> Vec<Check>,
    /// Reads the configuration and returns the adapter, ready to be spawned on a Tokio runtime with I/O and time.
    pub start: fn(Launch, Arc<dyn Daemon>, Shutdown) -> anyhow::Result<Running>,
    /// Reads what a job's programs print, if the adapter keeps it. The job may be unknown to it.
    pub logs: Option<OpenLogs>,
    /// Checks whether a job's programs could be started here, for adapters that start them themselves. The error names
    /// the key.
    pub check_job: Option<CheckJob>,
}

/// Opens the logs of a job.
pub type OpenLogs = fn(&Launch, LogsOf) -> Box<dyn Logs>;

/// Checks a job before its submission. Waits for the disk.
pub type CheckJob = fn(&Launch, &JobSpec) -> Result<(), String>;

/// An adapter's own command: `trainmaster <adapter> <command> …`.
#[derive(Clone, Copy, Debug)]
pub struct AdapterCommand {
    /// Its name.
    pub name: &'static str,
    /// Its arguments, as shown in help.
    pub arguments: &'static str,
    /// One line, for people.
    pub about: &'static str,
    /// Whether it calls a daemon, at least in some settings.
    pub asks_daemon: bool,
    /// Executes it.
    pub run: fn(&[String], &DaemonAddress) -> anyhow::Result<CommandAnswer>,
}

/// The address and credentials for a command that calls the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonAddress {
    /// Such as `http://127.0.0.1:7070`.
    pub address: String,
    /// The token file, if the daemon requires a token.
    pub token_file: Option<PathBuf>,
    /// Certificate authority of an `https` daemon, in PEM.
    pub ca: Option<PathBuf>,
    /// The caller's certificate and its key, in PEM, if the daemon requires them.
    pub certificate: Option<(PathBuf, PathBuf)>,
}

/// The result of a command.
#[derive(Clone, Debug, PartialEq)]
pub struct CommandAnswer {
    /// For people, without the final line break.
    pub text: String,
    /// For programs.
    pub json: serde_json::Value,
}

/// One check of `doctor`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// The checked object.
    pub name: &'static str,
    /// The result.
    pub verdict: Health,
    /// The finding. Unless the result is good, it also says what to do.
    pub detail: String,
}

impl Check {
    /// A check with its result.
    pub fn new(name: &'static str, verdict: Health, detail: String) -> Self {
        Self { name, verdict, detail }
    }

    /// Checks whether a folder can be written, or could be created. Creates nothing.
    pub fn folder(name: &'static str, folder: &Path) -> Self {
        let (there, shown) = (nearest_folder(folder), folder.display());
        match access(there, Access::WRITE_OK | Access::EXEC_OK) {
            Ok(()) if !there.is_dir() => Self::new(name, Health::Bad, format!("{} is no folder", there.display())),
            Ok(()) if there == folder => Self::new(name, Health::Good, format!("{shown} can be written")),
            Ok(()) => Self::new(name, Health::Good, format!("{shown} isn't there yet; it can be made")),
            Err(error) => Self::new(name, Health::Bad, format!("{} can't be written: {error}", there.display())),
        }
    }
}

/// The folder itself or its nearest existing ancestor.
pub fn nearest_folder(folder: &Path) -> &Path {
    folder.ancestors().find(|path| path.exists()).unwrap_or(Path::new("."))
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Health {
    /// Usable.
    Good,
    /// Perhaps unusable for some jobs.
    Doubtful,
    /// The adapter can't work with it.
    Bad,
}
