//! The relevant state of Ray's head, as plain data.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use serde::{Deserialize, Deserializer};

use super::{
    amounts,
    bounds::{LONGEST_ID, LONGEST_LABEL, LONGEST_NAME, LONGEST_RECORD, MOST_LABELS, is_name, words},
    names::{GroupName, SlotId, SlotRanges},
};

/// A node's id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NodeId(pub(crate) Vec<u8>);

impl NodeId {
    /// Returns `None` if the text isn't hexadecimal digits.
    pub(crate) fn parse(hex: &str) -> Option<Self> {
        let is_hex = hex.len() <= 2 * LONGEST_ID && hex.bytes().all(|digit| digit.is_ascii_hexdigit());
        let byte = |at| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok();
        (0..hex.len()).step_by(2).map(byte).collect::<Option<_>>().filter(|_| is_hex).map(Self)
    }

    /// Whether it can be a node's id.
    pub(crate) fn is_sound(&self) -> bool {
        (1..=LONGEST_ID).contains(&self.0.len())
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Amounts in Ray's units.
pub(crate) type Resources = BTreeMap<String, f64>;

/// The cluster at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct View {
    /// The living nodes.
    pub(crate) nodes: BTreeMap<NodeId, Node>,
    /// Trainmaster's groups by job, except removed ones.
    pub(crate) groups: Vec<Group>,
    /// The ids of living drivers, in hexadecimal digits.
    pub(crate) drivers: BTreeSet<String>,
    /// Drivers' records of their jobs, by the job's number.
    pub(crate) records: BTreeMap<u64, Record>,
    /// Whether drivers' records can't be read. Then reserved slots are assumed to work.
    pub(crate) silent: bool,
    /// The current request to the autoscaler, from anyone.
    pub(crate) asked: Request,
    /// Whether the autoscaler can't fulfil it.
    pub(crate) infeasible: bool,
    /// After connecting: all data that this adapter, or an earlier one, wrote.
    pub(crate) written: Option<BTreeMap<String, String>>,
}

impl View {
    /// A job's groups. Cost: O(log(groups)).
    pub(crate) fn groups_of(&self, job: u64) -> &[Group] {
        let from = self.groups.partition_point(|group| group.name.job < job);
        let count = self.groups[from..].partition_point(|group| group.name.job == job);
        &self.groups[from..from + count]
    }
}

/// A living node.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Node {
    /// The name with which it was started, or its address; empty if that isn't a valid name.
    pub(crate) name: String,
    /// The autoscaler's node type; empty if not stated.
    pub(crate) node_type: String,
    pub(crate) total: Resources,
    /// The resources that neither bundles nor other users hold.
    pub(crate) available: Resources,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) draining: bool,
}

impl Node {
    /// Removes invalid and excessive data, because a node can report anything.
    pub(crate) fn bounded(mut self) -> Self {
        if !is_name(&self.name, LONGEST_NAME) {
            self.name = String::new();
        }
        if !is_name(&self.node_type, LONGEST_NAME) {
            self.node_type = String::new();
        }
        self.total = amounts::counted(self.total);
        self.available = self.total.keys().map(|name| (name.clone(), self.free(name))).collect();
        let is_label = |text: &str| text.is_empty() || is_name(text, LONGEST_LABEL);
        let mut left = MOST_LABELS;
        self.labels.retain(|label, value| {
            let fits = left > 0 && is_label(label) && is_label(value);
            left -= usize::from(fits);
            fits
        });
        self
    }

    /// The free amount of a resource. It is negative if more is used than exists.
    fn free(&self, name: &str) -> f64 {
        let free = self.available.get(name).copied().filter(|amount| !amount.is_nan());
        free.unwrap_or(0.0).clamp(-self.total[name], self.total[name])
    }
}

/// A placement group of a job.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Group {
    pub(crate) id: Vec<u8>,
    pub(crate) name: GroupName,
    pub(crate) state: GroupState,
    /// Why it isn't placed yet, according to Ray's scheduler.
    pub(crate) why: &'static str,
    /// In the order of the name's slots.
    pub(crate) bundles: Vec<Bundle>,
}

/// The state of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GroupState {
    /// Nothing is reserved yet.
    Pending,
    /// All bundles are placed.
    Created,
    /// Nodes were lost. The bundles with a node are still placed.
    Rescheduling,
}

impl GroupState {
    /// Converts Ray's name of a state. Returns `None` if the group is gone.
    pub(crate) fn named(name: &str) -> Option<Self> {
        match name {
            "REMOVED" => None,
            "CREATED" => Some(Self::Created),
            "RESCHEDULING" => Some(Self::Rescheduling),
            _ => Some(Self::Pending),
        }
    }
}

