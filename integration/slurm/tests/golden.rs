//! The golden scenarios named after Slurm: the core's decisions must equal the answers of `scontrol show job`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use toml::{Table, Value};
use trainmaster_conformance::{Action, Scenario, Step};
use trainmaster_core::End;

use super::{
    cluster::{available, root},
    site::{Setup, Site},
};

#[test]
fn a_queue_is_as_in_rust_and_c() {
    play("slurm_queue");
}

#[test]
fn restarts_are_as_in_rust_and_c() {
    play("slurm_rounds");
}

#[test]
fn refusals_are_as_in_rust_and_c() {
    play("slurm_refused");
}

fn folder() -> PathBuf {
    root().join("integration/conformance")
}

/// Runs a scenario with each of its engines.
fn play(name: &str) {
    if !available() {
        return;
    }
    let text = fs::read_to_string(folder().join(format!("scenarios/{name}.toml"))).unwrap();
    let scenario = Scenario::from_toml(&text).unwrap();
    for engine in &scenario.engines {
        let golden = fs::read_to_string(folder().join(format!("golden/{name}.{engine}.txt"))).unwrap();
        let mut player = Player {
            site: start(&scenario, engine),
            ids: BTreeMap::new(),
            expected: BTreeMap::new(),
            guests: BTreeMap::new(),
            refused: refused(&scenario.step),
        };
        if name == "slurm_refused" {
            player.site.scontrol(&["update", "PartitionName=low", "MaxNodes=1"]);
        }
        // The first block is the heading.
        let blocks: Vec<&str> = golden.split("\n\n").skip(1).collect();
        assert_eq!(blocks.len(), scenario.step.len(), "{name}.{engine}: a block for each step");
        for (at, (step, block)) in scenario.step.iter().zip(blocks).enumerate() {
            if !matches!(step.action, Action::Decide(_) | Action::Seen(_) | Action::Gone(_) | Action::Refused { .. }) {
                player.agree(&format!("{name}.{engine}, before {} {:?}", step.at, step.action));
            }
            player.act(&step.action);
            player.refused = refused(&scenario.step[at + 1..]);
            player.expect(&step.action, block);
        }
        player.agree(&format!("{name}.{engine}, at its end"));
    }
}

/// Jobs that Slurm never starts, because it will refuse them.
fn refused(steps: &[Step]) -> BTreeSet<String> {
    let refused = steps.iter().filter_map(|step| match &step.action {
        Action::Refused { job, .. } => Some(job.clone()),
        _ => None,
    });
    refused.collect()
}

/// The scenario's servers as nodes of a real Slurm: equal ones, as `cluster/start` creates them.
fn start(scenario: &Scenario, engine: &str) -> Site {
    let of = |key: &str| -> String {
        let all: BTreeSet<String> = scenario.server.iter().map(|server| server.capacity[key].to_string()).collect();
        assert_eq!(all.len(), 1, "{key}: {all:?}");
        all.into_iter().next().unwrap()
    };
    assert_eq!(of("memory"), "\"64000MiB\"");
    let (gpus, cpus) = (of("gpu"), of("cpu"));
    let mut settings = scenario.settings.clone();
    settings.remove("shape");
    settings.insert("engine".into(), Value::String(engine.into()));
    // Reasons are updated when a lease is renewed.
    let slurm = "lease = \"10s\"\npatience = \"5s\"";
    let scheduler: String = {
        let (tables, keys): (Table, Table) = settings.into_iter().partition(|(_, value)| value.is_table());
        let tables = tables
            .into_iter()
            .map(|(name, table)| format!("[scheduler.{name}]\n{table_text}", table_text = table.as_table().unwrap()));
        keys.to_string() + &tables.collect::<String>()
    };
    let env = [("GPUS", gpus.as_str()), ("CPUS", cpus.as_str())];
    Setup { nodes: scenario.server.len() as u32, env: &env, slurm, scheduler: &scheduler, ..Setup::default() }.start()
}

struct Player {
    site: Site,
    /// Slurm's job numbers by the scenario's names.
    ids: BTreeMap<String, String>,
    /// The last decision about each job: its shape and place, or the reason.
    expected: BTreeMap<String, String>,
    /// Foreign jobs by node.
    guests: BTreeMap<String, String>,
    refused: BTreeSet<String>,
}

impl Player {
    fn act(&mut self, action: &Action) {
        let site = &self.site;
        match action {
            // Actions that the agent, Slurm and the jobs perform themselves.
            Action::Decide(_) | Action::Seen(_) | Action::Gone(_) | Action::Refused { .. } => {}
            Action::Submit(job) => {
                let name = job["name"].as_str().unwrap().to_owned();
                let id = site.sbatch(&["-J", &name, "-o", "/dev/null"], &script(job, &name)).unwrap();
                self.ids.insert(name, id);
            }
            Action::End { job, how: End::Completed } => {
                fs::write(site.folder().join(format!("over-{job}")), "").unwrap();
                site.completes(&self.ids[job]);
                self.expected.remove(job);
            }
            Action::End { job, .. } => {
                site.run("scancel", &[&self.ids[job]]);
                self.expected.remove(job);
            }
            Action::Hold { job, held } => {
                site.scontrol(&[if *held { "hold" } else { "release" }, &self.ids[job]]);
            }
            Action::Server(server) => {
                let state = if server.draining { "state=drain" } else { "state=resume" };
                site.scontrol(&["update", &format!("nodename={}", server.name), state, "reason=scenario"]);
            }
            Action::Foreign { server, amounts } => {
                if let Some(guest) = self.guests.remove(server) {
                    site.run("scancel", &[&guest]);
                }
                if let Some(gpus) = amounts.get("gpu") {
                    let gpus = format!("--gpus-per-node={gpus}");
                    let guest = ["-w", server, "-n1", &gpus, "-o", "/dev/null"];
                    self.guests.insert(server.clone(), site.sbatch(&guest, "#!/bin/sh\nsleep 600\n").unwrap());
                }
            }
            other => panic!("not for a real Slurm: {other:?}"),
        }
    }

