//! An engine that panics, for tests of what stands around engines.

use imbl::Vector;

use super::{Budget, Engine, EngineError, Proposal, Triggers};
use crate::state::{Change, State};

/// Panics at each decision. In no registry.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Panicking;

impl Engine for Panicking {
    type Memo = ();
    type Index = ();

    fn triggers(&self) -> Triggers {
        Triggers { interval: None, arrival: true, departure: true }
    }

    fn decide(
        &self,
        _: &State,
        _: &Vector<Change>,
        (): &mut (),
        (): &mut (),
        _: &mut Budget,
    ) -> Result<Proposal, EngineError> {
        panic!("on purpose, in the engine")
    }
}
