//! The interface of engines, and a kit for writing them. See docs/engines.md.
//!
//! * The contract: [`Engine`], with its [`Triggers`], its [`Budget`] and its assumptions.
//! * A decision in the making: [`Round`], with a [`Board`](board::Board) of the servers' room and a ledger of totals.
//! * Operations of a round: allocate shapes by share or by gain (`round`), serve jobs in a line (`in_line`) or in turn
//!   with preemption (`preempting`), share devices (`sharing`), place slots (`placing`).
//! * What is predicted of a job (`forecast`), places of jobs whose shapes change (`resizing`), and what jobs that can't
//!   use every server leave to others (`confined`).
//! * The settings of an engine: [`Parameters`].

mod any;
pub mod board;
pub(crate) mod confined;
mod contract;
pub(crate) mod forecast;
pub(crate) mod in_line;
pub(crate) mod ledger;
mod parameters;
pub(crate) mod placing;
pub(crate) mod preempting;
mod priorities;
mod proposing;
mod registry;
pub(crate) mod resizing;
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
