//! Runs a scenario, and checks all invariants.

use std::{collections::BTreeMap, sync::Arc};

use trainmaster_core::{
    Allocation, Budget, Decision, DeviceShare, Event, EventError, Incarnation, JobId, Mode, Role, Scheduler,
    ServerSpec, SlotUse, Source, Ticket, Time, Verdict,
    job::ExternalId,
    journal::Record,
    replay::{self, Replay},
    scheduler::Why,
    state::Mandate,
};
use trainmaster_sim::recorded::Recorder;

use super::{
    build::amounts,
    invariants,
    manager::Manager,
    scenario::{Scenario, Step},
};

/// Options of a run.
#[derive(Clone, Copy, Default)]
pub struct Options {
    /// Drop the engine's index before every ticket.
    pub forget_index: bool,
    /// Restart from the journal.
    pub restore: bool,
    /// Keep a journal.
    pub journal: bool,
}

/// Results of a run.
pub struct Trace {
    /// Encoded decisions.
    pub decisions: Vec<Vec<u8>>,
    pub digest: [u8; 32],
    pub records: Vec<Vec<u8>>,
    /// Digests at numbers of records, with a journal.
    pub marks: Vec<(usize, [u8; 32])>,
    /// Number of decisions in the quiet end that changed something.
    pub late_changes: usize,
}

struct Player<'a> {
    scenario: &'a Scenario,
    options: Options,
    scheduler: Scheduler,
    manager: Manager,
    now: i64,
    submitted: u64,
    present: Vec<bool>,
    specs: Vec<ServerSpec>,
    steps: BTreeMap<JobId, (u64, u64)>,
    ticket: Option<Ticket>,
    /// Verdicts that the open ticket may not change, until another event.
    pinned: Option<Vec<(JobId, Verdict)>>,
    stale: Option<Ticket>,
    /// The plan as a reader of decisions knows it. Unknown after a change of mode.
    plan: Option<BTreeMap<JobId, Verdict>>,
    trace: Trace,
}

pub fn play(scenario: &Scenario, options: Options) -> Trace {
    let mut scheduler = Scheduler::new(scenario.settings.clone()).expect("settings are allowed");
    if options.journal || options.restore {
        scheduler.start_journal();
    }
    let mut player = Player {
        scenario,
        options,
        scheduler,
        manager: Manager::default(),
        now: 0,
        submitted: 0,
        present: vec![true; scenario.servers.len()],
        specs: scenario.servers.clone(),
        steps: BTreeMap::new(),
        ticket: None,
        pinned: None,
        stale: None,
        plan: Some(BTreeMap::new()),
        trace: Trace {
            decisions: Vec::new(),
            digest: [0; 32],
            records: Vec::new(),
            marks: Vec::new(),
            late_changes: 0,
        },
    };
    for at in 0..scenario.servers.len() {
        player.set_server(at);
    }
    for step in &scenario.steps {
        player.step(step);
    }
    player.settle_down();
    player.mark();
    player.trace.digest = player.scheduler.digest();
    player.trace
}

