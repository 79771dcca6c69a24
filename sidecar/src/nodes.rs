//! `trainmaster nodes`: the servers, with what is free and which jobs are there.

use std::collections::BTreeMap;

use clap::Args;
use serde::Serialize;
use trainmaster_core::{Shape, amount::Unit};
use trainmaster_proto::v1::{ServerStatus, ServersReply, ServersRequest};
use trainmaster_terminal::{
    Failure, Mood, Output, Paper, Show,
    client::{Daemon, ServerArgs},
    sheet::{Column, Entry, Sheet},
};

/// The command's arguments.
#[derive(Args, Debug)]
pub(crate) struct NodesArgs {
    /// Only servers that take jobs and have a free GPU, or without GPUs a free core
    #[arg(long)]
    free: bool,
    /// Only servers with this label
    #[arg(long, value_name = "KEY=VALUE", value_parser = label)]
    label: Vec<(String, String)>,
}

fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("write a label and its value, such as zone=a")?;
    Ok((key.to_owned(), value.to_owned()))
}

/// Runs the command.
///
/// # Errors
/// The daemon's.
pub(crate) async fn run(args: &NodesArgs, server: &ServerArgs, output: Output) -> Result<(), Failure> {
    let daemon = Daemon::connect(server).await?;
    let reply = daemon.jobs().servers(ServersRequest {}).await.map_err(|status| daemon.failure(&status))?;
    output.show(&Nodes::of(reply.into_inner(), args))
}

#[derive(Serialize)]
struct Nodes {
    nodes: Vec<Node>,
}

/// Amounts are in sub-units: thousandths of GPUs, cores and others, MiB of memory and disk, Mbit/s of bandwidth.
#[derive(Serialize)]
struct Node {
    name: String,
    manager: String,
    draining: bool,
    capacity: BTreeMap<String, i64>,
    foreign: BTreeMap<String, i64>,
    used: BTreeMap<String, i64>,
    free: BTreeMap<String, i64>,
    labels: BTreeMap<String, String>,
    jobs: Vec<There>,
    /// Slots of jobs that the caller doesn't see.
    other_slots: u32,
}

#[derive(Serialize)]
struct There {
    job: u64,
    name: String,
    workers: u32,
    servers: u32,
}

impl Nodes {
    fn of(reply: ServersReply, args: &NodesArgs) -> Self {
        let nodes = reply.servers.into_iter().map(Node::from);
        let is_open = |node: &Node| !args.free || node.is_open();
        let has = |node: &Node| args.label.iter().all(|(key, value)| node.labels.get(key) == Some(value));
        Self { nodes: nodes.filter(|node| is_open(node) && has(node)).collect() }
    }
}

impl From<ServerStatus> for Node {
    fn from(server: ServerStatus) -> Self {
        let there = |job: trainmaster_proto::v1::ServerJob| There {
            job: job.job,
            name: job.name,
            workers: job.workers,
            servers: job.servers,
        };
        Self {
            name: server.name,
            manager: server.manager,
            draining: server.draining,
            capacity: server.capacity.into_iter().collect(),
            foreign: server.foreign.into_iter().collect(),
            used: server.used.into_iter().collect(),
            free: server.free.into_iter().collect(),
            labels: server.labels.into_iter().collect(),
            jobs: server.jobs.into_iter().map(there).collect(),
            other_slots: server.other_slots,
        }
    }
}

fn is_gpu(name: &str) -> bool {
    name == "gpu" || name.starts_with("gpu:")
}

impl Node {
    /// The free part and the whole of some resources: `2/4`.
    fn part(&self, is_one: impl Fn(&str) -> bool, unit: Unit) -> String {
        let sum = |all: &BTreeMap<String, i64>| -> i64 {
            all.iter().filter(|(name, _)| is_one(name)).map(|(_, amount)| amount).sum()
        };
        match (sum(&self.free), sum(&self.capacity)) {
            (_, 0) => "–".into(),
            (0, all) => format!("0/{}", unit.format(all)),
            (free, all) => format!("{}/{}", unit.format(free), unit.format(all)),
        }
    }

    fn is_open(&self) -> bool {
        let has_gpus = self.capacity.keys().any(|name| is_gpu(name));
        let counts = |name: &str| if has_gpus { is_gpu(name) } else { name == "cpu" };
        !self.draining && self.free.iter().any(|(name, amount)| counts(name) && *amount > 0)
    }

    /// The types of its GPUs, without `gpu:`.
    fn types(&self) -> String {
        let names = self.capacity.keys().filter_map(|name| name.strip_prefix("gpu:"));
        names.collect::<Vec<_>>().join(", ")
    }

    /// Resources without a column of their own.
    fn others(&self) -> String {
        let has_own = |name: &str| is_gpu(name) || ["cpu", "memory"].contains(&name);
        let others = self.capacity.keys().filter(|name| !has_own(name));
        others
            .map(|name| format!("{name} {}", self.part(|other| other == name, Unit::of(name))))
            .collect::<Vec<_>>()
            .join(", ")
    }

