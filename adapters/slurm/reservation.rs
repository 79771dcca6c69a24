//! An allocation in the form that Slurm can reserve: the same on each node.

use std::collections::BTreeMap;

use trainmaster_core::{Role, Shape, amount::Unit};
use trainmaster_manager::Run;

/// The resources to reserve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// The nodes, in order.
    pub nodes: Vec<String>,
    /// The total numbers of workers and parameter servers.
    pub shape: Shape,
    /// Tasks on each node. If workers and parameter servers use equally many CPUs, a task is a slot. Otherwise it has a
    /// number of CPUs that divides both.
    pub tasks_per_node: u32,
    /// CPUs of each task.
    pub cpus_per_task: u32,
    /// MiB on each node. `None` if the job doesn't state the amount, so that Slurm's default applies.
    pub memory_per_node: Option<u64>,
    /// GRES on each node, by name.
    pub gres: BTreeMap<String, u64>,
}

impl Reservation {
    /// CPUs on each node.
    pub fn cpus_per_node(&self) -> u32 {
        self.tasks_per_node * self.cpus_per_task
    }

    /// The GRES of `nodes` nodes, in the form of a job's request.
    pub fn tres(&self, nodes: u64) -> String {
        let entries = self.gres.iter().map(|(name, count)| format!("gres:{name}:{}", count * nodes));
        entries.collect::<Vec<_>>().join(",")
    }
}

/// The reservation for these roles of an allocation: those of a job, or of one component of it.
///
/// # Errors
/// The numbers differ between nodes, which Slurm can't reserve.
pub fn reservation(run: &Run, roles: &[Role]) -> Result<Reservation, String> {
    let mut by_node: BTreeMap<&str, Shape> = BTreeMap::new();
    for (slot, placement) in run.slots.iter().filter(|(slot, _)| roles.contains(&slot.role)) {
        let shape = by_node.entry(&placement.server).or_default();
        match slot.role {
            Role::Worker => shape.workers += 1,
            Role::Server => shape.servers += 1,
        }
    }
    let mut shapes = by_node.values().copied();
    let each = shapes.next().ok_or("an allocation without a slot")?;
    if let Some(other) = shapes.find(|shape| *shape != each) {
        return Err(format!("{each} on one node and {other} on another: Slurm reserves the same on each"));
    }
    let nodes: Vec<String> = by_node.into_keys().map(str::to_owned).collect();
    let roles = [(&run.worker_demand, each.workers), (&run.server_demand, each.servers)];
    let roles: Vec<_> = roles.into_iter().filter(|(_, count)| *count > 0).collect();
    let cpus = |demand: &BTreeMap<String, i64>| {
        demand.get("cpu").copied().unwrap_or(0).max(1).unsigned_abs().div_ceil(1000) as u32
    };
    let cpus_per_task = roles.iter().map(|(demand, _)| cpus(demand)).fold(0, gcd).max(1);
    let tasks_per_node = roles.iter().map(|(demand, count)| cpus(demand) / cpus_per_task * count).sum();
    let (mut memory, mut gres) = (0_u64, BTreeMap::new());
    for (demand, count) in &roles {
        for (name, amount) in demand.iter().filter(|(_, amount)| **amount > 0) {
            let amount = amount.unsigned_abs() * u64::from(*count);
            match name.as_str() {
                "memory" => memory += amount,
                "cpu" | "disk" => {}
                _ if Unit::of(name) == Unit::Milli => *gres.entry(name.clone()).or_insert(0) += amount.div_ceil(1000),
                // The core divides bandwidth. Slurm doesn't know it.
                _ => {}
            }
        }
    }
    let memory_per_node = (memory > 0).then_some(memory);
    let count = nodes.len() as u32;
    let shape = Shape { workers: each.workers * count, servers: each.servers * count };
    Ok(Reservation { nodes, shape, tasks_per_node, cpus_per_task, memory_per_node, gres })
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}
