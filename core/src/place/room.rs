//! Free room of servers under a plan in the making.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::{
    decision::{Allocation, DeviceShare, Devices},
    ids::{ResourceId, ServerId},
    job::{Demand, Job},
    resources::{Amounts, GPU},
    server::{self, Hosts},
    shape::{Role, Shape},
    state::{State, idle},
};

/// The use of a server by one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Use {
    /// Nothing: the slot doesn't exist.
    None,
    /// Memory and disk: the slot is idle.
    Idle,
    /// The whole demand.
    Busy,
}

impl Use {
    pub(crate) fn amounts(self, demand: &Demand) -> Amounts {
        match self {
            Self::None => Amounts::default(),
            Self::Idle => idle(demand),
            Self::Busy => demand.amounts.clone(),
        }
    }
}

/// Free room of every server under a plan in the making. Building it is O(servers), a change O(changed slots).
#[derive(Clone, Default)]
pub struct Room {
    free: Vec<Amounts>,
    devices: Vec<SmallVec<[u16; 8]>>,
    /// Thousandths of each device that the current plan has assigned, including those that this plan has released.
    held: Vec<SmallVec<[u16; 8]>>,
    kinds: Vec<Arc<[ResourceId]>>,
    /// Thousandths of each device that can be reserved.
    bookable: Vec<u16>,
    /// Thousandths of each device that are in use under the current plan, also by others. Empty unless the pool
    /// oversubscribes.
    in_use: Vec<SmallVec<[u16; 8]>>,
    /// Whether the server takes new slots: it is present, not draining and not [closed](Room::close).
    open: Vec<bool>,
    hosts: Vec<Hosts>,
    cloud: Vec<bool>,
    spared: Option<Amounts>,
    only: Option<bool>,
}

impl Room {
    /// The free room under the current plan.
    pub fn of(state: &State) -> Self {
        let mut room = Self::default();
        for server in &state.servers {
            room.refresh(state, server.id);
        }
        room
    }

    /// Resets a server's room to the state.
    pub fn refresh(&mut self, state: &State, id: ServerId) {
        let server = state.server(id);
        let mut free = server.reservable();
        free -= &server.planned.amounts;
        let mut devices = server.planned.devices.clone();
        if devices.len() < server.foreign.devices.len() {
            devices.resize(server.foreign.devices.len(), 0);
        }
        for (used, foreign) in devices.iter_mut().zip(&server.foreign.devices) {
            *used = used.saturating_add(*foreign);
        }
        if self.free.len() <= id.index() {
            self.free.resize_with(id.index() + 1, Amounts::default);
            self.devices.resize_with(id.index() + 1, SmallVec::new);
            self.held.resize_with(id.index() + 1, SmallVec::new);
            self.kinds.resize_with(id.index() + 1, || Arc::new([]));
            self.bookable.resize(id.index() + 1, 0);
            self.in_use.resize_with(id.index() + 1, SmallVec::new);
            self.open.resize(id.index() + 1, false);
            self.hosts.resize(id.index() + 1, Hosts::default());
            self.cloud.resize(id.index() + 1, false);
        }
        self.free[id.index()] = free;
        self.in_use[id.index()] = if server.bookable > 1000 { devices.clone() } else { SmallVec::new() };
        self.devices[id.index()] = devices;
        self.held[id.index()].clone_from(&server.planned.devices);
        self.kinds[id.index()] = server.devices.clone();
        self.bookable[id.index()] = server.bookable;
        self.reopen(state, id);
        self.hosts[id.index()] = server.hosts;
        self.cloud[id.index()] = server.place.cloud;
    }

    /// Closes a server for new slots, until [`reopen`](Self::reopen).
    pub(crate) fn close(&mut self, id: ServerId) {
        self.open[id.index()] = false;
    }

    /// Opens a closed server, unless it is absent or draining.
    pub(crate) fn reopen(&mut self, state: &State, id: ServerId) {
        let server = state.server(id);
        self.open[id.index()] = server.present && !server.draining;
    }

    /// Free room of a server.
    #[inline]
    pub fn free(&self, id: ServerId) -> &Amounts {
        &self.free[id.index()]
    }

    /// Reserved thousandths of each device of a server. Trailing free devices can be missing.
    #[inline]
    pub fn devices(&self, id: ServerId) -> &[u16] {
        &self.devices[id.index()]
    }

    /// Number of servers, including absent ones.
    pub fn len(&self) -> usize {
        self.free.len()
    }

    /// Whether there are no servers.
    pub fn is_empty(&self) -> bool {
        self.free.is_empty()
    }

