//! Communication costs of a placement.

use std::collections::BTreeMap;

use crate::{
    decision::Allocation,
    ids::ServerId,
    job::JobSpec,
    shape::{Role, Shape},
};

/// Time of one step's exchange between workers and parameter servers, in seconds (Optimus, appendix): the maximum over
/// servers k of S/p·(w − w_k)/B where a parameter server is, and S/p·(p − p_k)/b where a worker is.
///
/// `size` is the model's in Mbit, `per_worker` (b) and `per_server` (B) are Mbit/s. Zero for a job on one server or
/// without parameter servers.
///
/// ```
/// use trainmaster_core::place::transfer_time;
/// use trainmaster_core::{Allocation, Devices, Role, ServerId, Slot};
/// let slot = |role, index, server| Slot { role, index, server: ServerId(server), devices: Devices::new() };
/// // Figure 10 (c): each of two servers has one parameter server and two workers; one unit takes one second.
/// let slots = [0, 1]
///     .map(|k| [slot(Role::Server, k, k), slot(Role::Worker, 2 * k, k), slot(Role::Worker, 2 * k + 1, k)]);
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

/// Each partition's fraction of the model's parameters; 1 for a model without partitions.
pub fn partition_shares(spec: &JobSpec) -> Box<[f64]> {
    let parts = spec.partitions.len().max(1);
    let total: u64 = spec.partitions.iter().fold(0, |sum, part| sum.saturating_add(part.parameters));
    let of = |part: usize| match total {
        0 => 1.0 / parts as f64,
        _ => spec.partitions[part].parameters as f64 / total as f64,
    };
    (0..parts).map(of).collect()
}

/// Traffic between two slots of a job in one iteration, in model sizes. The job runs in its requested shape.
///
/// Gradients and parameters of a partition go to each parameter server and back, or around the ring of its replicas.
/// The traffic between partitions of a replica is assumed to equal the size of an average partition. `shares` are the
/// [`partition_shares`].
pub fn exchanged(spec: &JobSpec, shares: &[f64], a: (Role, u32), b: (Role, u32)) -> f64 {
    let parts = shares.len() as u32;
    let part = |(role, index): (Role, u32)| (role == Role::Worker).then_some((index / parts, (index % parts) as usize));
    let shape = spec.requested();
    match (part(a), part(b)) {
        (None, None) => 0.0,
        (Some((_, part)), None) | (None, Some((_, part))) => 2.0 * shares[part] / f64::from(shape.servers.max(1)),
        (Some((one, of_one)), Some((other, of_other))) if one == other => {
            let needs = |part: usize, other: usize| {
                spec.partitions.get(part).is_some_and(|part| part.after.contains(&(other as u32)))
            };
            if needs(of_one, of_other) || needs(of_other, of_one) { 1.0 / f64::from(parts) } else { 0.0 }
        }
        (Some((one, of_one)), Some((other, of_other))) => {
            let apart = one.abs_diff(other);
            let neighbours = apart == 1 || apart + 1 == shape.workers / parts;
            if spec.server.is_none() && of_one == of_other && neighbours { shares[of_one] } else { 0.0 }
        }
    }
}

/// The fraction of a job's [traffic](exchanged) that crosses between servers. O(slots²).
pub fn crossing(spec: &JobSpec, allocation: &Allocation) -> f64 {
    let shares = partition_shares(spec);
    let slots = allocation.slots();
    let (mut all, mut crossing) = (0.0, 0.0);
    for (at, a) in slots.iter().enumerate() {
        for b in &slots[at + 1..] {
            let sent = exchanged(spec, &shares, (a.role, a.index), (b.role, b.index));
            all += sent;
            crossing += if a.server == b.server { 0.0 } else { sent };
        }
    }
    if all > 0.0 { crossing / all } else { 0.0 }
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
    fn partitions_send_to_neighbours_and_rings_or_servers() {
        use crate::job::{Partition, Resize};
        let spec = |workers, servers: bool| {
            let mut spec = JobSpec { resize: Resize::Fixed, partitions: Partition::chain(2), ..JobSpec::minimal("a") };
            spec.worker.requested = workers;
            spec.server = spec.server.filter(|_| servers);
            spec
        };
        // Two replicas of two partitions, each replica on its own server: the ring crosses servers, activations don't.
        let place = |servers: &[u32]| {
            let slot = |(index, server): (usize, &u32)| Slot {
                role: Role::Worker,
                index: index as u32,
                server: ServerId(*server),
                devices: Devices::new(),
            };
            Allocation::new(servers.iter().enumerate().map(slot).collect())
        };
        let ring = spec(4, false);
        assert_eq!(crossing(&ring, &place(&[0, 0, 1, 1])), 0.5);
        assert_eq!(crossing(&ring, &place(&[0, 1, 0, 1])), 0.5);
        assert_eq!((crossing(&ring, &place(&[0; 4])), crossing(&ring, &place(&[0, 1, 2, 3]))), (0.0, 1.0));
        // With a parameter server, each partition sends gradients and fetches parameters: 2 models per replica, beside
        // half a model between partitions.
        let whole = exchanged(&spec(4, true), &[0.5, 0.5], (Role::Worker, 1), (Role::Server, 0));
        assert_eq!(whole, 1.0);
        assert_eq!(exchanged(&spec(4, true), &[0.5, 0.5], (Role::Worker, 1), (Role::Worker, 3)), 0.0);
        assert_eq!(exchanged(&spec(4, true), &[0.5, 0.5], (Role::Worker, 2), (Role::Worker, 3)), 0.5);
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
