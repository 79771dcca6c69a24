//! One decision: past slots are closed, lost bookings are released, and jobs that need a schedule are planned. These
//! are arrivals and jobs that deviate from their schedule.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use imbl::Vector;

use super::{
    bookings::{Admission, Memo, Planned},
    market::Market,
    parameters::{Oasis, Rejected, WorkUnit},
    search::{Problem, Schedule, best, earliest, promised},
};
use crate::{
    decision::Verdict,
    engine::{Budget, EngineError},
    ids::{JobId, ServerId},
    job::{Job, Training},
    reason::{Reason, ReasonKind},
    shape::Shape,
    state::{Change, Mandate, State},
    time::Time,
};

/// Factor by which the grain grows.
const COARSER: u64 = 8;

pub(super) struct Round<'a> {
    pub(super) engine: &'a Oasis,
    pub(super) state: &'a State,
    pub(super) memo: &'a mut Memo,
    pub(super) budget: &'a mut Budget,
    /// The current slot.
    pub(super) slot: i64,
    /// Admitted jobs whose remaining work needs a new schedule.
    anew: BTreeSet<JobId>,
    /// Whether arrivals were left to the next decision.
    unfinished: bool,
    /// Verdicts of jobs without a schedule.
    pub(super) verdicts: BTreeMap<JobId, Verdict>,
}

impl<'a> Round<'a> {
    pub(super) fn new(engine: &'a Oasis, state: &'a State, memo: &'a mut Memo, budget: &'a mut Budget) -> Self {
        let slot = engine.slots.of(state.now);
        Self { engine, state, memo, budget, slot, anew: BTreeSet::new(), unfinished: false, verdicts: BTreeMap::new() }
    }

    /// Removes past slots from the schedules. Jobs that didn't do their planned work are scheduled again.
    pub(super) fn close_slots(&mut self) {
        let admitted: Vec<(JobId, Arc<Admission>)> =
            self.memo.admitted.iter().map(|(id, admission)| (*id, admission.clone())).collect();
        for (id, admission) in admitted {
            let over = admission.plan.iter().take_while(|planned| planned.slot < self.slot).count();
            let job = self.state.job(id);
            let mut last = 0;
            if over > 0 {
                let mut closed = Arc::unwrap_or_clone(admission);
                for planned in closed.plan.drain(..over).collect::<Vec<_>>() {
                    closed.passed += planned.work;
                    last = planned.work;
                    if let Some(job) = job {
                        let slots = self.engine.slots;
                        closed.watch(job, slots.start(planned.slot), slots.start(planned.slot + 1));
                    }
                }
                self.memo.admitted.insert(id, Arc::new(closed));
            }
            let Some((job, admission)) = job.zip(self.memo.admitted.get(&id)) else { continue };
            let left = admission.plan.is_empty();
            if left || (over > 0 && self.has_drifted(job, admission, last)) {
                self.anew.insert(id);
            }
        }
        self.memo.forget_before(self.slot);
    }

    /// Whether a job deviates by more than the fraction `drift` of all planned work so far, or by half of the `last`
    /// slot's work. The second rule is needed because a missed slot is a small fraction of a long run.
    fn has_drifted(&self, job: &Job, admission: &Admission, last: u64) -> bool {
        let Ok(training) = Training::of(job) else { return false };
        let meant = admission.base + self.chunks(&training, admission.passed);
        // Both are whole chunks, so a difference of one can be rounding.
        let off = self.done(job, &training, admission).abs_diff(meant);
        let most = (self.engine.drift * meant as f64).min(self.chunks(&training, last) as f64 / 2.0);
        off as f64 > most.max(1.0)
    }

    /// Number of chunks in an amount of work.
    fn chunks(&self, training: &Training, work: u64) -> u64 {
        match self.engine.work_unit {
            WorkUnit::Chunk => work,
            WorkUnit::WorkerSlot => training.chunks_of(work, self.engine.slots.length),
        }
    }

    /// Trained chunks: the reported ones, plus the work of the job's workers since then.
    fn done(&self, job: &Job, training: &Training, admission: &Admission) -> u64 {
        let since = admission.unreported(job, self.engine.slots.start(self.slot), self.state.now);
        training.done_since(&job.learnt.progress, since)
    }

