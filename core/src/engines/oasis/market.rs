//! The cost curves of one job in all slots, at the prices of its arrival: COST_t of Alg. 2, for all amounts of work at
//! once.

use std::collections::{BTreeMap, VecDeque, btree_map::Entry};

use super::{
    bookings::{Memo, Planned},
    curve::{Choice, Curve},
    offers::{Offers, Page, Servers},
    parameters::{Oasis, WorkUnit},
    prices::{Tariff, Totals},
    search::{Problem, Schedule},
};
use crate::{
    engine::{Budget, EngineError, ledger::Owner},
    ids::ResourceId,
    job::{Job, Slots, Training, Utility},
    reason::{PricedOut, Worth},
    resources::{Amounts, CPU},
    server::Hosts,
    shape::{Role, Shape},
    state::{Account, State},
    time::{Span, Time},
};

/// Number of parts in the search's scale: the maximum worth of the job.
const PARTS: u64 = 1 << 40;
/// Maximum number of grains per slot. If a slot could hold more chunks, one grain is several chunks.
const MOST_GRAINS: u64 = 1 << 18;
/// Maximum cost of a schedule, so that sums fit.
const MOST_COST: u64 = 1 << 61;

/// A limited tenant or queue: its limit, and the bookings of its other jobs by slot.
struct Limited {
    limits: BTreeMap<ResourceId, i64>,
    booked: BTreeMap<i64, Amounts>,
}

/// One job at the current prices: its problem, and the data for its schedules.
pub(super) struct Market<'a> {
    state: &'a State,
    job: &'a Job,
    training: &'a Training,
    slots: Slots,
    first: i64,
    servers: Servers<'a>,
    /// Parts in one unit of utility.
    unit: f64,
    utility: Utility,
    shapes: Vec<Shape>,
    /// Work (in the engine's unit) per unit of the problem.
    grain: u64,
    /// Bookings of a slot with each curve.
    pages: Vec<Page>,
    pub(super) problem: Problem,
    /// If work is counted in coarser grains than before: a payoff that no schedule in the finer ones exceeds.
    pub(super) promised: Option<i64>,
}

impl<'a> Market<'a> {
    /// Prices by the learnt (or known) bounds and the current bookings. `left` chunks remain to be trained.
    pub(super) fn new(
        engine: &Oasis,
        state: &'a State,
        memo: &Memo,
        (job, training): (&'a Job, &'a Training),
        utility: Utility,
        left: u64,
        budget: &mut Budget,
    ) -> Result<Self, EngineError> {
        let slots = engine.slots;
        let first = slots.of(state.now);
        let count = engine.ahead(first);
        let totals = Totals::of(state);
        let own = engine.sample(job, training, &utility, first);
        budget.spend(memo.window.len() as u64 * 4)?;
        let bounds = engine.bounds(state, memo, own.as_ref(), &totals);
        let shapes: Vec<Shape> = training.shapes().collect();
        let most = shapes.last().copied().unwrap_or_default();
        // At least four times the job's worth for a single slot, which is never paid.
        let dearest = MOST_COST / (u64::from(most.workers + most.servers).max(1) * u64::from(count.max(1)));
        let worth = utility.at(Span::ZERO);
        let unit = PARTS.min(dearest / 4) as f64 / if worth > 0.0 { worth } else { 1.0 };
        let tariffs =
            [Role::Worker, Role::Server].map(|role| Tariff::new(&bounds, &totals, job, role, engine.own_demand));
        let mut market = Self {
            state,
            job,
            training,
            slots,
            first,
            servers: Servers::new(state, job, tariffs, (unit, dearest), most),
            unit,
            utility,
            shapes,
            grain: 1,
            pages: Vec::new(),
            problem: Problem::default(),
            promised: None,
        };
        market.fill(engine, memo, left, count, budget)?;
        Ok(market)
    }

