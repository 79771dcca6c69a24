//! Gandiva: first in, first out, with similar jobs together. The least busy task of an overloaded GPU moves to the
//! least used GPU.
//!
//! Xiao et al., *Gandiva: Introspective Cluster Scheduling for Deep Learning*, OSDI'18, as described for comparison by
//! MLFS's authors (CoNEXT'20, §2): a FIFO queue; jobs with the same number of GPUs have an affinity, and share servers
//! if possible; from a GPU with a utilisation above a threshold, the job with the lowest utilisation moves to the GPU
//! with the lowest utilisation.
//!
//! * Jobs are ordered as under [`fifo`](super::fifo), and get their requested shape or nothing. A job that fits may
//!   pass one that doesn't: Gandiva itself suspends and resumes jobs, so that its queue never blocks.
//!   `backfill = false` is the strict queue.
//! * A slot goes to a server of its own job, or else to one with jobs of its affinity, or else to one without jobs, or
//!   else to any. Among these it goes to the server with the least used GPU, and to that GPU. If the pool
//!   [oversubscribes](crate::settings::ShapeRules::oversubscribe), tasks share GPUs, unless the measured or expected
//!   use overloads one.
//! * A GPU is overloaded if it carries more than `overload` in more than one slot. Then the slot that uses it least
//!   moves, until the GPU is no longer overloaded. The target is the least used GPU that the slot doesn't overload. If
//!   it fits nowhere, the next busier slot is tried. If none fits, all stay. A moving slot restarts from its checkpoint
//!   with its whole job.
//!
//! The papers leave some points open. The following choices are our own:
//! * The use of a GPU by a slot without measurements is that of its model's slots, or else `overload` of its demand.
//!   Without measurements nothing moves.
//! * MLFS's authors don't describe Gandiva's suspend and resume within a minute, or its growing and shrinking of jobs.
//!   They aren't implemented: jobs that share a GPU run at the same time.
//! * Only slots that run where they are planned move, at most once per decision. Jobs whose servers must have equal
//!   reservations ([`ShapeRules`](crate::settings::ShapeRules)) don't move.
//!
//! Choose it for comparisons, or for many small, measured jobs that leave much of a GPU idle.
//!
//! Cost: O(J log J + planned slots) per decision with J waiting jobs, and O(S·R) for each slot that is placed or moved,
//! with S servers of R resources.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::engine::{
    About, Budget, Build, Engine, EngineError, Limits, Parameters, Round, Triggers, board::Board, in_line::by_arrival,
    ledger::Ledger, round, sharing,
};
use crate::{
    decision::{Allocation, Slot},
    ids::{JobId, ServerId},
    job::Job,
    place::Load,
    resources::{Amounts, GPU},
    server::Server,
    settings::SettingsError,
    shape::Role,
    state::State,
    time::Span,
};

/// The engine, as its module describes it.
#[derive(Clone, Debug)]
pub struct Gandiva {
    interval: Span,
    overload: f64,
    migrate: bool,
    backfill: bool,
}

impl Build for Gandiva {
    type Engine = Self;
    const ABOUT: About = About::new(
        "gandiva",
        "FIFO, like jobs on the same servers, the least busy leave overloaded GPUs",
        "Xiao et al., Gandiva, OSDI'18; baseline of MLFS",
    );

    fn build(parameters: &mut Parameters<'_>) -> Result<Self, SettingsError> {
        let overload = "a GPU of which more than this part is used, by several slots, is overloaded";
        Ok(Self {
            interval: round::minute(parameters)?,
            overload: parameters.number("overload", 0.9, 0.1..=1.0, overload)?,
            migrate: parameters.flag("migrate", true, "slots leave overloaded GPUs")?,
            backfill: parameters.flag("backfill", true, "jobs that fit may pass one that doesn't")?,
        })
    }
}

impl Engine for Gandiva {
    type Memo = ();
    type Index = ();

