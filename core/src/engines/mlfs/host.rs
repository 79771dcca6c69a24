//! The place of a task: the server nearest to the ideal one, and its least loaded GPU (MLFS, §3.3.2).

use std::{collections::BTreeMap, sync::Arc};

use smallvec::SmallVec;

use super::{
    overload::{Lost, Place},
    parameters::Mlfs,
    policy::{Candidate, Choice, Chooser, NEAREST, SCORE},
};
use crate::{
    decision::{Allocation, Devices, Slot},
    engine::{Budget, EngineError, board::Board, sharing},
    ids::ServerId,
    job::Job,
    place::{Load, exchanged},
    reason::{Reason, Share, Worth},
    resources::Amounts,
    shape::Role,
    state::State,
};

/// The cluster under the decision in progress.
pub(super) struct Hosts<'a> {
    pub(super) state: &'a State,
    pub(super) engine: &'a Mlfs,
    pub(super) board: &'a mut Board,
    pub(super) load: Load,
    pub(super) chooser: Chooser<'a>,
    /// Number of tasks that should leave a server and have no other place yet. No task is placed there meanwhile.
    pub(super) relieved: BTreeMap<ServerId, u32>,
    pub(super) lost: BTreeMap<Place, Lost>,
}

/// The result of placing a job.
pub(super) enum Home {
    /// All tasks have a place.
    At(Arc<Allocation>),
    /// The policy prefers to wait.
    HeldBack(Reason),
    /// There is no room.
    Nowhere,
}

/// One task of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Task {
    pub(super) role: Role,
    pub(super) index: u32,
}

impl Task {
    /// Its partition. A parameter server has none.
    pub(super) fn part(self, job: &Job) -> Option<usize> {
        let parts = job.spec.partitions.len().max(1);
        (self.role == Role::Worker).then_some(self.index as usize % parts)
    }
}

impl From<&Slot> for Task {
    fn from(slot: &Slot) -> Self {
        Self { role: slot.role, index: slot.index }
    }
}

/// Traffic between two tasks of a job.
fn traffic(job: &Job, shares: &[f64], a: Task, b: Task) -> f64 {
    exchanged(&job.spec, shares, (a.role, a.index), (b.role, b.index))
}

/// All tasks of a job's requested shape.
pub(super) fn tasks(job: &Job) -> impl Iterator<Item = Task> + Clone + use<> {
    let shape = job.spec.requested();
    let of = |role, count| (0..count).map(move |index| Task { role, index });
    of(Role::Server, shape.servers).chain(of(Role::Worker, shape.workers))
}

