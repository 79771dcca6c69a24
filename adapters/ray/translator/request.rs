//! What all jobs together ask of the autoscaler, in the one request that a cluster has.
//!
//! The autoscaler brings as many nodes as the request fills when they are empty, whoever uses them. So the request
//! names whole nodes: as many of each type as the plans have a place on, and, if there are any, those of the type that
//! others use besides. Smaller bundles would be packed together onto fewer nodes than the plans name.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::super::{
    config::NodeType,
    view::{Ask, Request},
};

/// The nodes to ask for: `wanted` are the servers that plans name, `busy` those that anybody uses.
pub(super) fn merged(node_types: &[NodeType], wanted: &BTreeSet<&str>, busy: &BTreeSet<String>) -> Request {
    let ask = |node_type: &NodeType| {
        let ours = wanted.iter().filter(|server| node_type.has(server)).count();
        let others = busy.iter().filter(|server| node_type.has(server) && !wanted.contains(server.as_str())).count();
        let (resources, labels) = (node_type.resources.clone(), node_type.labels.clone());
        (ours > 0).then(|| Ask { count: (ours + others) as i64, resources, labels })
    };
    Request(node_types.iter().filter_map(ask).collect())
}

/// What is written about the request, for people and for other adapters.
#[derive(Serialize, Deserialize)]
struct Written {
    v: u32,
    owner: String,
    bundles: Vec<WrittenBundle>,
}

#[derive(Serialize, Deserialize)]
struct WrittenBundle {
    count: i64,
    resources: BTreeMap<String, f64>,
    labels: BTreeMap<String, String>,
}

pub(super) fn to_json(owner: &str, request: &Request) -> String {
    let bundle =
        |ask: &Ask| WrittenBundle { count: ask.count, resources: ask.resources.clone(), labels: ask.labels.clone() };
    let bundles = request.0.iter().map(bundle).collect();
    let written = Written { v: 1, owner: format!("trainmaster {owner}"), bundles };
    serde_json::to_string(&written).expect("a request is plain data")
}

pub(super) fn from_json(text: &str) -> Option<Request> {
    let written: Written = serde_json::from_str(text).ok()?;
    let ask = |bundle: WrittenBundle| Ask { count: bundle.count, resources: bundle.resources, labels: bundle.labels };
    Some(Request(written.bundles.into_iter().map(ask).collect()))
}
