//! Learnt policies: small networks that score what an engine may choose, trained by a host and evaluated here.
//!
//! A policy is an event like any other ([`Event::PolicySet`](crate::Event::PolicySet)): named by the hash of what it holds, in
//! the journal and its snapshots. It is refused, and the last good one stands, where it isn't what its hash says, was made for other
//! inputs than the engine gives it, or did worse than the engine's own heuristic in validation. An engine
//! without one decides by that heuristic.
//!
//! The network has one hidden layer of rectified units and one output. It is evaluated by loops over `f32` in a fixed order: the same
//! bits on every machine.

use serde::{Deserialize, Serialize};
use thiserror::Error;
use toml::{Table, Value};

use crate::text::read_toml;

/// The text format that is read and written.
const FORMAT: i64 = 1;
/// Weights beyond this could add up to something that isn't a number.
const LARGEST_WEIGHT: f32 = 1e6;
/// Inputs and hidden units that a network may have: a score is to take microseconds.
const MOST_INPUTS: usize = 4096;
const MOST_HIDDEN: usize = 256;
/// Bytes of a file: as many weights as there may be, each with all its digits.
const LONGEST: usize = 16 << 20;

/// What an engine shows its policy of each choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inputs {
    /// Grows whenever an input comes, goes or changes its meaning.
    pub version: u32,
    /// A name for each number, in order.
    pub names: &'static [&'static str],
}

/// A network with one hidden layer.
///
/// ```
/// use trainmaster_core::policy::Network;
///
/// // Two inputs, one hidden unit max(0, 1·a + 2·b − 1), and an output of 3 times that plus ½.
/// let network = Network::new(2, 1, vec![1.0, 2.0, -1.0, 3.0, 0.5]).unwrap();
/// assert_eq!(network.score(&[1.0, 1.0]), 6.5);
/// assert_eq!(network.score(&[0.0, 0.25]), 0.5);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Network {
    inputs: u32,
    hidden: u32,
    /// Each input's weights for all hidden units; their biases; their weights for the output, and its bias.
    weights: Vec<f32>,
}

impl Network {
    /// Weights that such a network has.
    pub const fn size(inputs: usize, hidden: usize) -> usize {
        inputs * hidden + hidden + hidden + 1
    }

    /// From its weights: each input's for all hidden units in turn, the hidden units' biases, their weights for the output, the
    /// output's bias.
    ///
    /// # Errors
    /// There are too many hidden units, too few or too many weights, or one isn't a number within a million.
    pub fn new(inputs: usize, hidden: usize, weights: Vec<f32>) -> Result<Self, PolicyError> {
        let size = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let network = Self { inputs: size(inputs), hidden: size(hidden), weights };
        network.check()?;
        Ok(network)
    }

    fn check(&self) -> Result<(), PolicyError> {
        let (inputs, hidden) = (self.inputs(), self.hidden());
        if !(1..=MOST_HIDDEN).contains(&hidden) || inputs > MOST_INPUTS {
            return Err(PolicyError::Size { inputs, hidden });
        }
        let (given, needed) = (self.weights.len(), Self::size(inputs, hidden));
        if given != needed {
            return Err(PolicyError::Weights { given, needed, inputs, hidden });
        }
        match self.weights.iter().position(|weight| !(-LARGEST_WEIGHT..=LARGEST_WEIGHT).contains(weight)) {
            Some(at) => Err(PolicyError::Weight { at, value: self.weights[at] }),
            None => Ok(()),
        }
    }

    /// Numbers that it is shown.
    pub fn inputs(&self) -> usize {
        self.inputs as usize
    }

    /// Units of its hidden layer.
    pub fn hidden(&self) -> usize {
        self.hidden as usize
    }

    /// All weights, in the order of [`new`](Self::new).
    pub fn weights(&self) -> &[f32] {
        &self.weights
    }

    /// What the hidden units get from the first of the inputs, to be [finished](Self::finish) with the others: where many
    /// choices have these in common. O(inputs given · hidden).
    pub fn begin(&self, first: &[f32]) -> Vec<f32> {
        let (inputs, hidden) = (self.inputs(), self.hidden());
        let mut sums = self.weights[inputs * hidden..(inputs + 1) * hidden].to_vec();
        self.add(&mut sums, first, 0);
        sums
    }

