//! Issuing of planned slots: a job gets room only when it is actually free.
//!
//! The charge of a job on a server is the larger of its issued and its observed amounts. Reductions are issued first,
//! so that two jobs that swap places can't block each other. When a release is observed, the jobs that wait for it are
//! tried again, without the engine.

use std::sync::Arc;

use imbl::OrdSet;

use super::{HOUR, State};
use crate::{
    decision::Allocation,
    ids::{JobId, ResourceId, ServerId},
    job::{Elastic, Job, Resize, TrainingMode},
    reason::Reason,
    server::Usage,
    settings::Mode,
    shape::Role,
    time::Time,
};

impl State {
    /// Issues what fits. O(slots of the jobs that can move).
    pub(crate) fn issue(&mut self) {
        // The reduction of one job may make room for another, so this repeats until nothing moves. A job moves at most
        // twice. During a resync it isn't known what is free.
        while self.mode == Mode::Active && !self.pending.unissued.is_empty() && !self.is_syncing() {
            let candidates = std::mem::take(&mut self.pending.unissued);
            self.issue_all(candidates);
        }
    }

    fn issue_all(&mut self, candidates: OrdSet<JobId>) {
        // Jobs without a planned allocation only give up slots.
        let (planned, idle): (Vec<JobId>, Vec<JobId>) = candidates
            .into_iter()
            .partition(|id| self.jobs.get(id).is_some_and(|job| job.verdict.allocation().is_some()));
        let now = self.now;
        for id in idle {
            if let Some(job) = self.job_mut(id) {
                if job.issued.allocation.is_some() {
                    job.revoke(now);
                }
                job.issued.reason = None;
                self.outbox.unsent.insert(id);
            }
        }
        for id in planned {
            self.issue_job(id);
        }
    }

    fn issue_job(&mut self, id: JobId) {
        let job = self.jobs[&id].clone();
        let Some(target) = job.verdict.allocation().cloned() else { return };
        if job.issued.blocked.as_ref().is_some_and(|(until, _)| *until > self.now) {
            // The job's timer will try it again.
            return;
        }
        if !job.issued.revoked && job.issued.allocation.as_ref() == Some(&target) {
            self.clear_issue_reason(id);
            return;
        }
        let own = self.charge(&job);
        let needed = self.charge_with(&job, Some(&target));
        let Some((server, resource, missing)) = self.first_blocking(&own, &needed) else {
            self.give(job, target, &own, &needed);
            return;
        };
        self.pending.parked.insert((server, id));
        let reason = Reason::Releasing { server, resource, missing };
        let Some(issued) = job.issued.allocation.as_ref().filter(|_| !job.issued.revoked) else {
            self.set_issue_reason(id, reason);
            return;
        };
        let common = Arc::new(issued.common(&target));
        if self.in_place(&job, &common) && job.bounds().hold(common.shape()) {
            if common != *issued {
                let kept = self.charge_with(&job, Some(&common));
                self.give(job, common, &own, &kept);
            }
        } else {
            // The common slots can't run alone, so the job stops now and starts at its new place.
            let now = self.now;
            self.job_mut(id).expect("active").revoke(now);
        }
        self.set_issue_reason(id, reason);
    }

    /// The first server without room for a job's new charge in place of its current one.
    fn first_blocking(
        &self,
        own: &[(ServerId, Usage)],
        needed: &[(ServerId, Usage)],
    ) -> Option<(ServerId, ResourceId, i64)> {
        needed.iter().find_map(|(id, usage)| {
            let server = self.server(*id);
            let mut total = server.charged.clone();
            if let Ok(at) = own.binary_search_by_key(id, |(server, _)| *server) {
                total.add_usage(&own[at].1, -1);
            }
            total.add_usage(usage, 1);
            server.excess(&total).map(|(resource, missing)| (*id, resource, missing))
        })
    }

