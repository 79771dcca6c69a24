//! Ray's resources as the core's.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use trainmaster_proto::v1::{Device, DeviceShare};

use super::{
    bounds::{LONGEST_RESOURCE, MOST_KINDS, MOST_OF_ANY, MOST_RESOURCES, is_name},
    config::Config,
    view::{Node, NodeId, Resources},
};
use crate::file::MOST_DEVICES;

/// Bytes per MiB. Ray counts memory in bytes.
pub(crate) const MIB: f64 = 1_048_576.0;
const WHOLE: i64 = 1000;
/// Names with another meaning in the core, or that Ray counts under another name.
const TAKEN: [&str; 4] = ["gpu", "cpu", "disk", "bandwidth"];
/// Ray's internal resources: addresses, accelerators that are counted elsewhere, bundles of placement groups.
const BOOKKEEPING: [&str; 3] = ["node:", "accelerator_type:", "bundle_group_"];

/// Ray's label with the type of a node's GPUs.
pub(crate) const GPU_TYPE: &str = "ray.io/accelerator-type";

/// The kind of a node's GPUs. A type with | or * isn't told, because these mean several types.
pub(crate) fn gpu_kind(labels: &BTreeMap<String, String>) -> String {
    match labels.get(GPU_TYPE) {
        Some(kind) if is_name(kind, LONGEST_RESOURCE - 4) && !kind.contains(['|', '*']) => {
            format!("gpu:{}", kind.to_lowercase())
        }
        _ => "gpu".into(),
    }
}

/// A node's whole GPUs.
pub(crate) fn devices(total: &Resources, kind: &str) -> Vec<Device> {
    let count = total.get("GPU").map_or(0, |count| count.clamp(0.0, MOST_DEVICES as f64) as usize);
    vec![Device { kind: kind.to_owned() }; count]
}

/// Keeps the resources of a node or a bundle that are counted and valid. The number of custom resources is limited.
pub(crate) fn counted(mut resources: Resources) -> Resources {
    let mut left = MOST_RESOURCES;
    resources.retain(|name, amount| {
        let own = is_own(name);
        let known = if name == "GPU" { Some("GPU") } else { name_of(name) };
        let known = known.filter(|known| is_name(known, LONGEST_RESOURCE) && (own || left > 0));
        let fits = known.is_some_and(|known| *amount >= 0.0 && sub_units(known, *amount) <= MOST_OF_ANY);
        left -= usize::from(fits && !own);
        fits
    });
    resources
}

/// Whether a name is one of Ray's own resources.
pub(crate) fn is_own(name: &str) -> bool {
    matches!(name, "CPU" | "GPU" | "memory")
}

/// All resources except GPUs, rounded down.
pub(crate) fn capacity(total: &Resources) -> BTreeMap<String, i64> {
    let known = total.iter().filter_map(|(name, amount)| Some((name_of(name)?, amount)));
    known.map(|(name, amount)| (name.to_owned(), sub_units(name, *amount).floor() as i64)).collect()
}

/// The foreign use of a node: its used resources minus those of Trainmaster's jobs. By the core's names, with GPUs as
/// `GPU`, rounded up.
pub(crate) fn foreign(node: &Node, ours: &Resources) -> BTreeMap<String, i64> {
    let mut used = BTreeMap::new();
    for (name, total) in &node.total {
        let Some(known) = (if name == "GPU" { Some("GPU") } else { name_of(name) }) else { continue };
        let of = |amounts: &Resources| amounts.get(name).copied().unwrap_or(0.0);
        let amount = sub_units(known, total - of(&node.available) - of(ours)).ceil().min(MOST_OF_ANY) as i64;
        if amount > 0 {
            used.insert(known.to_owned(), amount);
        }
    }
    used
}

/// The core's name of a resource. `None` for GPUs, which are devices, and for resources that aren't counted.
fn name_of(name: &str) -> Option<&str> {
    match name {
        "CPU" => Some("cpu"),
        "GPU" | "object_store_memory" => None,
        _ if BOOKKEEPING.iter().any(|prefix| name.starts_with(prefix)) => None,
        // `CPU_group_<id>` and `CPU_group_<index>_<id>` are the resources of a bundle.
        _ if name.rsplit_once('_').is_some_and(|(rest, id)| is_group(rest, id)) => None,
        _ if TAKEN.contains(&name) || name.starts_with("gpu:") => None,
        _ => Some(name),
    }
}

fn is_group(rest: &str, id: &str) -> bool {
    let rest = rest.trim_end_matches(|c: char| c.is_ascii_digit()).trim_end_matches('_');
    id.len() == 36 && id.chars().all(|c| c.is_ascii_hexdigit()) && rest.ends_with("_group")
}

