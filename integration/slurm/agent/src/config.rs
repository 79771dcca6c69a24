//! `trainmaster.toml` and Slurm's `topology.conf`, which are beside slurm.conf and are read again whenever they change.

use std::{
    collections::BTreeMap,
    fmt::Display,
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use serde::{Deserialize, Deserializer, de::Error as _};
use thiserror::Error;
use trainmaster_adapters::slurm;
use trainmaster_core::{
    Mode, Settings, amount,
    text::{LONGEST, read_toml},
};
use trainmaster_host::bounded::read_text;

/// The whole file. All keys are optional.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(serde::Serialize, schemars::JsonSchema))]
pub struct Config {
    /// The initial mode. `trainmaster slurm mode` changes it, and the change survives restarts.
    pub mode: Mode,
    /// Interval between polls of Slurm. It is also polled whenever a job is submitted or reports.
    #[serde(deserialize_with = "poll")]
    #[cfg_attr(feature = "schema", serde(serialize_with = "amount::duration::serialize"))]
    #[cfg_attr(feature = "schema", schemars(with = "amount::DurationText"))]
    pub poll: Duration,
    /// Maximum number of steps that an engine can take for one decision.
    pub budget: u64,
    /// The address for reports of training programs.
    pub feed: Feed,
    /// How jobs are held and started.
    pub slurm: slurm::Config,
    /// The engine and all other settings, as in the daemon's configuration. Shape rules are always Slurm's.
    #[serde(rename = "scheduler")]
    pub settings: Settings,
}

/// The address for reports of training programs.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(serde::Serialize, schemars::JsonSchema))]
pub struct Feed {
    /// The address. Another than loopback needs TLS.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub listen: SocketAddr,
    /// The certificate, in PEM.
    pub cert: Option<PathBuf>,
    /// Its private key.
    pub key: Option<PathBuf>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            mode: Mode::Active,
            poll: Duration::from_secs(1),
            budget: 100_000_000,
            feed: Feed::default(),
            slurm: slurm::Config::default(),
            settings: Settings::default(),
        }
    }
}

impl Default for Feed {
    fn default() -> Self {
        Self { listen: SocketAddr::from(([127, 0, 0, 1], 7071)), cert: None, key: None }
    }
}

impl Feed {
    /// Certificate and key.
    pub fn tls(&self) -> Option<(&Path, &Path)> {
        self.cert.as_deref().zip(self.key.as_deref())
    }
}

/// A configuration that can't be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct ConfigError(String);

impl Config {
    /// Reads the text of the file.
    ///
    /// # Errors
    /// The error names the key, its value and the allowed values.
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        let config: Self = read_toml(text, LONGEST).map_err(|error| ConfigError(error.to_string()))?;
        let Feed { listen, cert, key } = &config.feed;
        if cert.is_some() != key.is_some() {
            return Err(ConfigError("feed: cert and key must be given together".into()));
        }
        if cert.is_none() && !listen.ip().is_loopback() {
            return Err(ConfigError(format!(
                "feed.listen: {listen} is not loopback and needs feed.cert and feed.key; tokens would be readable on \
                 the network"
            )));
        }
        let settings = Settings { shape: slurm::shape_rules(), ..config.settings };
        Ok(Self { budget: config.budget.max(1), settings, ..config })
    }
}

fn poll<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    match amount::duration::deserialize(from)? {
        poll if (100..=60_000).contains(&poll.as_millis()) => Ok(poll),
        poll => Err(D::Error::custom(format!("{poll:?} must be from 100ms to 60s"))),
    }
}

/// The files, and their modification times when they were last read.
#[derive(Debug)]
pub(crate) struct Watched {
    path: PathBuf,
    topology: PathBuf,
    modified: Option<[SystemTime; 2]>,
}

