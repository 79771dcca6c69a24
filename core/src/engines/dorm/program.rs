//! Dorm's mixed-integer program: the numbers of workers and parameter servers of each job on each pool of servers.

use std::{collections::BTreeMap, sync::Arc};

use super::Dorm;
use crate::{
    engine::{Budget, EngineError, ledger::Ledger},
    ids::{ResourceId, ServerId},
    job::Job,
    place::Room,
    resources::{Amounts, BANDWIDTH},
    shape::{Role, Shape},
    solver::{Limit, Model, Variable},
    state::State,
    topology::Domain,
};

const ROLES: [Role; 2] = [Role::Worker, Role::Server];

/// Cost of a violation of the fairness bound by 1, in uses of one resource. It exceeds any possible objective.
const UNFAIR: f64 = 1000.0;

/// Servers that the program doesn't distinguish.
struct Pool {
    first: ServerId,
    /// Total free room. Negative amounts count as zero.
    free: Amounts,
    /// Number of servers by free room.
    servers: BTreeMap<Amounts, u32>,
}

/// All pools, and the pool of each server.
pub(super) struct Pools {
    pools: Vec<Pool>,
    of: Vec<Option<usize>>,
}

impl Pools {
    /// Builds pools of servers with the same devices and labels, or of single servers.
    pub(super) fn build(state: &State, room: &Room, by_server: bool) -> Self {
        let mut pools: Vec<Pool> = Vec::new();
        let mut of = vec![None; state.servers.len()];
        let mut kinds = BTreeMap::new();
        for server in state.present_servers() {
            let mut free = Amounts::default();
            room.free(server.id).iter().for_each(|(resource, value)| free.add(resource, value.max(0)));
            let own = by_server.then_some(server.id);
            let at = *kinds.entry((own, &server.devices, &server.labels, server.draining)).or_insert_with(|| {
                pools.push(Pool { first: server.id, free: Amounts::default(), servers: BTreeMap::new() });
                pools.len() - 1
            });
            pools[at].free += &free;
            *pools[at].servers.entry(free).or_default() += 1;
            of[server.id.index()] = Some(at);
        }
        Self { pools, of }
    }

    /// The pool of a server.
    pub(super) fn find(&self, id: ServerId) -> Option<usize> {
        self.of[id.index()]
    }
}

/// A job in the program.
pub(super) struct Candidate<'a> {
    pub(super) job: &'a Arc<Job>,
    /// Its slots on each pool. None while it waits.
    pub(super) now: Option<Vec<Shape>>,
    /// Its shape under max-min fairness.
    fair: Shape,
}

impl<'a> Candidate<'a> {
    pub(super) fn new(job: &'a Arc<Job>, fair: Shape, pools: &Pools) -> Self {
        let now = job.verdict.allocation().map(|allocation| {
            let mut counts = vec![Shape::default(); pools.pools.len()];
            for slot in allocation.slots() {
                let Some(pool) = pools.find(slot.server) else { continue };
                match slot.role {
                    Role::Worker => counts[pool].workers += 1,
                    Role::Server => counts[pool].servers += 1,
                }
            }
            counts
        });
        Self { job, now, fair }
    }
}

/// The program of one decision.
pub(super) struct Program<'a> {
    pub(super) state: &'a State,
    pub(super) pools: &'a Pools,
    pub(super) candidates: &'a [Candidate<'a>],
    /// Remaining limits for the candidates.
    pub(super) ledger: &'a Ledger,
}

/// Variables of a job on each pool, by role.
type Cells = Vec<[Variable; 2]>;

