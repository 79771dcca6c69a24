//! Recomputes all incrementally kept sums: for tests, and for a host that doubts its state.

use std::collections::BTreeMap;

use super::{State, usage_by_server};
use crate::{ids::ServerId, resources::Amounts, server::Usage, settings::Mode};

impl State {
    /// Recomputes each sum from scratch and compares it with the kept one. Also checks that each job with an unissued
    /// plan will be tried again. O(state).
    ///
    /// # Errors
    /// Names the first sum that differs, or the job that was forgotten.
    pub fn audit(&self) -> Result<(), String> {
        let mut planned: BTreeMap<ServerId, Usage> = BTreeMap::new();
        let mut charged: BTreeMap<ServerId, Usage> = BTreeMap::new();
        let mut tenants = vec![Amounts::default(); self.tenants.len()];
        let mut queues = vec![Amounts::default(); self.queues.len()];
        for job in self.jobs.values().chain(self.leaving.values()) {
            for (server, usage) in self.charge(job) {
                charged.entry(server).or_default().add_usage(&usage, 1);
            }
        }
        if self.directory.census != self.taken_census() {
            return Err(format!("jobs: counted {:?}, there are {:?}", self.directory.census, self.taken_census()));
        }
        for job in self.jobs.values() {
            let Some(allocation) = job.verdict.allocation() else { continue };
            for (server, usage) in usage_by_server(self, job, allocation) {
                planned.entry(server).or_default().add_usage(&usage, 1);
                tenants[job.tenant.0 as usize] += &usage.amounts;
                queues[job.queue.0 as usize] += &usage.amounts;
            }
        }
        let (mut usable, mut capacity) = (Amounts::default(), Amounts::default());
        for server in &self.servers {
            let none = Usage::default();
            for (what, kept, sum) in [
                ("planned", &server.planned, planned.get(&server.id).unwrap_or(&none)),
                ("charged", &server.charged, charged.get(&server.id).unwrap_or(&none)),
            ] {
                if !same_usage(kept, sum) {
                    return Err(format!("{} {what}: kept {kept:?}, added up {sum:?}", server.name));
                }
            }
            if server.present {
                usable += &server.usable();
                capacity += &server.capacity;
            }
        }
        let totals = [("usable", &self.usable, &usable), ("capacity", &self.capacity, &capacity)];
        let tenants = self.tenants.iter().zip(&tenants).map(|(account, sum)| (&*account.name, &account.planned, sum));
        let queues = self.queues.iter().zip(&queues).map(|(account, sum)| (&*account.name, &account.planned, sum));
        for (what, kept, sum) in totals.into_iter().chain(tenants).chain(queues) {
            if !same(kept, sum) {
                return Err(format!("{what}: kept {kept:?}, added up {sum:?}"));
            }
        }
        self.audit_issues()
    }

    fn audit_issues(&self) -> Result<(), String> {
        for job in self.jobs.values().filter(|_| self.mode == Mode::Active) {
            let Some(target) = job.verdict.allocation() else {
                if job.issued.allocation.is_some() && !job.issued.revoked && !self.pending.unissued.contains(&job.id) {
                    return Err(format!("{} has room that nobody takes back", job.id));
                }
                continue;
            };
            let done = job.issued.allocation.as_ref() == Some(target) && !job.issued.revoked;
            let parked = || self.pending.parked.iter().any(|(_, parked)| *parked == job.id);
            let timed = || {
                job.issued.blocked.as_ref().is_some_and(|(until, _)| self.pending.timers.contains(&(*until, job.id)))
            };
            if !done && !self.pending.unissued.contains(&job.id) && !parked() && !timed() {
                return Err(format!("{} is planned, not issued, and nothing will try again", job.id));
            }
        }
        Ok(())
    }
}

/// Equal, except for trailing zeros.
fn same(a: &Amounts, b: &Amounts) -> bool {
    let mut difference = a.clone();
    difference -= b;
    difference.is_zero()
}

fn same_usage(a: &Usage, b: &Usage) -> bool {
    let device = |usage: &Usage, at: usize| usage.devices.get(at).copied().unwrap_or(0);
    let most = a.devices.len().max(b.devices.len());
    same(&a.amounts, &b.amounts) && (0..most).all(|at| device(a, at) == device(b, at))
}
