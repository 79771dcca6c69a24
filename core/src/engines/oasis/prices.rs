//! Prices of resources (§IV-B). They are low while little is booked, and grow exponentially with the bookings.

use imbl::Vector;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, sync::Arc};

use crate::{
    ids::{JobId, ResourceId},
    job::{Demand, Job, JobSpec, Training, Utility, UtilityKind},
    resources::{Amounts, ResourceTypes},
    server::{Hosts, ServerSpec},
    shape::Role,
    state::State,
    text::{LONGEST, TextError, read_toml},
    time::{Span, Time},
};

/// One known job, as input of the bounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Sample {
    pub(super) job: JobId,
    /// f of its shortest run.
    best: f64,
    /// f of an end at the horizon, at least κ·f(0).
    last: f64,
    /// ⌈E·N·m⌉ in worker-slots.
    work: u64,
    /// The same of its parameter servers, with N workers.
    server_work: u64,
    /// The slot of its arrival.
    pub(super) arrived: i64,
    /// Number of slots from then on in which an end is worth at least half of its best one.
    patience: u64,
    worker: Amounts,
    server: Amounts,
}

impl Sample {
    /// A sample from a job's utility and work. It `arrived` in a slot, and `slots` is the number of slots from then to
    /// the horizon. `None` if its utility is 0.
    pub(super) fn new(
        (id, worker, server): (JobId, &Demand, &Demand),
        training: &Training,
        utility: &Utility,
        (arrived, slots): (i64, u64),
        (slot, kappa): (Span, f64),
    ) -> Option<Self> {
        let after = |slots: u64| utility.at(Span(slot.0.saturating_mul(i64::try_from(slots).unwrap_or(i64::MAX))));
        let at_once = after(0);
        // A job that ends in the slot it arrives in earns f(0).
        let best = after(training.shortest(slot).max(1) - 1).max(kappa * at_once);
        let work = training.workers_for(training.work(), slot).max(1);
        let most = training.shapes().last().unwrap_or_default();
        // Utility never rises with time.
        let (mut patience, mut too_late) = (0, slots);
        while patience < too_late {
            let middle = patience + (too_late - patience) / 2;
            if after(middle) < best / 2.0 { too_late = middle } else { patience = middle + 1 }
        }
        (at_once > 0.0).then(|| Self {
            job: id,
            best,
            last: after(slots.max(1) - 1).max(kappa * at_once),
            work,
            server_work: work.saturating_mul(most.servers.into()).div_ceil(u64::from(most.workers).max(1)),
            arrived,
            patience,
            worker: worker.amounts.clone(),
            server: server.amounts.clone(),
        })
    }

    /// The use of each resource by all of its work: 1 is the resource's total for a slot.
    fn units<'a>(&'a self, totals: &'a Totals) -> impl Iterator<Item = ((Role, ResourceId), f64)> + 'a {
        [(Role::Worker, self.work), (Role::Server, self.server_work)].into_iter().flat_map(move |(role, work)| {
            let shares = totals.shares(role, self.demand(role));
            shares.map(move |(resource, share)| ((role, resource), work as f64 * share))
        })
    }

    fn demand(&self, role: Role) -> &Amounts {
        match role {
            Role::Worker => &self.worker,
            Role::Server => &self.server,
        }
    }
}

/// Total amounts of each resource on servers that host a role. Demands are divided by them, so that a Σ over resource
/// types adds comparable terms.
#[derive(Clone, Debug, Default)]
pub(super) struct Totals([Amounts; 2]);

impl Totals {
    pub(super) fn of(state: &State) -> Self {
        let mut totals = Self::default();
        for server in state.present_servers() {
            for role in [Role::Worker, Role::Server].into_iter().filter(|role| server.hosts.takes(*role)) {
                totals.0[role as usize] += &server.capacity;
            }
        }
        totals
    }

    /// w̃: fractions of the totals. Resources that no server has are skipped.
    pub(super) fn shares<'a>(
        &'a self,
        role: Role,
        demand: &'a Amounts,
    ) -> impl Iterator<Item = (ResourceId, f64)> + 'a {
        let total = &self.0[role as usize];
        demand
            .iter()
            .filter(|(resource, need)| *need > 0 && total[*resource] > 0)
            .map(|(resource, need)| (resource, need as f64 / total[resource] as f64))
    }

    /// R.
    fn resources(&self, role: Role) -> usize {
        self.0[role as usize].iter().filter(|(_, total)| *total > 0).count()
    }
}

/// L1, L2 and, by resource, U1 and U2 (Eq. 23–26).
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Bounds {
    pub(super) low: [f64; 2],
    high: [Vec<f64>; 2],
}

