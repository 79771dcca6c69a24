//! The variables by which PyTorch's processes find each other without `torchrun`: each slot is one process.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{Ipv4Addr, TcpListener},
};

use trainmaster_core::Role;

use super::{fleet::plan::Run, slot::ProcessId};

/// Ports for the stores of PyTorch, below those that systems give to connections.
const PORTS: std::ops::Range<u16> = 20_000..30_000;

/// The port of each job's store. All processes of an incarnation have the same.
#[derive(Debug, Default)]
pub(crate) struct Ports(BTreeMap<u64, (u32, u16)>);

impl Ports {
    /// A process of an earlier run of the adapter has a port.
    pub(crate) fn adopt(&mut self, id: ProcessId, port: u16) {
        let known = self.0.entry(id.job).or_insert((id.incarnation, port));
        if known.0 < id.incarnation {
            *known = (id.incarnation, port);
        }
    }

    /// The last process of a job is gone.
    pub(crate) fn release(&mut self, job: u64) {
        self.0.remove(&job);
    }

    /// The port of a job's incarnation: a free one at its first process. O(jobs), and then O(log jobs).
    fn of(&mut self, id: ProcessId) -> Option<u16> {
        if let Some((_, port)) = self.0.get(&id.job).filter(|(incarnation, _)| *incarnation == id.incarnation) {
            return Some(*port);
        }
        let others: BTreeSet<u16> =
            self.0.iter().filter(|(job, _)| **job != id.job).map(|(_, (_, port))| *port).collect();
        // Different jobs, and incarnations that follow each other, begin their search at different ports.
        let count = u64::from(PORTS.end - PORTS.start);
        let first = (id.job.wrapping_mul(7919) + u64::from(id.incarnation)) % count;
        let tried = (0..count).map(|step| PORTS.start + u16::try_from((first + step) % count).unwrap_or(0));
        let is_free = |port: &u16| !others.contains(port) && TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
        let port = tried.into_iter().find(is_free)?;
        self.0.insert(id.job, (id.incarnation, port));
        Some(port)
    }

    /// The variables of a slot's process, and the job's port. `None` if the job isn't an all-reduce one, if `torchrun`
    /// sets them itself, or if no port is free.
    pub(crate) fn variables(&mut self, id: ProcessId, run: &Run) -> Option<([(&'static str, String); 7], u16)> {
        let says = |name: &str| run.environment.get(name).map(String::as_str);
        if says("TRAINMASTER_MODE") != Some("allreduce") || says("PET_RDZV_BACKEND").is_some() {
            return None;
        }
        let workers = || run.slots.keys().filter(|slot| slot.role == Role::Worker);
        let rank = workers().position(|slot| *slot == id.slot)?;
        let port = self.of(id)?;
        let variables = [
            ("RANK", rank.to_string()),
            ("WORLD_SIZE", workers().count().to_string()),
            ("LOCAL_RANK", "0".to_owned()),
            ("LOCAL_WORLD_SIZE", "1".to_owned()),
            // Each slot has devices of its own, as a node has.
            ("NODE_RANK", rank.to_string()),
            ("MASTER_ADDR", Ipv4Addr::LOCALHOST.to_string()),
            ("MASTER_PORT", port.to_string()),
        ];
        Some((variables, port))
    }
}

#[cfg(test)]
mod tests {
    use trainmaster_manager::SlotId;

    use super::*;

    fn id(job: u64, incarnation: u32) -> ProcessId {
        ProcessId { job, incarnation, slot: SlotId::new(Role::Worker, 0) }
    }

    #[test]
    fn an_incarnation_has_one_port_that_nobody_else_has() {
        let mut ports = Ports::default();
        let first = ports.of(id(1, 1)).unwrap();
        let _taken = TcpListener::bind((Ipv4Addr::LOCALHOST, first)).unwrap();
        assert_eq!(ports.of(id(1, 1)), Some(first), "its store uses it by now");
        assert_ne!(ports.of(id(1, 2)), Some(first));
        ports.adopt(id(2, 5), 20_001);
        ports.adopt(id(2, 4), 20_002);
        assert_eq!(ports.of(id(2, 5)), Some(20_001));
        // Every job begins its search there.
        let mut crowd: Vec<u16> = (0..50).map(|at| ports.of(id(10_000 * at, 1)).unwrap()).collect();
        crowd.sort_unstable();
        crowd.dedup();
        assert_eq!(crowd.len(), 50);
        (0..50).for_each(|at| ports.release(10_000 * at));
        assert_eq!(ports.0.len(), 2, "ended jobs have none");
    }
}
