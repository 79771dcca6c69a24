//! Offers of servers to one job in a slot: room for its workers and parameter servers, and their prices.

use std::{collections::BTreeMap, sync::Arc};

use imbl::OrdMap;

use super::prices::Tariff;
use crate::{
    engine::{Budget, EngineError},
    ids::ServerId,
    job::{Demand, Job},
    resources::{Amounts, GPU},
    server::{Hosts, Server},
    shape::{Role, Shape},
    state::State,
};

/// Bookings of one slot. Without bookings the page is empty.
pub(super) type Page = OrdMap<ServerId, Amounts>;

/// Room for slots of one role on a server, and the price of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Offer {
    /// Price in parts of utility.
    price: u64,
    server: ServerId,
    room: u32,
}

/// The servers that can host a job, at the prices of its arrival.
pub(super) struct Servers<'a> {
    job: &'a Job,
    /// Servers by id, with their usable amounts.
    open: Vec<(&'a Arc<Server>, Amounts)>,
    /// The offers without bookings, by role.
    idle: Vec<[Offer; 2]>,
    /// Workers and parameter servers compete for the same servers, so the cheapest choice of both is a heuristic.
    pub(super) shared: bool,
    /// Whether both may be on one server.
    colocate: bool,
    tariffs: [Tariff; 2],
    /// Parts in a unit of utility.
    unit: f64,
    /// Upper limit of prices.
    dearest: u64,
    /// Maximum number of servers that the largest shape needs. No more are considered.
    enough: usize,
}

/// Offers in a slot: the cheapest first, as many as the largest shape can need.
pub(super) struct Offers<'a> {
    page: &'a Page,
    workers: Vec<Offer>,
    servers: Vec<Offer>,
}

impl<'a> Servers<'a> {
    pub(super) fn new(
        state: &'a State,
        job: &'a Job,
        tariffs: [Tariff; 2],
        (unit, dearest): (f64, u64),
        most: Shape,
    ) -> Self {
        let accepting = state.present_servers().filter(|server| server.admits(job));
        let open: Vec<_> = accepting.map(|server| (server, server.usable())).collect();
        let shared = job.spec.server.is_some() && open.iter().any(|(server, _)| server.hosts == Hosts::Both);
        let colocate = state.settings.shape.of(&job.spec).colocate;
        // Each has room for at least one. Beside a worker there may be none.
        let enough = (most.workers + most.servers) as usize;
        let mut servers = Self { job, open, idle: Vec::new(), shared, colocate, tariffs, unit, dearest, enough };
        servers.idle = (0..servers.open.len()).map(|at| servers.quote(at, None)).collect();
        servers
    }

    /// The offers of a server, by role.
    fn quote(&self, at: usize, booked: Option<&Amounts>) -> [Offer; 2] {
        let (server, usable) = &self.open[at];
        let free = booked.map(|booked| {
            let mut free = usable.clone();
            free -= booked;
            free
        });
        [Role::Worker, Role::Server].map(|role| {
            let takes = server.hosts.takes(role);
            let room = if takes { room(server, self.job.demand(role), free.as_ref().unwrap_or(usable)) } else { 0 };
            let price = if room > 0 { self.tariffs[role as usize].price(server.hosts, usable, booked) } else { 0.0 };
            let price = (libm::round(price * self.unit).max(0.0) as u64).min(self.dearest);
            Offer { price, server: server.id, room }
        })
    }

    /// Room and prices with these bookings. O(servers), plus the computation of prices on servers with bookings.
    pub(super) fn offers<'p>(&self, page: &'p Page, budget: &mut Budget) -> Result<Offers<'p>, EngineError> {
        budget.spend((self.open.len() + 8 * page.len()) as u64)?;
        let mut offers = Offers { page, workers: Vec::new(), servers: Vec::new() };
        let mut booked = page.iter().peekable();
        for (at, (server, _)) in self.open.iter().enumerate() {
            while booked.next_if(|(id, _)| **id < server.id).is_some() {}
            let [worker, server] = match booked.next_if(|(id, _)| **id == server.id) {
                Some((_, amounts)) => self.quote(at, Some(amounts)),
                None => self.idle[at],
            };
            offers.workers.extend((worker.room > 0).then_some(worker));
            offers.servers.extend((server.room > 0).then_some(server));
        }
        for list in [&mut offers.workers, &mut offers.servers] {
            if list.len() > self.enough {
                list.select_nth_unstable(self.enough);
                list.truncate(self.enough);
            }
            list.sort_unstable();
        }
        Ok(offers)
    }

    /// Places workers on the cheapest servers, then parameter servers on the cheapest ones with room beside them.
    /// Returns the places and the cost.
    pub(super) fn deploy(&self, offers: &Offers<'_>, shape: Shape) -> Option<(Vec<(ServerId, Shape)>, u64)> {
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
            let taken = self.room_beside(offer, offers.page, beside).min(missing);
            if taken > 0 {
                counts.entry(offer.server).or_default().servers = taken;
                cost += offer.price * u64::from(taken);
                missing -= taken;
            }
        }
        (left == 0 && missing == 0).then(|| (counts.into_iter().collect(), cost))
    }

    /// Number of parameter servers that fit beside `workers` workers of this job.
    fn room_beside(&self, offer: &Offer, page: &Page, workers: u32) -> u32 {
        if workers == 0 {
            return offer.room;
        }
        let at = self.open.binary_search_by_key(&offer.server, |(server, _)| server.id);
        let Some((server, usable)) = at.ok().map(|at| &self.open[at]).filter(|_| self.colocate) else { return 0 };
        let mut free = usable.clone();
        if let Some(booked) = page.get(&offer.server) {
            free -= booked;
        }
        free.add_times(&self.job.worker.amounts, -i64::from(workers));
        room(server, &self.job.server, &free)
    }

    /// The tariff of a role.
    pub(super) fn tariff(&self, role: Role) -> &Tariff {
        &self.tariffs[role as usize]
    }
}

impl Offers<'_> {
    /// Total costs of 0, 1, 2, … slots of a role on the cheapest servers, up to the available room and `most`.
    pub(super) fn prices(&self, role: Role, most: u32) -> Vec<u64> {
        let offers = match role {
            Role::Worker => &self.workers,
            Role::Server => &self.servers,
        };
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

    /// Number of servers.
    pub(super) fn len(&self) -> usize {
        self.workers.len() + self.servers.len()
    }
}

/// Number of slots of a demand that fit in the free room. A share of a device isn't split between devices.
fn room(server: &Server, demand: &Demand, free: &Amounts) -> u32 {
    let by_amount = demand.amounts.iter().filter(|(_, need)| *need > 0).map(|(resource, need)| free[resource] / need);
    let by_device = demand.devices.filter(|_| !server.devices.is_empty()).map(|(wanted, milli)| {
        let suiting = server.devices.iter().filter(|kind| wanted == GPU || **kind == wanted).count() as i64;
        if milli < 1000 { suiting * i64::from(1000 / milli) } else { suiting / i64::from(milli / 1000) }
    });
    u32::try_from(by_amount.chain(by_device).min().unwrap_or(0).max(0)).unwrap_or(u32::MAX)
}
