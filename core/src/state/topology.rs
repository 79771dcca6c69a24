//! The domains on whose servers jobs with a [`Topology`] may be.
//!
//! Before each decision, every waiting job that asks for closeness gets the smallest domain that has room for its
//! largest shape, else for its requested, else for its smallest one; among domains of one level, the one that it leaves
//! the least free in. So engines place it as they would in a smaller cluster, and none has to know of levels. A running
//! job keeps its domain. It gets the next larger one, up to the level that it requires, when its own has no room for
//! another worker.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    Change, Mandate, State,
    room::{free_devices, slots_for},
};
use crate::{
    decision::{Allocation, Verdict},
    ids::{JobId, ResourceId, ServerId, TenantId},
    job::{Demand, Job, JobSpec},
    reason::Reason,
    resources::{Amounts, CPU, GPU},
    server::Server,
    shape::{Role, Shape},
    topology::{Domain, Level, Topology},
};

/// Maximum number of visits to servers before one decision, divided equally among the tenants of jobs that ask for
/// closeness. Beyond it, totals of domains decide, and no single server is searched.
const MOST_VISITS: usize = 1 << 20;

/// The number of a domain among those of its level.
type At = usize;

/// All domains of the levels that labels name.
#[derive(Debug, Default)]
pub(crate) struct Domains {
    all: [Vec<Arc<Domain>>; 3],
    /// Each server's domains.
    of: Vec<[Option<u32>; 3]>,
}

impl Domains {
    /// O(servers · log domains).
    fn of(state: &State) -> Self {
        let mut domains = Self { of: vec![[None; 3]; state.servers.len()], ..Self::default() };
        let mut known: BTreeMap<[Option<&str>; 3], u32> = BTreeMap::new();
        let mut members: [Vec<(String, Vec<ServerId>)>; 3] = Default::default();
        for server in state.present_servers() {
            let mut path = [None; 3];
            for (at, level) in Level::LABELLED.into_iter().enumerate() {
                let Some(value) = server.label(level) else { continue };
                path[at] = Some(value);
                let of = &mut members[at];
                let number = *known.entry(path).or_insert_with(|| {
                    of.push((name(&path), Vec::new()));
                    of.len() as u32 - 1
                });
                of[number as usize].1.push(server.id);
                domains.of[server.id.index()][at] = Some(number);
            }
        }
        for (level, (all, members)) in Level::LABELLED.into_iter().zip(domains.all.iter_mut().zip(members)) {
            *all = members.into_iter().map(|(name, servers)| Arc::new(Domain { level, name, servers })).collect();
        }
        domains
    }

    /// The domain of a level that has all these servers.
    fn common(&self, level: Level, servers: &[ServerId]) -> Option<At> {
        let at = |server: &ServerId| self.of.get(server.index())?[level as usize];
        let first = at(servers.first()?)?;
        servers.iter().all(|server| at(server) == Some(first)).then_some(first as usize)
    }

    /// Whether a server is in a domain of the level that a job requires, if it does.
    fn is_within(&self, required: Option<Level>, server: ServerId) -> bool {
        let at = required.filter(|level| *level != Level::Server).map(|level| level as usize);
        at.is_none_or(|at| self.of.get(server.index()).is_some_and(|of| of[at].is_some()))
    }

    /// The domains of a level that labels name.
    fn all(&self, level: Level) -> &[Arc<Domain>] {
        self.all.get(level as usize).map_or(&[], Vec::as_slice)
    }
}

/// `rack r1 of block b1`.
fn name(path: &[Option<&str>; 3]) -> String {
    let parts = Level::LABELLED.into_iter().zip(path).rev();
    let parts = parts.filter_map(|(level, value)| value.map(|value| format!("{level} {value}")));
    parts.collect::<Vec<_>>().join(" of ")
}

/// A single server as a domain.
fn alone(server: &Server) -> Arc<Domain> {
    let name = format!("{} {}", Level::Server, server.name);
    Arc::new(Domain { level: Level::Server, name, servers: vec![server.id] })
}

