//! The settings of a site, in one TOML text.

mod forms;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{
    job::JobSpec,
    shape::Shape,
    text::{LONGEST, read_toml},
    time::Span,
};

/// The scheduling mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Mode {
    /// The engine decides, and plans are sent to managers.
    #[default]
    Active,
    /// The engine decides from observations, and nothing is sent.
    Shadow,
    /// No decisions. All jobs are handed back to their managers, in the last issued or the requested shape.
    Paused,
}

/// A value of an engine's parameter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(untagged))]
pub enum Parameter {
    /// Any number.
    Number(f64),
    /// On or off.
    Flag(bool),
    /// A choice by name, or a duration.
    Text(String),
}

impl std::fmt::Display for Parameter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::Text(text) => write!(f, "{text:?}"),
        }
    }
}

/// Rules that pin jobs. A pinned job is marked in the engine's input. It isn't vetoed afterwards. A file has a table,
/// `"on"` or `"off"`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self")]
pub struct Stability {
    /// Off, to reproduce the papers.
    pub enabled: bool,
    /// Minimum time for which a job keeps its slots after a start. After a restart, if `payback` restart costs are
    /// longer, these count, up to five times this.
    pub min_run: Span,
    /// Number of restarts of a job within an hour for another shape or another place. After them it keeps its slots.
    pub rescales_per_hour: u32,
    /// A job isn't restarted if it is predicted to end within this many restart costs, or was restarted within them.
    pub payback: f64,
}

impl Default for Stability {
    fn default() -> Self {
        Self { enabled: true, min_run: Span::seconds(60), rescales_per_hour: 12, payback: 2.0 }
    }
}

/// The shapes that the pool's manager can carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ShapeRules {
    /// Each server of a job has the same number of workers and of parameter servers. If the roles don't share servers,
    /// each server of a role has the same number of it. A running job can only give up whole servers.
    pub equal_per_server: bool,
    /// Workers and parameter servers of a job may share a server.
    pub colocate: bool,
    /// Workers can be added to a running incarnation. Removing workers is always possible.
    pub grow_in_place: bool,
    /// How much of each device, CPU and bandwidth may be reserved: 1 to 8 times. Above 1, tasks share unused capacity.
    /// Applies only to servers that list their devices and don't keep those of idle slots
    /// ([`keeps_gpus`](crate::server::Place::keeps_gpus)). CPUs and bandwidth are oversubscribed under all engines. Two
    /// tasks get the same whole device only under engines that use measured load. In the code it is in thousandths.
    // The alias is the former name.
    #[serde(alias = "overbook", with = "forms::times")]
    #[cfg_attr(feature = "schema", schemars(with = "f64", extend("minimum" = 1, "maximum" = 8)))]
    pub oversubscribe: u16,
}

impl Default for ShapeRules {
    fn default() -> Self {
        Self { equal_per_server: false, colocate: true, grow_in_place: true, oversubscribe: 1000 }
    }
}

impl ShapeRules {
    /// The pool's rules, with the job's own rules added.
    #[must_use]
    pub fn of(self, spec: &JobSpec) -> Self {
        Self { colocate: self.colocate && !spec.separate_roles, ..self }
    }

    /// The rule that is violated by these numbers of slots on a job's servers, in words.
    pub fn broken_by(self, counts: impl IntoIterator<Item = Shape>) -> Option<&'static str> {
        let (mut together, mut of_workers, mut of_servers) = (None, None, None);
        for count in counts {
            if !self.colocate && count.workers > 0 && count.servers > 0 {
                return Some("workers and parameter servers must not share a server");
            }
            let differs = |first: &mut Option<Shape>| *first.get_or_insert(count) != count;
            let differs = match (self.colocate, count.workers > 0) {
                (true, _) => differs(&mut together),
                (false, true) => differs(&mut of_workers),
                (false, false) => differs(&mut of_servers),
            };
            if self.equal_per_server && differs {
                return Some("every server must have the same numbers");
            }
        }
        None
    }
}

/// Limits on the claims of job files, so that inflated claims give no advantage.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Caps {
    /// Maximum worth of a job at any time ([`Utility`](crate::job::Utility)).
    #[serde(with = "forms::cap")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<f64>", extend("minimum" = 0)))]
    pub utility: f64,
    /// Maximum urgency.
    pub urgency: u32,
    /// Maximum priority.
    pub priority: i32,
}

impl Default for Caps {
    fn default() -> Self {
        Self { utility: f64::MAX, urgency: 10, priority: i32::MAX }
    }
}

