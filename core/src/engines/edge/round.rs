//! One decision. Changes are applied, uploaded chunks join their queues, and arrivals are dispatched. Then each worker
//! trains the first chunk of its queue, and parameter servers follow (A_ps).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use imbl::Vector;

use super::{
    Edge, Servers,
    dispatch::chunk_times,
    index::Index,
    kept::Kept,
    memo::{Dispatched, Item, Memo, Stage, Worker},
    queue::{Entry, Key, Running},
};
use crate::{
    decision::{Allocation, Devices, Proposal},
    engine::{Budget, EngineError, board::Largest, ledger::Ledger},
    ids::{JobId, ServerId},
    job::Job,
    place::Use,
    reason::Reason,
    settings::Mode,
    shape::{Role, Shape},
    state::{Change, Mandate, State},
    time::{Span, Time},
};

pub(super) struct Round<'a> {
    pub(super) engine: &'a Edge,
    pub(super) state: &'a State,
    pub(super) memo: &'a mut Memo,
    pub(super) index: &'a mut Index,
    pub(super) budget: &'a mut Budget,
    pub(super) kept: Kept,
    ledger: Ledger,
    /// Jobs whose plan may have changed.
    touched: BTreeSet<JobId>,
    /// Workers whose first chunk may have changed.
    dirty: BTreeSet<Worker>,
    reasons: BTreeMap<JobId, Reason>,
}

impl<'a> Round<'a> {
    pub(super) fn new(
        engine: &'a Edge,
        state: &'a State,
        memo: &'a mut Memo,
        index: &'a mut Index,
        budget: &'a mut Budget,
    ) -> Self {
        Self {
            engine,
            state,
            memo,
            index,
            budget,
            kept: Kept::default(),
            ledger: Ledger::left(state),
            touched: BTreeSet::new(),
            dirty: BTreeSet::new(),
            reasons: BTreeMap::new(),
        }
    }

    pub(super) fn run(mut self, changes: &Vector<Change>) -> Result<Proposal, EngineError> {
        let rebuilt = self.index.sync(self.state, self.memo, changes);
        self.hear(changes, rebuilt);
        self.land_uploads();
        self.serve_waiting()?;
        self.train()?;
        Ok(self.propose())
    }

    /// A job's memory for changes. Its plan may change with it.
    pub(super) fn change(&mut self, id: JobId) -> &mut Dispatched {
        self.touched.insert(id);
        Arc::make_mut(self.memo.jobs.get_mut(&id).expect("only known jobs change"))
    }

    // Changes.

    fn hear(&mut self, changes: &Vector<Change>, rebuilt: bool) {
        let mut jobs: BTreeMap<JobId, bool> = BTreeMap::new();
        for change in changes {
            match change {
                Change::Job(id) | Change::Trained(id) | Change::Ended(id) => _ = jobs.entry(*id).or_default(),
                Change::Dropped(id) => _ = jobs.insert(*id, true),
                Change::Server(id) => {
                    let orphaned = self.index.refit(self.state, *id);
                    // Chunks that wait for room there are on stalled workers.
                    jobs.extend(orphaned.into_iter().map(|job| (job, true)));
                }
                Change::Measured(_) | Change::Settings => {}
            }
        }
        // In shadow mode every round starts from the running slots, not from the last plan.
        if rebuilt || changes.contains(&Change::Settings) || self.state.mode == Mode::Shadow {
            let all = self.state.jobs.keys().chain(self.memo.jobs.keys());
            jobs.extend(all.map(|id| (*id, true)));
            self.dirty.extend(self.index.workers().map(|(worker, _)| worker));
        }
        for (id, doubtful) in jobs {
            match self.state.job(id) {
                None => self.forget(id),
                Some(job) => self.look_at(&job.clone(), doubtful),
            }
        }
    }