    /// Releases bookings of jobs that have ended or can't be changed now, and bookings for which a server lacks room.
    pub(super) fn give_back(&mut self, changes: &Vector<Change>) -> Result<(), EngineError> {
        let state = self.state;
        let of = |id: &JobId| state.job(*id).map(|job| state.mandate(job));
        let all: Vec<JobId> = self.memo.admitted.keys().copied().collect();
        for id in all {
            match of(&id) {
                None => {
                    self.memo.release(id);
                    self.memo.admitted.remove(&id);
                    self.anew.remove(&id);
                }
                Some(Mandate::Closed) => {
                    self.rebase(id);
                    self.anew.remove(&id);
                }
                Some(Mandate::Free | Mandate::Pinned(_)) => {}
            }
        }
        let gone: Vec<JobId> = self.memo.rejected.keys().copied().filter(|id| state.job(*id).is_none()).collect();
        for id in gone {
            self.memo.rejected.remove(&id);
        }
        let servers: BTreeSet<ServerId> = changes
            .iter()
            .filter_map(|change| if let Change::Server(id) = change { Some(*id) } else { None })
            .collect();
        for server in servers {
            self.budget.spend(self.memo.booked.len() as u64)?;
            self.shrink(server);
        }
        Ok(())
    }

    /// Moves the youngest jobs from a server with less room than is booked.
    fn shrink(&mut self, id: ServerId) {
        let server = self.state.server(id);
        let usable = if server.draining { Default::default() } else { server.usable() };
        loop {
            let over = self.memo.booked.iter().find(|(_, page)| page.get(&id).is_some_and(|here| !here.fits(&usable)));
            let Some(slot) = over.map(|(slot, _)| *slot) else { return };
            let here = |admission: &Admission| {
                let planned = admission.plan.iter().find(|planned| planned.slot == slot);
                planned.is_some_and(|planned| planned.counts.iter().any(|(server, _)| *server == id))
            };
            let youngest = self.memo.admitted.iter().rev().find(|(_, admission)| here(admission)).map(|(id, _)| *id);
            let Some(youngest) = youngest else { return };
            self.rebase(youngest);
            self.anew.insert(youngest);
        }
    }

    /// Releases a job's bookings, and counts its work until now.
    fn rebase(&mut self, id: JobId) {
        self.memo.release(id);
        let (Some(job), Some(admission)) = (self.state.job(id), self.memo.admitted.get(&id)) else { return };
        let done = Training::of(job).map_or(admission.base, |training| self.done(job, &training, admission));
        if (admission.base, admission.passed) != (done, 0) {
            let rebased = admission.rebased(job, self.engine.slots.start(self.slot), self.state.now, done);
            self.memo.admitted.insert(id, Arc::new(rebased));
        }
    }

    /// Schedules jobs that need it: those that ran before, then arrivals, by their numbers.
    pub(super) fn plan(&mut self) -> Result<(), EngineError> {
        let state = self.state;
        let mut arrivals = Vec::new();
        for job in state.jobs.values() {
            self.budget.spend(1)?;
            if state.mandate(job) == Mandate::Closed {
                continue;
            }
            if self.memo.admitted.contains_key(&job.id) {
                continue;
            }
            if job.verdict.allocation().is_some() || job.seen.started.is_some() {
                // Running jobs of another engine, or from before a change of settings, aren't stopped.
                let done = Training::of(job).map_or(0, |training| training.done(&job.learnt.progress));
                self.memo.book(job.id, Admission::new(job, state.now, done));
                self.anew.insert(job.id);
                continue;
            }
            let asked = job.verdict.reason().is_some_and(|reason| reason.kind() == ReasonKind::NotConsidered);
            let waits = self.memo.rejected.get(&job.id).is_some_and(|retry| retry.is_none_or(|at| at > state.now));
            if asked || !waits {
                arrivals.push(job);
            }
        }
        for id in std::mem::take(&mut self.anew) {
            self.rebase(id);
            self.schedule(&state.jobs[&id])?;
        }
        for (planned, job) in arrivals.into_iter().enumerate() {
            match self.schedule(job) {
                // Planned jobs are kept. The others are part of the next decision, which is due at once.
                Err(EngineError::Exhausted { .. }) if planned > 0 => {
                    self.unfinished = true;
                    break;
                }
                result => result?,
            }
        }
        Ok(())
    }

