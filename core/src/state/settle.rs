//! Keeping the plan within capacity and limits: jobs that no longer fit return to their earlier plan, or wait.

use std::{
    collections::{BTreeMap, BTreeSet, BinaryHeap},
    sync::Arc,
};

use super::{Account, Change, State, usage_by_server};
use crate::{
    decision::{Allocation, DeviceShare, Slot, Verdict},
    ids::{JobId, ResourceId, ServerId},
    job::{Job, Phase},
    reason::{Reason, Scope},
    resources::{Amounts, GPU},
    server::devices_match,
    time::Time,
};

/// The order of cuts, largest first: planned but not observed as running, then the youngest.
type Turn = (bool, Time, JobId);

impl State {
    /// Cuts the plan to what fits within capacity and limits. Checks the servers that lost room and those that `before`
    /// touches (jobs with their verdicts before the proposal). Jobs whose plan isn't observed yet are cut first, then
    /// the youngest. Each returns to its earlier plan if that fits, else it waits. Returns the jobs that were cut.
    ///
    /// O(servers touched + accounts). If something doesn't fit: O(slots planned) once, and O(log jobs) per cut in
    /// addition to its own changes.
    pub(crate) fn settle(&mut self, before: &[(JobId, Verdict)]) -> Vec<JobId> {
        let mut servers: BTreeSet<ServerId> = std::mem::take(&mut self.pending.unsettled).into_iter().collect();
        for (id, _) in before {
            let slots = self.job(*id).and_then(|job| job.verdict.allocation()).map(|allocation| allocation.slots());
            servers.extend(slots.unwrap_or_default().iter().map(|slot| slot.server));
        }
        servers.retain(|id| self.lacks(*id).is_some());
        let mut cut = Vec::new();
        for (server, mut turns) in self.turns_by_server(&servers) {
            let on = |job: &Job| planned_on(job).any(|id| id == server);
            while let Some((resource, missing)) = self.lacks(server) {
                let Some(id) = self.next_to_go(&mut turns, on) else { break };
                self.cut(id, before, Reason::Evicted { server, resource, missing });
                cut.push(id);
            }
        }
        if std::mem::take(&mut self.pending.limits_changed) || !before.is_empty() {
            self.settle_accounts(before, &mut cut);
        }
        cut
    }

    /// The excess of the plan over a server's capacity.
    fn lacks(&self, id: ServerId) -> Option<(ResourceId, i64)> {
        let server = self.server(id);
        server.excess(&server.planned)
    }

    fn settle_accounts(&mut self, before: &[(JobId, Verdict)], cut: &mut Vec<JobId>) {
        for of_tenants in [true, false] {
            let accounts = if of_tenants { &self.tenants } else { &self.queues };
            let account_of = |job: &Job| (if of_tenants { job.tenant.0 } else { job.queue.0 }) as usize;
            let over = accounts.iter().enumerate().filter(|(_, account)| exceeded(account).is_some());
            let mut over: BTreeMap<usize, BinaryHeap<Turn>> = over.map(|(at, _)| (at, BinaryHeap::new())).collect();
            if over.is_empty() {
                continue;
            }
            for job in self.jobs.values().filter(|job| job.verdict.allocation().is_some()) {
                if let Some(turns) = over.get_mut(&account_of(job)) {
                    turns.push(turn(job));
                }
            }
            for (at, mut turns) in over {
                loop {
                    let account = if of_tenants { &self.tenants[at] } else { &self.queues[at] };
                    let Some((resource, left, limit)) = exceeded(account) else { break };
                    let name = account.name.clone();
                    let Some(id) = self.next_to_go(&mut turns, |job| job.total(job.shape())[resource] > 0) else {
                        break;
                    };
                    let scope = if of_tenants { Scope::Tenant(name) } else { Scope::Queue(name) };
                    // The job's own part, and what the others leave.
                    let needed = self.jobs[&id].total(self.jobs[&id].shape())[resource];
                    let left = left + needed;
                    self.cut(id, before, Reason::Exhausted { scope, resource, needed, left, limit });
                    cut.push(id);
                }
            }
        }
    }

    /// The turns of the jobs planned on these servers.
    fn turns_by_server(&self, servers: &BTreeSet<ServerId>) -> BTreeMap<ServerId, BinaryHeap<Turn>> {
        let mut turns: BTreeMap<ServerId, BinaryHeap<Turn>> =
            servers.iter().map(|id| (*id, BinaryHeap::new())).collect();
        if turns.is_empty() {
            return turns;
        }
        for job in self.jobs.values() {
            // A job with several slots there has several turns. The later ones find it gone.
            for id in planned_on(job) {
                if let Some(turns) = turns.get_mut(&id) {
                    turns.push(turn(job));
                }
            }
        }
        turns
    }

