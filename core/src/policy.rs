//! Learnt policies: small networks that score an engine's choices. A host trains them, and the core evaluates them.
//!
//! A policy is set by an event ([`Event::PolicySet`](crate::Event::PolicySet)). The journal and its snapshots contain
//! it, and the hash of its content is its name. A policy is refused if it doesn't match its hash, if it was made for
//! other inputs than the engine's, or if its validation result is worse than that of the engine's heuristic. Then the
//! last valid one stays in force. An engine without a policy uses its heuristic.
//!
//! The network has one hidden layer of rectified linear units and one output. It is evaluated by loops over `f32` in a
//! fixed order, so the result is bit-identical on all machines.

use serde::{Deserialize, Serialize};
use thiserror::Error;
use toml::{Table, Value};

use crate::text::{hex, read_toml};

/// Version of the text format.
const FORMAT: i64 = 1;
/// Larger weights could add up to a value that isn't finite.
const LARGEST_WEIGHT: f32 = 1e6;
/// Maximum numbers of inputs and hidden units, so that a score takes microseconds.
const MOST_INPUTS: usize = 4096;
const MOST_HIDDEN: usize = 256;
/// Maximum bytes of a file: the maximum number of weights with all digits.
pub const LONGEST_FILE: usize = 16 << 20;

/// The inputs of an engine's policy for each choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inputs {
    /// Increases whenever an input is added, removed or redefined.
    pub version: u32,
    /// Names of the inputs, in order.
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
    /// Each input's weights for all hidden units, the biases of the hidden units, their weights for the output, and its
    /// bias.
    weights: Vec<f32>,
}

impl Network {
    /// Number of weights of such a network.
    pub const fn size(inputs: usize, hidden: usize) -> usize {
        inputs * hidden + hidden + hidden + 1
    }

    /// Creates a network from its weights: each input's for all hidden units in turn, the biases of the hidden units,
    /// their weights for the output, and the output's bias.
    ///
    /// # Errors
    /// There are too many hidden units, too few or too many weights, or a weight isn't a number within a million.
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

    /// Number of inputs.
    pub fn inputs(&self) -> usize {
        self.inputs as usize
    }

    /// Number of hidden units.
    pub fn hidden(&self) -> usize {
        self.hidden as usize
    }

    /// All weights, in the order of [`new`](Self::new).
    pub fn weights(&self) -> &[f32] {
        &self.weights
    }

    /// Partial sums of the hidden units over the first inputs, for [`finish`](Self::finish) with the others. It saves
    /// work if many choices have these inputs in common. O(given inputs · hidden).
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

    /// Score of a choice from `begun`, with its first inputs, and the remaining inputs. O(given inputs · hidden).
    pub fn finish(&self, begun: &[f32], rest: &[f32]) -> f32 {
        let mut sums = begun.to_vec();
        self.add(&mut sums, rest, self.inputs() - rest.len());
        let (inputs, hidden) = (self.inputs(), self.hidden());
        let output = &self.weights[(inputs + 1) * hidden..];
        let terms = sums.iter().zip(output).map(|(sum, weight)| sum.max(0.0) * weight);
        terms.fold(0.0, |total, term| total + term) + output[hidden]
    }

    /// Score of a choice.
    pub fn score(&self, inputs: &[f32]) -> f32 {
        self.finish(&self.begin(inputs), &[])
    }
}

/// Results of a policy on workloads that weren't used in training, beside those of the engine's heuristic.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Validation {
    /// Description of the workload.
    pub workload: String,
    /// Number of episodes, each with its own seed.
    pub episodes: u32,
    /// Mean reward of the policy.
    pub policy: f64,
    /// Mean reward of the heuristic.
    pub heuristic: f64,
}

/// A network for one engine, and its validation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Policy {
    engine: String,
    version: u32,
    network: Network,
    /// None during training.
    validation: Option<Validation>,
    hash: [u8; 32],
}

impl Policy {
    /// Creates a policy for an engine with this version of inputs.
    pub fn new(engine: &str, version: u32, network: Network, validation: Option<Validation>) -> Self {
        let mut policy = Self { engine: engine.into(), version, network, validation, hash: [0; 32] };
        policy.hash = policy.computed_hash();
        policy
    }

    /// Name of the engine.
    pub fn engine(&self) -> &str {
        &self.engine
    }

    /// Version of the inputs.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The network.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// The validation result. None during training.
    pub fn validation(&self) -> Option<&Validation> {
        self.validation.as_ref()
    }

    /// BLAKE3 hash of the whole content.
    pub fn hash(&self) -> [u8; 32] {
        self.hash
    }

    /// The first digits of the hash, as a short identifier.
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

    /// Whether the policy was made for these inputs.
    pub fn suits(&self, inputs: &Inputs) -> bool {
        self.version == inputs.version && self.network.inputs() == inputs.names.len()
    }