    /// Removes an ended job with its chunks.
    fn forget(&mut self, id: JobId) {
        self.memo.waiting.remove(&id);
        let Some(job) = self.memo.jobs.remove(&id) else { return };
        self.touched.remove(&id);
        for (_, chunk, worker) in job.pending() {
            self.take_out(worker, chunk.ready, job.key(chunk));
        }
        for worker in job.chunks.iter().filter_map(|chunk| job.workers.get(&chunk.worker?)) {
            self.index.stored[worker.server.index()] -= job.size;
        }
    }

    /// Removes a chunk from its worker's queue.
    fn take_out(&mut self, worker: Worker, ready: Time, key: Key) {
        self.dirty.insert(worker);
        self.index.coming.remove(&(ready, worker, key));
        let Some(lane) = self.index.lane_mut(worker) else { return };
        lane.pending.coming.remove(&(ready, key));
        lane.pending.queue.remove(key);
        lane.pending.running.take_if(|running| running.key == key);
    }

    /// Applies the changes of a job: trained chunks, lost slots, or a plan other than the proposed one.
    fn look_at(&mut self, job: &Arc<Job>, doubtful: bool) {
        let Some(dispatched) = self.memo.jobs.get(&job.id).cloned() else {
            self.memo.waiting.insert(job.id);
            return;
        };
        let planned = job.verdict.allocation();
        let closed = self.state.mandate(job) == Mandate::Closed;
        let stands = planned.is_some() && dispatched.placed;
        let servers = job.bounds().servers.0;
        if closed
            || !stands
            || (doubtful && planned.map(|plan| &**plan) != dispatched.allocation(self.state, servers).as_ref())
        {
            if dispatched.placed {
                self.displace(job.id, &dispatched);
            }
            let known = dispatched.allocation(self.state, servers);
            match planned.filter(|plan| !closed && known.is_some_and(|known| known.slots() == plan.slots())) {
                // The job has its slots, with other work than proposed. They are idle until the next plan.
                Some(plan) => self.adopt(job, &plan.clone(), &dispatched),
                None => _ = self.memo.waiting.insert(job.id),
            }
        }
        self.lose_workers(job);
        self.finish(job);
    }

    /// The job's slots differ from the memory. None of its chunks trains until it is served again. The room of its
    /// planned slots stays reserved.
    fn displace(&mut self, id: JobId, dispatched: &Dispatched) {
        for (at, chunk, worker) in dispatched.pending() {
            if matches!(chunk.stage, Stage::Running(_)) {
                self.interrupt(worker, Item { job: id, chunk: at });
            }
        }
        let dispatched = self.change(id);
        (dispatched.placed, dispatched.running) = (false, 0);
    }

    /// Takes the planned slots as the job's own, and idle.
    fn adopt(&mut self, job: &Job, plan: &Allocation, dispatched: &Dispatched) {
        for slot in plan.slots().iter().filter(|slot| plan.is_busy(slot)) {
            self.shift(job, slot.role, slot.server, &slot.devices, Use::Busy, Use::Idle);
        }
        self.change(job.id).placed = true;
        self.dirty.extend(dispatched.workers.values());
    }

    /// Interrupts a chunk. The caller releases its room.
    fn interrupt(&mut self, worker: Worker, item: Item) {
        self.dirty.insert(worker);
        let now = self.state.now;
        if let Some(lane) = self.index.lane_mut(worker) {
            lane.pending.book(now);
            lane.pending.running = None;
        }
        let chunk = &mut self.change(item.job).chunks[item.chunk as usize];
        if let Stage::Running(since) = chunk.stage {
            chunk.left = Span((chunk.left.0 - (now - since).0.max(0)).max(0));
        }
        chunk.stage = Stage::Preempted;
    }

