//! A site's settings for Slurm: the table `[slurm]` of `trainmaster.toml`, which is beside slurm.conf.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, de::Error as _};
use thiserror::Error;
#[cfg(feature = "schema")]
use trainmaster_core::amount::{BandwidthText, DurationText};
use trainmaster_core::{
    amount::{self, Unit},
    text::{LONGEST, read_toml},
};

use super::topology::Path;

/// A site's settings for Slurm.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(serde::Serialize, schemars::JsonSchema))]
pub struct Config {
    /// The manager's name in events and the journal.
    pub manager: String,
    /// The time for which a held job can't start, at least 10 s. It is renewed when half of it is over, so that
    /// half of it must suffice for a restart of the agent. If Trainmaster stops, the job starts after it. Here in
    /// seconds.
    #[serde(deserialize_with = "seconds::<_, 10>", serialize_with = "write_seconds")]
    #[cfg_attr(feature = "schema", schemars(with = "DurationText"))]
    pub lease: i64,
    /// Time after which a released job that hasn't started counts as refused by Slurm, at least 1 s. Here in seconds.
    #[serde(deserialize_with = "seconds::<_, 1>", serialize_with = "write_seconds")]
    #[cfg_attr(feature = "schema", schemars(with = "DurationText"))]
    pub patience: i64,
    /// Maximum time for processes to leave a node, and for a job to end by itself after its training. Here in seconds.
    #[serde(deserialize_with = "seconds::<_, 0>", serialize_with = "write_seconds")]
    #[cfg_attr(feature = "schema", schemars(with = "DurationText"))]
    pub grace: i64,
    /// Network bandwidth of each node, which Slurm doesn't report. Without it, no job can request bandwidth. Here in
    /// Mbit/s.
    #[serde(with = "bandwidth")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<BandwidthText>"))]
    pub bandwidth: Option<i64>,
    /// The priority of jobs that were decided to start, from 1. Without it, Slurm's own applies, and another job may
    /// take nodes that were decided for a job of Trainmaster's.
    #[serde(deserialize_with = "priority")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 4_294_967_293_u32)))]
    pub priority: Option<u32>,
    /// Whether the nodes' CPU loads are reported, for engines that use them.
    pub measure: bool,
    /// The feed's address for training programs, as their variable `TRAINMASTER_FEED` has it. Without it, jobs don't
    /// report.
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

#[cfg(feature = "schema")]
fn write_seconds<S: serde::Serializer>(seconds: &i64, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&format_args!("{seconds}s"))
}

mod bandwidth {
    use serde::{Deserialize as _, Deserializer, de::Error as _};

    use super::Unit;

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<i64>, D::Error> {
        Unit::Mbit.parse(&String::deserialize(from)?).map(Some).map_err(D::Error::custom)
    }

    #[cfg(feature = "schema")]
    pub(super) fn serialize<S: serde::Serializer>(mbit: &Option<i64>, to: S) -> Result<S::Ok, S::Error> {
        use serde::Serialize as _;

        mbit.map(|mbit| Unit::Mbit.format(mbit)).serialize(to)
    }
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
            ("measure = \"on\"", &["measure", "on", "true or false"]),
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