impl Program<'_> {
    /// Counts of each candidate on each pool. None for jobs that stay out.
    pub(super) fn solve(
        &self,
        dorm: &Dorm,
        changeable: u32,
        budget: &mut Budget,
    ) -> Result<Vec<Vec<Shape>>, EngineError> {
        let start = self.start();
        if self.candidates.is_empty() || self.pools.pools.is_empty() {
            return Ok(start);
        }
        let (model, cells, hint) = self.model(dorm, changeable, &start);
        // The relaxation comes first, then as many nodes as the budget allows. Each node is a small part of it.
        let size = model.size() as u64;
        budget.spend(size.saturating_mul(model.variables() as u64 / 8 + 1))?;
        let nodes = dorm.limit.nodes.min(budget.left() / (size + 1));
        let Ok(solution) = dorm.solver.solve(&model, Limit { nodes, ..dorm.limit }, &hint) else {
            // Nothing was found, so the start is the result.
            return Ok(start);
        };
        budget.spend(solution.nodes.saturating_mul(size).min(budget.left()))?;
        let counts = |(candidate, cells): (&Candidate<'_>, &Cells)| {
            let shape = |[worker, server]: &[Variable; 2]| Shape {
                workers: solution.count(*worker),
                servers: solution.count(*server),
            };
            let mut counts: Vec<Shape> = cells.iter().map(shape).collect();
            to_a_size(candidate, &mut counts);
            counts
        };
        Ok(self.candidates.iter().zip(&cells).map(counts).collect())
    }

    /// Maximum number of a role's slots of a job on an otherwise empty pool.
    fn most(&self, job: &Job, role: Role, pool: &Pool) -> u32 {
        if !self.state.server(pool.first).hosts.takes(role) {
            return 0;
        }
        let demand = &job.demand(role).amounts;
        let each = |free: &Amounts| demand.iter().filter(|(_, need)| *need > 0).map(|(at, need)| free[at] / need).min();
        let most = i64::from(job.bounds().most().count(role));
        let mut fitting = 0;
        for (free, count) in &pool.servers {
            fitting += each(free).map_or(most, |each| each * i64::from(*count));
            if fitting >= most {
                break;
            }
        }
        fitting.clamp(0, most) as u32
    }

    /// Whether a pool has servers for a job.
    fn accepts(&self, job: &Job, at: usize, pool: &Pool) -> bool {
        let is_near = |domain: &Arc<Domain>| domain.servers.iter().any(|id| self.pools.find(*id) == Some(at));
        self.state.server(pool.first).accepts(&job.spec.labels) && job.domain.as_ref().is_none_or(is_near)
    }

    /// The current plan, with waiting jobs in their fair or smallest shapes by first fit.
    fn start(&self) -> Vec<Vec<Shape>> {
        let pools = &self.pools.pools;
        let mut free: Vec<Amounts> = pools.iter().map(|pool| pool.free.clone()).collect();
        let mut ledger = self.ledger.clone();
        for candidate in self.candidates {
            let Some(now) = &candidate.now else { continue };
            for (counts, free) in now.iter().zip(&mut free) {
                let total = candidate.job.total(*counts);
                free.add_times(&total, -1);
                ledger.take(candidate.job, &total, 1);
            }
        }
        let fit = |candidate: &Candidate<'_>, shape: Shape, free: &mut Vec<Amounts>| {
            let job = candidate.job;
            let mut counts = vec![Shape::default(); pools.len()];
            let mut tried = free.clone();
            for role in ROLES {
                let mut left = shape.count(role);
                for (at, pool) in pools.iter().enumerate().filter(|(at, pool)| self.accepts(job, *at, pool)) {
                    let most = self.most(job, role, pool);
                    let mut here = 0;
                    while left > 0 && here < most && job.demand(role).amounts.fits(&tried[at]) {
                        tried[at].add_times(&job.demand(role).amounts, -1);
                        left -= 1;
                        here += 1;
                    }
                    match role {
                        Role::Worker => counts[at].workers = here,
                        Role::Server => counts[at].servers = here,
                    }
                }
                if left > 0 {
                    return None;
                }
            }
            *free = tried;
            Some(counts)
        };
        let place = |candidate: &Candidate<'_>| {
            if let Some(now) = &candidate.now {
                return now.clone();
            }
            let job = candidate.job;
            let shapes = [candidate.fair, job.bounds().least()].into_iter().filter(|shape| !shape.is_empty());
            for shape in shapes {
                let total = job.total(shape);
                if self.well_shaped(job, shape)
                    && ledger.has(job, &total)
                    && let Some(counts) = fit(candidate, shape, &mut free)
                {
                    ledger.take(job, &total, 1);
                    return counts;
                }
            }
            vec![Shape::default(); pools.len()]
        };
        self.candidates.iter().map(place).collect()
    }

    /// Maximum difference between a job's parameter servers and workers: zero, unless its own bounds require more.
    fn surplus(job: &Job) -> i64 {
        let least = job.bounds().least();
        (i64::from(least.servers) - i64::from(least.workers)).max(0)
    }

    /// Bandwidths of a worker and of a parameter server, if the parameter servers' bandwidth has to suffice for the
    /// workers.
    fn bandwidths(job: &Job) -> Option<(i64, i64)> {
        let (worker, server) = (job.worker.amounts[BANDWIDTH], job.server.amounts[BANDWIDTH]);
        let least = job.bounds().least();
        let least_does = i64::from(least.workers) * worker <= i64::from(least.servers) * server;
        (worker > 0 && server > 0 && least_does).then_some((worker, server))
    }

    /// Whether the number of parameter servers is within the bounds for the workers.
    fn well_shaped(&self, job: &Job, shape: Shape) -> bool {
        let (workers, servers) = (i64::from(shape.workers), i64::from(shape.servers));
        let enough = Self::bandwidths(job).is_none_or(|(worker, server)| workers * worker <= servers * server);
        enough && servers - workers <= Self::surplus(job)
    }

    fn model(&self, dorm: &Dorm, changeable: u32, start: &[Vec<Shape>]) -> (Model, Vec<Cells>, Vec<(Variable, f64)>) {
        let whole = &self.state.usable;
        let resources: Vec<ResourceId> = whole
            .iter()
            .filter(|(resource, total)| *total > 0 && self.uses(*resource))
            .map(|(resource, _)| resource)
            .collect();
        let part = |demand: &Amounts, resource: ResourceId| demand[resource] as f64 / whole[resource] as f64;
        let mut model = Model::default();
        let mut hint = Vec::new();
        let mut all_cells: Vec<Cells> = Vec::new();
        let mut changed = Vec::new();
        // Σ |s − ŝ|, less the violation.
        let mut unfairness = Vec::new();
        for (candidate, counts) in self.candidates.iter().zip(start) {
            let job = candidate.job;
            let bounds = job.bounds();
            let mut cells: Cells = Vec::new();
            for (at, pool) in self.pools.pools.iter().enumerate() {
                let now = candidate.now.as_ref().map_or(Shape::default(), |now| now[at]);
                let open = self.accepts(job, at, pool);
                cells.push(ROLES.map(|role| {
                    let now = now.count(role);
                    let most = if open { self.most(job, role, pool).max(now) } else { now };
                    let demand = &job.demand(role).amounts;
                    let worth = resources.iter().map(|resource| part(demand, *resource)).sum();
                    let variable = model.integer(0, most as i32, worth);
                    hint.push((variable, counts[at].count(role).into()));
                    variable
                }));
            }
            let of = |role: Role| cells.iter().map(move |cell| cell[role as usize]);
            let times = |role: Role, factor: f64| of(role).map(move |variable| (variable, factor));

            let runs = model.integer(i32::from(candidate.now.is_some()), 1, 0.0);
            hint.push((runs, f64::from(u8::from(counts.iter().any(|count| !count.is_empty())))));
            for role in ROLES {
                let (least, most) = (bounds.least().count(role), bounds.most().count(role));
                model.at_least(times(role, 1.0).chain([(runs, -f64::from(least))]), 0.0);
                model.at_most(times(role, 1.0).chain([(runs, -f64::from(most))]), 0.0);
            }
            // A running job in another shape may keep it.
            if candidate.now.is_none() || self.well_shaped(job, job.shape()) {
                let surplus = [(runs, -Self::surplus(job) as f64)];
                model.at_most(times(Role::Server, 1.0).chain(times(Role::Worker, -1.0)).chain(surplus), 0.0);
                if let Some((worker, server)) = Self::bandwidths(job) {
                    let (workers, servers) = (times(Role::Worker, worker as f64), times(Role::Server, -server as f64));
                    model.at_most(workers.chain(servers), 0.0);
                }
            }

            let smallest = job.total(bounds.least());
            let dominant = resources.iter().max_by(|a, b| part(&smallest, **a).total_cmp(&part(&smallest, **b)));
            if let Some(&dominant) = dominant {
                let share = |sign: f64| {
                    let of_role = move |role: Role| times(role, sign * part(&job.demand(role).amounts, dominant));
                    of_role(Role::Worker).chain(of_role(Role::Server)).collect::<Vec<_>>()
                };
                let fair = part(&job.total(candidate.fair), dominant);
                let off = model.real(0.0, f64::INFINITY, 0.0);
                model.at_most(share(1.0).into_iter().chain([(off, -1.0)]), fair);
                model.at_most(share(-1.0).into_iter().chain([(off, -1.0)]), -fair);
                unfairness.push((off, 1.0));
            }

            if let Some(now) = &candidate.now {
                let change = model.integer(0, 1, 0.0);
                hint.push((change, 0.0));
                changed.push((change, 1.0));
                for ((cell, now), pool) in cells.iter().zip(now).zip(&self.pools.pools) {
                    for role in ROLES {
                        let (variable, had) = (cell[role as usize], f64::from(now.count(role)));
                        let most = f64::from(self.most(job, role, pool));
                        model.at_most([(variable, 1.0), (change, had - most.max(had))], had);
                        model.at_least([(variable, 1.0), (change, had)], had);
                    }
                }
            }
            all_cells.push(cells);
        }
        let demands = |at: usize, resource: ResourceId| {
            let of_job = move |(candidate, cells): (&Candidate<'_>, &Cells)| {
                ROLES.map(|role| (cells[at][role as usize], candidate.job.demand(role).amounts[resource] as f64))
            };
            self.candidates.iter().zip(&all_cells).flat_map(of_job)
        };
        for (at, pool) in self.pools.pools.iter().enumerate() {
            for &resource in &resources {
                model.at_most(demands(at, resource), pool.free[resource] as f64);
            }
        }
        for (owner, resource, left) in self.ledger.limits() {
            let theirs = self.candidates.iter().zip(&all_cells).filter(|(candidate, _)| owner.owns(candidate.job));
            let terms = theirs.flat_map(|(candidate, cells)| {
                let demand = |role: Role| candidate.job.demand(role).amounts[resource] as f64;
                cells.iter().flat_map(move |cell| ROLES.map(|role| (cell[role as usize], demand(role))))
            });
            model.at_most(terms, left.max(0) as f64);
        }
        model.at_most(changed, changeable.into());
        let missed = model.real(0.0, f64::INFINITY, -UNFAIR);
        model.at_most(unfairness.into_iter().chain([(missed, -1.0)]), dorm.fairness * 2.0 * resources.len() as f64);
        (model, all_cells, hint)
    }

    fn uses(&self, resource: ResourceId) -> bool {
        let demands = |job: &Job| ROLES.iter().any(|role| job.demand(*role).amounts[resource] > 0);
        self.candidates.iter().any(|candidate| demands(candidate.job))
    }
}

