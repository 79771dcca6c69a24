//! Slurm's nodes as servers, and their foreign use.

use std::collections::{BTreeMap, BTreeSet};

use trainmaster_core::ServerSpec;

use super::{
    Config,
    gres::{parse_gres, total},
    hostlist,
    seen::{Node, NodeUse, Partition},
};

/// The label of a node in a partition. Each job requires the label of its own partition.
pub fn partition_label(partition: &str) -> String {
    format!("partition:{partition}")
}

/// The names of each node's partitions, without those that are down.
pub(crate) fn partitions_by_node(partitions: &[Partition]) -> BTreeMap<String, BTreeSet<&str>> {
    let mut by_node: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for partition in partitions.iter().filter(|partition| partition.up) {
        for node in hostlist::expand(&partition.nodes).unwrap_or_default() {
            by_node.entry(node).or_default().insert(&partition.name);
        }
    }
    by_node
}

/// Converts a node to a server. Returns `None` while it is down. `expects_ours`: a job of Trainmaster's should start
/// there, so a node in state PLANNED is planned for that job.
///
/// GPUs are counted, by type if they have one. Slurm chooses which of them a job gets. Features become labels: `zone=a`
/// unchanged, and `ssd` as `ssd=true`. So does the node's path in `topology.conf`, unless a feature says another.
pub fn server(node: &Node, partitions: &BTreeSet<&str>, expects_ours: bool, config: &Config) -> Option<ServerSpec> {
    let draining = match node.usable() {
        NodeUse::Down => return None,
        NodeUse::Draining | NodeUse::Silent => true,
        NodeUse::Planned => !expects_ours,
        NodeUse::Up => false,
    };
    let mut capacity =
        BTreeMap::from([("cpu".to_owned(), i64::from(node.cpus) * 1000), ("memory".to_owned(), clamp(node.memory))]);
    if node.disk > 0 {
        capacity.insert("disk".into(), clamp(node.disk));
    }
    if let Some(bandwidth) = config.bandwidth {
        capacity.insert("bandwidth".into(), bandwidth);
    }
    let drained = total(&parse_gres(&node.gres_drain));
    for (resource, count) in total(&parse_gres(&node.gres)) {
        let left = count.saturating_sub(drained.get(&resource).copied().unwrap_or(0));
        if let Some(amount) = amount(&resource, left) {
            capacity.insert(resource, amount);
        }
    }
    let mut labels: BTreeMap<String, String> = node
        .features
        .split(',')
        .map(str::trim)
        .filter(|feature| !feature.is_empty() && *feature != "(null)")
        .map(|feature| feature.split_once('=').unwrap_or((feature, "true")))
        // The core evaluates this label, and refuses servers with another value.
        .filter(|(key, value)| *key != "hosts" || matches!(*value, "workers" | "servers" | "both"))
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect();
    for (level, name) in config.topology.get(&node.name).into_iter().flatten() {
        labels.entry((*level).to_owned()).or_insert_with(|| name.clone());
    }
    labels.extend(partitions.iter().map(|name| (partition_label(name), "true".to_owned())));
    Some(ServerSpec { name: node.name.clone(), capacity, devices: Vec::new(), labels, draining })
}

/// The resources of a node that Trainmaster's jobs hold, as Slurm counts them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Own {
    pub(crate) cpus: u64,
    pub(crate) memory: u64,
    pub(crate) gres: BTreeMap<String, u64>,
}

/// The foreign use of a node, by resource name, in sub-units.
pub(crate) fn foreign(node: &Node, own: &Own) -> BTreeMap<String, i64> {
    let mut amounts = BTreeMap::new();
    let mut put = |name: &str, value: i64| {
        if value > 0 {
            amounts.insert(name.to_owned(), value);
        }
    };
    put("cpu", clamp(u64::from(node.used_cpus).saturating_sub(own.cpus)) * 1000);
    put("memory", clamp(node.used_memory.saturating_sub(own.memory)));
    let used = parse_gres(&node.gres_used);
    let mut sums = total(&used);
    // A GPU with used shards can't be allocated whole.
    for shards in used.iter().filter(|gres| gres.name == "shard" && gres.devices > 0) {
        let gpu = shards.kind.as_ref().map_or_else(|| "gpu".to_owned(), |kind| format!("gpu:{kind}"));
        *sums.entry(gpu).or_insert(0) += shards.devices;
    }
    for (resource, count) in sums {
        let own = own.gres.get(&resource).copied().unwrap_or(0);
        put(&resource, amount(&resource, count.saturating_sub(own)).unwrap_or(0));
    }
    amounts
}

