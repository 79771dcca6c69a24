//! Measured use of servers and of their slots.

use std::{collections::BTreeMap, sync::Arc};

use super::{Change, State};
use crate::{
    decision::{Allocation, DeviceShare, Devices},
    event::{EventError, SlotUse},
    ids::ResourceId,
    job::{Demand, Job},
    resources::{Amounts, GPU, ResourceTypes},
    server::{Measured, Server, Usage},
    shape::Role,
};

/// Weight of a new measurement in a model's average: one part in this many.
const REMEMBERED: i64 = 8;

/// Thousandths of use from which a device or another resource counts as full.
const FULL: u16 = 990;

impl State {
    /// Replaces a server's measurements by new ones. O(slots measured).
    pub(super) fn measure(
        &mut self,
        name: &str,
        used: &BTreeMap<String, i64>,
        devices: &[DeviceShare],
        slots: &[SlotUse],
    ) -> Result<(), EventError> {
        for (used, devices) in std::iter::once((used, devices)).chain(slots.iter().map(|of| (&of.used, &*of.devices))) {
            super::servers::check_amounts(name, used)?;
            super::servers::check_shares(name, devices)?;
        }
        let tables = || std::iter::once(used).chain(slots.iter().map(|of| &of.used));
        let id = *self.roster.server_ids.get(name).ok_or_else(|| EventError::UnknownServer(name.to_owned()))?;
        if let Some(gpu) = tables().flat_map(BTreeMap::keys).find(|name| crate::resources::is_gpu(name)) {
            let problem = format!("{gpu} is measured device by device: name it among the devices");
            return Err(EventError::Server { server: name.to_owned(), problem });
        }
        let kinds = self.server(id).devices.clone();
        let named = devices.iter().chain(slots.iter().flat_map(|of| &of.devices));
        if let Some(share) = named.into_iter().find(|share| usize::from(share.device) >= kinds.len()) {
            let problem = format!("device {} is measured; it lists {}", share.device, kinds.len());
            return Err(EventError::Server { server: name.to_owned(), problem });
        }
        self.make_room_for_types(tables().flat_map(super::servers::used), ResourceTypes::MOST)?;
        let types = Arc::make_mut(&mut self.resources);
        let mut usage = |used: &BTreeMap<String, i64>, devices: &[DeviceShare]| {
            usage(&kinds, types.demand(used), devices.iter().copied().collect())
        };
        let total = usage(used, devices);
        // Only slots of known jobs are kept. Nothing would read the others.
        let known = slots.iter().filter(|of| {
            let here = |allocation: Option<&Arc<Allocation>>| {
                let slot = allocation.and_then(|allocation| allocation.slot(of.slot.0, of.slot.1));
                slot.is_some_and(|slot| slot.server == id)
            };
            let has = |job: &Arc<Job>| {
                here(job.seen.allocation.as_ref())
                    || here(job.issued.allocation.as_ref())
                    || here(job.verdict.allocation())
            };
            self.jobs.get(&of.job).is_some_and(has)
        });
        let slots: BTreeMap<_, _> =
            known.map(|of| ((of.job, of.slot.0, of.slot.1), usage(&of.used, &of.devices))).collect();
        // On a full device that others use, too, a slot may want more than it gets. So its use is a lower bound there.
        let wants_more = |usage: &Usage| {
            usage.devices.iter().zip(&total.devices).any(|(own, all)| (1..*all).contains(own) && *all >= FULL)
        };
        for ((job, role, _), usage) in &slots {
            let job = &self.jobs[job];
            // A job that is still starting says nothing about training.
            let usual = self.usual_use(job, *role).map_or(0, |usual| usual[GPU]);
            if !job.learnt.reported.is_empty() && (usage.amounts[GPU] > usual || !wants_more(usage)) {
                self.remember(&job.model.clone(), *role, &usage.amounts);
            }
        }
        self.server_mut(id).measured = Some(Arc::new(Measured { total, slots }));
        self.note(Change::Measured(id));
        Ok(())
    }

    /// Updates the average use of a model. Jobs of one model usually use similar amounts.
    fn remember(&mut self, model: &str, role: Role, used: &Amounts) {
        let model = Arc::make_mut(self.models.get_mut(model).expect("it has an active job"));
        let known = match role {
            Role::Worker => &mut model.worker_use,
            Role::Server => &mut model.server_use,
        };
        match known {
            None => *known = Some(used.clone()),
            Some(known) => {
                let mut step = used.clone();
                step -= known;
                for (resource, difference) in step.iter() {
                    known.add(resource, difference / REMEMBERED);
                }
            }
        }
    }

    /// Average measured use of a slot of the job's model.
    pub fn usual_use(&self, job: &Job, role: Role) -> Option<&Amounts> {
        let model = self.models.get(&job.model)?;
        match role {
            Role::Worker => model.worker_use.as_ref(),
            Role::Server => model.server_use.as_ref(),
        }
    }
}

/// The amounts, plus those of the devices.
fn usage(kinds: &[ResourceId], amounts: Amounts, devices: Devices) -> Usage {
    let mut usage = Usage { amounts, ..Usage::default() };
    usage.add_devices(kinds, &Demand::default(), &devices);
    let known = usage.devices.iter().take(kinds.len());
    usage.amounts.add(GPU, known.map(|milli| i64::from(*milli)).sum());
    usage
}

impl Server {
    /// Whether a device is measured as full.
    pub(crate) fn is_full_device(&self, device: usize) -> bool {
        let measured = self.measured.as_ref().and_then(|measured| measured.total.devices.get(device));
        measured.is_some_and(|milli| *milli >= FULL)
    }

    /// Whether a resource is measured as full.
    pub(crate) fn is_full(&self, resource: ResourceId) -> bool {
        let have = self.capacity[resource];
        let used = self.measured.as_ref().map_or(0, |measured| measured.total.amounts[resource]);
        have > 0 && used.saturating_mul(1000) >= have.saturating_mul(FULL.into())
    }

    /// The resource with the largest measured share above `most`, with that share. Each device counts separately, as a
    /// GPU.
    pub fn first_overload(&self, most: f64) -> Option<(ResourceId, f64)> {
        let measured = self.measured.as_ref().filter(|_| self.present)?;
        let of = |(resource, have): (ResourceId, i64)| {
            (have > 0).then(|| (resource, measured.total.amounts[resource] as f64 / have as f64))
        };
        let device = measured.total.devices.iter().take(self.devices.len()).copied().max().unwrap_or(0);
        let shares = self.capacity.iter().filter_map(of).chain([(GPU, f64::from(device) / 1000.0)]);
        shares.filter(|(_, share)| *share > most).max_by(|a, b| a.1.total_cmp(&b.1))
    }
}
