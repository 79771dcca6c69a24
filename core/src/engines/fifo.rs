//! FIFO: first in, first out. Each job gets its requested shape, in order, and keeps it to the end.
//!
//! This is the rule of most clusters, and the baseline of all papers here (Optimus §2.3, OASiS §V). Jobs go by
//! priority, then arrival. The first job that doesn't fit blocks the ones behind it, so that big jobs don't starve. A
//! job at a limit of its tenant or queue blocks no others. With `backfill`, smaller jobs pass. Slots go one by one to
//! the freest server, or round-robin. Choose it as a fallback, or for comparisons.
//!
//! Cost: O(J log J) for J waiting jobs, plus O(log S) per placed slot (round-robin: O(S) if the cluster is full).

use crate::engine::{
    About, Build, Engine, EngineError, Parameters, Round, Triggers, in_line::by_arrival, placing::Placing,
};
use crate::settings::SettingsError;

/// The engine, as its module describes it.
#[derive(Clone, Debug)]
pub struct Fifo {
    backfill: bool,
    placing: Placing,
}

impl Build for Fifo {
    type Engine = Self;
    const ABOUT: About = About::new("fifo", "gives every job what it requested, first come first served", "baseline");

    fn build(parameters: &mut Parameters<'_>) -> Result<Self, SettingsError> {
        Ok(Self {
            backfill: parameters.flag("backfill", false, "jobs that fit may pass one that doesn't")?,
            placing: Placing::of(parameters, "spread")?,
        })
    }
}

impl Engine for Fifo {
    type Memo = ();
    type Index = ();

    fn triggers(&self) -> Triggers {
        Triggers { interval: None, arrival: true, departure: true }
    }

    fn decide(&self, round: &mut Round<'_>, (): &mut ()) -> Result<(), EngineError> {
        let (mut waiting, ledger) = round.waiting_jobs();
        by_arrival(round.state, &mut waiting);
        round.start_in_line((&waiting, ledger), self.backfill, |round, job| {
            round.place(job, job.spec.requested(), self.placing)
        })
    }
}
