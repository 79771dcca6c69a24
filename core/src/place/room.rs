//! What is still free on each server while a plan is made.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::{
    decision::{Allocation, DeviceShare, Devices},
    ids::{ResourceId, ServerId},
    job::{Demand, Job},
    resources::{Amounts, GPU},
    server::{self, Hosts},
    shape::Shape,
    state::{State, idle},
};

/// What a slot takes of its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Use {
    /// Nothing: it isn't there.
    None,
    /// Memory and disk: it has nothing to do for now.
    Idle,
    /// All that it demands.
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

/// Free room of every server under a plan in the making. Building it is O(servers), each change O(slots changed).
#[derive(Clone, Default)]
pub struct Room {
    free: Vec<Amounts>,
    devices: Vec<SmallVec<[u16; 8]>>,
    /// Thousandths of each device that the present plan gives to somebody, whatever is released here.
    held: Vec<SmallVec<[u16; 8]>>,
    kinds: Vec<Arc<[ResourceId]>>,
    /// Thousandths of each device that may be reserved.
    bookable: Vec<u16>,
    /// Present and not draining.
    open: Vec<bool>,
    hosts: Vec<Hosts>,
    cloud: Vec<bool>,
    spared: Option<Amounts>,
    only: Option<bool>,
}

impl Room {
    /// What the present plan leaves.
    pub fn of(state: &State) -> Self {
        let mut room = Self::default();
        for server in &state.servers {
            room.refresh(state, server.id);
        }
        room
    }

    /// Takes a server's room from the state again.
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
            self.open.resize(id.index() + 1, false);
            self.hosts.resize(id.index() + 1, Hosts::default());
            self.cloud.resize(id.index() + 1, false);
        }
        self.free[id.index()] = free;
        self.devices[id.index()] = devices;
        self.held[id.index()].clone_from(&server.planned.devices);
        self.kinds[id.index()] = server.devices.clone();
        self.bookable[id.index()] = server.bookable;
        self.open[id.index()] = server.present && !server.draining;
        self.hosts[id.index()] = server.hosts;
        self.cloud[id.index()] = server.place.cloud;
    }

    /// What is free on a server.
    #[inline]
    pub fn free(&self, id: ServerId) -> &Amounts {
        &self.free[id.index()]
    }

    /// Thousandths taken of each device of a server; shorter where nothing is.
    #[inline]
    pub fn devices(&self, id: ServerId) -> &[u16] {
        &self.devices[id.index()]
    }

    /// How many servers there are, gone ones included.
    pub fn len(&self) -> usize {
        self.free.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.free.is_empty()
    }

    /// Whether new slots of a job may come to a server: it is there, not draining, and carries the job's labels.
    #[inline]
    pub fn accepts(&self, state: &State, id: ServerId, job: &Job) -> bool {
        self.open[id.index()]
            && (job.spec.labels.is_empty() || state.server(id).matches(&job.spec.labels))
            && self.only.is_none_or(|cloud| self.cloud[id.index()] == cloud)
    }

    /// Whether a server is the cloud's.
    #[inline]
    pub fn is_cloud(&self, id: ServerId) -> bool {
        self.cloud[id.index()]
    }

    /// From now on [`accepts`](Self::accepts) refuses servers that aren't the cloud's, or with `false` those that are,
    /// and no walk of the index comes to them. `None`: no more of that.
    pub fn limit(&mut self, cloud: Option<bool>) {
        self.only = cloud;
    }

    /// What was last set by [`limit`](Self::limit).
    pub(super) fn limited(&self) -> Option<bool> {
        self.only
    }

    /// From now on [`holds`](Self::holds) refuses what would strand GPUs: where a server has room for n of this worker,
    /// which takes GPUs, there must be room for n less those whose GPUs are taken. `None`: no more of that.
    pub fn spare(&mut self, worker: Option<Amounts>) {
        self.spared = worker;
    }

    /// Whether a server takes `workers` and `servers` of a job: both roles are hosted there, and fit, devices one by one
    /// included.
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
        // Where devices are only ever whole, sums say it all.
        if whole_only && self.bookable[id.index()] <= 1000 && used.iter().all(|milli| *milli == 0 || *milli == 1000) {
            return true;
        }
        let (mut used, held) = (used.clone(), &self.held[id.index()]);
        let mut pick = |demand: &Demand, count: u32| {
            (0..count).all(|_| server::pick_devices(kinds, &mut used, held, demand).is_some())
        };
        pick(&job.worker, workers) && pick(&job.server, servers)
    }

    /// Takes room for one slot and picks its devices; `None` if it has none.
    pub fn take(&mut self, id: ServerId, demand: &Demand) -> Option<Devices> {
        if !demand.amounts.fits(self.free(id)) {
            return None;
        }
        let at = id.index();
        let devices = server::pick_devices(&self.kinds[at], &mut self.devices[at], &self.held[at], demand)?;
        self.charge(id, demand, &devices, 1);
        Some(devices)
    }

    /// Takes room for one slot with these very devices; false if it has none, or other devices by now.
    pub fn take_again(&mut self, id: ServerId, demand: &Demand, devices: &Devices) -> bool {
        if !server::devices_match(&self.kinds[id.index()], demand, devices) {
            return false;
        }
        let bookable = self.bookable[id.index()];
        let used = &mut self.devices[id.index()];
        let free =
            |at: u16, milli: u16| used.get(usize::from(at)).copied().unwrap_or(0).saturating_add(milli) <= bookable;
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

    /// Whether anything has a part of this device.
    pub fn is_taken(&self, id: ServerId, device: u16) -> bool {
        self.devices[id.index()].get(usize::from(device)).is_some_and(|milli| *milli > 0)
    }

    /// Whether a slot may be used for more than it is: there is room for the difference, and its devices are free.
    pub(crate) fn holds_use(&self, id: ServerId, demand: &Demand, devices: &Devices, from: Use, to: Use) -> bool {
        let mut extra = to.amounts(demand);
        extra -= &from.amounts(demand);
        let free = |share: &DeviceShare| {
            let used = self.devices[id.index()].get(usize::from(share.device)).copied().unwrap_or(0);
            used.saturating_add(share.milli) <= 1000
        };
        extra.fits(&self.free[id.index()]) && (to != Use::Busy || from == to || devices.iter().all(free))
    }

    /// A slot is used in another way.
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

    /// Gives back all that an allocation takes: of what is idle, memory and disk.
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

/// Whether as many GPU workers fit beside a need as did before, less those whose GPUs it takes.
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
    fn gpus_are_stranded_by_what_takes_their_workers_cores() {
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