/// The free room before a decision, without the room that jobs were promised.
struct Free<'a> {
    state: &'a State,
    domains: &'a Domains,
    /// Of each domain, by level.
    of: [Vec<Amounts>; 3],
    /// Room on single servers that jobs were promised.
    promised: BTreeMap<ServerId, Amounts>,
    /// The need of waiting jobs without a promise, by level and domain (or server).
    claimed: BTreeMap<(Level, At), Amounts>,
    /// Servers by free GPUs and by free CPUs, once a search needs them.
    by_free: BTreeMap<ResourceId, Vec<(i64, ServerId)>>,
    /// Visits by tenant, and their limit.
    visits: BTreeMap<TenantId, usize>,
    most_visits: usize,
    /// Searches without a result. Room only gets less, so they needn't be repeated.
    in_vain: BTreeSet<Search<'a>>,
}

/// Level, labels, demands and shape.
type Search<'a> = (Level, &'a BTreeMap<String, String>, [&'a Amounts; 2], Shape);

impl<'a> Free<'a> {
    /// O(servers).
    fn of(state: &'a State, domains: &'a Domains) -> Self {
        let mut of = [0, 1, 2].map(|at| vec![Amounts::default(); domains.all[at].len()]);
        for server in state.present_servers().filter(|server| !server.draining) {
            let mut free = server.reservable();
            free -= &server.planned.amounts;
            let free = free.at_least_zero();
            for (of, at) in of.iter_mut().zip(domains.of[server.id.index()]) {
                if let Some(at) = at {
                    of[at as usize] += &free;
                }
            }
        }
        let tenants: BTreeSet<TenantId> = state.near.iter().map(|id| state.jobs[id].tenant).collect();
        Self {
            state,
            domains,
            of,
            promised: BTreeMap::new(),
            claimed: BTreeMap::new(),
            by_free: BTreeMap::new(),
            visits: BTreeMap::new(),
            most_visits: MOST_VISITS / tenants.len().max(1),
            in_vain: BTreeSet::new(),
        }
    }

    /// Counts visits for a job. Returns false if its tenant has had all.
    fn may_visit(&mut self, job: &Job, count: usize) -> bool {
        let visits = self.visits.entry(job.tenant).or_default();
        *visits += count;
        *visits <= self.most_visits
    }

    /// The domains of a level whose totals have room for a shape: the job's present one, then those that will have the
    /// least left. Without visits, only the present one.
    fn fitting(&mut self, level: Level, job: &'a Job, shape: Shape) -> Vec<Arc<Domain>> {
        let search = (level, &job.spec.labels, [&job.worker.amounts, &job.server.amounts], shape);
        if self.in_vain.contains(&search) {
            return Vec::new();
        }
        let found = match level {
            Level::Server => self.fitting_servers(job, shape),
            _ => self.fitting_domains(level, job, shape),
        };
        let Some(mut found) = found else {
            let now = job.domain.iter().filter(|now| now.level == level && self.state.is_current(now, self.domains));
            return now.cloned().collect();
        };
        if found.is_empty() {
            self.in_vain.insert(search);
        }
        if let Some(now) = found.iter().position(|domain| job.domain.as_ref() == Some(domain))
            && !found_no_place(job)
        {
            found[..=now].rotate_right(1);
        }
        found
    }

    /// O(domains · their log).
    fn fitting_domains(&mut self, level: Level, job: &Job, shape: Shape) -> Option<Vec<Arc<Domain>>> {
        let (total, all) = (job.total(shape), self.domains.all(level));
        // A domain costs less than a server, of whose room more is read.
        if !self.may_visit(job, all.len() / 8 + 1) {
            return None;
        }
        let free = &self.of[level as usize];
        let required = Topology::of(&job.spec.labels).require;
        let is_within = |domain: &Domain| self.domains.is_within(required, domain.servers[0]);
        let mut fitting: Vec<At> = (0..all.len()).filter(|at| total.fits(&free[*at]) && is_within(&all[*at])).collect();
        fitting.sort_by_key(|at| (free[*at][scarce(&total)], *at));
        Some(fitting.into_iter().map(|at| all[at].clone()).collect())
    }

    /// The server with the least left that has room, and the next one after the job's present one. O(log servers) and
    /// the servers with too little of another resource.
    fn fitting_servers(&mut self, job: &Job, shape: Shape) -> Option<Vec<Arc<Domain>>> {
        let total = job.total(shape);
        let scarce = scarce(&total);
        let state = self.state;
        let by_free = self.by_free.entry(scarce).or_insert_with(|| {
            let mut all: Vec<_> = state.present_servers().map(|server| (server.unplanned(scarce), server.id)).collect();
            all.sort_unstable();
            all
        });
        let by_free = std::mem::take(by_free);
        let required = Topology::of(&job.spec.labels).require;
        let first = by_free.partition_point(|(free, _)| *free < total[scarce]);
        let now = job.domain.as_ref().filter(|now| now.level == Level::Server).and_then(|now| now.servers.first());
        let after = now.map_or(first, |now| {
            by_free.partition_point(|entry| *entry <= (state.server(*now).unplanned(scarce), *now)).max(first)
        });
        let mut found = Vec::new();
        let mut is_complete = true;
        for range in [first..after, after..by_free.len()] {
            for (_, id) in &by_free[range] {
                if !self.may_visit(job, 1) {
                    is_complete = false;
                    break;
                }
                let server = state.server(*id);
                let has_room =
                    |(resource, need): (ResourceId, i64)| need <= 0 || need <= self.left_of(server, resource);
                let fits = server.accepts(&job.spec.labels)
                    && self.domains.is_within(required, server.id)
                    && server.hosts.take(shape)
                    && total.iter().all(has_room)
                    && free_devices(server, &job.worker) >= i64::from(shape.workers);
                if fits && (Some(id) != now || !found_no_place(job)) {
                    found.push(alone(server));
                    break;
                }
            }
        }
        if found_no_place(job) {
            found.reverse();
        }
        self.by_free.insert(scarce, by_free);
        (is_complete || !found.is_empty()).then_some(found)
    }

    /// The free room of a single server, without the room that jobs were promised there alone.
    fn left_of(&self, server: &Server, resource: ResourceId) -> i64 {
        server.unplanned(resource) - self.promised.get(&server.id).map_or(0, |promised| promised[resource])
    }

    /// Whether the servers of a domain have room for each slot of a shape, as far as the visits last. The two roles are
    /// counted apart, so an engine can be stricter.
    fn holds(&mut self, domain: &Domain, job: &Job, shape: Shape) -> bool {
        if !self.may_visit(job, domain.servers.len()) {
            return true;
        }
        let (mut workers, mut servers) = (0, 0);
        for server in domain.servers.iter().map(|id| self.state.server(*id)) {
            if !server.accepts(&job.spec.labels) {
                continue;
            }
            let room = |role: Role, demand: &Demand| match server.hosts.takes(role) {
                true => slots_for(demand, |resource| server.unplanned(resource)),
                false => 0,
            };
            workers += room(Role::Worker, &job.worker).min(free_devices(server, &job.worker));
            servers += room(Role::Server, &job.server);
            if workers >= i64::from(shape.workers) && servers >= i64::from(shape.servers) {
                return true;
            }
        }
        false
    }

    /// Keeps a domain's room for a job.
    fn promise(&mut self, domain: &Domain, total: &Amounts) {
        let Some(first) = domain.servers.first() else { return };
        for (at, of) in Level::LABELLED.into_iter().zip(&mut self.of) {
            let number = self.domains.of[first.index()][at as usize].filter(|_| at <= domain.level);
            if let Some(number) = number {
                of[number as usize] -= total;
            }
        }
        if domain.level == Level::Server {
            *self.promised.entry(*first).or_default() += total;
        }
    }

    /// The room of a domain (or server) for one more job that waits.
    fn unclaimed(&self, level: Level, at: At, left: i64, resource: ResourceId) -> i64 {
        left - self.claimed.get(&(level, at)).map_or(0, |claimed| claimed[resource])
    }
}

/// Whether the engine has seen the job in its present domain, and found no place there. Engines can be stricter than
/// the room is: Theorem 1 needs an even spread.
fn found_no_place(job: &Job) -> bool {
    job.domain.is_some() && matches!(job.verdict.reason(), Some(Reason::NoRoom { .. } | Reason::Overloaded { .. }))
}

/// The first domain that holds one of the shapes, once the job's present one was passed. That one isn't an answer where
/// the engine found no place.
fn next_domain<'a>(
    job: &'a Job,
    topology: Topology,
    shapes: &[Shape],
    free: &mut Free<'a>,
    passed: &mut bool,
) -> Option<(Arc<Domain>, Shape)> {
    for &shape in shapes {
        for level in topology.levels() {
            for domain in free.fitting(level, job, shape) {
                if found_no_place(job) && job.domain.as_ref() == Some(&domain) {
                    *passed = true;
                } else if *passed && free.holds(&domain, job, shape) {
                    return Some((domain, shape));
                }
            }
        }
    }
    None
}