    fn add(&self, sums: &mut [f32], values: &[f32], from: usize) {
        let hidden = self.hidden();
        let rows = self.weights[from * hidden..self.inputs() * hidden].chunks_exact(hidden);
        for (value, row) in values.iter().zip(rows) {
            for (sum, weight) in sums.iter_mut().zip(row) {
                *sum += value * weight;
            }
        }
    }

    /// The score of a choice: `begun` with its first inputs, and the rest of them. O(inputs given · hidden).
    pub fn finish(&self, begun: &[f32], rest: &[f32]) -> f32 {
        let mut sums = begun.to_vec();
        self.add(&mut sums, rest, self.inputs() - rest.len());
        let (inputs, hidden) = (self.inputs(), self.hidden());
        let output = &self.weights[(inputs + 1) * hidden..];
        let terms = sums.iter().zip(output).map(|(sum, weight)| sum.max(0.0) * weight);
        terms.fold(0.0, |total, term| total + term) + output[hidden]
    }

    /// The score of a choice.
    pub fn score(&self, inputs: &[f32]) -> f32 {
        self.finish(&self.begin(inputs), &[])
    }
}

/// How a policy did on workloads that it wasn't trained on, beside the engine's heuristic on the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Validation {
    /// What was played.
    pub workload: String,
    /// How often, each time with another seed.
    pub episodes: u32,
    /// Mean reward of the policy.
    pub policy: f64,
    /// Mean reward of the heuristic.
    pub heuristic: f64,
}

/// A network for one engine, and how it did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Policy {
    engine: String,
    version: u32,
    network: Network,
    /// None while it is being trained.
    validation: Option<Validation>,
    hash: [u8; 32],
}

impl Policy {
    /// A policy for an engine that shows it inputs of this version.
    pub fn new(engine: &str, version: u32, network: Network, validation: Option<Validation>) -> Self {
        let mut policy = Self { engine: engine.into(), version, network, validation, hash: [0; 32] };
        policy.hash = policy.computed_hash();
        policy
    }

    /// Whose.
    pub fn engine(&self) -> &str {
        &self.engine
    }

    /// The version of the inputs it was made for.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// What scores.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// How it did; none while it is being trained.
    pub fn validation(&self) -> Option<&Validation> {
        self.validation.as_ref()
    }

    /// BLAKE3 of everything in it.
    pub fn hash(&self) -> [u8; 32] {
        self.hash
    }

    /// The first digits of the hash, to tell policies apart.
    pub fn id(&self) -> String {
        hex(&self.hash[..6])
    }

    fn computed_hash(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        let mut text = |text: &str| {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        };
        text(&self.engine);
        text(self.validation.as_ref().map_or("", |validation| &validation.workload));
        let (episodes, rewards) = self
            .validation
            .as_ref()
            .map_or((0, [0.0; 2]), |validation| (validation.episodes, [validation.policy, validation.heuristic]));
        for number in [self.version, self.network.inputs, self.network.hidden, episodes] {
            hasher.update(&number.to_le_bytes());
        }
        for reward in rewards {
            hasher.update(&reward.to_bits().to_le_bytes());
        }
        for weight in &self.network.weights {
            hasher.update(&weight.to_bits().to_le_bytes());
        }
        *hasher.finalize().as_bytes()
    }

    /// Whether it can be used where these inputs are shown.
    pub fn suits(&self, inputs: &Inputs) -> bool {
        self.version == inputs.version && self.network.inputs() == inputs.names.len()
    }

    /// Whether it may decide for an engine with these inputs.
    ///
    /// # Errors
    /// What is wrong with it, with the numbers.
    pub fn check(&self, inputs: &Inputs) -> Result<(), PolicyError> {
        self.network.check()?;
        let (given, wanted) = (self.version, inputs.version);
        if given != wanted {
            return Err(PolicyError::Version { given, wanted });
        }
        let (given, wanted) = (self.network.inputs(), inputs.names.len());
        if given != wanted {
            return Err(PolicyError::Inputs { given, wanted });
        }
        let computed = self.computed_hash();
        if computed != self.hash {
            return Err(PolicyError::Hash { given: hex(&self.hash), computed: hex(&computed) });
        }
        match &self.validation {
            // What isn't finite, or comes of no episode, says nothing.
            Some(Validation { policy, heuristic, episodes, .. })
                if !policy.is_finite() || !heuristic.is_finite() || policy < heuristic || *episodes == 0 =>
            {
                Err(PolicyError::Worse { policy: *policy, heuristic: *heuristic, episodes: *episodes })
            }
            _ => Ok(()),
        }
    }

