//! A manager that is late, refuses, does half of an issue, and observes at its own times.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use trainmaster_core::{
    Enactment, Event, Incarnation, Issue, Job, JobId, ObservedSlot, Revision, Role, Slot, Span, State, Verdict,
    ids::DecisionId,
    job::Phase,
    resources::{Amounts, DISK, MEMORY},
};

/// The actual slots of one job.
#[derive(Clone, Debug, Default)]
pub struct Actual {
    pub incarnation: Incarnation,
    pub slots: Vec<Slot>,
    /// The slots that have released their devices.
    idle: BTreeSet<(Role, u32)>,
    pub complete: bool,
}

impl Actual {
    fn is_idle(&self, slot: &Slot) -> bool {
        self.idle.contains(&(slot.role, slot.index))
    }
}

/// The received issues, the actual slots, and the pending observations.
#[derive(Default)]
pub struct Manager {
    pub told: BTreeMap<JobId, Issue>,
    pub actual: BTreeMap<JobId, Actual>,
    jobs: BTreeMap<JobId, Arc<Job>>,
    /// The decision of each job's last issue.
    decisions: BTreeMap<JobId, DecisionId>,
    /// The slots of each incarnation and revision of a job.
    numbers: BTreeMap<(JobId, Incarnation, Revision), Vec<Slot>>,
    outbox: BTreeMap<JobId, VecDeque<Event>>,
}

impl Manager {
    pub fn receive(&mut self, state: &State, issues: Vec<Issue>) {
        for issue in issues {
            if let Some(job) = state.job(issue.job) {
                self.jobs.insert(issue.job, job.clone());
            }
            if let Verdict::Run(slots) = &issue.verdict {
                let number = (issue.job, issue.incarnation, issue.revision);
                let meant = self.numbers.entry(number).or_insert_with(|| slots.slots().to_vec());
                assert_eq!(meant, slots.slots(), "{number:?} stands for two allocations");
            }
            self.decisions.insert(issue.job, state.decision);
            self.told.insert(issue.job, issue);
        }
    }

    /// Receives a full plan. Jobs that it doesn't contain are removed.
    pub fn receive_all(&mut self, state: &State, issues: Vec<Issue>) {
        let named: BTreeSet<JobId> = issues.iter().map(|issue| issue.job).collect();
        let unnamed: Vec<JobId> = self.told.keys().copied().filter(|job| !named.contains(job)).collect();
        unnamed.into_iter().for_each(|job| self.drop_job(job));
        self.receive(state, issues);
    }

    /// Acts on one of its jobs.
    pub fn act(&mut self, state: &State, draw: u32) {
        if self.told.is_empty() {
            return;
        }
        let id = *self.told.keys().nth(draw as usize / 8 % self.told.len()).expect("in range");
        match draw % 8 {
            0..=3 => self.obey(state, id, false),
            4 => self.obey(state, id, true),
            5 => {
                let retry_after = [None, Some(Span(1)), Some(Span(30_000))][(draw / 1024 % 3) as usize];
                if matches!(self.told[&id].verdict, Verdict::Run(_)) {
                    self.say_enacted(id, Enactment::Refused { cause: "quota".into(), retry_after });
                }
            }
            6 => self.say_enacted(id, if draw % 16 < 8 { Enactment::Accepted } else { Enactment::Partial }),
            // The whole job crashes.
            _ => {
                if let Some(actual) = self.actual.get_mut(&id) {
                    actual.slots.clear();
                    self.say_seen(state, id);
                }
            }
        }
    }

    fn say_enacted(&mut self, job: JobId, result: Enactment) {
        let event = Event::Enacted { decision: self.decisions[&job], job, result };
        self.outbox.entry(job).or_default().push_back(event);
    }