impl Bounds {
    /// Bounds from known jobs over T slots.
    pub(super) fn of<'a>(samples: impl Iterator<Item = &'a Sample> + Clone, totals: &Totals, slots: u64) -> Self {
        let mut bounds = Self { low: [0.0; 2], high: [Vec::new(), Vec::new()] };
        for role in [Role::Worker, Role::Server] {
            // 1/η and the smallest worth of a unit, both over jobs with this role.
            let (mut scale, mut unit) = (f64::INFINITY, f64::INFINITY);
            for sample in samples.clone() {
                let share: f64 = totals.shares(role, sample.demand(role)).fold(0.0, |sum, (_, share)| sum + share);
                if share <= 0.0 {
                    continue;
                }
                let used = sample.work as f64 * share;
                scale = scale.min(used / (slots.max(1) as f64 * totals.resources(role) as f64));
                unit = unit.min(sample.last / used);
                for (resource, share) in totals.shares(role, sample.demand(role)) {
                    let high = &mut bounds.high[role as usize];
                    if high.len() <= resource.index() {
                        high.resize(resource.index() + 1, 0.0);
                    }
                    high[resource.index()] = high[resource.index()].max(sample.best / share);
                }
            }
            if scale.is_finite() {
                bounds.low[role as usize] = scale * unit / 4.0;
            }
        }
        bounds
    }

    /// The same with L at least the price that clears the market: the worth per unit of the first of the `samples`, by
    /// descending worth per unit, for which no room is left. The last arrivals had the room of `seen` slots, and of as
    /// many more as they can wait on average. A unit is all of one resource for a slot. The arrivals of a cluster that
    /// has room for all of them leave L as it is. O(n log n) for n samples.
    pub(super) fn cleared<'a>(
        mut self,
        samples: impl Iterator<Item = &'a Sample> + Clone,
        totals: &Totals,
        seen: i64,
    ) -> Self {
        let count = samples.clone().count().max(1);
        let patience: f64 = samples.clone().map(|sample| sample.patience as f64).sum();
        let slots = seen as f64 + patience / count as f64;
        let all = |sample: &Sample| sample.units(totals).fold(0.0, |sum, (_, units)| sum + units);
        let asks = samples.map(|sample| (sample.best / all(sample), sample));
        let mut asks: Vec<(f64, &Sample)> = asks.filter(|(worth, _)| worth.is_finite()).collect();
        asks.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut taken: BTreeMap<(Role, ResourceId), f64> = BTreeMap::new();
        let full = asks.into_iter().find(|(_, sample)| {
            sample.units(totals).fold(false, |full, (of, units)| {
                let sum = taken.entry(of).or_default();
                *sum += units;
                full || *sum > slots
            })
        });
        if let Some((price, _)) = full {
            self.low = self.low.map(|low| low.max(price));
        }
        self
    }

    /// U/L times a factor, with U at least e·L.
    pub(super) fn scaled(mut self, factor: f64) -> Self {
        for (low, high) in self.low.iter().zip(&mut self.high) {
            for high in high {
                *high = (*high * factor).max(std::f64::consts::E * low);
            }
        }
        self
    }

    /// (L, ln U/L) of a resource on a server that hosts these roles, for a slot of `role`. If the server hosts both
    /// roles, they have one price, from the smaller L to the larger U.
    pub(super) fn of_server(&self, hosts: Hosts, role: Role, resource: ResourceId) -> (f64, f64) {
        let high = |role: Role| self.high[role as usize].get(resource.index()).copied().unwrap_or(0.0);
        let (mut low, mut most) = (self.low[role as usize], high(role));
        if hosts == Hosts::Both {
            let both = [self.low[0], self.low[1]].into_iter().filter(|low| *low > 0.0);
            low = both.fold(f64::INFINITY, f64::min);
            most = high(Role::Worker).max(high(Role::Server));
        }
        if !(low > 0.0 && low.is_finite()) {
            return (0.0, 0.0);
        }
        (low, libm::log(most / low).max(1.0))
    }

    /// P^r(g): the price of the resource's whole total, at the rate of a server with `taken` of `has` booked.
    pub(super) fn price(&self, hosts: Hosts, role: Role, resource: ResourceId, taken: i64, has: i64) -> f64 {
        let (low, rise) = self.of_server(hosts, role, resource);
        raised(low, rise, taken, has)
    }

    /// The text of the engine's parameter `bounds`.
    fn text(&self, types: &ResourceTypes) -> String {
        let table = |high: &[f64]| {
            let known = high.iter().enumerate().filter(|(_, high)| **high > 0.0);
            let pairs = known.map(|(at, high)| format!("{:?} = {high:e}", types.name(ResourceId(at as u16))));
            pairs.collect::<Vec<_>>().join(", ")
        };
        let [low1, low2] = self.low;
        format!(
            "l1 = {low1:e}, l2 = {low2:e}, u1 = {{ {} }}, u2 = {{ {} }}",
            table(&self.high[0]),
            table(&self.high[1])
        )
    }
}

/// Bounds from the settings, by resource name.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Known {
    l1: f64,
    l2: f64,
    u1: BTreeMap<String, f64>,
    u2: BTreeMap<String, f64>,
}