    fn triggers(&self) -> Triggers {
        Triggers { interval: Some(self.interval), arrival: true, departure: true }
    }

    fn limits(&self) -> Limits {
        Limits::Measured(libm::round(self.overload * 1000.0) as u16)
    }

    fn decide(&self, round: &mut Round<'_>, (): &mut ()) -> Result<(), EngineError> {
        let state = round.state;
        round.budget.spend(state.jobs.len() as u64)?;
        let mut servers =
            Servers { state, most: self.overload, load: Load::of(state, self.overload), likes: likes(state) };
        if self.migrate {
            servers.relieve(round)?;
        }
        let (mut waiting, _) = round.waiting_jobs();
        by_arrival(round.state, &mut waiting);
        // If GPUs are shared, the plan exceeds the capacity.
        round.start_in_line((&waiting, Ledger::left(state)), self.backfill, |round, job| {
            servers.place(round.board, job, round.budget)
        })
    }
}

/// Thousandths of GPUs of a job. Jobs with the same number have an affinity.
fn affinity(job: &Job) -> i64 {
    job.total(job.spec.requested())[GPU]
}

/// The affinities of the jobs on each server. O(planned slots).
fn likes(state: &State) -> Vec<BTreeSet<i64>> {
    let mut likes = vec![BTreeSet::new(); state.servers.len()];
    for job in state.jobs.values() {
        for slot in job.verdict.allocation().iter().flat_map(|allocation| allocation.slots()) {
            likes[slot.server.index()].insert(affinity(job));
        }
    }
    likes
}

/// Servers under the decision in progress.
struct Servers<'a> {
    state: &'a State,
    most: f64,
    load: Load,
    likes: Vec<BTreeSet<i64>>,
}

/// A slot on an overloaded GPU. In order of its use, the least busy first.
type Candidate = (u64, JobId, Role, u32);

