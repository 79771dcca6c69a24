//! Tasks on servers that can carry more or less than their reservations. Shared by engines with
//! [`Limits::Measured`](super::Limits::Measured).

use std::sync::Arc;

use smallvec::SmallVec;

use super::board::Board;
use crate::budget::{Budget, EngineError};
use crate::{
    decision::{Allocation, DeviceShare, Devices, Slot},
    ids::ResourceId,
    job::Job,
    place::Load,
    resources::{Amounts, GPU},
    server::Server,
    shape::Role,
    state::{Mandate, State},
};

/// The devices for a task on a server, if the server has room and the task's use doesn't overload it: the least loaded
/// ones. O(resources + devices · log devices).
pub(crate) fn devices(
    state: &State,
    board: &Board,
    load: &Load,
    job: &Job,
    role: Role,
    uses: &Amounts,
    server: &Server,
) -> Option<Devices> {
    let devices = devices_free(state, board, load, job, role, server)?;
    let places: SmallVec<[u16; 8]> = devices.iter().map(|share| share.device).collect();
    load.holds(server.id, uses, &places).then_some(devices)
}

/// The same by reservations alone, whatever the load of the server.
pub(crate) fn devices_free(
    state: &State,
    board: &Board,
    load: &Load,
    job: &Job,
    role: Role,
    server: &Server,
) -> Option<Devices> {
    let demand = job.demand(role);
    let takes = board.room.accepts(state, server.id, job)
        && server.hosts.takes(role)
        && demand.amounts.fits(board.room.free(server.id));
    if !takes {
        return None;
    }
    match demand.devices.filter(|_| !server.devices.is_empty()) {
        None => Some(Devices::new()),
        Some((wanted, milli)) => least_loaded(board, load, server, wanted, milli),
    }
}

fn least_loaded(board: &Board, load: &Load, server: &Server, wanted: ResourceId, milli: u32) -> Option<Devices> {
    let (each, count) = (milli.min(1000) as u16, (milli / 1000).max(1) as usize);
    let reserved = board.room.devices(server.id);
    let free = |at: usize| reserved.get(at).copied().unwrap_or(0).saturating_add(each) <= server.bookable;
    let suits = |at: &usize| (wanted == GPU || server.devices[*at] == wanted) && free(*at);
    let suitable = (0..server.devices.len()).filter(suits);
    let load = load.devices(server.id);
    let by_load = |a: &usize, b: &usize| load[*a].used.total_cmp(&load[*b].used).then(a.cmp(b));
    if count == 1 {
        let least = suitable.min_by(by_load)?;
        return Some(Devices::from_iter([DeviceShare { device: least as u16, milli: each }]));
    }
    let mut devices: SmallVec<[usize; 16]> = suitable.collect();
    if devices.len() < count {
        return None;
    }
    devices.sort_unstable_by(by_load);
    let mut devices: Devices =
        devices[..count].iter().map(|at| DeviceShare { device: *at as u16, milli: each }).collect();
    devices.sort_unstable();
    Some(devices)
}

/// An upper bound of the slots of a role that a server can take one after another, until it has no room for the next or
/// its use `uses` would overload it. O(resources + devices).
pub(crate) fn at_most(
    state: &State,
    board: &Board,
    load: &Load,
    job: &Job,
    role: Role,
    uses: &Amounts,
    server: &Server,
) -> u32 {
    let demand = job.demand(role);
    if !board.room.accepts(state, server.id, job) || !server.hosts.takes(role) {
        return 0;
    }
    let free = board.room.free(server.id);
    let by_room = demand.amounts.iter().filter(|(_, need)| *need > 0).map(|(resource, need)| free[resource] / need);
    let by_room = by_room.min().map_or(u32::MAX, |most| most.clamp(0, u32::MAX.into()) as u32);
    let Some((wanted, milli)) = demand.devices.filter(|_| !server.devices.is_empty() && by_room > 0) else {
        return by_room;
    };
    let (each, count) = (milli.min(1000), (milli / 1000).max(1));
    let reserved = board.room.devices(server.id);
    let of_device = |(at, kind): (usize, &ResourceId)| {
        let taken = reserved.get(at).copied().unwrap_or(0);
        let reservable = u32::from(server.bookable.saturating_sub(taken)) / each.max(1);
        let suits = wanted == GPU || *kind == wanted;
        if suits {
            reservable.min(load.at_most(server.id, at, uses[GPU] as f64 / 1000.0 / f64::from(count)))
        } else {
            0
        }
    };
    let devices: u32 = server.devices.iter().enumerate().map(of_device).sum();
    by_room.min(devices / count)
}

/// Places a job whose servers must be alike, so that tasks can't be placed one by one: an even spread, if it overloads
/// no server.
pub(crate) fn place_evenly(
    state: &State,
    board: &mut Board,
    load: &mut Load,
    most: f64,
    job: &Job,
    budget: &mut Budget,
) -> Result<Option<Arc<Allocation>>, EngineError> {
    let Some(placed) = board.place_even(state, job, job.spec.requested(), budget)? else {
        return Ok(None);
    };
    let expected = |slot: &Slot| state.expected_use(job, slot.role, slot.index, most);
    for (at, slot) in placed.slots().iter().enumerate() {
        let devices: SmallVec<[u16; 8]> = slot.devices.iter().map(|share| share.device).collect();
        if !load.holds(slot.server, &expected(slot), &devices) {
            for slot in &placed.slots()[..at] {
                load.put(slot, &expected(slot), -1.0);
            }
            board.give_back(state, job, &placed);
            return Ok(None);
        }
        load.put(slot, &expected(slot), 1.0);
    }
    Ok(Some(placed))
}

/// The allocation of a job whose observed slots are the planned ones. A new place isn't measured until it is observed.
pub(crate) fn settled(job: &Job) -> Option<&Arc<Allocation>> {
    job.verdict.allocation().filter(|planned| job.seen.allocation.as_ref() == Some(planned))
}

/// Whether the tasks of a settled job can move one by one. Evenly spread slots can't.
pub(crate) fn movable(state: &State, job: &Job) -> bool {
    let rules = state.settings.shape.of(&job.spec);
    !rules.equal_per_server && rules.colocate && state.mandate(job) == Mandate::Free
}

/// Puts a task on a place that was just found for it.
pub(crate) fn take(board: &mut Board, load: &mut Load, job: &Job, slot: &Slot, uses: &Amounts) {
    let taken = board.room.share(slot.server, job.demand(slot.role), &slot.devices);
    debug_assert!(taken, "it was just found to fit");
    board.free.update(&board.room, slot.server, true);
    load.put(slot, uses, 1.0);
}

/// Removes a task from its place.
pub(crate) fn give_back(state: &State, board: &mut Board, load: &mut Load, job: &Job, slot: &Slot, uses: &Amounts) {
    board.give_back(state, job, &Allocation::new(vec![slot.clone()]));
    load.put(slot, uses, -1.0);
}
