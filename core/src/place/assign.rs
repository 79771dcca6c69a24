//! Conversion of counts per server to slots. Existing slots keep their indices and devices where possible.

use std::sync::Arc;

use crate::{
    decision::{Allocation, Slot},
    ids::ServerId,
    job::{Job, TrainingMode},
    place::room::Room,
    shape::{Role, Shape},
};

/// The numbers of workers and parameter servers on one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// The server.
    pub server: ServerId,
    /// The numbers for each role.
    pub shape: Shape,
}

/// Converts counts to slots, and reserves their room. Slots of `before` stay unchanged if their server has room for
/// them under the counts. New slots get the lowest free indices; new workers get indices that no slot of `before` has.
/// In a ring these are above the lowest one that stays: its first worker keeps the parameters, so it stays the first.
///
/// `None` if a server lacks room. Then all reservations are undone.
///
/// O(slots).
pub fn assign(room: &mut Room, job: &Job, counts: &[Count], before: Option<&Allocation>) -> Option<Arc<Allocation>> {
    let total: Shape = counts.iter().fold(Shape::default(), |sum, count| Shape {
        workers: sum.workers + count.shape.workers,
        servers: sum.servers + count.shape.servers,
    });
    let mut slots: Vec<Slot> = Vec::with_capacity((total.workers + total.servers) as usize);
    for role in [Role::Worker, Role::Server] {
        let demand = job.demand(role);
        let start = slots.len();
        let mut missing: Vec<(ServerId, u32)> = Vec::new();
        for count in counts.iter().filter(|count| count.shape.count(role) > 0) {
            let wanted = count.shape.count(role);
            let there = before
                .map(|before| before.of(role))
                .unwrap_or_default()
                .iter()
                .filter(|slot| slot.server == count.server);
            let kept_from = slots.len();
            for slot in there.take(wanted as usize) {
                if room.take_again(slot.server, demand, &slot.devices) {
                    slots.push(slot.clone());
                }
            }
            let kept = (slots.len() - kept_from) as u32;
            if kept < wanted {
                missing.push((count.server, wanted - kept));
            }
        }
        // A worker on another server gets a new index, so that the job doesn't have to restart.
        let leaving = before.filter(|_| role == Role::Worker).map(|before| before.of(role)).unwrap_or_default();
        let mut used: Vec<u32> = slots[start..].iter().chain(leaving).map(|slot| slot.index).collect();
        used.sort_unstable();
        let is_ring = job.spec.mode == TrainingMode::AllReduce;
        let first = slots[start..].iter().map(|slot| slot.index).min().filter(|_| is_ring);
        let mut free = (first.unwrap_or(0)..).filter(|index| used.binary_search(index).is_err());
        for (server, count) in missing {
            for _ in 0..count {
                let Some(devices) = room.take(server, demand) else {
                    room.release(job, &Allocation::new(slots));
                    return None;
                };
                slots.push(Slot { role, index: free.next().expect("endless"), server, devices });
            }
        }
    }
    Some(Arc::new(Allocation::new(slots)))
}
