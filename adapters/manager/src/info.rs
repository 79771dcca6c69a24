//! What a host needs to know of adapters to run them.

use std::{
    future::Future,
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use rustix::fs::{Access, access};

use super::daemon::Daemon;

/// An adapter at work; ends when it was told to, or with the error that stopped it.
pub type Running = Pin<Box<dyn Future<Output = anyhow::Result<()>> + Send>>;

/// Resolves when an adapter is to end.
pub type Shutdown = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What a host tells every adapter; what is special to a manager stands in its configuration file.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The adapter's configuration file; without one the adapter's defaults hold.
    pub config: Option<PathBuf>,
    /// The feed's address for training programs, as `http://127.0.0.1:7070`; usually the daemon's.
    pub feed: String,
    /// A folder that belongs to this adapter alone.
    pub state_dir: PathBuf,
    /// Whether the jobs' processes end with the adapter, or go on until it is back.
    pub end_jobs: bool,
    /// How long a training program goes on without its feed before it ends by itself.
    pub orphan_grace: Duration,
    /// The program of jobs without a command.
    pub trainer: Option<PathBuf>,
}

/// The adapters of a build, and the commands that they bring. The program names it, and hands it to the daemon and the
/// command line.
#[derive(Clone, Copy, Debug, Default)]
pub struct Adapters {
    /// In the order that people are shown.
    pub all: &'static [AdapterInfo],
    /// By the adapter's name.
    pub commands: &'static [(&'static str, &'static [AdapterCommand])],
}

impl Adapters {
    /// The adapter of a name.
    ///
    /// # Errors
    /// There is none: says which there are.
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
    /// What `--adapter <name>[=<config>]` calls it.
    pub name: &'static str,
    /// One line, for people.
    pub summary: &'static str,
    /// Whether a daemon that was told of no adapter runs this one.
    pub default: bool,
    /// A configuration file to begin with, commented.
    pub sample: &'static str,
    /// Whether this adapter could run here; a configuration that can't be read is one of the answers.
    pub doctor: fn(&Launch) -> Vec<Check>,
    /// Reads the configuration and returns the adapter, ready to be spawned on a Tokio runtime with I/O and time.
    pub start: fn(Launch, Arc<dyn Daemon>, Shutdown) -> anyhow::Result<Running>,
}

/// A command of an adapter's own: `trainmaster <adapter> <command> …`.
#[derive(Clone, Copy, Debug)]
pub struct AdapterCommand {
    /// Its name.
    pub name: &'static str,
    /// What it takes, as help shows it.
    pub arguments: &'static str,
    /// One line, for people.
    pub about: &'static str,
    /// Whether it asks a daemon, at least in some settings.
    pub asks_daemon: bool,
    /// Carries it out.
    pub run: fn(&[String], &DaemonAddress) -> anyhow::Result<CommandAnswer>,
}

/// Where the daemon is that a command may ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonAddress {
    /// As `http://127.0.0.1:7070`.
    pub address: String,
    /// The file with its token, where it asks for one.
    pub token_file: Option<PathBuf>,
    /// Certificate authority of an `https` daemon, in PEM.
    pub ca: Option<PathBuf>,
    /// The caller's certificate and its key, in PEM, where the daemon goes by these.
    pub certificate: Option<(PathBuf, PathBuf)>,
}

/// What a command answers.
#[derive(Clone, Debug, PartialEq)]
pub struct CommandAnswer {
    /// For people, without the last line's end.
    pub text: String,
    /// For programs.
    pub json: serde_json::Value,
}

/// An answer of `doctor`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What was looked at.
    pub name: &'static str,
    /// Whether it will do.
    pub verdict: Health,
    /// What was found; if it won't do, also what to do about it.
    pub detail: String,
}

impl Check {
    /// An answer.
    pub fn new(name: &'static str, verdict: Health, detail: String) -> Self {
        Self { name, verdict, detail }
    }

    /// Whether a folder can be written, or made if it isn't there. Makes nothing.
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

/// The folder, or what is there of it to make it in.
pub fn nearest_folder(folder: &Path) -> &Path {
    folder.ancestors().find(|path| path.exists()).unwrap_or(Path::new("."))
}

/// Whether what was looked at will do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Health {
    /// It will.
    Good,
    /// For some jobs, perhaps.
    Doubtful,
    /// The adapter can't work like this.
    Bad,
}
