//! Fault injection for tests of the agent's surroundings. Products don't contain it.

use std::{
    path::PathBuf,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use serde::Deserialize;
use trainmaster_core::{Scheduler, testing::Scripted};

/// A fault.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Fault {
    /// All engines panic, including the fallback engine.
    Engine,
    /// The next round panics.
    Round,
    /// The next orders wait until this file exists, so that Slurm has changed since it was polled.
    Late(PathBuf),
}

/// The active faults.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    engine: bool,
    round: bool,
    late: Option<PathBuf>,
}

impl Faults {
    pub(crate) fn order(&mut self, fault: Fault) {
        match fault {
            Fault::Engine => self.engine = true,
            Fault::Round => self.round = true,
            Fault::Late(until) => self.late = Some(until),
        }
    }

    pub(crate) fn before_decision(&self, scheduler: &mut Scheduler) {
        if self.engine {
            scheduler.replace_engine(Arc::new(Scripted::panicking()));
        }
    }

    pub(crate) fn in_round(&self) {
        assert!(!self.round, "on purpose, in a round");
    }

    pub(crate) fn before_calls(&mut self, any: bool) {
        let Some(until) = self.late.take_if(|_| any) else { return };
        let end = Instant::now() + Duration::from_secs(600);
        while !until.exists() && Instant::now() < end {
            thread::sleep(Duration::from_millis(20));
        }
    }
}