/// The resource by which domains are compared.
fn scarce(total: &Amounts) -> ResourceId {
    if total[GPU] > 0 { GPU } else { CPU }
}

impl State {
    /// The domains of the present servers. O(servers · log domains) after servers or their labels have changed.
    pub(super) fn domains(&self) -> Arc<Domains> {
        self.domains.clone().unwrap_or_else(|| Arc::new(Domains::of(self)))
    }

    /// Chooses the domains of jobs that ask for closeness.
    ///
    /// Without such jobs O(1). Else O(servers), and for each such job O(its slots), or if it waits O(domains) and
    /// O(servers) up to a [limit](MOST_VISITS), mostly O(servers of a domain); equal searches without a result are made
    /// once.
    pub(crate) fn choose_domains(&mut self) {
        if self.near.is_empty() {
            return;
        }
        self.know_domains();
        let domains = self.domains();
        let changes = self.domain_changes(&domains);
        for (id, domain) in changes {
            let job = &self.jobs[&id];
            let (is_same, is_free) = (job.domain == domain, self.mandate(job) == Mandate::Free);
            let waits = is_free && matches!(job.verdict, Verdict::Wait(_));
            self.job_mut(id).expect("an active job").domain = domain;
            if is_same {
                // The servers' domains were listed anew, and are equal. Sharing them makes comparisons fast.
                continue;
            }
            self.moved += 1;
            if waits {
                self.set_verdict(id, Verdict::Wait(Reason::NotConsidered));
            }
            self.note(Change::Job(id));
        }
    }

