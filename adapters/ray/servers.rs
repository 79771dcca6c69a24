//! Nodes as servers: their names, their capacities, and their foreign use.

use std::collections::{BTreeMap, BTreeSet};

use trainmaster_core::{amount::parse_span, server::Place};
use trainmaster_proto::v1;

use super::{
    amounts,
    config::{Config, NodeType},
    view::{Node, NodeId},
};

/// Number of digits of a node's id that distinguish it from nodes of the same name.
const DIGITS: usize = 8;

/// The server of each node. A name stays valid while the node is alive. If the node has a type that can come again, the
/// name stays valid afterwards too.
#[derive(Debug, Default)]
pub(crate) struct Names {
    by_name: BTreeMap<String, NodeId>,
    by_node: BTreeMap<NodeId, String>,
}

impl Names {
    pub(crate) fn of(&self, node: &NodeId) -> Option<&str> {
        self.by_node.get(node).map(String::as_str)
    }

    pub(crate) fn node(&self, server: &str) -> Option<&NodeId> {
        self.by_name.get(server)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &NodeId)> {
        self.by_name.iter().map(|(name, node)| (name.as_str(), node))
    }

    /// Restores an earlier name, if the node is alive and the name is possible for it.
    pub(crate) fn restore(&mut self, name: &str, node: &str, nodes: &BTreeMap<NodeId, Node>, config: &Config) {
        let Some((id, node)) = NodeId::parse(node).and_then(|id| nodes.get_key_value(&id)) else { return };
        let comes = |node_type: &NodeType| node_type.name == node.node_type && node_type.has(name);
        let could = own_names(id, node).iter().any(|own| own == name) || config.node_types.iter().any(comes);
        if could && !self.by_node.contains_key(id) && !self.by_name.contains_key(name) {
            self.set(name.to_owned(), id.clone());
        }
    }

    /// Assigns names to the existing nodes. `wanted` are the servers that plans name, and `busy` those in use.
    pub(crate) fn update(
        &mut self,
        nodes: &BTreeMap<NodeId, Node>,
        config: &Config,
        wanted: &BTreeSet<&str>,
        busy: &BTreeSet<String>,
    ) {
        self.by_node.retain(|node, _| nodes.contains_key(node));
        self.by_name.retain(|_, node| nodes.contains_key(node));
        for (id, node) in nodes {
            if !self.by_node.contains_key(id) {
                let name = self.choose(id, node, config, wanted);
                self.set(name, id.clone());
            }
        }
        for node_type in &config.node_types {
            self.rebind(node_type, wanted, busy);
        }
    }

    fn choose(&self, id: &NodeId, node: &Node, config: &Config, wanted: &BTreeSet<&str>) -> String {
        let node_type = config.node_types.iter().find(|node_type| node_type.name == node.node_type);
        let free = |name: &String| !self.by_name.contains_key(name);
        let mut to_come: Vec<String> = node_type.into_iter().flat_map(NodeType::servers).filter(free).collect();
        let first = to_come.iter().position(|name| wanted.contains(name.as_str())).unwrap_or(0);
        if !to_come.is_empty() {
            return to_come.swap_remove(first);
        }
        let reserved = |name: &str| config.node_types.iter().any(|node_type| node_type.has(name));
        let fits = |name: &String| free(name) && !reserved(name);
        own_names(id, node).into_iter().find(fits).unwrap_or_else(|| id.to_string())
    }

    /// Gives the name of a missing server that a plan needs to an unused node of the same type. Otherwise the
    /// autoscaler, which only counts nodes, wouldn't add another.
    fn rebind(&mut self, node_type: &NodeType, wanted: &BTreeSet<&str>, busy: &BTreeSet<String>) {
        let mut spare: Vec<String> = node_type
            .servers()
            .filter(|name| self.by_name.contains_key(name) && !wanted.contains(name.as_str()) && !busy.contains(name))
            .collect();
        let missing = wanted.iter().filter(|name| node_type.has(name) && !self.by_name.contains_key(**name));
        for name in missing.map(|name| (*name).to_owned()).collect::<Vec<_>>() {
            let Some(node) = spare.pop().and_then(|spare| self.by_name.remove(&spare)) else { return };
            self.set(name, node);
        }
    }

