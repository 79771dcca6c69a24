//! From counts per server to slots: those that stay keep their index and devices.

use std::sync::Arc;

use crate::{
    decision::{Allocation, Slot},
    ids::ServerId,
    job::Job,
    place::room::Room,
    shape::{Role, Shape},
};

/// How many of each role a server gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// Where.
    pub server: ServerId,
    /// How many.
    pub shape: Shape,
}

/// Turns counts into slots and takes their room. Slots of `before` that are on a server with room for them under
/// the counts stay as they are; new ones get the lowest free indices, new workers those that none had before. `None` if a server lacks the room; what was taken
/// is then given back.
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
        // A worker that moves leaves and another comes, under an index of its own: nobody has to restart for that.
        let leaving = before.filter(|_| role == Role::Worker).map(|before| before.of(role)).unwrap_or_default();
        let mut used: Vec<u32> = slots[start..].iter().chain(leaving).map(|slot| slot.index).collect();
        used.sort_unstable();
        let mut free = (0..).filter(|index| used.binary_search(index).is_err());
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
