//! Gavel's file of measured speeds: JSON by GPU type and by model, batch and number of GPUs.

use std::{collections::BTreeMap, path::Path};

use serde::Deserialize;
use trainmaster_core::{JobSpec, text::shown};
use trainmaster_host::bounded::read;
use trainmaster_sim::workload::gavel::{Measured, TYPES};
use trainmaster_terminal::Failure;

/// Maximum bytes of a file: a hundred times Gavel's.
const LARGEST: u64 = 64 << 20;
/// Maximum number of models with a batch and a number of GPUs.
const MOST: usize = 10_000;
/// Maximum characters of a name in a message.
const SHOWN: usize = 64;
const SEVERAL: &str = "_unconsolidated";

/// The speeds of one entry. Those beside other models on the same GPU are ignored.
#[derive(Deserialize)]
struct Speeds {
    #[serde(rename = "null")]
    alone: f64,
}

/// Reads a file. Invalid entries are left out, and reported.
///
/// # Errors
/// The file can't be read, or isn't of this form.
pub(super) fn measured(path: &Path) -> Result<(Vec<Measured>, Vec<String>), Failure> {
    let file = path.display();
    let wrong = |problem: String| Failure::Usage(format!("{file}: {problem}"));
    let bytes = read(path, LARGEST).map_err(|error| wrong(format!("it can't be read: {error}")))?;
    let types: BTreeMap<String, BTreeMap<String, Speeds>> = serde_json::from_slice(&bytes).map_err(|error| {
        wrong(format!(
            "{error}; expected are steps per second as {{\"v100\": {{\"('LM (batch size 5)', 1)\": \
             {{\"null\": 109.2}}}}}}"
        ))
    })?;
    let known = |name: &str| TYPES.contains(&name.strip_suffix(SEVERAL).unwrap_or(name));
    if let Some(name) = types.keys().find(|name| !known(name)) {
        let name = shown(name, SHOWN);
        return Err(wrong(format!("the type \"{name}\" must be one of {}, or one with {SEVERAL}", TYPES.join(", "))));
    }
    if let Some(name) = types.values().find(|of| of.len() > MOST).and_then(|of| of.keys().next_back()) {
        let name = shown(name, SHOWN);
        return Err(wrong(format!("\"{name}\" is beyond the {MOST} entries that a type may have")));
    }
    let (mut found, mut left_out) = (BTreeMap::<&str, Measured>::new(), Vec::new());
    for (kind, entries) in &types {
        let at = TYPES.iter().position(|name| Some(*name) == kind.strip_suffix(SEVERAL).or(Some(kind)));
        let (Some(at), several) = (at, kind.ends_with(SEVERAL)) else { continue };
        for (entry, speeds) in entries {
            if !(0.0..1e6).contains(&speeds.alone) {
                let entry = shown(entry, SHOWN);
                left_out.push(format!("{kind}, {entry}: {} must be from 0 to 10^6 steps per second", speeds.alone));
                continue;
            }
            if !found.contains_key(&**entry) {
                match named(entry) {
                    Ok(new) => _ = found.insert(entry, new),
                    Err(problem) => {
                        left_out.push(format!("{kind}, {problem}"));
                        continue;
                    }
                }
            }
            let to = &mut found.get_mut(&**entry).expect("inserted above").speeds[at];
            *(if several { &mut to.1 } else { &mut to.0 }) = speeds.alone;
        }
    }
    Ok((found.into_values().collect(), left_out))
}

/// Reads `('ResNet-18 (batch size 16)', 2)`. A model without a batch has one example per step.
fn named(entry: &str) -> Result<Measured, String> {
    let wrong = || format!("\"{}\" must be like \"('ResNet-18 (batch size 16)', 2)\"", shown(entry, SHOWN));
    let inner = entry.strip_prefix("('").and_then(|rest| rest.strip_suffix(')')).ok_or_else(wrong)?;
    let (model, gpus) = inner.rsplit_once("', ").ok_or_else(wrong)?;
    let gpus = gpus.parse().ok().filter(|gpus| (1..=1000).contains(gpus)).ok_or_else(wrong)?;
    let (name, batch) = match model.strip_suffix(')').and_then(|rest| rest.rsplit_once(" (batch size ")) {
        Some((name, batch)) => {
            (name, batch.parse().ok().filter(|batch| (1..=1 << 30).contains(batch)).ok_or_else(wrong)?)
        }
        None => (model, 1),
    };
    let name = format!("{}-{batch}", name.to_lowercase().replace(' ', "-"));
    JobSpec::minimal(&name).validate().map_err(|error| format!("\"{}\": {}", shown(entry, SHOWN), error.problem))?;
    Ok(Measured { model: name, batch, gpus, speeds: Default::default() })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn of(text: &str) -> Result<(Vec<Measured>, Vec<String>), Failure> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("speeds.json");
        fs::write(&path, text).unwrap();
        measured(&path)
    }

    #[test]
    fn speeds_are_by_type_on_one_server_and_on_several() {
        let (found, left_out) = of(r#"{
            "v100": {"('LM (batch size 5)', 2)": {"null": 185.7, "('A3C', 1)": [1, 2]}, "('A3C', 1)": {"null": 7.2}},
            "v100_unconsolidated": {"('LM (batch size 5)', 2)": {"null": 40.4}},
            "k80": {"('A3C', 1)": {"null": -1.0}, "A3C": {"null": 1.0}}
        }"#)
        .unwrap();
        let lm = Measured { model: "lm-5".into(), batch: 5, gpus: 2, speeds: [(0.0, 0.0), (0.0, 0.0), (185.7, 40.4)] };
        let a3c = Measured { model: "a3c-1".into(), batch: 1, gpus: 1, speeds: [(0.0, 0.0), (0.0, 0.0), (7.2, 0.0)] };
        assert_eq!(found, [a3c, lm]);
        assert_eq!(left_out.len(), 2, "{left_out:?}");
        assert!(left_out[0].contains("-1") && left_out[1].contains("\"A3C\" must be like"), "{left_out:?}");
    }

    #[test]
    fn other_files_are_refused_with_what_is_wrong() {
        for (text, part) in [
            ("", "EOF"),
            (r#"{"h100": {}}"#, "\"h100\" must be one of k80, p100, v100"),
            (r#"{"v100": {"('A3C', 1)": 3}}"#, "expected are steps per second"),
            (&format!("{{\"v100\": {{\"('A3C', 1)\": {}", "[".repeat(100_000)), "expected are"),
        ] {
            let error = of(text).unwrap_err().to_string();
            assert!(error.contains(part), "{part:?} isn't in {error}");
        }
        let worst = format!("('{}', 1)", "x".repeat(100_000));
        let (found, left_out) = of(&format!("{{\"v100\": {{\"{worst}\": {{\"null\": 1.0}}}}}}")).unwrap();
        assert!(found.is_empty() && left_out.len() == 1 && left_out[0].len() < 500, "{}", left_out[0].len());
    }
}
