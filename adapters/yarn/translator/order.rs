//! A job's order in the form that YARN can follow.

use std::collections::BTreeMap;

use trainmaster_manager::{self as manager, SlotId};

use super::super::slots::AllocationRequest;

/// The plan for one job.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ApplicationPlan {
    pub(super) name: String,
    pub(super) action: Action,
    pub(super) incarnation: u32,
    pub(super) revision: u32,
    pub(super) reason: String,
    /// The token of its processes.
    pub(super) token: String,
    pub(super) grace_ms: i64,
    /// The server of each slot of a run.
    pub(super) slots: BTreeMap<SlotId, String>,
}

/// The action for a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Run,
    Wait,
    Release,
    Reject,
    Stop {
        /// Whether its training is done.
        completed: bool,
    },
}

impl ApplicationPlan {
    /// Converts the scheduler's order.
    ///
    /// # Errors
    /// A slot has a number that no container can have. The error names it and the allowed range.
    pub(super) fn of(order: manager::Order) -> Result<Self, String> {
        let (action, run) = match order.action {
            manager::Action::Run(run) => (Action::Run, *run),
            manager::Action::Wait => (Action::Wait, manager::Run::default()),
            manager::Action::Release(_) => (Action::Release, manager::Run::default()),
            manager::Action::Reject => (Action::Reject, manager::Run::default()),
            manager::Action::Stop { completed } => (Action::Stop { completed }, manager::Run::default()),
        };
        for slot in run.slots.keys() {
            AllocationRequest::new(order.incarnation, *slot)?;
        }
        Ok(Self {
            name: order.name,
            action,
            incarnation: order.incarnation,
            revision: order.revision,
            reason: order.reason,
            token: order.token.0,
            grace_ms: order.grace.map_or(0, |grace| grace.as_millis() as i64),
            slots: run.slots.into_iter().map(|(slot, placement)| (slot, placement.server)).collect(),
        })
    }

    /// Whether the job ends.
    pub(super) fn ends(&self) -> bool {
        matches!(self.action, Action::Stop { .. } | Action::Reject)
    }
}

#[cfg(test)]
mod tests {
    use trainmaster_proto::v1;

    use super::*;

    #[test]
    fn each_slot_can_be_a_container() {
        let of = |incarnation, index| {
            let slot = v1::Slot { index, server: "a".into(), ..v1::Slot::default() };
            let plan = v1::JobPlan { job: 7, incarnation, slots: vec![slot], ..v1::JobPlan::default() };
            ApplicationPlan::of(manager::Order::read(plan, |_| Some(None)).unwrap())
        };
        assert_eq!(of(1, 3).unwrap().slots.len(), 1);
        assert!(of(0, 3).unwrap_err().contains("incarnation 0"));
        assert!(of(1, 1 << 31).unwrap_err().contains("worker 2147483648"));
    }
}
