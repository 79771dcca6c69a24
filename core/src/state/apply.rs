//! Each event's effect. Nothing is decided here: sums are kept, and what an engine may want to know is noted.

use std::{collections::BTreeMap, sync::Arc};

use imbl::OrdSet;

use super::{Change, State};
use crate::{
    decision::{Allocation, DeviceShare, Devices, Slot, Verdict},
    event::{Enactment, End, Event, EventError, ObservedSlot},
    fit::{LossHistory, SpeedHistory, SpeedSample},
    ids::{Incarnation, JobId, ResourceId, Revision, ServerId},
    job::{Demand, ExternalId, Fits, Job, JobSpec, Phase, Progress},
    reason::Reason,
    resources::{Amounts, GPU},
    server::{Hosts, Server, ServerSpec, Usage, devices_match},
    settings::{Mode, Settings},
    time::{Span, Time},
};

/// A refusal's wait stops doubling here.
const LONGEST_WAIT: Span = Span::seconds(3600);

impl State {
    /// Takes one event.
    ///
    /// # Errors
    /// The event can't be accepted; nothing but the time and a count of nonsense has changed.
    pub(crate) fn apply(&mut self, at: Time, event: &Event) -> Result<(), EventError> {
        if at < self.now {
            return Err(EventError::Time { given: at.0, now: self.now.0 });
        }
        self.now = at;
        match event {
            Event::Configured(settings) => self.configure(settings),
            Event::ModeSet(mode) => self.set_mode(*mode),
            Event::TermBegan(term) => self.term = self.term.max(*term),
            Event::ServerSet { manager, server } => self.set_server(manager, server)?,
            Event::ServerLeft { name } => {
                let id = *self.server_ids.get(name.as_str()).ok_or_else(|| EventError::UnknownServer(name.clone()))?;
                self.server_left(id);
            }
            Event::ForeignUse { server, amounts, devices } => {
                check_amounts(server, amounts)?;
                let id =
                    *self.server_ids.get(server.as_str()).ok_or_else(|| EventError::UnknownServer(server.clone()))?;
                let demand = Arc::make_mut(&mut self.resources).demand(amounts);
                let mut foreign = Usage { amounts: demand, ..Usage::default() };
                check_shares(server, devices)?;
                let shares: Devices = devices.iter().copied().collect();
                foreign.add_devices(&self.server(id).devices, &Demand::default(), &shares);
                self.change_server(id, |server| server.foreign = foreign);
            }
            Event::JobSubmitted { spec, external, token_hash } => self.submit(spec, external.clone(), *token_hash)?,
            Event::JobEnded { job, end } => self.end_job(*job, *end)?,
            Event::JobHeld { job, held } => self.hold(*job, *held)?,
            Event::Reported { job, incarnation, slot, report } => self.report(*job, *incarnation, *slot, report)?,
            Event::Observed { job, incarnation, slots, phase } => self.observe(*job, *incarnation, slots, *phase)?,
            Event::Enacted { job, result, .. } => self.enacted(*job, result)?,
            Event::SyncBegin { manager } => {
                let id = self.manager(manager);
                self.managers[id.0 as usize].sync = Some((OrdSet::new(), OrdSet::new()));
            }
            Event::SyncEnd { manager, owns_queue } => self.sync_end(manager, *owns_queue)?,
        }
        Ok(())
    }

    fn configure(&mut self, settings: &Settings) {
        self.settings = Arc::new(settings.clone());
        for at in 0..self.tenants.len() {
            let named = settings.tenants.get(&*self.tenants[at].name).cloned().unwrap_or_default();
            self.tenants[at].limits = self.limits(named);
        }
        for at in 0..self.queues.len() {
            let named = settings.queues.get(&*self.queues[at].name).cloned().unwrap_or_default();
            self.queues[at].limits = self.limits(named);
        }
        self.limits_changed = true;
        self.moved += 1;
        self.note(Change::Settings);
    }

    fn set_mode(&mut self, mode: Mode) {
        if self.mode == mode {
            return;
        }
        self.mode = mode;
        // What managers are told changes for every job at once.
        let all: Vec<JobId> = self.jobs.keys().copied().collect();
        for id in all {
            self.unsent.insert(id);
            self.unissued.insert(id);
            // In shadow mode decisions differ from what runs, not from each other: the next one tells the whole plan.
            self.revised.insert(id);
        }
        self.note(Change::Settings);
    }

