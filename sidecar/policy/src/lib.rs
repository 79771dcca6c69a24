//! Files of learnt policies: those of the product, and a site's own.
//!
//! If a file is missing, damaged, of another version, or worse than the heuristic in its own validation, there is a
//! warning, and the engine uses its heuristic. A missing policy is never an error.

#[cfg(feature = "train")]
pub mod train;

use std::path::Path;

use trainmaster_core::{Policy, engines::policy_inputs, policy::LONGEST_FILE};
use trainmaster_host::bounded::read_text;

/// The policies of this version, as written by `trainmaster train-policy`; see README.md beside them.
const SHIPPED: &[(&str, &str)] =
    &[("mlfs.toml", include_str!("../mlfs.toml")), ("rl.toml", include_str!("../rl.toml"))];

/// The policies for engines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// The shipped policies.
    #[default]
    Shipped,
    /// None: engines use their heuristics.
    None,
    /// The policy in a file. Engines that it is not for use their heuristics.
    File(std::path::PathBuf),
}

impl From<&str> for Choice {
    fn from(text: &str) -> Self {
        match text {
            "shipped" => Self::Shipped,
            "none" => Self::None,
            file => Self::File(file.into()),
        }
    }
}

impl std::fmt::Display for Choice {
    /// The form that [`From<&str>`] reads.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Shipped => f.write_str("shipped"),
            Self::None => f.write_str("none"),
            Self::File(file) => file.display().fmt(f),
        }
    }
}

/// Policies, and warnings about the others.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Loaded {
    /// At most one per engine.
    pub policies: Vec<Policy>,
    /// A line for each unusable policy, with its reason.
    pub warnings: Vec<String>,
}

impl Choice {
    /// Reads and checks the policies.
    ///
    /// ```
    /// use trainmaster_policy::Choice;
    ///
    /// assert!(Choice::from("shipped").load().warnings.is_empty());
    /// let missing = Choice::from("/nowhere.toml").load();
    /// assert!(missing.policies.is_empty() && missing.warnings[0].contains("/nowhere.toml"));
    /// ```
    pub fn load(&self) -> Loaded {
        let mut loaded = Loaded::default();
        let mut take = |name: &str, policy: Result<Policy, String>| match policy {
            Ok(policy) => loaded.policies.push(policy),
            Err(problem) => loaded
                .warnings
                .push(format!("policy {name} can't be used: {problem}; engines decide by their heuristics")),
        };
        match self {
            Self::None => {}
            Self::Shipped => SHIPPED.iter().for_each(|(name, text)| take(name, read(text))),
            Self::File(path) => take(&path.display().to_string(), read_file(path)),
        }
        loaded
    }
}

fn read_file(path: &Path) -> Result<Policy, String> {
    let text = read_text(path, LONGEST_FILE as u64).map_err(|error| error.to_string())?;
    read(&text)
}

/// Parses and checks a policy.
fn read(text: &str) -> Result<Policy, String> {
    let policy = Policy::from_toml(text).map_err(|error| error.to_string())?;
    let inputs = policy_inputs(policy.engine()).map_err(|error| error.to_string())?;
    policy.check(inputs).map_err(|error| error.to_string())?;
    if policy.validation().is_none() {
        return Err("it was never validated".into());
    }
    Ok(policy)
}

#[cfg(test)]
mod tests {
    use trainmaster_core::policy::{Network, Validation};

    use std::fs;

    use super::*;

    fn policy(version: u32, rewards: Option<(f64, f64)>) -> Policy {
        let inputs = policy_inputs("mlfs").unwrap().names.len();
        let network = Network::new(inputs, 2, vec![0.25; Network::size(inputs, 2)]).unwrap();
        let validation =
            rewards.map(|(policy, heuristic)| Validation { workload: "mlfs".into(), episodes: 3, policy, heuristic });
        Policy::new("mlfs", version, network, validation)
    }

    #[test]
    fn shipped_policies_are_usable_and_small() {
        let loaded = Choice::Shipped.load();
        assert_eq!(loaded.warnings, Vec::<String>::new());
        assert_eq!(loaded.policies.iter().map(Policy::engine).collect::<Vec<_>>(), ["mlfs", "rl"]);
        assert!(SHIPPED.iter().all(|(_, text)| text.len() < 100_000));
        assert_eq!(Choice::None.load(), Loaded::default());
    }

    #[test]
    fn unusable_policies_are_reported_and_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("p.toml");
        let version = policy_inputs("mlfs").unwrap().version;
        let good = policy(version, Some((1.7, 1.6)));
        let load = |text: &str| {
            fs::write(&file, text).unwrap();
            Choice::from(file.to_str().unwrap()).load()
        };
        let loaded = load(&good.to_toml());
        assert_eq!((loaded.policies, loaded.warnings.len()), (vec![good.clone()], 0));
        for (text, problem) in [
            (good.to_toml().replacen("0.25", "0.5", 1), "its hash is"),
            (policy(version + 1, Some((1.7, 1.6))).to_toml(), "inputs of version"),
            (policy(version, Some((1.5, 1.6))).to_toml(), "less than the heuristic's 1.6"),
            (policy(version, None).to_toml(), "never validated"),
            (good.to_toml().replacen("mlfs", "fifo", 1), "its hash is"),
            ("\0".into(), "can't be read"),
        ] {
            let loaded = load(&text);
            assert!(loaded.policies.is_empty());
            assert!(loaded.warnings[0].contains(problem), "{problem}: {}", loaded.warnings[0]);
        }
        fs::write(&file, [0xff, 0xfe]).unwrap();
        assert_eq!(Choice::from(file.to_str().unwrap()).load().warnings.len(), 1);
        fs::remove_file(&file).unwrap();
        let missing = Choice::from(file.to_str().unwrap()).load().warnings;
        assert!(missing[0].contains("p.toml") && missing[0].contains("heuristics"), "{missing:?}");
    }
}
