//! The genetic search for places.
//!
//! A population of allocations is improved generation by generation. A child has the places of one parent for the first
//! jobs and of another for the rest. Then some of its jobs return to their present places, some replicas go, and some
//! come where there is room. At last it is repaired, so that no server holds more than it can. The best of parents and
//! children are the next generation.

use std::{collections::BTreeMap, sync::Arc};

use rand_chacha::{ChaCha8Rng, rand_core::RngCore};
use smallvec::SmallVec;

use super::replica;
use crate::{
    engine::{
        Budget, EngineError,
        ledger::{Ledger, Owner},
    },
    ids::{ResourceId, ServerId},
    job::Job,
    place::Room,
    resources::Amounts,
    state::State,
};

/// Replicas of a job by server, in the order of servers.
pub(super) type Places = SmallVec<[(u32, u32); 4]>;

/// Most children of a search, times jobs.
const MOST_WORK: u64 = 2_000_000;

/// Generations without a better allocation that end a search.
const PATIENCE: u32 = 40;

/// The part of jobs that a mutation sets back to their present places, that loses replicas, and that gets any number on
/// one of its servers.
const MUTATED: f64 = 0.1;

/// A job in a search.
pub(super) struct Candidate<'a> {
    pub(super) job: &'a Arc<Job>,
    /// Largest number of replicas.
    pub(super) most: u32,
    /// Its present places.
    pub(super) base: Places,
    /// The job's part of the fitness without replicas.
    pub(super) nothing: f64,
    /// What it adds by the number of replicas, from the smallest on, where they stay on one server, stay on several, or
    /// changed to these.
    pub(super) worth: Vec<[f64; 4]>,
}

impl Candidate<'_> {
    fn worth(&self, places: &Places) -> f64 {
        let replicas: u32 = places.iter().map(|(_, count)| count).sum();
        let beyond = replicas.saturating_sub(self.job.bounds().workers.0) as usize;
        // More than `most` are its present ones.
        let worth = self.worth.get(beyond).or(self.worth.last()).filter(|_| !places.is_empty());
        worth.map_or(self.nothing, |by| by[usize::from(places.len() > 1) + 2 * usize::from(*places != self.base)])
    }

    /// The most that it could add, with the present places or any others.
    fn most_worth(&self) -> f64 {
        let changed = self.worth.iter().flat_map(|by| by[2..].iter().copied());
        changed.fold(self.worth(&self.base).max(self.nothing), f64::max)
    }
}

/// Jobs and the room that they share.
pub(super) struct Problem<'a> {
    pub(super) candidates: Vec<Candidate<'a>>,
    state: &'a State,
    room: &'a Room,
    avoid_interference: bool,
    /// Resources that replicas take.
    resources: Vec<ResourceId>,
    /// By job and resource: what a replica takes.
    units: Vec<i64>,
    /// The least that any replica takes, by resource.
    least: Vec<i64>,
    /// Free amounts by server and resource.
    free: Vec<i64>,
    /// The room within the limits of tenants and queues.
    limits: Vec<i64>,
    /// By job: its limits, with what a replica takes of each.
    limited: Vec<SmallVec<[(usize, i64); 2]>>,
}

/// The room beside a plan while it is built.
#[derive(Default)]
struct Left {
    /// By server and resource.
    room: Vec<i64>,
    /// By limit.
    limits: Vec<i64>,
    /// Servers that a job on several servers uses.
    taken: Vec<bool>,
}

/// An allocation with its fitness.
#[derive(Clone)]
struct Plan {
    places: Vec<Places>,
    fitness: f64,
}

/// Sizes of a search.
#[derive(Clone, Debug)]
pub(super) struct Search {
    pub(super) population: usize,
    pub(super) generations: u32,
}