    fn set_server(&mut self, manager: &str, spec: &ServerSpec) -> Result<(), EventError> {
        let fail = |problem: String| Err(EventError::Server { server: spec.name.clone(), problem });
        if spec.name.is_empty() {
            return fail("a server needs a name".into());
        }
        check_amounts(&spec.name, &spec.capacity)?;
        if let Some(kind) = spec.devices.iter().find(|kind| *kind != "gpu" && !kind.starts_with("gpu:")) {
            return fail(format!("device {kind:?} must be \"gpu\" or \"gpu:<type>\""));
        }
        if spec.devices.len() > usize::from(u16::MAX) {
            return fail(format!("{} devices must be at most 65535", spec.devices.len()));
        }
        let hosts = match Hosts::of(&spec.labels) {
            Ok(hosts) => hosts,
            Err(problem) => return fail(problem),
        };
        let manager = self.manager(manager);
        let resources = Arc::make_mut(&mut self.resources);
        let mut capacity = resources.demand(&spec.capacity);
        let devices: Arc<[_]> = spec.devices.iter().map(|kind| resources.intern(kind)).collect();
        for &kind in &*devices {
            capacity.add(GPU, 1000);
            if kind != GPU {
                capacity.add(kind, 1000);
            }
        }
        let known = self.server_ids.get(spec.name.as_str()).copied();
        let id = known.unwrap_or_else(|| {
            let id = ServerId(self.servers.len() as u32);
            self.servers.push_back(Arc::new(Server {
                id,
                name: spec.name.as_str().into(),
                manager,
                capacity: Amounts::default(),
                devices: Arc::new([]),
                labels: Arc::default(),
                hosts: Hosts::default(),
                draining: false,
                present: false,
                foreign: Usage::default(),
                planned: Usage::default(),
                charged: Usage::default(),
            }));
            self.server_ids.insert(spec.name.as_str().into(), id);
            id
        });
        if let Some((servers, _)) = &mut self.managers[manager.0 as usize].sync {
            servers.insert(id);
        }
        let change = |server: &mut Server| {
            server.manager = manager;
            server.capacity = capacity;
            server.devices = devices.clone();
            server.labels = Arc::new(spec.labels.clone());
            server.hosts = hosts;
            server.draining = spec.draining;
            server.present = true;
        };
        if known.is_none() || self.server(id).devices == devices {
            self.change_server(id, change);
        } else {
            self.with_other_devices(|state| state.change_server(id, change));
            self.evict_from_exchanged_devices(id);
        }
        Ok(())
    }

    /// A slot is charged by the kind of its devices: where these change, every sum is taken anew. O(slots of all jobs):
    /// devices are rarely exchanged.
    fn with_other_devices(&mut self, change: impl FnOnce(&mut Self)) {
        let planned: Vec<(Arc<Job>, Arc<Allocation>)> =
            self.jobs.values().filter_map(|job| Some((job.clone(), job.verdict.allocation()?.clone()))).collect();
        let all: Vec<Arc<Job>> = self.jobs.values().chain(self.leaving.values()).cloned().collect();
        for (job, allocation) in &planned {
            self.add_planned(job, allocation, -1);
        }
        for job in &all {
            self.move_charge(&self.charge(job), &[]);
        }
        change(self);
        for (job, allocation) in &planned {
            self.add_planned(job, allocation, 1);
        }
        for job in &all {
            self.move_charge(&[], &self.charge(job));
        }
    }

    /// Plans that name devices which are others by now are void.
    fn evict_from_exchanged_devices(&mut self, id: ServerId) {
        let server = self.server(id).clone();
        let fits = |job: &Job, slot: &Slot| {
            slot.server != id || devices_match(&server.devices, job.demand(slot.role), &slot.devices)
        };
        let void: Vec<(JobId, ResourceId, i64)> = self
            .jobs
            .values()
            .filter_map(|job| {
                let slot = job.verdict.allocation()?.slots().iter().find(|slot| !fits(job, slot))?;
                let (resource, missing) = job.demand(slot.role).devices?;
                Some((job.id, resource, missing.into()))
            })
            .collect();
        for (job, resource, missing) in void {
            self.set_verdict(job, Verdict::Wait(Reason::Evicted { server: id, resource, missing }));
            self.note(Change::Dropped(job));
        }
    }

