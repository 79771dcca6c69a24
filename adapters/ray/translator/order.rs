//! A job's plan in the form that its driver reads.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use trainmaster_manager::{self as manager, MOST_SLOTS, SlotId};

use crate::file::MOST_DEVICES;

/// The version of the format. Drivers refuse others.
const VERSION: u32 = 1;

/// The content of `plan/<job>`, for the driver.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Note {
    v: u32,
    /// The plan's decision.
    pub(crate) decision: u64,
    #[serde(flatten)]
    pub(crate) order: DriverPlan,
    /// Why it can't be carried out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) refused: Option<String>,
}

/// The plan for one job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct DriverPlan {
    pub(crate) name: String,
    pub(crate) action: Action,
    pub(crate) incarnation: u32,
    pub(crate) revision: u32,
    pub(crate) reason: String,
    /// The slots of a run.
    slots: Vec<PlannedSlot>,
}

/// The action for a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Action {
    Run,
    Wait,
    Stop,
    Reject,
    Release,
}

/// A slot of a run. Ray chooses the devices. The ones here are the scheduler's count.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PlannedSlot {
    #[serde(flatten)]
    id: SlotId,
    pub(crate) server: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) devices: Vec<(u32, u32)>,
}

impl PlannedSlot {
    pub(crate) fn id(&self) -> SlotId {
        self.id
    }

    fn is_sound(&self) -> bool {
        let is_share = |(device, milli): &(u32, u32)| i64::from(*device) < MOST_DEVICES && (1..=1000).contains(milli);
        !self.server.is_empty() && self.devices.iter().all(is_share)
    }
}

impl Note {
    pub(crate) fn new(decision: u64, order: DriverPlan) -> Self {
        Self { v: VERSION, decision, order, refused: None }
    }

    pub(crate) fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a note is plain data")
    }

    /// Returns `None` if the text is invalid or of another version. Anyone in the cluster may have written it.
    pub(crate) fn from_json(text: &str) -> Option<Self> {
        let note: Self = serde_json::from_str(text).ok()?;
        let slots = &note.order.slots;
        let ids: BTreeSet<SlotId> = slots.iter().map(PlannedSlot::id).collect();
        let is_sound = note.v == VERSION
            && (slots.is_empty() == (note.order.action != Action::Run))
            && slots.len() <= MOST_SLOTS
            && ids.len() == slots.len()
            && slots.iter().all(PlannedSlot::is_sound);
        is_sound.then_some(note)
    }
}

impl DriverPlan {
    /// Converts the scheduler's order.
    pub(crate) fn of(order: manager::Order) -> Self {
        let (action, run) = match order.action {
            manager::Action::Run(run) => (Action::Run, *run),
            manager::Action::Wait => (Action::Wait, manager::Run::default()),
            manager::Action::Stop { .. } => (Action::Stop, manager::Run::default()),
            manager::Action::Reject => (Action::Reject, manager::Run::default()),
            manager::Action::Release(_) => (Action::Release, manager::Run::default()),
        };
        let slots = run.slots.into_iter().map(|(id, placement)| {
            let devices = placement.devices.iter().map(|share| (share.device, share.milli)).collect();
            PlannedSlot { id, server: placement.server, devices }
        });
        Self {
            name: order.name,
            action,
            incarnation: order.incarnation,
            revision: order.revision,
            reason: order.reason,
            slots: slots.collect(),
        }
    }

    /// The slots to run. Empty for any other action.
    pub(crate) fn slots(&self) -> &[PlannedSlot] {
        &self.slots
    }

    /// The servers of the slots to run.
    pub(crate) fn servers(&self) -> BTreeSet<&str> {
        self.slots.iter().map(|slot| slot.server.as_str()).collect()
    }

    /// Whether the job ends.
    pub(crate) fn ends(&self) -> bool {
        matches!(self.action, Action::Stop | Action::Reject)
    }

    /// The plan for a job that the scheduler no longer lists.
    pub(crate) fn unlisted(&self) -> Self {
        let reason = "the scheduler no longer lists this job".into();
        Self { action: Action::Stop, reason, slots: Vec::new(), ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use trainmaster_proto::v1;

    use super::*;

    fn order(slots: &[(i32, u32, &str)]) -> DriverPlan {
        let slot = |&(role, index, server): &(i32, u32, &str)| v1::Slot {
            role,
            index,
            server: server.into(),
            devices: vec![v1::DeviceShare { device: 1, milli: 500 }],
            idle: false,
        };
        let plan =
            v1::JobPlan { job: 7, name: "n".into(), slots: slots.iter().map(slot).collect(), ..v1::JobPlan::default() };
        DriverPlan::of(manager::Order::read(plan, |_| Some(None)).unwrap())
    }

    #[test]
    fn a_note_is_what_drivers_read() {
        let order = order(&[(1, 0, "a"), (0, 0, "a")]);
        let mut note = Note::new(5, order);
        note.refused = Some("no room".into());
        let json: serde_json::Value = serde_json::from_str(&note.to_json()).unwrap();
        let slot = |role| serde_json::json!({ "role": role, "index": 0, "server": "a", "devices": [[1, 500]] });
        let expected = serde_json::json!({
            "v": 1, "decision": 5, "name": "n", "action": "run", "incarnation": 0, "revision": 0, "reason": "",
            "slots": [slot("worker"), slot("server")], "refused": "no room",
        });
        assert_eq!(json, expected);
        assert_eq!(Note::from_json(&note.to_json()), Some(note));
        assert_eq!(Note::from_json(&expected.to_string().replace("\"v\":1", "\"v\":2")), None, "another version");
    }

    #[test]
    fn notes_that_make_no_sense_are_none() {
        let order = order(&[(0, 0, "a"), (1, 0, "a")]);
        let good = Note::new(5, order).to_json();
        assert!(Note::from_json(&good).is_some());
        // The first would need memory for that many devices. The others would end the stream to the daemon.
        for (part, other) in [
            ("[[1,500]]", "[[4294967295,500]]"),
            ("[[1,500]]", "[[1,0]]"),
            ("[[1,500]]", "[[1,1001]]"),
            ("\"server\":\"a\"", "\"server\":\"\""),
            ("\"role\":\"server\"", "\"role\":\"worker\""),
            ("\"run\"", "\"wait\""),
            ("\"slots\":[", "\"slots\":[[],"),
        ] {
            assert!(good.contains(part) && Note::from_json(&good.replacen(part, other, 1)).is_none(), "{other}");
        }
    }
}