impl<'a> Problem<'a> {
    /// The room and the ledger are free of the candidates' slots. O(jobs + servers), times resources, plus O(limits).
    pub(super) fn new(
        state: &'a State,
        (room, ledger): (&'a Room, &Ledger),
        candidates: Vec<Candidate<'a>>,
        avoid_interference: bool,
    ) -> Self {
        let needs: Vec<_> = candidates.iter().map(|candidate| replica(candidate.job)).collect();
        let mut resources: Vec<ResourceId> =
            needs.iter().flat_map(|need| need.iter().filter(|(_, amount)| *amount > 0).map(|(id, _)| id)).collect();
        resources.sort_unstable();
        resources.dedup();
        let row = |of: &Amounts| resources.iter().map(|id| of[*id]).collect::<Vec<i64>>();
        let units: Vec<i64> = needs.iter().flat_map(&row).collect();
        let least = (0..resources.len())
            .map(|at| units.iter().skip(at).step_by(resources.len()).copied().min().unwrap_or(0))
            .collect();
        let free = (0..room.len() as u32).flat_map(|id| row(room.free(ServerId(id)))).collect();
        let mut limits = Vec::new();
        let mut owned: BTreeMap<Owner, Vec<(usize, ResourceId)>> = BTreeMap::new();
        for (owner, resource, left) in ledger.limits() {
            owned.entry(owner).or_default().push((limits.len(), resource));
            limits.push(left);
        }
        let of_job = |(candidate, need): (&Candidate<'_>, &Amounts)| {
            let owners = [Owner::Tenant(candidate.job.tenant), Owner::Queue(candidate.job.queue)];
            let mine = owners.iter().filter_map(|owner| owned.get(owner)).flatten();
            mine.map(|(limit, resource)| (*limit, need[*resource])).filter(|(_, each)| *each > 0).collect()
        };
        let limited = candidates.iter().zip(&needs).map(of_job).collect();
        Self { candidates, state, room, avoid_interference, resources, units, least, free, limits, limited }
    }

    fn unit(&self, job: usize) -> &[i64] {
        &self.units[job * self.resources.len()..][..self.resources.len()]
    }

    /// How many replicas of a job fit into what is left of a server.
    fn held(&self, job: usize, server: u32, left: &[i64]) -> u32 {
        let left = &left[server as usize * self.resources.len()..][..self.resources.len()];
        let held = self.unit(job).iter().zip(left).filter(|(each, _)| **each > 0).map(|(each, left)| left / each);
        u32::try_from(held.min().unwrap_or(i64::from(u32::MAX)).max(0)).unwrap_or(u32::MAX)
    }

    /// The most replicas of a job that a server can hold.
    fn most(&self, job: usize, server: u32) -> u32 {
        self.held(job, server, &self.free).min(self.candidates[job].most)
    }

    fn take(&self, job: usize, server: u32, count: u32, left: &mut [i64]) {
        let left = &mut left[server as usize * self.resources.len()..][..self.resources.len()];
        left.iter_mut().zip(self.unit(job)).for_each(|(left, each)| *left -= each * i64::from(count));
    }

    fn accepts(&self, job: usize, server: u32) -> bool {
        self.room.accepts(self.state, ServerId(server), self.candidates[job].job)
    }

    /// Random changes of places: back to the present ones, fewer replicas, any number on a server, and more where there
    /// is room.
    fn mutate(&self, plan: &mut [Places], left: &mut Vec<i64>, draws: &mut ChaCha8Rng) {
        left.clone_from(&self.free);
        for (job, places) in plan.iter_mut().enumerate() {
            if chance(draws, MUTATED) {
                places.clone_from(&self.candidates[job].base);
            }
            if chance(draws, MUTATED) {
                places.retain(|_| !chance(draws, MUTATED));
            }
            places.iter().for_each(|(server, count)| self.take(job, *server, *count, left));
        }
        let width = self.resources.len().max(1);
        let has_room = |(_, left): &(usize, &[i64])| left.iter().zip(&self.least).all(|(left, least)| left >= least);
        let open: Vec<u32> = left.chunks(width).enumerate().filter(has_room).map(|(server, _)| server as u32).collect();
        for (job, places) in plan.iter_mut().enumerate() {
            let anywhere = (!open.is_empty()).then(|| open[below(draws, open.len())]);
            let own = (!places.is_empty()).then(|| below(draws, places.len()));
            if let Some(at) = own.filter(|at| chance(draws, MUTATED) && self.accepts(job, places[*at].0)) {
                // Whether others keep their room is left to the repair.
                let (server, count) = &mut places[at];
                *count = below(draws, self.most(job, *server).max(*count) as usize + 1) as u32;
            }
            let own = own.map(|at| places[at].0);
            for server in [anywhere, own].into_iter().flatten() {
                if self.held(job, server, left) == 0 || !self.accepts(job, server) {
                    continue;
                }
                let most = self.most(job, server);
                let at = places.binary_search_by_key(&server, |(server, _)| *server);
                let now = at.map_or(0, |at| places[at].1);
                let count = now + below(draws, most.saturating_sub(now) as usize + 1) as u32;
                match at {
                    Ok(at) => places[at].1 = count,
                    Err(at) if count > 0 => places.insert(at, (server, count)),
                    Err(_) => {}
                }
            }
            self.complete(job, places, &open, left, draws);
        }
    }

    /// Adds servers to a job with too few replicas to run, as long as random ones have room.
    fn complete(&self, job: usize, places: &mut Places, open: &[u32], left: &[i64], draws: &mut ChaCha8Rng) {
        let least = self.candidates[job].job.bounds().workers.0;
        let mut total: u32 = places.iter().map(|(_, count)| count).sum();
        // A job that runs with one replica has enough or none.
        let tries = if least > 1 && total > 0 && !open.is_empty() { 2 * least } else { 0 };
        for _ in 0..tries {
            if total >= least {
                break;
            }
            let server = open[below(draws, open.len())];
            let Err(at) = places.binary_search_by_key(&server, |(server, _)| *server) else { continue };
            let count = self.held(job, server, left).min(least - total);
            if count > 0 && self.accepts(job, server) {
                places.insert(at, (server, count));
                total += count;
            }
        }
    }

    /// Removes what breaks a rule: the second job on several servers on one of them, replicas beyond a job's largest
    /// number or a limit, and those that a server can't hold. Earlier jobs go first.
    fn repair(&self, plan: &mut [Places], left: &mut Left, draws: &mut ChaCha8Rng) {
        let Left { room: left, limits, taken } = left;
        left.clone_from(&self.free);
        limits.clone_from(&self.limits);
        taken.clear();
        taken.resize(self.room.len(), false);
        for (job, places) in plan.iter_mut().enumerate() {
            let candidate = &self.candidates[job];
            if self.avoid_interference && places.len() > 1 {
                places.retain(|(server, _)| !std::mem::replace(&mut taken[*server as usize], true));
            }
            let stays = *places == candidate.base;
            let mut total = 0;
            // Which servers lose replicas is random.
            let first = below(draws, places.len().max(1));
            for step in 0..places.len() {
                let at = (first + step) % places.len();
                let (server, count) = &mut places[at];
                let most = if stays { u32::MAX } else { candidate.most - total };
                *count = (*count).min(self.held(job, *server, left)).min(most);
                total += *count;
            }
            // A job may run only with some numbers of replicas.
            let bounds = candidate.job.bounds();
            let within = self.limited[job].iter().map(|(limit, each)| limits[*limit].max(0) / each).min();
            let most = within.map_or(total, |within| total.min(u32::try_from(within).unwrap_or(u32::MAX)));
            let allowed = if most < bounds.workers.0 { 0 } else { bounds.workers_at_most(most) };
            for (_, count) in places.iter_mut().rev() {
                let goes = (total - allowed).min(*count);
                *count -= goes;
                total -= goes;
            }
            places.retain(|(_, count)| *count > 0);
            places.iter().for_each(|(server, count)| self.take(job, *server, *count, left));
            self.limited[job].iter().for_each(|(limit, each)| limits[*limit] -= each * i64::from(total));
        }
    }

    fn fitness(&self, places: &[Places]) -> f64 {
        self.candidates.iter().zip(places).map(|(candidate, places)| candidate.worth(places)).sum()
    }
}

impl Search {
    /// The fittest allocation found: places for each candidate.
    pub(super) fn run(
        &self,
        problem: &Problem<'_>,
        draws: &mut ChaCha8Rng,
        budget: &mut Budget,
    ) -> Result<Vec<Places>, EngineError> {
        let jobs = problem.candidates.len();
        if jobs == 0 {
            return Ok(Vec::new());
        }
        let mut left = Left::default();
        let mut present: Vec<Places> = problem.candidates.iter().map(|candidate| candidate.base.clone()).collect();
        problem.repair(&mut present, &mut left, draws);
        let mut population = vec![Plan { fitness: problem.fitness(&present), places: present }];
        let children = self.population.min((MOST_WORK.min(budget.left() / 2) / jobs as u64) as usize).max(1);
        let work = (children * jobs) as u64;
        let afford = (MOST_WORK.min(budget.left() / 2) / work.max(1)).max(1);
        let generations = u64::from(self.generations).min(afford);
        let bound: f64 = problem.candidates.iter().map(Candidate::most_worth).sum();
        let mut stale = 0;
        for _ in 0..generations {
            let best = population[0].fitness;
            if best >= bound {
                // Every job has the best places for it.
                break;
            }
            for _ in 0..children {
                budget.spend(jobs as u64)?;
                let (one, other) = (parent(&population, draws), parent(&population, draws));
                let point = below(draws, jobs);
                let mut places: Vec<Places> = population[one].places[..point].to_vec();
                places.extend_from_slice(&population[other].places[point..]);
                problem.mutate(&mut places, &mut left.room, draws);
                problem.repair(&mut places, &mut left, draws);
                population.push(Plan { fitness: problem.fitness(&places), places });
            }
            population.sort_by(|one, other| other.fitness.total_cmp(&one.fitness));
            population.dedup_by(|one, other| one.fitness == other.fitness && one.places == other.places);
            population.truncate(self.population);
            stale = if population[0].fitness > best { 0 } else { stale + 1 };
            if stale == PATIENCE {
                break;
            }
        }
        Ok(population.swap_remove(0).places)
    }
}

/// The fitter of two random members of a population that is sorted by fitness.
fn parent(population: &[Plan], draws: &mut ChaCha8Rng) -> usize {
    let (one, other) = (below(draws, population.len()), below(draws, population.len()));
    let better = population[one].fitness >= population[other].fitness;
    if better { one } else { other }
}

/// A random number below `count`, which is at least 1.
fn below(draws: &mut ChaCha8Rng, count: usize) -> usize {
    (draws.next_u64() % count as u64) as usize
}

fn chance(draws: &mut ChaCha8Rng, probability: f64) -> bool {
    f64::from(draws.next_u32()) < probability * f64::from(u32::MAX)
}
