//! An engine that panics, for tests of what stands around engines.

use super::{Engine, EngineError, Round, Triggers};

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

    fn decide(&self, _: &mut Round<'_>, (): &mut ()) -> Result<(), EngineError> {
        panic!("on purpose, in the engine")
    }
}
