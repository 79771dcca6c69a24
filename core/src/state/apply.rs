//! The effect of each event. Events decide nothing: they update sums, and note changes for the engine.

use std::{collections::BTreeSet, sync::Arc};

use imbl::OrdSet;

use super::{
    Change, State,
    servers::{check_amounts, check_shares, used},
};
use crate::{
    batch::BatchRange,
    decision::{Allocation, Devices, Slot, Verdict},
    event::{Enactment, End, Event, EventError, ObservedSlot},
    fit::{SpeedHistory, SpeedSample},
    ids::{DecisionId, Incarnation, JobId, ManagerId, ServerId},
    job::{Batching, Demand, Elastic, ExternalId, Issued, Job, JobSpec, Learnt, Phase, Seen, Sizes},
    policy::Policy,
    reason::Reason,
    resources::{GPU, ResourceTypes},
    server::{Server, Usage},
    settings::{Mode, Settings},
    text::shown,
    time::{Span, Time},
    topology::Topology,
};

/// Maximum wait after a refusal. The doubling ends here.
const LONGEST_WAIT: Span = Span::seconds(3600);
/// Maximum number of characters of a refusal's cause.
const LONGEST_CAUSE: usize = 1000;
/// Maximum number of observed slots of one job: several times the slots that a job can have.
const MOST_OBSERVED: usize = 100_000;

impl State {
    /// Applies one event.
    ///
    /// # Errors
    /// The event can't be accepted. Only the time and counts of ignored inputs have changed.
    pub(crate) fn apply(&mut self, at: Time, event: &Event) -> Result<(), EventError> {
        if at < self.now {
            return Err(EventError::Time { given: at.0, now: self.now.0 });
        }
        self.now = at;
        match event {
            Event::Configured(settings) => self.configure(settings)?,
            Event::ModeSet(mode) => self.set_mode(*mode),
            Event::TermBegan(term) => {
                self.term = self.term.max(*term);
                // A restart cut off the open resyncs. Their managers start over, or don't return.
                self.roster.managers.iter_mut().for_each(|manager| manager.sync = None);
                self.roster.syncing_since = None;
            }
            Event::ServerSet { manager, server } => self.set_server(manager, server)?,
            Event::ServersLeft { names } => {
                let known = |name: &String| {
                    let id = self.roster.server_ids.get(name.as_str()).copied();
                    id.ok_or_else(|| EventError::UnknownServer(name.clone()))
                };
                let lost = names.iter().map(known).collect::<Result<BTreeSet<ServerId>, _>>()?;
                self.servers_left(&lost.into_iter().filter(|id| self.server(*id).present).collect());
            }
            Event::ForeignUse { server, amounts, devices } => {
                check_amounts(server, amounts)?;
                check_shares(server, devices)?;
                let id = *self
                    .roster
                    .server_ids
                    .get(server.as_str())
                    .ok_or_else(|| EventError::UnknownServer(server.clone()))?;
                self.make_room_for_types(used(amounts), ResourceTypes::MOST)?;
                let demand = Arc::make_mut(&mut self.resources).demand(amounts);
                let mut foreign = Usage { amounts: demand, ..Usage::default() };
                let shares: Devices = devices.iter().copied().collect();
                foreign.add_devices(&self.server(id).devices, &Demand::default(), &shares);
                self.change_server(id, |server| server.foreign = foreign);
            }
            Event::JobSubmitted { spec, external, token_hash } => self.submit(spec, external.clone(), *token_hash)?,
            Event::JobEnded { job, end } => self.end_job(*job, *end)?,
            Event::JobHeld { job, held } => self.hold(*job, *held)?,
            Event::Reported { job, incarnation, slot, report } => self.report(*job, *incarnation, *slot, report)?,
            Event::BatchReported { job, incarnation, slot, seq, batch, noise } => {
                self.report_batch(*job, (*incarnation, *slot, *seq), *batch, *noise)?;
            }
            Event::Observed { job, incarnation, slots, phase } => self.observe(*job, *incarnation, slots, *phase)?,
            Event::Enacted { decision, job, result } => self.enacted(*decision, *job, result)?,
            Event::SyncBegin { manager } => {
                let id = self.roster.manager(manager, &self.servers);
                self.roster.managers[id.0 as usize].sync = Some((OrdSet::new(), OrdSet::new()));
                self.roster.syncing_since.get_or_insert(self.now);
            }
            Event::SyncEnd { manager, owns_queue } => self.sync_end(manager, *owns_queue)?,
            Event::Utilisation { server, used, devices, slots } => self.measure(server, used, devices, slots)?,
            Event::PolicySet { engine, policy } => self.set_policy(engine, policy.as_deref()),
            Event::ReportIgnored { job } => {
                if let Some(job) = self.job_mut(*job) {
                    job.learnt.progress.ignored += 1;
                }
            }
            Event::Elapsed => {}
        }
        Ok(())
    }

