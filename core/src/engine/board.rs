//! The servers for placement by engines: their room and order, kept from round to round.

use std::{cmp::Reverse, collections::BTreeMap, sync::Arc};

use imbl::Vector;

use super::ledger::Ledger;
use crate::budget::{Budget, EngineError};
use crate::{
    decision::{Allocation, Devices, Slot},
    ids::{ResourceId, ServerId},
    job::{Demand, Job},
    place::{self, Count, FreeIndex, Room, SortBy, Use},
    reason::Reason,
    resources::CPU,
    shape::{Role, Shape},
    state::{Change, State},
    topology::Domain,
};

/// Free room of all servers under the plan of the current round, and the order of the servers.
///
/// O(S log S) to build. An update costs in proportion to the changes.
#[derive(Clone, Default)]
pub struct Board {
    pub(crate) room: Room,
    pub(crate) free: FreeIndex,
}

impl Board {
    /// Updates the board to the state's plan.
    pub(crate) fn sync(&mut self, state: &State, changes: &Vector<Change>, sort_by: SortBy) {
        if !self.free.is_current(state, sort_by) || self.room.len() > state.servers.len() {
            self.room = Room::of(state);
            self.free = FreeIndex::build(state, &self.room, sort_by);
            return;
        }
        for change in changes {
            if let Change::Server(id) = change {
                self.room.refresh(state, *id);
                self.free.update(&self.room, *id, state.server(*id).present);
            }
        }
    }

    /// Frees the room of a job's planned slots.
    pub(crate) fn release(&mut self, state: &State, job: &Job) {
        if let Some(allocation) = job.verdict.allocation() {
            self.room.release(job, allocation);
            self.moved(state, allocation);
        }
    }

    fn moved(&mut self, state: &State, allocation: &Allocation) {
        let mut servers: Vec<ServerId> = allocation.slots().iter().map(|slot| slot.server).collect();
        servers.sort_unstable();
        servers.dedup();
        for id in servers {
            self.free.update(&self.room, id, state.server(id).present);
        }
    }

    /// Places a shape by Theorem 1 and takes its room.
    pub(crate) fn place_even(
        &mut self,
        state: &State,
        job: &Job,
        shape: Shape,
        budget: &mut Budget,
    ) -> Result<Option<Arc<Allocation>>, EngineError> {
        let counts = place::spread(state, &self.room, &self.free, job, shape, budget)?;
        Ok(counts.and_then(|counts| self.take(state, job, &counts)))
    }

    /// Places a whole shape on the fullest server that has room for it. Takes the room.
    pub(crate) fn place_whole(
        &mut self,
        state: &State,
        job: &Job,
        shape: Shape,
        budget: &mut Budget,
    ) -> Result<Option<Arc<Allocation>>, EngineError> {
        if !state.settings.shape.of(&job.spec).colocate && shape.servers > 0 {
            return Ok(None);
        }
        let need = job.total(shape);
        let mut visited = 0;
        let takes = |id: &ServerId| {
            visited += 1;
            self.room.accepts(state, *id, job) && self.room.holds(*id, job, &need, shape.workers, shape.servers)
        };
        let found = self.free.fullest(&self.room, job.domain.as_deref(), &need).find(takes);
        budget.spend(visited)?;
        Ok(found.and_then(|server| self.take(state, job, &[Count { server, shape }])))
    }

