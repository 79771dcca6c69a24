//! The interface of an engine.

use serde::{Serialize, de::DeserializeOwned};

use super::round::Round;
use crate::{budget::EngineError, job::JobSpec, place::SortBy, policy::Demonstration, state::State, time::Span};

/// The events that make an engine run. Changes of servers, limits and settings, and plans that no longer fit, make
/// every engine run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Triggers {
    /// Maximum time between rounds while there are jobs.
    pub interval: Option<Span>,
    /// A job arrived, or a held job was resumed.
    pub arrival: bool,
    /// A job ended or was held, or completed a data chunk.
    pub departure: bool,
}

/// The limit of the guard on the sums of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Limits {
    /// Reservations: Σ planned ≤ capacity − foreign use. No device is reserved twice, even if the pool
    /// [oversubscribes](crate::settings::ShapeRules::oversubscribe).
    Reserved,
    /// Devices can be reserved as often as the pool allows. The measured load of each server is at most this many
    /// thousandths of its capacity.
    Measured(u16),
}

/// Whether a job can run while some of its slots are queued or preempted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gang {
    /// All slots run, or none.
    Whole,
    /// Individual work items can wait on their slots.
    Partial,
}

/// A scheduling policy. A new one needs a file in `engines` and an entry in its list.
///
/// `decide` must depend only on its arguments: the same state, changes, memo and budget give the same proposal. A
/// rebuilt index gives the same proposal as a kept one.
pub trait Engine: Send + Sync {
    /// The engine's memory between decisions: explicit, versioned, and small or in chunks behind `Arc`.
    type Memo: Clone + Default + Serialize + DeserializeOwned + Send + Sync + 'static;
    /// Version of the memo's layout. A memo of another version starts empty.
    const MEMO_VERSION: u32 = 1;
    /// Data derived from the state. It is moved from ticket to ticket, and rebuilt from `Default` if lost.
    type Index: Default + Send + 'static;

    /// The events that make the engine run.
    fn triggers(&self) -> Triggers;
    /// The order of the servers on the round's board. `None` if the engine doesn't use it.
    fn order(&self) -> Option<SortBy> {
        Some(SortBy::Share)
    }
    /// The limit on the sums of its plans.
    fn limits(&self) -> Limits {
        Limits::Reserved
    }
    /// Whether jobs run with all slots or also with some.
    fn gang(&self) -> Gang {
        Gang::Whole
    }
    /// Whether the engine can run such a job. It is called at submission.
    ///
    /// # Errors
    /// The key that is wrong, its value and what is allowed.
    fn accepts(&self, _: &JobSpec) -> Result<(), String> {
        Ok(())
    }
    /// A sentence for users who submit jobs: a limit of the engine on these servers, if there is one. O(servers).
    fn caveat(&self, _: &State) -> Option<&'static str> {
        None
    }
    /// Whether the engine itself applies the rules by which owners let their jobs stop early
    /// ([`Job::stops`](crate::Job::stops)).
    fn stops_early(&self) -> bool {
        false
    }
    /// Proposes changes to the plan in the round's state.
    ///
    /// It must not change jobs whose [`mandate`](State::mandate) isn't free.
    ///
    /// # Errors
    /// The budget is used up. The memo is then unchanged.
    fn decide(&self, round: &mut Round<'_, Self::Index>, memo: &mut Self::Memo) -> Result<(), EngineError>;
    /// Current internal values of the engine, such as prices: named numbers for plots. Decides nothing.
    fn readings(&self, _: &State, _: &Self::Memo) -> Vec<(String, f64)> {
        Vec::new()
    }
    /// The current choices of the engine's heuristic, with the inputs that a policy would get. For hosts that train a
    /// policy. Decides nothing.
    fn demonstrate(&self, _: &State, _: &Self::Memo) -> Vec<Demonstration> {
        Vec::new()
    }
}