    fn fill(
        &mut self,
        engine: &Oasis,
        memo: &Memo,
        left: u64,
        count: u32,
        budget: &mut Budget,
    ) -> Result<(), EngineError> {
        let length = self.slots.length;
        let needed = match engine.work_unit {
            WorkUnit::Chunk => left,
            WorkUnit::WorkerSlot => self.training.workers_for(left, length),
        };
        let done = |span: Span| -> Vec<u64> {
            let work = |shape: &Shape| match engine.work_unit {
                WorkUnit::Chunk => self.training.chunks_of(shape.workers.into(), span),
                WorkUnit::WorkerSlot => {
                    u64::try_from(u128::from(shape.workers) * span.0 as u128 / length.0 as u128).unwrap_or(0)
                }
            };
            self.shapes.iter().map(work).collect()
        };
        // The first slot may be partly over.
        let (mut rest, mut whole) = (done(engine.rest(self.state.now)), done(length));
        self.grain = whole.last().map_or(1, |most| (*most).min(needed)).div_ceil(MOST_GRAINS).max(1);
        rest.iter_mut().chain(&mut whole).for_each(|done| *done /= self.grain);
        self.problem.work = needed.div_ceil(self.grain);
        let a = self.slots.of(self.job.arrival);
        let limited = self.limits(memo);
        let empty = Page::new();
        // Slots with equal bookings share a curve: the last one with bookings, and all without.
        let mut shared: Vec<(Page, u32)> = Vec::new();
        for slot in self.first..self.first + i64::from(count) {
            let whole_slot = slot > self.first || rest == whole;
            let page = memo.booked.get(&slot).unwrap_or(&empty);
            let same = shared.iter().find(|(known, _)| whole_slot && limited.is_empty() && known == page);
            let curve = match same {
                Some((_, curve)) => *curve,
                None => {
                    let offers = self.servers.offers(page, budget)?;
                    let left: Vec<_> = limited.iter().map(|account| account.left(slot)).collect();
                    let curve = self.curve(&offers, if whole_slot { &whole } else { &rest }, &left, budget)?;
                    self.problem.curves.push(curve);
                    self.pages.push(page.clone());
                    let at = self.problem.curves.len() as u32 - 1;
                    if whole_slot {
                        shared.retain(|(known, _)| known.is_empty() != page.is_empty());
                        shared.push((page.clone(), at));
                    }
                    at
                }
            };
            self.problem.slots.push(curve);
            let worth = self.utility.at(Span((slot - a).saturating_mul(length.0)));
            let worth = libm::round(worth * self.unit) as i64;
            self.problem.worth.push(self.problem.worth.last().map_or(worth, |before| worth.min(*before)));
        }
        Ok(())
    }

    /// Counts work in grains that are larger by `times`, for a search that takes too long. Each choice does up to one
    /// grain less than it could.
    pub(super) fn coarsen(&mut self, times: u64) {
        self.grain *= times;
        self.problem.work = self.problem.work.div_ceil(times);
        for curve in &mut self.problem.curves {
            let coarser = |choice: &Choice| Choice { work: choice.work / times, ..*choice };
            *curve = Curve::new(curve.choices().iter().map(coarser).collect());
        }
    }

    /// This job's tenant and queue, if they are limited.
    fn limits(&self, memo: &Memo) -> Vec<Limited> {
        let limited = |(account, owner): (&Account, Owner)| {
            let mut booked: BTreeMap<i64, Amounts> = BTreeMap::new();
            for (id, admission) in &memo.admitted {
                if *id != self.job.id && self.state.job(*id).is_some_and(|job| owner.owns(job)) {
                    for planned in &admission.plan {
                        *booked.entry(planned.slot).or_default() += &admission.amounts(planned.shape());
                    }
                }
            }
            Limited { limits: account.limits.clone(), booked }
        };
        let (tenant, queue) = (self.job.tenant, self.job.queue);
        let accounts = [
            (&self.state.tenants[tenant.0 as usize], Owner::Tenant(tenant)),
            (&self.state.queues[queue.0 as usize], Owner::Queue(queue)),
        ];
        accounts.into_iter().filter(|(account, _)| !account.limits.is_empty()).map(limited).collect()
    }

    /// The choices of a slot: for each number of workers, the cheapest servers with room, and the same for their
    /// parameter servers. `work` is the work of each shape in the slot, `left` the remaining limits.
    fn curve(
        &self,
        offers: &Offers<'_>,
        work: &[u64],
        left: &[BTreeMap<ResourceId, i64>],
        budget: &mut Budget,
    ) -> Result<Curve, EngineError> {
        budget.spend(self.shapes.len() as u64)?;
        let most = self.shapes.last().copied().unwrap_or_default();
        let (workers, servers) = (offers.prices(Role::Worker, most.workers), offers.prices(Role::Server, most.servers));
        let mut choices: Vec<Choice> = Vec::with_capacity(self.shapes.len());
        for (shape, work) in self.shapes.iter().zip(work) {
            let within = |left: &BTreeMap<ResourceId, i64>| {
                let need = self.job.total(*shape);
                left.iter().all(|(resource, left)| need[*resource] <= 0 || need[*resource] <= *left)
            };
            let (w, p) = (shape.workers as usize, shape.servers as usize);
            if w >= workers.len() || p >= servers.len() || !left.iter().all(within) {
                break;
            }
            // The minimum number of workers for an amount of work, and none beyond the remaining work.
            let work = (*work).min(self.problem.work);
            if work == 0 || choices.last().is_some_and(|last| last.work >= work) {
                continue;
            }
            let cost = if self.servers.shared {
                budget.spend(offers.len() as u64)?;
                let Some((_, cost)) = self.servers.deploy(offers, *shape) else { continue };
                cost
            } else {
                workers[w] + servers[p]
            };
            choices.push(Choice { work, cost, workers: shape.workers });
        }
        Ok(Curve::new(choices))
    }

