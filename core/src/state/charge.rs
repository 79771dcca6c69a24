//! Use of servers: by the plan, and the charge for issued or observed slots.

use std::sync::Arc;

use crate::{
    decision::Allocation,
    ids::{JobId, ResourceId, ServerId},
    job::{Demand, Job},
    resources::{Amounts, DISK, MEMORY},
    server::Usage,
    settings::Mode,
    state::State,
};

/// The use of each server by an allocation, sorted by server. O(slots + servers touched · their log). With work, O(log
/// work) more for each worker, and O(work) for each parameter server.
pub fn usage_by_server(state: &State, job: &Job, allocation: &Allocation) -> Vec<(ServerId, Usage)> {
    let mut by_server: Vec<(ServerId, Usage)> = Vec::with_capacity(8);
    let all_busy = allocation.work().is_empty();
    // Slots of one role on one server are usually adjacent.
    for run in allocation.slots().chunk_by(|a, b| (a.role, a.server) == (b.role, b.server)) {
        let (server, demand) = (run[0].server, job.demand(run[0].role));
        let at = by_server.binary_search_by_key(&server, |(server, _)| *server).unwrap_or_else(|at| {
            by_server.insert(at, (server, Usage::default()));
            at
        });
        let usage = &mut by_server[at].1;
        let kinds: &[ResourceId] = if demand.devices.is_some() { &state.server(server).devices } else { &[] };
        if all_busy {
            usage.amounts.add_times(&demand.amounts, run.len() as i64);
        }
        for slot in run {
            if all_busy {
                usage.add_devices(kinds, demand, &slot.devices);
            } else if allocation.is_busy(slot) {
                usage.amounts += &demand.amounts;
                usage.add_devices(kinds, demand, &slot.devices);
            } else {
                usage.amounts += &idle(demand);
            }
        }
    }
    by_server
}

/// Use by an idle slot.
pub(crate) fn idle(demand: &Demand) -> Amounts {
    Amounts::of(&[(MEMORY, demand.amounts[MEMORY]), (DISK, demand.amounts[DISK])])
}

impl State {
    /// The charge of a job: per server the larger of its issued and its observed amounts.
    pub(crate) fn charge(&self, job: &Job) -> Vec<(ServerId, Usage)> {
        self.charge_with(job, job.issued.allocation.as_deref())
    }

    /// The charge if this allocation were issued.
    pub(crate) fn charge_with(&self, job: &Job, issued: Option<&Allocation>) -> Vec<(ServerId, Usage)> {
        let mut charge = issued.map(|allocation| usage_by_server(self, job, allocation)).unwrap_or_default();
        let Some(observed) = job.seen.allocation.as_deref() else { return charge };
        if issued == Some(observed) {
            return charge;
        }
        for (server, usage) in usage_by_server(self, job, observed) {
            match charge.binary_search_by_key(&server, |(server, _)| *server) {
                Ok(at) => charge[at].1.max_with(&usage),
                Err(at) => charge.insert(at, (server, usage)),
            }
        }
        charge
    }

    /// Changes a job's issued or observed slots, and updates the charges.
    pub(crate) fn recharge(&mut self, id: JobId, change: impl FnOnce(&mut Job)) {
        let find = |state: &Self| state.jobs.get(&id).or_else(|| state.leaving.get(&id)).cloned();
        let Some(before) = find(self) else { return };
        let charged = self.charge(&before);
        drop(before);
        let job = if self.jobs.contains_key(&id) { self.jobs.get_mut(&id) } else { self.leaving.get_mut(&id) };
        change(Arc::make_mut(job.expect("found above")));
        let after = find(self).expect("found above");
        let charge = self.charge(&after);
        drop(after);
        self.move_charge(&charged, &charge);
        // Outside of active mode, a job is handed back in the shape that it has.
        if self.mode != Mode::Active {
            self.outbox.unsent.insert(id);
        }
    }

    /// Removes one charge from the servers and adds another.
    pub(crate) fn move_charge(&mut self, from: &[(ServerId, Usage)], to: &[(ServerId, Usage)]) {
        for (charge, times) in [(from, -1), (to, 1)] {
            for (server, usage) in charge {
                self.server_mut(*server).charged.add_usage(usage, times);
            }
        }
        self.pending.unpark(from.iter().map(|(server, _)| *server));
    }
}