impl Known {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let brief = |error: TextError| error.brief().replacen("bounds.", "", 1);
        let table: BTreeMap<String, Self> = read_toml(&format!("bounds = {{ {text} }}"), LONGEST).map_err(brief)?;
        let known = table.into_values().next().ok_or("it is empty")?;
        let good = |value: &f64| value.is_finite() && *value >= 0.0;
        let all = [known.l1, known.l2];
        if all.iter().chain(known.u1.values()).chain(known.u2.values()).all(good) {
            Ok(known)
        } else {
            Err("all of them must be finite and at least 0".into())
        }
    }

    pub(super) fn bounds(&self, types: &ResourceTypes) -> Bounds {
        let high = |table: &BTreeMap<String, f64>| {
            let mut high = vec![0.0; types.count()];
            for (resource, value) in table.iter().filter_map(|(name, value)| Some((types.id(name)?, value))) {
                high[resource.index()] = *value;
            }
            high
        };
        Bounds { low: [self.l1, self.l2], high: [high(&self.u1), high(&self.u2)] }
    }
}

/// The bounds of a whole workload, as a text for the engine's parameter `bounds`, for experiments with a known
/// workload. `jobs` come with their arrivals; `slots` count from time zero. Jobs that the engine would refuse are
/// ignored.
///
/// # Errors
/// An invalid server.
pub fn known_bounds(
    jobs: &[(Time, JobSpec)],
    servers: &[ServerSpec],
    (slot, slots): (Span, u64),
    kappa: f64,
) -> Result<String, crate::event::EventError> {
    let mut state = State::default();
    for server in servers {
        let event = crate::event::Event::ServerSet { manager: "known".into(), server: server.clone() };
        state.apply(Time(0), &event)?;
    }
    let mut types = (*state.resources).clone();
    let mut samples = Vector::new();
    for (at, (arrival, spec)) in jobs.iter().enumerate() {
        let Ok(training) = Training::new(spec, None) else { continue };
        let worker = Demand::new(&spec.worker.demand, &mut types);
        let server = spec.server.as_ref().map(|role| Demand::new(&role.demand, &mut types)).unwrap_or_default();
        let utility = spec.utility.clone().unwrap_or_else(unnamed_worth);
        let passed = u64::try_from(arrival.0.div_euclid(slot.0)).unwrap_or(0);
        let of = (JobId(at as u64), &worker, &server);
        let of_time = (passed as i64, slots.saturating_sub(passed));
        samples.extend(Sample::new(of, &training, &utility, of_time, (slot, kappa)).map(Arc::new));
    }
    let totals = Totals::of(&state);
    Ok(Bounds::of(samples.iter().map(|sample| &**sample), &totals, slots).text(&types))
}

/// Price of one slot of a role on a server, by the bookings there: Σ_r P^r(g)·w̃^r.
pub(super) struct Tariff {
    /// Parts by the roles that a server hosts.
    parts: [Vec<Part>; 3],
}

/// Contribution of one resource to a tariff.
struct Part {
    resource: ResourceId,
    /// w̃·L.
    low: f64,
    /// ln U/L.
    rise: f64,
    /// Amount that counts as booked in addition.
    own: i64,
}

impl Tariff {
    /// `counts_own`: the priced slot counts as booked.
    pub(super) fn new(bounds: &Bounds, totals: &Totals, job: &Job, role: Role, counts_own: bool) -> Self {
        let demand = &job.demand(role).amounts;
        let of = |hosts: Hosts| {
            totals
                .shares(role, demand)
                .map(|(resource, share)| {
                    let (low, rise) = bounds.of_server(hosts, role, resource);
                    let own = if counts_own { demand[resource] } else { 0 };
                    Part { resource, low: share * low, rise, own }
                })
                .collect()
        };
        Self { parts: [of(Hosts::Both), of(Hosts::Workers), of(Hosts::Servers)] }
    }

    /// The price per resource on a server with this capacity and these bookings.
    pub(super) fn parts<'a>(
        &'a self,
        hosts: Hosts,
        capacity: &'a Amounts,
        booked: Option<&'a Amounts>,
    ) -> impl Iterator<Item = (ResourceId, f64)> + 'a {
        self.parts[hosts as usize].iter().map(move |&Part { resource, low, rise, own }| {
            let taken = booked.map_or(0, |booked| booked[resource]) + own;
            (resource, raised(low, rise, taken, capacity[resource]))
        })
    }

    /// The sum of the parts.
    pub(super) fn price(&self, hosts: Hosts, capacity: &Amounts, booked: Option<&Amounts>) -> f64 {
        self.parts(hosts, capacity, booked).fold(0.0, |sum, (_, price)| sum + price)
    }
}

/// L·(U/L)^(g/C) (Eq. 21 and 22), with rise = ln U/L.
fn raised(low: f64, rise: f64, taken: i64, has: i64) -> f64 {
    if taken <= 0 || has <= 0 { low } else { low * libm::exp(rise * (taken as f64 / has as f64).min(1.0)) }
}
/// The utility of a job without its own.
pub(super) fn unnamed_worth() -> Utility {
    Utility::new(UtilityKind::Constant)
}
