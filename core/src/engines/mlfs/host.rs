//! Where a task goes: to the server nearest to the ideal one, and there to the least loaded GPU (MLFS, §3.3.2).

use std::sync::Arc;

use smallvec::SmallVec;

use super::Mlfs;
use crate::{
    decision::{Allocation, DeviceShare, Devices, Role, Slot},
    engines::{Budget, EngineError, board::Board},
    ids::{ResourceId, ServerId},
    job::Job,
    place::{Load, exchanged},
    reason::{Reason, Share},
    resources::{Amounts, GPU},
    server::Server,
    state::State,
};

/// The cluster under the decision in the making.
pub(super) struct Hosts<'a> {
    pub(super) state: &'a State,
    pub(super) engine: &'a Mlfs,
    pub(super) board: &'a mut Board,
    pub(super) load: Load,
}

/// One task of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Task {
    pub(super) role: Role,
    pub(super) index: u32,
}

impl Task {
    /// Its partition; a parameter server has none.
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

/// What two tasks of a job send each other.
fn traffic(job: &Job, shares: &[f64], a: Task, b: Task) -> f64 {
    exchanged(&job.spec, shares, (a.role, a.index), (b.role, b.index))
}

/// All tasks of a job as it was requested.
pub(super) fn tasks(job: &Job) -> impl Iterator<Item = Task> + Clone + use<> {
    let shape = job.spec.requested();
    let of = |role, count| (0..count).map(move |index| Task { role, index });
    of(Role::Server, shape.servers).chain(of(Role::Worker, shape.workers))
}

impl Hosts<'_> {
    /// What a task uses, or is expected to.
    pub(super) fn expected(&self, job: &Job, task: Task) -> Amounts {
        self.state.expected_use(job, task.role, task.index, self.engine.overload)
    }

    /// A home for every task of a job, in this order, or for none. The room is taken. O(tasks · (servers · resources + tasks)).
    pub(super) fn place(
        &mut self,
        job: &Job,
        shares: &[f64],
        order: &[Task],
        budget: &mut Budget,
    ) -> Result<Option<Arc<Allocation>>, EngineError> {
        let rules = self.state.settings.shape.of(&job.spec);
        if rules.equal_per_server || !rules.colocate {
            return self.place_evenly(job, budget);
        }
        let mut placed: Vec<Slot> = Vec::with_capacity(order.len());
        for task in order {
            budget.spend(self.state.servers.len() as u64 + placed.len() as u64)?;
            let uses = self.expected(job, *task);
            match self.host(job, shares, *task, &uses, &placed, None) {
                Some(slot) => {
                    self.take(job, &slot, &uses);
                    placed.push(slot);
                }
                None => {
                    for slot in &placed {
                        let uses = self.expected(job, slot.into());
                        self.give_back(job, slot, &uses);
                    }
                    return Ok(None);
                }
            }
        }
        Ok(Some(Arc::new(Allocation::new(placed))))
    }

    /// Where a job's servers must be alike task by task won't do: an even spread, if that overloads nobody.
    fn place_evenly(&mut self, job: &Job, budget: &mut Budget) -> Result<Option<Arc<Allocation>>, EngineError> {
        let Some(placed) = self.board.place_even(self.state, job, job.spec.requested(), budget)? else {
            return Ok(None);
        };
        for (at, slot) in placed.slots().iter().enumerate() {
            let uses = self.expected(job, slot.into());
            let devices: SmallVec<[u16; 8]> = slot.devices.iter().map(|share| share.device).collect();
            if !self.load.holds(slot.server, &uses, &devices) {
                for slot in &placed.slots()[..at] {
                    self.load.put(
                        slot,
                        &self.state.expected_use(job, slot.role, slot.index, self.engine.overload),
                        -1.0,
                    );
                }
                self.board.give_back(self.state, job, &placed);
                return Ok(None);
            }
            self.load.put(slot, &uses, 1.0);
        }
        Ok(Some(placed))
    }

