//! DRF: dominant resource fairness. The job with the smallest dominant share gets the next worker and parameter server,
//! until nothing fits.
//!
//! Ghodsi et al., *Dominant Resource Fairness*, NSDI'11, as set up for comparison by Optimus's authors (EuroSys'18,
//! §6.1): a decision per interval, workers and parameter servers 1:1, work-conserving, with slots spread over the
//! freest servers as in Kubernetes. Ties go to the earlier job. The version of OASiS's authors (INFOCOM'18, §V) decides
//! on each arrival and completion, and places round-robin: parameters `on_change` and `placement`. A parameter server
//! for every worker reserves more bandwidth than OASiS's jobs can use; `servers = "fewest"` gives them what they need.
//! Choose it if equal shares are more important than completion times.
//!
//! Cost: O(T log J) for T units and J jobs, plus O(log S) per placed slot.

use std::sync::Arc;

use crate::engine::{About, Build, Engine, EngineError, Parameters, Round, Triggers, placing::Placing};
use crate::engine::{round, round::Steps};
use crate::{job::Job, settings::SettingsError, shape::Shape, time::Span};

/// The engine, as its module describes it.
#[derive(Clone, Debug)]
pub struct Drf {
    interval: Span,
    on_change: bool,
    steps: Steps,
    placing: Placing,
}

impl Build for Drf {
    type Engine = Self;
    const ABOUT: About =
        About::new("drf", "equal dominant shares, work-conserving", "Ghodsi et al., DRF, NSDI'11; baseline of Optimus");

    fn build(parameters: &mut Parameters<'_>) -> Result<Self, SettingsError> {
        let servers = "\"paired\": a parameter server for every worker; \"fewest\": as few as have the bandwidth of \
            the workers, for jobs with a dataset";
        let steps = [("paired", round::PAIRED), ("fewest", round::FEWEST_SERVERS)];
        Ok(Self {
            interval: round::interval(parameters)?,
            on_change: parameters.flag("on_change", false, "decide when a job arrives or ends, too")?,
            steps: parameters.choice("servers", "paired", &steps, servers)?,
            placing: Placing::of(parameters, "spread")?,
        })
    }
}

impl Engine for Drf {
    type Memo = ();
    type Index = ();

    fn triggers(&self) -> Triggers {
        Triggers { interval: Some(self.interval), arrival: self.on_change, departure: self.on_change }
    }

    fn decide(&self, round: &mut Round<'_>, (): &mut ()) -> Result<(), EngineError> {
        let (jobs, mut ledger) = round.all_jobs();
        let mut shares: Vec<(&Arc<Job>, Shape)> = jobs.into_iter().map(|job| (job, Shape::default())).collect();
        round.fair_shapes(&mut shares, &mut ledger, self.steps)?;
        shares.retain(|(_, shape)| !shape.is_empty());
        round.place_shapes(shares, self.placing, self.steps)
    }
}