    fn set(&mut self, name: String, node: NodeId) {
        self.by_node.insert(node.clone(), name.clone());
        self.by_name.insert(name, node);
    }
}

/// The possible names of a node, best first: its own name, that name with the first digits of its id, its id.
fn own_names(id: &NodeId, node: &Node) -> Vec<String> {
    let hex = id.to_string();
    let named = [node.name.clone(), format!("{}-{hex:.DIGITS$}", node.name)];
    named.into_iter().filter(|_| !node.name.is_empty()).chain([hex.clone()]).collect()
}

/// A node as reported to the daemon. `ours` has the thousandths of each GPU that Trainmaster's jobs hold.
pub(crate) fn server(
    name: &str,
    node: &Node,
    config: &Config,
    foreign: BTreeMap<String, i64>,
    ours: &[i64],
) -> v1::Server {
    let node_type = config.node_types.iter().find(|node_type| node_type.has(name));
    let mut labels = node_type.map(cloud_labels).unwrap_or_default();
    labels.extend(node.labels.iter().map(|(key, value)| (key.clone(), value.clone())));
    // A placement group keeps its bundles' GPUs.
    let (label, kept) = Place::KEPT_GPUS;
    labels.insert(label.into(), kept.into());
    let kind = amounts::gpu_kind(&labels);
    let devices = amounts::devices(&node.total, &kind);
    let mut ours = ours.to_vec();
    ours.resize(devices.len(), 0);
    let mut foreign = foreign;
    let gpus = foreign.remove("GPU").unwrap_or(0);
    let foreign_devices = amounts::shares(gpus, &ours);
    let held: i64 = foreign_devices.iter().map(|share| i64::from(share.milli)).sum();
    if held > 0 {
        foreign.insert(kind, held);
    }
    let mut capacity = amounts::capacity(&node.total);
    capacity.extend(config.uncounted());
    v1::Server {
        name: name.to_owned(),
        capacity: capacity.into_iter().collect(),
        devices,
        labels: labels.into_iter().collect(),
        draining: node.draining,
        foreign: foreign.into_iter().collect(),
        foreign_devices,
    }
}

/// A node that the autoscaler could add. All of it is free, and its upload times include its start-up time.
pub(crate) fn to_come(name: &str, node_type: &NodeType, config: &Config) -> v1::Server {
    let node = Node { total: node_type.amounts(), labels: later(node_type), ..Node::default() };
    server(name, &node, config, BTreeMap::new(), &[])
}

/// The labels of a node type. Its nodes are in the zone `cloud`, unless they have another zone.
fn cloud_labels(node_type: &NodeType) -> BTreeMap<String, String> {
    let mut labels = node_type.labels.clone();
    labels.entry("zone".into()).or_insert_with(|| "cloud".into());
    labels
}