impl Player<'_> {
    fn apply(&mut self, event: Event) {
        self.pinned = None;
        match self.scheduler.apply(Time(self.now), event) {
            Err(EventError::Time { .. }) => panic!("time went back"),
            // A manager ends a job that the core doesn't know.
            Err(EventError::UnknownJob(job)) => self.manager.drop_job(job),
            _ => {}
        }
    }

    fn set_server(&mut self, at: usize) {
        let server = self.specs[at].clone();
        self.apply(Event::ServerSet { manager: "m0".into(), server });
    }

    fn pick(&self, lot: usize) -> Option<JobId> {
        let jobs = &self.scheduler.state().jobs;
        jobs.keys().nth(lot % jobs.len().max(1)).copied()
    }

    fn step(&mut self, step: &Step) {
        let before = invariants::before(&self.scheduler);
        self.take(step);
        invariants::always(&self.scheduler, &before);
        self.tell();
        self.mark();
    }

    fn mark(&mut self) {
        if !self.options.journal {
            return;
        }
        self.trace.records.extend(self.scheduler.drain_journal());
        self.trace.marks.push((self.trace.records.len(), self.scheduler.digest()));
    }

    fn tell(&mut self) {
        let issues = self.scheduler.take_issues();
        for issue in &issues {
            invariants::told(self.scheduler.state(), self.manager.told.get(&issue.job), issue);
        }
        self.manager.receive(self.scheduler.state(), issues);
        let is_over = |id: &JobId| self.scheduler.state().job(*id).is_none();
        for (id, issue) in self.manager.told.iter().filter(|(id, _)| is_over(id)) {
            assert!(matches!(issue.verdict, Verdict::Stop(_)), "nobody told its manager that {id} is over: {issue:?}");
        }
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Advance(ms) => self.now += ms,
            Step::Submit(spec) => {
                self.submitted += 1;
                let mut spec = spec.clone();
                spec.name = format!("j{}", self.submitted);
                let external = self
                    .submitted
                    .is_multiple_of(2)
                    .then(|| ExternalId { cluster: "m0".into(), native: self.submitted.to_string() });
                self.apply(Event::JobSubmitted { spec, external, token_hash: None });
            }
            Step::End(lot, end) => {
                if let Some(job) = self.pick(*lot) {
                    self.apply(Event::JobEnded { job, end: *end });
                }
            }
            Step::Hold(lot, held) => {
                if let Some(job) = self.pick(*lot) {
                    self.apply(Event::JobHeld { job, held: *held });
                }
            }
            Step::Report(lot, report, stale) => {
                let Some(id) = self.pick(*lot) else { return };
                let job = &self.scheduler.state().jobs[&id];
                let incarnation = Incarnation(job.issued.incarnation.0.wrapping_sub(u32::from(*stale)));
                let (seq, step) = self.steps.entry(id).or_default();
                *seq += 1;
                *step = step.saturating_add(report.steps.into());
                let mut report = report.clone();
                (report.seq, report.step) = (*seq, *step);
                self.apply(Event::Reported { job: id, incarnation, slot: (Role::Worker, 0), report: *report });
            }
            Step::ServerLost(lot) => {
                let at = lot % self.specs.len();
                self.present[at] = false;
                let name = self.specs[at].name.clone();
                self.manager.lose(self.scheduler.state(), &name);
                self.apply(Event::ServersLeft { names: vec![name] });
            }
            Step::ServerSet(lot, eighths, draining, fewer) => {
                let at = lot % self.specs.len();
                let mut server = self.scenario.servers[at].clone();
                server.capacity.values_mut().for_each(|value| *value = *value * eighths / 8);
                server.devices.truncate(server.devices.len().saturating_sub(*fewer));
                server.draining = *draining;
                if *eighths == 2 {
                    server.labels.clear();
                }
                if *fewer == 1 {
                    // Or other devices on the same server.
                    server.devices.iter_mut().for_each(|kind| *kind = "gpu:v100".into());
                }
                self.specs[at] = server;
                self.present[at] = true;
                self.set_server(at);
            }
            Step::Foreign(lot, gpu, cpu, share) => {
                let server = self.specs[lot % self.specs.len()].name.clone();
                let devices = [trainmaster_core::DeviceShare { device: 0, milli: *share }];
                let devices = if *share > 0 { devices.to_vec() } else { Vec::new() };
                let gpu = if *share > 0 { i64::from(*share) } else { *gpu };
                self.apply(Event::ForeignUse { server, amounts: amounts(&[("gpu", gpu), ("cpu", *cpu)]), devices });
            }
            Step::Measure(lot, used, ours) => {
                let at = lot % self.specs.len();
                let spec = &self.specs[at];
                let state = self.scheduler.state();
                let Some(server) = state.find_server(&spec.name).map(|server| server.id) else { return };
                let on = |allocation: &Arc<Allocation>| {
                    allocation.slots().iter().filter(|slot| slot.server == server).cloned().collect::<Vec<_>>()
                };
                let slots: Vec<_> = state
                    .jobs
                    .values()
                    .flat_map(|job| {
                        job.seen.allocation.as_ref().map(on).unwrap_or_default().into_iter().map(|slot| (job.id, slot))
                    })
                    .collect();
                let share = |value: i64, of: i64| value * used * of / 10_000;
                let each = *ours / (slots.len() as i64).max(1);
                let table = |of: i64| {
                    let shares = spec.capacity.iter().filter(|(name, _)| !name.starts_with("gpu"));
                    shares.map(|(name, value)| (name.clone(), share(*value, of))).collect()
                };
                let devices = |of: i64| -> Vec<DeviceShare> {
                    let milli = share(1000, of).clamp(0, 1000) as u16;
                    (0..spec.devices.len() as u16).map(|device| DeviceShare { device, milli }).collect()
                };
                let slots = slots.iter().map(|(job, slot)| SlotUse {
                    job: *job,
                    slot: (slot.role, slot.index),
                    used: table(each),
                    devices: devices(each)
                        .into_iter()
                        .filter(|d| slot.devices.iter().any(|s| s.device == d.device))
                        .collect(),
                });
                let event = Event::Utilisation {
                    server: spec.name.clone(),
                    used: table(100),
                    devices: devices(100),
                    slots: slots.collect(),
                };
                self.apply(event);
            }
            Step::Configure(settings) => {
                self.apply(Event::Configured(settings.clone()));
                // Tickets from before a change of settings are superseded.
                self.stale = self.ticket.take().or(self.stale.take());
            }
            Step::Mode(mode) => self.set_mode(*mode),
            Step::Resync(servers, jobs, owns_queue) => self.resync(*servers, *jobs, *owns_queue),
            Step::Manage(lot) => self.manager.act(self.scheduler.state(), *lot),
            Step::Deliver(lot) => {
                if let Some(event) = self.manager.next_event(*lot) {
                    self.apply(event);
                }
            }
            Step::Prepare => {
                if let Some(ticket) = self.scheduler.prepare_fits(Time(self.now)) {
                    self.scheduler.commit_fits(Time(self.now), ticket.run()).expect("just opened");
                }
                let ticket = self.prepare();
                self.stale = self.ticket.replace(ticket);
            }
            Step::Commit(budget) => self.commit(budget.map_or(Budget::UNLIMITED, Budget::steps)),
            Step::CommitStale => {
                if let Some(stale) = self.stale.take() {
                    let digest = self.scheduler.digest();
                    let outcome = stale.run(Budget::UNLIMITED);
                    assert!(
                        self.scheduler.commit(Time(self.now), outcome).is_err(),
                        "a superseded ticket was committed"
                    );
                    assert_eq!(digest, self.scheduler.digest());
                }
            }
            Step::Abandon => self.abandon(Why::Late),
            Step::Decide => self.decide(),
            Step::Snapshot => {
                self.scheduler.snapshot();
            }
            Step::Restart => {
                self.abandon(Why::Lost);
                self.stale = None;
                if self.options.restore {
                    self.trace.records.extend(self.scheduler.drain_journal());
                    let records = self.trace.records.iter().map(Vec::as_slice);
                    let restored = Scheduler::restore(records).expect("its own journal");
                    assert_eq!(restored.digest(), self.scheduler.digest());
                    self.scheduler = restored;
                    self.scheduler.start_journal();
                    // A repeated observation issues nothing new.
                    self.scheduler.take_issues();
                }
                self.tell_all();
            }
        }
    }

    fn set_mode(&mut self, mode: Mode) {
        if mode != self.scheduler.state().mode {
            self.plan = (mode == Mode::Active || mode == Mode::Paused).then(BTreeMap::new);
        }
        self.apply(Event::ModeSet(mode));
    }

    fn resync(&mut self, servers: u8, jobs: u8, owns_queue: bool) {
        let manager = "m0".to_owned();
        self.apply(Event::SyncBegin { manager: manager.clone() });
        assert_eq!(self.scheduler.due(), None);
        for at in 0..self.specs.len() {
            if servers >> at & 1 == 1 {
                self.present[at] = false;
                self.manager.lose(self.scheduler.state(), &self.specs[at].name.clone());
            } else if self.present[at] {
                self.set_server(at);
            }
        }
        self.manager.forget(|at| at < 8 && jobs >> at & 1 == 1);
        let mentioned: Vec<JobId> = self.manager.told.keys().copied().collect();
        for job in mentioned {
            let event = self.manager.observation(self.scheduler.state(), job);
            self.apply(event);
        }
        self.apply(Event::SyncEnd { manager, owns_queue });
        self.tell_all();
    }

    /// After a snapshot or a restart, the host sends the whole plan.
    fn tell_all(&mut self) {
        self.tell();
        self.manager.receive_all(self.scheduler.state(), self.scheduler.all_issues());
    }

    fn prepare(&mut self) -> Ticket {
        if self.options.forget_index {
            self.scheduler.forget_index();
        }
        let ticket = self.scheduler.prepare(Time(self.now));
        let state = self.scheduler.state();
        let pinned = state.jobs.values().filter(|job| state.mandate(job) != Mandate::Free);
        self.pinned = Some(pinned.map(|job| (job.id, job.verdict.clone())).collect());
        ticket
    }

    fn commit(&mut self, budget: Budget) {
        let Some(ticket) = self.ticket.take() else { return };
        self.stale = None;
        let before: BTreeMap<JobId, Verdict> =
            self.scheduler.state().jobs.values().map(|job| (job.id, job.verdict.clone())).collect();
        let outcome = ticket.run(budget);
        let unlimited = budget == Budget::UNLIMITED;
        let decision = self.scheduler.commit(Time(self.now), outcome).expect("it is the open one");
        if unlimited {
            assert_ne!(decision.source, Source::Kept, "the engine failed: {:?}", self.scheduler.last_error());
        }
        let state = self.scheduler.state();
        invariants::committed(state, &decision);
        for job in state.jobs.values() {
            let old = before.get(&job.id).and_then(Verdict::allocation);
            if let (Some(old), Some(new)) = (old, job.verdict.allocation()) {
                invariants::unchanged_slots_keep_their_index(job, old, new);
            }
            if let Some(new) = job.verdict.allocation() {
                invariants::new_slots_are_accepted(state, job, old, new);
                if old != Some(new) {
                    invariants::roles_stay_apart(job, new);
                }
            }
        }
        if let Some(pinned) = self.pinned.take() {
            for (id, verdict) in pinned {
                let now = state.job(id).map(|job| &job.verdict);
                // If a job keeps its slots, their work may change.
                let slots = |verdict: &Verdict| verdict.allocation().map(|allocation| allocation.slots().to_vec());
                let same_slots = slots(&verdict).is_some() && now.and_then(slots) == slots(&verdict);
                let pinned = state.job(id).is_some_and(|job| state.mandate(job) != Mandate::Closed);
                assert!(now == Some(&verdict) || (pinned && same_slots), "{id} wasn't the engine's to change: {now:?}");
            }
            if decision.source == Source::Engine {
                for job in state.jobs.values().filter(|job| state.mandate(job) == Mandate::Free) {
                    let kind = job.verdict.reason().map(trainmaster_core::Reason::kind);
                    let considered = kind != Some(trainmaster_core::reason::ReasonKind::NotConsidered);
                    // The rest of a round with a small budget is due again.
                    let left_over = !unlimited && self.scheduler.due().is_some();
                    assert!(considered || left_over, "{} got no verdict", job.id);
                }
            }
        }
        self.follow(&decision);
        self.trace.decisions.push(postcard(&decision));
    }

    /// Decisions contain the whole plan for a reader.
    fn follow(&mut self, decision: &Decision) {
        let Some(plan) = &mut self.plan else { return };
        plan.extend(decision.changes.iter().cloned());
        let state = self.scheduler.state();
        plan.retain(|id, _| state.job(*id).is_some());
        for job in state.jobs.values() {
            assert_eq!(plan.get(&job.id), Some(&job.verdict), "decisions didn't tell the verdict of {}", job.id);
        }
    }

    fn abandon(&mut self, why: Why) {
        if let Some(ticket) = self.ticket.take() {
            self.scheduler.abandon(Time(self.now), ticket.id(), why);
            self.stale = Some(ticket);
        }
    }

    /// As [`Scheduler::decide`], with checks between the steps.
    fn decide(&mut self) {
        if let Some(ticket) = self.scheduler.prepare_fits(Time(self.now)) {
            self.scheduler.commit_fits(Time(self.now), ticket.run()).expect("just opened");
        }
        let ticket = self.prepare();
        self.ticket = Some(ticket);
        self.tell();
        self.commit(Budget::UNLIMITED);
    }

    /// From now on the manager obeys and reports at once, so that the plan is reached and stays.
    fn settle_down(&mut self) {
        self.step(&Step::Commit(None));
        if self.scheduler.state().mode != Mode::Active {
            self.step(&Step::Mode(Mode::Active));
        }
        for _ in 0..4 {
            // Waits after refusals end within the hour.
            self.obey_all();
            self.step(&Step::Advance(4_000_000));
            self.step(&Step::Decide);
        }
        self.obey_all();
        let state = self.scheduler.state();
        for job in state.jobs.values() {
            let target = job.verdict.allocation();
            assert_eq!(
                job.issued.allocation.as_ref(),
                target,
                "{} isn't issued as planned: {:?}",
                job.id,
                job.issued.reason
            );
            assert_eq!(job.seen.allocation.as_ref(), target, "{} doesn't run as planned", job.id);
        }
        assert!(self.scheduler.all_issues().iter().all(|issue| state.job(issue.job).is_some()), "a job never left");
        for server in &state.servers {
            assert!(server.excess(&server.charged).is_none(), "{} stays over its capacity", server.name);
        }
        let was: Vec<_> = state.jobs.values().map(|job| (job.id, job.shape())).collect();
        self.step(&Step::Decide);
        let now: Vec<_> = self.scheduler.state().jobs.values().map(|job| (job.id, job.shape())).collect();
        self.trace.late_changes += usize::from(was != now);
    }

    fn obey_all(&mut self) {
        for _ in 0..30 {
            let mut quiet = true;
            // Stops come before starts.
            for _ in 0..2 {
                let told: Vec<JobId> = self.manager.told.keys().copied().collect();
                for job in told {
                    self.manager.obey(self.scheduler.state(), job, false);
                }
            }
            let observed = |player: &Self| -> Vec<_> {
                let jobs = player.scheduler.state().jobs.values();
                jobs.map(|job| {
                    (job.id, job.issued.allocation.clone(), job.seen.allocation.clone(), job.issued.incarnation)
                })
                .collect()
            };
            let was = observed(self);
            while let Some(event) = self.manager.next_event(0) {
                if matches!(event, Event::Enacted { .. }) {
                    continue;
                }
                let before = invariants::before(&self.scheduler);
                self.apply(event);
                invariants::always(&self.scheduler, &before);
            }
            quiet &= was == observed(self);
            self.tell();
            if quiet {
                return;
            }
        }
        panic!("no rest after 30 rounds");
    }
}