/// Converts to sub-units. Ray counts in ten-thousandths. Finer differences are rounding errors.
fn sub_units(name: &str, amount: f64) -> f64 {
    let scaled = if name == "memory" { amount / MIB } else { amount * WHOLE as f64 };
    if (scaled - scaled.round()).abs() < 0.05 { scaled.round() } else { scaled }
}

/// Assigns used shares to GPUs, because Ray doesn't report which GPUs are used. GPUs with the most free room beside
/// Trainmaster's jobs come first, the last one first among equals. Whole GPUs come before parts.
pub(crate) fn shares(milli: i64, ours: &[i64]) -> Vec<DeviceShare> {
    let mut shares = Vec::new();
    let mut left = milli;
    let mut free: Vec<(u32, i64)> = (0..).zip(ours.iter().map(|used| (WHOLE - used).max(0))).collect();
    free.sort_by_key(|(device, free)| (*free, *device));
    while left > 0 {
        // A part is assigned to the best fit, as Ray packs them.
        let best = if left < WHOLE { free.iter().position(|(_, free)| *free >= left) } else { None };
        let Some((device, room)) = best.map(|at| free.remove(at)).or_else(|| free.pop()) else { break };
        let taken = left.min(room);
        if taken == 0 {
            break;
        }
        shares.push(DeviceShare { device, milli: taken as u32 });
        left -= taken;
    }
    shares
}

/// The reported kinds of resources, except Ray's own. The core has room for a limited number of kinds, and nodes can
/// define any number. Some sites give every node a resource with the node's name. An admitted kind stays while a node
/// has it.
#[derive(Debug, Default)]
pub(crate) struct Kinds {
    taken: BTreeSet<String>,
    /// Whether there were too many, which was logged.
    said: bool,
}

