//! Nodes as servers: their names and capacities.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use trainmaster_core::{server::Place, topology::Level};
use trainmaster_proto::v1;

use super::{amounts, config::Config, wire};

/// Time after a node returned until containers that it doesn't report count as gone.
const SETTLED: Duration = Duration::from_secs(5);
/// Maximum bytes of a rack's name that is told.
const LONGEST_NAME: usize = 255;
/// The default of YARN's `yarn.nm.liveness-monitor.expiry-interval-ms`.
const EXPIRY: Duration = Duration::from_secs(600);

/// The existing nodes, by the names of their servers.
#[derive(Debug, Default)]
pub(crate) struct Nodes {
    by_server: BTreeMap<String, wire::Node>,
    /// Servers by node id.
    servers: HashMap<String, String>,
    /// The start time of the ResourceManager that reported them.
    started_ms: i64,
    /// Nodes from before a restart of the ResourceManager that may return. The value is the time until which their last
    /// state counts.
    awaited: BTreeMap<String, Duration>,
}

impl Nodes {
    /// Takes a snapshot's nodes. A restarted ResourceManager doesn't know its nodes until they return. Until they would
    /// have expired, their last state counts.
    pub(crate) fn see(&mut self, now: Duration, cluster: &mut wire::Cluster, complain: impl FnMut(String)) {
        if self.started_ms != 0 && cluster.started_ms != self.started_ms {
            let told = u64::try_from(cluster.node_expiry_ms).ok().filter(|expiry| *expiry > 0);
            let until = now + told.map_or(EXPIRY, Duration::from_millis);
            self.awaited = self.servers.keys().map(|id| (id.clone(), until)).collect();
        }
        self.started_ms = cluster.started_ms;
        let mut rows = std::mem::take(&mut cluster.nodes);
        for row in &rows {
            match self.awaited.get_mut(&row.id) {
                Some(_) if row.state() == wire::NodeState::Gone => _ = self.awaited.remove(&row.id),
                Some(until) => *until = (*until).min(now + SETTLED),
                None => {}
            }
        }
        self.awaited.retain(|_, until| now < *until);
        let told: BTreeSet<_> = rows.iter().map(|row| &row.id).collect();
        let absent = self.by_server.values().filter(|row| self.is_awaited(&row.id) && !told.contains(&row.id));
        let absent: Vec<_> = absent.cloned().collect();
        rows.extend(absent);
        self.update(rows, complain);
    }

    /// Whether a node hasn't returned yet, or only just. Then its previous containers count too.
    pub(crate) fn is_awaited(&self, node: &str) -> bool {
        self.awaited.contains_key(node)
    }

    /// Takes the reported nodes. A server has the name by which requests name its node. If another node has the same
    /// name, the server has the node's id as its name. It keeps its name while the node exists.
    fn update(&mut self, rows: Vec<wire::Node>, mut complain: impl FnMut(String)) {
        let mut rows: Vec<_> = rows.into_iter().filter(|row| row.state() != wire::NodeState::Gone).collect();
        rows.sort_by(|a, b| a.id.cmp(&b.id));
        rows.dedup_by(|later, first| {
            let twice = later.id == first.id;
            if twice {
                complain(format!("node {:?} is told of twice; the first one counts", first.id));
            }
            twice
        });
        rows.retain(|row| {
            if row.id.is_empty() {
                complain("a node without an id is ignored".into());
            }
            if wire::NodeState::try_from(row.state).is_err() {
                complain(format!("node {:?}: state {} is unknown, and taken for running", row.id, row.state));
            }
            !row.id.is_empty()
        });
        let earlier = std::mem::take(&mut self.servers);
        self.by_server.clear();
        // Nodes that already have names keep them. The others choose afterwards.
        let (known, new): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| earlier.contains_key(&row.id));
        for row in known.into_iter().chain(new) {
            let names = [earlier.get(&row.id), Some(&row.name), Some(&row.id)];
            let free = |name: &&String| !name.is_empty() && !self.by_server.contains_key(*name);
            let Some(name) = names.into_iter().flatten().find(free).cloned() else {
                complain(format!("node {:?} is ignored: others are called {:?} and {:?}", row.id, row.name, row.id));
                continue;
            };
            self.servers.insert(row.id.clone(), name.clone());
            self.by_server.insert(name, row);
        }
    }

    /// The server of a node.
    pub(crate) fn server(&self, node: &str) -> Option<&str> {
        self.servers.get(node).map(String::as_str)
    }

    /// The node of a server.
    pub(crate) fn node(&self, server: &str) -> Option<&wire::Node> {
        self.by_server.get(server)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &wire::Node)> {
        self.by_server.iter().map(|(server, node)| (server.as_str(), node))
    }
}

