//! The state machine alone. The test controls the processes' reactions and the clock.

mod failures;
mod leaving;
mod plans;
mod random;

use std::collections::BTreeSet;

use trainmaster_core::Role;
use trainmaster_manager::SlotId;

use super::{plan::Resolve, *};

/// The cluster's grace, in milliseconds.
pub(super) const GRACE: u64 = 1000;

/// A simulated machine: its living processes, and the actions so far.
pub(super) struct World {
    pub(super) fleet: Fleet,
    pub(super) now: Duration,
    pub(super) living: BTreeSet<ProcessId>,
    /// Actions since the last call of [`signals`](Self::signals).
    pub(super) actions: Vec<Action>,
    /// Time of the fleet's next step.
    pub(super) wake: Option<Duration>,
    decision: u64,
}

pub(super) fn policy() -> Policy {
    Policy {
        grace: cluster().grace(),
        first_delay: Duration::from_millis(500),
        longest_delay: Duration::from_secs(30),
        steady: Duration::from_secs(60),
        failures: 8,
        settle: Duration::from_millis(500),
        claim: Duration::from_secs(5),
    }
}

pub(super) fn cluster() -> Arc<Cluster> {
    let text = "grace = \"1s\"\n[[server]]\nname = \"a\"\ngpu = 2\n[[server]]\nname = \"b\"\ngpu = 1\n";
    Arc::new(Cluster::parse(text, "test").unwrap())
}

pub(super) fn resolve(text: &str) -> Result<plan::Command, String> {
    match text {
        "missing" => Err("program \"missing\" is not there".into()),
        _ => Ok(plan::Command { program: text.into(), arguments: Vec::new() }),
    }
}

impl World {
    pub(super) fn new() -> Self {
        Self::with(Vec::new())
    }

    pub(super) fn with(adopted: Vec<Adopted>) -> Self {
        let living = adopted.iter().map(|adopted| adopted.id).collect();
        let fleet = Fleet::new(cluster(), policy(), Resolve::by(resolve), adopted);
        let mut world = Self { fleet, now: Duration::ZERO, living, actions: Vec::new(), wake: None, decision: 0 };
        world.fleet.attached(world.now);
        world
    }

    /// Sends a full plan. Returns the refused jobs.
    pub(super) fn plan(&mut self, jobs: Vec<v1::JobPlan>) -> Vec<(u64, String)> {
        self.send(v1::Plan { full: true, jobs, ..v1::Plan::default() })
    }

    /// Sends a plan of changes only. Returns the refused jobs.
    pub(super) fn change(&mut self, jobs: Vec<v1::JobPlan>) -> Vec<(u64, String)> {
        self.send(v1::Plan { jobs, ..v1::Plan::default() })
    }

    pub(super) fn send(&mut self, mut plan: v1::Plan) -> Vec<(u64, String)> {
        self.decision += 1;
        plan.decision = self.decision;
        let answers = self.fleet.plan(self.now, plan);
        self.act();
        answers.into_iter().filter_map(|answer| Some((answer.job, answer.refused?))).collect()
    }

    /// Advances the time, one wake-up after another.
    pub(super) fn pass(&mut self, ms: u64) {
        let end = self.now + Duration::from_millis(ms);
        self.act();
        while let Some(wake) = self.wake.filter(|wake| *wake <= end) {
            self.now = wake;
            self.act();
        }
        self.now = end;
        self.act();
    }

    pub(super) fn exit(&mut self, id: ProcessId, exit: Exit) {
        assert!(self.living.remove(&id), "{id} doesn't live");
        self.fleet.exited(self.now, id, Failure { exit, said: None, log: None });
        self.act();
    }

    pub(super) fn act(&mut self) {
        loop {
            let step = self.fleet.step(self.now);
            self.wake = step.wake;
            if step.actions.is_empty() {
                return;
            }
            for action in &step.actions {
                if let Action::Start { job, incarnation, slot } = *action {
                    let id = ProcessId { job, incarnation, slot };
                    let other = self.living.iter().find(|other| other.job == job && other.incarnation != incarnation);
                    assert_eq!(other, None, "{id} started beside an old one");
                    assert!(self.fleet.order(id).is_some(), "{id} isn't planned");
                    assert!(self.living.insert(id), "{id} started twice");
                }
            }
            self.actions.extend(step.actions);
        }
    }

    /// Returns the signals since the last call, and their processes.
    pub(super) fn signals(&mut self) -> Vec<(ProcessId, Signal)> {
        let signals = self.actions.drain(..).filter_map(|action| match action {
            Action::Signal { job, incarnation, slot, signal } => Some((ProcessId { job, incarnation, slot }, signal)),
            Action::Start { .. } => None,
        });
        signals.collect()
    }

    pub(super) fn phase(&self, job: u64) -> Option<v1::ObservedPhase> {
        self.fleet.observe(self.now).get(&job).map(v1::ObservedJob::phase)
    }

    pub(super) fn lives(&self, id: ProcessId) -> bool {
        self.living.contains(&id)
    }
}

pub(super) fn worker(job: u64, incarnation: u32, index: u32) -> ProcessId {
    ProcessId { job, incarnation, slot: SlotId { role: Role::Worker, index } }
}

pub(super) fn server(job: u64, incarnation: u32, index: u32) -> ProcessId {
    ProcessId { job, incarnation, slot: SlotId { role: Role::Server, index } }
}

/// A running job with the given numbers of workers and servers, all on server `a`.
pub(super) fn run(job: u64, incarnation: u32, revision: u32, workers: u32, servers: u32) -> v1::JobPlan {
    let slot = |role: v1::SlotRole, index| v1::Slot {
        role: role.into(),
        index,
        server: "a".into(),
        devices: vec![],
        idle: false,
    };
    let workers = (0..workers).map(|index| slot(v1::SlotRole::Worker, index));
    let servers = (0..servers).map(|index| slot(v1::SlotRole::Server, index));
    v1::JobPlan {
        job,
        name: format!("job-{job}"),
        incarnation,
        revision,
        slots: workers.chain(servers).collect(),
        ..v1::JobPlan::default()
    }
}

pub(super) fn told(job: u64, action: v1::Action) -> v1::JobPlan {
    v1::JobPlan { job, name: format!("job-{job}"), action: action.into(), ..v1::JobPlan::default() }
}

pub(super) fn adopted(id: ProcessId) -> Adopted {
    let placement = Placement { server: "a".into(), devices: Vec::new() };
    Adopted { id, name: format!("job-{}", id.job), placement, token: String::new() }
}
