//! The request of all jobs to the autoscaler. A cluster has only one request.
//!
//! The autoscaler provides as many nodes as the request would fill if they were empty, even if others use them. The
//! request therefore names whole nodes: as many of each type as plans need, and, if there are any, those of the same
//! type in other use. Smaller bundles would be packed onto fewer nodes than the plans name.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::super::{
    config::NodeType,
    servers::Names,
    view::{Ask, Request},
};

/// Interval of renewals in milliseconds. Strict mode considers a request stale after four times this.
const RENEWED: i64 = 30_000;

/// The number of nodes to request of each type. `wanted` are the servers that plans name, and `busy` those in use by
/// anyone.
fn counts<'a>(
    node_types: &'a [NodeType],
    wanted: &BTreeSet<&str>,
    busy: &BTreeSet<String>,
) -> impl Iterator<Item = (&'a NodeType, i64)> {
    node_types.iter().map(|node_type| {
        let ours = wanted.iter().filter(|server| node_type.has(server)).count();
        let others = busy.iter().filter(|server| node_type.has(server) && !wanted.contains(server.as_str())).count();
        (node_type, if ours > 0 { (ours + others) as i64 } else { 0 })
    })
}

/// The nodes to request.
pub(super) fn merged(node_types: &[NodeType], wanted: &BTreeSet<&str>, busy: &BTreeSet<String>) -> Request {
    let needed = counts(node_types, wanted, busy).filter(|(_, count)| *count > 0);
    let ask = |(node_type, count): (&NodeType, i64)| Ask {
        count,
        resources: node_type.amounts(),
        labels: node_type.labels.clone(),
    };
    Request(needed.map(ask).collect())
}

/// The written description of the request, for people, for other adapters, and for strict mode.
#[derive(Serialize, Deserialize)]
struct Written {
    v: u32,
    owner: String,
    bundles: Vec<WrittenBundle>,
    /// The number of nodes for every node type of the configuration.
    nodes: BTreeMap<String, i64>,
    /// Ids of existing nodes that plans name.
    keep: Vec<String>,
    /// Approximate Unix time of writing. Strict mode ignores an adapter that is gone.
    at_ms: i64,
}

#[derive(Serialize, Deserialize)]
struct WrittenBundle {
    count: i64,
    resources: BTreeMap<String, f64>,
    labels: BTreeMap<String, String>,
}

/// The description of the request for these servers. It changes with every `RENEWED` milliseconds of the clock.
pub(super) fn to_json(
    owner: &str,
    node_types: &[NodeType],
    wanted: &BTreeSet<&str>,
    busy: &BTreeSet<String>,
    names: &Names,
    clock_ms: i64,
) -> String {
    let bundle = |ask: Ask| WrittenBundle { count: ask.count, resources: ask.resources, labels: ask.labels };
    let nodes = counts(node_types, wanted, busy).map(|(node_type, count)| (node_type.name.clone(), count));
    let of_types = wanted.iter().filter(|server| node_types.iter().any(|node_type| node_type.has(server)));
    let written = Written {
        v: 1,
        owner: format!("trainmaster {owner}"),
        bundles: merged(node_types, wanted, busy).0.into_iter().map(bundle).collect(),
        nodes: nodes.collect(),
        keep: of_types.filter_map(|server| names.node(server)).map(ToString::to_string).collect(),
        at_ms: clock_ms - clock_ms.rem_euclid(RENEWED),
    };
    serde_json::to_string(&written).expect("a request is plain data")
}

pub(super) fn from_json(text: &str) -> Option<Request> {
    let written: Written = serde_json::from_str(text).ok()?;
    let ask = |bundle: WrittenBundle| Ask { count: bundle.count, resources: bundle.resources, labels: bundle.labels };
    Some(Request(written.bundles.into_iter().map(ask).collect()))
}
