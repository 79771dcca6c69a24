//! The virtual manager: it executes issues, runs the programs, and reports what it observes.

use super::{Happening, Play, SimError};
use crate::{
    program::{Came, Stage},
    uploads::Places,
};
use trainmaster_core::{
    decision::{Allocation, Issue, Slot, Verdict},
    event::{End, Event, ObservedSlot},
    ids::JobId,
    job::Phase,
    reason::ReasonKind,
    server::Usage,
    state::usage_by_server,
};

impl Play<'_> {
    /// Executes an issue, or stores it until it is possible.
    pub(super) fn told(&mut self, issue: Issue) -> Result<(), SimError> {
        let (id, now) = (issue.job, self.now);
        let Some(program) = self.programs.get_mut(&id) else { return Ok(()) };
        let given = match (&issue.verdict, program.stage) {
            // The job belongs to the manager itself, and stays unchanged.
            (Verdict::Release(_), _) => return Ok(()),
            (Verdict::Run(slots), Stage::Starting(_) | Stage::Training) if program.incarnation == issue.incarnation => {
                let slots = slots.clone();
                if program.slots.as_ref() == Some(&slots) {
                    return Ok(());
                }
                self.take_away(id);
                let places = self.places(&slots);
                let program = self.programs.get_mut(&id).expect("found above");
                program.resize(now, slots, places);
                self.give(id)?;
                return self.planned(id);
            }
            (Verdict::Run(slots), Stage::Absent) => Some(slots.clone()),
            _ => None,
        };
        if let Some(slots) = given {
            // A server has failed meanwhile. The scheduler knows it, and sends another issue.
            let gone = |slot: &Slot| !self.scheduler.state().server(slot.server).present;
            if slots.slots().iter().any(gone) {
                return Ok(());
            }
            let places = self.places(&slots);
            let program = self.programs.get_mut(&id).expect("found above");
            program.start(now, &issue, slots, places);
            self.give(id)?;
            return self.planned(id);
        }
        program.wanted = Some(issue);
        if program.stop(now) { self.stopped(id) } else { self.planned(id) }
    }

    /// A checkpoint is complete: its slots are free, and a stored issue can start.
    fn stopped(&mut self, id: JobId) -> Result<(), SimError> {
        self.take_away(id);
        let program = self.programs.get_mut(&id).expect("it was just looked at");
        program.leave();
        let wanted = program.wanted.take();
        if let Some(issue @ Issue { verdict: Verdict::Run(_), .. }) = wanted {
            self.told(issue)?;
            if self.programs[&id].stage != Stage::Absent {
                return Ok(());
            }
            return self.observed(id);
        }
        self.observed(id)?;
        if matches!(wanted, Some(Issue { verdict: Verdict::Stop(_), .. })) {
            self.end(id, End::Stopped)?;
        }
        Ok(())
    }

    /// Handles a program's own event.
    pub(super) fn moment(&mut self, id: JobId) -> Result<(), SimError> {
        let now = self.now;
        let program = self.programs.get_mut(&id).expect("found by the caller");
        match program.come(now) {
            Came::Saved => return self.stopped(id),
            Came::Started => {
                self.meter.started(program.number, now);
                self.observed(id)?;
            }
            Came::Joined => self.observed(id)?,
            Came::Reported => self.reported(id)?,
            Came::Done => {
                self.reported(id)?;
                self.take_away(id);
                return self.end(id, End::Completed);
            }
            Came::Changed => {}
        }
        self.planned(id)
    }

    fn reported(&mut self, id: JobId) -> Result<(), SimError> {
        let now = self.now;
        let program = self.programs.get_mut(&id).expect("it reports");
        let (batch, report) = (program.batch_report(), program.report(now));
        batch.into_iter().chain([report]).try_for_each(|event| self.say(event))
    }

    fn end(&mut self, id: JobId, end: End) -> Result<(), SimError> {
        let Some(mut program) = self.programs.remove(&id) else { return Ok(()) };
        let state = self.scheduler.state();
        let job = state.job(id);
        let rescales = job.map_or(0, |job| job.issued.rescales);
        let early = job.and_then(|job| job.verdict.reason()).is_some_and(|reason| {
            end == End::Stopped && matches!(reason.kind(), ReasonKind::AccuracyReached | ReasonKind::NothingToGain)
        });
        let why = || {
            let reason = job.and_then(|job| job.verdict.reason());
            reason.map_or_else(|| "the scheduler stopped it".into(), |reason| reason.describe(state))
        };
        self.meter.ended(&program, self.now, (end != End::Completed).then(why), early, rescales);
        self.oracle.forget(id);
        self.say(Event::JobEnded { job: id, end })?;
        program.leave();
        let event = Event::Observed { job: id, incarnation: program.incarnation, slots: vec![], phase: Phase::Stopped };
        self.say(event)
    }

    pub(super) fn planned(&mut self, id: JobId) -> Result<(), SimError> {
        let Some(program) = self.programs.get_mut(&id) else { return Ok(()) };
        program.follow(self.now, self.scheduler.state().job(id).and_then(|job| job.batch()));
        if let Some(at) = program.plan(self.now, self.workload.report_every) {
            self.queue.put(at, Happening::Program(id, program.plan));
        }
        self.meter.trains(program, self.now);
        Ok(())
    }

    fn places(&self, slots: &Allocation) -> Places {
        let state = self.scheduler.state();
        slots.slots().iter().map(|slot| (slot.server, state.server(slot.server).place.clone())).collect()
    }

    /// Adds a job's slots.
    fn give(&mut self, id: JobId) -> Result<(), SimError> {
        let program = &self.programs[&id];
        let slots = program.slots.as_ref().expect("it was just given some");
        let state = self.scheduler.state();
        for (server, usage) in usage_by_server(state, &program.job, slots) {
            if self.used.len() <= server.index() {
                self.used.resize(server.index() + 1, Usage::default());
            }
            let used = &mut self.used[server.index()];
            used.add_usage(&usage, 1);
            self.meter.overfull(state.server(server).excess(used).is_some());
            self.meter.takes(&usage.amounts, state.server(server).place.cloud, 1);
        }
        self.meter.shaped(program, self.now);
        self.carries(id, true);
        self.observed(id)
    }

    /// Adds or removes a job's slots, if their load is known.
    fn carries(&mut self, id: JobId, comes: bool) {
        let program = &self.programs[&id];
        let Some(slots) = program.slots.as_ref().filter(|_| program.load().is_some()) else { return };
        if let Some(at) = self.carried.changes(self.now, id, slots, comes) {
            self.queue.put(at, Happening::Measured);
        }
    }

    /// Removes a job's slots.
    pub(super) fn take_away(&mut self, id: JobId) {
        let program = &self.programs[&id];
        let Some(slots) = &program.slots else { return };
        let state = self.scheduler.state();
        for (server, usage) in usage_by_server(state, &program.job, slots) {
            self.used[server.index()].add_usage(&usage, -1);
            self.meter.takes(&usage.amounts, state.server(server).place.cloud, -1);
        }
        self.meter.unshaped(program, self.now);
        self.carries(id, false);
    }

    /// Reports a job's slots as the manager observes them. Idle slots have released their devices.
    pub(super) fn observed(&mut self, id: JobId) -> Result<(), SimError> {
        let program = &self.programs[&id];
        let state = self.scheduler.state();
        let given = program.slots.iter().flat_map(|given| given.slots().iter().map(move |slot| (given, slot)));
        let slots = given.map(|(given, slot)| ObservedSlot {
            role: slot.role,
            index: slot.index,
            server: state.server_name(slot.server).to_owned(),
            devices: if given.is_busy(slot) { slot.devices.to_vec() } else { Vec::new() },
        });
        let phase = match program.stage {
            _ if program.is_complete() => Phase::Running,
            Stage::Absent => Phase::Stopped,
            Stage::Stopping(_) => Phase::Stopping,
            Stage::Starting(_) | Stage::Training => Phase::Starting,
        };
        let slots = slots.collect();
        self.say(Event::Observed { job: id, incarnation: program.incarnation, slots, phase })
    }
}
