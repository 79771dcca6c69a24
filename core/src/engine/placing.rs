//! Ways to place a shape: the parameter `placement`, for engines that don't define a placement.

use std::sync::Arc;

use super::{board::Board, parameters::Parameters};
use crate::budget::{Budget, EngineError};
use crate::{
    decision::Allocation,
    ids::ServerId,
    job::Job,
    settings::SettingsError,
    shape::{Role, Shape},
    state::State,
};

/// A value of the parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placing {
    Even,
    Tight,
    Consolidate,
    Spread,
    Pack,
    RoundRobin,
}

impl Placing {
    /// Reads the parameter, with the engine's default.
    pub(crate) fn of(parameters: &mut Parameters<'_>, default: &'static str) -> Result<Self, SettingsError> {
        let choices = [
            ("even", Self::Even),
            ("tight", Self::Tight),
            ("consolidate", Self::Consolidate),
            ("spread", Self::Spread),
            ("pack", Self::Pack),
            ("round_robin", Self::RoundRobin),
        ];
        let meaning = "even: both roles evenly on the fewest servers (Optimus, Theorem 1); tight: on the fullest \
            server with room for all, or even; consolidate: even, or pack \
            where that fits nowhere; spread: each slot to the freest server; pack: to the fullest; \
            round_robin: to the next server with room (OASiS, §V)";
        parameters.choice("placement", default, &choices, meaning)
    }

    /// Places a shape and takes its room. `None` if there is no room. `last` is the server of the last slot, from which
    /// round-robin continues. O(log S) per slot. Round-robin: O(S) if the cluster is full.
    pub(crate) fn place(
        self,
        state: &State,
        board: &mut Board,
        job: &Job,
        shape: Shape,
        last: &mut u32,
        budget: &mut Budget,
    ) -> Result<Option<Arc<Allocation>>, EngineError> {
        match self {
            Self::Even => board.place_even(state, job, shape, budget),
            Self::Tight => match board.place_whole(state, job, shape, budget)? {
                Some(whole) => Ok(Some(whole)),
                None => board.place_even(state, job, shape, budget),
            },
            Self::Consolidate => match board.place_even(state, job, shape, budget)? {
                Some(even) => Ok(Some(even)),
                None => board.place_each(state, job, shape, budget, fullest(state)),
            },
            Self::Spread => board.place_each(state, job, shape, budget, freest(state)),
            Self::Pack => board.place_each(state, job, shape, budget, fullest(state)),
            Self::RoundRobin => board.place_each(state, job, shape, budget, |board, job, role| {
                let found = next(state, board, job, role, *last)?;
                *last = found.0;
                Some(found)
            }),
        }
    }
}

/// The freest server with room for one more slot of a role.
pub(crate) fn freest(state: &State) -> impl Fn(&Board, &Job, Role) -> Option<ServerId> + '_ {
    |board, job, role| {
        let need = &job.demand(role).amounts;
        board.free.freest(&board.room, job.domain.as_deref(), need).find(|id| holds(state, board, *id, job, role))
    }
}

/// The fullest server with room for one more slot of a role.
pub(crate) fn fullest(state: &State) -> impl Fn(&Board, &Job, Role) -> Option<ServerId> + '_ {
    |board, job, role| {
        let need = &job.demand(role).amounts;
        board.free.fullest(&board.room, job.domain.as_deref(), need).find(|id| holds(state, board, *id, job, role))
    }
}

/// The next server after `last` with room for one more slot of a role.
fn next(state: &State, board: &Board, job: &Job, role: Role, last: u32) -> Option<ServerId> {
    let count = board.room.len() as u32;
    let mut after = (1..=count).map(|step| ServerId((last + step) % count));
    after.find(|id| holds(state, board, *id, job, role))
}

/// Whether a server has room for one more slot of a role.
pub(crate) fn holds(state: &State, board: &Board, id: ServerId, job: &Job, role: Role) -> bool {
    let (w, p) = match role {
        Role::Worker => (1, 0),
        Role::Server => (0, 1),
    };
    board.room.accepts(state, id, job) && board.room.holds(id, job, &job.demand(role).amounts, w, p)
}
