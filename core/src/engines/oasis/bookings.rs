//! The engine's memory between decisions: bookings and admissions.

use std::{collections::VecDeque, sync::Arc};

use imbl::{OrdMap, Vector};
use serde::{Deserialize, Serialize};

use super::prices::Sample;
use crate::{
    ids::{JobId, ServerId},
    job::{Job, Phase},
    place::Count,
    resources::Amounts,
    shape::Shape,
    tables::{table, tables},
    time::{Span, Time},
};

/// Bookings, admitted jobs, and data for learnt bounds. The tables share structure with their copies, so a copy is free
/// and a booking costs what it changes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Memo {
    /// Booked amounts (g and v of Alg. 1) by slot and server. Servers without bookings aren't listed.
    #[serde(deserialize_with = "tables")]
    pub(super) booked: OrdMap<i64, OrdMap<ServerId, Amounts>>,
    /// Admitted jobs.
    #[serde(deserialize_with = "table")]
    pub(super) admitted: OrdMap<JobId, Arc<Admission>>,
    /// Rejected jobs, with the time of the next attempt.
    #[serde(deserialize_with = "table")]
    pub(super) rejected: OrdMap<JobId, Option<Time>>,
    /// The last arrivals, for learnt bounds.
    pub(super) window: Vector<Arc<Sample>>,
    /// Searches that were too long for single chunks.
    pub(super) coarse: Coarse,
}

/// Searches in which work was counted in larger grains than the job's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Coarse {
    pub(super) searches: u64,
    /// Sum of the payoffs by which the best schedules may exceed the found ones.
    pub(super) missed: f64,
}

impl Coarse {
    pub(super) fn count(&mut self, missed: f64) {
        self.searches += 1;
        self.missed += missed;
    }
}

/// An admitted job and its schedule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Admission {
    /// The future schedule by slot. Empty if there is no room for it until the horizon.
    pub(super) plan: VecDeque<Planned>,
    /// Completed chunks when the schedule was made.
    pub(super) base: u64,
    /// Work of the schedule's past slots.
    pub(super) passed: u64,
    /// Observed worker-time since the last report, up to `seen_to`.
    seen: Span,
    seen_to: Time,
    worker: Amounts,
    server: Amounts,
}

/// One slot of a schedule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Planned {
    pub(super) slot: i64,
    /// Work in the engine's unit.
    pub(super) work: u64,
    /// y_h and z_k, by server.
    pub(super) counts: Vec<(ServerId, Shape)>,
}

impl Planned {
    pub(super) fn shape(&self) -> Shape {
        self.counts.iter().fold(Shape::default(), |sum, (_, shape)| Shape {
            workers: sum.workers + shape.workers,
            servers: sum.servers + shape.servers,
        })
    }

    pub(super) fn counts(&self) -> Vec<Count> {
        self.counts.iter().map(|&(server, shape)| Count { server, shape }).collect()
    }
}

impl Admission {
    /// An admission without a schedule.
    pub(super) fn new(job: &Job, now: Time, base: u64) -> Self {
        Self {
            plan: VecDeque::new(),
            base,
            passed: 0,
            seen: Span::ZERO,
            seen_to: now,
            worker: job.worker.amounts.clone(),
            server: job.server.amounts.clone(),
        }
    }

    /// Books what the job demands now: its type of GPU may be another one than before.
    pub(super) fn demand(&mut self, job: &Job) {
        (self.worker, self.server) = (job.worker.amounts.clone(), job.server.amounts.clone());
    }

    /// Worker-time between the job's last report and `to`. The part from `from` on wasn't counted before, and is
    /// approximated by the current number of running workers. Reports can be late, and training continues between them.
    pub(super) fn unreported(&self, job: &Job, from: Time, to: Time) -> Span {
        let known = if job.learnt.progress.at.is_some_and(|at| at >= self.seen_to) { Span::ZERO } else { self.seen };
        let ran = job
            .seen
            .allocation
            .as_ref()
            .filter(|_| job.seen.phase == Phase::Running)
            .map_or(0, |ran| ran.shape().workers);
        let from = from.max(self.seen_to).max(job.issued.changed).max(job.learnt.progress.at.unwrap_or(from));
        Span(known.0.saturating_add((to - from).0.max(0).saturating_mul(ran.into())))
    }