    /// The next job to cut, among planned jobs that still qualify. The others are dropped.
    fn next_to_go(&self, turns: &mut BinaryHeap<Turn>, qualifies: impl Fn(&Job) -> bool) -> Option<JobId> {
        loop {
            let was = turns.pop()?;
            let job = self.jobs.get(&was.2).filter(|job| job.verdict.allocation().is_some() && qualifies(job));
            let Some(now) = job.map(|job| turn(job)) else { continue };
            if now == was {
                // A job that returned to a smaller plan may have to be cut again.
                turns.push(now);
                return Some(now.2);
            }
            // The job returned to its observed slots, which are cut later.
            turns.push(now);
        }
    }

    /// Returns a job to its plan before the proposal if that fits, else lets it wait.
    fn cut(&mut self, id: JobId, before: &[(JobId, Verdict)], reason: Reason) {
        let had = before.binary_search_by_key(&id, |(job, _)| *job).ok().map(|at| before[at].1.clone());
        let had = had.filter(|verdict| {
            let Some(allocation) = verdict.allocation() else { return false };
            self.jobs[&id].verdict != *verdict && self.fits_instead(id, allocation)
        });
        self.set_verdict(id, had.unwrap_or(Verdict::Wait(reason)));
        self.note(Change::Dropped(id));
    }

