//! An allocation as Slurm can reserve it: the same on each of its nodes.

use std::collections::BTreeMap;

use trainmaster_core::{Allocation, JobSpec, Role, Shape, State, amount::Unit, job::RoleSpec};

/// What Slurm is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// Which nodes, in order.
    pub nodes: Vec<String>,
    /// Workers and parameter servers in all.
    pub shape: Shape,
    /// Tasks on each node. Where workers and parameter servers use equally many CPUs a task is a slot; else it is so
    /// many CPUs as divide both.
    pub tasks_per_node: u32,
    /// CPUs of a task.
    pub cpus_per_task: u32,
    /// MiB on each node; `None` where the job doesn't say, and Slurm's default stands.
    pub memory_per_node: Option<u64>,
    /// GRES on each node, by name.
    pub gres: BTreeMap<String, u64>,
}

impl Reservation {
    /// CPUs on each node.
    pub fn cpus_per_node(&self) -> u32 {
        self.tasks_per_node * self.cpus_per_task
    }

    /// The GRES of `nodes` nodes, as a job asks for them.
    pub fn tres(&self, nodes: u64) -> String {
        let entries = self.gres.iter().map(|(name, count)| format!("gres:{name}:{}", count * nodes));
        entries.collect::<Vec<_>>().join(",")
    }
}

/// What an allocation gives these roles, as a reservation: that of a job, or of a component of one.
///
/// # Errors
/// The nodes would hold different numbers, which Slurm can't be asked for.
pub fn reservation(
    state: &State,
    spec: &JobSpec,
    allocation: &Allocation,
    roles: &[Role],
) -> Result<Reservation, String> {
    let mut by_node: BTreeMap<&str, Shape> = BTreeMap::new();
    for slot in allocation.slots().iter().filter(|slot| roles.contains(&slot.role)) {
        let shape = by_node.entry(state.server_name(slot.server)).or_default();
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
    Ok(of_shape(spec, each, by_node.into_keys().map(str::to_owned).collect()))
}

/// So many on each of these nodes.
pub(crate) fn of_shape(spec: &JobSpec, each: Shape, nodes: Vec<String>) -> Reservation {
    let roles = [(&spec.worker, each.workers)].into_iter().chain(spec.server.as_ref().map(|role| (role, each.servers)));
    let roles: Vec<_> = roles.filter(|(_, count)| *count > 0).collect();
    let cpus =
        |role: &RoleSpec| role.demand.get("cpu").copied().unwrap_or(0).max(1).unsigned_abs().div_ceil(1000) as u32;
    let cpus_per_task = roles.iter().map(|(role, _)| cpus(role)).fold(0, gcd).max(1);
    let tasks_per_node = roles.iter().map(|(role, count)| cpus(role) / cpus_per_task * count).sum();
    let (mut memory, mut gres) = (0_u64, BTreeMap::new());
    for (role, count) in &roles {
        for (name, amount) in role.demand.iter().filter(|(_, amount)| **amount > 0) {
            let amount = amount.unsigned_abs() * u64::from(*count);
            match name.as_str() {
                "memory" => memory += amount,
                "cpu" | "disk" => {}
                _ if Unit::of(name) == Unit::Milli => *gres.entry(name.clone()).or_insert(0) += amount.div_ceil(1000),
                // Bandwidth is the core's to share out; Slurm knows of none.
                _ => {}
            }
        }
    }
    let memory_per_node = (memory > 0).then_some(memory);
    let count = nodes.len() as u32;
    let shape = Shape { workers: each.workers * count, servers: each.servers * count };
    Reservation { nodes, shape, tasks_per_node, cpus_per_task, memory_per_node, gres }
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}