    /// Marks chunks whose worker is gone for another dispatch. If the job isn't in the plan, its slots must also be
    /// accepted by their servers now.
    fn lose_workers(&mut self, job: &Arc<Job>) {
        let dispatched = self.memo.jobs[&job.id].clone();
        let room = &self.index.board.room;
        let stays = |worker: &Worker| {
            let lane = self.index.lane(*worker);
            let suits = lane.is_some_and(|lane| {
                job.worker.devices.is_some_and(|(kind, _)| kind == crate::resources::GPU || kind == lane.kind)
            });
            let server = self.state.server(worker.server);
            suits
                && !self.kept.is_of_another(*worker, job.id)
                && (dispatched.placed
                    || (room.accepts(self.state, worker.server, job) && server.hosts.takes(Role::Worker)))
        };
        let lost: BTreeMap<u32, Worker> = dispatched
            .workers
            .iter()
            .filter(|(_, worker)| !stays(worker))
            .map(|(index, worker)| (*index, *worker))
            .collect();
        if lost.is_empty() {
            return;
        }
        if dispatched.placed {
            // Its slots change, which has to wait until the job can be changed.
            self.displace(job.id, &dispatched);
        }
        let dispatched = self.memo.jobs[&job.id].clone();
        for (at, chunk) in (0..).zip(&dispatched.chunks) {
            let Some(worker) = chunk.worker.and_then(|index| lost.get(&index)) else { continue };
            if chunk.stage != Stage::Done {
                self.take_out(*worker, chunk.ready, dispatched.key(chunk));
            }
            self.index.stored[worker.server.index()] -= dispatched.size;
            self.change(job.id).chunks[at as usize].worker = None;
        }
        self.change(job.id).workers.retain(|index, _| !lost.contains_key(index));
        self.memo.waiting.insert(job.id);
    }

    /// Marks reported chunks as trained.
    fn finish(&mut self, job: &Arc<Job>) {
        let dispatched = &self.memo.jobs[&job.id];
        let done = dispatched.chunks.iter().filter(|chunk| chunk.stage == Stage::Done).count();
        if job.learnt.chunks.len() == done {
            return;
        }
        let dispatched = dispatched.clone();
        let trained = |at: &u32| dispatched.chunks.get(*at as usize).is_some_and(|chunk| chunk.stage != Stage::Done);
        for at in job.learnt.chunks.iter().copied().filter(trained) {
            let chunk = dispatched.chunks[at as usize];
            let item = Item { job: job.id, chunk: at };
            if let Some(worker) = chunk.worker.and_then(|index| dispatched.workers.get(&index)).copied() {
                if matches!(self.memo.jobs[&job.id].chunks[at as usize].stage, Stage::Running(_)) {
                    self.pause(job, worker, item);
                }
                self.take_out(worker, chunk.ready, dispatched.key(&chunk));
            }
            let chunk = &mut self.change(job.id).chunks[at as usize];
            (chunk.stage, chunk.left) = (Stage::Done, Span::ZERO);
        }
    }

    // Uploads.

    fn land_uploads(&mut self) {
        let now = self.state.now;
        while let Some((ready, worker, key)) = self.index.coming.first().copied().filter(|(ready, ..)| *ready <= now) {
            self.index.coming.pop_first();
            let Some(entry) = self.index.lane_mut(worker).and_then(|lane| lane.pending.coming.remove(&(ready, key)))
            else {
                continue;
            };
            self.land(worker, key, entry);
        }
        self.memo.landed = self.memo.landed.max(now);
    }

    /// Adds a chunk to its worker's queue. The running chunk may no longer be the first, so its work is booked.
    pub(super) fn land(&mut self, worker: Worker, key: Key, entry: Entry) {
        let now = self.state.now;
        self.dirty.insert(worker);
        let lane = self.index.lane_mut(worker).expect("chunks are sent to workers that are there");
        let booked = lane.pending.book(now);
        lane.pending.queue.insert(key, entry);
        if let Some((item, left)) = booked {
            let chunk = &mut self.change(item.job).chunks[item.chunk as usize];
            (chunk.left, chunk.stage) = (left, Stage::Running(now));
        }
    }

