//! A site's settings for Slurm: the table `[slurm]` of `trainmaster.toml`, which is beside slurm.conf.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, de::Error as _};
use thiserror::Error;
use trainmaster_core::{
    amount::{self, Unit},
    text::{LONGEST, read_toml},
};

use super::topology::Path;

/// A site's settings for Slurm.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The manager's name in events.
    pub manager: String,
    /// Lease in seconds: the time for which a held job can't start. It is renewed when half of it is over, so that half
    /// of it must suffice for a restart of the agent. If Trainmaster stops, the job starts after it.
    #[serde(deserialize_with = "seconds::<_, 10>")]
    pub lease: i64,
    /// Time in seconds after which a released job that hasn't started counts as refused by Slurm.
    #[serde(deserialize_with = "seconds::<_, 1>")]
    pub patience: i64,
    /// Maximum time in seconds for a job to end by itself after its training.
    #[serde(deserialize_with = "seconds::<_, 0>")]
    pub grace: i64,
    /// The network bandwidth of each server in Mbit/s, because Slurm doesn't report it. Without it, no job can request
    /// bandwidth.
    #[serde(deserialize_with = "bandwidth")]
    pub bandwidth: Option<i64>,
    /// The priority of released jobs. Without it, Slurm's own applies, and another job may take nodes that were decided
    /// for a job of Trainmaster's.
    #[serde(deserialize_with = "priority")]
    pub priority: Option<u32>,
    /// Whether the nodes' loads are reported.
    pub measure: bool,
    /// The feed's address for training programs.
    pub feed: Option<String>,
    /// The racks and blocks of nodes, from `topology.conf` beside this file.
    #[serde(skip)]
    pub topology: BTreeMap<String, Path>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            manager: "slurm".into(),
            lease: 900,
            patience: 60,
            grace: 60,
            bandwidth: None,
            priority: None,
            measure: false,
            feed: None,
            topology: BTreeMap::new(),
        }
    }
}

/// A setting that isn't allowed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct ConfigError(String);

#[derive(Deserialize, Default)]
struct Whole {
    #[serde(default)]
    slurm: Config,
}

/// From this value, priorities have special meanings in Slurm, as 0 has: held, unset, or chosen by Slurm.
const OWN_PRIORITIES: u32 = 0xffff_fffe;

impl Config {
    /// Reads the table `[slurm]` and ignores the rest of the file.
    ///
    /// # Errors
    /// The error names the key, its value and the allowed values.
    ///
    /// ```
    /// use trainmaster_adapters::slurm::Config;
    /// let config = Config::from_toml("engine = \"optimus\"\n[slurm]\nlease = \"10m\"").unwrap();
    /// assert_eq!(config.lease, 600);
    /// ```
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        let whole: Whole = read_toml(text, LONGEST).map_err(|error| ConfigError(error.to_string()))?;
        Ok(whole.slurm)
    }
}

fn seconds<'de, D: Deserializer<'de>, const LEAST: u64>(from: D) -> Result<i64, D::Error> {
    match amount::duration::deserialize(from)?.as_secs() {
        seconds if seconds >= LEAST => Ok(seconds as i64),
        seconds => Err(D::Error::custom(format!("{seconds}s must be at least {LEAST}s"))),
    }
}

fn bandwidth<'de, D: Deserializer<'de>>(from: D) -> Result<Option<i64>, D::Error> {
    Unit::Mbit.parse(&String::deserialize(from)?).map(Some).map_err(D::Error::custom)
}

fn priority<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    match u32::deserialize(from)? {
        priority @ (0 | OWN_PRIORITIES..) => {
            Err(D::Error::custom(format!("{priority} must be from 1 to {}", OWN_PRIORITIES - 1)))
        }
        priority => Ok(Some(priority)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_are_named() {
        for (text, parts) in [
            ("lease = \"5s\"", &["lease", "5s", "10s"][..]),
            ("patience = \"x\"", &["patience", "x"]),
            ("bandwidth = \"10\"", &["bandwidth", "10", "Gbit"]),
            ("leese = \"5m\"", &["leese", "lease"]),
            ("measure = \"on\"", &["measure", "on", "boolean"]),
            ("priority = 0", &["priority", "0", "1 to"]),
            ("priority = 4294967295", &["priority", "4294967295"]),
        ] {
            let error = Config::from_toml(&format!("[slurm]\n{text}")).unwrap_err().to_string();
            for part in parts {
                assert!(error.contains(part), "{error:?} should contain {part:?}");
            }
        }
        let config = Config::from_toml("[slurm]\nbandwidth = \"10Gbit\"\nfeed = \"http://c:1\"").unwrap();
        assert_eq!((config.bandwidth, config.feed.as_deref()), (Some(10_000), Some("http://c:1")));
        assert_eq!(Config::from_toml("").unwrap(), Config::default());
    }
}
