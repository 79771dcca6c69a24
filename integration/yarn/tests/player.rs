//! Performs the steps of a scenario with real applications, and checks the expected results.

use std::{
    collections::BTreeMap,
    fs, thread,
    time::{Duration, Instant},
};

use serde_json::Value;
use toml::Table;
use trainmaster_conformance::Action;
use trainmaster_core::{End, Mode};

use crate::{
    cluster::until,
    site::{Site, amounts},
};

const PATIENCE: Duration = Duration::from_secs(600);

/// Servers by slots: `w0`, `p1`.
type Slots = BTreeMap<String, String>;

/// The expected state of a job.
#[derive(Clone, Debug, PartialEq)]
enum Expected {
    Run { incarnation: u32, slots: Slots },
    Wait(String),
    Refused(String),
}

pub(crate) struct Player<'a> {
    site: Site<'a>,
    /// Applications by the scenario's names.
    apps: BTreeMap<String, String>,
    /// The last decision about each job, and the last issue.
    decided: BTreeMap<String, Slots>,
    expected: BTreeMap<String, Expected>,
    /// Foreign applications by server.
    guests: BTreeMap<String, String>,
}

impl<'a> Player<'a> {
    pub(crate) fn new(site: Site<'a>) -> Self {
        let (apps, decided, expected, guests) = Default::default();
        Self { site, apps, decided, expected, guests }
    }

    pub(crate) fn act(&mut self, action: &Action) {
        match action {
            Action::Submit(job) => self.submit(job),
            Action::End { job, how: End::Completed } => {
                fs::write(self.site.folder().join(format!("over-{job}")), "").unwrap();
                self.ends(job, "SUCCEEDED");
            }
            Action::End { job, how: End::Cancelled } => {
                self.site.ask(&["yarn", "kill", &self.apps[job]]);
                self.ends(job, "KILLED");
            }
            Action::Hold { job, held } => _ = self.site.ask(&[if *held { "pause" } else { "resume" }, job]),
            Action::Mode(mode) => {
                let mode = match mode {
                    Mode::Active => "active",
                    Mode::Shadow => "shadow",
                    Mode::Paused => "paused",
                };
                self.site.ask(&["mode", mode]);
            }
            // The daemon keeps its state.
            Action::Configure(settings) => self.site.serve(settings),
            Action::Server(server) => {
                let amounts = amounts(&server.capacity, &server.devices);
                self.site.cluster().provide(&[(self.site.node(&server.name), amounts)].into());
            }
            Action::ServerLeft(server) => self.site.cluster().lose(self.site.node(server)),
            Action::Foreign { server, amounts: table } => {
                if let Some(guest) = self.guests.remove(server) {
                    self.site.cluster().kill_application(&guest);
                }
                if !table.is_empty() {
                    let guest = self.site.cluster().occupy(self.site.node(server), &amounts(table, &[]));
                    self.guests.insert(server.clone(), guest);
                }
            }
            other => panic!("not for a real YARN: {other:?}"),
        }
    }

    /// Submits a job as an application. A refusal may come at once or, from a slow daemon, soon after.
    fn submit(&mut self, job: &Table) {
        let name = job["name"].as_str().unwrap();
        let program = self.site.folder().join("program").to_str().unwrap().to_owned();
        let mut job = job.clone();
        // In Rust and C, it has no program that a change would start again.
        job.entry("elastic").or_insert_with(|| "in_place".into());
        for role in ["worker", "server"] {
            if let Some(role) = job.get_mut(role).and_then(|role| role.as_table_mut()) {
                role.insert("command".into(), program.clone().into());
                // Its memory demand prevents slots on the ApplicationMasters' node.
                role.entry("memory").or_insert_with(|| "64MiB".into());
            }
        }
        let file = self.site.folder().join(format!("{name}.toml"));
        fs::write(&file, job.to_string()).unwrap();
        let output = self.site.run(&["yarn", "submit", file.to_str().unwrap()]);
        let said: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let app = said["application"].as_str().map(str::to_owned);
        if let Some(app) = &app {
            // The adapter reports simultaneous applications in any order.
            until("a job or its end", || {
                let over = || self.site.cluster().get(&format!("apps/{app}"))["app"]["finalStatus"] != "UNDEFINED";
                (self.row(name).is_some() || over()).then_some(())
            });
        }
        // Otherwise it is the answer of the ResourceManager.
        self.apps.insert(name.into(), app.unwrap_or_else(|| String::from_utf8_lossy(&output.stderr).into_owned()));
    }

    fn ends(&mut self, job: &str, how: &str) {
        self.expected.remove(job);
        let path = format!("apps/{}", self.apps[job]);
        let app = until("the end of an application", || {
            let app = self.site.cluster().get(&path)["app"].clone();
            ["FINISHED", "FAILED", "KILLED"].iter().any(|end| app["state"] == *end).then_some(app)
        });
        assert_eq!(app["finalStatus"], how, "{job}: {app}");
    }

    /// Sets the expected state from a step's block of the transcript.
    pub(crate) fn expect(&mut self, action: &Action, block: &str) {
        for line in block.lines() {
            if let Some((job, slots)) = line.strip_prefix("    ").and_then(|line| line.split_once(": run ")) {
                self.decided.insert(job.to_owned(), slots_of(slots));
            } else if let Some((job, verdict)) = line.strip_prefix("  told ").and_then(|told| told.split_once(": ")) {
                self.told(job, verdict);
            } else if let (Some(why), Action::Submit(job)) = (line.strip_prefix("  refused: "), action) {
                self.expected.insert(job["name"].as_str().unwrap().into(), Expected::Refused(why.into()));
            }
        }
    }

