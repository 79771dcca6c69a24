//! A job's part of the plan, read and checked.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use trainmaster_core::Shape;
use trainmaster_proto::v1;

use super::slot::{Placement, SlotId};

/// Maximum number of slots of a job. A plan with more is invalid.
pub const MOST_SLOTS: usize = 65_536;
/// Maximum grace. A longer one is cut to this.
const LONGEST_GRACE: Duration = Duration::from_secs(24 * 3600);

/// The plan for one job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// The job's name.
    pub name: String,
    /// The planned incarnation.
    pub incarnation: u32,
    /// The planned revision of the incarnation.
    pub revision: u32,
    /// The action.
    pub action: Action,
    /// Why the job doesn't run, in words for its owner.
    pub reason: String,
    /// The reason's kind, as in explanations: `no_room`.
    pub reason_kind: String,
    /// Maximum time for a program to stop. `None`: the manager's default.
    pub grace: Option<Duration>,
    /// The token for its processes' reports.
    pub token: Token,
}

/// The action for a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// It runs with these slots.
    Run(Box<Run>),
    /// It stops with a checkpoint, to run again later.
    Wait,
    /// It ends permanently.
    Stop {
        /// Whether its training is done. Then its programs end by themselves.
        completed: bool,
    },
    /// It is refused permanently.
    Reject,
    /// It belongs to the manager again, in this shape, and runs on as it is.
    Release(Shape),
}

/// A running job's slots, commands and environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// Its slots, one at least.
    pub slots: BTreeMap<SlotId, Placement>,
    /// Slots without work for now. Their devices are given to another job.
    pub idle: BTreeSet<SlotId>,
    /// The amounts that one worker needs, by resource name, in the core's sub-units.
    pub worker_demand: BTreeMap<String, i64>,
    /// The same for one parameter server.
    pub server_demand: BTreeMap<String, i64>,
    /// The worker's program; empty: the manager's default.
    pub worker_command: String,
    /// The parameter server's program; empty: the worker's.
    pub server_command: String,
    /// Environment variables of its processes.
    pub environment: BTreeMap<String, String>,
}

/// A job's token. Debug output hides it.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Token(pub String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

impl Order {
    /// Reads a job's plan. `devices` returns how many devices a server lists: `None` if there is no such server,
    /// `Some(None)` if its manager chooses devices.
    ///
    /// # Errors
    /// The cause of the refusal. It names the value and the allowed range.
    pub fn read(plan: v1::JobPlan, devices: impl Fn(&str) -> Option<Option<usize>>) -> Result<Self, String> {
        let grace = match u64::try_from(plan.grace_ms) {
            Ok(0) => None,
            Ok(ms) => Some(Duration::from_millis(ms).min(LONGEST_GRACE)),
            Err(_) => return Err(format!("grace_ms = {}; allowed is 0 (the manager's) or more", plan.grace_ms)),
        };
        let action = match v1::Action::try_from(plan.action) {
            Ok(v1::Action::Run) => {
                let (slots, idle) = slots(plan.slots, devices)?;
                Action::Run(Box::new(Run {
                    slots,
                    idle,
                    worker_demand: plan.worker_demand.into_iter().collect(),
                    server_demand: plan.server_demand.into_iter().collect(),
                    worker_command: plan.worker_command,
                    server_command: plan.server_command,
                    environment: plan.environment.into_iter().collect(),
                }))
            }
            Ok(v1::Action::Wait) => Action::Wait,
            Ok(v1::Action::Stop) => Action::Stop { completed: plan.ended == "completed" },
            Ok(v1::Action::Reject) => Action::Reject,
            Ok(v1::Action::Release) => Action::Release(Shape { workers: plan.workers, servers: plan.servers }),
            Err(_) => return Err(format!("action {} is unknown; allowed are 0 to 4", plan.action)),
        };
        Ok(Self {
            name: plan.name,
            incarnation: plan.incarnation,
            revision: plan.revision,
            action,
            reason: plan.reason,
            reason_kind: plan.reason_kind,
            grace,
            token: Token(plan.token),
        })
    }

    /// The job's slots and commands, if it has to run.
    pub fn run(&self) -> Option<&Run> {
        match &self.action {
            Action::Run(run) => Some(run),
            _ => None,
        }
    }

    /// Whether the job ends.
    pub fn ends(&self) -> bool {
        matches!(self.action, Action::Stop { .. } | Action::Reject)
    }
}

/// Slots with their placements, and which of them are idle.
type Slots = (BTreeMap<SlotId, Placement>, BTreeSet<SlotId>);