/// Why a group isn't placed, from Ray's name of the scheduling state.
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
    /// The slots with a node, and the resources reserved for them.
    pub(crate) fn placed(&self) -> impl Iterator<Item = (SlotId, &NodeId, &Resources)> {
        let there = self.state != GroupState::Pending;
        let bundles = self.name.slots.iter().zip(&self.bundles).filter(move |_| there);
        bundles.filter_map(|(slot, bundle)| Some((*slot, bundle.node.as_ref()?, &bundle.resources)))
    }
}

/// A driver's record of its job.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub(crate) struct Record {
    pub(crate) name: String,
    /// The driver's id, in hexadecimal digits.
    pub(crate) driver: String,
    #[serde(default)]
    pub(crate) on_driver_death: OnDriverDeath,
    pub(crate) phase: RecordPhase,
    #[serde(default)]
    pub(crate) message: String,
    #[serde(default)]
    pub(crate) running: Option<RunningSlots>,
    /// A revision that the driver can't follow.
    #[serde(default)]
    pub(crate) refused: Option<RefusedRevision>,
}

impl Record {
    /// # Errors
    /// The text is invalid. The error describes the problem.
    pub(crate) fn read(text: &[u8]) -> Result<Self, String> {
        if text.len() > LONGEST_RECORD {
            return Err(format!("{} bytes must be at most {LONGEST_RECORD}", text.len()));
        }
        let mut record: Self = serde_json::from_slice(text).map_err(|error| words(&error.to_string()))?;
        for (key, name) in [("name", &record.name), ("driver", &record.driver)] {
            if !is_name(name, LONGEST_NAME) {
                return Err(format!("{key}: {:?} must be a name", words(name)));
            }
        }
        record.message = words(&record.message);
        if let Some(refused) = &mut record.refused {
            refused.cause = words(&refused.cause);
        }
        Ok(record)
    }
}

/// A revision that a driver can't carry out. The job continues as before.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub(crate) struct RefusedRevision {
    pub(crate) incarnation: u32,
    pub(crate) revision: u32,
    pub(crate) cause: String,
}

/// What happens to a job if its driver dies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OnDriverDeath {
    /// It fails.
    #[default]
    Cancel,
    /// It waits for the next driver.
    Resume,
}

/// The phase of a job in its driver's record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RecordPhase {
    #[default]
    Active,
    Completed,
    Failed,
}

/// The slots whose actors are alive and follow the revision.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub(crate) struct RunningSlots {
    pub(crate) incarnation: u32,
    #[serde(default, deserialize_with = "ranges")]
    slots: SlotRanges,
}

impl RunningSlots {
    pub(crate) fn has(&self, slot: SlotId) -> bool {
        self.slots.contains(slot)
    }
}

/// Returns an empty list if the text is invalid.
fn ranges<'de, D: Deserializer<'de>>(from: D) -> Result<SlotRanges, D::Error> {
    Ok(SlotRanges::parse(&String::deserialize(from)?).unwrap_or_default())
}

/// A request to the autoscaler: a number of bundles of each kind.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Request(pub(crate) Vec<Ask>);

/// Maximum number of entries of a request that are shown, because a request can have any number.
const MOST_SHOWN: usize = 8;

fn some<T: fmt::Debug>(of: &BTreeMap<String, T>) -> String {
    format!("{:?}", of.iter().take(MOST_SHOWN).collect::<BTreeMap<_, _>>())
}