    /// Lists the domains if servers or their labels have changed and jobs ask for closeness.
    pub(crate) fn know_domains(&mut self) {
        if !self.near.is_empty() && self.domains.is_none() {
            self.domains = Some(self.domains());
        }
    }

    fn domain_changes(&self, domains: &Domains) -> Vec<(JobId, Option<Arc<Domain>>)> {
        let mut changes = Vec::new();
        let mut free = Free::of(self, domains);
        let mut waiting: Vec<&Job> = Vec::new();
        for job in self.near.iter().map(|id| &*self.jobs[id]) {
            let Some(planned) = job.verdict.allocation() else {
                waiting.push(job);
                continue;
            };
            let domain = self.domain_of(job, &servers(planned), &mut free);
            if differs(&domain, &job.domain) {
                changes.push((job.id, domain));
            }
        }
        waiting.sort_by_key(|job| (Reverse(self.priority(job)), job.id));
        for job in waiting {
            // A job that is booked for later keeps its present domain, as long as that exists.
            let is_settled = matches!(
                job.verdict.reason(),
                Some(Reason::Scheduled { .. } | Reason::PricedOut(_) | Reason::Unfinishable { .. })
            );
            let is_kept = is_settled || self.mandate(job) != Mandate::Free;
            if is_kept && job.domain.as_ref().is_some_and(|now| self.is_current(now, domains)) {
                continue;
            }
            let domain = self.nearest(job, domains, &mut free);
            if differs(&domain, &job.domain) {
                changes.push((job.id, domain));
            }
        }
        changes
    }

    /// Whether a domain is as labels are now.
    fn is_current(&self, domain: &Arc<Domain>, domains: &Domains) -> bool {
        match domain.level {
            Level::Server => domain.servers.first().is_some_and(|id| alone(self.server(*id)) == *domain),
            level => domains.all(level).contains(domain),
        }
    }

