//! Converts a slot's bookings to allocations.

use std::{collections::BTreeMap, sync::Arc};

use super::{bookings::Planned, round::Round};
use crate::{
    decision::{Allocation, Proposal, Verdict},
    engine::{
        EngineError,
        board::{Board, Largest},
        ledger::Ledger,
    },
    ids::ServerId,
    job::{Job, Training},
    reason::Reason,
    shape::{Role, Shape},
    state::{Mandate, State},
};

impl Round<'_> {
    /// Gives each job its bookings of this slot. A server may lack room for them: a pinned job uses it, devices don't
    /// add up, or the manager can only reserve equal amounts. Then the job is placed elsewhere, with fewer workers if
    /// necessary. The missing work is scheduled again at the slot's end.
    pub(super) fn deploy(&mut self, board: &mut Board) -> Result<Proposal, EngineError> {
        let state = self.state;
        let mut proposal = Proposal::default();
        let mut ledger = Ledger::of(state);
        let mut moving: Vec<(&Arc<Job>, Planned)> = Vec::new();
        for job in state.jobs.values() {
            if state.mandate(job) != Mandate::Free {
                ledger.take(job, &job.total(job.shape()), 1);
                continue;
            }
            let planned = self.memo.admitted.get(&job.id).and_then(|admission| admission.at(self.slot));
            match (planned, job.verdict.allocation()) {
                (Some(planned), Some(has)) if counts(has) == planned.counts => {
                    ledger.take(job, &job.total(has.shape()), 1);
                }
                (Some(planned), _) => moving.push((job, planned.clone())),
                (None, _) => {
                    board.release(state, job);
                    let verdict = self.verdict(job);
                    set(&mut proposal, job, verdict);
                }
            }
        }
        moving.iter().for_each(|(job, _)| board.release(state, job));
        let mut largest = Largest::default();
        for (job, planned) in moving {
            let shape = planned.shape();
            let found = self.place(board, &mut ledger, job, &planned)?;
            let verdict = match found {
                Some(allocation) => Verdict::Run(allocation),
                None => Verdict::Wait(largest.refusal(state, &board.room, &ledger, job, shape)),
            };
            set(&mut proposal, job, verdict);
        }
        Ok(proposal)
    }

    /// The verdict for a job without bookings in this slot.
    fn verdict(&self, job: &Job) -> Verdict {
        if let Some(verdict) = self.verdicts.get(&job.id) {
            return verdict.clone();
        }
        match self.memo.admitted.get(&job.id) {
            Some(admission) => {
                let next = admission.plan.front().map_or(self.slot + 1, |planned| planned.slot);
                Verdict::Wait(Reason::Scheduled { next_start: self.engine.slots.start(next) })
            }
            None => job.verdict.clone(),
        }
    }

    fn place(
        &mut self,
        board: &mut Board,
        ledger: &mut Ledger,
        job: &Arc<Job>,
        planned: &Planned,
    ) -> Result<Option<Arc<Allocation>>, EngineError> {
        let state = self.state;
        let shape = planned.shape();
        if ledger.has(job, &job.total(shape)) {
            self.budget.spend(planned.counts.len() as u64)?;
            let fits = planned.counts.iter().all(|&(id, shape)| {
                let need = job.total(shape);
                board.room.accepts(state, id, job) && board.room.holds(id, job, &need, shape.workers, shape.servers)
            });
            if fits
                && can_be_carried_out(state, job, planned)
                && let Some(allocation) = board.take(state, job, &planned.counts())
            {
                ledger.take(job, &job.total(shape), 1);
                return Ok(Some(allocation));
            }
        }
        let Ok(training) = Training::of(job) else { return Ok(None) };
        let shapes: Vec<Shape> = training.shapes().filter(|other| other.workers <= shape.workers).collect();
        for shape in shapes.into_iter().rev() {
            if !ledger.has(job, &job.total(shape)) {
                continue;
            }
            // The current place is preferred, because a move would restart the job.
            let has = job.verdict.allocation().filter(|has| has.shape() == shape);
            let found = match has {
                Some(has) if board.restore(state, job, has) => Some(has.clone()),
                _ => board.place_even(state, job, shape, self.budget)?,
            };
            if let Some(allocation) = found {
                ledger.take(job, &job.total(shape), 1);
                return Ok(Some(allocation));
            }
        }
        Ok(None)
    }
}

fn counts(allocation: &Allocation) -> Vec<(ServerId, Shape)> {
    let mut counts: BTreeMap<ServerId, Shape> = BTreeMap::new();
    for slot in allocation.slots() {
        let count = counts.entry(slot.server).or_default();
        match slot.role {
            Role::Worker => count.workers += 1,
            Role::Server => count.servers += 1,
        }
    }
    counts.into_iter().collect()
}

fn can_be_carried_out(state: &State, job: &Job, planned: &Planned) -> bool {
    let rules = state.settings.shape.of(&job.spec);
    rules.broken_by(planned.counts.iter().map(|(_, shape)| *shape)).is_none()
}

fn set(proposal: &mut Proposal, job: &Job, verdict: Verdict) {
    if !job.verdict.same_kind(&verdict) {
        proposal.changes.push((job.id, verdict));
    }
}