impl Kinds {
    /// Limits the number of kinds. If there are too many, removes those that the fewest nodes have. Kinds in the
    /// configuration are kept.
    pub(crate) fn admit(&mut self, nodes: &mut BTreeMap<NodeId, Node>, config: &Config) {
        let mut there: BTreeMap<String, usize> = BTreeMap::new();
        for node in nodes.values() {
            let typed = Some(gpu_kind(&node.labels)).filter(|kind| kind != "gpu");
            for kind in node.total.keys().filter(|name| !is_own(name)).cloned().chain(typed) {
                *there.entry(kind).or_default() += 1;
            }
        }
        self.taken.retain(|kind| there.contains_key(kind));
        let is_configured = |kind: &String| {
            let types = &mut config.node_types.iter();
            types.any(|known| {
                known.resources.get(kind).is_some_and(|milli| *milli > 0) || gpu_kind(&known.labels) == *kind
            })
        };
        let mut new: Vec<(String, usize)> = there.into_iter().filter(|(kind, _)| !self.taken.contains(kind)).collect();
        new.sort_by_key(|(kind, count)| (!is_configured(kind), Reverse(*count)));
        let beyond = new.split_off(new.len().min(MOST_KINDS.saturating_sub(self.taken.len())));
        self.taken.extend(new.into_iter().map(|(kind, _)| kind));
        if let Some((first, _)) = beyond.first() {
            if !self.said {
                let count = beyond.len();
                tracing::warn!(
                    first,
                    count,
                    "nodes have more kinds of resources than the {MOST_KINDS} that are counted"
                );
            }
            for node in nodes.values_mut() {
                node.total.retain(|name, _| is_own(name) || self.taken.contains(name));
                if !self.taken.contains(&gpu_kind(&node.labels)) {
                    node.labels.remove(GPU_TYPE);
                }
            }
        }
        self.said = !beyond.is_empty();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resources(pairs: &[(&str, f64)]) -> Resources {
        pairs.iter().map(|(name, amount)| ((*name).to_owned(), *amount)).collect()
    }

    #[test]
    fn rays_resources_have_the_cores_names_and_units() {
        // The ids of Ray's placement groups have 18 bytes.
        let group = "320d8ef29de2645808990ce5c6e6b9990100";
        let mut total = resources(&[
            ("CPU", 4.0),
            ("GPU", 2.0),
            ("memory", 3.5 * MIB),
            ("fpga", 0.5),
            ("my_group_of_9", 1.0),
            ("node:10.0.0.1", 1.0),
            ("accelerator_type:A100", 1.0),
            ("object_store_memory", 1e9),
            ("cpu", 9.0),
        ]);
        for bundle in ["CPU_group_0", "CPU_group", "bundle_group"] {
            total.insert(format!("{bundle}_{group}"), 1.0);
        }
        let expected = [("cpu", 4000), ("fpga", 500), ("memory", 3), ("my_group_of_9", 1000)];
        assert_eq!(capacity(&total), expected.map(|(name, amount)| (name.to_owned(), amount)).into());
        let labels = BTreeMap::from([("ray.io/accelerator-type".to_owned(), "A100".to_owned())]);
        assert_eq!(devices(&total, &gpu_kind(&labels)), vec![Device { kind: "gpu:a100".into() }; 2]);
        assert_eq!(gpu_kind(&BTreeMap::new()), "gpu");
        for kind in ["*", "a|b", ""] {
            assert_eq!(gpu_kind(&[("ray.io/accelerator-type".to_owned(), kind.to_owned())].into()), "gpu");
        }
    }

    #[test]
    fn kinds_that_the_fewest_have_are_left_out_where_there_are_too_many() {
        let config = "[[node_types]]\nname = \"b\"\ncpu = 1\nresources = { zz = 1 }\nlabels = { t = \"b\" }";
        let (config, mut kinds) = (Config::parse(config, "test").unwrap(), Kinds::default());
        // Each node has a resource with its own name, as at some sites, and two that are the same on all nodes.
        let node = |at: u8| Node {
            total: resources(&[("CPU", 1.0), ("fpga", 1.0), ("memory", 1.0), (&format!("n{at:03}"), 1.0)]),
            labels: BTreeMap::from([(GPU_TYPE.to_owned(), if at == 0 { "RARE" } else { "A100" }.to_owned())]),
            ..Node::default()
        };
        let mut nodes: BTreeMap<_, _> = (0..=254).map(|at| (NodeId(vec![at]), node(at))).collect();
        nodes.get_mut(&NodeId(vec![9])).unwrap().total.insert("zz".into(), 1.0);
        kinds.admit(&mut nodes, &config);
        assert_eq!(kinds.taken.len(), MOST_KINDS);
        assert!(["fpga", "gpu:a100", "zz", "n000"].iter().all(|kind| kinds.taken.contains(*kind)));
        let (first, last) = (&nodes[&NodeId(vec![0])], &nodes[&NodeId(vec![254])]);
        assert!(last.total.keys().eq(["CPU", "fpga", "memory"]) && gpu_kind(&last.labels) == "gpu:a100");
        assert!(first.total.contains_key("n000"));
        // A later node with any number of kinds doesn't displace others.
        let others = resources(
            &(0..64)
                .map(|at| format!("a{at}"))
                .collect::<Vec<_>>()
                .iter()
                .map(|name| (&**name, 1.0))
                .collect::<Vec<_>>(),
        );
        let before = kinds.taken.clone();
        for at in 0..3 {
            nodes.insert(NodeId(vec![255, at]), Node { total: others.clone(), ..Node::default() });
        }
        kinds.admit(&mut nodes, &config);
        assert_eq!(kinds.taken, before);
        assert_eq!(nodes[&NodeId(vec![255, 0])].total, Resources::new());
        // Removed kinds make room.
        nodes.retain(|id, _| id.0[0] > 250);
        nodes.insert(NodeId(vec![255, 0]), Node { total: others, ..Node::default() });
        kinds.admit(&mut nodes, &config);
        assert!(kinds.taken.contains("a63"));
    }

    #[test]
    fn foreign_use_is_what_is_gone_and_not_ours() {
        let node = Node {
            total: resources(&[("CPU", 4.0), ("GPU", 2.0), ("memory", 8.0 * MIB)]),
            // Rounding errors of floating-point numbers, such as 0.1 + 0.2.
            available: resources(&[("CPU", 1.0 - 1e-9), ("GPU", 0.75), ("memory", 5.5 * MIB)]),
            ..Node::default()
        };
        let ours = resources(&[("CPU", 2.0), ("GPU", 1.0)]);
        let used = foreign(&node, &ours);
        let expected = [("GPU", 250), ("cpu", 1000), ("memory", 3)];
        assert_eq!(used, expected.map(|(name, amount)| (name.to_owned(), amount)).into());
        // A group is just being placed or removed. Its bundles are reported before the node's resources.
        assert_eq!(foreign(&node, &node.total), BTreeMap::new());
    }

    #[test]
    fn foreign_shares_keep_off_ours() {
        let laid = |milli, ours: &[i64]| -> Vec<_> {
            shares(milli, ours).into_iter().map(|share| (share.device, share.milli)).collect()
        };
        assert_eq!(laid(2000, &[1000, 0, 0]), [(2, 1000), (1, 1000)]);
        assert_eq!(laid(500, &[0, 500, 0]), [(1, 500)], "a part goes where it fits best");
        assert_eq!(laid(1500, &[0, 0]), [(1, 1000), (0, 500)]);
        assert_eq!(laid(700, &[500, 500]), [(1, 500), (0, 200)], "it is there, if in parts");
        assert_eq!(laid(3000, &[1000]), [], "no more than there is");
        assert_eq!(laid(1000, &[]), []);
    }
}