    /// The task's best place beside those that have one; `from` is where it leaves. O(servers · resources + tasks placed).
    pub(super) fn host(
        &self,
        job: &Job,
        shares: &[f64],
        task: Task,
        uses: &Amounts,
        placed: &[Slot],
        from: Option<ServerId>,
    ) -> Option<Slot> {
        let near = self.nearness(job, shares, task, placed);
        let near_of = |id: ServerId| near.iter().find(|(server, _)| *server == id).map_or(0.0, |(_, part)| *part);
        let count = self.load.resources().len();
        let mut ideal: SmallVec<[f64; 8]> = SmallVec::from_elem(f64::INFINITY, count);
        let mut nearest = 0.0_f64;
        let mut candidates: Vec<(ServerId, Devices)> = Vec::new();
        for server in self.state.present_servers().filter(|server| !self.load.is_overloaded(server.id)) {
            for (least, part) in ideal.iter_mut().zip(self.load.parts(server.id)) {
                *least = least.min(part);
            }
            nearest = nearest.max(near_of(server.id));
            if Some(server.id) != from
                && let Some(devices) = self.fits(job, task, uses, server)
            {
                candidates.push((server.id, devices));
            }
        }
        let distance = |id: ServerId| {
            let resources = self.load.parts(id).zip(&ideal).map(|(part, least)| (part - least) * (part - least));
            let apart = nearest - near_of(id);
            // The penalty of moving is the same wherever it goes, and 0 for who waits.
            resources.sum::<f64>() + if self.engine.bandwidth { apart * apart } else { 0.0 }
        };
        let best = candidates.iter().map(|(id, devices)| (distance(*id), *id, devices));
        let (_, server, devices) = best.min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)))?;
        Some(Slot { role: task.role, index: task.index, server, devices: devices.clone() })
    }

    /// The part of the task's traffic that stays on each server where peers of it are.
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

    /// The devices it would get on a server that takes it and isn't overloaded by it.
    fn fits(&self, job: &Job, task: Task, uses: &Amounts, server: &Server) -> Option<Devices> {
        let demand = job.demand(task.role);
        let takes = self.board.room.accepts(self.state, server.id, job)
            && server.hosts.takes(task.role)
            && demand.amounts.fits(self.board.room.free(server.id));
        if !takes {
            return None;
        }
        let devices = match demand.devices.filter(|_| !server.devices.is_empty()) {
            None => Devices::new(),
            Some((wanted, milli)) => self.least_loaded(server, wanted, milli)?,
        };
        let places: SmallVec<[u16; 8]> = devices.iter().map(|share| share.device).collect();
        self.load.holds(server.id, uses, &places).then_some(devices)
    }

    /// Why a task finds no place although servers have room for it: they carry too much.
    pub(super) fn crowded(&self, job: &Job, task: Task) -> Option<Reason> {
        let demand = job.demand(task.role);
        let has_room = |id: &ServerId| {
            let server = self.state.server(*id);
            let devices = demand.devices.filter(|_| !server.devices.is_empty());
            self.board.room.accepts(self.state, *id, job)
                && server.hosts.takes(task.role)
                && demand.amounts.fits(self.board.room.free(*id))
                && devices.is_none_or(|(wanted, milli)| self.least_loaded(server, wanted, milli).is_some())
        };
        let uses = self.expected(job, task);
        let servers: Vec<ServerId> = self.state.present_servers().map(|server| server.id).filter(has_room).collect();
        let takes = |id: &ServerId| {
            !self.load.is_overloaded(*id) && self.fits(job, task, &uses, self.state.server(*id)).is_some()
        };
        if servers.iter().any(takes) {
            return None;
        }
        let server = servers.into_iter().min_by(|a, b| self.load.degree(*a).total_cmp(&self.load.degree(*b)))?;
        let parts = self.load.parts(server).zip(self.load.parts_of(server, &uses)).zip(self.load.resources());
        let shortest = parts.map(|((part, more), resource)| (part + more, part, *resource));
        let (_, part, resource) = shortest.max_by(|a, b| a.0.total_cmp(&b.0))?;
        Some(Reason::Overloaded { server, resource, used: Share::of(part) })
    }

    fn least_loaded(&self, server: &Server, wanted: ResourceId, milli: u32) -> Option<Devices> {
        let (each, count) = (milli.min(1000) as u16, (milli / 1000).max(1) as usize);
        let reserved = self.board.room.devices(server.id);
        let free = |at: usize| reserved.get(at).copied().unwrap_or(0).saturating_add(each) <= server.bookable;
        let suits = |at: &usize| (wanted == GPU || server.devices[*at] == wanted) && free(*at);
        let mut devices: SmallVec<[usize; 16]> = (0..server.devices.len()).filter(suits).collect();
        if devices.len() < count {
            return None;
        }
        let load = self.load.devices(server.id);
        devices.sort_by(|a, b| load[*a].used.total_cmp(&load[*b].used).then(a.cmp(b)));
        let mut devices: Devices =
            devices[..count].iter().map(|at| DeviceShare { device: *at as u16, milli: each }).collect();
        devices.sort_unstable();
        Some(devices)
    }

    /// A task comes to a place.
    pub(super) fn take(&mut self, job: &Job, slot: &Slot, uses: &Amounts) {
        let taken = self.board.room.take_again(slot.server, job.demand(slot.role), &slot.devices);
        debug_assert!(taken, "it was just found to fit");
        self.board.free.update(&self.board.room, slot.server, true);
        self.load.put(slot, uses, 1.0);
    }

    /// It leaves again.
    pub(super) fn give_back(&mut self, job: &Job, slot: &Slot, uses: &Amounts) {
        self.board.give_back(self.state, job, &Allocation::new(vec![slot.clone()]));
        self.load.put(slot, uses, -1.0);
    }
}