    /// Whether a server can take new slots of a job: it is present, isn't draining, has the job's
    /// labels, and is in its domain.
    #[inline]
    pub fn accepts(&self, state: &State, id: ServerId, job: &Job) -> bool {
        self.open[id.index()]
            && job.is_near(id)
            && (job.spec.labels.is_empty() || state.server(id).matches(&job.spec.labels))
            && self.only.is_none_or(|cloud| self.cloud[id.index()] == cloud)
    }

    /// Whether a server takes slots of a role.
    #[inline]
    pub(crate) fn hosts(&self, id: ServerId, role: Role) -> bool {
        self.hosts[id.index()].takes(role)
    }

    /// Whether a server is in the cloud.
    #[inline]
    pub fn is_cloud(&self, id: ServerId) -> bool {
        self.cloud[id.index()]
    }

    /// Limits the room to cloud servers (`true`) or to other servers (`false`): [`accepts`](Self::accepts) and the
    /// walks of the index exclude the rest. `None` removes the limit.
    pub fn limit(&mut self, cloud: Option<bool>) {
        self.only = cloud;
    }

    /// The current [`limit`](Self::limit).
    pub(super) fn limited(&self) -> Option<bool> {
        self.only
    }

    /// Protects GPUs from stranding, for a kind of worker that uses GPUs: if a server has room for n such workers,
    /// [`holds`](Self::holds) requires that room for n remains, less those whose GPUs are taken. `None` removes the
    /// protection.
    pub fn spare(&mut self, worker: Option<Amounts>) {
        self.spared = worker;
    }

    /// Whether a server has room for `workers` and `servers` of a job. It checks the server's roles and each device.
    #[inline]
    pub fn holds(&self, id: ServerId, job: &Job, need: &Amounts, workers: u32, servers: u32) -> bool {
        need.fits(self.free(id))
            && self.spared.as_ref().is_none_or(|worker| strands_none(self.free(id), need, worker))
            && self.hosts[id.index()].take(Shape { workers, servers })
            && self.devices_hold(id, job, workers, servers)
    }

    fn devices_hold(&self, id: ServerId, job: &Job, workers: u32, servers: u32) -> bool {
        let kinds = &self.kinds[id.index()];
        let wanted = |demand: &Demand, count: u32| demand.devices.filter(|_| count > 0);
        if kinds.is_empty() || (wanted(&job.worker, workers).is_none() && wanted(&job.server, servers).is_none()) {
            return true;
        }
        let used = &self.devices[id.index()];
        let shared = |milli: u32| milli < 1000;
        let whole_only = [wanted(&job.worker, workers), wanted(&job.server, servers)]
            .iter()
            .flatten()
            .all(|(_, milli)| !shared(*milli));
        // If only whole devices are used, the sums are sufficient.
        if whole_only && self.bookable[id.index()] <= 1000 && used.iter().all(|milli| *milli == 0 || *milli == 1000) {
            return true;
        }
        let (mut used, held) = (used.clone(), &self.held[id.index()]);
        let mut pick = |demand: &Demand, count: u32| {
            (0..count).all(|_| server::pick_devices(kinds, &mut used, held, demand).is_some())
        };
        pick(&job.worker, workers) && pick(&job.server, servers)
    }

    /// Reserves room for one slot, and picks its devices. `None` if there is no room.
    pub fn take(&mut self, id: ServerId, demand: &Demand) -> Option<Devices> {
        if !demand.amounts.fits(self.free(id)) {
            return None;
        }
        let at = id.index();
        let devices = server::pick_devices(&self.kinds[at], &mut self.devices[at], &self.held[at], demand)?;
        self.charge(id, demand, &devices, 1);
        Some(devices)
    }

    /// Reserves room for one slot on the given devices. False if there is no room, or if the devices aren't available.
    /// No device is reserved twice, even if the pool oversubscribes, unless the current plan has done so already.
    pub fn take_again(&mut self, id: ServerId, demand: &Demand, devices: &Devices) -> bool {
        self.take_up_to(id, demand, devices, 1000)
    }

    /// The same for engines that [measure](crate::engine::Limits::Measured) the load of shared devices: up to what the
    /// pool allows.
    pub(crate) fn share(&mut self, id: ServerId, demand: &Demand, devices: &Devices) -> bool {
        self.take_up_to(id, demand, devices, self.bookable[id.index()])
    }

