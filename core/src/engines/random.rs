//! Random shapes on random servers: a lower baseline for all engines, and a test of the code around engines.
//!
//! Waiting jobs come in random order. Each gets a random shape within its bounds, or else its smallest one, on servers
//! tried at random. Running jobs keep their slots. The random numbers depend on the configured seed and the decision's
//! number.
//!
//! Cost: O(J) for J waiting jobs, plus O(1) tries and at worst one walk of the index per slot.

use rand_chacha::{
    ChaCha8Rng,
    rand_core::{RngCore, SeedableRng},
};

use crate::engine::{
    About, Build, Engine, EngineError, Parameters, Round, Triggers,
    board::{Board, Largest},
    placing::freest,
};
use crate::{
    ids::ServerId,
    job::Job,
    settings::SettingsError,
    shape::{Role, Shape},
    state::State,
};

/// Number of random servers that are tried before the freest one.
const TRIES: usize = 8;

/// The engine, as its module describes it.
#[derive(Clone, Debug)]
pub struct Random;

impl Build for Random {
    type Engine = Self;
    const ABOUT: About = About::new("random", "random shapes on random servers: the floor to beat", "baseline");

    fn build(_: &mut Parameters<'_>) -> Result<Self, SettingsError> {
        Ok(Self)
    }
}

impl Engine for Random {
    type Memo = ();
    type Index = ();

    fn triggers(&self) -> Triggers {
        Triggers { interval: None, arrival: true, departure: true }
    }

    fn decide(&self, round: &mut Round<'_>, _: &mut ()) -> Result<(), EngineError> {
        let state = round.state;
        let mut draws = ChaCha8Rng::seed_from_u64(state.settings.seed);
        draws.set_stream(state.decision.0);
        let (waiting, mut ledger) = round.waiting_jobs();
        let mut waiting: Vec<_> = waiting.into_iter().map(|job| (draws.next_u64(), job)).collect();
        waiting.sort_by_key(|(draw, job)| (*draw, job.id));
        let mut largest = Largest::default();
        for (_, job) in waiting {
            let bounds = job.bounds();
            let between = |draws: &mut ChaCha8Rng, (from, to): (u32, u32)| from + draws.next_u32() % (to - from + 1);
            let workers = bounds.workers_at_most(between(&mut draws, bounds.workers));
            let drawn = Shape { workers, servers: between(&mut draws, bounds.servers) };
            let mut found = None;
            for shape in [drawn, bounds.least()] {
                let total = job.total(shape);
                if ledger.has(job, &total) {
                    let somewhere =
                        |board: &Board, job: &Job, role: Role| anywhere(state, board, job, role, &mut draws);
                    found = round.board.place_each(state, job, shape, round.budget, somewhere)?;
                    if found.is_some() {
                        ledger.take(job, &total, 1);
                        break;
                    }
                }
            }
            match found {
                Some(allocation) => round.proposal.run(job, allocation),
                None => {
                    let reason = largest.refusal(state, &round.board.room, &ledger, job, bounds.least());
                    round.proposal.wait(job, reason);
                }
            }
        }
        Ok(())
    }
}

fn anywhere(state: &State, board: &Board, job: &Job, role: Role, draws: &mut ChaCha8Rng) -> Option<ServerId> {
    let need = &job.demand(role).amounts;
    let (w, p) = if role == Role::Worker { (1, 0) } else { (0, 1) };
    let holds = |id: &ServerId| board.room.accepts(state, *id, job) && board.room.holds(*id, job, need, w, p);
    (0..TRIES)
        .map(|_| ServerId(draws.next_u32() % board.room.len().max(1) as u32))
        .find(|id| id.index() < board.room.len() && holds(id))
        .or_else(|| freest(state)(board, job, role))
}