    fn set_policy(&mut self, engine: &str, policy: Option<&Policy>) {
        match policy {
            None => _ = self.policies.remove(engine),
            Some(policy) => _ = self.policies.insert(engine.into(), Arc::new(policy.clone())),
        }
        self.note(Change::Settings);
    }

    fn configure(&mut self, settings: &Settings) -> Result<(), EventError> {
        self.configure_limits(settings)?;
        let oversubscribe = settings.shape.oversubscribe;
        if oversubscribe != self.settings.shape.oversubscribe {
            for id in (0..self.servers.len() as u32).map(ServerId) {
                self.change_server(id, |server| server.oversubscribe(oversubscribe));
            }
        }
        self.settings = Arc::new(settings.clone());
        self.pending.limits_changed = true;
        self.moved += 1;
        self.note(Change::Settings);
        Ok(())
    }

    pub(crate) fn set_mode(&mut self, mode: Mode) {
        if self.mode == mode {
            return;
        }
        self.mode = mode;
        if mode == Mode::Active {
            self.take_over();
        }
        // The message to the managers changes for all jobs at once.
        let all: Vec<JobId> = self.jobs.keys().copied().collect();
        for id in all {
            self.outbox.unsent.insert(id);
            self.pending.unissued.insert(id);
            // In shadow mode, decisions differ from the running slots, not from each other. So the next decision states
            // the whole plan.
            self.pending.revised.insert(id);
        }
        self.note(Change::Settings);
    }

    fn submit(
        &mut self,
        spec: &JobSpec,
        external: Option<ExternalId>,
        token_hash: Option<[u8; 32]>,
    ) -> Result<(), EventError> {
        spec.validate()?;
        if let Some(&job) = self.directory.job_names.get(spec.name.as_str()) {
            return Err(EventError::DuplicateName { name: spec.name.clone(), job });
        }
        let demands = || [Some(&spec.worker), spec.server.as_ref()].into_iter().flatten().map(|role| &role.demand);
        let known = (self.resources.clone(), self.models.clone(), self.servers.clone());
        self.make_room_for_types(demands().flat_map(used), ResourceTypes::MOST_FOR_JOBS)?;
        let resources = Arc::make_mut(&mut self.resources);
        let worker = Demand::new(&spec.worker.demand, resources);
        let server = spec.server.as_ref().map(|role| Demand::new(&role.demand, resources)).unwrap_or_default();
        if !Topology::of(&spec.labels).is_none() {
            self.domains = Some(self.domains());
        }
        let worker = self.first_type(spec, worker, &server);
        if let Some(reason) = self.hopeless(spec, &worker, &server) {
            let mut text = reason.describe(self);
            text.extend(self.missing_label(&reason, spec).map(|label| format!("; {label}")));
            if self.fits_mixed(spec, &worker, &server) {
                text += "; all its workers get GPUs of one type, but \"gpu:*\" in place of gpu mixes types";
            }
            // A refused job adds no names and evicts none.
            (self.resources, self.models, self.servers) = known;
            return Err(EventError::NeverFits(text));
        }
        let id = JobId(self.directory.next_job);
        let model = self.model_key(spec);
        let (tenant, queue) = self.count_in(spec, &model);
        let mut speeds = SpeedHistory::default();
        // If the scheduler chooses the type of GPU, nobody says on which the profile was measured.
        let on = if self.is_choosable(spec) { GPU.0 } else { worker.speed_type() };
        // All-reduce without sizes was measured on one server, and reports from one are of the same.
        let places = |servers: u32| if spec.server.is_none() && spec.sizes() == Sizes::Any { 1 } else { servers };
        for sample in &spec.profile {
            speeds.profile(&SpeedSample::new(places(sample.servers), sample.workers, sample.speed).on(on));
        }
        let profiled = !speeds.is_empty();
        let job = Job {
            id,
            tenant,
            queue,
            model,
            worker,
            server,
            arrival: self.now,
            external,
            token_hash,
            held: false,
            verdict: Verdict::Wait(Reason::NotConsidered),
            issued: Issued::nothing(self.now),
            seen: Seen::default(),
            learnt: Learnt::nothing(speeds, spec.restart_cost.unwrap_or_default()),
            domain: None,
            sizes: spec.sizes(),
            elastic: Elastic::of(&spec.labels),
            batching: BatchRange::of(spec).expect("validated").map(|range| Box::new(Batching::new(range))),
            spec: Arc::new(spec.clone()),
        };
        // A further job of a model starts from the model's known speeds.
        if profiled || self.models.get(&job.model).is_some_and(|model| !model.speeds.is_empty()) {
            self.pending.unfitted.insert(id);
        }
        self.directory.next_job += 1;
        self.directory.job_names.insert(spec.name.as_str().into(), id);
        self.directory.census.count(&job, false, true);
        // A resync may have begun before the job arrived, so the job counts as mentioned.
        for manager in self.roster.managers.iter_mut() {
            if let Some((_, jobs)) = &mut manager.sync {
                jobs.insert(id);
            }
        }
        self.jobs.insert(id, Arc::new(job));
        if !Topology::of(&spec.labels).is_none() {
            self.near.insert(id);
        }
        self.pending.revised.insert(id);
        self.outbox.unsent.insert(id);
        self.note(Change::Job(id));
        Ok(())
    }

