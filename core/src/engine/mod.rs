//! What an engine is, and the kit that engines are written with; docs/engines.md shows how.
//!
//! * The contract: [`Engine`], its [`Triggers`] and [`Budget`], and what it may assume.
//! * A decision in the making: [`Round`], over a [`Board`](board::Board) of the servers' room and a ledger of totals.
//! * Verbs of a round: hand out shapes by share or by gain (`round`), serve jobs in a line (`in_line`) or in turn,
//!   stopping others (`preempting`), share devices (`sharing`), place slots (`placing`).
//! * What can be set: [`Parameters`].

mod any;
pub mod board;
mod contract;

pub(crate) mod in_line;
pub(crate) mod ledger;
mod parameters;
pub(crate) mod placing;
pub(crate) mod preempting;
mod proposing;
mod registry;
pub(crate) mod round;
pub(crate) mod sharing;

pub use self::{
    any::{AnyEngine, AnyIndex, AnyMemo},
    contract::{Engine, Gang, Limits, Triggers},
    parameters::{DefaultValue, ParameterInfo, Parameters},
    registry::{About, Build, Entry},
    round::Round,
};
pub use crate::budget::{Budget, EngineError};
