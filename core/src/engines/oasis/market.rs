//! What one job is offered in every slot, at the prices of its arrival: COST_t of Alg. 2, for all amounts of work at once.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use imbl::OrdMap;

use super::{
    Oasis, WorkUnit,
    bookings::{Memo, Planned},
    curve::{Choice, Curve},
    prices::{Bounds, Sample, Tariff, Totals},
    search::{Problem, Schedule},
};
use crate::{
    decision::{Role, Shape},
    engines::{Budget, EngineError, ledger::Owner},
    ids::{ResourceId, ServerId},
    job::{Demand, Job, Slots, Training, Utility},
    reason::{PricedOut, Worth},
    resources::{Amounts, CPU, GPU},
    server::{Hosts, Server},
    state::{Account, State},
    time::{Span, Time},
};

/// So many parts is the scale that a search counts in: the most that the job can be worth.
const PARTS: u64 = 1 << 40;
/// Where a slot could hold more chunks than this, they are counted in grains of several.
const MOST_GRAINS: u64 = 1 << 18;
/// No schedule may cost more than this, so that sums fit.
const MOST_COST: u64 = 1 << 61;

/// Room for slots of one role on a server, and their price.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Offer {
    price: u64,
    server: ServerId,
    room: u32,
}

/// What servers offer in a slot: cheapest first.
#[derive(Clone, Debug, Default)]
struct Offers {
    workers: Vec<Offer>,
    servers: Vec<Offer>,
    /// What is free on servers that offer both.
    free: BTreeMap<ServerId, Amounts>,
}

/// A limited tenant or queue: what it may be given, and what its other jobs have booked by slot.
struct Limited {
    limits: BTreeMap<ResourceId, i64>,
    booked: BTreeMap<i64, Amounts>,
}

/// One job before the market: its problem, and what its schedules are made of.
pub(super) struct Market<'a> {
    state: &'a State,
    job: &'a Job,
    training: &'a Training,
    slots: Slots,
    first: i64,
    /// Servers that would take it, and what of them isn't used by others than us.
    open: Vec<(&'a Arc<Server>, Amounts)>,
    /// Workers and parameter servers compete for the same servers; the cheapest choice of both is then a guess.
    shared: bool,
    tariffs: [Tariff; 2],
    /// Parts of utility in a unit of it.
    unit: f64,
    /// In parts. Four times the job's worth for a single slot at least, which nobody pays.
    dearest: u64,
    utility: Utility,
    shapes: Vec<Shape>,
    /// Work (of the engine's unit) in a unit of the problem.
    grain: u64,
    /// By curve.
    offers: Vec<Offers>,
    pub(super) problem: Problem,
}

/// A slot's bookings; none is an empty page.
type Page = OrdMap<ServerId, Amounts>;