    /// Counts the worker-time up to `to`.
    pub(super) fn watch(&mut self, job: &Job, from: Time, to: Time) {
        self.seen = self.unreported(job, from, to);
        self.seen_to = self.seen_to.max(to);
    }

    /// The same job from now on, without a future schedule.
    pub(super) fn rebased(&self, job: &Job, from: Time, now: Time, base: u64) -> Self {
        let mut rebased = Self { plan: VecDeque::new(), base, passed: 0, ..self.clone() };
        rebased.watch(job, from, now);
        rebased
    }

    /// Its schedule in a slot.
    pub(super) fn at(&self, slot: i64) -> Option<&Planned> {
        self.plan.front().filter(|planned| planned.slot == slot)
    }

    /// Total demand of a shape.
    pub(super) fn amounts(&self, shape: Shape) -> Amounts {
        let mut amounts = self.worker.times(shape.workers.into());
        amounts.add_times(&self.server, shape.servers.into());
        amounts
    }
}

impl Memo {
    /// All bookings: slot, server, amounts.
    pub fn bookings(&self) -> impl Iterator<Item = (i64, ServerId, &Amounts)> {
        self.booked.iter().flat_map(|(slot, page)| page.iter().map(|(server, amounts)| (*slot, *server, amounts)))
    }

    /// Admits a job with a schedule, or replaces its schedule. O(slots · servers of the schedule).
    pub(super) fn book(&mut self, id: JobId, admission: Admission) {
        self.release(id);
        self.charge(&admission, 1);
        self.rejected.remove(&id);
        self.admitted.insert(id, Arc::new(admission));
    }

    /// Releases a job's future bookings. It stays admitted, without a schedule.
    pub(super) fn release(&mut self, id: JobId) {
        let Some(admission) = self.admitted.get(&id).filter(|admission| !admission.plan.is_empty()).cloned() else {
            return;
        };
        self.charge(&admission, -1);
        let admission = Admission { plan: VecDeque::new(), ..Arc::unwrap_or_clone(admission) };
        self.admitted.insert(id, Arc::new(admission));
    }

    /// Past slots must have been removed from the plan before.
    fn charge(&mut self, admission: &Admission, times: i64) {
        for planned in &admission.plan {
            let page = self.booked.entry(planned.slot).or_default();
            for (server, shape) in &planned.counts {
                let booked = page.entry(*server).or_default();
                booked.add_times(&admission.amounts(*shape), times);
                if booked.is_zero() {
                    page.remove(server);
                }
            }
            if page.is_empty() {
                self.booked.remove(&planned.slot);
            }
        }
    }

    /// Removes the bookings of slots before this one.
    pub(super) fn forget_before(&mut self, slot: i64) {
        while let Some((first, _)) = self.booked.get_min().filter(|(first, _)| *first < slot) {
            let first = *first;
            self.booked.remove(&first);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::CPU;

    #[test]
    fn a_release_removes_all_bookings() {
        let counts = |workers| vec![(ServerId(3), Shape { workers, servers: 1 })];
        let of = |slots: &[i64]| Admission {
            plan: slots.iter().map(|slot| Planned { slot: *slot, work: 1, counts: counts(2) }).collect(),
            base: 0,
            passed: 0,
            seen: Span::ZERO,
            seen_to: Time(0),
            worker: Amounts::of(&[(CPU, 1000)]),
            server: Amounts::of(&[(CPU, 500)]),
        };
        let mut memo = Memo::default();
        memo.book(JobId(1), of(&[4, 5]));
        memo.book(JobId(2), of(&[5, 7]));
        assert_eq!(memo.booked[&5][&ServerId(3)][CPU], 5000);
        memo.book(JobId(1), of(&[5]));
        assert_eq!(memo.booked.keys().copied().collect::<Vec<_>>(), [5, 7]);
        memo.release(JobId(1));
        assert_eq!(memo.admitted.len(), 2);
        assert_eq!(memo.booked[&5][&ServerId(3)][CPU], 2500);
        memo.forget_before(6);
        assert_eq!(memo.booked.keys().copied().collect::<Vec<_>>(), [7]);
    }
}