    fn told(&mut self, job: &str, verdict: &str) {
        let (job, stamp) = job.split_once(' ').unwrap();
        let incarnation: u32 = stamp.split_once('.').unwrap().0.parse().unwrap();
        let expected = match verdict.split_once(' ').unwrap() {
            ("run", slots) => Expected::Run { incarnation, slots: slots_of(slots) },
            // The other jobs release the room themselves, and then it runs.
            ("wait:", why) if why.starts_with("planned; ") => {
                Expected::Run { incarnation: incarnation + 1, slots: self.decided[job].clone() }
            }
            // A daemon decides at once, or in its next round.
            ("wait:", "waits for the next decision") => {
                self.expected.remove(job);
                return;
            }
            ("wait:", why) => Expected::Wait(why.into()),
            // Running jobs continue unchanged. YARN decides whether waiting ones start.
            ("release", _) if matches!(self.expected.get(job), Some(Expected::Run { .. })) => return,
            ("release" | "stop:", _) => {
                self.expected.remove(job);
                return;
            }
            (other, _) => panic!("{job}: {other} is not for a real YARN"),
        };
        self.expected.insert(job.into(), expected);
    }

    /// Waits until YARN shows the expected state of each job.
    pub(crate) fn agree(&self, at: &str) {
        let end = Instant::now() + PATIENCE;
        loop {
            let differs =
                self.expected.iter().find_map(|(job, expected)| Some((job, expected, self.differs(job, expected)?)));
            let Some((job, expected, shown)) = differs else { return };
            assert!(Instant::now() < end, "{at}: {job} should be {expected:?}, and YARN shows {shown}");
            thread::sleep(Duration::from_millis(300));
        }
    }

    /// The state of a job in YARN, if it differs from the expected one.
    fn differs(&self, job: &str, expected: &Expected) -> Option<String> {
        let id = &self.apps[job];
        if let Expected::Refused(why) = expected {
            let shown = match id.starts_with("application_") {
                true => self.site.cluster().get(&format!("apps/{id}"))["app"].clone(),
                false => Value::String(id.clone()),
            };
            let said = self.site.plain(shown["diagnostics"].as_str().unwrap_or(id));
            let over = shown["state"].as_str().is_none_or(|state| state == "KILLED");
            return (!over || !said.contains(why)).then_some(said);
        }
        if !id.starts_with("application_") {
            return Some(id.clone());
        }
        let (app, containers) = self.containers(id);
        let agrees = match expected {
            Expected::Run { incarnation, slots } => {
                let exactly = |(slot, server): (&String, &String)| (slot.clone(), (*incarnation, server.clone()));
                app == "RUNNING" && containers == slots.iter().map(exactly).collect()
            }
            Expected::Wait(why) => app == "RUNNING" && containers.is_empty() && self.reason(job).as_ref() == Some(why),
            Expected::Refused(_) => unreachable!("it was looked at"),
        };
        (!agrees).then(|| format!("{app} {containers:?}, {:?}", self.reason(job)))
    }

    /// The state of an application, and for each slot the incarnation and the server of its container.
    ///
    /// The ResourceManager reports the node of a container. The slot comes from its program, which was started for the
    /// allocation request of this container.
    fn containers(&self, id: &str) -> (String, BTreeMap<String, (u32, String)>) {
        let get = |path: &str| self.site.cluster().get(&format!("apps/{id}{path}"));
        let state = get("")["app"]["state"].as_str().unwrap().to_owned();
        let attempts = get("/appattempts");
        let attempt = attempts["appAttempts"]["appAttempt"].as_array().and_then(|all| all.last());
        let Some(attempt) = attempt.filter(|_| state == "RUNNING") else { return (state, BTreeMap::new()) };
        let answer = get(&format!("/appattempts/{}/containers", attempt["appAttemptId"].as_str().unwrap()));
        let all = answer["container"].as_array().into_iter().flatten();
        let others = all.filter(|container| container["containerId"] != attempt["containerId"]);
        let found = others.map(|container| {
            let (id, node) =
                (container["containerId"].as_str().unwrap(), container["assignedNodeId"].as_str().unwrap());
            let said = fs::read_to_string(self.site.folder().join(id)).unwrap_or_default();
            let (slot, incarnation) = match said.split_whitespace().collect::<Vec<_>>()[..] {
                ["worker", index, incarnation] => (format!("w{index}"), incarnation.parse().unwrap()),
                ["server", index, incarnation] => (format!("p{index}"), incarnation.parse().unwrap()),
                _ => (id.to_owned(), 0),
            };
            // Two containers for one slot are an error.
            (slot, (incarnation, self.site.plain(node)))
        });
        let mut slots = BTreeMap::new();
        for (slot, container) in found {
            let taken = slots.contains_key(&slot);
            slots.insert(if taken { format!("{slot} again") } else { slot }, container);
        }
        (state, slots)
    }

    /// A job in the daemon's list.
    fn row(&self, job: &str) -> Option<Value> {
        let answer = self.site.ask(&["jobs"]);
        answer["jobs"].as_array()?.iter().find(|row| row["name"] == job).cloned()
    }

    /// The reason why a job waits, from the daemon, because YARN has no field for it.
    fn reason(&self, job: &str) -> Option<String> {
        Some(self.site.plain(self.row(job)?["reason"].as_str()?))
    }

    pub(crate) fn end(self) {
        self.site.clear();
    }
}

/// Parses `1w+1p: w0 s0[0], p0 s1`, which chunks can follow. YARN itself chooses the GPUs.
fn slots_of(text: &str) -> Slots {
    let (_, slots) = text.split_once(": ").unwrap();
    let slots = slots.split("; ").next().unwrap();
    let pairs = slots.split(", ").map(|slot| slot.split_once(' ').unwrap());
    pairs.map(|(slot, server)| (slot.to_owned(), server.split('[').next().unwrap().to_owned())).collect()
}