/// A number of bundles, each on a node with these labels.
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
        let ask = |ask: &Ask| {
            let on = if ask.labels.is_empty() { String::new() } else { format!(" on {}", some(&ask.labels)) };
            format!("{} x {}{on}", ask.count, some(&ask.resources))
        };
        let shown: Vec<_> = self.0.iter().take(MOST_SHOWN).map(ask).collect();
        f.write_str(&words(&shown.join(", ")))?;
        if self.0.len() > MOST_SHOWN { write!(f, " and {} more", self.0.len() - MOST_SHOWN) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ids_are_hexadecimal_digits() {
        assert_eq!(NodeId::parse("0aFF"), Some(NodeId(vec![10, 255])));
        let long = "0".repeat(2 * LONGEST_ID + 2);
        for text in ["0", "+f", "0x", "éé", "-1", &long] {
            assert_eq!(NodeId::parse(text), None, "{text}");
        }
        assert!(NodeId(vec![1; 28]).is_sound());
        assert!(!NodeId(Vec::new()).is_sound() && !NodeId(vec![1; 1000]).is_sound());
    }

    #[test]
    fn a_record_says_little_whatever_it_says() {
        let text = r#"{"v":1,"name":"n","driver":"01000000","phase":"active",
            "running":{"incarnation":2,"revision":1,"slots":"w0"}}"#;
        let read = Record::read(text.as_bytes()).unwrap();
        assert!(read.name == "n" && read.running.unwrap().has(SlotId::new(trainmaster_core::Role::Worker, 0)));
        let long = "x".repeat(LONGEST_RECORD - 200);
        let text = format!(r#"{{"name":"n","driver":"1","phase":"failed","message":"\u001b[2J{long}"}}"#);
        let message = Record::read(text.as_bytes()).unwrap().message;
        assert!(message.starts_with("\\u{1b}[2Jx") && message.chars().count() < 1020);
        for (text, problem) in [
            ("{}", "missing field"),
            (&format!("{{\"x\":{}", "[".repeat(100_000)), "EOF"),
            (&"x".repeat(LONGEST_RECORD + 1), "must be at most"),
            (&format!(r#"{{"name":"{}","driver":"1","phase":"active"}}"#, "n".repeat(300)), "name: "),
            (r#"{"name":"n","driver":"\n","phase":"active"}"#, "driver: "),
            (&format!(r#"{{"name":"n","driver":"1","phase":"{}"}}"#, "p".repeat(5000)), "unknown variant"),
        ] {
            let error = Record::read(text.as_bytes()).unwrap_err();
            assert!(error.contains(problem) && error.chars().count() <= 1400, "{error}");
        }
        assert!(Record::read(b"\xff").is_err());
    }

    #[test]
    fn of_a_node_is_taken_what_can_be() {
        let many = |prefix: &str| (0..1000).map(|at| (format!("{prefix}{at:03}"), 1.0)).collect::<Resources>();
        let mut total = many("r");
        let odd = [("neg", -1.0), ("nan", f64::NAN), ("inf", f64::INFINITY), ("big", 1e300), ("\n", 1.0), ("", 1.0)];
        total.extend(odd.map(|(name, amount)| (name.to_owned(), amount)));
        total.extend([("CPU".to_owned(), 4.0), ("GPU".to_owned(), 1e6), ("memory".to_owned(), 1e9)]);
        let labels = (0..1000).map(|at| (format!("l{at:03}"), "x".repeat(if at == 3 { 300 } else { 3 })));
        let node = Node {
            name: "a\u{1b}[2J".into(),
            node_type: "t".repeat(500),
            available: total.clone(),
            total,
            labels: labels.chain([("\n".to_owned(), String::new())]).collect(),
            draining: false,
        };
        let node = node.bounded();
        assert_eq!((node.name.as_str(), node.node_type.as_str()), ("", ""));
        assert_eq!((node.total.len(), node.labels.len()), (64 + 3, 64));
        assert!(["CPU", "GPU", "memory", "r000"].iter().all(|name| node.total.contains_key(*name)));
        assert!(!node.labels.contains_key("l003") && node.available.keys().eq(node.total.keys()));
        assert_eq!(amounts::devices(&node.total, "gpu").len(), 1024, "no more than there could be");
    }

    #[test]
    fn what_others_ask_for_is_shown_in_short() {
        let resources: Resources = (0..10_000).map(|at| (format!("r{at}\u{1b}"), 1.0)).collect();
        let request = Request(vec![Ask { count: 1, resources, ..Ask::default() }; 1000]);
        let shown = request.to_string();
        assert!(
            shown.chars().count() < 1100 && shown.ends_with("and 992 more") && !shown.contains('\u{1b}'),
            "{}",
            shown.len()
        );
    }

    proptest! {
        #[test]
        fn any_record_is_read_or_refused_in_few_words(text: [u8; 100], json in json()) {
            for text in [text.to_vec(), json.to_string().into_bytes()] {
                if let Err(problem) = Record::read(&text) {
                    prop_assert!(problem.chars().count() <= 1400);
                }
            }
        }
    }

    /// A document similar to a record.
    fn json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<i64>().prop_map(Into::into),
            any::<bool>().prop_map(Into::into),
            ".{0,8}".prop_map(Into::into),
            prop_oneof![Just("active"), Just("failed"), Just("resume"), Just("w0-3"), Just("w0-4294967295")]
                .prop_map(Into::into),
        ];
        let key = "v|name|driver|phase|message|running|refused|incarnation|revision|slots|cause|on_driver_death";
        leaf.prop_recursive(3, 20, 12, move |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
                proptest::collection::btree_map(key, inner, 0..12)
                    .prop_map(|fields| serde_json::Value::Object(fields.into_iter().collect())),
            ]
        })
    }
}
