//! Conversion between YARN's resources and the core's.

use std::collections::{BTreeMap, HashMap};

use trainmaster_core::JobSpec;

use crate::load::{Load, part};

const MEMORY: &str = "memory-mb";
const VCORES: &str = "vcores";
const GPU: &str = "yarn.io/gpu";
/// Names with another meaning in the core.
const TAKEN: [&str; 5] = ["gpu", "cpu", "memory", "disk", "bandwidth"];
/// Resources that YARN doesn't count.
const UNCOUNTED: [&str; 2] = ["disk", "bandwidth"];
const WHOLE: i64 = 1000;
/// Maximum amount, more than any node has. In thousandths it is the core's maximum.
const MOST: i64 = 1_000_000_000;

/// Converts YARN's amounts to the core's names and sub-units. Invalid amounts are left out and reported.
pub(crate) fn read(
    of: &str,
    amounts: &HashMap<String, i64>,
    mut complain: impl FnMut(String),
) -> BTreeMap<String, i64> {
    let mut read = BTreeMap::new();
    for (name, &amount) in amounts {
        let Some((known, scale)) = known(name) else { continue };
        if (0..=MOST).contains(&amount) {
            read.insert(known.to_owned(), amount * scale);
        } else {
            complain(format!("{of}: {name} = {amount} is ignored; allowed are 0 to {MOST}"));
        }
    }
    read
}

/// The used parts of a node. Unknown and invalid figures are left out.
pub(crate) fn load(used: &HashMap<String, f64>, capacity: &HashMap<String, i64>) -> Load {
    let of = |(yarns, name): (&str, _)| Some((name, part(*used.get(yarns)?, *capacity.get(yarns)? as f64)?));
    Load { resources: [(MEMORY, "memory"), (VCORES, "cpu")].into_iter().filter_map(of).collect(), ..Load::default() }
}

/// The core's name of a resource, and its number of sub-units in YARN's unit.
fn known(name: &str) -> Option<(&str, i64)> {
    match name {
        MEMORY => Some(("memory", 1)),
        VCORES => Some(("cpu", WHOLE)),
        GPU => Some(("gpu", WHOLE)),
        _ if TAKEN.contains(&name) || name.starts_with("gpu:") || name.is_empty() => None,
        _ => Some((name, WHOLE)),
    }
}

/// The request for a container with this demand, by YARN's names.
pub(crate) fn request(demand: &BTreeMap<String, i64>) -> HashMap<String, i64> {
    let asked = demand.iter().filter(|(name, amount)| **amount > 0 && !UNCOUNTED.contains(&name.as_str()));
    asked
        .map(|(name, amount)| match name.as_str() {
            "memory" => (MEMORY.to_owned(), *amount),
            "cpu" => (VCORES.to_owned(), amount / WHOLE),
            "gpu" => (GPU.to_owned(), amount / WHOLE),
            _ => (name.clone(), amount / WHOLE),
        })
        .collect()
}

/// Checks that each slot of a job fits in one container. `largest` is the maximum container, by YARN's names.
///
/// # Errors
/// The error names the excessive amount and the maximum.
pub(crate) fn check_size(spec: &JobSpec, largest: &HashMap<String, i64>) -> Result<(), String> {
    let roles = [("worker", Some(&spec.worker)), ("parameter server", spec.server.as_ref())];
    for (name, role) in roles.into_iter().filter_map(|(name, role)| Some((name, role?))) {
        let asked: BTreeMap<_, _> = request(&role.demand).into_iter().collect();
        for (resource, amount) in asked {
            if let Some(most) = largest.get(&resource).filter(|most| amount > **most) {
                return Err(format!(
                    "a {name} needs {resource} {amount} in one container; the largest has {most} \
                     (yarn.scheduler.maximum-allocation-mb, -vcores and its like)"
                ));
            }
        }
    }
    Ok(())
}