    fn take_up_to(&mut self, id: ServerId, demand: &Demand, devices: &Devices, most: u16) -> bool {
        if !server::devices_match(&self.kinds[id.index()], demand, devices) {
            return false;
        }
        let (used, in_use) = (&mut self.devices[id.index()], &self.in_use[id.index()]);
        let free = |at: u16, milli: u16| {
            let before = in_use.get(usize::from(at)).copied().unwrap_or(0);
            let now = used.get(usize::from(at)).copied().unwrap_or(0);
            now.saturating_add(milli) <= most.max(before)
        };
        if !demand.amounts.fits(&self.free[id.index()]) || !devices.iter().all(|share| free(share.device, share.milli))
        {
            return false;
        }
        for share in devices {
            let at = usize::from(share.device);
            if used.len() <= at {
                used.resize(at + 1, 0);
            }
            used[at] += share.milli;
        }
        self.charge(id, demand, devices, 1);
        true
    }

    /// Whether a part of this device is reserved.
    pub fn is_taken(&self, id: ServerId, device: u16) -> bool {
        self.devices[id.index()].get(usize::from(device)).is_some_and(|milli| *milli > 0)
    }

    /// Whether a slot's use can grow: there is room for the difference, and its devices are free.
    pub(crate) fn holds_use(&self, id: ServerId, demand: &Demand, devices: &Devices, from: Use, to: Use) -> bool {
        let mut extra = to.amounts(demand);
        extra -= &from.amounts(demand);
        let free = |share: &DeviceShare| {
            let used = self.devices[id.index()].get(usize::from(share.device)).copied().unwrap_or(0);
            used.saturating_add(share.milli) <= 1000
        };
        extra.fits(&self.free[id.index()]) && (to != Use::Busy || from == to || devices.iter().all(free))
    }

    /// Changes the use of a slot.
    pub(crate) fn use_slot(&mut self, id: ServerId, demand: &Demand, devices: &Devices, from: Use, to: Use) {
        for (way, times) in [(from, -1), (to, 1)] {
            if way != Use::Busy {
                self.free[id.index()].add_times(&way.amounts(demand), -times);
                continue;
            }
            let used = &mut self.devices[id.index()];
            for share in devices {
                let at = usize::from(share.device);
                if used.len() <= at {
                    used.resize(at + 1, 0);
                }
                used[at] = if times > 0 { used[at] + share.milli } else { used[at].saturating_sub(share.milli) };
            }
            self.charge(id, demand, devices, times);
        }
    }

    /// Releases an allocation's room. Idle slots release memory and disk.
    pub fn release(&mut self, job: &Job, allocation: &Allocation) {
        for slot in allocation.slots() {
            let takes = if allocation.is_busy(slot) { Use::Busy } else { Use::Idle };
            self.use_slot(slot.server, job.demand(slot.role), &slot.devices, takes, Use::None);
        }
    }

    fn charge(&mut self, id: ServerId, demand: &Demand, devices: &Devices, times: i64) {
        let at = id.index();
        self.free[at].add_times(&demand.amounts, -times);
        let Some((wanted, _)) = demand.devices else { return };
        for share in devices {
            let kind: ResourceId = self.kinds[at].get(usize::from(share.device)).copied().unwrap_or(GPU);
            if kind != wanted {
                self.free[at].add(kind, -times * i64::from(share.milli));
            }
        }
    }
}

/// Whether the number of GPU workers that fit drops at most by those whose GPUs the need takes.
fn strands_none(free: &Amounts, need: &Amounts, worker: &Amounts) -> bool {
    if free[GPU] < worker[GPU] {
        return true;
    }
    let workers = |left: &dyn Fn(ResourceId) -> i64| {
        worker.iter().filter(|(_, each)| *each > 0).map(|(resource, each)| left(resource) / each).min()
    };
    let before = workers(&|resource| free[resource]);
    let after = workers(&|resource| free[resource] - need[resource]);
    let taken = (need[GPU] + worker[GPU] - 1) / worker[GPU];
    before.zip(after).is_none_or(|(before, after)| after >= before - taken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::CPU;

    #[test]
    fn needs_that_take_the_cores_of_gpu_workers_strand_gpus() {
        let amounts = |gpus: i64, cores: i64| Amounts::of(&[(GPU, gpus * 1000), (CPU, cores * 1000)]);
        let spares = |free: Amounts, need: Amounts| strands_none(&free, &need, &amounts(1, 2));
        assert!(spares(amounts(2, 8), amounts(0, 4)), "4 cores are left for 2 workers");
        assert!(!spares(amounts(2, 8), amounts(0, 5)));
        assert!(spares(amounts(2, 8), amounts(2, 8)), "takes the GPUs as well");
        assert!(spares(amounts(2, 3), amounts(0, 1)), "one worker before, one after");
        assert!(!spares(amounts(2, 3), amounts(0, 2)));
        assert!(spares(amounts(0, 8), amounts(0, 8)), "no GPU is free");
        assert!(spares(amounts(2, 1), amounts(0, 1)), "they were stranded before");
    }
}