impl Watched {
    pub(crate) fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), topology: path.with_file_name("topology.conf"), modified: None }
    }

    /// Reads the files if one has changed since the last call. Without a file, the defaults apply.
    pub(crate) fn changed(&mut self) -> Option<Result<Config, ConfigError>> {
        let modified = [&self.path, &self.topology]
            .map(|path| fs::metadata(path).and_then(|data| data.modified()).unwrap_or(SystemTime::UNIX_EPOCH));
        if self.modified == Some(modified) {
            return None;
        }
        self.modified = Some(modified);
        Some(self.read())
    }

    fn read(&self) -> Result<Config, ConfigError> {
        let named = |path: &Path, error: &dyn Display| ConfigError(format!("{}: {error}", path.display()));
        let text = |path: &Path| match read_text(path, LONGEST as u64) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
            text => text.map_err(|error| named(path, &error)),
        };
        let mut config = Config::from_toml(&text(&self.path)?).map_err(|error| named(&self.path, &error))?;
        // Slurm's own file may have what isn't understood here. Then nodes have no racks, and all else goes on.
        let nodes = text(&self.topology)
            .and_then(|text| slurm::topology::read(&text).map_err(|error| named(&self.topology, &error)));
        config.slurm.topology = nodes.unwrap_or_else(|error| {
            tracing::error!(%error, "racks are unknown");
            BTreeMap::new()
        });
        Ok(config)
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

    /// The keys of a table, from the error about an unknown one.
    fn keys(table: &str) -> Vec<String> {
        let error = Config::from_toml(&format!("{table}\nx = 1")).unwrap_err().to_string();
        let (_, expected) = error.split_once("expected one of ").expect("it lists the keys");
        expected.split('`').skip(1).step_by(2).map(ToOwned::to_owned).collect()
    }

    #[test]
    fn the_page_has_every_key_with_its_default() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/slurm.md");
        let page = fs::read_to_string(page).unwrap();
        let (_, table) = page.split_once("| key | meaning | default |").unwrap();
        let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
        let (mut known, mut defaults) = (Vec::new(), String::new());
        for row in rows {
            let cells: Vec<&str> = row.trim_matches('|').split(" | ").collect();
            let [names, _, default] = cells[..] else { panic!("{row}") };
            known.extend(names.split('`').skip(1).step_by(2).map(ToOwned::to_owned));
            if let (Some(name), Some(value)) = (names.split('`').nth(1), default.trim().strip_prefix('`')) {
                let value = value.split('`').next().unwrap();
                let is_plain = value.parse::<u64>().is_ok() || value.parse::<bool>().is_ok();
                let value = if is_plain { value.to_owned() } else { format!("{value:?}") };
                defaults.push_str(&format!("{name} = {value}\n"));
            }
        }
        let mut expected = Vec::new();
        for key in keys("") {
            match key.as_str() {
                "feed" | "slurm" => {
                    expected.extend(keys(&format!("[{key}]")).into_iter().map(|inner| format!("{key}.{inner}")));
                }
                "scheduler" => expected.push("[scheduler]".into()),
                _ => expected.push(key),
            }
        }
        expected.sort();
        known.sort();
        assert_eq!(known, expected);
        assert!(defaults.lines().count() >= 8, "{defaults}");
        assert_eq!(Config::from_toml(&defaults).unwrap(), Config::from_toml("").unwrap());
    }

    #[test]
    fn mistakes_are_named() {
        for (text, parts) in [
            ("mode = \"off\"", &["mode", "off", "paused"][..]),
            ("poll = \"1ms\"", &["poll", "100ms"]),
            ("pool = \"1s\"", &["pool", "poll"]),
            ("[feed]\nlisten = \"0.0.0.0:1\"", &["feed.listen", "0.0.0.0:1", "feed.cert"]),
            ("[feed]\ncert = \"a\"", &["feed", "together"]),
            ("[scheduler]\nengin = \"drf\"", &["engin", "expected one of", "engine"]),
            ("[slurm]\nlease = \"1s\"", &["lease", "1s", "10s"]),
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
        fs::remove_file(&path).unwrap();
        let topology = folder.path().join("topology.conf");
        fs::write(&topology, "SwitchName=r1 Nodes=n1").unwrap();
        assert_eq!(watched.changed().unwrap().unwrap().slurm.topology["n1"]["rack"], "r1");
        assert!(watched.changed().is_none());
        fs::remove_file(&topology).unwrap();
        fs::write(&topology, "SwitchName=r1 Nodes=n[").unwrap();
        assert!(watched.changed().unwrap().unwrap().slurm.topology.is_empty(), "all else goes on");
    }
}
