//! The adapters there are, and what a host needs to know to run one.

use std::{
    future::Future,
    path::{Path, PathBuf},
    pin::Pin,
    time::Duration,
};

use rustix::fs::{Access, access};

/// An adapter at work; ends when it was told to, or with the error that stopped it.
pub type Running = Pin<Box<dyn Future<Output = anyhow::Result<()>> + Send>>;

/// Resolves when an adapter is to end.
pub type Shutdown = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What a host tells every adapter; what is special to a manager stands in its configuration file.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The adapter's configuration file; without one the adapter's defaults hold.
    pub config: Option<PathBuf>,
    /// The daemon's address, as `http://127.0.0.1:7070`.
    pub daemon: String,
    /// Bearer token for the daemon, where it asks for one.
    pub token: Option<String>,
    /// Certificate authority of an `https` daemon, in PEM.
    pub ca: Option<PathBuf>,
    /// The feed's address for training programs; usually the daemon's.
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

/// One line of the registry.
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
    pub start: fn(Launch, Shutdown) -> anyhow::Result<Running>,
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
    pub run: fn(&[String], &Daemon) -> anyhow::Result<Answer>,
}

/// Where the daemon is that a command may ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Daemon {
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
pub struct Answer {
    /// For people, without the last line's end.
    pub text: String,
    /// For programs.
    pub json: serde_json::Value,
}

/// The commands of every adapter of this build, by the adapter's name.
pub fn commands() -> &'static [(&'static str, &'static [AdapterCommand])] {
    &[
        #[cfg(feature = "slurm")]
        ("slurm", crate::slurm::COMMANDS),
        #[cfg(feature = "yarn")]
        ("yarn", crate::yarn::COMMANDS),
    ]
}

/// An answer of `doctor`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What was looked at.
    pub name: &'static str,
    /// Whether it will do.
    pub verdict: Verdict,
    /// What was found; if it won't do, also what to do about it.
    pub detail: String,
}

impl Check {
    /// An answer.
    pub fn new(name: &'static str, verdict: Verdict, detail: String) -> Self {
        Self { name, verdict, detail }
    }

    /// Whether a folder can be written, or made if it isn't there. Makes nothing.
    pub fn folder(name: &'static str, folder: &Path) -> Self {
        let (there, shown) = (nearest_folder(folder), folder.display());
        match access(there, Access::WRITE_OK | Access::EXEC_OK) {
            Ok(()) if !there.is_dir() => Self::new(name, Verdict::Bad, format!("{} is no folder", there.display())),
            Ok(()) if there == folder => Self::new(name, Verdict::Good, format!("{shown} can be written")),
            Ok(()) => Self::new(name, Verdict::Good, format!("{shown} isn't there yet; it can be made")),
            Err(error) => Self::new(name, Verdict::Bad, format!("{} can't be written: {error}", there.display())),
        }
    }
}

/// The folder, or what is there of it to make it in.
pub fn nearest_folder(folder: &Path) -> &Path {
    folder.ancestors().find(|path| path.exists()).unwrap_or(Path::new("."))
}

/// Whether what was looked at will do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// It will.
    Good,
    /// For some jobs, perhaps.
    Doubtful,
    /// The adapter can't work like this.
    Bad,
}

/// Every adapter of this build, in the order that people are shown.
///
/// # Examples
/// ```
/// for adapter in trainmaster_adapters::all() {
///     println!("{:10} {}", adapter.name, adapter.summary);
/// }
/// ```
pub fn all() -> &'static [AdapterInfo] {
    &[
        #[cfg(feature = "local")]
        crate::local::INFO,
        #[cfg(feature = "ray")]
        crate::ray::INFO,
        #[cfg(feature = "yarn")]
        crate::yarn::INFO,
    ]
}

/// The adapter of that name.
pub fn by_name(name: &str) -> Option<&'static AdapterInfo> {
    all().iter().find(|adapter| adapter.name == name)
}

#[cfg(test)]
impl Launch {
    /// In a test's folder, with a configuration file of this text; the daemon is away.
    pub(crate) fn for_test(folder: &std::path::Path, config: Option<&str>) -> Self {
        let config = config.map(|text| {
            let path = folder.join("config.toml");
            std::fs::write(&path, text).unwrap();
            path
        });
        Self {
            config,
            daemon: "http://127.0.0.1:1".into(),
            token: None,
            ca: None,
            feed: "http://127.0.0.1:1".into(),
            state_dir: folder.join("state"),
            end_jobs: true,
            orphan_grace: Duration::from_secs(1),
            trainer: Some("/bin/sh".into()),
        }
    }
}