    fn end_job(&mut self, id: JobId, end: End) -> Result<(), EventError> {
        let job = self.jobs.get(&id).cloned().ok_or(EventError::UnknownJob(id))?;
        self.set_verdict(id, Verdict::Stop(if end == End::Cancelled { Reason::Cancelled } else { Reason::Finished }));
        self.jobs.remove(&id);
        self.near.remove(&id);
        self.directory.job_names.remove(job.spec.name.as_str());
        self.pending.revised.remove(&id);
        self.pending.unissued.remove(&id);
        self.pending.unfitted.remove(&id);
        self.count_out(&job);
        let waited = job.issued.blocked.as_ref().map(|(until, _)| *until);
        for at in waited.into_iter().chain(job.limit_at()) {
            self.pending.timers.remove(&(at, id));
        }
        // The job's room is free when the manager reports that its slots are gone. Issued slots may still be starting.
        let mut leaving = Arc::unwrap_or_clone(job);
        leaving.verdict = Verdict::Stop(if end == End::Cancelled { Reason::Cancelled } else { Reason::Finished });
        self.directory.census.count(&leaving, false, false);
        self.directory.census.count(&leaving, true, true);
        self.leaving.insert(id, Arc::new(leaving));
        self.outbox.unsent.insert(id);
        self.forget_if_gone(id);
        self.note(Change::Ended(id));
        Ok(())
    }

