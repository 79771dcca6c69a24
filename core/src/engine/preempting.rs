//! Preemption in an order of jobs: each job in turn gets its whole shape or nothing, and jobs further down make room.
//!
//! The preemptive engines share this code and differ only in the order. A job is skipped if its shape had no room even
//! without all jobs behind it. A running job keeps its place until a job ahead needs its room. Free room is taken
//! first, then that of the jobs furthest behind, of as few as possible. Engines that choose jobs by totals use it for
//! jobs that then find no place ([`Round::make_room`]).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    board::{Board, Largest},
    ledger::Ledger,
    parameters::Parameters,
    placing::Placing,
    round::Round,
    round::leaving,
};
use crate::budget::{Budget, EngineError};
use crate::{decision::Allocation, ids::JobId, job::Job, settings::SettingsError, shape::Shape, state::State};

/// The parameter that allows jobs in the cloud.
pub(crate) fn cloud(parameters: &mut Parameters<'_>) -> Result<bool, SettingsError> {
    let meaning = "off: jobs stay off servers labelled zone = \"cloud\", as A_online's authors have it";
    parameters.flag("cloud", true, meaning)
}

/// The shape of a job: its current one, else the requested one.
pub(crate) fn shape(job: &Job) -> Shape {
    job.verdict.allocation().map_or_else(|| job.spec.requested(), |allocation| allocation.shape())
}

impl<'a, I> Round<'a, I> {
    /// Serves jobs in order with the amounts that `ledger` leaves.
    ///
    /// O(slots · log servers) for the slots that each job has, gets or is refused. A job that displaces others costs
    /// this for each job that it tries to displace, starting from the last one.
    pub(crate) fn serve_in_turn(
        &mut self,
        order: &[&'a Arc<Job>],
        ledger: Ledger,
        placing: Placing,
    ) -> Result<(), EngineError> {
        let state = self.state;
        let has = order.iter().map(|job| job.verdict.allocation().cloned()).collect();
        let shapes = order.iter().map(|job| shape(job)).collect();
        let mut line = self.line(order, shapes, has, ledger, placing);
        let leaving = leaving(state);
        for (at, job) in order.iter().enumerate() {
            if line.has[at].is_none() {
                line.start(at)?;
            } else if leaving(job) {
                line.relocate(at)?;
            }
            line.settle(at);
        }
        let Line { has, left, .. } = line;
        let mut largest = Largest::default();
        for (job, has) in order.iter().zip(has) {
            match has {
                Some(allocation) => self.proposal.run(job, allocation),
                None => self.proposal.wait(job, largest.refusal(state, &self.board.room, &left, job, shape(job))),
            }
        }
        Ok(())
    }

    /// Gives planned jobs without a place that of jobs behind them, and these another one if there is room. `planned`
    /// has all jobs with a shape in their order, and `ledger` the amounts without theirs. It takes at most half of the
    /// budget, and changes nothing if that isn't enough. Costs as much as [`serve_in_turn`](Self::serve_in_turn), for
    /// the jobs without a place, plus O(jobs + servers).
    pub(crate) fn make_room(
        &mut self,
        planned: &[(&'a Arc<Job>, Shape)],
        ledger: Ledger,
        placing: Placing,
    ) -> Result<(), EngineError> {
        let state = self.state;
        let changes: BTreeMap<JobId, _> = self.proposal.changes.iter().map(|(id, verdict)| (*id, verdict)).collect();
        let has = |job: &Job| changes.get(&job.id).map_or(&job.verdict, |verdict| *verdict).allocation().cloned();
        let before: Vec<_> = planned.iter().map(|(job, _)| has(job)).collect();
        let (order, shapes): (Vec<_>, Vec<_>) = planned.iter().copied().unzip();
        let (board, last, budget) = (self.board.clone(), *self.last, *self.budget);
        *self.budget = budget.part(budget.left() / 2);
        let mut line = self.line(&order, shapes, before.clone(), ledger, placing);
        let served = line.serve(&before);
        let Line { has, left, shapes, .. } = line;
        let spent = self.budget.spent();
        *self.budget = budget;
        self.budget.spend(spent)?;
        if served.is_err() {
            (*self.board, *self.last) = (board, last);
            return Ok(());
        }
        let stays = |at: usize| has[at].is_some() && has[at] == before[at];
        let changed: BTreeSet<JobId> = (0..order.len()).filter(|at| !stays(*at)).map(|at| order[at].id).collect();
        self.proposal.changes.retain(|(id, _)| !changed.contains(id));
        let mut largest = Largest::default();
        for (at, job) in order.iter().enumerate().filter(|(_, job)| changed.contains(&job.id)) {
            match &has[at] {
                Some(allocation) => self.proposal.run(job, allocation.clone()),
                None => {
                    self.proposal.wait(job, largest.refusal(state, &self.board.room, &left, job, shapes[at]));
                }
            }
        }
        Ok(())
    }

    /// The jobs with their current slots, and the amounts that these leave.
    fn line<'l>(
        &'l mut self,
        order: &'l [&'a Arc<Job>],
        shapes: Vec<Shape>,
        has: Vec<Option<Arc<Allocation>>>,
        ledger: Ledger,
        placing: Placing,
    ) -> Line<'l> {
        let mut left = ledger.clone();
        for (job, has) in order.iter().zip(&has) {
            if let Some(allocation) = has {
                left.take(job, &job.total(allocation.shape()), 1);
            }
        }
        let Self { state, board, budget, last, .. } = self;
        Line { state, order, shapes, has, board, left, above: ledger, above_board: None, placing, last, budget }
    }
}