    /// Alg. 1 for one job. An admitted job stays admitted.
    fn schedule(&mut self, job: &Arc<Job>) -> Result<(), EngineError> {
        let (engine, state) = (self.engine, self.state);
        let length = engine.slots.length;
        let training = Training::of(job).and_then(|training| training.check(length).map(|()| training));
        let training = match training {
            Ok(training) => training,
            Err(error) => {
                let reason = Reason::Unsupported { what: error.to_string().into() };
                self.verdicts.insert(job.id, Verdict::Wait(reason));
                return Ok(());
            }
        };
        let utility = engine.utility(state, job);
        let admitted = self.memo.admitted.get(&job.id).cloned();
        let base = admitted.as_ref().map_or_else(|| training.done(&job.learnt.progress), |admission| admission.base);
        // The job hasn't ended, so some work remains.
        let left = (training.work() - base.min(training.work())).max(1);
        let mut market = Market::new(engine, state, self.memo, (job, &training), utility.clone(), left, self.budget)?;
        let found = self.search(&mut market, best)?;
        if let Some(missed) = market.missed(found.as_ref()) {
            self.memo.coarse.count(missed);
        }
        if admitted.is_none() {
            self.learn(job, &training, &utility);
        }
        let unfinishable = || Reason::Unfinishable {
            until: engine.slots.start(self.slot + i64::from(engine.ahead(self.slot))),
            needed: left,
            free: self.chunks(&training, market.room()),
        };
        let schedule = match (found, &admitted) {
            (Some(schedule), None) if schedule.payoff <= 0 => {
                let retry_at = match engine.rejected {
                    Rejected::Retry(after) => Some(state.now + after),
                    Rejected::Held | Rejected::Cancelled => None,
                };
                let reason = Reason::PricedOut(market.priced_out(&schedule, retry_at, self.budget)?);
                self.reject(job.id, reason);
                return Ok(());
            }
            // A job that couldn't run here even alone waits for servers or limits. Its utility doesn't matter.
            (None, None) if state.present_servers().next().is_some() && state.never_fits(job).is_none() => {
                self.reject(job.id, unfinishable());
                return Ok(());
            }
            (None, _) => {
                let reason = state.never_fits(job).unwrap_or_else(unfinishable);
                self.verdicts.insert(job.id, Verdict::Wait(reason));
                return Ok(());
            }
            (Some(schedule), Some(_)) if schedule.payoff <= 0 => {
                self.search(&mut market, earliest)?.expect("it fits the slots")
            }
            (Some(schedule), _) => schedule,
        };
        let mut admission = admitted.map_or_else(|| Admission::new(job, state.now, base), Arc::unwrap_or_clone);
        admission.demand(job);
        admission.plan = market.plan(&schedule.work, self.budget)?;
        self.memo.book(job.id, admission);
        Ok(())
    }

    /// Searches with the finest grain of work that the bound allows, so that a job of millions of chunks doesn't delay
    /// others.
    fn search(
        &mut self,
        market: &mut Market<'_>,
        search: fn(&Problem, &mut Budget) -> Result<Option<Schedule>, EngineError>,
    ) -> Result<Option<Schedule>, EngineError> {
        let most = self.engine.most_searched;
        loop {
            let mut part = self.budget.part(most);
            let found = search(&market.problem, &mut part);
            self.budget.spend(part.spent())?;
            match found {
                Err(EngineError::Exhausted { given }) if given == most && market.problem.work > 1 => {
                    if market.promised.is_none() {
                        let mut part = self.budget.part(most);
                        market.promised = promised(&market.problem, &mut part);
                        self.budget.spend(part.spent())?;
                    }
                    market.coarsen(COARSER)
                }
                found => return found,
            }
        }
    }

    fn reject(&mut self, id: JobId, reason: Reason) {
        let retry = match self.engine.rejected {
            Rejected::Retry(after) => Some(self.state.now + after),
            Rejected::Held | Rejected::Cancelled => None,
        };
        self.memo.rejected.insert(id, retry);
        let verdict = match self.engine.rejected {
            Rejected::Held => Verdict::Reject(reason),
            Rejected::Cancelled => Verdict::Stop(reason),
            Rejected::Retry(_) => Verdict::Wait(reason),
        };
        self.verdicts.insert(id, verdict);
    }

    fn learn(&mut self, job: &Job, training: &Training, utility: &crate::job::Utility) {
        if self.memo.window.iter().any(|sample| sample.job == job.id) {
            return;
        }
        let sample = self.engine.sample(job, training, utility, self.slot);
        self.memo.window.extend(sample.map(Arc::new));
        while self.memo.window.len() > self.engine.window {
            self.memo.window.pop_front();
        }
    }

    /// The next slot in which a schedule changes, a rejected job's next attempt, or the time when a pinned job can take
    /// its bookings.
    pub(super) fn wake_at(&self) -> Option<Time> {
        let (state, slots) = (self.state, self.engine.slots);
        if self.unfinished {
            return Some(state.now);
        }
        let next = self.memo.admitted.values().map(|admission| match admission.plan.front() {
            Some(planned) if planned.slot > self.slot => slots.start(planned.slot),
            _ => slots.start(self.slot + 1),
        });
        let waiting = |id: &JobId| state.job(*id).is_some_and(|job| state.mandate(job) == Mandate::Free);
        let retries = self.memo.rejected.iter().filter(|(id, _)| waiting(id)).filter_map(|(_, retry)| *retry);
        let pinned = self.memo.admitted.iter().filter_map(|(id, admission)| {
            let job = state.job(*id).filter(|job| matches!(state.mandate(job), Mandate::Pinned(_)))?;
            let planned = admission.at(self.slot).map_or(Shape::default(), Planned::shape);
            (job.shape() != planned).then(|| state.keeps_until(job))
        });
        next.chain(retries).chain(pinned).filter(|at| *at > state.now).min()
    }
}