    // Arrivals, and jobs without a place.

    fn serve_waiting(&mut self) -> Result<(), EngineError> {
        let waiting: Vec<JobId> = self.memo.waiting.iter().copied().collect();
        if !waiting.is_empty() {
            self.budget.spend((self.state.servers.len() + self.state.jobs.len()) as u64)?;
            self.kept = Kept::of(self.state, self.memo);
            self.budget.spend(self.kept.len() as u64)?;
        }
        for id in waiting {
            let Some(job) = self.state.job(id) else { continue };
            self.budget.spend(1)?;
            if self.state.mandate(job) != Mandate::Free {
                continue;
            }
            if let Some(reason) = self.serve(job)? {
                self.reasons.insert(id, reason);
                self.touched.insert(id);
            } else {
                self.memo.waiting.remove(&id);
            }
        }
        Ok(())
    }

    /// Gives a job its slots, and dispatches its chunks. Returns the reason if that fails, or succeeds partly.
    fn serve(&mut self, job: &'a Arc<Job>) -> Result<Option<Reason>, EngineError> {
        if let Err(what) = super::runs(&job.spec).and_then(|()| self.rules(job)) {
            return Ok(Some(Reason::Unsupported { what: what.into() }));
        }
        let times = match chunk_times(job) {
            Ok(times) => times,
            Err(what) => return Ok(Some(Reason::Unsupported { what: what.into() })),
        };
        if !self.memo.jobs.contains_key(&job.id) {
            let data = job.spec.dataset.as_ref().expect("it runs here");
            self.memo.jobs.insert(job.id, Arc::new(Dispatched::new(data, times.0)));
            self.finish(job);
        }
        if !self.memo.jobs[&job.id].placed {
            // Returning slots are new in the plan, so their servers must accept them now.
            self.lose_workers(job);
        }
        let before = self.memo.jobs[&job.id].clone();
        if let Some(planned) = job.verdict.allocation().filter(|_| !before.placed) {
            // A plan of another engine, or a restored one, is void.
            for slot in planned.slots() {
                let from = if planned.is_busy(slot) { Use::Busy } else { Use::Idle };
                self.shift(job, slot.role, slot.server, &slot.devices, from, Use::None);
            }
        }
        if !before.placed {
            // A place for the parameter servers is chosen with the first worker.
            self.change(job.id).home = None;
            if !before.workers.is_empty() && !self.move_in(job, &before) {
                return Ok(Some(self.no_room(job)));
            }
        }
        let whole = self.dispatch(job, times)?;
        let dispatched = &self.memo.jobs[&job.id];
        let placed = dispatched.home.is_some() && !dispatched.workers.is_empty();
        if placed {
            dispatched.workers.values().for_each(|worker| self.kept.take(self.state, *worker, job.id));
        }
        if dispatched.placed != placed {
            self.change(job.id).placed = placed;
        }
        Ok((!whole || !placed).then(|| self.no_room(job)))
    }

    fn rules(&self, job: &Job) -> Result<(), String> {
        if self.state.settings.shape.of(&job.spec).equal_per_server {
            return Err("its manager reserves the same on every server of a job; chunks need workers one by one".into());
        }
        Ok(())
    }

    fn no_room(&self, job: &Job) -> Reason {
        let servers = job.bounds().servers.0;
        let total = job.total(Shape { workers: 1, servers });
        if !self.ledger.has(job, &total) {
            return self.ledger.reason(self.state, job, &total);
        }
        if let Some(count) = self.kept.taken_by_others(job) {
            let text = format!("needs a GPU; the {count} that suit it have other jobs and stay theirs until they end");
            return Reason::of_engine("gpus_kept", text);
        }
        Largest::default().reason(self.state, &self.index.board.room, job, Shape { workers: 1, servers })
    }