/// Reduces the workers to one of the job's sizes, which the program doesn't know, and the parameter servers to as many
/// as they need. Pools where the job has no slots lose theirs first.
fn to_a_size(candidate: &Candidate<'_>, counts: &mut Vec<Shape>) {
    let job = candidate.job;
    let sum = |counts: &[Shape], role: Role| counts.iter().map(|count| count.count(role)).sum::<u32>();
    let (workers, bounds) = (sum(counts, Role::Worker), job.bounds());
    if workers == 0 || bounds.sizes.has(workers) {
        return;
    }
    let size = bounds.workers_at_most(workers);
    let most_servers = i64::from(size) + Program::surplus(job);
    let servers = u32::try_from(most_servers).unwrap_or(0).clamp(bounds.servers.0, bounds.servers.1);
    let now = candidate.now.as_ref();
    if now.is_some_and(|now| sum(now, Role::Worker) == size && sum(now, Role::Server) <= servers) {
        counts.clone_from(now.expect("just seen"));
        return;
    }
    let has_slots = |at: usize| now.is_some_and(|now| !now[at].is_empty());
    let mut order: Vec<usize> = (0..counts.len()).rev().collect();
    order.sort_by_key(|at| has_slots(*at));
    let mut more = [workers.saturating_sub(size), sum(counts, Role::Server).saturating_sub(servers)];
    for at in order {
        let taken = [more[0].min(counts[at].workers), more[1].min(counts[at].servers)];
        counts[at] = Shape { workers: counts[at].workers - taken[0], servers: counts[at].servers - taken[1] };
        more = [more[0] - taken[0], more[1] - taken[1]];
    }
}
