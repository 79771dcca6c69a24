//! Load of servers under a plan in the making: measured use, and expected use of slots without measurements.

use crate::{
    decision::Slot,
    ids::{ResourceId, ServerId},
    job::Job,
    resources::{Amounts, GPU},
    server::Server,
    shape::Role,
    state::State,
};

/// Load of one device.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DeviceLoad {
    /// Used fraction of the device.
    pub used: f64,
    /// Number of slots that share it.
    pub slots: u32,
}

/// Load of each server under a plan in the making, as fractions of its capacity.
///
/// Building it is O(servers · resources + planned slots). Moving a slot is O(resources + its devices).
pub struct Load {
    resources: Vec<ResourceId>,
    /// One entry per resource for each server.
    used: Vec<f64>,
    have: Vec<f64>,
    devices: Vec<Vec<DeviceLoad>>,
    slots: Vec<u32>,
    most: f64,
}

impl State {
    /// Expected use of a slot of a job: its own measurement, or the mean of its model's slots. Without any measurement
    /// it is the fraction `most` of its demand, so that a fully reserved server is just not overloaded.
    pub fn expected_use(&self, job: &Job, role: Role, index: u32, most: f64) -> Amounts {
        let present = job.verdict.allocation().and_then(|allocation| allocation.slot(role, index));
        let measured = present.and_then(|slot| self.server(slot.server).measured.as_ref());
        let measured = measured.and_then(|measured| measured.slots.get(&(job.id, role, index)));
        if let Some(usage) = measured {
            return usage.amounts.clone();
        }
        match self.usual_use(job, role) {
            Some(usual) => usual.clone(),
            None => {
                let demand = &job.demand(role).amounts;
                let parts: Vec<_> =
                    demand.iter().map(|(id, need)| (id, libm::floor(need as f64 * most) as i64)).collect();
                Amounts::of(&parts)
            }
        }
    }
}

impl Load {
    /// Load under the current plan. A server is overloaded beyond the fraction `most` of a resource.
    pub fn of(state: &State, most: f64) -> Self {
        let counted = |(id, have): (ResourceId, i64)| {
            (have > 0 && (id == GPU || !crate::resources::is_gpu(state.resources.name(id)))).then_some(id)
        };
        let resources: Vec<ResourceId> = state.capacity.iter().filter_map(counted).collect();
        let mut load = Self {
            used: vec![0.0; state.servers.len() * resources.len()],
            have: vec![0.0; state.servers.len() * resources.len()],
            devices: Vec::with_capacity(state.servers.len()),
            slots: vec![0; state.servers.len()],
            resources,
            most,
        };
        for server in &state.servers {
            load.devices.push(vec![DeviceLoad::default(); server.devices.len()]);
            load.begin(server);
        }
        for job in state.jobs.values() {
            let Some(allocation) = job.verdict.allocation() else { continue };
            for slot in allocation.slots() {
                let server = state.server(slot.server);
                let here = server.measured.as_ref();
                match here.and_then(|measured| measured.slots.get(&(job.id, slot.role, slot.index))) {
                    // The server's measured total contains the slot.
                    Some(usage) => {
                        load.add_devices(slot, usage.amounts[GPU], 1.0);
                        load.slots[slot.server.index()] += 1;
                        let at = slot.server.index() * load.resources.len();
                        for (offset, resource) in load.resources.iter().enumerate() {
                            load.used[at + offset] += usage.amounts[*resource] as f64;
                        }
                    }
                    // If the measurement doesn't separate slots, the total contains all observed ones.
                    None if here.is_some_and(|measured| measured.slots.is_empty())
                        && job.seen.allocation.as_ref().is_some_and(|seen| seen.has(slot)) =>
                    {
                        load.add_devices(slot, 0, 1.0);
                        load.slots[slot.server.index()] += 1;
                    }
                    None => load.put(slot, &state.expected_use(job, slot.role, slot.index, most), 1.0),
                }
            }
        }
        load
    }

    /// Adds a server's capacity and foreign use.
    fn begin(&mut self, server: &Server) {
        let count = self.resources.len();
        let at = server.id.index() * count;
        for (offset, resource) in self.resources.iter().enumerate() {
            self.have[at + offset] = if server.present { server.capacity[*resource] as f64 } else { 0.0 };
            let others = match &server.measured {
                Some(measured) => {
                    let ours: i64 = measured.slots.values().map(|usage| usage.amounts[*resource]).sum();
                    (measured.total.amounts[*resource] - ours).max(0)
                }
                None => server.foreign.amounts[*resource],
            };
            self.used[at + offset] = others as f64;
        }
        for (device, load) in self.devices[server.id.index()].iter_mut().enumerate() {
            let of = |devices: &[u16]| i64::from(devices.get(device).copied().unwrap_or(0));
            let others = match &server.measured {
                Some(measured) => {
                    let ours: i64 = measured.slots.values().map(|usage| of(&usage.devices)).sum();
                    (of(&measured.total.devices) - ours).max(0)
                }
                None => of(&server.foreign.devices),
            };
            load.used = others as f64 / 1000.0;
        }
    }

