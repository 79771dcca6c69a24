//! Random shapes on random servers: the floor that every other engine has to beat, and a test of everything around
//! engines.
//!
//! Waiting jobs come up in random order; each gets a random shape within its bounds, else its smallest, on servers tried
//! at random; running jobs keep what they have. The lots come from the configured seed and the decision's number.
//!
//! Cost: O(J) for J waiting jobs, plus O(1) tries and at worst one walk of the index a slot.

use imbl::Vector;
use rand_chacha::{
    ChaCha8Rng,
    rand_core::{RngCore, SeedableRng},
};

use super::{
    Budget, Build, Engine, EngineError, ParameterInfo, Parameters, Triggers,
    board::{Board, Largest},
    ledger::Ledger,
    optimus::{run, wait},
    placing::freest,
};
use crate::{
    decision::{Proposal, Role, Shape, Verdict},
    ids::ServerId,
    job::Job,
    place::SortBy,
    settings::SettingsError,
    state::{Change, Mandate, State},
};

pub(super) const NAME: &str = "random";
pub(super) const SUMMARY: &str = "random shapes on random servers: the floor to beat";
pub(super) const PAPER: &str = "baseline";
pub(super) const PARAMETERS: &[ParameterInfo] = &[];

/// Servers tried at random before the freest is taken.
const TRIES: usize = 8;

/// The engine, as its module describes it.
#[derive(Clone, Debug)]
pub struct Random;

impl Build for Random {
    fn build(_: &Parameters) -> Result<Self, SettingsError> {
        Ok(Self)
    }
}

impl Engine for Random {
    type Memo = ();
    type Index = Board;

    fn triggers(&self) -> Triggers {
        Triggers { interval: None, arrival: true, departure: true }
    }

    fn decide(
        &self,
        state: &State,
        changes: &Vector<Change>,
        _: &mut (),
        board: &mut Board,
        budget: &mut Budget,
    ) -> Result<Proposal, EngineError> {
        board.sync(state, changes, SortBy::Share);
        let mut lots = ChaCha8Rng::seed_from_u64(state.settings.seed);
        lots.set_stream(state.decision.0);
        let mut proposal = Proposal::default();
        let mut ledger = Ledger::of(state);
        let mut waiting = Vec::new();
        for job in state.jobs.values() {
            match (&job.verdict, state.mandate(job)) {
                (Verdict::Run(allocation), _) => ledger.take(job, &job.total(allocation.shape()), 1),
                (_, Mandate::Free) => waiting.push((lots.next_u64(), job)),
                _ => {}
            }
        }
        waiting.sort_by_key(|(lot, job)| (*lot, job.id));
        let mut largest = Largest::default();
        for (_, job) in waiting {
            let bounds = job.spec.bounds();
            let between = |lots: &mut ChaCha8Rng, (from, to): (u32, u32)| from + lots.next_u32() % (to - from + 1);
            let drawn =
                Shape { workers: between(&mut lots, bounds.workers), servers: between(&mut lots, bounds.servers) };
            let mut found = None;
            for shape in [drawn, bounds.least()] {
                let total = job.total(shape);
                if ledger.has(job, &total) {
                    let somewhere = |board: &Board, job: &Job, role: Role| anywhere(state, board, job, role, &mut lots);
                    found = board.place_each(state, job, shape, budget, somewhere)?;
                    if found.is_some() {
                        ledger.take(job, &total, 1);
                        break;
                    }
                }
            }
            match found {
                Some(allocation) => run(&mut proposal, job, allocation),
                None => {
                    let least = bounds.least();
                    let total = job.total(least);
                    let reason = if ledger.has(job, &total) {
                        largest.reason(state, &board.room, job, least)
                    } else {
                        ledger.reason(state, job, &total)
                    };
                    wait(&mut proposal, job, reason);
                }
            }
        }
        Ok(proposal)
    }
}

fn anywhere(state: &State, board: &Board, job: &Job, role: Role, lots: &mut ChaCha8Rng) -> Option<ServerId> {
    let need = &job.demand(role).amounts;
    let (w, p) = if role == Role::Worker { (1, 0) } else { (0, 1) };
    let holds = |id: &ServerId| board.room.accepts(state, *id, job) && board.room.holds(*id, job, need, w, p);
    (0..TRIES)
        .map(|_| ServerId(lots.next_u32() % board.room.len().max(1) as u32))
        .find(|id| id.index() < board.room.len() && holds(id))
        .or_else(|| freest(state)(board, job, role))
}