    /// Restores a job's slots at its chunks, as idle. Returns false, without changes, if there is no room.
    fn move_in(&mut self, job: &'a Arc<Job>, dispatched: &Dispatched) -> bool {
        let servers: Vec<ServerId> = dispatched.workers.values().map(|worker| worker.server).collect();
        let mut moved = 0;
        let mut complete = true;
        for server in &servers {
            if !self.settle_in(job, *server) {
                complete = false;
                break;
            }
            moved += 1;
        }
        if complete {
            let first = *dispatched.workers.values().next().expect("it has workers");
            let home = dispatched.home.filter(|home| self.may_be_home(job, *home) && self.settle_servers(job, *home));
            self.change(job.id).home = home;
            complete = home.is_some() || self.find_home(job, first);
        }
        if !complete {
            for server in &servers[..moved] {
                self.shift(job, Role::Worker, *server, &Devices::new(), Use::Idle, Use::None);
            }
            return false;
        }
        self.dirty.extend(dispatched.workers.values());
        self.change(job.id).placed = true;
        true
    }

    // Room.

    /// Changes the use of one slot. Returns false, without changes, if there is no room.
    pub(super) fn shift(
        &mut self,
        job: &Job,
        role: Role,
        server: ServerId,
        devices: &Devices,
        from: Use,
        to: Use,
    ) -> bool {
        let demand = job.demand(role);
        let (before, after) = (from.amounts(demand), to.amounts(demand));
        let mut extra = after.clone();
        extra -= &before;
        if to > from
            && !(self.ledger.has(job, &extra) && self.index.board.room.holds_use(server, demand, devices, from, to))
        {
            return false;
        }
        self.ledger.take(job, &extra, 1);
        self.index.board.use_slot(self.state, server, demand, devices, (from, to));
        true
    }

    pub(super) fn settle_in(&mut self, job: &Job, server: ServerId) -> bool {
        self.shift(job, Role::Worker, server, &Devices::new(), Use::None, Use::Idle)
    }

    fn settle_servers(&mut self, job: &Job, server: ServerId) -> bool {
        self.shift_servers(job, server, Use::None, Use::Idle)
    }

    /// Changes the use of all parameter servers of a job, which are on one server.
    fn shift_servers(&mut self, job: &Job, server: ServerId, from: Use, to: Use) -> bool {
        let count = job.bounds().servers.0;
        for done in 0..count {
            if !self.shift(job, Role::Server, server, &Devices::new(), from, to) {
                for _ in 0..done {
                    self.shift(job, Role::Server, server, &Devices::new(), to, from);
                }
                return false;
            }
        }
        true
    }

    fn may_be_home(&self, job: &Job, server: ServerId) -> bool {
        let rules = self.state.settings.shape.of(&job.spec);
        let workers = &self.memo.jobs[&job.id].workers;
        self.index.board.room.accepts(self.state, server, job)
            && self.state.server(server).hosts.takes(Role::Server)
            && (rules.colocate || workers.values().all(|worker| worker.server != server))
    }

    /// Finds a place for a job's parameter servers, if it has none (A_ps): in the zone of its first worker, or else in
    /// the other zone.
    pub(super) fn find_home(&mut self, job: &'a Job, first: Worker) -> bool {
        if let Some(home) = self.memo.jobs[&job.id].home {
            let rules = self.state.settings.shape.of(&job.spec);
            return rules.colocate || home != first.server;
        }
        let cloud = self.state.server(first.server).place.cloud;
        let zones = if cloud { [true, false] } else { [false, true] };
        for zone in zones.into_iter().filter(|zone| !zone || self.engine.cloud) {
            if let Some(home) = self.pick_home(job, first, zone) {
                self.change(job.id).home = Some(home);
                return true;
            }
        }
        false
    }

    pub(super) fn is_home_in_cloud(&self, id: JobId) -> bool {
        self.memo.jobs[&id].home.is_some_and(|home| self.state.server(home).place.cloud)
    }