    fn add_devices(&mut self, slot: &Slot, milli: i64, times: f64) {
        let each = milli as f64 / 1000.0 / slot.devices.len().max(1) as f64;
        for share in &slot.devices {
            if let Some(load) = self.devices[slot.server.index()].get_mut(usize::from(share.device)) {
                load.used = (load.used + times * each).max(0.0);
                load.slots = if times > 0.0 { load.slots + 1 } else { load.slots.saturating_sub(1) };
            }
        }
    }

    /// Adds (`times` = 1) or removes (−1) a slot.
    pub fn put(&mut self, slot: &Slot, amounts: &Amounts, times: f64) {
        let at = slot.server.index() * self.resources.len();
        for (offset, resource) in self.resources.iter().enumerate() {
            let used = &mut self.used[at + offset];
            *used = (*used + times * amounts[*resource] as f64).max(0.0);
        }
        self.add_devices(slot, amounts[GPU], times);
        let slots = &mut self.slots[slot.server.index()];
        *slots = if times > 0.0 { *slots + 1 } else { slots.saturating_sub(1) };
    }

    /// The counted resources, in the order of all vectors in this module.
    pub fn resources(&self) -> &[ResourceId] {
        &self.resources
    }

    /// Used fraction of each resource; 0 for resources that the server doesn't have.
    pub fn parts(&self, id: ServerId) -> impl Iterator<Item = f64> + '_ {
        let range = id.index() * self.resources.len()..(id.index() + 1) * self.resources.len();
        self.used[range.clone()]
            .iter()
            .zip(&self.have[range])
            .map(|(used, have)| if *have > 0.0 { used / have } else { 0.0 })
    }

    /// These amounts as fractions of each resource of a server.
    pub fn parts_of<'a>(&'a self, id: ServerId, amounts: &'a Amounts) -> impl Iterator<Item = f64> + 'a {
        let at = id.index() * self.resources.len();
        let have = &self.have[at..at + self.resources.len()];
        let part =
            |(resource, have): (&ResourceId, &f64)| if *have > 0.0 { amounts[*resource] as f64 / have } else { 0.0 };
        self.resources.iter().zip(have).map(part)
    }

    /// Load of a server's devices.
    pub fn devices(&self, id: ServerId) -> &[DeviceLoad] {
        &self.devices[id.index()]
    }

    /// Whether a device is overloaded. A single slot never overloads it.
    pub fn is_device_overloaded(&self, id: ServerId, device: usize) -> bool {
        let load = self.devices[id.index()][device];
        load.slots > 1 && load.used > self.most
    }

    /// Whether each resource of a server is overloaded. For GPUs, the listed devices decide, if there are any.
    pub fn overloads(&self, id: ServerId) -> impl Iterator<Item = bool> + '_ {
        let listed = !self.devices[id.index()].is_empty();
        let any_device = (0..self.devices[id.index()].len()).any(|device| self.is_device_overloaded(id, device));
        let shared = self.slots[id.index()] > 1;
        self.resources.iter().zip(self.parts(id)).map(move |(resource, part)| match *resource == GPU && listed {
            true => any_device,
            false => shared && part > self.most,
        })
    }

    /// Whether any resource of a server is overloaded.
    pub fn is_overloaded(&self, id: ServerId) -> bool {
        self.overloads(id).any(|over| over)
    }

    /// Whether a server isn't overloaded with these additional amounts on these devices. A slot alone on an idle server
    /// or device never overloads it.
    pub fn holds(&self, id: ServerId, amounts: &Amounts, devices: &[u16]) -> bool {
        let (at, count) = (id.index() * self.resources.len(), self.resources.len());
        let alone = self.slots[id.index()] == 0;
        let listed = !self.devices[id.index()].is_empty();
        let resources = (0..count).all(|offset| {
            let (used, have, more) = (self.used[at + offset], self.have[at + offset], amounts[self.resources[offset]]);
            let by_device = listed && self.resources[offset] == GPU;
            more == 0 || by_device || alone || used + more as f64 <= self.most * have + 1e-6
        });
        let each = amounts[GPU] as f64 / 1000.0 / devices.len().max(1) as f64;
        resources
            && devices.iter().all(|device| {
                let load = self.devices[id.index()][usize::from(*device)];
                load.slots == 0 || load.used + each <= self.most + 1e-9
            })
    }

    /// Maximum number of additional slots with use `each` on a device without an overload.
    pub fn at_most(&self, id: ServerId, device: usize, each: f64) -> u32 {
        let load = self.devices[id.index()][device];
        let left = if each > 0.0 { (self.most + 1e-6 - load.used) / each } else { f64::INFINITY };
        (left as u32).max(u32::from(load.slots == 0))
    }

    /// Load degree of a server: the root of the mean square of the used fractions. At most 1 if no resource is
    /// oversubscribed.
    pub fn degree(&self, id: ServerId) -> f64 {
        let at = id.index() * self.resources.len();
        let count = self.have[at..at + self.resources.len()].iter().filter(|have| **have > 0.0).count().max(1);
        libm::sqrt(self.parts(id).map(|part| part * part).sum::<f64>() / count as f64)
    }
}
