//! What a placement costs on the network.

use std::collections::BTreeMap;

use crate::{
    decision::{Allocation, Role, Shape},
    ids::ServerId,
};

/// Time of one step's exchange between workers and parameter servers, in seconds (Optimus, appendix):
/// max over servers k of S/p·(w − w_k)/B where a parameter server is, and S/p·(p − p_k)/b where a worker is.
///
/// `size` is the model's in Mbit, `per_worker` (b) and `per_server` (B) are Mbit/s. Zero for a job on one server or
/// without parameter servers.
///
/// ```
/// use trainmaster_core::place::transfer_time;
/// use trainmaster_core::{Allocation, Devices, Role, ServerId, Slot};
/// let slot = |role, index, server| Slot { role, index, server: ServerId(server), devices: Devices::new() };
/// // Figure 10 (c): each of two servers has one parameter server and two workers; one unit takes one second.
/// let slots = [0, 1].map(|k| [slot(Role::Server, k, k), slot(Role::Worker, 2 * k, k), slot(Role::Worker, 2 * k + 1, k)]);
/// let placed = Allocation::new(slots.concat());
/// assert_eq!(transfer_time(&placed, 2.0, 1.0, 1.0), 2.0);
/// ```
pub fn transfer_time(allocation: &Allocation, size: f64, per_worker: f64, per_server: f64) -> f64 {
    let Shape { workers, servers } = allocation.shape();
    if servers == 0 {
        return 0.0;
    }
    let mut on: BTreeMap<ServerId, Shape> = BTreeMap::new();
    for slot in allocation.slots() {
        let here = on.entry(slot.server).or_default();
        match slot.role {
            Role::Worker => here.workers += 1,
            Role::Server => here.servers += 1,
        }
    }
    let part = size / f64::from(servers);
    let time = |here: &Shape| {
        let at_servers = if here.servers > 0 { part * f64::from(workers - here.workers) / per_server } else { 0.0 };
        let at_workers = if here.workers > 0 { part * f64::from(servers - here.servers) / per_worker } else { 0.0 };
        f64::max(at_servers, at_workers)
    };
    on.values().map(time).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::{Devices, Slot};

    /// (parameter servers, workers) on each server.
    fn placed(counts: &[(u32, u32)]) -> Allocation {
        let mut slots: Vec<Slot> = Vec::new();
        for (server, &(servers, workers)) in counts.iter().enumerate() {
            for (role, count) in [(Role::Server, servers), (Role::Worker, workers)] {
                let taken = slots.iter().filter(|slot| slot.role == role).count() as u32;
                let server = ServerId(server as u32);
                slots.extend((taken..taken + count).map(|index| Slot { role, index, server, devices: Devices::new() }));
            }
        }
        Allocation::new(slots)
    }

    #[test]
    fn figure_10_costs_3_3_2() {
        let a = placed(&[(1, 1), (1, 1), (0, 2)]);
        let b = placed(&[(2, 1), (0, 3), (0, 0)]);
        let c = placed(&[(1, 2), (1, 2), (0, 0)]);
        let cost = |placed: &Allocation| transfer_time(placed, 2.0, 1.0, 1.0);
        assert_eq!([cost(&a), cost(&b), cost(&c)], [3.0, 3.0, 2.0]);
        assert_eq!(cost(&placed(&[(1, 3)])), 0.0);
    }
}
