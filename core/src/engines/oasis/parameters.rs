//! The parameters of `oasis`.

use super::prices::Known;
use crate::{
    engine::{About, Build, Parameters},
    job::Slots,
    settings::{Parameter, SettingsError},
    time::Span,
};

/// The unit of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkUnit {
    /// A worker trains whole chunks in a slot (§IV-C).
    Chunk,
    /// A chunk may continue in the next slot.
    WorkerSlot,
}

/// Treatment of rejected jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rejected {
    Held,
    Cancelled,
    Retry(Span),
}

/// Where U and L come from.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Prices {
    /// The last arrivals, by Eq. 23 to 26.
    Learnt,
    /// The same, with an L that clears their market at least.
    Typical,
    /// Settings.
    Known(Known),
}

/// The engine. See the [module](super).
#[derive(Clone, Debug)]
pub struct Oasis {
    pub(super) slots: Slots,
    pub(super) horizon: u32,
    pub(super) fixed: bool,
    pub(super) prices: Prices,
    pub(super) window: usize,
    pub(super) price_scale: f64,
    pub(super) kappa: f64,
    pub(super) drift: f64,
    pub(super) rejected: Rejected,
    pub(super) default_value: f64,
    pub(super) work_unit: WorkUnit,
    pub(super) own_demand: bool,
    /// Maximum number of steps of one search. Then it is repeated with a coarser grain of work.
    pub(super) most_searched: u64,
}

impl Build for Oasis {
    type Engine = Self;
    const ABOUT: About = About::new(
        "oasis",
        "admits a job if its best schedule is worth more than its resources cost, and books it",
        "Bao et al., OASiS, INFOCOM'18",
    );

    fn build(parameters: &mut Parameters<'_>) -> Result<Self, SettingsError> {
        let slot = "length of a time slot; numbers of workers change between slots only (§V-B: 20 minutes)";
        let horizon = "T: slots that are looked ahead, or that there are in all (§V-A: 100 to 300)";
        let timespan =
            "\"rolling\": the horizon moves on with time; \"fixed\": T slots from time zero, as in the paper";
        let bounds = "U and L of the prices: \"learnt\" from the last arrivals as in the paper; beyond the paper, \
            \"typical\": L also clears their market; or known, as l1 = …, l2 = …, u1 = { gpu = … }, u2 = { … }";
        let price_scale = "U/L times this (Fig. 6: 0.2 to 10; below 1 where resources are scarce)";
        let kappa = "for L a job is worth at least this part of f(0), however late it ends";
        let drift = "a job whose progress is off its schedule by more than this part is scheduled anew";
        let rejected = "what becomes of a rejected job: \"held\" until someone resumes it, \"cancelled\", or \"retry\"";
        let default_value = "what a job without a utility is worth, whenever it ends";
        let work_unit = "work is counted in whole chunks a slot; beyond the paper, \"worker_slot\": as constraint (2) \
            has it, never dearer";
        let own_demand = "beyond the paper: a slot's price counts the slot itself as booked, which matters where \
            servers hold few slots";
        // The time is parsed after this.
        let ends =
            [("held", Rejected::Held), ("cancelled", Rejected::Cancelled), ("retry", Rejected::Retry(Span::ZERO))];
        let units = [("chunk", WorkUnit::Chunk), ("worker_slot", WorkUnit::WorkerSlot)];
        Ok(Self {
            slots: Slots { length: parameters.span("slot", "20m", slot)? },
            horizon: parameters.whole("horizon", 300, 1..=100_000, horizon)?,
            fixed: parameters.choice("timespan", "rolling", &[("rolling", false), ("fixed", true)], timespan)?,
            prices: prices(parameters.text("bounds", "learnt", bounds)?)?,
            window: parameters.whole("window", 100, 1..=10_000, "so many of the last arrivals teach U and L")? as usize,
            price_scale: parameters.number("price_scale", 1.0, 1e-6..=1e6, price_scale)?,
            kappa: parameters.number("kappa", 0.01, 1e-12..=1.0, kappa)?,
            drift: parameters.number("drift", 0.1, 0.0..=1e6, drift)?,
            rejected: {
                let rejected = parameters.choice("rejected", "held", &ends, rejected)?;
                let after = parameters.span("retry_after", "1h", "when a rejected job is tried again")?;
                if let Rejected::Retry(_) = rejected { Rejected::Retry(after) } else { rejected }
            },
            default_value: parameters.number("default_value", 1.0, 0.0..=1e9, default_value)?,
            work_unit: parameters.choice("work_unit", "chunk", &units, work_unit)?,
            own_demand: parameters.flag("own_demand", false, own_demand)?,
            most_searched: 1 << 22,
        })
    }
}

/// Parses the configured bounds of the prices.
fn prices(bounds: String) -> Result<Prices, SettingsError> {
    match bounds.as_str() {
        "learnt" => return Ok(Prices::Learnt),
        "typical" => return Ok(Prices::Typical),
        _ => {}
    }
    Known::parse(&bounds).map(Prices::Known).map_err(|problem| {
        let given = Parameter::Text(bounds);
        let allowed = "\"learnt\", \"typical\" or l1 = …, l2 = …, u1 = { … }, u2 = { … }";
        SettingsError::new("parameters.bounds", format!("{given} must be {allowed}: {problem}"))
    })
}