    /// Sets the expected state from a step's block of the transcript.
    fn expect(&mut self, action: &Action, block: &str) {
        for line in block.lines() {
            if let Some((job, verdict)) = line.strip_prefix("  told ").and_then(|told| told.split_once(": ")) {
                let (job, _) = job.split_once(' ').unwrap();
                if !verdict.starts_with("stop: ") {
                    self.expected.insert(job.to_owned(), verdict.to_owned());
                }
            } else if let (Some(why), Action::Submit(job)) = (line.strip_prefix("  refused: "), action) {
                self.expected.insert(job["name"].as_str().unwrap().to_owned(), format!("not taken: {why}"));
            }
        }
    }

    /// Waits until Slurm shows the expected state of each job.
    fn agree(&self, at: &str) {
        let end = Instant::now() + Duration::from_secs(600);
        loop {
            let differs =
                self.expected.iter().find_map(|(job, verdict)| Some((job, verdict, self.differs(job, verdict)?)));
            let Some((job, verdict, shown)) = differs else { return };
            assert!(Instant::now() < end, "{at}: {job} should be {verdict:?}, and Slurm shows {shown}");
            thread::sleep(Duration::from_millis(200));
        }
    }

    /// The state of a job in Slurm, if it differs from the verdict.
    fn differs(&self, job: &str, verdict: &str) -> Option<String> {
        let id = &self.ids[job];
        let shown = self.site.show(id);
        let is = |field: &str, value: &str| self.site.field(id, field) == value;
        let agrees = match verdict.split_once(": ") {
            Some((run, slots)) if run.starts_with("run ") => {
                let (workers, servers) = run["run ".len()..].split_once("w+").unwrap();
                let servers = servers.trim_end_matches('p');
                let nodes: BTreeSet<&str> = slots.split(", ").map(|slot| slot.split_once(' ').unwrap().1).collect();
                let tasks: u32 = workers.parse::<u32>().unwrap() + servers.parse::<u32>().unwrap();
                let starts = !self.refused.contains(job);
                let (field, count) = if starts {
                    ("NodeList", nodes.len().to_string())
                } else {
                    ("ReqNodeList", format!("{0}-{0}", nodes.len()))
                };
                is("JobState", if starts { "RUNNING" } else { "PENDING" })
                    && shown.contains(&format!("workers={workers};servers={servers};"))
                    && self.site.nodes(id, field).iter().map(String::as_str).collect::<BTreeSet<_>>() == nodes
                    && is("NumNodes", &count)
                    && is("NumTasks", &tasks.to_string())
                    && (!starts || shown.contains(&format!("JOB_GRES=gpu:{workers} ")))
            }
            // Slurm itself shows this state.
            Some((_, why)) if why.starts_with("held by a person") => {
                is("JobState", "PENDING") && shown.contains("Reason=JobHeld")
            }
            Some((_, why)) => is("JobState", "PENDING") && self.said(&shown).contains(&numbers(&format!("why={why}"))),
            None => false,
        };
        (!agrees).then_some(shown)
    }
}

impl Player {
    /// Replaces the core's job names, which contain Slurm's numbers, by the scenario's names.
    fn said(&self, shown: &str) -> String {
        let plain = |text: String, (name, id): (&String, &String)| text.replace(&format!("{name}-{id}"), name);
        numbers(&self.ids.iter().fold(shown.to_owned(), plain))
    }
}

/// Removes durations, which depend on the time of the query.
fn numbers(text: &str) -> String {
    let mut words = text.to_owned();
    for before in ["asked again in ", "started it for "] {
        if let Some((head, tail)) = words.split_once(before) {
            let rest = tail.trim_start_matches(|c: char| c.is_ascii_alphanumeric());
            words = format!("{head}{before}…{rest}");
        }
    }
    words
}

/// A job that waits until a file ends it.
fn script(job: &Table, name: &str) -> String {
    let mut lines = String::new();
    for (key, value) in job.iter().filter(|(key, _)| !matches!(key.as_str(), "name" | "constraints")) {
        match value {
            Value::Table(table) => {
                table.iter().for_each(|(inner, value)| lines += &format!("#TRAINMASTER {key}.{inner} = {value}\n"));
            }
            value => lines += &format!("#TRAINMASTER {key} = {value}\n"),
        }
    }
    format!("#!/bin/bash\n{lines}while [ ! -e over-{name} ]; do sleep 0.2; done\n")
}
