//! The room of one server for slots of one demand, under the plan.

use crate::{ids::ResourceId, job::Demand, resources::GPU, server::Server};

/// Slots beyond this number needn't be counted: no job has more.
pub(super) const MOST_SLOTS: i64 = 10_000;

/// Number of slots for which a server has the amounts.
pub(super) fn slots_for(demand: &Demand, has: impl Fn(ResourceId) -> i64) -> i64 {
    let each = demand.amounts.iter().filter(|(_, need)| *need > 0);
    each.map(|(resource, need)| has(resource).max(0) / need).min().unwrap_or(MOST_SLOTS)
}

/// Number of slots for which the plan leaves a server free devices, if it names them.
pub(super) fn free_devices(server: &Server, demand: &Demand) -> i64 {
    let Some((kind, milli)) = demand.devices.filter(|_| !server.devices.is_empty()) else { return MOST_SLOTS };
    let used = |at: usize| {
        let of = |devices: &[u16]| devices.get(at).copied().unwrap_or(0);
        u32::from(of(&server.planned.devices)) + u32::from(of(&server.foreign.devices))
    };
    let suits = |at: &usize| kind == GPU || server.devices[*at] == kind;
    let of_type = (0..server.devices.len()).filter(suits);
    if milli < 1000 {
        return of_type.map(|at| i64::from(1000_u32.saturating_sub(used(at)) / milli.max(1))).sum();
    }
    of_type.filter(|at| used(*at) == 0).count() as i64 / i64::from(milli / 1000)
}