    /// Checks whether the policy may decide for an engine with these inputs.
    ///
    /// # Errors
    /// The first mismatch, with its numbers.
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
            // Values that aren't finite, or without an episode, are no evidence.
            Some(Validation { policy, heuristic, episodes, .. })
                if !policy.is_finite() || !heuristic.is_finite() || policy < heuristic || *episodes == 0 =>
            {
                Err(PolicyError::Worse { policy: *policy, heuristic: *heuristic, episodes: *episodes })
            }
            _ => Ok(()),
        }
    }

    /// Formats the policy as a file. [`from_toml`](Self::from_toml) restores it bit by bit.
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
                "\n[validation]\nworkload = {workload:?}\nepisodes = {episodes}\npolicy = {policy:?}\n\
                 heuristic = {heuristic:?}\n"
            ));
        }
        text
    }

    /// Parses a file. The event that sets the policy [checks](Self::check) it.
    ///
    /// # Errors
    /// The text isn't a policy file, or its content doesn't match its hash.
    pub fn from_toml(text: &str) -> Result<Self, PolicyError> {
        let unreadable = |problem: String| PolicyError::Unreadable(problem);
        let table: Table = read_toml(text, LONGEST_FILE).map_err(|error| unreadable(error.brief()))?;
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

/// A choice of an engine's heuristic, with the policy inputs of all alternatives, for imitation.
#[derive(Clone, Debug, PartialEq)]
pub struct Demonstration {
    /// Inputs of each alternative.
    pub choices: Vec<Vec<f32>>,
    /// Index of the heuristic's choice.
    pub chosen: usize,
}

/// An invalid policy.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum PolicyError {
    /// The text isn't a policy.
    #[error("it can't be read: {0}")]
    Unreadable(String),
    /// The engine doesn't use policies.
    #[error("engine {engine:?} follows no policy; those that do are {known}")]
    Engine {
        /// Name of the engine.
        engine: String,
        /// Engines that use policies.
        known: String,
    },
    /// The policy is for another engine.
    #[error("it is of engine {given:?} and not of {wanted:?}")]
    Foreign {
        /// Engine of the policy.
        given: String,
        /// The requested engine.
        wanted: String,
    },
    /// The policy was made for inputs with another meaning.
    #[error("it was made for inputs of version {given}; this engine's are of version {wanted}")]
    Version {
        /// Version of the policy.
        given: u32,
        /// Version of the engine.
        wanted: u32,
    },
    /// The policy was made for another number of inputs.
    #[error("it has {given} inputs and the engine {wanted}")]
    Inputs {
        /// Inputs of the policy.
        given: usize,
        /// Inputs of the engine.
        wanted: usize,
    },
    /// A layer is too small or too large.
    #[error(
        "it has {inputs} inputs, of at most {MOST_INPUTS}, and {hidden} hidden units, which must be from 1 to \
         {MOST_HIDDEN}"
    )]
    Size {
        /// Number of inputs.
        inputs: usize,
        /// Number of hidden units.
        hidden: usize,
    },
    /// The number of weights is wrong.
    #[error("it has {given} weights; {inputs} inputs and {hidden} hidden units need {needed}")]
    Weights {
        /// Number of weights.
        given: usize,
        /// Number of weights that the layers need.
        needed: usize,
        /// Number of inputs.
        inputs: usize,
        /// Number of hidden units.
        hidden: usize,
    },
    /// A weight is out of range.
    #[error("weight {at} is {value}; it must be from -{LARGEST_WEIGHT} to {LARGEST_WEIGHT}")]
    Weight {
        /// Index of the weight.
        at: usize,
        /// Its value.
        value: f32,
    },
    /// The content doesn't match the hash.
    #[error("it says that its hash is {given}, and its hash is {computed}")]
    Hash {
        /// The hash in the file.
        given: String,
        /// The computed hash.
        computed: String,
    },
    /// The validation result is worse than the heuristic's.
    #[error("its reward in {episodes} episodes of validation is {policy:.4}, less than the heuristic's {heuristic:.4}")]
    Worse {
        /// Mean reward of the policy.
        policy: f64,
        /// Mean reward of the heuristic.
        heuristic: f64,
        /// Number of episodes of each.
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
    fn a_score_equals_a_manual_computation() {
        let network = policy(None).network;
        // Hidden: 0.1·2 + ⅓·3 + 0 = 1.2 and −2.5·2 + 4e-9·3 + 1 < 0; output 2 · 1.2 + 7.
        assert!((network.score(&[2.0, 3.0]) - 9.4).abs() < 1e-6);
        // The result in two parts is bit-identical.
        assert_eq!(network.finish(&network.begin(&[2.0]), &[3.0]), network.score(&[2.0, 3.0]));
    }

    #[test]
    fn a_file_restores_the_same_policy() {
        for policy in [policy(None), policy(validated(1.7, 1.6))] {
            let text = policy.to_toml();
            let read = Policy::from_toml(&text).unwrap();
            assert_eq!(read, policy, "{text}");
            read.check(&INPUTS).unwrap();
        }
    }

    #[test]
    fn invalid_policies_are_refused_with_numbers() {
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
