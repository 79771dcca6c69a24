//! A job's plan, as it is written where its driver reads it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use trainmaster_core::Role;
use trainmaster_proto::v1;

use super::super::names::{SlotId, slot_name};
use crate::file::MOST_DEVICES;

/// The form of what is written; drivers refuse others.
const VERSION: u32 = 1;
/// More slots than a job should ever have; a plan beyond it is a mistake.
const MOST_SLOTS: usize = 65_536;

/// What a driver reads in `plan/<job>`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Note {
    v: u32,
    /// The decision that brought it.
    pub(crate) decision: u64,
    #[serde(flatten)]
    pub(crate) order: Order,
    /// Why it can't be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) refused: Option<String>,
}

/// What is to become of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) name: String,
    pub(crate) action: Action,
    pub(crate) incarnation: u32,
    pub(crate) revision: u32,
    pub(crate) reason: String,
    /// Of a run.
    slots: Vec<PlannedSlot>,
}

/// What a driver is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Action {
    Run,
    Wait,
    Stop,
    Reject,
    Release,
}

/// A slot of a run. Ray picks the devices; those here are the scheduler's count of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PlannedSlot {
    role: RoleName,
    index: u32,
    pub(crate) server: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) devices: Vec<(u32, u32)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum RoleName {
    Worker,
    Server,
}

impl PlannedSlot {
    pub(crate) fn id(&self) -> SlotId {
        let role = match self.role {
            RoleName::Worker => Role::Worker,
            RoleName::Server => Role::Server,
        };
        (role, self.index)
    }

    fn is_sound(&self) -> bool {
        let is_share = |(device, milli): &(u32, u32)| i64::from(*device) < MOST_DEVICES && (1..=1000).contains(milli);
        !self.server.is_empty() && self.devices.iter().all(is_share)
    }
}

impl Note {
    pub(crate) fn new(decision: u64, order: Order) -> Self {
        Self { v: VERSION, decision, order, refused: None }
    }

    pub(crate) fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a note is plain data")
    }

    /// `None`: it makes no sense, or not to this version. Anybody on the cluster may have written it.
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

impl Order {
    /// Reads a job's plan; `knows` tells servers that there are.
    ///
    /// # Errors
    /// The cause of the refusal, naming the value and what is allowed.
    pub(crate) fn read(plan: v1::JobPlan, knows: impl Fn(&str) -> bool) -> Result<Self, String> {
        let action = match v1::Action::try_from(plan.action) {
            Ok(v1::Action::Run) => Action::Run,
            Ok(v1::Action::Wait) => Action::Wait,
            Ok(v1::Action::Stop) => Action::Stop,
            Ok(v1::Action::Reject) => Action::Reject,
            Ok(v1::Action::Release) => Action::Release,
            Err(_) => return Err(format!("action {} is unknown; allowed are 0 to 4", plan.action)),
        };
        let slots = if action == Action::Run { slots(plan.slots, knows)? } else { Vec::new() };
        Ok(Self {
            name: plan.name,
            action,
            incarnation: plan.incarnation,
            revision: plan.revision,
            reason: plan.reason,
            slots,
        })
    }

    /// What is to run; nothing of any other action.
    pub(crate) fn slots(&self) -> &[PlannedSlot] {
        &self.slots
    }

    /// The servers that are to run something.
    pub(crate) fn servers(&self) -> BTreeSet<&str> {
        self.slots.iter().map(|slot| slot.server.as_str()).collect()
    }

    /// It is over.
    pub(crate) fn ends(&self) -> bool {
        matches!(self.action, Action::Stop | Action::Reject)
    }

    /// Nothing of it is known any more.
    pub(crate) fn unlisted(&self) -> Self {
        let reason = "the scheduler no longer lists this job".into();
        Self { action: Action::Stop, reason, slots: Vec::new(), ..self.clone() }
    }
}

fn slots(slots: Vec<v1::Slot>, knows: impl Fn(&str) -> bool) -> Result<Vec<PlannedSlot>, String> {
    if slots.is_empty() || slots.len() > MOST_SLOTS {
        return Err(format!("{} slots to run; allowed are 1 to {MOST_SLOTS}", slots.len()));
    }
    let mut read: BTreeMap<SlotId, PlannedSlot> = BTreeMap::new();
    for slot in slots {
        let role = match v1::SlotRole::try_from(slot.role) {
            Ok(v1::SlotRole::Worker) => RoleName::Worker,
            Ok(v1::SlotRole::Server) => RoleName::Server,
            Err(_) => return Err(format!("slot role {} is unknown; allowed are 0 (worker) and 1 (server)", slot.role)),
        };
        let devices = slot.devices.iter().map(|share| (share.device, share.milli)).collect();
        let slot = PlannedSlot { role, index: slot.index, server: slot.server, devices };
        let id = slot.id();
        if !knows(&slot.server) {
            return Err(format!("{} is to run on {:?}, which is not among the nodes", slot_name(id), slot.server));
        }
        if read.insert(id, slot).is_some() {
            return Err(format!("{} is named twice", slot_name(id)));
        }
    }
    Ok(read.into_values().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(slots: &[(i32, u32, &str)]) -> v1::JobPlan {
        let slot = |&(role, index, server): &(i32, u32, &str)| v1::Slot {
            role,
            index,
            server: server.into(),
            devices: vec![v1::DeviceShare { device: 1, milli: 500 }],
            idle: false,
        };
        v1::JobPlan { job: 7, name: "n".into(), slots: slots.iter().map(slot).collect(), ..v1::JobPlan::default() }
    }

    #[test]
    fn a_note_is_what_drivers_read() {
        let order = Order::read(plan(&[(1, 0, "a"), (0, 0, "a")]), |_| true).unwrap();
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
        let order = Order::read(plan(&[(0, 0, "a"), (1, 0, "a")]), |_| true).unwrap();
        let good = Note::new(5, order).to_json();
        assert!(Note::from_json(&good).is_some());
        // For the first, memory was taken for as many devices; the others ended the stream to the daemon.
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

    #[test]
    fn plans_that_make_no_sense_are_refused_with_the_cause() {
        let refused = |plan| Order::read(plan, |server| server == "a").unwrap_err();
        assert!(refused(plan(&[(0, 3, "b")])).contains("worker 3 is to run on \"b\""));
        assert!(refused(plan(&[(0, 0, "a"), (0, 0, "a")])).contains("worker 0 is named twice"));
        assert!(refused(plan(&[(2, 0, "a")])).contains("role 2"));
        assert!(refused(plan(&[])).contains("0 slots"));
        assert!(refused(v1::JobPlan { action: 9, ..plan(&[]) }).contains("action 9"));
        let wait = v1::JobPlan { action: v1::Action::Wait.into(), ..plan(&[(0, 0, "gone")]) };
        assert_eq!(Order::read(wait, |_| false).unwrap().slots(), []);
    }
}