    /// Changes what a server has, and the cluster's totals with it.
    fn change_server(&mut self, id: ServerId, change: impl FnOnce(&mut Server)) {
        let sums = |server: &Server| {
            (server.usable(), if server.present { server.capacity.clone() } else { Amounts::default() })
        };
        let (usable, capacity) = sums(self.server(id));
        self.usable -= &usable;
        self.capacity -= &capacity;
        change(self.server_mut(id));
        let (usable, capacity) = sums(self.server(id));
        self.usable += &usable;
        self.capacity += &capacity;
        self.unpark([id]);
        self.unsettled.insert(id);
        self.moved += 1;
        self.note(Change::Server(id));
    }

    fn server_left(&mut self, id: ServerId) {
        if !self.server(id).present {
            return;
        }
        self.change_server(id, |server| {
            server.present = false;
            server.foreign = Usage::default();
        });
        // Slots on a lost server are gone without anyone saying so. O(slots of all jobs): losing a server is rare.
        let there = |allocation: &Option<Arc<Allocation>>| {
            allocation.as_ref().is_some_and(|allocation| allocation.slots().iter().any(|slot| slot.server == id))
        };
        let without = |allocation: &Option<Arc<Allocation>>| {
            let kept =
                allocation.as_ref()?.slots().iter().filter(|slot| slot.server != id).cloned().collect::<Vec<_>>();
            (!kept.is_empty()).then(|| Arc::new(Allocation::new(kept)))
        };
        let hit: Vec<JobId> = self
            .jobs
            .values()
            .chain(self.leaving.values())
            .filter(|job| there(&job.issued) || there(&job.observed) || there(&job.verdict.allocation().cloned()))
            .map(|job| job.id)
            .collect();
        for job in hit {
            self.recharge(job, |job| {
                // What is left of it can't run alone.
                job.revoked |= there(&job.issued);
                job.issued = without(&job.issued);
                job.observed = without(&job.observed);
            });
            if self.jobs.contains_key(&job) {
                self.unissued.insert(job);
                self.unsent.insert(job);
            }
            if self.jobs.get(&job).is_some_and(|job| there(&job.verdict.allocation().cloned())) {
                self.set_verdict(job, Verdict::Wait(Reason::ServerLost { server: id }));
                self.note(Change::Dropped(job));
            }
            self.forget_if_gone(job);
        }
    }

    fn submit(
        &mut self,
        spec: &JobSpec,
        external: Option<ExternalId>,
        token_hash: Option<[u8; 32]>,
    ) -> Result<(), EventError> {
        spec.validate()?;
        if let Some(&job) = self.job_names.get(spec.name.as_str()) {
            return Err(EventError::DuplicateName { name: spec.name.clone(), job });
        }
        let resources = Arc::make_mut(&mut self.resources);
        let worker = Demand::new(&spec.worker.demand, resources);
        let server = spec.server.as_ref().map(|role| Demand::new(&role.demand, resources)).unwrap_or_default();
        let id = JobId(self.next_job);
        let mut speeds = SpeedHistory::default();
        for sample in &spec.profile {
            speeds.profile(&SpeedSample::new(sample.servers, sample.workers, sample.speed));
        }
        let profiled = !speeds.is_empty();
        let mut job = Job {
            id,
            tenant: self.tenant(&spec.tenant),
            queue: self.queue(&spec.queue),
            worker,
            server,
            arrival: self.now,
            external,
            token_hash,
            held: false,
            verdict: Verdict::Wait(Reason::NotConsidered),
            issued: None,
            issue_reason: None,
            incarnation: Incarnation(0),
            revision: Revision(0),
            observed: None,
            phase: Phase::Stopped,
            observed_incarnation: Incarnation(0),
            started: None,
            changed: self.now,
            rescaled_at: Vec::new(),
            rescales: 0,
            restart_cost: spec.restart_cost.unwrap_or_default(),
            restart_total: Span::ZERO,
            refusals: 0,
            blocked: None,
            progress: Progress::default(),
            losses: Arc::new(LossHistory::default()),
            speeds: Arc::new(speeds),
            fits: Arc::new(Fits::default()),
            reported: BTreeMap::new(),
            stragglers: Arc::default(),
            revoked: false,
            spec: Arc::new(spec.clone()),
        };
        if let Some(reason) = self.never_fits(&job) {
            return Err(EventError::NeverFits(reason.describe(self)));
        }
        // A second job of a model starts from what the first taught.
        if profiled || self.models.contains_key(spec.model.as_str()) {
            self.unfitted.insert(id);
        }
        job.arrival = self.now;
        self.next_job += 1;
        self.job_names.insert(spec.name.as_str().into(), id);
        self.jobs.insert(id, Arc::new(job));
        self.revised.insert(id);
        self.unsent.insert(id);
        self.note(Change::Job(id));
        Ok(())
    }