    /// Whether another allocation of a job fits in place of its planned one.
    pub(crate) fn fits_instead(&self, id: JobId, other: &Allocation) -> bool {
        let job = &self.jobs[&id];
        let planned = job.verdict.allocation().map(|now| usage_by_server(self, job, now)).unwrap_or_default();
        let mut extra = Amounts::default();
        let fits = usage_by_server(self, job, other).into_iter().all(|(server, usage)| {
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

    /// Whether the slots that a verdict adds to a job's plan can still be placed: the server is present, isn't
    /// draining, hosts the role, has the job's labels and such devices, and is in its domain, whose labels are as they
    /// were. Slots that are already planned stay. O(slots · log slots).
    pub(crate) fn takes_new_slots(&self, job: &Job, verdict: &Verdict) -> bool {
        let planned = job.verdict.allocation();
        verdict.allocation().is_none_or(|next| {
            let is_new = |slot: &&Slot| planned.is_none_or(|planned| !planned.has(slot));
            let mut new = next.slots().iter().filter(is_new).peekable();
            let is_near = new.peek().is_none() || self.is_in_one_domain(job, next);
            is_near
                && new.all(|slot| {
                    let server = self.server(slot.server);
                    server.admits(job)
                        && server.hosts.takes(slot.role)
                        && devices_match(&server.devices, job.demand(slot.role), &slot.devices)
                })
        })
    }

    /// Ends the waits that are over, and stops jobs past their time limit.
    pub(crate) fn expire_timers(&mut self) {
        while let Some((at, id)) = self.pending.timers.get_min().copied().filter(|(at, _)| *at <= self.now) {
            self.pending.timers.remove(&(at, id));
            let Some(job) = self.job(id).cloned() else { continue };
            if self.is_over_time(&job) {
                let limit = job.spec.time_limit.unwrap_or_default();
                if !matches!(job.verdict, Verdict::Stop(_)) {
                    self.set_verdict(id, Verdict::Stop(Reason::TimeLimit { limit }));
                    self.note(Change::Job(id));
                }
            } else if job.issued.blocked.as_ref().is_some_and(|(until, _)| *until <= self.now) {
                self.job_mut(id).expect("looked up").issued.blocked = None;
                self.pending.unissued.insert(id);
                if matches!(job.verdict, Verdict::Wait(Reason::Refused { .. })) {
                    // With this reason, engines that only consider new jobs consider it again.
                    self.set_verdict(id, Verdict::Wait(Reason::NotConsidered));
                }
                self.note(Change::Job(id));
            }
        }
    }

    /// Why the scheduler stops a job early, if the setting lets it (MLF-C): a job that runs, or that waits again. O(1).
    pub(super) fn stops_early(&self, job: &Job) -> Option<Reason> {
        if !self.settings.early_stop {
            return None;
        }
        let trains = match &job.verdict {
            Verdict::Run(_) => true,
            Verdict::Wait(_) => job.seen.started.is_some() && !job.held,
            _ => false,
        };
        if trains { job.stops(self.overloaded) } else { None }
    }

    /// Stops jobs that have nothing to gain. O(jobs), if the setting is on.
    pub(crate) fn stop_early(&mut self) {
        if !self.settings.early_stop {
            return;
        }
        // Jobs that waited can have ended since.
        self.overloaded &= self.is_overloaded();
        let stops: Vec<_> = self.jobs.values().filter_map(|job| Some((job.id, self.stops_early(job)?))).collect();
        for (id, reason) in stops {
            self.set_verdict(id, Verdict::Stop(reason));
            self.note(Change::Job(id));
        }
    }

    /// Records whether the last decision left a job without room. Jobs that therefore stop are noted, so that the next
    /// decision is due. O(jobs), if jobs can be stopped early.
    pub(crate) fn record_load(&mut self) {
        if !self.settings.early_stop {
            self.overloaded = false;
            return;
        }
        self.overloaded = self.is_overloaded();
        let stops: Vec<_> =
            self.jobs.values().filter(|job| self.stops_early(job).is_some()).map(|job| job.id).collect();
        for id in stops {
            self.note(Change::Job(id));
        }
    }

    /// Whether a job waits for room that others have, and would not end by itself.
    fn is_overloaded(&self) -> bool {
        let waits = |job: &Job| matches!(&job.verdict, Verdict::Wait(reason) if reason.waits_for_room());
        self.jobs.values().any(|job| waits(job) && job.stops(false).is_none())
    }

    /// In shadow mode, each round starts from the slots that actually run. Jobs that would have been stopped stay so:
    /// otherwise stops under load would end the load, and alternate with it.
    pub(crate) fn adopt_observed(&mut self) {
        let all: Vec<JobId> = self.jobs.keys().copied().collect();
        for id in all {
            let job = &self.jobs[&id];
            if job.held || matches!(job.verdict, Verdict::Stop(_)) {
                continue;
            }
            let runs = self.adoptable(job);
            self.plan_as_it_is(id, runs.map_or(Verdict::Wait(Reason::NotConsidered), Verdict::Run));
        }
        self.pending.revised.clear();
    }

    /// Called when Trainmaster takes over. The plan becomes the slots that actually run, whatever was planned
    /// meanwhile, until the next decision. Jobs that were starting when they were handed back are still starting.
    pub(crate) fn take_over(&mut self) {
        let all: Vec<JobId> = self.jobs.keys().copied().collect();
        for id in all {
            let job = &self.jobs[&id];
            // An early stop is decided again: later reports can refute what shadow mode would have stopped.
            let stops_early = matches!(&job.verdict, Verdict::Stop(reason) if reason.is_early_stop());
            if job.held && stops_early {
                self.set_verdict(id, Verdict::Wait(Reason::Held));
                continue;
            }
            if job.held || (matches!(job.verdict, Verdict::Stop(_)) && !stops_early) {
                continue;
            }
            let starting = !job.issued.revoked
                && job.issued.allocation.is_some()
                && job.issued.allocation.as_ref() == job.verdict.allocation();
            let runs = self.adoptable(job);
            match runs {
                Some(seen) => {
                    let (now, decision) = (self.now, self.decision);
                    self.recharge(id, |job| job.adopt(seen.clone(), decision, now));
                    self.plan_as_it_is(id, Verdict::Run(seen));
                }
                None if starting => {}
                None => self.plan_as_it_is(id, Verdict::Wait(Reason::NotConsidered)),
            }
        }
    }

    /// What the manager observes of a job, as far as it could be its plan: within its bounds, and on devices of its
    /// kinds. (Devices can be exchanged under a running job.)
    fn adoptable(&self, job: &Job) -> Option<Arc<Allocation>> {
        let seen = job.seen.allocation.as_ref().filter(|seen| job.bounds().hold(seen.shape()))?;
        let suits = |slot: &Slot| {
            let (kinds, wanted) = (&self.server(slot.server).devices, job.demand(slot.role).devices);
            let kind = |share: &DeviceShare| kinds.get(usize::from(share.device)).copied();
            let other = |kind: ResourceId| wanted.is_some_and(|(wanted, _)| wanted != GPU && wanted != kind);
            !slot.devices.iter().filter_map(kind).any(other)
        };
        seen.slots().iter().all(suits).then(|| seen.clone())
    }

    fn plan_as_it_is(&mut self, id: JobId, verdict: Verdict) {
        if !self.jobs[&id].verdict.same_kind(&verdict) {
            self.pending
                .unsettled
                .extend(verdict.allocation().iter().flat_map(|seen| seen.slots()).map(|slot| slot.server));
            self.pending.limits_changed = true;
            self.set_verdict(id, verdict);
        }
    }
}

fn planned_on(job: &Job) -> impl Iterator<Item = ServerId> {
    job.verdict.allocation().into_iter().flat_map(|planned| planned.slots()).map(|slot| slot.server)
}

fn turn(job: &Job) -> Turn {
    let seen = job.seen.allocation.as_ref() == job.verdict.allocation() && job.seen.phase == Phase::Running;
    (!seen, job.arrival, job.id)
}

/// The first exceeded limit of an account: (type, left, limit).
fn exceeded(account: &Account) -> Option<(ResourceId, i64, i64)> {
    account.limits.iter().find_map(|(&resource, &limit)| {
        let left = limit - account.planned[resource];
        (left < 0).then_some((resource, left, limit))
    })
}