    /// Places a shape slot by slot on the servers that `choose` returns, and takes its room.
    pub(crate) fn place_each(
        &mut self,
        state: &State,
        job: &Job,
        shape: Shape,
        budget: &mut Budget,
        choose: impl FnMut(&Self, &Job, Role) -> Option<ServerId>,
    ) -> Result<Option<Arc<Allocation>>, EngineError> {
        let rules = state.settings.shape.of(&job.spec);
        if rules.equal_per_server || !rules.colocate {
            // Placement slot by slot can't keep these rules. An even spread does.
            return self.place_even(state, job, shape, budget);
        }
        // Workers and parameter servers alternate, so that both roles get the same order of servers.
        let most = shape.workers.max(shape.servers);
        let turns = (0..most).flat_map(|turn| [(Role::Worker, turn), (Role::Server, turn)]);
        let turns = turns.filter(|(role, turn)| *turn < shape.count(*role));
        let Some(taken) = self.place_tasks(state, job, turns, budget, choose)? else { return Ok(None) };
        let mut counts: BTreeMap<ServerId, Shape> = BTreeMap::new();
        for slot in taken.slots() {
            let count = counts.entry(slot.server).or_default();
            match slot.role {
                Role::Worker => count.workers += 1,
                Role::Server => count.servers += 1,
            }
        }
        // From here only the counts matter. Slots that the job already has on a server are kept.
        self.give_back(state, job, &taken);
        let counts: Vec<Count> = counts.into_iter().map(|(server, shape)| Count { server, shape }).collect();
        Ok(self.take(state, job, &counts))
    }

    /// Places tasks in order on the servers that `choose` returns, and takes their room. If one task has no place, it
    /// takes none.
    pub(crate) fn place_tasks(
        &mut self,
        state: &State,
        job: &Job,
        tasks: impl Iterator<Item = (Role, u32)>,
        budget: &mut Budget,
        mut choose: impl FnMut(&Self, &Job, Role) -> Option<ServerId>,
    ) -> Result<Option<Allocation>, EngineError> {
        let mut taken = Vec::new();
        for (role, index) in tasks {
            if let Err(error) = budget.spend(1) {
                self.give_back(state, job, &Allocation::new(taken));
                return Err(error);
            }
            let picked = choose(self, job, role);
            let devices = picked.and_then(|id| self.room.take(id, job.demand(role)));
            let (Some(server), Some(devices)) = (picked, devices) else {
                self.give_back(state, job, &Allocation::new(taken));
                return Ok(None);
            };
            taken.push(Slot { role, index, server, devices });
            self.free.update(&self.room, server, true);
        }
        Ok(Some(Allocation::new(taken)))
    }

    /// Places a running job with another number of workers. Existing slots keep their servers. New workers first go to
    /// the job's own servers, starting with the one with the fewest, then to the freest others. If there is no room for
    /// all of them, as many come as fit, if that makes at least `least` workers. Takes the room.
    pub(crate) fn resize(
        &mut self,
        state: &State,
        job: &Job,
        old: &Allocation,
        (least, workers): (u32, u32),
        budget: &mut Budget,
    ) -> Result<Option<Arc<Allocation>>, EngineError> {
        let mut counts: BTreeMap<ServerId, Shape> = BTreeMap::new();
        for slot in old.slots() {
            let count = counts.entry(slot.server).or_default();
            match slot.role {
                Role::Worker => count.workers += 1,
                Role::Server => count.servers += 1,
            }
        }
        // The first worker of a ring keeps the parameters, so it is removed last.
        let keeper = old.of(Role::Worker).first().map(|slot| slot.server);
        for _ in workers..old.shape().workers {
            let least = |id: &ServerId| u32::from(Some(*id) == keeper);
            let fullest = counts.iter_mut().filter(|(id, count)| count.workers > least(id));
            if let Some((_, count)) = fullest.max_by_key(|(id, count)| (count.workers, Reverse(**id))) {
                count.workers -= 1;
            }
        }
        let rules = state.settings.shape.of(&job.spec);
        for have in old.shape().workers..workers {
            budget.spend(counts.len() as u64)?;
            let holds = |id: ServerId, count: Shape| {
                let need = job.total(count);
                self.room.accepts(state, id, job) && self.room.holds(id, job, &need, count.workers, count.servers)
            };
            let more = |count: &Shape| Shape { workers: count.workers + 1, ..*count };
            let own = counts.iter().filter(|(_, count)| rules.colocate || count.servers == 0);
            let own = own.filter(|(id, count)| holds(**id, more(count)));
            let own = own.min_by_key(|(id, count)| (count.workers, **id)).map(|(id, _)| *id);
            let freest = || {
                let mut others = self.free.freest(&self.room, job.domain.as_deref(), &job.worker.amounts);
                others.find(|id| !counts.contains_key(id) && holds(*id, Shape { workers: 1, servers: 0 }))
            };
            let Some(id) = own.or_else(freest) else {
                if have < least {
                    return Ok(None);
                }
                break;
            };
            counts.entry(id).or_default().workers += 1;
        }
        let counts: Vec<Count> = counts.into_iter().map(|(server, shape)| Count { server, shape }).collect();
        Ok(self.take(state, job, &counts))
    }