/// The upload times to a node that has to start first.
fn later(node_type: &NodeType) -> BTreeMap<String, String> {
    let uploads = node_type.labels.iter().filter(|(key, _)| *key == "upload" || key.starts_with("upload."));
    let mut times: BTreeMap<String, u128> = uploads
        .map(|(key, text)| (key.clone(), parse_span(text).map_or(0, |span| u128::from(span.0.unsigned_abs()))))
        .collect();
    times.entry("upload".into()).or_default();
    times.into_iter().map(|(key, ms)| (key, format!("{}ms", ms + node_type.delay.as_millis()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        let text =
            "[[node_types]]\nname = \"burst\"\ncount = 2\ngpu = 2\ncpu = 4\nlabels = { tier = \"b\" }\ndelay = \"90s\"";
        Config::parse(&format!("disk = \"1GiB\"\n{text}"), "test").unwrap()
    }

    fn nodes(list: &[(u8, &str, &str)]) -> BTreeMap<NodeId, Node> {
        let node = |name: &str, node_type: &str| Node {
            name: name.into(),
            node_type: node_type.into(),
            total: [("CPU".to_owned(), 4.0), ("GPU".to_owned(), 2.0)].into(),
            ..Node::default()
        };
        list.iter().map(|(id, name, node_type)| (NodeId(vec![*id; 28]), node(name, node_type))).collect()
    }

    fn named(names: &Names) -> Vec<(&str, u8)> {
        names.iter().map(|(name, node)| (name, node.0[0])).collect()
    }

    #[test]
    fn names_are_the_nodes_own_where_they_can_be() {
        let (config, mut names) = (config(), Names::default());
        let all = nodes(&[(1, "a", ""), (2, "a", ""), (3, "burst-0", "")]);
        names.update(&all, &config, &BTreeSet::new(), &BTreeSet::new());
        assert_eq!(named(&names), [("a", 1), ("a-02020202", 2), ("burst-0-03030303", 3)]);
        // Another node of the same name keeps its own. A later one gets a free name.
        names.update(&nodes(&[(2, "a", ""), (5, "a", "")]), &config, &BTreeSet::new(), &BTreeSet::new());
        assert_eq!(named(&names), [("a", 5), ("a-02020202", 2)]);
    }

    #[test]
    fn nodes_that_come_are_the_servers_that_were_waited_for() {
        let (config, mut names) = (config(), Names::default());
        let wanted = BTreeSet::from(["burst-1"]);
        names.update(&nodes(&[(1, "x", "burst")]), &config, &wanted, &BTreeSet::new());
        assert_eq!(named(&names), [("burst-1", 1)]);
        let three = nodes(&[(1, "x", "burst"), (2, "x", "burst"), (3, "x", "burst")]);
        names.update(&three, &config, &wanted, &BTreeSet::new());
        assert_eq!(named(&names), [("burst-0", 2), ("burst-1", 1), ("x", 3)], "more than were said to come");
        // The node dies. Its server is needed again, and the idle node takes its name.
        let left = nodes(&[(2, "x", "burst")]);
        names.update(&left, &config, &wanted, &BTreeSet::from(["burst-0".to_owned()]));
        assert_eq!(named(&names), [("burst-0", 2)], "it is in use");
        names.update(&left, &config, &wanted, &BTreeSet::new());
        assert_eq!((named(&names), names.of(&NodeId(vec![2; 28]))), (vec![("burst-1", 2)], Some("burst-1")));
    }

    #[test]
    fn names_given_earlier_are_kept() {
        let (all, mut names) = (nodes(&[(1, "a", ""), (2, "a", "")]), Names::default());
        names.restore("a", &"02".repeat(28), &all, &config());
        names.restore("b", &"02".repeat(28), &all, &config());
        names.restore("gone", &"07".repeat(28), &all, &config());
        // Made-up names: neither this node's name nor one of its type.
        for name in ["\u{1b}[2J", "b", "burst-0", ""] {
            names.restore(name, &"01".repeat(28), &all, &config());
        }
        names.update(&all, &config(), &BTreeSet::new(), &BTreeSet::new());
        assert_eq!(named(&names), [("a", 2), ("a-01010101", 1)]);
    }

    #[test]
    fn a_node_to_come_is_the_clouds_and_further_away() {
        let config = config();
        let waits = to_come("burst-0", &config.node_types[0], &config);
        assert_eq!((waits.labels["zone"].as_str(), waits.labels["upload"].as_str()), ("cloud", "90000ms"));
        assert_eq!((waits.capacity["cpu"], waits.capacity["disk"], waits.devices.len()), (4000, 1024, 2));
        let node = nodes(&[(1, "x", "burst")]).into_values().next().unwrap();
        let foreign = BTreeMap::from([("GPU".to_owned(), 1000), ("cpu".to_owned(), 500)]);
        let there = server("burst-0", &node, &config, foreign, &[0, 1000]);
        assert_eq!((there.labels["tier"].as_str(), there.labels["zone"].as_str()), ("b", "cloud"));
        assert_eq!(there.labels["idle_gpus"], "kept");
        assert!(!there.labels.contains_key("upload"), "it is there");
        assert_eq!((there.foreign["gpu"], there.foreign["cpu"]), (1000, 500));
        assert_eq!(there.foreign_devices, [v1::DeviceShare { device: 0, milli: 1000 }], "ours is the other one");
    }
}