    /// The domain of a waiting job. If the engine found no place in the present one, the next after it.
    fn nearest<'a>(&self, job: &'a Job, domains: &Domains, free: &mut Free<'a>) -> Option<Arc<Domain>> {
        let topology = Topology::of(&job.spec.labels);
        let bounds = job.bounds();
        // A job that needn't be close gives up closeness before workers.
        let shapes = [bounds.most(), job.spec.requested(), bounds.least()];
        let shapes = &shapes[..if topology.require.is_some() { 3 } else { 2 }];
        let mut passed = !found_no_place(job);
        let mut found = next_domain(job, topology, shapes, free, &mut passed);
        // From the beginning: a job that requires a level after the last one, any job if its present one has no room.
        if found.is_none() && found_no_place(job) && (topology.require.is_some() || !passed) {
            passed = true;
            found = next_domain(job, topology, shapes, free, &mut passed);
        }
        if let Some((domain, shape)) = found {
            // A job that the last decision left waiting keeps no room from others.
            if job.domain.as_ref() != Some(&domain) || matches!(job.verdict, Verdict::Wait(Reason::NotConsidered)) {
                free.promise(&domain, &job.total(shape));
            }
            return Some(domain);
        }
        let required = topology.require?;
        Some(self.waits_for(job, required, domains, free).unwrap_or_else(|| Arc::new(Domain::none(required))))
    }

    /// The domain for which a job waits: the one with the most left of those where it could run, and its present one as
    /// long as it could run there.
    fn waits_for(&self, job: &Job, level: Level, domains: &Domains, free: &mut Free<'_>) -> Option<Arc<Domain>> {
        let total = job.total(job.bounds().least());
        let scarce = scarce(&total);
        let now = job.domain.as_ref().filter(|now| now.level == level && self.is_current(now, domains));
        let could = |domain: &Arc<Domain>| self.fits_in(&job.spec, &job.worker, &job.server, domain);
        if let Some(now) = now.filter(|now| could(now)) {
            return Some(now.clone());
        }
        if !free.may_visit(job, self.servers.len()) {
            return now.cloned();
        }
        let (at, chosen) = if level == Level::Server {
            let able = self.present_servers().filter(|server| self.could_hold(&job.spec, &total, server));
            let left = |server: &Server| free.unclaimed(level, server.id.index(), free.left_of(server, scarce), scarce);
            let chosen = able.min_by_key(|server| (Reverse(left(server)), server.id))?;
            (chosen.id.index(), alone(chosen))
        } else {
            let able = domains.all(level).iter().enumerate().filter(|(_, domain)| could(domain));
            let left = |at: At| free.unclaimed(level, at, free.of[level as usize][at][scarce], scarce);
            let (at, chosen) = able.min_by_key(|(at, _)| (Reverse(left(*at)), *at))?;
            (at, chosen.clone())
        };
        *free.claimed.entry((level, at)).or_default() += &total;
        Some(chosen)
    }

    /// The domain of a job with planned slots: the smallest with all of them and with room for the next larger number
    /// of workers, or the one that it requires. If none has all of them, because labels have changed, the servers that
    /// it has.
    fn domain_of(&self, job: &Job, slots: &[ServerId], free: &mut Free<'_>) -> Option<Arc<Domain>> {
        let topology = Topology::of(&job.spec.labels);
        let workers = job.shape().workers;
        let next = job.bounds().more_workers(workers).map(|next| Shape { workers: next - workers, servers: 0 });
        let first = *slots.first()?;
        let is_within = free.domains.is_within(topology.require, first);
        let found = topology.levels().filter(|_| is_within).find_map(|level| {
            let (domain, total_fits) = match level {
                Level::Server => ((slots.len() == 1).then(|| alone(self.server(first)))?, true),
                _ => {
                    let at = free.domains.common(level, slots)?;
                    let fits = next.is_none_or(|next| job.total(next).fits(&free.of[level as usize][at]));
                    (free.domains.all(level)[at].clone(), fits)
                }
            };
            let stays = topology.require == Some(level);
            let has_room = stays || next.is_none_or(|next| total_fits && free.holds(&domain, job, next));
            has_room.then_some(domain)
        });
        found.or_else(|| {
            let name = "its present servers".into();
            topology.require.map(|level| Arc::new(Domain { level, name, servers: slots.to_vec() }))
        })
    }

    /// Whether all slots are in one domain of the level that the job requires, by the labels as they are now. O(slots).
    pub(super) fn is_in_one_domain(&self, job: &Job, allocation: &Allocation) -> bool {
        let Some(required) = Topology::of(&job.spec.labels).require else { return true };
        let mut servers = allocation.slots().iter().map(|slot| self.server(slot.server));
        let Some(first) = servers.next() else { return true };
        servers.all(|server| match required {
            Level::Server => server.id == first.id,
            _ => Level::LABELLED
                .into_iter()
                .filter(|level| *level <= required)
                .all(|level| server.label(level) == first.label(level)),
        }) && (required == Level::Server || first.label(required).is_some())
    }

    /// The chosen domains with their jobs, for a snapshot.
    pub(crate) fn saved_domains(&self) -> Vec<(Domain, Vec<JobId>)> {
        let mut saved: BTreeMap<&Domain, Vec<JobId>> = BTreeMap::new();
        for job in self.near.iter().map(|id| &self.jobs[id]) {
            if let Some(domain) = &job.domain {
                saved.entry(&**domain).or_default().push(job.id);
            }
        }
        saved.into_iter().map(|(domain, jobs)| (domain.clone(), jobs)).collect()
    }

    /// Restores the chosen domains, and what isn't saved of them.
    pub(crate) fn restore_domains(&mut self, saved: Vec<(Domain, Vec<JobId>)>) {
        let asks = self.jobs.values().filter(|job| !Topology::of(&job.spec.labels).is_none());
        self.near = asks.map(|job| job.id).collect();
        for (domain, jobs) in saved {
            let domain = Arc::new(domain);
            for id in jobs {
                if let Some(job) = self.job_mut(id) {
                    job.domain = Some(domain.clone());
                }
            }
        }
    }

    /// Why no domain of the required level could hold a job that the whole cluster could. O(servers).
    pub(super) fn fits_no_domain(&self, spec: &JobSpec, worker: &Demand, server: &Demand) -> Option<Reason> {
        let level = Topology::of(&spec.labels).require?;
        let least = spec.bounds().least();
        let mut total = worker.amounts.times(least.workers.into());
        total.add_times(&server.amounts, least.servers.into());
        let scarce = scarce(&total);
        let mut largest: Option<(i64, String)> = None;
        let mut offer = |has: i64, name: &dyn Fn() -> String| {
            if largest.as_ref().is_none_or(|(most, _)| has > *most) {
                largest = Some((has, name()));
            }
        };
        if level == Level::Server {
            for server in self.present_servers() {
                if self.could_hold(spec, &total, server) {
                    return None;
                }
                offer(server.capacity[scarce], &|| server.name.to_string());
            }
        }
        let domains = self.domains();
        for domain in domains.all(level) {
            if self.fits_in(spec, worker, server, domain) {
                return None;
            }
            let servers = domain.servers.iter().map(|id| self.server(*id));
            let has = servers.filter(|server| server.matches(&spec.labels)).map(|server| server.capacity[scarce]).sum();
            offer(has, &|| domain.name.clone());
        }
        let (largest, name) = largest.unwrap_or_default();
        Some(Reason::NoDomain { level, resource: scarce, needed: total[scarce], largest, domain: name.into() })
    }

    /// Whether one server could hold a whole shape if it were empty.
    fn could_hold(&self, spec: &JobSpec, total: &Amounts, server: &Server) -> bool {
        server.present
            && server.matches(&spec.labels)
            && server.hosts.take(spec.bounds().least())
            && total.iter().all(|(resource, need)| need <= 0 || need <= server.capacity[resource])
    }

    /// The free GPUs of servers that take new slots, in thousandths: in all, and by level the most in one domain. Only
    /// levels that servers have are listed. The less the second is of the first, the more fragmented is what is free.
    /// O(servers).
    pub fn free_gpus(&self) -> (i64, Vec<(Level, i64)>) {
        let open = || self.present_servers().filter(|server| !server.draining);
        let free = |server: &Server| server.unplanned(GPU).max(0);
        let (mut all, mut largest) = (0, 0);
        for server in open() {
            all += free(server);
            largest = largest.max(free(server));
        }
        let domains = self.domains();
        let free = Free::of(self, &domains);
        let of_level = |level: Level| free.of[level as usize].iter().map(|free| free[GPU]).max();
        let labelled = Level::LABELLED.into_iter().filter_map(|level| Some((level, of_level(level)?)));
        (all, labelled.chain([(Level::Server, largest)]).collect())
    }

    /// The explanation of a job's domain: the domain, and the free and the needed amount of the scarce resource.
    pub(crate) fn domain_room(&self, job: &Job) -> Option<(Arc<Domain>, ResourceId, i64)> {
        let domain = job.domain.clone()?;
        let scarce = scarce(&job.total(job.spec.requested()));
        let servers = domain.servers.iter().map(|id| self.server(*id)).filter(|server| !server.draining);
        let free = servers.map(|server| server.unplanned(scarce).max(0)).sum();
        Some((domain, scarce, free))
    }
}

/// Whether these aren't the same list in memory. O(1).
fn differs(one: &Option<Arc<Domain>>, other: &Option<Arc<Domain>>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => !Arc::ptr_eq(one, other),
        (one, other) => one.is_some() != other.is_some(),
    }
}

/// The servers of an allocation, ascending.
fn servers(allocation: &Allocation) -> Vec<ServerId> {
    let mut servers: Vec<ServerId> = allocation.slots().iter().map(|slot| slot.server).collect();
    servers.sort_unstable();
    servers.dedup();
    servers
}