    fn end_job(&mut self, id: JobId, end: End) -> Result<(), EventError> {
        let job = self.jobs.get(&id).cloned().ok_or(EventError::UnknownJob(id))?;
        self.set_verdict(id, Verdict::Stop(if end == End::Cancelled { Reason::Cancelled } else { Reason::Finished }));
        self.jobs.remove(&id);
        self.job_names.remove(job.spec.name.as_str());
        self.revised.remove(&id);
        self.unissued.remove(&id);
        self.unfitted.remove(&id);
        // Its room is free once the manager says that its slots are gone. What was issued may still be starting.
        let charge_kept = job.observed.is_some() || job.issued.is_some();
        if charge_kept {
            let mut leaving = Arc::unwrap_or_clone(job);
            leaving.verdict = Verdict::Stop(if end == End::Cancelled { Reason::Cancelled } else { Reason::Finished });
            self.leaving.insert(id, Arc::new(leaving));
        }
        self.unsent.insert(id);
        self.note(Change::Ended(id));
        Ok(())
    }

    fn hold(&mut self, id: JobId, held: bool) -> Result<(), EventError> {
        let job = self.job_mut(id).ok_or(EventError::UnknownJob(id))?;
        if job.held != held {
            job.held = held;
            // What is to stop for good stays so.
            if matches!(job.verdict, Verdict::Stop(_)) {
                return Ok(());
            }
            self.set_verdict(id, Verdict::Wait(if held { Reason::Held } else { Reason::NotConsidered }));
            self.note(Change::Job(id));
        }
        Ok(())
    }

    fn observe(
        &mut self,
        id: JobId,
        incarnation: Incarnation,
        slots: &[ObservedSlot],
        phase: Phase,
    ) -> Result<(), EventError> {
        if !self.jobs.contains_key(&id) && !self.leaving.contains_key(&id) {
            return Err(EventError::UnknownJob(id));
        }
        let mut seen = Vec::with_capacity(slots.len());
        for slot in slots {
            let server = *self
                .server_ids
                .get(slot.server.as_str())
                .ok_or_else(|| EventError::UnknownServer(slot.server.clone()))?;
            check_shares(&slot.server, &slot.devices)?;
            let devices = slot.devices.iter().copied().collect();
            seen.push(Slot { role: slot.role, index: slot.index, server, devices });
        }
        for manager in self.managers.iter_mut() {
            if let Some((_, jobs)) = &mut manager.sync {
                jobs.insert(id);
            }
        }
        let observed = (!seen.is_empty()).then(|| Arc::new(Allocation::new(seen)));
        let released = observed.is_none();
        let now = self.now;
        self.recharge(id, |job| {
            job.observed = observed;
            job.observed_incarnation = incarnation;
            job.phase = if released { Phase::Stopped } else { phase };
            // A job that is over, or is to start anew elsewhere, claims no more than what is still seen of it.
            if job.verdict.allocation().is_none() || job.revoked {
                job.issued = None;
            }
        });
        if let Some(job) = self.job_mut(id).filter(|job| job.phase == Phase::Running && incarnation == job.incarnation)
        {
            // While something smaller runs, what was refused still is.
            let as_planned = job.observed.as_ref() == job.verdict.allocation();
            if as_planned {
                job.refusals = 0;
                job.blocked = None;
            }
            let limit = job.spec.time_limit.filter(|_| job.started.is_none());
            job.started.get_or_insert(now);
            self.timers.extend(limit.map(|limit| (now + limit, id)));
            if as_planned {
                self.unissued.insert(id);
            }
        }
        self.forget_if_gone(id);
        Ok(())
    }

    /// A job that is over is forgotten once nothing of it is left.
    fn forget_if_gone(&mut self, id: JobId) {
        if self.leaving.get(&id).is_some_and(|job| job.observed.is_none() && job.issued.is_none()) {
            self.leaving.remove(&id);
        }
    }