/// Checks that containers can have exactly this demand.
///
/// # Errors
/// The error names the invalid amount and the allowed ones.
pub(crate) fn check(role: &str, demand: &BTreeMap<String, i64>) -> Result<(), String> {
    for (name, amount) in demand {
        if name.starts_with("gpu:") && name.contains(['|', '*']) {
            return Err(format!("{role}.\"{name}\": YARN counts GPUs of all types as one; write gpu"));
        }
        if let Some(kind) = name.strip_prefix("gpu:") {
            return Err(format!(
                "{role}.\"{name}\": YARN counts GPUs of all types as one; write gpu, and ask for {kind:?} by a node \
                 attribute in constraints.labels"
            ));
        }
        let in_thousandths = name != "memory" && !UNCOUNTED.contains(&name.as_str());
        if in_thousandths && amount % WHOLE != 0 {
            let amount = *amount as f64 / WHOLE as f64;
            return Err(format!("{role}.{name}: {amount} must be a whole number: YARN counts no fractions of it"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amounts(pairs: &[(&str, i64)]) -> BTreeMap<String, i64> {
        pairs.iter().map(|(name, amount)| ((*name).to_owned(), *amount)).collect()
    }

    fn yarn(pairs: &[(&str, i64)]) -> HashMap<String, i64> {
        amounts(pairs).into_iter().collect()
    }

    #[test]
    fn yarns_resources_have_the_cores_names_and_units() {
        let node = [(MEMORY, 8192), (VCORES, 16), (GPU, 4), ("yarn.io/fpga", 2), ("gpu", 9), ("disk", 5), ("", 1)];
        let read_well = read("a", &yarn(&node), |complaint| panic!("{complaint}"));
        assert_eq!(read_well, amounts(&[("cpu", 16_000), ("gpu", 4000), ("memory", 8192), ("yarn.io/fpga", 2000)]));
        let mut complaints = Vec::new();
        let odd = yarn(&[(MEMORY, -1), (VCORES, i64::MAX), (GPU, 1)]);
        assert_eq!(read("a", &odd, |complaint| complaints.push(complaint)), amounts(&[("gpu", 1000)]));
        complaints.sort();
        assert_eq!(complaints[0], "a: memory-mb = -1 is ignored; allowed are 0 to 1000000000");
        assert_eq!(complaints.len(), 2);
    }

    #[test]
    fn a_load_is_what_makes_sense_of_the_used_amounts() {
        let parts = |memory: f64, vcores: f64| {
            let used = [(MEMORY, memory), (VCORES, vcores), (GPU, 1.0)].map(|(name, used)| (name.to_owned(), used));
            let Load { resources, devices } = load(&used.into(), &yarn(&[(MEMORY, 8192), (VCORES, 16)]));
            assert!(devices.is_empty(), "YARN doesn't measure GPUs");
            (resources.get("memory").copied(), resources.get("cpu").copied())
        };
        assert_eq!(parts(2048.0, 4.0), (Some(0.25), Some(0.25)));
        assert_eq!(parts(1e300, f64::INFINITY), (Some(1.0), Some(1.0)));
        assert_eq!(parts(-1.0, f64::NAN), (None, None));
        assert_eq!(load(&HashMap::new(), &yarn(&[(MEMORY, 8192)])), Load::default());
        assert_eq!(load(&[(MEMORY.to_owned(), 1.0)].into(), &yarn(&[(MEMORY, 0)])), Load::default());
        assert_eq!(load(&[(MEMORY.to_owned(), 1.0)].into(), &HashMap::new()), Load::default());
    }

    #[test]
    fn demands_are_asked_for_in_whole_units() {
        let demand = amounts(&[("cpu", 2000), ("gpu", 1000), ("memory", 1500), ("yarn.io/fpga", 3000), ("disk", 9)]);
        check("worker", &demand).unwrap();
        let expected = yarn(&[(VCORES, 2), (GPU, 1), (MEMORY, 1500), ("yarn.io/fpga", 3)]);
        assert_eq!(request(&demand), expected);
        for (name, amount, parts) in [
            ("gpu", 500, ["worker.gpu", "0.5"]),
            ("cpu", 1500, ["worker.cpu", "1.5"]),
            ("gpu:a100", 1000, ["a100", "labels"]),
            ("gpu:*", 1000, ["gpu:*", "write gpu"]),
        ] {
            let error = check("worker", &amounts(&[(name, amount)])).unwrap_err();
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        }
    }
}