    /// Places a running job with other workers in place of some (indices, ascending), on the freest servers that have
    /// none of those. All other slots stay. Takes the room. `None`, with the room as before, if there are too few such
    /// servers. O(slots · log slots + visited servers), as the budget counts.
    pub(crate) fn replace(
        &mut self,
        state: &State,
        job: &Job,
        old: &Allocation,
        workers: &[u32],
        budget: &mut Budget,
    ) -> Result<Option<Arc<Allocation>>, EngineError> {
        let goes = |slot: &Slot| slot.role == Role::Worker && workers.binary_search(&slot.index).is_ok();
        let (leaving, mut slots): (Vec<Slot>, Vec<Slot>) = old.slots().iter().cloned().partition(goes);
        budget.spend(old.slots().len() as u64)?;
        let mut closed: Vec<ServerId> = leaving.iter().map(|slot| slot.server).collect();
        if !state.settings.shape.of(&job.spec).colocate {
            closed.extend(old.of(Role::Server).iter().map(|slot| slot.server));
        }
        closed.sort_unstable();
        // A worker that kept its index would exist twice for a while, and a ring's first worker has to stay the first.
        let first = old.of(Role::Worker).first().map_or(0, |slot| slot.index + 1);
        let taken = |index: &u32| old.slot(Role::Worker, *index).is_some();
        let mut indices = (first..).filter(|index| !taken(index));
        let leaving = Allocation::new(leaving);
        self.give_back(state, job, &leaving);
        let mut new: Vec<Slot> = Vec::with_capacity(workers.len());
        while new.len() < leaving.slots().len() {
            let need = &job.worker.amounts;
            let mut visited = 0;
            let takes = |id: &ServerId| {
                visited += 1;
                self.room.accepts(state, *id, job)
                    && closed.binary_search(id).is_err()
                    && self.room.holds(*id, job, need, 1, 0)
            };
            let found = self.free.freest(&self.room, job.domain.as_deref(), need).find(takes);
            let spent = budget.spend(visited);
            // The freest server takes as many as it can.
            let before = new.len();
            while let Some(id) = found.filter(|_| spent.is_ok() && new.len() < leaving.slots().len()) {
                let fits = self.room.holds(id, job, need, 1, 0);
                let Some(devices) = fits.then(|| self.room.take(id, &job.worker)).flatten() else { break };
                let index = indices.next().expect("endless");
                new.push(Slot { role: Role::Worker, index, server: id, devices });
            }
            if let Some(id) = found {
                self.free.update(&self.room, id, true);
            }
            if new.len() == before {
                self.give_back(state, job, &Allocation::new(new));
                self.restore(state, job, &leaving);
                return spent.map(|()| None);
            }
        }
        slots.extend(new);
        Ok(Some(Arc::new(Allocation::new(slots))))
    }

    /// Changes how a slot is used.
    pub(crate) fn use_slot(
        &mut self,
        state: &State,
        id: ServerId,
        demand: &Demand,
        devices: &Devices,
        (from, to): (Use, Use),
    ) {
        self.room.use_slot(id, demand, devices, from, to);
        self.free.update(&self.room, id, state.server(id).present);
    }

    /// Frees the room that was taken for a job in this round.
    pub(crate) fn give_back(&mut self, state: &State, job: &Job, allocation: &Allocation) {
        self.room.release(job, allocation);
        self.moved(state, allocation);
    }

    /// Places a job by counts, which must fit, and takes its room. Slots that the job has on these servers are kept.
    pub(crate) fn take(&mut self, state: &State, job: &Job, counts: &[Count]) -> Option<Arc<Allocation>> {
        let allocation = place::assign(&mut self.room, job, counts, job.verdict.allocation().map(|before| &**before))?;
        for count in counts {
            self.free.update(&self.room, count.server, state.server(count.server).present);
        }
        Some(allocation)
    }

