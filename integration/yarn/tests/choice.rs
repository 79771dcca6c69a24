//! Selection of the scenarios and engines that a real YARN can run.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, fs,
    path::{Path, PathBuf},
};

use toml::Table;
use trainmaster_conformance::{Action, Scenario};
use trainmaster_core::JobSpec;

/// Engines whose decisions depend only on the resources, not on time, speeds or losses. A scenario runs with the first
/// suitable one. DRF also resizes running jobs. Where idle GPUs stay with their job, that also holds for `edge`.
const ENGINES: [&str; 3] = ["drf", "fifo", "edge"];
/// The label of all YARN's nodes.
const KEPT: (&str, &str) = ("idle_gpus", "kept");
const COUNTED: [&str; 3] = ["cpu", "gpu", "memory"];

/// A scenario with one engine.
pub(crate) struct Play {
    name: String,
    pub(crate) engine: &'static str,
    pub(crate) scenario: Scenario,
}

impl fmt::Display for Play {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.name, self.engine)
    }
}

/// Folder of scenarios and golden files.
pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

/// All scenarios by name: how each one runs, or why it doesn't.
pub(crate) fn all() -> Vec<Result<Play, String>> {
    let files = fs::read_dir(folder().join("scenarios")).unwrap().map(|entry| entry.unwrap().path());
    let files: BTreeSet<PathBuf> = files.collect();
    files.iter().map(|path| choose(path)).collect()
}

fn choose(path: &Path) -> Result<Play, String> {
    let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
    let scenario = Scenario::from_toml(&fs::read_to_string(path).unwrap()).unwrap();
    let engines = scenario.played_by();
    let mut why = "its engines look at the clock, or at speeds or losses".to_owned();
    for engine in ENGINES.into_iter().filter(|engine| engines.iter().any(|own| own == engine)) {
        match objection(&name, &scenario, engine) {
            None => return Ok(Play { name, engine, scenario }),
            Some(objection) => why = objection,
        }
    }
    Err(format!("{name}: {why}"))
}

/// Why a real YARN can't run it.
fn objection(name: &str, scenario: &Scenario, engine: &str) -> Option<String> {
    let names: BTreeSet<&str> = scenario.server.iter().map(|server| server.name.as_str()).collect();
    let changed = scenario.step.iter().filter_map(|step| match &step.action {
        Action::Server(server) => Some(server),
        _ => None,
    });
    for server in scenario.server.iter().chain(changed) {
        if server.labels.iter().any(|(name, value)| (name.as_str(), value.as_str()) != KEPT) {
            return Some("labels: YARN's are a host's, and all nodes are this one".into());
        }
        if engine == "edge" && server.labels.is_empty() {
            return Some("YARN's idle GPUs stay with their job".into());
        }
        if server.draining {
            return Some("YARN drains hosts, and all nodes are this one".into());
        }
        if let Some(kind) = server.devices.iter().find(|kind| *kind != "gpu") {
            return Some(format!("YARN knows no {kind}"));
        }
        if let Some(name) = server.capacity.keys().find(|name| !COUNTED.contains(&name.as_str())) {
            return Some(format!("YARN counts no {name}"));
        }
        if !names.contains(server.name.as_str()) {
            return Some("a server comes that wasn't there from the start".into());
        }
    }
    let mut events = 0;
    for step in &scenario.step {
        events += 1;
        match &step.action {
            Action::Decide(_) => events = 0,
            Action::Seen(_) | Action::Gone(_) => events -= 1,
            Action::Submit(job) => {
                if let Some(why) = unsuitable(job) {
                    return Some(why);
                }
            }
            Action::Foreign { .. } if !name.starts_with("yarn_") => {
                return Some("YARN gives other people's applications what is free, and takes nothing from jobs".into());
            }
            Action::Report { .. } | Action::Trained { .. } => return Some("programs that sleep report nothing".into()),
            Action::Refused { .. } => return Some("a refusal is in the manager's own words".into()),
            Action::SyncBegin(_) | Action::SyncEnd(_) => return Some("YARN always tells all there is".into()),
            _ => {}
        }
        if engine == "drf" && events > 1 {
            return Some("a round may fall between two events".into());
        }
    }
    None
}

fn unsuitable(job: &Table) -> Option<String> {
    let spec = JobSpec::from_toml(&job.to_string()).unwrap();
    for role in [Some(&spec.worker), spec.server.as_ref()].into_iter().flatten() {
        let part = role.demand.iter().find(|(name, amount)| *name != "memory" && **amount % 1000 != 0);
        if let Some((name, _)) = part {
            return Some(format!("YARN counts no fractions of a {name}"));
        }
    }
    None
}

#[test]
fn scenarios_are_played_or_left_out_for_a_reason() {
    let mut reasons: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for choice in all() {
        let (why, name) = match choice {
            Ok(play) => ("played".to_owned(), play.to_string()),
            Err(text) => {
                let (name, why) = text.split_once(": ").unwrap();
                (why.to_owned(), name.to_owned())
            }
        };
        reasons.entry(why).or_default().push(name);
    }
    let found: Vec<String> = reasons.into_iter().map(|(why, names)| format!("{why}: {}", names.join(" "))).collect();
    let expected = "\
YARN always tells all there is: resync
YARN counts no fractions of a cpu: ray_in_place ray_queue
YARN gives other people's applications what is free, and takes nothing from jobs: foreign_use
YARN knows no gpu:a100: arrivals
a refusal is in the manager's own words: refused
its engines look at the clock, or at speeds or losses: admission attained_service batches between_rounds losses \
shortest_first turns
labels: YARN's are a host's, and all nodes are this one: chunks ray_racks slurm_queue slurm_refused \
slurm_rounds
played: in_place.drf kept_gpus.edge limits.fifo modes.fifo partitions.fifo restart.drf separate_roles.drf \
server_lost.fifo sizes.drf yarn_queue.fifo";
    assert_eq!(found.join("\n"), expected);
}