/// The used CPUs of a node in thousandths, if Slurm knows its load. Programs that wait for a CPU use none.
pub(crate) fn used(node: &Node) -> Option<i64> {
    node.load.map(|load| (i64::from(load) * 10).min(i64::from(node.cpus) * 1000))
}

/// Converts a resource's count to sub-units. Shards are parts of GPUs, which are counted already.
fn amount(resource: &str, count: u64) -> Option<i64> {
    match resource.split(':').next().unwrap_or_default() {
        "shard" | "mps" => None,
        // Slurm doesn't count CPUs or memory as GRES. A GRES of such a name isn't what jobs mean.
        "cpu" | "memory" | "disk" => None,
        "bandwidth" => Some(clamp(count)),
        _ => Some(clamp(count.min(1_000_000_000)) * 1000),
    }
}

fn clamp(value: u64) -> i64 {
    value.min(1_000_000_000_000) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(state: u32) -> Node {
        Node {
            name: "node1".into(),
            state,
            cpus: 16,
            threads: 2,
            memory: 64_000,
            features: "ssd,zone=a,hosts=nobody".into(),
            gres: "gpu:a100:2,gpu:v100:2,shard:a100:4,shard:v100:4".into(),
            gres_drain: "gpu:v100:1".into(),
            gres_used: "gpu:a100:2(IDX:0-1),gpu:v100:0(IDX:N/A),shard:a100:0(IDX:N/A),shard:v100:1(IDX:2)".into(),
            used_cpus: 6,
            used_memory: 2699,
            ..Node::default()
        }
    }

    #[test]
    fn a_node_is_what_jobs_can_have_of_it() {
        let config = Config { bandwidth: Some(10_000), ..Config::default() };
        let server = server(&node(2), &BTreeSet::from(["low"]), false, &config).unwrap();
        let capacity: Vec<_> = server.capacity.iter().map(|(name, amount)| (name.as_str(), *amount)).collect();
        let expected =
            [("bandwidth", 10_000), ("cpu", 16_000), ("gpu:a100", 2000), ("gpu:v100", 1000), ("memory", 64_000)];
        assert_eq!(capacity, expected);
        let labels: Vec<_> = server.labels.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        assert_eq!(labels, [("partition:low", "true"), ("ssd", "true"), ("zone", "a")]);
    }

    #[test]
    fn what_others_use_is_theirs_and_ours_is_not() {
        let own = Own { cpus: 2, memory: 600, gres: [("gpu:a100".to_owned(), 1)].into() };
        let used = foreign(&node(3), &own);
        let used: Vec<_> = used.iter().map(|(name, amount)| (name.as_str(), *amount)).collect();
        assert_eq!(used, [("cpu", 4000), ("gpu:a100", 1000), ("gpu:v100", 1000), ("memory", 2099)]);
    }

    #[test]
    fn states_say_whether_a_node_takes_work() {
        const DRAIN: u32 = 1 << 9;
        const PLANNED: u32 = 1 << 21;
        let draining =
            |state, ours| server(&node(state), &BTreeSet::new(), ours, &Config::default()).map(|s| s.draining);
        for (state, ours, expected) in [
            (2, false, Some(false)),
            (3 | DRAIN, false, Some(true)),
            (5 | PLANNED, false, Some(true)),
            (5 | PLANNED, true, Some(false)),
            (5 | PLANNED | DRAIN, true, Some(true)),
            (1, false, None),
            (0, false, Some(true)),
            (6, false, None),
            (2 | 1 << 11, false, Some(true)),
            (1 | 1 << 11, false, None),
            (2 | 1 << 12, false, None),
            (2 | 1 << 15, false, Some(true)),
            (2 | 1 << 22, false, None),
        ] {
            assert_eq!(draining(state, ours), expected, "{state:#x}");
        }
    }
}