    /// Assigns a schedule to servers: the slots with work.
    pub(super) fn plan(&self, work: &[u64], budget: &mut Budget) -> Result<VecDeque<Planned>, EngineError> {
        let mut known: BTreeMap<u32, Offers<'_>> = BTreeMap::new();
        let mut plan = VecDeque::new();
        for (at, work) in work.iter().enumerate().filter(|(_, work)| **work > 0) {
            let curve = self.problem.slots[at];
            let offers = match known.entry(curve) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => new.insert(self.servers.offers(&self.pages[curve as usize], budget)?),
            };
            let choice = self.problem.curves[curve as usize].choice_for(*work).expect("a choice of this slot");
            let shape = self.training.shape(choice.workers).expect("a shape that was offered");
            let (counts, _) = self.servers.deploy(offers, shape).expect("an offer of this slot");
            plan.push_back(Planned { slot: self.first + at as i64, work: *work * self.grain, counts });
        }
        Ok(plan)
    }

    /// The problem, and the parts in one unit of utility.
    pub(super) fn into_problem(self) -> (Problem, f64) {
        (self.problem, self.unit)
    }

    /// The payoff, in units of utility, by which the best schedule may exceed the found one, if the search was coarse.
    /// A job without a schedule of positive payoff earns 0.
    pub(super) fn missed(&self, found: Option<&Schedule>) -> Option<f64> {
        let payoff = found.map_or(0, |schedule| schedule.payoff).max(0);
        self.promised.map(|promised| promised.saturating_sub(payoff).max(0) as f64 / self.unit)
    }

    /// End of a slot.
    pub(super) fn end_of(&self, at: usize) -> Time {
        self.slots.start(self.first + at as i64 + 1)
    }

    /// Converts a cost or payoff of the search to utility.
    pub(super) fn worth(&self, parts: i64) -> Worth {
        Worth::of(parts as f64 / self.unit)
    }

    /// Total work for which there is room until the horizon.
    pub(super) fn room(&self) -> u64 {
        let most = |curve: &u32| self.problem.curves[*curve as usize].most().saturating_mul(self.grain);
        self.problem.slots.iter().map(most).fold(0, u64::saturating_add)
    }

    /// The most expensive resource of the best schedule, for a job whose schedules cost more than they are worth.
    pub(super) fn priced_out(
        &self,
        schedule: &Schedule,
        retry_at: Option<Time>,
        budget: &mut Budget,
    ) -> Result<PricedOut, EngineError> {
        let mut sums: BTreeMap<(Role, ResourceId), f64> = BTreeMap::new();
        let mut slots = [0_u64; 2];
        for planned in self.plan(&schedule.work, budget)? {
            let curve = self.problem.slots[(planned.slot - self.first) as usize];
            let page = &self.pages[curve as usize];
            for (id, shape) in &planned.counts {
                let server = self.state.server(*id);
                for role in [Role::Worker, Role::Server] {
                    let count = shape.count(role);
                    slots[role as usize] += u64::from(count);
                    let tariff = self.servers.tariff(role);
                    for (resource, price) in tariff.parts(server.hosts, &server.usable(), page.get(id)) {
                        *sums.entry((role, resource)).or_default() += price * f64::from(count);
                    }
                }
            }
        }
        let most = sums.iter().max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(a.0)));
        let (&(role, resource), sum) = most.unwrap_or((&(Role::Worker, CPU), &0.0));
        let hosts = match role {
            _ if self.servers.shared => Hosts::Both,
            Role::Worker => Hosts::Workers,
            Role::Server => Hosts::Servers,
        };
        let nothing = Amounts::default();
        let idle = self.servers.tariff(role).parts(hosts, &nothing, None);
        Ok(PricedOut {
            payoff: self.worth(schedule.payoff),
            utility: self.worth(self.problem.worth[schedule.end]),
            cost: self.worth(i64::try_from(schedule.cost).unwrap_or(i64::MAX)),
            end: self.end_of(schedule.end),
            role,
            resource,
            amount: self.job.demand(role).amounts[resource],
            price: Worth::of(sum / slots[role as usize].max(1) as f64),
            idle: Worth::of(idle.filter(|(other, _)| *other == resource).map(|(_, price)| price).fold(0.0, f64::max)),
            missed: Worth::of(self.missed(Some(schedule)).unwrap_or(0.0)),
            retry_at,
        })
    }
}

impl Limited {
    /// The remaining limits in a slot.
    fn left(&self, slot: i64) -> BTreeMap<ResourceId, i64> {
        let mut left = self.limits.clone();
        if let Some(booked) = self.booked.get(&slot) {
            left.iter_mut().for_each(|(resource, left)| *left -= booked[*resource]);
        }
        left
    }
}
