//! The scenario file.

use std::collections::BTreeMap;

use serde::Deserialize;
use thiserror::Error;
use toml::{Table, Value};
use trainmaster_core::{
    End, Mode,
    amount::{self, Unit},
    engines::REGISTRY,
};

/// A scenario, as in its file.
///
/// ```
/// let text = r#"
///     about = "one job on one server"
///     engines = ["fifo"]
///     settings = { stability = "off" }
///
///     [[server]]
///     name = "s0"
///     capacity = { cpu = 8, memory = "16GiB" }
///     devices = ["gpu", "gpu"]
///
///     [[step]]
///     at = "0s"
///     submit = { name = "a", mode = "allreduce", worker = { gpu = 1, max = 2 } }
///
///     [[step]]
///     at = "1s"
///     decide = true
/// "#;
/// let scenario = trainmaster_conformance::Scenario::from_toml(text).unwrap();
/// let transcript = trainmaster_conformance::play(&scenario, "fifo").unwrap();
/// assert!(transcript.text().contains("a: run 1w+0p"));
/// ```
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Its subject, in a sentence.
    pub about: String,
    /// The engines with golden decisions. Empty: all registered engines.
    #[serde(default)]
    pub engines: Vec<String>,
    /// Except these, which refuse its jobs.
    #[serde(default)]
    pub without: Vec<String>,
    /// As in a settings file, without the engine.
    #[serde(default)]
    pub settings: Table,
    /// Servers at the start.
    #[serde(default)]
    pub server: Vec<Server>,
    /// Steps in order of time.
    pub step: Vec<Step>,
}

/// A server.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Server {
    /// Its name.
    pub name: String,
    /// Name of its manager.
    #[serde(default = "manager")]
    pub manager: String,
    /// Amounts by resource, in text form.
    #[serde(default)]
    pub capacity: Table,
    /// One entry per device.
    #[serde(default)]
    pub devices: Vec<String>,
    /// Labels for placement constraints.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Whether it takes no new slots.
    #[serde(default)]
    pub draining: bool,
}

fn manager() -> String {
    "m0".into()
}

/// One step.
#[derive(Clone, Debug, Deserialize)]
pub struct Step {
    /// Time since the start.
    pub at: String,
    /// The event.
    #[serde(flatten)]
    pub action: Action,
}

/// The event of a step; a key of its table.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// `decide = true`: one decision.
    Decide(bool),
    /// A server arrives, returns or changes.
    Server(Server),
    /// A server leaves.
    ServerLeft(String),
    /// Foreign use of a server.
    Foreign {
        /// Name of the server.
        server: String,
        /// Amounts by resource.
        amounts: Table,
    },
    /// Content of a job file.
    Submit(Table),
    /// A job ends.
    End {
        /// Name of the job.
        job: String,
        /// Kind of the end.
        how: End,
    },
    /// A user holds or resumes a job.
    Hold {
        /// Name of the job.
        job: String,
        /// Whether it is held.
        held: bool,
    },
    /// A job reports an epoch.
    Report {
        /// Name of the job.
        job: String,
        /// Number of the epoch.
        epoch: u32,
        /// Mean loss of the epoch.
        loss: f64,
    },
    /// A job reports completed data chunks.
    Trained {
        /// Name of the job.
        job: String,
        /// Indices in the dataset.
        chunks: Vec<u32>,
    },
    /// The manager observes exactly the issued slots of this job.
    Seen(String),
    /// The manager observes no slots of this job.
    Gone(String),
    /// The manager refuses an issue.
    Refused {
        /// Name of the job.
        job: String,
        /// Cause of the refusal.
        cause: String,
    },
    /// The scheduling mode changes.
    Mode(Mode),
    /// Other settings, without the engine.
    Configure(Table),
    /// A manager's snapshot begins.
    SyncBegin(String),
    /// It is complete. Jobs and servers that it didn't mention are gone.
    SyncEnd(String),
}

/// An unreadable scenario.
#[derive(Debug, Error)]
pub enum ScenarioError {
    /// The text isn't TOML, or has an unknown key.
    #[error("{0}")]
    Syntax(#[from] toml::de::Error),
    /// An invalid quantity or time.
    #[error("{0}")]
    Amount(#[from] amount::AmountError),
}

impl Scenario {
    /// Parses a file's content.
    ///
    /// # Errors
    /// The line, the key and the problem.
    pub fn from_toml(text: &str) -> Result<Self, ScenarioError> {
        Ok(toml::from_str(text)?)
    }

    /// The engines with golden decisions.
    pub fn played_by(&self) -> Vec<String> {
        if !self.engines.is_empty() {
            return self.engines.clone();
        }
        let all = REGISTRY.iter().map(|entry| entry.name.to_owned());
        all.filter(|engine| !self.without.contains(engine)).collect()
    }
}

/// Amounts in sub-units, from their text form.
pub(crate) fn amounts(table: &Table) -> Result<BTreeMap<String, i64>, ScenarioError> {
    table
        .iter()
        .map(|(name, value)| {
            let text = match value {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            Ok((name.clone(), Unit::of(name).parse(&text)?))
        })
        .collect()
}
