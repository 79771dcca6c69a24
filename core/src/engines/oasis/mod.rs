//! OASiS: on arrival, a job is admitted or rejected by prices, and its whole schedule is booked.
//!
//! Bao, Peng, Wu and Li, *Online Job Scheduling in Distributed Machine Learning Clusters*, INFOCOM'18. It maximises Σ
//! f_i(t̂_i − a_i), the utility of the admitted jobs by their completion times. Time is divided into slots. A job's
//! payoff is the utility of its best schedule (workers and parameter servers on each server in each slot, Alg. 2), less
//! the cost of these resources at current prices. A job with a positive payoff is admitted and booked, and prices rise
//! (Alg. 1). A unit of a resource costs L·(U/L)^(booked/capacity): low enough for any job at first, and too expensive
//! for every job when nothing is left (§IV-B).
//!
//! Deviations from the paper, for open points and for real clusters:
//! * Demands are divided by the cluster's total of a resource before they are summed over resources.
//! * A job that ends in its arrival slot earns f(0). For U and L, no job is worth less than κ·f(0). Otherwise L, and
//!   with it all prices, would be zero with time-critical jobs.
//! * U and L come from the last arrivals, including the current one (`bounds = "learnt"`), or from a known workload
//!   ([`known_bounds`]). U is at least e·L.
//! * The paper's L multiplies two minima over all jobs, so that one tiny or nearly worthless job makes an idle resource
//!   free for all, and prices choose between jobs only where a server is more than half booked. With
//!   `bounds = "typical"` L is at least the price that clears the market of the last arrivals (`Bounds::cleared`).
//!   Where they all fit, that is the paper's L. Jobs that no server could hold are among the arrivals, too. The paper's
//!   competitive bound needs an L that turns no job away from an idle cluster, and doesn't hold for this one.
//! * T is a rolling horizon (`timespan = "fixed"` counts T slots from time zero, as the paper does).
//! * A job that arrives within a slot may use the rest of it, or the whole slot if it is at most `drift` late. At a
//!   slot's start this changes nothing.
//! * Among equal payoffs the earliest end wins, then the least work in the last slot.
//! * A server that hosts both roles has one price for both, from the smaller L to the larger U, and the choice of the
//!   cheapest servers is a good heuristic instead of an optimum. Label servers `hosts = "workers"` and `"servers"` as
//!   in the paper.
//! * A job without a utility is worth `default_value` whenever it ends.
//! * A job that couldn't run here even alone is neither admitted nor rejected. It waits for servers or limits to
//!   change.
//! * If a slot could hold more than 2¹⁸ chunks, or a search would take more than 4 million steps, work is counted in
//!   grains of several chunks. By how much the payoffs of the best schedules may exceed those found by such a coarse
//!   search is in the engine's readings and in the reasons of rejected jobs.
//!
//! **Execution.** Each slot deploys its bookings. Progress is the last report, plus the training of the observed
//! workers since then, because reports may be slots apart. Future bookings are released if a job's progress deviates
//! from its schedule by more than `drift`, if a booked server loses room, or if a slot couldn't run. Then the remaining
//! work is scheduled again at current prices with the job's own utility. The job stays admitted: without a positive
//! payoff it takes the earliest end, and the cheapest schedule for it. The paper's competitive bound doesn't cover
//! this.
//!
//! Choose it if jobs state their utility and their work ([`Utility`], [`Dataset`](crate::job::Dataset)), if refusing a
//! job is better than delaying all, and if asynchronous training lets the number of workers change without cost. Cost
//! of an arrival, for T slots, S servers, R resources and N chunks: O(T·(S·R + S log S + N)) for prices and curves of
//! slots with different bookings, plus the search ([`best`]), which is about the same again and doesn't grow with E·N.
//! The paper's algorithm costs T·E·N·(S + E·N). Slots with equal bookings share a curve.

mod bookings;
mod curve;
mod deploy;
mod knapsack;
mod market;
mod offers;
mod parameters;
mod pass;
mod prices;
mod reach;
mod round;
mod search;
#[cfg(test)]
mod tests;

pub use self::{
    bookings::Memo,
    curve::{Choice, Curve},
    parameters::Oasis,
    prices::known_bounds,
    search::{Problem, Schedule, best, earliest},
};
use self::{
    market::Market,
    parameters::Prices,
    prices::{Bounds, Sample, Totals},
};
use crate::engine::{Budget, Engine, EngineError, Round, Triggers};
use crate::{
    ids::ResourceId,
    job::{Job, JobSpec, Training, TrainingError, Utility},
    shape::Role,
    state::State,
    time::{Span, Time},
};

impl Engine for Oasis {
    type Memo = Memo;
    const MEMO_VERSION: u32 = 2;
    type Index = ();

    fn triggers(&self) -> Triggers {
        // A job's end frees no bookings of others, but a new server may have room for waiting jobs.
        Triggers { interval: None, arrival: true, departure: true }
    }