    fn pick_home(&mut self, job: &'a Job, first: Worker, cloud: bool) -> Option<ServerId> {
        let rules = self.state.settings.shape.of(&job.spec);
        let room = &self.index.board.room;
        let need = job.server.amounts.times(job.bounds().servers.0.into());
        let suits = |id: &ServerId| {
            self.may_be_home(job, *id)
                && (rules.colocate || *id != first.server)
                && room.holds(*id, job, &need, 0, job.bounds().servers.0)
        };
        // On the server of the first worker, if that is in the cloud.
        let with_first = cloud && self.state.server(first.server).place.cloud && suits(&first.server);
        let home = match self.engine.servers {
            _ if with_first => Some(first.server),
            Servers::Bandwidth => self.index.board.free.freest_in(room, &need, Some(cloud)).find(suits),
            Servers::Random => {
                let all: Vec<ServerId> =
                    self.index.board.free.freest_in(room, &need, Some(cloud)).filter(suits).collect();
                let hash = blake3::hash(&[job.id.0.to_le_bytes(), self.state.now.0.to_le_bytes()].concat());
                let draw = u64::from_le_bytes(hash.as_bytes()[..8].try_into().expect("eight bytes"));
                (!all.is_empty()).then(|| all[(draw % all.len() as u64) as usize])
            }
        };
        home.filter(|home| self.settle_servers(job, *home))
    }

    /// Whether a worker's GPU is in foreign use.
    pub(super) fn is_foreign(&self, worker: Worker) -> bool {
        let foreign = &self.state.server(worker.server).foreign;
        foreign.devices.get(usize::from(worker.gpu)).is_some_and(|milli| *milli > 0)
    }

    // Training.

    /// Each worker trains the first chunk of its queue that can run (highest average processing rate first).
    fn train(&mut self) -> Result<(), EngineError> {
        let mut workers = std::mem::take(&mut self.index.stalled);
        workers.append(&mut self.dirty);
        // Interruptions come first, because other workers may need their room.
        for worker in &workers {
            let Some(lane) = self.index.lane(*worker) else { continue };
            let Some(running) = lane.pending.running.filter(|running| self.first(*worker) != Some(running.key)) else {
                continue;
            };
            if let Some(job) = self.state.job(running.item.job) {
                self.pause(job, *worker, running.item);
            }
        }
        for worker in workers {
            self.start_first(worker)?;
            let Some(lane) = self.index.lane(worker) else { continue };
            if lane.pending.queue.next(None).map(|(key, _)| key) != lane.pending.running.map(|running| running.key) {
                self.index.stalled.insert(worker);
            }
        }
        // Jobs have changed meanwhile, but queues haven't.
        self.dirty.clear();
        Ok(())
    }

    /// The first chunk of a worker's queue whose job is in the plan.
    fn first(&self, worker: Worker) -> Option<Key> {
        let queue = &self.index.lane(worker)?.pending.queue;
        let placed = |item: Item| self.memo.jobs.get(&item.job).is_some_and(|job| job.placed);
        queue.iter().find(|(_, entry)| placed(entry.item)).map(|(key, _)| key)
    }

    fn start_first(&mut self, worker: Worker) -> Result<(), EngineError> {
        let Some(lane) = self.index.lane(worker) else { return Ok(()) };
        if lane.pending.running.is_some() || self.index.board.room.is_taken(worker.server, worker.gpu) {
            return Ok(());
        }
        let mut last = None;
        while let Some((key, item)) = self.index.lane(worker).and_then(|lane| lane.pending.queue.next(last)) {
            self.budget.spend(1)?;
            if self.start(worker, key, item) {
                return Ok(());
            }
            last = Some(key);
        }
        Ok(())
    }

