//! A real daemon for a run, and its client.

use std::{
    collections::BTreeSet,
    env, fs,
    io::{BufRead as _, BufReader},
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
    thread,
};

use serde_json::Value;
use toml::{Table, Value as Toml};
use trainmaster_conformance::{Scenario, free_port};
use trainmaster_core::amount::Unit;

use crate::cluster::{Amounts, Cluster, until};

/// A program that writes its slot, and ends with its job or its folder.
const PROGRAM: &str = r#"#!/bin/sh
cd "${0%/*}" || exit 1
echo "$TRAINMASTER_ROLE $TRAINMASTER_INDEX $TRAINMASTER_INCARNATION" >"$CONTAINER_ID.part"
mv "$CONTAINER_ID.part" "$CONTAINER_ID"
while [ -e "$0" ] && [ ! -e "over-$TRAINMASTER_JOB_NAME" ]; do sleep 0.3; done
"#;

/// The servers of a scenario, and a daemon with its settings.
pub(crate) struct Site<'a> {
    cluster: &'a Cluster,
    folder: PathBuf,
    engine: &'static str,
    /// The scenario's names of the nodes.
    names: Vec<String>,
    port: u16,
    daemon: Option<Child>,
}

impl<'a> Site<'a> {
    pub(crate) fn new(cluster: &'a Cluster, scenario: &Scenario, engine: &'static str) -> Self {
        let names: BTreeSet<String> = scenario.server.iter().map(|server| server.name.clone()).collect();
        let port = free_port();
        let folder = cluster.scratch(&port.to_string());
        let program = folder.join("program");
        fs::write(&program, PROGRAM).unwrap();
        fs::write(folder.join("yarn.toml"), cluster.settings()).unwrap();
        assert!(Command::new("chmod").arg("+x").arg(&program).status().unwrap().success());
        let mut site = Self { cluster, folder, engine, names: names.into_iter().collect(), port, daemon: None };
        let of_each = (0..cluster.nodes().len()).map(|node| {
            let server =
                site.names.get(node).and_then(|name| scenario.server.iter().find(|server| server.name == *name));
            (node, server.map(|server| amounts(&server.capacity, &server.devices)).unwrap_or_default())
        });
        cluster.provide(&of_each.collect());
        site.serve(&scenario.settings);
        site
    }

    /// Starts the daemon, or restarts it with other settings.
    pub(crate) fn serve(&mut self, settings: &Table) {
        self.stop();
        let mut settings = settings.clone();
        settings.insert("engine".into(), self.engine.into());
        if self.engine == "drf" {
            // The only one that decides in rounds.
            let parameters = settings.entry("parameters").or_insert_with(|| Table::new().into());
            parameters.as_table_mut().unwrap().insert("interval".into(), "2s".into());
        }
        let config = Table::from_iter([("grace".into(), "1s".into()), ("scheduler".into(), Toml::Table(settings))]);
        let file = self.folder.join("daemon.toml");
        fs::write(&file, config.to_string()).unwrap();
        let log = fs::OpenOptions::new().append(true).create(true).open(self.folder.join("daemon.log")).unwrap();
        let mut command = Command::new(trainmaster());
        command.args(["serve", "--json", "--listen"]).arg(format!("127.0.0.1:{}", self.port));
        command.arg("--config").arg(file).arg("--state-dir").arg(self.folder.join("state"));
        command.arg("--adapter").arg(format!("yarn={}", self.folder.join("yarn.toml").display()));
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        self.daemon = Some(child);
        assert!(line.contains("url"), "the daemon doesn't serve: {line}");
        // All nodes are in the first snapshot.
        until("the first snapshot", || self.ask(&["status"])["servers"].as_u64().filter(|servers| *servers > 0));
    }

    fn stop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }

    /// Runs the daemon's client, or YARN's.
    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(trainmaster());
        command.arg("--json").args(arguments).env("TRAINMASTER_YARN", self.folder.join("yarn.toml"));
        command.env("TRAINMASTER_SERVER", format!("http://127.0.0.1:{}", self.port)).env("HADOOP_USER_NAME", "tester");
        command.output().unwrap()
    }

    /// The same for a command that must succeed.
    pub(crate) fn ask(&self, arguments: &[&str]) -> Value {
        let Output { status, stdout, stderr } = self.run(arguments);
        assert!(status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&stderr));
        serde_json::from_slice(&stdout).unwrap_or_default()
    }

    pub(crate) fn cluster(&self) -> &Cluster {
        self.cluster
    }

    pub(crate) fn folder(&self) -> &PathBuf {
        &self.folder
    }

    /// Index of a server's node, from 0.
    pub(crate) fn node(&self, server: &str) -> usize {
        self.names.iter().position(|name| name == server).unwrap()
    }

    /// Replaces nodes' ids by the scenario's names.
    pub(crate) fn plain(&self, text: &str) -> String {
        let ids = self.cluster.nodes().iter().zip(&self.names);
        ids.fold(text.to_owned(), |text, (id, name)| text.replace(id, name))
    }

    /// Ends the remaining applications.
    pub(crate) fn clear(&self) {
        let left = || {
            let active = self.cluster.get("apps?states=NEW,NEW_SAVING,SUBMITTED,ACCEPTED,RUNNING");
            let apps = active["apps"]["app"].as_array().cloned().unwrap_or_default();
            apps.iter().map(|app| app["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        left().iter().for_each(|id| self.cluster.kill_application(id));
        until("the end of all applications", || left().is_empty().then_some(()));
        let idle = || self.cluster.get("metrics")["clusterMetrics"]["containersAllocated"] == 0;
        until("the end of all containers", || idle().then_some(()));
    }
}

impl Drop for Site<'_> {
    fn drop(&mut self) {
        self.stop();
        if thread::panicking() {
            eprintln!("{}", fs::read_to_string(self.folder.join("daemon.log")).unwrap_or_default());
        }
    }
}

/// A server's capacity in YARN's units: MiB and whole units.
pub(crate) fn amounts(capacity: &Table, devices: &[String]) -> Amounts {
    let counted = capacity.iter().map(|(name, value)| {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let amount = Unit::of(name).parse(&text).unwrap();
        (name.clone(), if name == "memory" { amount } else { amount / 1000 })
    });
    let gpus = (!devices.is_empty()).then(|| ("gpu".to_owned(), devices.len() as i64));
    counted.chain(gpus).collect()
}

fn trainmaster() -> PathBuf {
    // This test is in `deps/` beside it.
    let beside = || env::current_exe().unwrap().ancestors().nth(2).unwrap().join("trainmaster");
    let program = env::var_os("TRAINMASTER_BIN").map_or_else(beside, PathBuf::from);
    assert!(program.exists(), "{} isn't there: cargo build --bins", program.display());
    program
}