fn slots(slots: Vec<v1::Slot>, devices: impl Fn(&str) -> Option<Option<usize>>) -> Result<Slots, String> {
    if slots.is_empty() || slots.len() > MOST_SLOTS {
        return Err(format!("{} slots to run; allowed are 1 to {MOST_SLOTS}", slots.len()));
    }
    let (mut read, mut idle) = (BTreeMap::new(), BTreeSet::new());
    for slot in slots {
        let (id, placement) = (SlotId::of(&slot)?, Placement::of(&slot));
        let server = &placement.server;
        let Some(listed) = devices(server) else {
            return Err(format!("{id} is to run on {server:?}, which is not one of this manager's servers"));
        };
        for share in &placement.devices {
            if let Some(listed) = listed.filter(|listed| share.device as usize >= *listed) {
                return Err(format!("{id} is to use device {} of {server:?}, which has {listed}", share.device));
            }
            if !(1..=1000).contains(&share.milli) {
                return Err(format!(
                    "{id} is to have {} thousandths of device {} of {server:?}; allowed are 1 to 1000",
                    share.milli, share.device
                ));
            }
        }
        if slot.idle {
            idle.insert(id);
        }
        if read.insert(id, placement).is_some() {
            return Err(format!("{id} is named twice"));
        }
    }
    Ok((read, idle))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(slots: &[(i32, u32, &str, u32, u32)]) -> v1::JobPlan {
        let slot = |&(role, index, server, device, milli): &(i32, u32, &str, u32, u32)| v1::Slot {
            role,
            index,
            server: server.into(),
            devices: vec![v1::DeviceShare { device, milli }],
            idle: index == 1,
        };
        v1::JobPlan { job: 7, name: "n".into(), slots: slots.iter().map(slot).collect(), ..v1::JobPlan::default() }
    }

    fn read(plan: v1::JobPlan) -> Result<Order, String> {
        Order::read(plan, |server| match server {
            "a" => Some(Some(2)),
            "any" => Some(None),
            _ => None,
        })
    }

    #[test]
    fn plans_that_make_no_sense_are_refused_with_the_cause() {
        let refused = |plan| read(plan).unwrap_err();
        assert!(refused(plan(&[(0, 3, "b", 0, 1000)])).contains("worker 3 is to run on \"b\""));
        assert!(refused(plan(&[(0, 0, "a", 0, 1000), (0, 0, "a", 1, 1000)])).contains("worker 0 is named twice"));
        assert!(refused(plan(&[(2, 0, "a", 0, 1000)])).contains("role 2"));
        assert!(refused(plan(&[(1, 0, "a", 2, 1000)])).contains("server 0 is to use device 2 of \"a\", which has 2"));
        assert!(refused(plan(&[(0, 0, "a", 0, 1001)])).contains("1001 thousandths"));
        assert!(refused(plan(&[(0, 0, "any", 7, 0)])).contains("0 thousandths"));
        assert!(refused(plan(&[])).contains("0 slots"));
        assert!(refused(v1::JobPlan { action: 9, ..plan(&[]) }).contains("action 9"));
        assert!(refused(v1::JobPlan { grace_ms: -1, ..plan(&[]) }).contains("grace_ms = -1"));
        let many = plan(&vec![(0, 0, "a", 0, 1000); MOST_SLOTS + 1]);
        assert!(refused(many).contains("65537 slots"));
    }

    #[test]
    fn what_does_not_run_has_no_slots() {
        let of = |action: v1::Action, ended: &str| {
            let plan = v1::JobPlan { action: action.into(), ended: ended.into(), ..plan(&[(0, 0, "gone", 0, 0)]) };
            read(plan).unwrap()
        };
        assert_eq!((of(v1::Action::Wait, "").run(), of(v1::Action::Wait, "").ends()), (None, false));
        assert_eq!(of(v1::Action::Stop, "completed").action, Action::Stop { completed: true });
        assert!(of(v1::Action::Reject, "").ends());
    }

    #[test]
    fn a_run_keeps_what_its_slots_are_given() {
        let order = read(plan(&[(1, 0, "a", 1, 500), (0, 1, "any", 900, 1000)])).unwrap();
        let run = order.run().unwrap();
        assert_eq!(run.slots.keys().map(ToString::to_string).collect::<Vec<_>>(), ["worker 1", "server 0"]);
        assert_eq!(run.idle, [SlotId::new(trainmaster_core::Role::Worker, 1)].into());
    }
}