    /// Starts a chunk if its job is in the plan and there is room. If nothing of the job ran, its parameter servers may
    /// have to move to a server with room.
    fn start(&mut self, worker: Worker, key: Key, item: Item) -> bool {
        let state = self.state;
        let (Some(job), Some(known)) = (state.job(item.job), self.memo.jobs.get(&item.job)) else { return false };
        let rests = known.running == 0;
        let Some(index) = known.chunks[item.chunk as usize].worker.filter(|_| known.placed) else { return false };
        let slot = worker.slot(state, index);
        if !self.shift(job, Role::Worker, worker.server, &slot.devices, Use::Idle, Use::Busy) {
            return false;
        }
        if rests && !self.wake_servers(job) {
            self.shift(job, Role::Worker, worker.server, &slot.devices, Use::Busy, Use::Idle);
            return false;
        }
        let now = state.now;
        let dispatched = self.change(item.job);
        dispatched.running += 1;
        dispatched.chunks[item.chunk as usize].stage = Stage::Running(now);
        self.index.lane_mut(worker).expect("it was there").pending.running = Some(Running { key, item, since: now });
        true
    }

    /// Reactivates the parameter servers of a job without running chunks.
    fn wake_servers(&mut self, job: &'a Arc<Job>) -> bool {
        let known = &self.memo.jobs[&job.id];
        let (Some(home), Some(first)) = (known.home, known.workers.values().next().copied()) else { return false };
        if self.shift_servers(job, home, Use::Idle, Use::Busy) {
            return true;
        }
        // A pinned job keeps its slots.
        if job.verdict.allocation().is_some() && self.state.mandate(job) != Mandate::Free {
            return false;
        }
        self.shift_servers(job, home, Use::Idle, Use::None);
        self.change(job.id).home = None;
        if self.find_home(job, first) {
            let home = self.memo.jobs[&job.id].home.expect("just found");
            if self.shift_servers(job, home, Use::Idle, Use::Busy) {
                return true;
            }
            self.shift_servers(job, home, Use::Idle, Use::None);
        }
        self.change(job.id).home = Some(home);
        // This room was released just before.
        self.shift_servers(job, home, Use::None, Use::Idle);
        false
    }

    /// Interrupts or completes a chunk, and releases its room.
    fn pause(&mut self, job: &Arc<Job>, worker: Worker, item: Item) {
        self.interrupt(worker, item);
        let dispatched = self.change(item.job);
        dispatched.running -= 1;
        let (left, home) = (dispatched.running, dispatched.home);
        let index = dispatched.chunks[item.chunk as usize].worker.expect("it ran");
        let slot = worker.slot(self.state, index);
        self.shift(job, Role::Worker, worker.server, &slot.devices, Use::Busy, Use::Idle);
        if let Some(home) = home.filter(|_| left == 0) {
            self.shift_servers(job, home, Use::Busy, Use::Idle);
        }
    }

    // The proposal.

    fn propose(self) -> Proposal {
        let mut proposal = Proposal::default();
        for id in &self.touched {
            let Some(job) = self.state.job(*id) else { continue };
            if self.state.mandate(job) == Mandate::Closed {
                continue;
            }
            let dispatched = self.memo.jobs.get(id).filter(|job| job.placed);
            let planned = dispatched.and_then(|known| known.allocation(self.state, job.bounds().servers.0));
            match (planned, self.reasons.get(id)) {
                (Some(planned), _) => proposal.run(job, Arc::new(planned)),
                (None, Some(reason)) if self.state.mandate(job) == Mandate::Free => {
                    proposal.wait(job, reason.clone());
                }
                _ => {}
            }
        }
        let upload = self.index.coming.first().map(|(ready, ..)| *ready);
        let closed = |id: &JobId| self.state.job(*id).is_none_or(|job| self.state.mandate(job) == Mandate::Closed);
        let retry = self.memo.waiting.iter().any(|id| !closed(id)).then(|| self.state.now + super::RETRY);
        proposal.wake_at = upload.into_iter().chain(retry).min();
        proposal
    }
}