impl<'a> Market<'a> {
    /// Prices by the learnt (or known) bounds and today's bookings; `left` chunks are to be trained.
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
        let bounds = match &engine.known {
            Some(known) => known.bounds(&state.resources),
            None => {
                let own = engine.sample(job, training, &utility, first).map(Arc::new);
                let samples = memo.window.iter().chain(&own);
                budget.spend(memo.window.len() as u64 * 4)?;
                Bounds::of(samples.map(|sample: &Arc<Sample>| &**sample), &totals, engine.horizon.into())
            }
        };
        let bounds = bounds.scaled(engine.price_scale);
        let shapes: Vec<Shape> = training.shapes().collect();
        let most = shapes.last().map_or(1, |shape| u64::from(shape.workers + shape.servers).max(1));
        let dearest = MOST_COST / (most * u64::from(count.max(1)));
        let worth = utility.at(Span::ZERO);
        let unit = PARTS.min(dearest / 4) as f64 / if worth > 0.0 { worth } else { 1.0 };
        let open: Vec<_> = state
            .present_servers()
            .filter(|server| server.accepts(&job.spec.labels))
            .map(|server| (server, server.usable()))
            .collect();
        let shared = job.spec.server.is_some() && open.iter().any(|(server, _)| server.hosts == Hosts::Both);
        let mut market = Self {
            shared,
            state,
            job,
            training,
            slots,
            first,
            open,
            tariffs: [Role::Worker, Role::Server].map(|role| Tariff::new(&bounds, &totals, job, role)),
            unit,
            dearest,
            utility,
            shapes,
            grain: 1,
            offers: Vec::new(),
            problem: Problem::default(),
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
        // The slot that it arrives in may be partly over.
        let (mut rest, mut whole) = (done(engine.rest(self.state.now)), done(length));
        self.grain = whole.last().map_or(1, |most| (*most).min(needed)).div_ceil(MOST_GRAINS).max(1);
        rest.iter_mut().chain(&mut whole).for_each(|done| *done /= self.grain);
        self.problem.work = needed.div_ceil(self.grain);
        let a = self.slots.of(self.job.arrival);
        let limited = self.limits(memo);
        let empty = Page::new();
        // Slots of the same bookings share a curve: the last one with any, and all without.
        let mut shared: Vec<(Page, u32)> = Vec::new();
        for slot in self.first..self.first + i64::from(count) {
            let whole_slot = slot > self.first || rest == whole;
            let page = memo.booked.get(&slot).unwrap_or(&empty);
            let same = shared.iter().find(|(known, _)| whole_slot && limited.is_empty() && known == page);
            let curve = match same {
                Some((_, curve)) => *curve,
                None => {
                    let offers = self.offer(page, budget)?;
                    let left: Vec<_> = limited.iter().map(|account| account.left(slot)).collect();
                    let curve = self.curve(&offers, if whole_slot { &whole } else { &rest }, &left, budget)?;
                    self.problem.curves.push(curve);
                    self.offers.push(offers);
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

    /// Room and prices of a slot.
    fn offer(&self, page: &Page, budget: &mut Budget) -> Result<Offers, EngineError> {
        budget.spend(8 * self.open.len() as u64)?;
        let mut offers = Offers::default();
        let mut booked = page.iter().peekable();
        for (server, usable) in &self.open {
            while booked.next_if(|(id, _)| **id < server.id).is_some() {}
            let here = booked.peek().filter(|(id, _)| **id == server.id).map(|(_, amounts)| *amounts);
            let mut free = usable.clone();
            if let Some(booked) = here {
                free -= booked;
            }
            for (role, list) in [(Role::Worker, &mut offers.workers), (Role::Server, &mut offers.servers)] {
                let room = if server.hosts.takes(role) { room(server, self.job.demand(role), &free) } else { 0 };
                if room > 0 {
                    let price = self.tariffs[role as usize].price(server.hosts, usable, here);
                    let price = (libm::round(price * self.unit).max(0.0) as u64).min(self.dearest);
                    list.push(Offer { price, server: server.id, room });
                }
            }
            if self.shared && server.hosts == Hosts::Both {
                offers.free.insert(server.id, free);
            }
        }
        offers.workers.sort_unstable();
        offers.servers.sort_unstable();
        Ok(offers)
    }

    /// The choices of a slot: for every number of workers the cheapest servers with room, and so for their parameter
    /// servers. `work` is what each shape does in it, `left` what accounts may still be given.
    fn curve(
        &self,
        offers: &Offers,
        work: &[u64],
        left: &[BTreeMap<ResourceId, i64>],
        budget: &mut Budget,
    ) -> Result<Curve, EngineError> {
        budget.spend(self.shapes.len() as u64)?;
        let most = self.shapes.last().copied().unwrap_or_default();
        let (workers, servers) = (prices(&offers.workers, most.workers), prices(&offers.servers, most.servers));
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
            // The fewest workers for an amount of work, and none beyond what is left to do.
            let work = (*work).min(self.problem.work);
            if work == 0 || choices.last().is_some_and(|last| last.work >= work) {
                continue;
            }
            let cost = if self.shared {
                budget.spend((offers.workers.len() + offers.servers.len()) as u64)?;
                let Some((_, cost)) = self.deploy(offers, *shape) else { continue };
                cost
            } else {
                workers[w] + servers[p]
            };
            choices.push(Choice { work, cost, workers: shape.workers });
        }
        Ok(Curve::new(choices))
    }

    /// Workers on the cheapest servers, then parameter servers on the cheapest with room beside them: where, and at what
    /// cost.
    fn deploy(&self, offers: &Offers, shape: Shape) -> Option<(Vec<(ServerId, Shape)>, u64)> {
        let mut counts: BTreeMap<ServerId, Shape> = BTreeMap::new();
        let mut cost = 0;
        let mut left = shape.workers;
        for offer in &offers.workers {
            let taken = offer.room.min(left);
            if taken == 0 {
                break;
            }
            counts.entry(offer.server).or_default().workers = taken;
            cost += offer.price * u64::from(taken);
            left -= taken;
        }
        let mut missing = shape.servers;
        for offer in &offers.servers {
            if missing == 0 {
                break;
            }
            let beside = counts.get(&offer.server).map_or(0, |count| count.workers);
            let taken = self.room_beside(offer, offers, beside).min(missing);
            if taken > 0 {
                counts.entry(offer.server).or_default().servers = taken;
                cost += offer.price * u64::from(taken);
                missing -= taken;
            }
        }
        (left == 0 && missing == 0).then(|| (counts.into_iter().collect(), cost))
    }

    /// How many parameter servers still fit beside some workers of this job.
    fn room_beside(&self, offer: &Offer, offers: &Offers, workers: u32) -> u32 {
        if workers == 0 {
            return offer.room;
        }
        if !self.state.settings.shape.colocate {
            return 0;
        }
        let Some(mut free) = offers.free.get(&offer.server).cloned() else { return 0 };
        free.add_times(&self.job.worker.amounts, -i64::from(workers));
        room(self.state.server(offer.server), &self.job.server, &free)
    }

    /// A schedule as servers have it: the slots in which it does something.
    pub(super) fn plan(&self, work: &[u64]) -> VecDeque<Planned> {
        let busy = work.iter().enumerate().filter(|(_, work)| **work > 0);
        let planned = busy.map(|(at, work)| {
            let curve = self.problem.slots[at] as usize;
            let choice = self.problem.curves[curve].choice_for(*work).expect("a choice of this slot");
            let shape = self.training.shape(choice.workers).expect("a shape that was offered");
            let (counts, _) = self.deploy(&self.offers[curve], shape).expect("an offer of this slot");
            Planned { slot: self.first + at as i64, work: *work * self.grain, counts }
        });
        planned.collect()
    }

    /// The problem, and the parts of a unit of utility.
    pub(super) fn into_problem(self) -> (Problem, f64) {
        (self.problem, self.unit)
    }

    /// When a slot ends.
    pub(super) fn end_of(&self, at: usize) -> Time {
        self.slots.start(self.first + at as i64 + 1)
    }

    /// A cost or payoff of the search, as utility.
    pub(super) fn worth(&self, parts: i64) -> Worth {
        Worth::of(parts as f64 / self.unit)
    }

    /// All work that there is room for until the horizon.
    pub(super) fn room(&self) -> u64 {
        let most = |curve: &u32| self.problem.curves[*curve as usize].most().saturating_mul(self.grain);
        self.problem.slots.iter().map(most).fold(0, u64::saturating_add)
    }

    /// What a schedule that isn't worth its cost pays most for.
    pub(super) fn priced_out(&self, memo: &Memo, schedule: &Schedule, retry_at: Option<Time>) -> PricedOut {
        let mut sums: BTreeMap<(Role, ResourceId), f64> = BTreeMap::new();
        let mut slots = [0_u64; 2];
        for planned in self.plan(&schedule.work) {
            let page = memo.booked.get(&planned.slot);
            for (id, shape) in &planned.counts {
                let server = self.state.server(*id);
                for role in [Role::Worker, Role::Server] {
                    let count = shape.count(role);
                    slots[role as usize] += u64::from(count);
                    let booked = page.and_then(|page| page.get(id));
                    for (resource, price) in self.tariffs[role as usize].parts(server.hosts, &server.usable(), booked) {
                        *sums.entry((role, resource)).or_default() += price * f64::from(count);
                    }
                }
            }
        }
        let most = sums.iter().max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(a.0)));
        let (&(role, resource), sum) = most.unwrap_or((&(Role::Worker, CPU), &0.0));
        let hosts = match role {
            _ if self.shared => Hosts::Both,
            Role::Worker => Hosts::Workers,
            Role::Server => Hosts::Servers,
        };
        let nothing = Amounts::default();
        let idle = self.tariffs[role as usize].parts(hosts, &nothing, None);
        PricedOut {
            payoff: self.worth(schedule.payoff),
            utility: self.worth(self.problem.worth[schedule.end]),
            cost: self.worth(i64::try_from(schedule.cost).unwrap_or(i64::MAX)),
            end: self.end_of(schedule.end),
            role,
            resource,
            amount: self.job.demand(role).amounts[resource],
            price: Worth::of(sum / slots[role as usize].max(1) as f64),
            idle: Worth::of(idle.filter(|(other, _)| *other == resource).map(|(_, price)| price).fold(0.0, f64::max)),
            retry_at,
        }
    }
}

impl Limited {
    /// What is left in a slot.
    fn left(&self, slot: i64) -> BTreeMap<ResourceId, i64> {
        let mut left = self.limits.clone();
        if let Some(booked) = self.booked.get(&slot) {
            left.iter_mut().for_each(|(resource, left)| *left -= booked[*resource]);
        }
        left
    }
}

/// How many slots of a demand fit what is free; a share of a device fits no two of them.
fn room(server: &Server, demand: &Demand, free: &Amounts) -> u32 {
    let by_amount = demand.amounts.iter().filter(|(_, need)| *need > 0).map(|(resource, need)| free[resource] / need);
    let by_device = demand.devices.filter(|_| !server.devices.is_empty()).map(|(wanted, milli)| {
        let suiting = server.devices.iter().filter(|kind| wanted == GPU || **kind == wanted).count() as i64;
        if milli < 1000 { suiting * i64::from(1000 / milli) } else { suiting / i64::from(milli / 1000) }
    });
    u32::try_from(by_amount.chain(by_device).min().unwrap_or(0).max(0)).unwrap_or(u32::MAX)
}

/// What 0, 1, 2, … of the cheapest cost together, as far as there is room, up to `most`.
fn prices(offers: &[Offer], most: u32) -> Vec<u64> {
    let mut sums = Vec::with_capacity(most as usize + 1);
    sums.push(0);
    for offer in offers {
        let more = offer.room.min(most + 1 - sums.len() as u32);
        for _ in 0..more {
            sums.push(sums.last().expect("it starts with 0") + offer.price);
        }
    }
    sums
}
