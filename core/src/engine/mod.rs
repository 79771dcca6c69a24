//! What an engine is, and the kit that engines are written with; docs/engines.md shows how.
//!
//! * The contract: [`Engine`], its [`Triggers`] and [`Budget`], and what it may assume.
//! * A decision in the making: [`Round`], over a [`Board`](board::Board) of the servers' room and a ledger of totals.
//! * Verbs of a round: hand out shapes by share or by gain (`round`), serve jobs in a line (`in_line`) or in turn, stopping
//!   others (`preempting`), share devices (`sharing`), place slots (`placing`).
//! * What can be set: [`Parameters`].

pub mod board;

pub(crate) mod in_line;
pub(crate) mod ledger;
mod parameters;
pub(crate) mod placing;
pub(crate) mod preempting;
mod proposing;
mod registry;
pub(crate) mod round;
pub(crate) mod sharing;

use std::any::Any;

use imbl::Vector;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use self::board::Board;
pub use self::{
    parameters::{DefaultValue, ParameterInfo, Parameters},
    registry::{About, Build, Entry},
    round::Round,
};
pub use crate::budget::{Budget, EngineError};
use crate::{
    decision::Proposal,
    job::JobSpec,
    place::SortBy,
    policy::Demonstration,
    state::{Change, State},
    time::Span,
};

/// What makes an engine run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Triggers {
    /// At least so often while there are jobs.
    pub interval: Option<Span>,
    /// When a job arrives, or a held one goes on.
    pub arrival: bool,
    /// When a job ends or is held, or a server comes.
    pub departure: bool,
}

/// What the guard holds the sum of plans against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Limits {
    /// Reservations: Σ planned ≤ capacity − foreign use, or more where the pool
    /// [overbooks](crate::settings::ShapeRules::overbook).
    Reserved,
    /// Besides: no server comes to carry more than so many thousandths of what it has, as measured.
    Measured(u16),
}

/// Whether a job may run with some of its slots queued or preempted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gang {
    /// All slots run or none.
    Whole,
    /// Work items may wait on their slots one by one.
    Partial,
}

/// A scheduling policy. A new one is a file here and a line in [`REGISTRY`].
///
/// `decide` must depend on its arguments alone: same state, changes, memo and budget, same proposal; a rebuilt index
/// gives the same proposal as a kept one.
pub trait Engine: Send + Sync {
    /// Its own memory between decisions: explicit, versioned, small or in chunks behind `Arc`.
    type Memo: Clone + Default + Serialize + DeserializeOwned + Send + Sync + 'static;
    /// Grows when the memo's layout changes; a memo of another version starts empty.
    const MEMO_VERSION: u32 = 1;
    /// Derived from the state, moved from ticket to ticket, rebuilt from `Default` if lost.
    type Index: Default + Send + 'static;

    /// What makes it run.
    fn triggers(&self) -> Triggers;
    /// The order in which the round's board has the servers; none where it isn't looked at.
    fn order(&self) -> Option<SortBy> {
        Some(SortBy::Share)
    }
    /// What sums are held against.
    fn limits(&self) -> Limits {
        Limits::Reserved
    }
    /// All slots or none, or finer.
    fn gang(&self) -> Gang {
        Gang::Whole
    }
    /// Whether it could ever run such a job; asked when one is submitted.
    ///
    /// # Errors
    /// The key that is wrong, its value and what is allowed.
    fn accepts(&self, _: &JobSpec) -> Result<(), String> {
        Ok(())
    }
    /// Proposes changes to the plan in the round's state.
    ///
    /// Jobs whose [`mandate`](State::mandate) isn't free must not be changed.
    ///
    /// # Errors
    /// The budget is used up, or something it needs is missing; the memo is then as before.
    fn decide(&self, round: &mut Round<'_, Self::Index>, memo: &mut Self::Memo) -> Result<(), EngineError>;
    /// What it goes by at the moment, such as its prices: named numbers for plots. Decides nothing.
    fn readings(&self, _: &State, _: &Self::Memo) -> Vec<(String, f64)> {
        Vec::new()
    }
    /// What its heuristic would choose now, from what a policy would be shown: for hosts that train one. Decides nothing.
    fn demonstrate(&self, _: &State, _: &Self::Memo) -> Vec<Demonstration> {
        Vec::new()
    }
}

/// An engine's memory, whatever its type.
pub trait AnyMemo: Send + Sync {
    #[doc(hidden)]
    fn boxed(&self) -> Box<dyn AnyMemo>;
    #[doc(hidden)]
    fn bytes(&self) -> Vec<u8>;
    #[doc(hidden)]
    fn any(&mut self) -> &mut dyn Any;
    /// The engine's own.
    #[doc(hidden)]
    fn own(&mut self) -> &mut dyn Any;
}

impl<M: Clone + Serialize + Send + Sync + 'static> AnyMemo for Kept<M> {
    fn boxed(&self) -> Box<dyn AnyMemo> {
        Box::new(self.clone())
    }
    fn bytes(&self) -> Vec<u8> {
        postcard::to_allocvec(self).expect("a memo is plain data")
    }
    fn any(&mut self) -> &mut dyn Any {
        self
    }
    fn own(&mut self) -> &mut dyn Any {
        &mut self.own
    }
}