/// The jobs while they are served.
struct Line<'a> {
    state: &'a State,
    order: &'a [&'a Arc<Job>],
    /// The wanted shape of each job.
    shapes: Vec<Shape>,
    /// The current slots of each job. Jobs that aren't served yet keep theirs until they have to make room.
    has: Vec<Option<Arc<Allocation>>>,
    /// The room without all current slots.
    board: &'a mut Board,
    left: Ledger,
    /// The amounts without those of served jobs: the maximum for the next job in line.
    above: Ledger,
    /// The same for room. `None` until it is needed.
    above_board: Option<Board>,
    placing: Placing,
    last: &'a mut u32,
    budget: &'a mut Budget,
}

impl Line<'_> {
    /// Serves the jobs that had no place before. Those that make room get another place, but no other job's.
    fn serve(&mut self, before: &[Option<Arc<Allocation>>]) -> Result<(), EngineError> {
        for (at, before) in before.iter().enumerate() {
            if before.is_none() {
                self.start(at)?;
            } else if self.has[at].is_none() {
                self.start_elsewhere(at)?;
            }
            self.settle(at);
        }
        Ok(())
    }

    /// Another place for a job that made room: in its planned shape, or in its smallest.
    fn start_elsewhere(&mut self, at: usize) -> Result<(), EngineError> {
        let job = self.order[at];
        for shape in [self.shapes[at], job.bounds().least()] {
            self.shapes[at] = shape;
            let total = job.total(shape);
            if self.left.has(job, &total) {
                self.has[at] = self.place(at)?;
            }
            if self.has[at].is_some() {
                self.left.take(job, &total, 1);
                break;
            }
        }
        Ok(())
    }

    /// Finds room for a job without slots.
    fn start(&mut self, at: usize) -> Result<(), EngineError> {
        let job = self.order[at];
        let total = job.total(self.shapes[at]);
        if self.left.has(job, &total) {
            self.has[at] = self.place(at)?;
        }
        if self.has[at].is_none() && self.above.has(job, &total) && self.could_run(at)? {
            return self.displace(at);
        }
        if self.has[at].is_some() {
            self.left.take(job, &total, 1);
        }
        Ok(())
    }

    /// Moves a job with a draining server, if there is room elsewhere.
    fn relocate(&mut self, at: usize) -> Result<(), EngineError> {
        let (job, Some(kept)) = (self.order[at], self.has[at].take()) else { return Ok(()) };
        self.board.give_back(self.state, job, &kept);
        self.has[at] = self.place(at)?;
        if self.has[at].is_none() && self.board.restore(self.state, job, &kept) {
            self.has[at] = Some(kept);
        }
        Ok(())
    }

    fn place(&mut self, at: usize) -> Result<Option<Arc<Allocation>>, EngineError> {
        let (job, shape) = (self.order[at], self.shapes[at]);
        self.placing.place(self.state, self.board, job, shape, self.last, self.budget)
    }

    /// Whether the job would have room if the jobs behind it had none.
    fn could_run(&mut self, at: usize) -> Result<bool, EngineError> {
        let (state, job) = (self.state, self.order[at]);
        let above = self.above_board.get_or_insert_with(|| {
            let mut above = self.board.clone();
            for (job, has) in self.order.iter().zip(&self.has).skip(at + 1) {
                if let Some(allocation) = has {
                    above.give_back(state, job, allocation);
                }
            }
            above
        });
        let mut last = *self.last;
        let found = self.placing.place(state, above, job, self.shapes[at], &mut last, self.budget)?;
        if let Some(allocation) = &found {
            above.give_back(state, job, allocation);
        }
        Ok(found.is_some())
    }

    /// Starts a job in place of others. Jobs make room from the last in line on, until there is enough.
    fn displace(&mut self, at: usize) -> Result<(), EngineError> {
        let job = self.order[at];
        let total = job.total(self.shapes[at]);
        let mut displaced = Vec::new();
        for other in (at + 1..self.order.len()).rev() {
            let victim = self.order[other];
            let slots = self.has[other].as_ref().map_or(0, |allocation| allocation.slots().len());
            self.budget.spend(1 + slots as u64)?;
            let in_the_way = |allocation: &Arc<Allocation>| {
                self.left.share_a_limit(job, victim)
                    || allocation.slots().iter().any(|slot| self.board.room.accepts(self.state, slot.server, job))
            };
            let Some(allocation) = self.has[other].take_if(|allocation| in_the_way(allocation)) else { continue };
            self.board.give_back(self.state, victim, &allocation);
            self.left.take(victim, &victim.total(allocation.shape()), -1);
            displaced.push((other, allocation));
            if self.left.has(job, &total) {
                self.has[at] = self.place(at)?;
            }
            if self.has[at].is_some() {
                self.left.take(job, &total, 1);
                break;
            }
        }
        // Displaced jobs whose room wasn't needed keep it, the first in line first.
        for (other, allocation) in displaced.into_iter().rev() {
            let (victim, total) = (self.order[other], self.order[other].total(allocation.shape()));
            if self.left.has(victim, &total) && self.board.restore(self.state, victim, &allocation) {
                self.left.take(victim, &total, 1);
                self.has[other] = Some(allocation);
            }
        }
        Ok(())
    }

    /// Reserves the job's current slots against all jobs behind it.
    fn settle(&mut self, at: usize) {
        let Some(allocation) = &self.has[at] else { return };
        let job = self.order[at];
        self.above.take(job, &job.total(allocation.shape()), 1);
        if let Some(above) = &mut self.above_board {
            let there = above.restore(self.state, job, allocation);
            debug_assert!(there, "{} has room that it was not free to take", job.id);
        }
    }
}
