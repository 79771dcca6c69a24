//! [`Engine`] without its types, as the scheduler holds it, with its memory between decisions.

use std::any::Any;

use imbl::Vector;
use serde::{Deserialize, Serialize};

use super::{board::Board, contract::Engine, contract::Gang, contract::Limits, contract::Triggers, round::Round};
use crate::budget::{Budget, EngineError};
use crate::{
    decision::Proposal,
    job::JobSpec,
    policy::Demonstration,
    state::{Change, State},
};

/// An engine's memory of any type.
pub trait AnyMemo: Send + Sync {
    #[doc(hidden)]
    fn boxed(&self) -> Box<dyn AnyMemo>;
    #[doc(hidden)]
    fn bytes(&self) -> Vec<u8>;
    #[doc(hidden)]
    fn any(&mut self) -> &mut dyn Any;
    /// The engine's own memo.
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

/// The memory between two decisions.
#[derive(Clone, Default, Serialize, Deserialize)]
struct Kept<M> {
    /// See [`Round::last`].
    last: u32,
    /// The engine's own memo.
    own: M,
}

/// Version of the layout of [`Kept`].
const KEPT_VERSION: u32 = 1;

impl<M: 'static> Kept<M> {
    fn of(memo: &mut dyn AnyMemo) -> &mut Self {
        memo.any().downcast_mut().expect("a memo stays with its engine")
    }
}

/// An engine's index of any type. `None`: it has to be rebuilt.
pub type AnyIndex = Option<Box<dyn Any + Send>>;

/// An object-safe [`Engine`].
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
    /// As for [`Engine::accepts`].
    fn accepts(&self, spec: &JobSpec) -> Result<(), String>;
    /// See [`Engine::caveat`].
    fn caveat(&self, state: &State) -> Option<&'static str>;
    /// See [`Engine::stops_early`].
    fn stops_early(&self) -> bool;
    /// An empty memory.
    fn new_memo(&self) -> Box<dyn AnyMemo>;
    /// Reads a memory. `None` if the bytes are of another version or engine.
    fn read_memo(&self, version: u32, bytes: &[u8]) -> Option<Box<dyn AnyMemo>>;
    /// See [`Engine::MEMO_VERSION`].
    fn memo_version(&self) -> u32;
    /// See [`Engine::decide`].
    ///
    /// # Errors
    /// As for [`Engine::decide`].
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
    fn caveat(&self, state: &State) -> Option<&'static str> {
        Engine::caveat(self, state)
    }
    fn stops_early(&self) -> bool {
        Engine::stops_early(self)
    }
    fn new_memo(&self) -> Box<dyn AnyMemo> {
        Box::<Kept<E::Memo>>::default()
    }
    fn read_memo(&self, version: u32, bytes: &[u8]) -> Option<Box<dyn AnyMemo>> {
        let memo: Kept<E::Memo> = match version {
            // The layout before [`Kept`]: the engine's own memo, possibly followed by its copy of `last`, which is
            // ignored.
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
        // After an error the index may be half-updated, so it is rebuilt.
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