/// What is remembered from one decision to the next.
#[derive(Clone, Default, Serialize, Deserialize)]
struct Kept<M> {
    /// See [`Round::last`].
    last: u32,
    /// What the engine remembers.
    own: M,
}

/// Grows when the layout of [`Kept`] changes.
const KEPT_VERSION: u32 = 1;

impl<M: 'static> Kept<M> {
    fn of(memo: &mut dyn AnyMemo) -> &mut Self {
        memo.any().downcast_mut().expect("a memo stays with its engine")
    }
}

/// An engine's index, whatever its type; `None` where it is to be rebuilt.
pub type AnyIndex = Option<Box<dyn Any + Send>>;

/// [`Engine`], object-safe.
pub trait AnyEngine: Send + Sync {
    /// See [`Engine::triggers`].
    fn triggers(&self) -> Triggers;
    /// See [`Engine::limits`].
    fn limits(&self) -> Limits;
    /// See [`Engine::gang`].
    fn gang(&self) -> Gang;
    /// See [`Engine::accepts`].
    ///
    /// # Errors
    /// As there.
    fn accepts(&self, spec: &JobSpec) -> Result<(), String>;
    /// An empty memory.
    fn new_memo(&self) -> Box<dyn AnyMemo>;
    /// A memory from its bytes; `None` if they are of another version or engine.
    fn read_memo(&self, version: u32, bytes: &[u8]) -> Option<Box<dyn AnyMemo>>;
    /// See [`Engine::MEMO_VERSION`].
    fn memo_version(&self) -> u32;
    /// See [`Engine::decide`].
    ///
    /// # Errors
    /// As there.
    fn decide(
        &self,
        state: &State,
        changes: &Vector<Change>,
        memo: &mut dyn AnyMemo,
        index: &mut AnyIndex,
        budget: &mut Budget,
    ) -> Result<Proposal, EngineError>;
    /// See [`Engine::readings`].
    fn readings(&self, state: &State, memo: &mut dyn AnyMemo) -> Vec<(String, f64)>;
    /// See [`Engine::demonstrate`].
    fn demonstrate(&self, state: &State, memo: &mut dyn AnyMemo) -> Vec<Demonstration>;
}

impl<E: Engine> AnyEngine for E {
    fn triggers(&self) -> Triggers {
        Engine::triggers(self)
    }
    fn limits(&self) -> Limits {
        Engine::limits(self)
    }
    fn gang(&self) -> Gang {
        Engine::gang(self)
    }
    fn accepts(&self, spec: &JobSpec) -> Result<(), String> {
        Engine::accepts(self, spec)
    }
    fn new_memo(&self) -> Box<dyn AnyMemo> {
        Box::<Kept<E::Memo>>::default()
    }
    fn read_memo(&self, version: u32, bytes: &[u8]) -> Option<Box<dyn AnyMemo>> {
        let memo: Kept<E::Memo> = match version {
            // Of times when each engine remembered that server itself, or none, after its own.
            _ if version == E::MEMO_VERSION => Kept { last: 0, own: postcard::from_bytes(bytes).ok()? },
            _ if version == AnyEngine::memo_version(self) => postcard::from_bytes(bytes).ok()?,
            _ => return None,
        };
        Some(Box::new(memo))
    }
    fn memo_version(&self) -> u32 {
        KEPT_VERSION << 16 | E::MEMO_VERSION
    }
    fn decide(
        &self,
        state: &State,
        changes: &Vector<Change>,
        memo: &mut dyn AnyMemo,
        index: &mut AnyIndex,
        budget: &mut Budget,
    ) -> Result<Proposal, EngineError> {
        let Kept { last, own: memo } = Kept::of(memo);
        let mut kept = match index.take().map(|index| index.downcast::<(Board, E::Index)>()) {
            Some(Ok(index)) => index,
            _ => Box::default(),
        };
        let (board, own) = &mut *kept;
        if let Some(order) = Engine::order(self) {
            board.sync(state, changes, order);
        }
        let mut round = Round::new(state, changes, board, own, last, budget);
        Engine::decide(self, &mut round, memo)?;
        let proposal = round.proposal;
        // After an error it may be half-updated: it is rebuilt.
        *index = Some(kept);
        Ok(proposal)
    }
    fn readings(&self, state: &State, memo: &mut dyn AnyMemo) -> Vec<(String, f64)> {
        Engine::readings(self, state, &Kept::<E::Memo>::of(memo).own)
    }
    fn demonstrate(&self, state: &State, memo: &mut dyn AnyMemo) -> Vec<Demonstration> {
        Engine::demonstrate(self, state, &Kept::<E::Memo>::of(memo).own)
    }
}