    fn jobs(&self) -> String {
        let own = self.jobs.iter().map(|job| {
            let shape = Shape { workers: job.workers, servers: job.servers };
            format!("{} ({shape})", job.name)
        });
        let hidden = (self.other_slots > 0).then(|| format!("{} slots of other jobs", self.other_slots));
        let foreign = (!self.foreign.is_empty()).then(|| "other workloads".to_owned());
        own.chain(hidden).chain(foreign).collect::<Vec<_>>().join(", ")
    }
}

impl Show for Nodes {
    fn text(&self, paper: &Paper) -> String {
        if self.nodes.is_empty() {
            return "no nodes".into();
        }
        let mut sheet = Sheet::new([
            Column::key("NODE"),
            Column::key("GPUS FREE"),
            Column::spare("TYPE", 2),
            Column::key("CPUS FREE"),
            Column::spare("MEMORY FREE", 1),
            Column::spare("OTHER", 4),
            Column::spare("MANAGER", 3),
            Column::prose("JOBS"),
        ]);
        for node in &self.nodes {
            let name = if node.draining { format!("{} (draining)", node.name) } else { node.name.clone() };
            sheet.row([
                Entry::new(name, node.draining.then_some(Mood::Doubtful)),
                node.part(is_gpu, Unit::Milli).into(),
                node.types().into(),
                node.part(|name| name == "cpu", Unit::Milli).into(),
                node.part(|name| name == "memory", Unit::MiB).into(),
                node.others().into(),
                Entry::from(&node.manager),
                node.jobs().into(),
            ]);
        }
        // What drains is free for nobody.
        let sum = |part: fn(&Node) -> &BTreeMap<String, i64>| -> i64 {
            let all = self.nodes.iter().filter(|node| !node.draining).flat_map(part);
            all.filter(|(name, _)| is_gpu(name)).map(|(_, amount)| amount).sum()
        };
        let (free, all) = (sum(|node| &node.free), sum(|node| &node.capacity));
        let nodes = if self.nodes.len() == 1 { "1 node".to_owned() } else { format!("{} nodes", self.nodes.len()) };
        let gpus = match all {
            0 => "no GPUs".to_owned(),
            all => format!("{} of {} GPUs free", Unit::Milli.format(free), Unit::Milli.format(all)),
        };
        format!("{}\n\n{nodes}; {gpus}", sheet.on(paper))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(name: &str, gpus: i64, free: i64) -> ServerStatus {
        ServerStatus {
            name: name.into(),
            manager: "m".into(),
            capacity: [("gpu:a100".to_owned(), gpus), ("cpu".to_owned(), 8000), ("disk".to_owned(), 2048)].into(),
            free: [("gpu:a100".to_owned(), free)].into_iter().filter(|(_, free)| *free > 0).collect(),
            labels: [("zone".to_owned(), name.to_owned())].into(),
            ..ServerStatus::default()
        }
    }

    fn nodes(free: bool, zone: Option<&str>) -> Nodes {
        let full = ServerStatus { other_slots: 2, ..status("a", 4000, 0) };
        let drained = ServerStatus { draining: true, ..status("b", 2000, 2000) };
        let label = zone.map(|zone| ("zone".to_owned(), zone.to_owned())).into_iter().collect();
        let servers = vec![full, drained, status("c", 4000, 1500)];
        Nodes::of(ServersReply { servers }, &NodesArgs { free, label })
    }

    #[test]
    fn nodes_show_what_is_free() {
        let text = nodes(false, None).text(&Paper::default());
        assert!(text.contains("0/4") && text.contains("1.5/4") && text.contains("b (draining)"), "{text}");
        assert!(text.contains("2 slots of other jobs") && text.contains("disk 0/2GiB"), "{text}");
        assert!(text.ends_with("3 nodes; 1.5 of 8 GPUs free"), "{text}");
        // A narrow terminal keeps what matters.
        let narrow = nodes(false, None).text(&Paper { width: Some(60), ..Paper::default() });
        assert!(narrow.contains("1.5/4") && !narrow.contains("MANAGER"), "{narrow}");
        assert_eq!(Nodes { nodes: Vec::new() }.text(&Paper::default()), "no nodes");
    }

    #[test]
    fn nodes_are_filtered() {
        let names = |nodes: &Nodes| nodes.nodes.iter().map(|node| node.name.clone()).collect::<String>();
        assert_eq!(names(&nodes(true, None)), "c");
        assert_eq!(names(&nodes(false, Some("b"))), "b");
        assert_eq!(names(&nodes(true, Some("b"))), "");
        assert!(label("zone").unwrap_err().contains("zone=a"));
    }
}