    /// As a file. [`from_toml`](Self::from_toml) reads the same again, to the bit.
    pub fn to_toml(&self) -> String {
        let mut text = format!(
            "format = {FORMAT}\nengine = {:?}\nversion = {}\ninputs = {}\nhidden = {}\nhash = {:?}\n",
            self.engine,
            self.version,
            self.network.inputs,
            self.network.hidden,
            hex(&self.hash)
        );
        text.push_str("weights = [\n");
        for row in self.network.weights.chunks(8) {
            let numbers: Vec<String> = row.iter().map(|weight| format!("{weight:?}")).collect();
            text.push_str(&format!("    {},\n", numbers.join(", ")));
        }
        text.push_str("]\n");
        if let Some(Validation { workload, episodes, policy, heuristic }) = &self.validation {
            text.push_str(&format!(
                "\n[validation]\nworkload = {workload:?}\nepisodes = {episodes}\npolicy = {policy:?}\nheuristic = {heuristic:?}\n"
            ));
        }
        text
    }

    /// From a file. Whether it may decide is [checked](Self::check) where it is set.
    ///
    /// # Errors
    /// The text isn't such a file, or what it holds isn't what its hash says.
    pub fn from_toml(text: &str) -> Result<Self, PolicyError> {
        let unreadable = |problem: String| PolicyError::Unreadable(problem);
        let table: Table = read_toml(text, LONGEST).map_err(|error| unreadable(error.brief()))?;
        let format = table.get("format").and_then(Value::as_integer);
        if format != Some(FORMAT) {
            let given = format.map_or("none".to_owned(), |format| format.to_string());
            return Err(unreadable(format!("format: {given} must be {FORMAT}")));
        }
        let file: File = table.try_into().map_err(|error: toml::de::Error| unreadable(error.message().to_owned()))?;
        let network = Network { inputs: file.inputs, hidden: file.hidden, weights: file.weights };
        network.check()?;
        let policy = Self::new(&file.engine, file.version, network, file.validation);
        let computed = hex(&policy.hash);
        if computed != file.hash {
            return Err(PolicyError::Hash { given: file.hash, computed });
        }
        Ok(policy)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(rename = "format")]
    _format: i64,
    engine: String,
    version: u32,
    inputs: u32,
    hidden: u32,
    hash: String,
    weights: Vec<f32>,
    validation: Option<Validation>,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What an engine's heuristic chose, and what a policy would have been shown of all there was to choose from: to be imitated.
#[derive(Clone, Debug, PartialEq)]
pub struct Demonstration {
    /// The inputs of each choice.
    pub choices: Vec<Vec<f32>>,
    /// Which it took.
    pub chosen: usize,
}

/// A policy that may not decide.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum PolicyError {
    /// Its text isn't a policy.
    #[error("it can't be read: {0}")]
    Unreadable(String),
    /// The engine follows none.
    #[error("engine {engine:?} follows no policy; those that do are {known}")]
    Engine {
        /// Its name.
        engine: String,
        /// Those that do.
        known: String,
    },
    /// The policy is another engine's.
    #[error("it is of engine {given:?} and not of {wanted:?}")]
    Foreign {
        /// The policy's.
        given: String,
        /// The one it was to be set for.
        wanted: String,
    },
    /// It was made for inputs that mean something else.
    #[error("it was made for inputs of version {given}; this engine's are of version {wanted}")]
    Version {
        /// Its own.
        given: u32,
        /// The engine's.
        wanted: u32,
    },
    /// It was made for more or fewer inputs.
    #[error("it has {given} inputs and the engine {wanted}")]
    Inputs {
        /// Its own.
        given: usize,
        /// The engine's.
        wanted: usize,
    },
    /// A layer is too small or too large.
    #[error(
        "it has {inputs} inputs, of at most {MOST_INPUTS}, and {hidden} hidden units, which must be from 1 to {MOST_HIDDEN}"
    )]
    Size {
        /// Its inputs.
        inputs: usize,
        /// Its units.
        hidden: usize,
    },
    /// Weights are missing, or left over.
    #[error("it has {given} weights; {inputs} inputs and {hidden} hidden units need {needed}")]
    Weights {
        /// Its own.
        given: usize,
        /// What its layers need.
        needed: usize,
        /// Its inputs.
        inputs: usize,
        /// Its hidden units.
        hidden: usize,
    },
    /// A weight can't be computed with.
    #[error("weight {at} is {value}; it must be from -{LARGEST_WEIGHT} to {LARGEST_WEIGHT}")]
    Weight {
        /// Its place.
        at: usize,
        /// Its value.
        value: f32,
    },
    /// It isn't what its hash says: spoilt on its way.
    #[error("it says that its hash is {given}, and its hash is {computed}")]
    Hash {
        /// What it says.
        given: String,
        /// What it is.
        computed: String,
    },
    /// The heuristic does better.
    #[error("its reward in {episodes} episodes of validation is {policy:.4}, less than the heuristic's {heuristic:.4}")]
    Worse {
        /// Its own mean reward.
        policy: f64,
        /// The heuristic's.
        heuristic: f64,
        /// How many of each.
        episodes: u32,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    const INPUTS: Inputs = Inputs { version: 3, names: &["a", "b"] };

    fn policy(validation: Option<Validation>) -> Policy {
        let weights = vec![0.1, -2.5, 1.0 / 3.0, 4e-9, 0.0, 1.0, 2.0, -0.125, 7.0];
        Policy::new("mlfs", 3, Network::new(2, 2, weights).unwrap(), validation)
    }

    fn validated(policy: f64, heuristic: f64) -> Option<Validation> {
        Some(Validation { workload: "mlfs".into(), episodes: 4, policy, heuristic })
    }

    #[test]
    fn a_score_is_what_the_hand_computes() {
        let network = policy(None).network;
        // Hidden: 0.1·2 + ⅓·3 + 0 = 1.2 and −2.5·2 + 4e-9·3 + 1 < 0; output 2 · 1.2 + 7.
        assert!((network.score(&[2.0, 3.0]) - 9.4).abs() < 1e-6);
        // In two parts it is the same to the bit.
        assert_eq!(network.finish(&network.begin(&[2.0]), &[3.0]), network.score(&[2.0, 3.0]));
    }

    #[test]
    fn a_file_gives_the_same_policy_again() {
        for policy in [policy(None), policy(validated(1.7, 1.6))] {
            let text = policy.to_toml();
            let read = Policy::from_toml(&text).unwrap();
            assert_eq!(read, policy, "{text}");
            read.check(&INPUTS).unwrap();
        }
    }

    #[test]
    fn what_may_not_decide_is_refused_with_the_numbers() {
        let good = policy(validated(1.7, 1.6));
        let text = good.to_toml();
        let spoilt = text.replace("-2.5", "-2.4");
        assert!(matches!(Policy::from_toml(&spoilt), Err(PolicyError::Hash { .. })));
        assert!(matches!(Policy::from_toml(&text.replace("7.0", "nan")), Err(PolicyError::Weight { at: 8, .. })));
        assert!(matches!(
            Policy::from_toml(&text.replace("-2.5, ", "")),
            Err(PolicyError::Weights { given: 8, needed: 9, .. })
        ));
        for (from, to, problem) in [
            ("format = 1", "format = 2", "format: 2 must be 1"),
            ("format = 1", "", "format: none"),
            ("engine", "motor", "unknown field `motor`"),
            ("hidden = 2", "hidden = 0", "from 1 to 256"),
            ("weights = [", "weights = ", "it can't be read"),
        ] {
            let error = Policy::from_toml(&text.replace(from, to)).unwrap_err().to_string();
            assert!(error.contains(problem), "{to}: {error}");
        }
        let version = Inputs { version: 4, ..INPUTS };
        assert_eq!(good.check(&version), Err(PolicyError::Version { given: 3, wanted: 4 }));
        let more = Inputs { version: 3, names: &["a", "b", "c"] };
        assert_eq!(good.check(&more), Err(PolicyError::Inputs { given: 2, wanted: 3 }));
        let worse = policy(validated(1.59, 1.6)).check(&INPUTS).unwrap_err();
        assert_eq!(
            worse.to_string(),
            "its reward in 4 episodes of validation is 1.5900, less than the heuristic's 1.6000"
        );
        assert!(policy(validated(f64::NAN, 1.6)).check(&INPUTS).is_err());
        let mut changed = good;
        changed.network.weights[0] = 0.2;
        assert!(matches!(changed.check(&INPUTS), Err(PolicyError::Hash { .. })));
    }
}