    fn hold(&mut self, id: JobId, held: bool) -> Result<(), EventError> {
        let now = self.now;
        let job = self.job_mut(id).ok_or(EventError::UnknownJob(id))?;
        if job.held != held {
            job.held = held;
            if !held {
                job.wait_anew(now);
            }
            // A job that should stop remains so.
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
        if slots.len() > MOST_OBSERVED {
            let problem = format!("{} slots of {id} are observed, and may be at most {MOST_OBSERVED}", slots.len());
            return Err(EventError::Server { server: shown(&slots[0].server, 64).into(), problem });
        }
        let mut seen = Vec::with_capacity(slots.len());
        for slot in slots {
            let server = *self
                .roster
                .server_ids
                .get(slot.server.as_str())
                .ok_or_else(|| EventError::UnknownServer(slot.server.clone()))?;
            check_shares(&slot.server, &slot.devices)?;
            let devices = slot.devices.iter().copied().collect();
            seen.push(Slot { role: slot.role, index: slot.index, server, devices });
        }
        for manager in self.roster.managers.iter_mut() {
            if let Some((_, jobs)) = &mut manager.sync {
                jobs.insert(id);
            }
        }
        let observed = (!seen.is_empty()).then(|| Arc::new(self.working(id, incarnation, seen)));
        if let Some(observed) = &observed {
            self.follow_gpu_type(id, observed);
        }
        let released = observed.is_none();
        let now = self.now;
        self.recharge(id, |job| {
            job.seen.allocation = observed;
            job.seen.incarnation = incarnation;
            job.seen.phase = if released { Phase::Stopped } else { phase };
            job.issued.outgoing.take_if(|outgoing| released || outgoing.incarnation != incarnation);
            // A job that has ended, or that is to restart elsewhere, is charged only for its observed slots.
            if job.verdict.allocation().is_none() || job.issued.revoked {
                job.issue(None, now);
            }
        });
        if let Some(job) =
            self.job_mut(id).filter(|job| job.seen.phase == Phase::Running && incarnation == job.issued.incarnation)
        {
            let as_planned = job.seen.allocation.as_ref() == job.verdict.allocation();
            // If the job only continues as before, its plan is still refused.
            let is_news = job.issued.retried || job.seen.allocation != job.issued.allocation;
            let mut waited = None;
            if as_planned && is_news {
                job.issued.refusals = 0;
                waited = job.issued.blocked.take();
            }
            let first = job.seen.started.is_none();
            job.seen.started.get_or_insert(now);
            let limit_at = job.limit_at().filter(|_| first);
            self.pending.timers.extend(limit_at.map(|at| (at, id)));
            if let Some((until, _)) = waited {
                self.pending.timers.remove(&(until, id));
            }
            if as_planned {
                self.pending.unissued.insert(id);
            }
        }
        self.forget_if_gone(id);
        Ok(())
    }

    /// The observed slots with their work. Managers don't observe work, so it is taken from the last work of this
    /// incarnation. A slot that is observed without its devices has released them and is idle.
    fn working(&self, id: JobId, incarnation: Incarnation, mut seen: Vec<Slot>) -> Allocation {
        let job = self.jobs.get(&id).or_else(|| self.leaving.get(&id));
        let known = job.and_then(|job| {
            if incarnation == job.issued.incarnation { &job.issued.allocation } else { &job.seen.allocation }.as_ref()
        });
        let Some(known) = known.filter(|known| !known.work().is_empty()) else { return Allocation::new(seen) };
        let mut idle = BTreeSet::new();
        for slot in &mut seen {
            let given = known.slot(slot.role, slot.index).filter(|given| given.server == slot.server);
            match given {
                Some(given) if slot.devices.is_empty() && !given.devices.is_empty() => {
                    slot.devices.clone_from(&given.devices);
                    idle.insert((slot.role, slot.index));
                }
                // If devices aren't reported, their use isn't reported either.
                Some(given) if given.devices.is_empty() && !known.is_busy(given) => {
                    idle.insert((slot.role, slot.index));
                }
                _ => {}
            }
        }
        Allocation::new(seen).working_as(known, |slot| idle.contains(&(slot.role, slot.index)))
    }

    /// Forgets an ended job when none of its slots is left and the host knows of its end.
    pub(super) fn forget_if_gone(&mut self, id: JobId) {
        let Some(job) =
            self.leaving.get(&id).filter(|job| job.seen.allocation.is_none() && job.issued.allocation.is_none())
        else {
            return;
        };
        let farewell = job.issue_of(job.verdict.clone());
        self.directory.census.count(job, true, false);
        self.leaving.remove(&id);
        let knows = self.outbox.told.remove(&id).is_some();
        if knows && self.outbox.unsent.contains(&id) {
            self.outbox.farewells.insert(id, farewell);
        } else {
            self.outbox.unsent.remove(&id);
        }
    }

    fn enacted(&mut self, decision: DecisionId, id: JobId, result: &Enactment) -> Result<(), EventError> {
        let Some(job) = self.jobs.get(&id) else {
            return if self.leaving.contains_key(&id) { Ok(()) } else { Err(EventError::UnknownJob(id)) };
        };
        let Enactment::Refused { cause, retry_after } = result else { return Ok(()) };
        if decision < job.issued.decision {
            let issued_in = job.issued.decision;
            let job = self.job_mut(id).expect("looked up above");
            job.issued.late_refusals = job.issued.late_refusals.saturating_add(1);
            return Err(EventError::LateRefusal { job: id, decision, issued_in });
        }
        if job.verdict.allocation().is_none() {
            return Ok(());
        }
        let cause: Arc<str> = shown(cause, LONGEST_CAUSE).into();
        let (now, refusals, issued_in) = (self.now, job.issued.refusals.saturating_add(1), self.decision);
        let doubled = Span(self.settings.refusal_backoff.0.saturating_mul(1 << (refusals - 1).min(20)));
        let wait = retry_after.unwrap_or(doubled).clamp(Span(1), LONGEST_WAIT);
        let until = now + wait;
        let waited = job.issued.blocked.as_ref().map(|(until, _)| *until);
        let given_up = refusals >= self.settings.refusals;
        // The refused slots don't exist. The observed ones do, and the job continues on them if its bounds allow it.
        let seen = job.seen.allocation.clone();
        let runs_on = !job.issued.revoked && seen.as_ref().is_some_and(|seen| job.bounds().hold(seen.shape()));
        let same = job.issued.allocation == seen;
        let stays = job.seen.incarnation == job.issued.incarnation
            && seen.as_ref().is_some_and(|seen| self.in_place(job, seen));
        self.recharge(id, |job| {
            if runs_on && job.can_go_back() {
                // A refused restart stops nothing.
                job.go_back();
            } else if runs_on && !same {
                job.renumber(stays);
            }
            job.issued.revoked = seen.is_some() && !runs_on;
            job.issued.allocation.clone_from(&seen);
            job.choose_batch(now);
            job.issued.decision = issued_in;
            job.issued.refusals = refusals;
            job.issued.retried = false;
            job.issued.blocked = Some((until, cause.clone()));
            job.issued.reason = Some(Reason::Refused { cause: cause.clone(), retry_at: until });
        });
        if let Some(waited) = waited {
            self.pending.timers.remove(&(waited, id));
        }
        self.pending.timers.insert((until, id));
        self.pending.unissued.insert(id);
        self.outbox.unsent.insert(id);
        if given_up {
            let runs_on = seen.filter(|seen| runs_on && self.fits_instead(id, seen)).map(Verdict::Run);
            let waits = || Verdict::Wait(Reason::Refused { cause: cause.clone(), retry_at: until });
            self.set_verdict(id, runs_on.unwrap_or_else(waits));
            self.note(Change::Dropped(id));
        }
        Ok(())
    }

    /// Active jobs of a manager's queue that its open resync hasn't mentioned. If the manager owns its queue and the
    /// resync ends now, they have ended. O(jobs).
    pub fn missing_in_sync(&self, manager: &str) -> Vec<JobId> {
        let open =
            self.roster.managers.iter().find(|known| &*known.name == manager).and_then(|known| known.sync.as_ref());
        open.map_or_else(Vec::new, |(_, jobs)| self.missing(manager, jobs))
    }

    /// Servers of a manager that its open resync hasn't mentioned. If it ends now, they have left. O(servers).
    pub fn servers_missing_in_sync(&self, manager: &str) -> Vec<String> {
        let known = self.roster.managers.iter().position(|known| &*known.name == manager);
        let open = known.and_then(|at| Some((ManagerId(at as u32), &self.roster.managers[at].sync.as_ref()?.0)));
        let Some((id, seen)) = open else { return Vec::new() };
        self.unseen_servers(id, seen).map(|server| server.name.to_string()).collect()
    }

    fn unseen_servers(&self, manager: ManagerId, seen: &OrdSet<ServerId>) -> impl Iterator<Item = &Arc<Server>> {
        self.present_servers().filter(move |server| server.manager == manager && !seen.contains(&server.id))
    }

    fn missing(&self, manager: &str, seen: &OrdSet<JobId>) -> Vec<JobId> {
        let of = |job: &&Arc<Job>| job.external.as_ref().is_some_and(|external| external.cluster == manager);
        self.jobs.values().filter(|job| !seen.contains(&job.id)).filter(of).map(|job| job.id).collect()
    }

    fn sync_end(&mut self, name: &str, owns_queue: bool) -> Result<(), EventError> {
        let known = self.roster.managers.iter().position(|manager| &*manager.name == name);
        let open = known.and_then(|at| Some((at, self.roster.managers[at].sync.take()?)));
        let Some((at, (servers, jobs))) = open else {
            return Err(EventError::Sync { manager: name.into(), problem: "SyncEnd without SyncBegin" });
        };
        if self.roster.managers.iter().all(|manager| manager.sync.is_none()) {
            self.roster.syncing_since = None;
        }
        let id = ManagerId(at as u32);
        let gone: BTreeSet<ServerId> = self.unseen_servers(id, &servers).map(|server| server.id).collect();
        self.servers_left(&gone);
        // Slots that a full resync doesn't mention are gone, except on servers of other managers.
        let mine = |state: &Self, job: &Job| {
            let of = |allocation: &Option<Arc<Allocation>>| {
                allocation
                    .as_ref()
                    .is_some_and(|a| a.slots().iter().any(|slot| state.server(slot.server).manager == id))
            };
            of(&job.seen.allocation) || of(&job.issued.allocation)
        };
        let unseen: Vec<(JobId, Incarnation)> = self
            .jobs
            .values()
            .chain(self.leaving.values())
            .filter(|job| !jobs.contains(&job.id) && mine(self, job))
            .map(|job| (job.id, job.issued.incarnation))
            .collect();
        for (job, incarnation) in unseen {
            self.observe(job, incarnation, &[], Phase::Stopped)?;
            let now = self.now;
            self.recharge(job, |job| job.issue(None, now));
            self.pending.unissued.insert(job);
            self.forget_if_gone(job);
        }
        if owns_queue {
            for job in self.missing(name, &jobs) {
                self.end_job(job, End::Completed)?;
            }
        }
        Ok(())
    }
}
