//! `trainmaster.toml`, which is beside slurm.conf and is read again whenever it changes.

use std::{
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use serde::Deserialize;
use thiserror::Error;
use trainmaster_adapters::slurm;
use trainmaster_core::{
    Mode, Settings, amount,
    text::{LONGEST, read_toml},
};
use trainmaster_host::bounded::read_text;

/// The settings of `serve` without a settings file also apply here.
const DEFAULT_SETTINGS: &str = include_str!("../../../../sidecar/daemon/src/default.toml");

/// The whole file. All keys are optional.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// `mode`: the initial mode. `trainmaster slurm mode` changes it, and the change survives restarts.
    pub mode: Mode,
    /// `poll`: interval between polls of Slurm. It is also polled whenever a job is submitted or reports.
    pub poll: Duration,
    /// `budget`: the number of steps that an engine can take for one decision.
    pub budget: u64,
    /// `[feed]`: the address for reports of training programs.
    pub feed: Feed,
    /// `[slurm]`: how jobs are held and started.
    pub slurm: slurm::Config,
    /// `[scheduler]`: the engine and all other settings of `serve --settings`. Shape rules are always Slurm's.
    pub settings: Settings,
}

/// The address for reports of training programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feed {
    /// `listen`. An address other than loopback needs TLS.
    pub listen: SocketAddr,
    /// `cert` and `key`, in PEM.
    pub tls: Option<(PathBuf, PathBuf)>,
}

/// A configuration that can't be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct ConfigError(String);

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct File {
    mode: Option<String>,
    poll: Option<String>,
    budget: Option<u64>,
    #[serde(default)]
    feed: FeedFile,
    scheduler: Option<toml::Table>,
    // The adapter reads this table.
    #[serde(default, rename = "slurm")]
    _slurm: toml::Table,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct FeedFile {
    listen: Option<SocketAddr>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
}

impl Config {
    /// Reads the text of the file.
    ///
    /// # Errors
    /// The error names the key, its value and the allowed values.
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        let wrong = |error: &dyn std::fmt::Display| ConfigError(error.to_string().trim_end().to_owned());
        let file: File = read_toml(text, LONGEST).map_err(|error| wrong(&error))?;
        let settings = match file.scheduler {
            Some(table) => Settings::from_toml(&table.to_string()),
            None => Settings::from_toml(DEFAULT_SETTINGS),
        };
        let mut settings = settings.map_err(|error| ConfigError(format!("scheduler: {error}")))?;
        settings.shape = slurm::shape_rules();
        let poll = match file.poll {
            Some(text) => amount::parse_span(&text).map_err(|error| ConfigError(format!("poll: {error}")))?.0,
            None => 1000,
        };
        if !(100..=60_000).contains(&poll) {
            return Err(ConfigError(format!("poll: {poll} ms must be from 100ms to 60s")));
        }
        let listen = file.feed.listen.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 7071)));
        let tls = match (file.feed.cert, file.feed.key) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) if listen.ip().is_loopback() => None,
            (None, None) => {
                return Err(ConfigError(format!(
                    "feed.listen: {listen} is not loopback and needs feed.cert and feed.key; tokens would be readable \
                     on the network"
                )));
            }
            _ => return Err(ConfigError("feed: cert and key must be given together".into())),
        };
        let mode = match file.mode.as_deref() {
            None | Some("active") => Mode::Active,
            Some("shadow") => Mode::Shadow,
            Some("paused") => Mode::Paused,
            Some(other) => return Err(ConfigError(format!("mode: {other:?} must be active, shadow or paused"))),
        };
        Ok(Self {
            mode,
            poll: Duration::from_millis(poll as u64),
            budget: file.budget.unwrap_or(100_000_000).max(1),
            feed: Feed { listen, tls },
            slurm: slurm::Config::from_toml(text).map_err(|error| wrong(&error))?,
            settings,
        })
    }
}

/// The file, and its modification time when it was last read.
#[derive(Debug)]
pub(crate) struct Watched {
    path: PathBuf,
    modified: Option<SystemTime>,
}

impl Watched {
    pub(crate) fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), modified: None }
    }

    /// Reads the file if it has changed since the last call. Without a file, the defaults apply.
    pub(crate) fn changed(&mut self) -> Option<Result<Config, ConfigError>> {
        let modified = fs::metadata(&self.path).and_then(|data| data.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
        if self.modified == Some(modified) {
            return None;
        }
        self.modified = Some(modified);
        let text = match read_text(&self.path, LONGEST as u64) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Some(Err(ConfigError(format!("{}: {error}", self.path.display())))),
        };
        let named = |error: ConfigError| ConfigError(format!("{}: {error}", self.path.display()));
        Some(Config::from_toml(&text).map_err(named))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_file_is_the_default() {
        let config = Config::from_toml("").unwrap();
        assert_eq!((config.mode, config.settings.engine.as_str()), (Mode::Active, "optimus"));
        assert!(config.settings.shape.equal_per_server && !config.settings.shape.grow_in_place);
        let text = "mode = \"shadow\"\npoll = \"250ms\"\n[scheduler]\nengine = \"drf\"\n[slurm]\nlease = \"10m\"";
        let config = Config::from_toml(text).unwrap();
        assert_eq!((config.mode, config.settings.engine.as_str(), config.slurm.lease), (Mode::Shadow, "drf", 600));
        assert!(config.settings.shape.equal_per_server);
    }

    #[test]
    fn mistakes_are_named() {
        for (text, parts) in [
            ("mode = \"off\"", &["mode", "off", "paused"][..]),
            ("poll = \"1ms\"", &["poll", "100ms"]),
            ("pool = \"1s\"", &["pool", "poll"]),
            ("[feed]\nlisten = \"0.0.0.0:1\"", &["feed.listen", "0.0.0.0:1", "feed.cert"]),
            ("[feed]\ncert = \"a\"", &["feed", "together"]),
            ("[scheduler]\nengin = \"drf\"", &["scheduler", "engin"]),
            ("[slurm]\nlease = \"1s\"", &["slurm.lease", "1s"]),
        ] {
            let error = Config::from_toml(text).unwrap_err().to_string();
            for part in parts {
                assert!(error.contains(part), "{error:?} should contain {part:?}");
            }
        }
    }

    #[test]
    fn a_file_is_read_once_for_each_change() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trainmaster.toml");
        let mut watched = Watched::new(&path);
        assert_eq!(watched.changed().unwrap().unwrap(), Config::from_toml("").unwrap());
        assert!(watched.changed().is_none());
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        let endless = watched.changed().unwrap().unwrap_err().to_string();
        assert!(endless.ends_with("trainmaster.toml: it has more than 1048576 bytes"), "{endless}");
        fs::remove_file(&path).unwrap();
        fs::write(&path, "mode = 7").unwrap();
        assert!(watched.changed().unwrap().unwrap_err().to_string().contains("trainmaster.toml"));
        assert!(watched.changed().is_none());
    }
}