    fn enacted(&mut self, id: JobId, result: &Enactment) -> Result<(), EventError> {
        let Some(job) = self.jobs.get(&id) else {
            return if self.leaving.contains_key(&id) { Ok(()) } else { Err(EventError::UnknownJob(id)) };
        };
        let Enactment::Refused { cause, retry_after } = result else { return Ok(()) };
        if job.verdict.allocation().is_none() {
            return Ok(());
        }
        let (now, refusals) = (self.now, job.refusals + 1);
        let doubled = Span(self.settings.refusal_backoff.0.saturating_mul(1 << (refusals - 1).min(20)));
        let wait = retry_after.unwrap_or(doubled).clamp(Span(1), LONGEST_WAIT);
        let until = now + wait;
        let given_up = refusals >= self.settings.refusals;
        // What was refused isn't there; what is seen of the job still is, and runs on if it can alone.
        let seen = job.observed.clone();
        let runs_on = !job.revoked && seen.as_ref().is_some_and(|seen| job.spec.bounds().hold(seen.shape()));
        let same = job.issued == seen;
        let stays =
            job.observed_incarnation == job.incarnation && seen.as_ref().is_some_and(|seen| self.in_place(job, seen));
        self.recharge(id, |job| {
            job.revoked = seen.is_some() && !runs_on;
            job.issued = seen;
            if runs_on && !same {
                job.renumber(stays);
            }
            job.refusals = refusals;
            job.blocked = Some((until, cause.clone()));
            job.issue_reason = Some(Reason::Refused { cause: cause.clone(), retry_at: until });
        });
        self.timers.insert((until, id));
        self.unissued.insert(id);
        self.unsent.insert(id);
        if given_up {
            self.set_verdict(id, Verdict::Wait(Reason::Refused { cause: cause.clone(), retry_at: until }));
            self.note(Change::Dropped(id));
        }
        Ok(())
    }

    fn sync_end(&mut self, name: &str, owns_queue: bool) -> Result<(), EventError> {
        let id = self.manager(name);
        let Some((servers, jobs)) = self.managers[id.0 as usize].sync.take() else {
            return Err(EventError::Sync { manager: name.into(), problem: "SyncEnd without SyncBegin" });
        };
        let gone: Vec<ServerId> = self
            .present_servers()
            .filter(|server| server.manager == id && !servers.contains(&server.id))
            .map(|server| server.id)
            .collect();
        for server in gone {
            self.server_left(server);
        }
        // Slots that a full resync doesn't mention are gone, those on other managers' servers aside.
        let mine = |state: &Self, job: &Job| {
            let of = |allocation: &Option<Arc<Allocation>>| {
                allocation
                    .as_ref()
                    .is_some_and(|a| a.slots().iter().any(|slot| state.server(slot.server).manager == id))
            };
            of(&job.observed) || of(&job.issued)
        };
        let unseen: Vec<(JobId, Incarnation)> = self
            .jobs
            .values()
            .chain(self.leaving.values())
            .filter(|job| !jobs.contains(&job.id) && mine(self, job))
            .map(|job| (job.id, job.incarnation))
            .collect();
        for (job, incarnation) in unseen {
            self.observe(job, incarnation, &[], Phase::Stopped)?;
            self.recharge(job, |job| job.issued = None);
            self.unissued.insert(job);
            self.forget_if_gone(job);
        }
        if owns_queue {
            let ended: Vec<JobId> = self
                .jobs
                .values()
                .filter(|job| {
                    !jobs.contains(&job.id) && job.external.as_ref().is_some_and(|external| external.cluster == name)
                })
                .map(|job| job.id)
                .collect();
            for job in ended {
                self.end_job(job, End::Completed)?;
            }
        }
        Ok(())
    }
}

fn check_amounts(server: &str, amounts: &BTreeMap<String, i64>) -> Result<(), EventError> {
    let wrong = amounts.iter().find(|(_, value)| !(0..=1_000_000_000_000).contains(*value));
    wrong.map_or(Ok(()), |(name, value)| {
        let problem = format!("{name} = {value} must be from 0 to 10^12 sub-units");
        Err(EventError::Server { server: server.into(), problem })
    })
}

fn check_shares(server: &str, shares: &[DeviceShare]) -> Result<(), EventError> {
    let wrong = shares.iter().find(|share| share.milli > 1000);
    wrong.map_or(Ok(()), |share| {
        let problem = format!("{} thousandths of device {} must be at most 1000", share.milli, share.device);
        Err(EventError::Server { server: server.into(), problem })
    })
}
