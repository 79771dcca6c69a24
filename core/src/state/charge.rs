//! Who uses what of which server: the plan's view, and the charge of what is issued or still observed.

use std::sync::Arc;

use crate::{
    decision::Allocation,
    ids::{JobId, ResourceId, ServerId},
    job::{Demand, Job},
    resources::{Amounts, DISK, MEMORY},
    server::Usage,
    state::State,
};

/// What an allocation takes of each server, by server. O(slots · log servers touched).
pub(crate) fn usage_by_server(state: &State, job: &Job, allocation: &Allocation) -> Vec<(ServerId, Usage)> {
    let mut by_server: Vec<(ServerId, Usage)> = Vec::new();
    // Looked up once a server, not once a slot: a plan of a whole cluster has six times as many.
    let mut kinds: Vec<&[ResourceId]> = Vec::new();
    let idle = |demand: &Demand| Amounts::of(&[(MEMORY, demand.amounts[MEMORY]), (DISK, demand.amounts[DISK])]);
    for slot in allocation.slots() {
        let found = match by_server.last() {
            Some((last, _)) if *last == slot.server => Ok(by_server.len() - 1),
            _ => by_server.binary_search_by_key(&slot.server, |(server, _)| *server),
        };
        let at = found.unwrap_or_else(|at| {
            by_server.insert(at, (slot.server, Usage::default()));
            kinds.insert(at, &state.server(slot.server).devices);
            at
        });
        let demand = job.demand(slot.role);
        let usage = &mut by_server[at].1;
        if allocation.work().is_empty() || allocation.is_busy(slot) {
            usage.add(kinds[at], demand, &demand.amounts, &slot.devices, 1);
        } else {
            usage.add(kinds[at], demand, &idle(demand), &Default::default(), 1);
        }
    }
    by_server
}

impl State {
    /// What a job is charged with: per server the larger of what is issued and what is observed.
    pub(crate) fn charge(&self, job: &Job) -> Vec<(ServerId, Usage)> {
        self.charge_with(job, job.issued.as_deref())
    }

    /// The same, were this issued.
    pub(crate) fn charge_with(&self, job: &Job, issued: Option<&Allocation>) -> Vec<(ServerId, Usage)> {
        let mut charge = issued.map(|allocation| usage_by_server(self, job, allocation)).unwrap_or_default();
        let Some(observed) = job.observed.as_deref() else { return charge };
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

    /// Changes what is issued to or observed of a job, and the charges with it.
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
    }

    /// Takes one charge off the servers and puts another on.
    pub(crate) fn move_charge(&mut self, from: &[(ServerId, Usage)], to: &[(ServerId, Usage)]) {
        for (charge, times) in [(from, -1), (to, 1)] {
            for (server, usage) in charge {
                self.server_mut(*server).charged.add_usage(usage, times);
            }
        }
        self.unpark(from.iter().map(|(server, _)| *server));
    }
}
