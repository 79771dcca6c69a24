//! Dominant resource fairness: whoever has the least gets the next worker and parameter server, until nothing fits.
//!
//! Ghodsi et al., *Dominant Resource Fairness*, NSDI'11, as Optimus's authors set it up to compare with (EuroSys'18,
//! §6.1): every interval, workers and parameter servers 1:1, work-conserving, and slots spread over the freest servers,
//! as Kubernetes does. Ties go to the earlier job. OASiS's authors (INFOCOM'18, §V) compare with one that decides on every
//! arrival and completion and places round-robin: `on_change` and `placement`. Choose it where equal shares matter more
//! than time.
//!
//! Cost: O(T log J) for T units handed out to J jobs, plus O(log S) a slot that is placed.

use std::sync::Arc;

use imbl::Vector;

use super::{
    Budget, Build, DefaultValue as Value, Engine, EngineError, ParameterInfo, Parameters, Triggers,
    board::Board,
    optimus::wait,
    placing::{Placing, placement},
    rounds,
};
use crate::{
    decision::{Proposal, Shape},
    job::Job,
    place::SortBy,
    settings::SettingsError,
    state::{Change, State},
    time::Span,
};

pub(super) const NAME: &str = "drf";
pub(super) const SUMMARY: &str = "equal dominant shares, work-conserving, one parameter server per worker";
pub(super) const PAPER: &str = "Ghodsi et al., DRF, NSDI'11; baseline of Optimus";
pub(super) const PARAMETERS: &[ParameterInfo] = &[
    rounds::INTERVAL[0],
    ParameterInfo { name: "on_change", default: Value::Flag(false), meaning: "decide when a job arrives or ends, too" },
    placement("spread"),
];

/// The engine, as its module describes it.
#[derive(Clone, Debug)]
pub struct Drf {
    interval: Span,
    on_change: bool,
    placing: Placing,
}

impl Build for Drf {
    fn build(parameters: &Parameters) -> Result<Self, SettingsError> {
        Ok(Self {
            interval: parameters.span("interval")?,
            on_change: parameters.flag("on_change")?,
            placing: Placing::of(parameters)?,
        })
    }
}

impl Engine for Drf {
    /// The server that had the last slot, for round-robin.
    type Memo = u32;
    const MEMO_VERSION: u32 = 2;
    type Index = Board;

    fn triggers(&self) -> Triggers {
        Triggers { interval: Some(self.interval), arrival: self.on_change, departure: self.on_change }
    }

    fn decide(
        &self,
        state: &State,
        changes: &Vector<Change>,
        last: &mut u32,
        board: &mut Board,
        budget: &mut Budget,
    ) -> Result<Proposal, EngineError> {
        board.sync(state, changes, SortBy::Share);
        let mut proposal = Proposal::default();
        let (jobs, mut ledger) = rounds::free_jobs(state);
        let mut shares: Vec<(&Arc<Job>, Shape)> = jobs.map(|job| (job, Shape::default())).collect();
        rounds::fair_shapes(state, &mut shares, &mut ledger, budget, |job, reason| {
            board.release(state, job);
            wait(&mut proposal, job, reason);
        })?;
        shares.retain(|(_, shape)| !shape.is_empty());
        rounds::place_shapes(state, shares, board, &mut proposal, budget, (self.placing, last))?;
        Ok(proposal)
    }
}