fn postcard(decision: &Decision) -> Vec<u8> {
    serde_json::to_vec(decision).expect("plain data")
}

/// Replays from every snapshot alone, from prefixes at some marks, and from damaged records.
pub fn check_journal(trace: &Trace) {
    let snapshots: Vec<usize> =
        trace.records.iter().enumerate().filter(|(_, record)| Record::is_snapshot(record)).map(|(at, _)| at).collect();
    for start in &snapshots {
        let kept =
            trace.records.iter().enumerate().skip(*start).filter(|(at, _)| at == start || !snapshots.contains(at));
        let restored = Scheduler::restore(kept.map(|(_, record)| record.as_slice())).expect("its own journal");
        assert_eq!(restored.digest(), trace.digest, "from the snapshot at {start}");
    }
    for (length, digest) in trace.marks.iter().step_by(7) {
        let prefix = trace.records[..*length].iter().map(Vec::as_slice);
        let restored = Scheduler::restore(prefix).expect("a whole prefix");
        assert_eq!(restored.digest(), *digest, "after {length} records");
        restored.state().audit().expect("sums hold after a replay");
    }
    let records = trace.records.iter().map(|record| Record::decode(record).expect("a whole record"));
    let mut replay: Option<(Replay, Recorder)> = None;
    for record in records {
        let Some((replay, recorder)) = &mut replay else {
            let Record::Snapshot(saved) = record else { panic!("a journal begins with a snapshot") };
            let again = (Replay::new((*saved).clone()).unwrap(), Recorder::new(*saved).unwrap());
            replay = Some(again);
            continue;
        };
        match replay.step(&record).unwrap() {
            replay::Replayed::Decided(Err(difference)) => panic!("{difference:?}"),
            replay::Replayed::Snapshot { follows } => assert!(follows, "a snapshot is not what led to it"),
            _ => {}
        }
        recorder.take(&record).unwrap();
    }
    let (replay, recorder) = replay.expect("a snapshot at least");
    assert_eq!(replay.scheduler().digest(), trace.digest);
    let recording = recorder.finish();
    let workload = recording.workload(1);
    assert_eq!(workload.jobs.len(), recording.simulated().count());
    assert!(workload.jobs.iter().all(|job| job.spec.validate().is_ok() && job.arrival >= Time(0)));
    let last = trace.records.last().expect("a snapshot at least");
    assert!(Record::decode(&last[..last.len() - 1]).is_err(), "a torn record was read");
    let mut damaged = last.clone();
    damaged[last.len() / 2] ^= 1;
    assert!(Record::decode(&damaged).is_err(), "a damaged record was read");
}