/// A node as reported to the daemon. YARN chooses devices itself, so GPUs are only counted.
pub(crate) fn server(
    name: &str,
    node: &wire::Node,
    config: &Config,
    foreign: BTreeMap<String, i64>,
    complain: impl FnMut(String),
) -> v1::Server {
    let mut capacity = amounts::read(&format!("capacity of node {:?}", node.id), &node.capacity, complain);
    capacity.extend(config.uncounted());
    let mut labels = node.attributes.clone();
    if !node.partition.is_empty() {
        labels.insert("partition".into(), node.partition.clone());
    }
    for (level, name) in path(&node.rack) {
        labels.entry(level.to_owned()).or_insert_with(|| name.to_owned());
    }
    // A container keeps its GPUs.
    let (label, kept) = Place::KEPT_GPUS;
    labels.insert(label.into(), kept.into());
    v1::Server {
        name: name.to_owned(),
        capacity: capacity.into_iter().collect(),
        devices: Vec::new(),
        labels,
        draining: node.state() == wire::NodeState::Decommissioning,
        foreign: foreign.into_iter().collect(),
        foreign_devices: Vec::new(),
    }
}

/// The levels in YARN's network topology: `/block-1/rack-7` is rack `rack-7` of block `block-1`, and all that is above
/// a rack is the block's name. `/default-rack` is what YARN has for nodes of which it knows nothing.
fn path(rack: &str) -> impl Iterator<Item = (&'static str, &str)> {
    let known = Some(rack.trim_matches('/')).filter(|rack| *rack != "default-rack" && rack.len() <= LONGEST_NAME);
    let (block, rack) = known.map_or(("", ""), |path| path.rsplit_once('/').unwrap_or(("", path)));
    let levels = [(Level::Rack.name(), rack), (Level::Block.name(), block)];
    levels.into_iter().filter(|(_, name)| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(id: &str, name: &str) -> wire::Node {
        wire::Node { id: id.into(), name: name.into(), ..wire::Node::default() }
    }

    fn named(nodes: &Nodes) -> Vec<(&str, &str)> {
        nodes.iter().map(|(server, node)| (server, node.id.as_str())).collect()
    }

    #[test]
    fn servers_are_called_as_requests_call_the_nodes() {
        let mut nodes = Nodes::default();
        let silent = |complaint: String| panic!("{complaint}");
        nodes.update(vec![node("b:1", "b"), node("a:2", "a"), node("a:1", "a")], silent);
        assert_eq!(named(&nodes), [("a", "a:1"), ("a:2", "a:2"), ("b", "b:1")]);
        assert_eq!((nodes.server("a:2"), nodes.server("c:1")), (Some("a:2"), None));
        // Another NodeManager on the same host. A node that has a name keeps it, in any order.
        nodes.update(vec![node("a:0", "a"), node("a:1", "a")], silent);
        assert_eq!(named(&nodes), [("a", "a:1"), ("a:0", "a:0")]);
        // It was restarted on another port.
        let gone = wire::Node { state: wire::NodeState::Gone.into(), ..node("a:1", "a") };
        nodes.update(vec![gone, node("a:9", "a")], silent);
        assert_eq!(named(&nodes), [("a", "a:9")]);
    }

    #[test]
    fn a_resource_manager_that_restarts_gets_its_nodes_back() {
        let mut nodes = Nodes::default();
        let mut see = |second: u64, started_ms: i64, ids: &[&str]| {
            let row = |id: &&str| match id.strip_prefix('-') {
                Some(gone) => wire::Node { state: wire::NodeState::Gone.into(), ..node(gone, gone) },
                None => node(id, id),
            };
            let rows = ids.iter().map(row).collect();
            let mut cluster = wire::Cluster { started_ms, node_expiry_ms: 60_000, nodes: rows, ..Default::default() };
            nodes.see(Duration::from_secs(second), &mut cluster, |complaint| panic!("{complaint}"));
            let there: Vec<_> = nodes.iter().map(|(server, _)| server.to_owned()).collect();
            let awaited: Vec<_> = ["a", "b", "c"].into_iter().filter(|id| nodes.is_awaited(id)).collect();
            (there.concat(), awaited.concat())
        };
        let of = |there: &str, awaited: &str| (there.to_owned(), awaited.to_owned());
        assert_eq!(see(0, 1, &["a", "b", "c"]), of("abc", ""));
        assert_eq!(see(1, 2, &[]), of("abc", "abc"));
        assert_eq!(see(2, 2, &["a"]), of("abc", "abc"));
        assert_eq!(see(3, 2, &["a", "-b"]), of("ac", "ac"));
        // All containers of `a` are reported by now. From now on, unreported ones don't exist.
        assert_eq!(see(7, 2, &["a"]), of("ac", "c"));
        assert_eq!(see(8, 2, &[]), of("c", "c"));
        assert_eq!(see(61, 2, &["a"]), of("a", ""));
    }

    #[test]
    fn what_makes_no_sense_is_complained_about() {
        let (mut nodes, mut complaints) = (Nodes::default(), Vec::new());
        let odd = wire::Node { state: 77, ..node("b:1", "a:1") };
        let rows = vec![node("", "x"), node("a:1", ""), node("a:1", "second"), odd];
        nodes.update(rows, |complaint| complaints.push(complaint));
        assert_eq!(named(&nodes), [("a:1", "a:1"), ("b:1", "b:1")]);
        assert_eq!(complaints.len(), 3, "{complaints:?}");
    }

    #[test]
    fn a_rack_is_a_path() {
        let path = |rack: &str| path(rack).map(|(level, name)| format!("{level} {name}")).collect::<Vec<_>>();
        assert_eq!(path("/r1"), ["rack r1"]);
        assert_eq!(path("/b1/r1"), ["rack r1", "block b1"]);
        assert_eq!(path("/dc1/b1/r1"), ["rack r1", "block dc1/b1"]);
        let long = "x".repeat(300);
        for nothing in ["", "/", "///", "/default-rack", &format!("/{long}"), &format!("/b1/{long}")] {
            assert!(path(nothing).is_empty(), "{nothing}");
        }
    }

    #[test]
    fn a_node_becomes_a_server() {
        let config = Config::parse("bandwidth = \"10Gbit\"", "test").unwrap();
        let row = wire::Node {
            state: wire::NodeState::Decommissioning.into(),
            capacity: [("memory-mb".to_owned(), 4096), ("yarn.io/gpu".to_owned(), 2)].into(),
            partition: "fast".into(),
            attributes: [("rm.yarn.io/rack".to_owned(), "r1".to_owned())].into(),
            rack: "/dc/b2/r7".into(),
            ..node("a:1", "a")
        };
        let server = server("a", &row, &config, [("cpu".to_owned(), 1000)].into(), |complaint| panic!("{complaint}"));
        assert_eq!((server.capacity["memory"], server.capacity["gpu"], server.devices.len()), (4096, 2000, 0));
        assert_eq!((server.capacity["bandwidth"], server.foreign["cpu"]), (10_000, 1000));
        assert_eq!((server.labels["partition"].as_str(), server.labels["rm.yarn.io/rack"].as_str()), ("fast", "r1"));
        assert_eq!(server.labels["idle_gpus"], "kept");
        assert_eq!((server.labels["rack"].as_str(), server.labels["block"].as_str()), ("r7", "dc/b2"));
        assert!(server.draining);
    }
}