    /// Takes the room of an allocation again, slot by slot. If it is no longer free, takes nothing and returns false.
    pub(crate) fn restore(&mut self, state: &State, job: &Job, allocation: &Allocation) -> bool {
        let mut taken = Vec::new();
        for slot in allocation.slots() {
            let stays = state.server(slot.server).present
                && self.room.take_again(slot.server, job.demand(slot.role), &slot.devices);
            if !stays {
                self.room.release(job, &Allocation::new(taken));
                return false;
            }
            taken.push(slot.clone());
        }
        self.moved(state, allocation);
        true
    }
}

/// The largest free amount of each resource on one server that a job can use. It is computed once per round for each
/// role, set of labels and domain. O(servers of the domain) for all resources of a job's slot.
#[derive(Default)]
pub(crate) struct Largest<'a>(BTreeMap<Wanted<'a>, (i64, Option<ServerId>)>);

/// Labels, domain, role and resource.
type Wanted<'a> = (&'a BTreeMap<String, String>, Option<&'a Domain>, Role, ResourceId);

impl<'a> Largest<'a> {
    /// Each resource that a slot needs, with the amount, the largest free one and its server.
    fn of(
        &mut self,
        state: &State,
        room: &Room,
        job: &'a Job,
        role: Role,
    ) -> impl Iterator<Item = (ResourceId, i64, i64, Option<ServerId>)> {
        let wanted = move |resource| (&job.spec.labels, job.domain.as_deref(), role, resource);
        let needed = job.demand(role).amounts.iter().filter(|(_, needed)| *needed > 0);
        let unknown = needed.clone().map(|(resource, _)| resource).filter(|id| !self.0.contains_key(&wanted(*id)));
        let mut unknown: Vec<_> = unknown.map(|resource| (resource, None)).collect();
        if !unknown.is_empty() {
            let near = job.domain.iter().flat_map(|domain| domain.servers.iter().copied());
            let all = (0..if job.domain.is_none() { room.len() as u32 } else { 0 }).map(ServerId);
            for id in near.chain(all).filter(|id| room.accepts(state, *id, job) && room.hosts(*id, role)) {
                let free = room.free(id);
                for (resource, best) in &mut unknown {
                    *best = (*best).max(Some((free[*resource], Reverse(id))));
                }
            }
        }
        for (resource, best) in unknown {
            let largest = best.map_or((0, None), |(free, id)| (free.max(0), Some(id.0)));
            self.0.insert(wanted(resource), largest);
        }
        needed.map(move |(resource, needed)| {
            let (largest, server) = self.0[&wanted(resource)];
            (resource, needed, largest, server)
        })
    }

    /// Why a shape is refused: the resource whose limit or total is short, else the one with [no room](Self::reason).
    pub(crate) fn refusal(
        &mut self,
        state: &State,
        room: &Room,
        ledger: &Ledger,
        job: &'a Job,
        shape: Shape,
    ) -> Reason {
        let total = job.total(shape);
        if ledger.has(job, &total) { self.reason(state, room, job, shape) } else { ledger.reason(state, job, &total) }
    }

    /// Why a shape has no room: the resource of one slot that is shortest on any server.
    pub(crate) fn reason(&mut self, state: &State, room: &Room, job: &'a Job, shape: Shape) -> Reason {
        let mut worst: Option<(f64, Reason)> = None;
        for role in [Role::Worker, Role::Server].into_iter().filter(|role| shape.count(*role) > 0) {
            for (resource, needed, largest, server) in self.of(state, room, job, role) {
                let shortage = needed as f64 / (largest.max(0) as f64 + 0.5);
                if worst.as_ref().is_none_or(|(most, _)| shortage > *most) {
                    worst = Some((shortage, Reason::NoRoom { shape, role, resource, needed, largest, server }));
                }
            }
        }
        worst.map_or(
            Reason::NoRoom { shape, role: Role::Worker, resource: CPU, needed: 0, largest: 0, server: None },
            |(_, reason)| reason,
        )
    }
}