    fn accepts(&self, spec: &JobSpec) -> Result<(), String> {
        match Training::new(spec, None) {
            // A fit may still determine it.
            Err(TrainingError::NoBatchTime) => Ok(()),
            training => {
                training.and_then(|training| training.check(self.slots.length)).map_err(|error| error.to_string())
            }
        }
    }

    fn decide(&self, round: &mut Round<'_>, memo: &mut Memo) -> Result<(), EngineError> {
        let mut slot = round::Round::new(self, round.state, memo, round.budget);
        slot.close_slots();
        slot.give_back(round.changes)?;
        slot.plan()?;
        round.proposal = slot.deploy(round.board)?;
        round.proposal.wake_at = slot.wake_at();
        Ok(())
    }

    /// The price of one per cent of a resource's total in the current slot, as the mean over the servers that host a
    /// role. If searches were too long for single chunks: how many, and the utility that this may have cost.
    fn readings(&self, state: &State, memo: &Memo) -> Vec<(String, f64)> {
        let totals = Totals::of(state);
        let bounds = self.bounds(state, memo, None, &totals);
        let page = memo.booked.get(&self.slots.of(state.now));
        let mut readings = Vec::new();
        if memo.coarse.searches > 0 {
            readings.push(("searches in coarse grains".to_owned(), memo.coarse.searches as f64));
            readings.push(("payoff missed by coarse grains, at most".to_owned(), memo.coarse.missed));
        }
        for role in [Role::Worker, Role::Server] {
            for resource in (0..state.resources.count()).map(|at| ResourceId(at as u16)) {
                let prices = state.present_servers().filter(|server| server.hosts.takes(role)).filter_map(|server| {
                    let usable = server.usable();
                    (usable[resource] > 0).then(|| {
                        let taken = page.and_then(|page| page.get(&server.id)).map_or(0, |booked| booked[resource]);
                        bounds.price(server.hosts, role, resource, taken, usable[resource])
                    })
                });
                let (sum, count) = prices.fold((0.0, 0_u32), |(sum, count), price| (sum + price, count + 1));
                if sum > 0.0 {
                    readings.push((
                        format!("{} of {role}s", state.resources.name(resource)),
                        sum / f64::from(count) / 100.0,
                    ));
                }
            }
        }
        readings
    }
}

impl Oasis {
    /// The problem of an active job's arrival at current prices, for [`best`], and the parts in a unit of utility.
    /// `None` if the job can't be counted in slots.
    ///
    /// # Errors
    /// The budget is used up.
    pub fn problem(
        &self,
        state: &State,
        memo: &Memo,
        job: &Job,
        budget: &mut Budget,
    ) -> Result<Option<(Problem, f64)>, EngineError> {
        let training = Training::of(job).ok().filter(|training| training.check(self.slots.length).is_ok());
        let Some(training) = training else { return Ok(None) };
        let left = (training.work() - training.done(&job.learnt.progress)).max(1);
        let market = Market::new(self, state, memo, (job, &training), self.utility(state, job), left, budget)?;
        Ok(Some(market.into_problem()))
    }

    /// Number of slots from this one to the horizon, itself included.
    fn ahead(&self, slot: i64) -> u32 {
        if self.fixed {
            u32::try_from(i64::from(self.horizon) - slot).unwrap_or(0).min(self.horizon)
        } else {
            self.horizon
        }
    }

    /// Rest of the current slot. It is the whole slot while at most the tolerated drift has passed.
    fn rest(&self, now: Time) -> Span {
        let (left, length) = (self.slots.left(now), self.slots.length);
        if (length.0 - left.0) as f64 <= self.drift * length.0 as f64 { length } else { left }
    }

    /// A job's utility, limited by the site's cap.
    fn utility(&self, state: &State, job: &Job) -> Utility {
        state.utility(job).unwrap_or_else(|| Utility { value: self.default_value, ..prices::unnamed_worth() })
    }

    /// U and L: known, or learnt from the last arrivals and this one.
    fn bounds(&self, state: &State, memo: &Memo, own: Option<&Sample>, totals: &Totals) -> Bounds {
        let samples = memo.window.iter().map(|sample| &**sample).chain(own);
        let learnt = || Bounds::of(samples.clone(), totals, self.horizon.into());
        let bounds = match &self.prices {
            Prices::Known(known) => known.bounds(&state.resources),
            Prices::Learnt => learnt(),
            Prices::Typical => {
                let now = self.slots.of(state.now);
                let first = samples.clone().map(|sample| sample.arrived).min().unwrap_or(now);
                learnt().cleared(samples.clone(), totals, now - first + 1)
            }
        };
        bounds.scaled(self.price_scale)
    }

    /// The sample of a job that arrives in this slot, for learnt bounds.
    fn sample(&self, job: &Job, training: &Training, utility: &Utility, slot: i64) -> Option<Sample> {
        let of = (job.id, &job.worker, &job.server);
        Sample::new(of, training, utility, (slot, self.ahead(slot).into()), (self.slots.length, self.kappa))
    }
}