    /// Issues an allocation: in place if possible, else as a new incarnation.
    fn give(
        &mut self,
        job: Arc<Job>,
        allocation: Arc<Allocation>,
        own: &[(ServerId, Usage)],
        needed: &[(ServerId, Usage)],
    ) {
        let (id, now, decision) = (job.id, self.now, self.decision);
        let stays = !job.issued.revoked && self.in_place(&job, &allocation);
        let was_started = job.seen.started.is_some();
        // Not after a stop, or the loss of a server.
        let moves = job.issued.allocation.is_some() && !job.issued.revoked;
        // A job that was paused and continues with the same shape isn't rescaled.
        let shape_changed = job.issued.last_shape != allocation.shape();
        let only_work =
            stays && job.issued.allocation.as_ref().is_some_and(|issued| issued.slots() == allocation.slots());
        let gone: Vec<u32> = job
            .issued
            .allocation
            .iter()
            .flat_map(|issued| issued.of(Role::Worker))
            .filter(|slot| allocation.slot(Role::Worker, slot.index) != Some(*slot))
            .map(|slot| slot.index)
            .collect();
        drop(job);
        self.move_charge(own, needed);
        let job = self.job_mut(id).expect("active");
        if !gone.is_empty() && !job.learnt.stragglers.is_unused() {
            Arc::make_mut(&mut job.learnt.stragglers).forget(&gone);
        }
        job.issued.last_shape = allocation.shape();
        job.issue(Some(allocation), now);
        job.issued.decision = decision;
        job.issued.reason = None;
        job.renumber(stays);
        job.issued.revoked = false;
        job.issued.retried = true;
        if !only_work {
            job.issued.changed = now;
        }
        if was_started && shape_changed {
            job.issued.rescales += 1;
        }
        let restarts = !stays || job.elastic == Elastic::Regroup && !only_work;
        if was_started && restarts && (shape_changed || moves) {
            job.issued.restarted_at.retain(|at| *at > Time(now.0 - HOUR.0));
            job.issued.restarted_at.push(now);
        }
        self.outbox.unsent.insert(id);
    }

    fn set_issue_reason(&mut self, id: JobId, reason: Reason) {
        let job = self.job_mut(id).expect("active");
        job.issued.reason = Some(reason);
        self.outbox.unsent.insert(id);
    }

    fn clear_issue_reason(&mut self, id: JobId) {
        if self.jobs.get(&id).is_some_and(|job| job.issued.reason.is_some()) {
            self.job_mut(id).expect("active").issued.reason = None;
        }
    }

    /// Whether a running job can change to `next` without a restart. Its parameter servers must stay as they are.
    /// Without parameter servers, its first worker must stay, because it keeps the parameters. The manager must be able
    /// to add the new workers, and the program to survive a change.
    pub(crate) fn in_place(&self, job: &Job, next: &Allocation) -> bool {
        let Some(issued) = job.issued.allocation.as_ref() else { return false };
        if job.issued.incarnation.0 == 0
            || job.spec.resize == Resize::Fixed
            || issued.of(Role::Server) != next.of(Role::Server)
        {
            return false;
        }
        // A change of the work alone leaves the processes as they are.
        if job.elastic == Elastic::Restart && issued.slots() != next.slots() {
            return false;
        }
        let keeper_stays = match job.spec.mode {
            TrainingMode::AllReduce => issued.of(Role::Worker).first() == next.of(Role::Worker).first(),
            TrainingMode::Sync | TrainingMode::Async => !next.of(Role::Server).is_empty(),
        };
        // A worker that moved but kept its index would exist twice for a while.
        let (old, new) = (issued.of(Role::Worker), next.of(Role::Worker));
        let find = |slots: &[crate::decision::Slot], index| slots.binary_search_by_key(&index, |slot| slot.index).ok();
        let moved = new.iter().any(|slot| find(old, slot.index).is_some_and(|at| old[at] != *slot));
        let grows = new.iter().any(|slot| find(old, slot.index).is_none());
        keeper_stays && !moved && (!grows || self.settings.shape.grow_in_place) && self.keeps_reservations(issued, next)
    }

    /// If all servers of a job must reserve the same amount, a running job can only give up whole servers.
    fn keeps_reservations(&self, issued: &Allocation, next: &Allocation) -> bool {
        let on =
            |slots: &[crate::decision::Slot], server: ServerId| slots.iter().filter(|s| s.server == server).count();
        let kept = |slot: &crate::decision::Slot| on(next.slots(), slot.server) == on(issued.slots(), slot.server);
        !self.settings.shape.equal_per_server || next.slots().iter().all(kept)
    }
}
