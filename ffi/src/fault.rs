//! Deliberate panics, for tests of code around the library. They are neither in the header nor in a release.

use std::sync::Arc;

use trainmaster_core::testing::Scripted;

use crate::{
    guard,
    handle::{Place, trainmaster_scheduler},
    server::pick,
    text::trainmaster_message,
};

/// Place of the panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// In each run of the engine, until the fallback takes over.
    Run,
    /// In the next event.
    Apply,
    /// In the next commit.
    Commit,
}

impl Fault {
    pub(crate) fn is_at(self, place: Place) -> bool {
        matches!((self, place), (Self::Apply, Place::Apply) | (Self::Commit, Place::Commit))
    }
}

pub(crate) fn strike(fault: Option<Fault>) {
    if let Some(fault) = fault {
        panic!("on purpose, in {fault:?}");
    }
}

/// Orders a panic: 0 in the engine from now on, 1 in the next event, 2 in the next commit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_fault_inject(
    scheduler: *mut trainmaster_scheduler,
    place: u32,
    message: *mut trainmaster_message,
) -> u32 {
    guard::call(message, || {
        let mut inner = trainmaster_scheduler::healthy(scheduler)?;
        match pick(place, "place", &[("run", Fault::Run), ("apply", Fault::Apply), ("commit", Fault::Commit)])? {
            Fault::Run => inner.core.replace_engine(Arc::new(Scripted::panicking())),
            fault => inner.fault = Some(fault),
        }
        Ok(())
    })
}