impl Hosts<'_> {
    /// Measured or expected use of a task.
    pub(super) fn expected(&self, job: &Job, task: Task) -> Amounts {
        self.state.expected_use(job, task.role, task.index, self.engine.overload)
    }

    /// Whether a server is neither overloaded nor being relieved.
    fn is_open(&self, id: ServerId) -> bool {
        !self.relieved.contains_key(&id) && !self.load.is_overloaded(id)
    }

    /// Steps of the budget for one choice between servers.
    pub(super) fn steps(&self) -> u64 {
        let scores = if matches!(self.chooser, Chooser::Heuristic) { 0 } else { NEAREST as u64 + 2 };
        self.state.servers.len() as u64 + scores * SCORE
    }

    /// Places all tasks of a job in this order and reserves their room, or none with the reason.
    /// O(tasks · (servers · resources + tasks)).
    pub(super) fn place(
        &mut self,
        job: &Job,
        shares: &[f64],
        order: &[Task],
        budget: &mut Budget,
    ) -> Result<Home, EngineError> {
        let rules = self.state.settings.shape.of(&job.spec);
        if rules.equal_per_server || !rules.colocate {
            let most = self.engine.overload;
            let placed = sharing::place_evenly(self.state, self.board, &mut self.load, most, job, budget)?;
            let Some(placed) = placed else { return Ok(Home::Nowhere) };
            if placed.slots().iter().any(|slot| self.relieved.contains_key(&slot.server)) {
                for slot in placed.slots() {
                    let uses = self.expected(job, slot.into());
                    self.give_back(job, slot, &uses);
                }
                return Ok(Home::Nowhere);
            }
            return Ok(Home::At(placed));
        }
        budget.spend(self.state.servers.len() as u64)?;
        if !self.could_hold(job) {
            return Ok(Home::Nowhere);
        }
        let mut placed: Vec<Slot> = Vec::with_capacity(order.len());
        for task in order {
            budget.spend(self.steps() + placed.len() as u64)?;
            let uses = self.expected(job, *task);
            let choice = self.host(job, shares, *task, &uses, &placed, None);
            if let Choice::To(slot) = choice {
                self.take(job, &slot, &uses);
                placed.push(slot);
                continue;
            }
            for slot in &placed {
                let uses = self.expected(job, slot.into());
                self.give_back(job, slot, &uses);
            }
            return Ok(match choice {
                Choice::Wait { waiting, server, score } => {
                    let worth = |score: f32| Worth::of(f64::from(score));
                    Home::HeldBack(Reason::HeldBack { waiting: worth(waiting), server, score: worth(score) })
                }
                _ => Home::Nowhere,
            });
        }
        Ok(Home::At(Arc::new(Allocation::new(placed))))
    }

    /// Whether there may be room for all workers of a job. This check is faster than trying all tasks in vain.
    /// O(servers · (resources + devices)).
    fn could_hold(&self, job: &Job) -> bool {
        let uses = self.expected(job, Task { role: Role::Worker, index: 0 });
        let mut missing = job.spec.requested().workers;
        self.state.present_servers().filter(|server| self.is_open(server.id)).any(|server| {
            let most = sharing::at_most(self.state, self.board, &self.load, job, Role::Worker, &uses, server);
            missing = missing.saturating_sub(most);
            missing == 0
        })
    }

    /// The best place of a task beside the placed ones. `from` is its current place. O(servers · resources + placed
    /// tasks).
    pub(super) fn host(
        &mut self,
        job: &Job,
        shares: &[f64],
        task: Task,
        uses: &Amounts,
        placed: &[Slot],
        from: Option<&Slot>,
    ) -> Choice {
        let near = self.nearness(job, shares, task, placed);
        let near_of = |id: ServerId| near.iter().find(|(server, _)| *server == id).map_or(0.0, |(_, part)| *part);
        let count = self.load.resources().len();
        let mut ideal: SmallVec<[f64; 8]> = SmallVec::from_elem(f64::INFINITY, count);
        let mut nearest = 0.0_f64;
        let mut candidates: Vec<(ServerId, Devices)> = Vec::new();
        for server in self.state.present_servers().filter(|server| self.is_open(server.id)) {
            for (least, part) in ideal.iter_mut().zip(self.load.parts(server.id)) {
                *least = least.min(part);
            }
            nearest = nearest.max(near_of(server.id));
            if from.is_none_or(|from| server.id != from.server)
                && let Some(devices) =
                    sharing::devices(self.state, self.board, &self.load, job, task.role, uses, server)
            {
                candidates.push((server.id, devices));
            }
        }
        let candidate = |slot: Slot, stays: bool| {
            let near = near_of(slot.server);
            let resources =
                self.load.parts(slot.server).zip(&ideal).map(|(part, least)| (part - least) * (part - least));
            let apart = nearest.max(near) - near;
            // The penalty of a move is the same for every target, and 0 for waiting tasks.
            let distance = (resources.sum::<f64>(), if self.engine.bandwidth { apart * apart } else { 0.0 });
            Candidate { slot, stays, distance, near }
        };
        let slot =
            |(server, devices): (ServerId, Devices)| Slot { role: task.role, index: task.index, server, devices };
        let places = candidates.into_iter().map(|found| candidate(slot(found), false));
        let places: Vec<Candidate> = places.chain(from.map(|from| candidate(from.clone(), true))).collect();
        self.chooser.choose(&self.load, job, task, uses, places)
    }

    /// The fraction of the task's traffic that stays on each server with peers of it.
    pub(super) fn nearness(
        &self,
        job: &Job,
        shares: &[f64],
        task: Task,
        placed: &[Slot],
    ) -> SmallVec<[(ServerId, f64); 8]> {
        let mut near: SmallVec<[(ServerId, f64); 8]> = SmallVec::new();
        if !self.engine.bandwidth {
            return near;
        }
        let total: f64 = tasks(job).filter(|peer| *peer != task).map(|peer| traffic(job, shares, task, peer)).sum();
        for peer in placed.iter().filter(|peer| Task::from(*peer) != task) {
            let part = traffic(job, shares, task, peer.into()) / total.max(1e-12);
            match near.iter_mut().find(|(server, _)| *server == peer.server) {
                _ if part <= 0.0 => {}
                Some((_, here)) => *here += part,
                None => near.push((peer.server, part)),
            }
        }
        near
    }

    /// Why a task has no place although servers have room: they are overloaded.
    pub(super) fn crowded(&self, job: &Job, task: Task) -> Option<Reason> {
        let (state, board, load) = (self.state, &*self.board, &self.load);
        let uses = self.expected(job, task);
        let mut best: Option<(f64, ServerId)> = None;
        for server in state.present_servers() {
            if sharing::devices_free(state, board, load, job, task.role, server).is_none() {
                continue;
            }
            let takes = sharing::devices(state, board, load, job, task.role, &uses, server).is_some();
            if takes && self.is_open(server.id) {
                return None;
            }
            let degree = load.degree(server.id);
            if best.is_none_or(|(least, _)| degree < least) {
                best = Some((degree, server.id));
            }
        }
        let (_, server) = best?;
        let parts = load.parts(server).zip(load.parts_of(server, &uses)).zip(load.resources());
        let shortest = parts.map(|((part, more), resource)| (part + more, part, *resource));
        let (_, part, resource) = shortest.max_by(|a, b| a.0.total_cmp(&b.0))?;
        Some(Reason::Overloaded { server, resource, used: Share::of(part) })
    }

    /// Adds a task at a place.
    pub(super) fn take(&mut self, job: &Job, slot: &Slot, uses: &Amounts) {
        sharing::take(self.board, &mut self.load, job, slot, uses);
    }

    /// Removes it again.
    pub(super) fn give_back(&mut self, job: &Job, slot: &Slot, uses: &Amounts) {
        sharing::give_back(self.state, self.board, &mut self.load, job, slot, uses);
    }
}
