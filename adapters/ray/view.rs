//! What Ray's head tells, as far as it matters here. Plain data.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use serde::Deserialize;

use super::names::{GroupName, SlotId, parse_slots};

/// A node's id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NodeId(pub(crate) Vec<u8>);

impl NodeId {
    /// `None`: it isn't written in hexadecimal digits.
    pub(crate) fn parse(hex: &str) -> Option<Self> {
        let byte = |at| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok();
        (0..hex.len()).step_by(2).map(byte).collect::<Option<_>>().map(Self)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Amounts as Ray counts them.
pub(crate) type Resources = BTreeMap<String, f64>;

/// The cluster at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct View {
    /// Those that are alive.
    pub(crate) nodes: BTreeMap<NodeId, Node>,
    /// Ours, those that were removed aside.
    pub(crate) groups: Vec<Group>,
    /// The ids, in hex, of drivers that are alive.
    pub(crate) drivers: BTreeSet<String>,
    /// What drivers say of their jobs, by the job's number.
    pub(crate) records: BTreeMap<u64, Record>,
    /// What drivers say can't be read: what is reserved is taken to work.
    pub(crate) silent: bool,
    /// What the autoscaler is asked for, by whomever.
    pub(crate) asked: Request,
    /// It can't bring that.
    pub(crate) infeasible: bool,
    /// After a connect: all that this adapter, or one before it, wrote.
    pub(crate) written: Option<BTreeMap<String, String>>,
}

/// A node that is alive.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Node {
    /// As it was started, or its address.
    pub(crate) name: String,
    /// The autoscaler's node type; empty where nobody said.
    pub(crate) node_type: String,
    pub(crate) total: Resources,
    /// What neither bundles nor anybody else holds.
    pub(crate) available: Resources,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) draining: bool,
}

/// A placement group of a job.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Group {
    pub(crate) id: Vec<u8>,
    pub(crate) name: GroupName,
    pub(crate) state: GroupState,
    /// Why it isn't placed yet, as Ray's scheduler says.
    pub(crate) why: &'static str,
    /// In the order of the name's slots.
    pub(crate) bundles: Vec<Bundle>,
}

/// Where a group is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GroupState {
    /// Nothing is reserved yet.
    Pending,
    /// All bundles are there.
    Created,
    /// Nodes were lost: the bundles that have one are there.
    Rescheduling,
}

impl GroupState {
    /// Of Ray's name for it; `None`: the group is gone.
    pub(crate) fn named(name: &str) -> Option<Self> {
        match name {
            "REMOVED" => None,
            "CREATED" => Some(Self::Created),
            "RESCHEDULING" => Some(Self::Rescheduling),
            _ => Some(Self::Pending),
        }
    }
}

/// Why a group isn't placed, of Ray's name for how far its scheduler is.
pub(crate) fn why(scheduling_state: &str) -> &'static str {
    match scheduling_state {
        "NO_RESOURCES" => "its nodes don't have enough free",
        "INFEASIBLE" => "no node can ever hold it",
        "FAILED_TO_COMMIT_RESOURCES" => "its nodes didn't keep their promise",
        _ => "Ray hasn't tried yet",
    }
}

/// A slot's reservation.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Bundle {
    pub(crate) node: Option<NodeId>,
    pub(crate) resources: Resources,
}

impl Group {
    /// The slots that have a node, with the resources reserved for them.
    pub(crate) fn placed(&self) -> impl Iterator<Item = (SlotId, &NodeId, &Resources)> {
        let there = self.state != GroupState::Pending;
        let bundles = self.name.slots.iter().zip(&self.bundles).filter(move |_| there);
        bundles.filter_map(|(slot, bundle)| Some((*slot, bundle.node.as_ref()?, &bundle.resources)))
    }
}

/// What a driver says of its job.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub(crate) struct Record {
    pub(crate) name: String,
    /// Its id, in hex.
    pub(crate) driver: String,
    #[serde(default)]
    pub(crate) on_driver_death: OnDriverDeath,
    pub(crate) phase: RecordPhase,
    #[serde(default)]
    pub(crate) message: String,
    #[serde(default)]
    pub(crate) running: Option<RunningSlots>,
    /// A revision that it can't follow.
    #[serde(default)]
    pub(crate) refused: Option<RefusedRevision>,
}

/// What a driver can't carry out of its plan: the job goes on as it was.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub(crate) struct RefusedRevision {
    pub(crate) incarnation: u32,
    pub(crate) revision: u32,
    pub(crate) cause: String,
}

/// What becomes of a job whose driver died.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OnDriverDeath {
    /// It has failed.
    #[default]
    Cancel,
    /// It waits for the next driver.
    Resume,
}

/// Whether a job goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RecordPhase {
    #[default]
    Active,
    Completed,
    Failed,
}

/// Slots whose actors are alive and follow that revision.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub(crate) struct RunningSlots {
    pub(crate) incarnation: u32,
    #[serde(default)]
    slots: String,
}

impl RunningSlots {
    /// None of them where the list makes no sense.
    pub(crate) fn slots(&self) -> BTreeSet<SlotId> {
        parse_slots(&self.slots).unwrap_or_default().into_iter().collect()
    }
}

/// What the autoscaler is asked to bring: so many of each.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Request(pub(crate) Vec<Ask>);

/// So many bundles, each on a node with these labels.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Ask {
    pub(crate) count: i64,
    pub(crate) resources: Resources,
    pub(crate) labels: BTreeMap<String, String>,
}

impl Request {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|ask| ask.count == 0)
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("nothing");
        }
        for (at, ask) in self.0.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            write!(f, "{comma}{} x {:?}", ask.count, ask.resources)?;
            if !ask.labels.is_empty() {
                write!(f, " on {:?}", ask.labels)?;
            }
        }
        Ok(())
    }
}
