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
    /// What it shows, in a sentence.
    pub about: String,
    /// The engines it has golden decisions for; all of the registry where none is named.
    #[serde(default)]
    pub engines: Vec<String>,
    /// But those that don't take its jobs.
    #[serde(default)]
    pub without: Vec<String>,
    /// As in a settings file, without the engine.
    #[serde(default)]
    pub settings: Table,
    /// There from the start.
    #[serde(default)]
    pub server: Vec<Server>,
    /// In the order of time.
    pub step: Vec<Step>,
}

/// A server.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Server {
    /// Its name.
    pub name: String,
    /// Whose it is.
    #[serde(default = "manager")]
    pub manager: String,
    /// By resource, as people write it.
    #[serde(default)]
    pub capacity: Table,
    /// One by one.
    #[serde(default)]
    pub devices: Vec<String>,
    /// For placement constraints.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Takes nothing new.
    #[serde(default)]
    pub draining: bool,
}

fn manager() -> String {
    "m0".into()
}

/// Something happens.
#[derive(Clone, Debug, Deserialize)]
pub struct Step {
    /// When, from the start.
    pub at: String,
    /// What.
    #[serde(flatten)]
    pub action: Action,
}

/// What happens; a key of the step's table.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// `decide = true`: one decision.
    Decide(bool),
    /// A server comes, comes back or changes.
    Server(Server),
    /// It is gone.
    ServerLeft(String),
    /// Other work uses so much of a server.
    Foreign {
        /// Which.
        server: String,
        /// By resource.
        amounts: Table,
    },
    /// A job file's contents.
    Submit(Table),
    /// A job is over.
    End {
        /// Its name.
        job: String,
        /// How.
        how: End,
    },
    /// A person holds it, or lets it go on.
    Hold {
        /// Its name.
        job: String,
        /// Which of both.
        held: bool,
    },
    /// It reports an epoch.
    Report {
        /// Its name.
        job: String,
        /// Which epoch is done.
        epoch: u32,
        /// Its mean loss.
        loss: f64,
    },
    /// It reports data chunks that are trained to their end.
    Trained {
        /// Its name.
        job: String,
        /// By their places in the dataset.
        chunks: Vec<u32>,
    },
    /// The manager runs exactly what it was told to give this job.
    Seen(String),
    /// Nothing of it is left.
    Gone(String),
    /// The manager refuses what it was told.
    Refused {
        /// The job.
        job: String,
        /// Its words.
        cause: String,
    },
    /// Who is in charge.
    Mode(Mode),
    /// Other settings, without the engine.
    Configure(Table),
    /// A manager's snapshot begins.
    SyncBegin(String),
    /// It is complete; what wasn't mentioned is gone.
    SyncEnd(String),
}

/// A scenario that can't be read.
#[derive(Debug, Error)]
pub enum ScenarioError {
    /// Not TOML, or an unknown key.
    #[error("{0}")]
    Syntax(#[from] toml::de::Error),
    /// A quantity or time.
    #[error("{0}")]
    Amount(#[from] amount::AmountError),
}

impl Scenario {
    /// Reads a file's contents.
    ///
    /// # Errors
    /// Names the line, the key and what is wrong.
    pub fn from_toml(text: &str) -> Result<Self, ScenarioError> {
        Ok(toml::from_str(text)?)
    }

    /// The engines it has golden decisions for.
    pub fn played_by(&self) -> Vec<String> {
        if !self.engines.is_empty() {
            return self.engines.clone();
        }
        let all = REGISTRY.iter().map(|entry| entry.name.to_owned());
        all.filter(|engine| !self.without.contains(engine)).collect()
    }
}

/// Amounts as people write them, in sub-units.
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
