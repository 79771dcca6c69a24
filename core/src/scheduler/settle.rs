//! Keeping the plan within what there is: what no longer fits goes back to what it had, or waits.

use std::collections::BTreeSet;

use crate::{
    decision::Verdict,
    ids::{JobId, ServerId},
    job::Phase,
    reason::{Reason, Scope},
    resources::Amounts,
    state::{Change, State},
};

impl State {
    /// Cuts the plan to what fits on servers that lost room and on those that `before` (jobs and the verdicts they had
    /// until now) touches, and within limits. Goes first: what is planned but not seen yet; then the youngest. Each is
    /// put back to what it had, else it waits. Returns the jobs that were cut.
    ///
    /// O(jobs) where something is over, else O(servers touched).
    pub(crate) fn settle(&mut self, before: &[(JobId, Verdict)]) -> Vec<JobId> {
        let mut servers: BTreeSet<ServerId> = std::mem::take(&mut self.unsettled).into_iter().collect();
        for (id, _) in before {
            let slots = self.job(*id).and_then(|job| job.verdict.allocation()).map(|allocation| allocation.slots());
            servers.extend(slots.unwrap_or_default().iter().map(|slot| slot.server));
        }
        let mut cut = Vec::new();
        for server in servers {
            while let Some((resource, missing)) = self.server(server).excess(&self.server(server).planned) {
                let Some(id) = self.first_to_go(|state, id| {
                    state.jobs[&id]
                        .verdict
                        .allocation()
                        .is_some_and(|allocation| allocation.slots().iter().any(|slot| slot.server == server))
                }) else {
                    break;
                };
                self.cut(id, before, Reason::Evicted { server, resource, missing });
                cut.push(id);
            }
        }
        if std::mem::take(&mut self.limits_changed) || !before.is_empty() {
            self.settle_accounts(before, &mut cut);
        }
        cut
    }

    fn settle_accounts(&mut self, before: &[(JobId, Verdict)], cut: &mut Vec<JobId>) {
        let over = |account: &crate::state::Account| {
            account.limits.iter().find_map(|(&resource, &limit)| {
                let planned = account.planned[resource];
                (planned > limit).then(|| (resource, limit - planned, limit))
            })
        };
        for of_tenants in [true, false] {
            let count = if of_tenants { self.tenants.len() } else { self.queues.len() };
            for at in 0..count {
                loop {
                    let account = if of_tenants { &self.tenants[at] } else { &self.queues[at] };
                    let Some((resource, left, limit)) = over(account) else { break };
                    let name = account.name.clone();
                    let Some(id) = self.first_to_go(|state, id| {
                        let job = &state.jobs[&id];
                        let account = if of_tenants { job.tenant.0 } else { job.queue.0 };
                        account as usize == at && job.total(job.shape())[resource] > 0
                    }) else {
                        break;
                    };
                    let scope = if of_tenants { Scope::Tenant(name) } else { Scope::Queue(name) };
                    // What it had, and what the others leave.
                    let needed = self.jobs[&id].total(self.jobs[&id].shape())[resource];
                    let left = left + needed;
                    self.cut(id, before, Reason::Exhausted { scope, resource, needed, left, limit });
                    cut.push(id);
                }
            }
        }
    }

    /// Among planned jobs that qualify: one that isn't seen running as planned, the youngest; else the youngest.
    fn first_to_go(&self, qualifies: impl Fn(&Self, JobId) -> bool) -> Option<JobId> {
        self.jobs
            .values()
            .filter(|job| job.verdict.allocation().is_some() && qualifies(self, job.id))
            .max_by_key(|job| {
                let seen = job.observed.as_ref() == job.verdict.allocation() && job.phase == Phase::Running;
                (!seen, job.arrival, job.id)
            })
            .map(|job| job.id)
    }

    /// Puts a job back to what it had before the proposal if that frees something, else lets it wait.
    fn cut(&mut self, id: JobId, before: &[(JobId, Verdict)], reason: Reason) {
        let had = before.binary_search_by_key(&id, |(job, _)| *job).ok().map(|at| before[at].1.clone());
        let had = had.filter(|verdict| {
            let Some(allocation) = verdict.allocation() else { return false };
            self.jobs[&id].verdict != *verdict && self.fits_instead(id, allocation)
        });
        self.set_verdict(id, had.unwrap_or(Verdict::Wait(reason)));
        self.note(Change::Dropped(id));
    }

    /// Whether a job's old allocation fits in place of its planned one.
    fn fits_instead(&self, id: JobId, old: &crate::decision::Allocation) -> bool {
        let job = &self.jobs[&id];
        let planned =
            job.verdict.allocation().map(|now| crate::state::usage_by_server(self, job, now)).unwrap_or_default();
        let mut extra = Amounts::default();
        let fits = crate::state::usage_by_server(self, job, old).into_iter().all(|(server, usage)| {
            let server = self.server(server);
            let mut total = server.planned.clone();
            if let Ok(at) = planned.binary_search_by_key(&server.id, |(id, _)| *id) {
                total.add_usage(&planned[at].1, -1);
            }
            total.add_usage(&usage, 1);
            extra += &usage.amounts;
            server.present && server.excess(&total).is_none()
        });
        for (_, usage) in &planned {
            extra -= &usage.amounts;
        }
        fits && self.account_excess(job, &extra).is_none()
    }

    /// Ends waits that are over, and stops jobs that are past their time limit.
    pub(crate) fn expire_timers(&mut self) {
        while let Some((at, id)) = self.timers.get_min().copied().filter(|(at, _)| *at <= self.now) {
            self.timers.remove(&(at, id));
            let Some(job) = self.job(id).cloned() else { continue };
            if self.is_over_time(&job) {
                let limit = job.spec.time_limit.unwrap_or_default();
                if !matches!(job.verdict, Verdict::Stop(_)) {
                    self.set_verdict(id, Verdict::Stop(Reason::TimeLimit { limit }));
                }
            } else if job.blocked.as_ref().is_some_and(|(until, _)| *until <= self.now) {
                self.job_mut(id).expect("looked up").blocked = None;
                self.unissued.insert(id);
                self.note(Change::Job(id));
                if matches!(job.verdict, Verdict::Wait(Reason::Refused { .. })) {
                    // Engines that look at new jobs only look at it again.
                    self.set_verdict(id, Verdict::Wait(Reason::NotConsidered));
                }
            }
        }
    }

    /// In shadow mode each round starts from what really runs.
    pub(crate) fn adopt_observed(&mut self) {
        let all: Vec<JobId> = self.jobs.keys().copied().collect();
        for id in all {
            let job = &self.jobs[&id];
            let observed = match &job.observed {
                Some(observed) if job.spec.bounds().hold(observed.shape()) => Verdict::Run(observed.clone()),
                _ => Verdict::Wait(Reason::NotConsidered),
            };
            let theirs = !job.held && !matches!(job.verdict, Verdict::Stop(_));
            if theirs && !job.verdict.same_kind(&observed) {
                self.unsettled
                    .extend(observed.allocation().iter().flat_map(|seen| seen.slots()).map(|slot| slot.server));
                self.limits_changed = true;
                self.set_verdict(id, observed);
            }
        }
        self.revised.clear();
    }
}