impl Servers<'_> {
    /// Places all slots of a job's requested shape, or none.
    fn place(
        &mut self,
        board: &mut Board,
        job: &Job,
        budget: &mut Budget,
    ) -> Result<Option<Arc<Allocation>>, EngineError> {
        let rules = self.state.settings.shape.of(&job.spec);
        let placed = if rules.equal_per_server || !rules.colocate {
            sharing::place_evenly(self.state, board, &mut self.load, self.most, job, budget)?
        } else {
            self.place_each(board, job, budget)?
        };
        for slot in placed.iter().flat_map(|placed| placed.slots()) {
            self.likes[slot.server.index()].insert(affinity(job));
        }
        Ok(placed)
    }

    fn place_each(
        &mut self,
        board: &mut Board,
        job: &Job,
        budget: &mut Budget,
    ) -> Result<Option<Arc<Allocation>>, EngineError> {
        let shape = job.spec.requested();
        let of = |role| (0..shape.count(role)).map(move |index| (role, index));
        let mut placed: Vec<Slot> = Vec::new();
        let alike = affinity(job);
        for (role, index) in of(Role::Worker).chain(of(Role::Server)) {
            budget.spend(self.state.servers.len() as u64)?;
            let uses = self.state.expected_use(job, role, index, self.most);
            let strangeness = |id: ServerId| match &self.likes[id.index()] {
                _ if placed.iter().any(|slot| slot.server == id) => 0,
                likes if likes.contains(&alike) => 1,
                likes if likes.is_empty() => 2,
                _ => 3,
            };
            let Some(slot) = self.best(board, job, (role, index), &uses, strangeness) else {
                for slot in &placed {
                    let uses = self.state.expected_use(job, slot.role, slot.index, self.most);
                    sharing::give_back(self.state, board, &mut self.load, job, slot, &uses);
                }
                return Ok(None);
            };
            sharing::take(board, &mut self.load, job, &slot, &uses);
            placed.push(slot);
        }
        Ok(Some(Arc::new(Allocation::new(placed))))
    }

    /// The least used GPU with room, on the servers of the closest affinity. O(servers · resources).
    fn best(
        &self,
        board: &Board,
        job: &Job,
        (role, index): (Role, u32),
        uses: &Amounts,
        strangeness: impl Fn(ServerId) -> u8,
    ) -> Option<Slot> {
        let of = |server: &Arc<Server>| {
            let devices = sharing::devices(self.state, board, &self.load, job, role, uses, server)?;
            let load = self.load.devices(server.id);
            let used = devices.iter().map(|share| load[usize::from(share.device)].used).fold(0.0, f64::max);
            let used = if devices.is_empty() { self.load.degree(server.id) } else { used };
            Some(((strangeness(server.id), used.to_bits(), server.id), devices))
        };
        let ((_, _, server), devices) = self.state.present_servers().filter_map(of).min_by_key(|(key, _)| *key)?;
        Some(Slot { role, index, server, devices })
    }

    /// Moves the least busy slots from overloaded GPUs.
    fn relieve(&mut self, round: &mut Round<'_>) -> Result<(), EngineError> {
        let (board, budget) = (&mut *round.board, &mut *round.budget);
        let state = self.state;
        let mut moved: BTreeMap<JobId, Vec<Slot>> = BTreeMap::new();
        for ((server, device), here) in self.overloaded() {
            for (_, id, role, index) in here {
                if !self.load.is_device_overloaded(server, usize::from(device)) {
                    break;
                }
                budget.spend(state.servers.len() as u64)?;
                let job = &state.jobs[&id];
                let allocation = job.verdict.allocation().expect("it has a slot there");
                let slot = allocation.slot(role, index).expect("it is there");
                let new = moved.entry(id).or_default();
                if new.iter().any(|new| (new.role, new.index) == (role, index)) {
                    continue;
                }
                let uses = state.expected_use(job, role, index, self.most);
                sharing::give_back(state, board, &mut self.load, job, slot, &uses);
                match self.best(board, job, (role, index), &uses, |_| 0) {
                    Some(found) => {
                        sharing::take(board, &mut self.load, job, &found, &uses);
                        new.push(found);
                    }
                    None => sharing::take(board, &mut self.load, job, slot, &uses),
                }
            }
        }
        for (id, new) in moved.into_iter().filter(|(_, new)| !new.is_empty()) {
            let job = &state.jobs[&id];
            let allocation = job.verdict.allocation().expect("it has slots");
            let now = |slot: &Slot| {
                new.iter().find(|new| (new.role, new.index) == (slot.role, slot.index)).unwrap_or(slot).clone()
            };
            round.proposal.run(job, Arc::new(Allocation::new(allocation.slots().iter().map(now).collect())));
        }
        Ok(())
    }

    /// Overloaded GPUs with their movable slots, the least busy first. O(devices + planned slots · log).
    fn overloaded(&self) -> BTreeMap<(ServerId, u16), BTreeSet<Candidate>> {
        let state = self.state;
        let mut overloaded: BTreeMap<(ServerId, u16), BTreeSet<Candidate>> = BTreeMap::new();
        for server in state.present_servers().filter(|server| server.measured.is_some()) {
            let devices = 0..server.devices.len();
            for device in devices.filter(|device| self.load.is_device_overloaded(server.id, *device)) {
                overloaded.insert((server.id, device as u16), BTreeSet::new());
            }
        }
        if overloaded.is_empty() {
            return overloaded;
        }
        for job in state.jobs.values() {
            let Some(allocation) = sharing::settled(job).filter(|_| sharing::movable(state, job)) else { continue };
            for slot in allocation.slots() {
                for share in &slot.devices {
                    let Some(here) = overloaded.get_mut(&(slot.server, share.device)) else { continue };
                    let uses = state.expected_use(job, slot.role, slot.index, self.most)[GPU];
                    let each = uses.max(0) as u64 / slot.devices.len() as u64;
                    here.insert((each, job.id, slot.role, slot.index));
                }
            }
        }
        overloaded
    }
}