/// All settings. Files have durations and amounts as texts with units, and journals as numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Settings {
    /// Name of the engine.
    pub engine: String,
    /// Parameters of the engine (`trainmaster engines NAME` lists them). The others have their defaults.
    pub parameters: BTreeMap<String, Parameter>,
    /// Name of the engine that takes over when the chosen one fails.
    pub fallback: String,
    /// Number of consecutive failures until then; at least 1.
    #[serde(deserialize_with = "forms::positive")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub fallback_after: u32,
    /// Rules that pin jobs.
    #[cfg_attr(feature = "schema", schemars(with = "forms::Switch"))]
    pub stability: Stability,
    /// The shapes that the manager can carry out.
    pub shape: ShapeRules,
    /// Limits on the claims of job files.
    pub caps: Caps,
    /// Limits of queues, by queue and resource name: `batch.memory = "64GiB"`.
    #[serde(with = "forms::limits")]
    #[cfg_attr(feature = "schema", schemars(with = "forms::limits::Texts"))]
    pub queues: BTreeMap<String, BTreeMap<String, i64>>,
    /// Limits of tenants, by tenant and resource name: `vision.gpu = 64`.
    #[serde(with = "forms::limits")]
    #[cfg_attr(feature = "schema", schemars(with = "forms::limits::Texts"))]
    pub tenants: BTreeMap<String, BTreeMap<String, i64>>,
    /// Whether the scheduler stops jobs that have nothing to gain, as far as their owners consent (`stop` and
    /// `stop_under_load` of a job; MLF-C of MLFS), under every engine. `mlfs` also does that by itself, and considers
    /// the load of servers; this setting considers only whether jobs wait for room.
    pub early_stop: bool,
    /// Whether jobs of one model share fitted speeds across tenants. If so, one tenant's reports, true or false, affect
    /// the jobs of others.
    pub share_models: bool,
    /// Wait after a manager's first refusal. It doubles with each consecutive one.
    #[serde(with = "crate::forms::span")]
    #[cfg_attr(feature = "schema", schemars(with = "crate::amount::DurationText"))]
    pub refusal_backoff: Span,
    /// Number of consecutive refusals after which the job's room goes to others until its wait ends; at least 1.
    #[serde(deserialize_with = "forms::positive")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub refusals: u32,
    /// Seed for engines with random numbers.
    #[serde(with = "forms::seed")]
    #[cfg_attr(feature = "schema", schemars(with = "u64"))]
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            engine: "optimus".into(),
            parameters: BTreeMap::new(),
            fallback: "fifo".into(),
            fallback_after: 3,
            stability: Stability::default(),
            shape: ShapeRules::default(),
            caps: Caps::default(),
            queues: BTreeMap::new(),
            tenants: BTreeMap::new(),
            early_stop: false,
            share_models: false,
            refusal_backoff: Span::seconds(5),
            refusals: 5,
            seed: 0,
        }
    }
}

/// A setting that isn't allowed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{key}: {problem}")]
pub struct SettingsError {
    /// The key, as in the TOML text.
    pub key: String,
    /// The value and what is allowed.
    pub problem: String,
}

impl SettingsError {
    /// Creates an error from a key and a problem.
    pub fn new(key: impl Into<String>, problem: impl ToString) -> Self {
        Self { key: key.into(), problem: problem.to_string() }
    }
}

impl Settings {
    /// Reads settings. Engine names and parameters are checked by the registry when the settings are applied.
    ///
    /// # Errors
    /// Names the key, the value and what is allowed.
    ///
    /// ```
    /// use trainmaster_core::Settings;
    /// let settings = Settings::from_toml("engine = \"drf\"\nstability = \"off\"").unwrap();
    /// assert!(!settings.stability.enabled);
    /// assert!(Settings::from_toml("engin = 1").unwrap_err().to_string().contains("engin"));
    /// ```
    pub fn from_toml(text: &str) -> Result<Self, SettingsError> {
        read_toml(text, LONGEST).map_err(|error| SettingsError::new("settings", error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_with_units() {
        let settings = Settings::from_toml(
            "engine = \"optimus\"\n[parameters]\ninterval = \"30s\"\njoint_steps = true\n\
             [stability]\nmin_run = \"10s\"\n[queues.batch]\ngpu = 4\nmemory = \"64GiB\"",
        )
        .unwrap();
        assert_eq!(settings.queues["batch"]["memory"], 64 * 1024);
        assert_eq!(settings.stability.min_run, Span::seconds(10));
        assert_eq!(settings.parameters["joint_steps"], Parameter::Flag(true));
    }

    #[test]
    fn the_former_name_of_oversubscribe_is_read() {
        let of = |text: &str| Settings::from_toml(text).map(|settings| settings.shape.oversubscribe);
        assert_eq!(of("[shape]\noverbook = 2.5"), of("[shape]\noversubscribe = 2.5"));
        assert_eq!(of("[shape]\noverbook = 2.5").unwrap(), 2500);
        assert!(of("[shape]\noverbook = 2.5\noversubscribe = 2.5").is_err(), "one of the two");
    }

    #[test]
    fn mistakes_are_named() {
        for (text, expected) in [
            ("stability = \"maybe\"", "\"maybe\" must be \"on\", \"off\" or a table"),
            ("[stability]\npayback = -1", "-1 must be 0 or more"),
            ("[stability]\nmin_rum = \"1s\"", "unknown field `min_rum`"),
            ("[queues.batch]\nmemory = 4", "queue or tenant batch: memory: \"4\""),
            ("[tenants.a]\n\"gpu:*\" = 4", "gpu:*: limit gpu, or one type"),
            ("[tenants.a]\ngpus = 1", "tenant a: gpus: the resource is called gpu"),
            ("[queues.b]\nmem = \"1GiB\"", "mem: the resource is called memory"),
            ("refusal_backoff = \"x\"", "refusal_backoff = \"x\""),
            ("[parameters]\na = []", "a number, true, false or a string"),
            ("[caps]\nutility = -1", "-1 must be 0 or more"),
            ("[shape]\noversubscribe = 0.5", "0.5 must be from 1 to 8"),
            ("fallback_after = 0", "0 must be at least 1"),
            ("refusals = -1", "expected a whole number of 0 or more"),
            ("refusal_backoff = 5", "expected a duration in quotes, such as \"20s\""),
        ] {
            let error = Settings::from_toml(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
