//! A job's plan, read and checked.

use std::collections::BTreeMap;

use trainmaster_core::Role;
use trainmaster_proto::v1;

use super::super::slots::{AllocationRequest, SlotId, slot_name};

/// More slots than a job should ever have; a plan beyond it is a mistake.
const MOST_SLOTS: usize = 65_536;

/// What is to become of a job.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Order {
    pub(super) name: String,
    pub(super) action: Action,
    pub(super) incarnation: u32,
    pub(super) revision: u32,
    pub(super) reason: String,
    /// For its processes.
    pub(super) token: String,
    pub(super) grace_ms: i64,
    /// The server of each slot of a run.
    pub(super) slots: BTreeMap<SlotId, String>,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Run,
    Wait,
    Release,
    Reject,
    Stop {
        /// Its training is done.
        completed: bool,
    },
}

impl Order {
    /// Reads a job's plan; `knows` tells servers that there are.
    ///
    /// # Errors
    /// The cause of the refusal, naming the value and what is allowed.
    pub(super) fn read(plan: v1::JobPlan, knows: impl Fn(&str) -> bool) -> Result<Self, String> {
        let action = match v1::Action::try_from(plan.action) {
            Ok(v1::Action::Run) => Action::Run,
            Ok(v1::Action::Wait) => Action::Wait,
            Ok(v1::Action::Stop) => Action::Stop { completed: plan.ended == "completed" },
            Ok(v1::Action::Reject) => Action::Reject,
            Ok(v1::Action::Release) => Action::Release,
            Err(_) => return Err(format!("action {} is unknown; allowed are 0 to 4", plan.action)),
        };
        let slots = match action {
            Action::Run => slots(plan.incarnation, plan.slots, knows)?,
            _ => BTreeMap::new(),
        };
        Ok(Self {
            name: plan.name,
            action,
            incarnation: plan.incarnation,
            revision: plan.revision,
            reason: plan.reason,
            token: plan.token,
            grace_ms: plan.grace_ms.max(0),
            slots,
        })
    }

    /// It is over.
    pub(super) fn ends(&self) -> bool {
        matches!(self.action, Action::Stop { .. } | Action::Reject)
    }
}

fn slots(
    incarnation: u32,
    slots: Vec<v1::Slot>,
    knows: impl Fn(&str) -> bool,
) -> Result<BTreeMap<SlotId, String>, String> {
    if slots.is_empty() || slots.len() > MOST_SLOTS {
        return Err(format!("{} slots to run; allowed are 1 to {MOST_SLOTS}", slots.len()));
    }
    let mut read = BTreeMap::new();
    for slot in slots {
        let role = match v1::SlotRole::try_from(slot.role) {
            Ok(v1::SlotRole::Worker) => Role::Worker,
            Ok(v1::SlotRole::Server) => Role::Server,
            Err(_) => return Err(format!("slot role {} is unknown; allowed are 0 (worker) and 1 (server)", slot.role)),
        };
        let id = (role, slot.index);
        AllocationRequest::new(incarnation, id)?;
        if !knows(&slot.server) {
            return Err(format!("{} is to run on {:?}, which is not among the nodes", slot_name(id), slot.server));
        }
        if read.insert(id, slot.server).is_some() {
            return Err(format!("{} is named twice", slot_name(id)));
        }
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(slots: &[(i32, u32, &str)]) -> v1::JobPlan {
        let slot = |&(role, index, server): &(i32, u32, &str)| v1::Slot {
            role,
            index,
            server: server.into(),
            ..v1::Slot::default()
        };
        let slots = slots.iter().map(slot).collect();
        v1::JobPlan { job: 7, name: "n".into(), incarnation: 1, slots, ..v1::JobPlan::default() }
    }

    #[test]
    fn plans_that_make_no_sense_are_refused_with_the_cause() {
        let refused = |plan| Order::read(plan, |server| server == "a").unwrap_err();
        assert!(refused(plan(&[(0, 3, "b")])).contains("worker 3 is to run on \"b\""));
        assert!(refused(plan(&[(0, 0, "a"), (0, 0, "a")])).contains("worker 0 is named twice"));
        assert!(refused(plan(&[(2, 0, "a")])).contains("role 2"));
        assert!(refused(plan(&[])).contains("0 slots"));
        assert!(refused(v1::JobPlan { incarnation: 0, ..plan(&[(0, 0, "a")]) }).contains("incarnation 0"));
        assert!(refused(v1::JobPlan { action: 9, ..plan(&[]) }).contains("action 9"));
        let wait = v1::JobPlan { action: v1::Action::Wait.into(), ..plan(&[(0, 0, "gone")]) };
        assert_eq!(Order::read(wait, |_| false).unwrap().slots, BTreeMap::new());
        let stop = v1::JobPlan { action: v1::Action::Stop.into(), ended: "completed".into(), ..plan(&[]) };
        assert_eq!(Order::read(stop, |_| false).unwrap().action, Action::Stop { completed: true });
    }
}