    /// Stops slots that should not run, starts slots for which there is room, and queues the observations.
    pub fn obey(&mut self, state: &State, id: JobId, half: bool) {
        let issue = self.told[&id].clone();
        let mut actual = self.actual.remove(&id).unwrap_or_default();
        let most = if half { 1 } else { usize::MAX };
        match &issue.verdict {
            Verdict::Run(wanted) => {
                let before = actual.slots.len();
                let restart = actual.incarnation != issue.incarnation;
                let mut stopped = 0;
                actual.slots.retain(|slot| {
                    let stays = !restart && wanted.slots().contains(slot);
                    let spared = !stays && stopped == most;
                    stopped += usize::from(!stays && !spared);
                    stays || spared
                });
                // A restart begins when the old incarnation is gone.
                if !restart || before == 0 {
                    actual.incarnation = issue.incarnation;
                    let mut started = 0;
                    actual.idle.retain(|(role, index)| wanted.slot(*role, *index).is_some());
                    for slot in wanted.slots().iter().filter(|slot| !wanted.is_busy(slot)) {
                        actual.idle.insert((slot.role, slot.index));
                    }
                    for slot in wanted.slots() {
                        let exists = actual.slots.contains(slot);
                        let wakes = actual.is_idle(slot) && wanted.is_busy(slot);
                        let busy = wanted.is_busy(slot);
                        if (!exists || wakes) && started < most && self.has_room(state, id, &actual, slot, busy) {
                            if busy {
                                actual.idle.remove(&(slot.role, slot.index));
                            }
                            if !exists {
                                actual.slots.push(slot.clone());
                            }
                            started += 1;
                        }
                    }
                }
                let as_wanted = |slot: &Slot| actual.is_idle(slot) != wanted.is_busy(slot);
                actual.complete = actual.incarnation == issue.incarnation
                    && actual.slots.len() == wanted.slots().len()
                    && actual.slots.iter().all(as_wanted);
            }
            // The job belongs to the manager now, and stays unchanged.
            Verdict::Release(_) => {}
            _ => {
                let keep = if half { actual.slots.len() / 2 } else { 0 };
                actual.slots.truncate(keep);
            }
        }
        self.actual.insert(id, actual);
        self.say_seen(state, id);
    }

    fn has_room(&self, state: &State, id: JobId, actual: &Actual, slot: &Slot, busy: bool) -> bool {
        let server = state.server(slot.server);
        if !server.present {
            return false;
        }
        let others = self.actual.iter().filter(|(job, _)| **job != id);
        let takes = |job: &JobId, slot: &Slot, busy: bool| {
            let amounts = &self.jobs[job].demand(slot.role).amounts;
            if busy { amounts.clone() } else { Amounts::of(&[(MEMORY, amounts[MEMORY]), (DISK, amounts[DISK])]) }
        };
        let mut amounts = takes(&id, slot, busy);
        let own = slot.devices.iter().filter(|_| busy);
        let mut devices: BTreeMap<u16, u32> = own.map(|share| (share.device, u32::from(share.milli))).collect();
        for (job, actual) in others.chain([(&id, actual)]) {
            let itself = |other: &Slot| *job == id && other == slot;
            for other in actual.slots.iter().filter(|other| other.server == slot.server && !itself(other)) {
                let busy = !actual.is_idle(other);
                amounts += &takes(job, other, busy);
                for share in other.devices.iter().filter(|_| busy) {
                    if let Some(milli) = devices.get_mut(&share.device) {
                        *milli += u32::from(share.milli);
                    }
                }
            }
        }
        let foreign = |device: u16| server.foreign.devices.get(usize::from(device)).copied().unwrap_or(0);
        amounts.fits(&server.reservable())
            && devices.iter().all(|(device, milli)| {
                usize::from(*device) < server.devices.len()
                    && milli + u32::from(foreign(*device)) <= u32::from(server.bookable)
            })
    }

    /// Queues an observation of the current slots.
    fn say_seen(&mut self, state: &State, id: JobId) {
        let event = self.observation(state, id);
        self.outbox.entry(id).or_default().push_back(event);
    }

    pub fn observation(&self, state: &State, id: JobId) -> Event {
        let actual = self.actual.get(&id).cloned().unwrap_or_default();
        let slot = |slot: &Slot| ObservedSlot {
            role: slot.role,
            index: slot.index,
            server: state.server_name(slot.server).into(),
            devices: if actual.is_idle(slot) { Vec::new() } else { slot.devices.to_vec() },
        };
        Event::Observed {
            job: id,
            incarnation: actual.incarnation,
            slots: actual.slots.iter().map(slot).collect(),
            phase: if actual.complete { Phase::Running } else { Phase::Starting },
        }
    }

    /// The oldest pending observation of one job.
    pub fn next_event(&mut self, draw: u32) -> Option<Event> {
        self.outbox.retain(|_, events| !events.is_empty());
        let at = draw as usize % self.outbox.len().max(1);
        self.outbox.values_mut().nth(at)?.pop_front()
    }

    /// Removes all slots on a lost server.
    pub fn lose(&mut self, state: &State, server: &str) {
        for actual in self.actual.values_mut() {
            actual.slots.retain(|slot| state.server_name(slot.server) != server);
        }
    }

    /// A snapshot replaces pending observations. Forgotten jobs, by index, are removed.
    pub fn forget(&mut self, forgotten: impl Fn(usize) -> bool) {
        self.outbox.clear();
        let gone: Vec<JobId> =
            self.told.keys().copied().enumerate().filter(|(at, _)| forgotten(*at)).map(|(_, job)| job).collect();
        gone.into_iter().for_each(|job| self.drop_job(job));
    }

    /// Removes a job that has ended.
    pub fn drop_job(&mut self, job: JobId) {
        self.told.remove(&job);
        self.actual.remove(&job);
        self.outbox.remove(&job);
    }
}
