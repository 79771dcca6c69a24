//! A site's settings for Slurm: the table `[slurm]` of `trainmaster.toml`, which is beside slurm.conf.

use serde::Deserialize;
use thiserror::Error;
use trainmaster_core::{
    amount::{self, Unit},
    text::{LONGEST, read_toml},
};

/// A site's settings for Slurm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The manager's name in events.
    pub manager: String,
    /// Lease in seconds: the time for which a held job can't start. It is renewed when half of it is over. If
    /// Trainmaster stops, the job starts after it.
    pub lease: i64,
    /// Time in seconds after which a released job that hasn't started counts as refused by Slurm.
    pub patience: i64,
    /// Maximum time in seconds for a job to end by itself after its training.
    pub grace: i64,
    /// The network bandwidth of each server in Mbit/s, because Slurm doesn't report it. Without it, no job can request
    /// bandwidth.
    pub bandwidth: Option<i64>,
    /// The priority of released jobs. Without it, Slurm's own applies, and another job may take nodes that were decided
    /// for a job of Trainmaster's.
    pub priority: Option<u32>,
    /// The feed's address for training programs.
    pub feed: Option<String>,
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
            feed: None,
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
    slurm: File,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct File {
    manager: Option<String>,
    lease: Option<String>,
    patience: Option<String>,
    grace: Option<String>,
    bandwidth: Option<String>,
    priority: Option<u32>,
    feed: Option<String>,
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
        let Whole { slurm: file } = read_toml(text, LONGEST).map_err(|error| ConfigError(error.to_string()))?;
        let default = Self::default();
        let seconds = |key: &str, text: Option<String>, default: i64, least: i64| {
            let Some(text) = text else { return Ok(default) };
            let wrong = |problem: String| ConfigError(format!("slurm.{key}: {problem}"));
            let seconds = amount::parse_span(&text).map_err(|error| wrong(error.to_string()))?.0 / 1000;
            match seconds >= least {
                true => Ok(seconds),
                false => Err(wrong(format!("{text:?} must be at least {least}s"))),
            }
        };
        Ok(Self {
            manager: file.manager.unwrap_or(default.manager),
            // Half of it must suffice for a restart of the agent.
            lease: seconds("lease", file.lease, default.lease, 10)?,
            patience: seconds("patience", file.patience, default.patience, 1)?,
            grace: seconds("grace", file.grace, default.grace, 0)?,
            bandwidth: file
                .bandwidth
                .map(|text| Unit::Mbit.parse(&text).map_err(|error| ConfigError(format!("slurm.bandwidth: {error}"))))
                .transpose()?,
            priority: match file.priority {
                Some(priority @ (0 | OWN_PRIORITIES..)) => {
                    let problem = format!("slurm.priority: {priority} must be from 1 to {}", OWN_PRIORITIES - 1);
                    return Err(ConfigError(problem));
                }
                priority => priority,
            },
            feed: file.feed,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_are_named() {
        for (text, parts) in [
            ("lease = \"5s\"", &["slurm.lease", "5s", "10s"][..]),
            ("patience = \"x\"", &["slurm.patience", "x"]),
            ("bandwidth = \"10\"", &["slurm.bandwidth", "10", "Gbit"]),
            ("leese = \"5m\"", &["leese", "lease"]),
            ("priority = 0", &["slurm.priority", "0", "1 to"]),
            ("priority = 4294967295", &["slurm.priority", "4294967295"]),
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
