//! What an engine is.

use serde::{Serialize, de::DeserializeOwned};

use super::round::Round;
use crate::{budget::EngineError, job::JobSpec, place::SortBy, policy::Demonstration, state::State, time::Span};

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
    /// [oversubscribes](crate::settings::ShapeRules::oversubscribe).
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

/// A scheduling policy. A new one is a file in `engines` and a word in its list.
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
    /// What its heuristic would choose now, from what a policy would be shown: for hosts that train one. Decides
    /// nothing.
    fn demonstrate(&self, _: &State, _: &Self::Memo) -> Vec<Demonstration> {
        Vec::new()
    }
}
