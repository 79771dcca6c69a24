//! One job: its goal, its processes, and the actions that follow from the difference.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use trainmaster_core::Role;
use trainmaster_manager::{Placement, SlotId};

use super::{
    super::{HOPELESS_EXIT, RESTART_ALL_EXITS},
    actions::{Action, Actions, Exit, Failure, Policy, Signal},
    plan::{Goal, Run, Wanted, fingerprint},
};

/// When a process has to leave, and the last signal sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Leave {
    term_at: Duration,
    kill_at: Duration,
    sent: Option<Signal>,
}

#[derive(Clone, Debug)]
pub(super) struct Process {
    pub(super) placement: Placement,
    started: Duration,
    leave: Option<Leave>,
    /// For adopted processes: the fingerprint of their token.
    holds: Option<String>,
    /// Adopted, and of another job that had the same number. The planned job has to wait for its end.
    stranger: bool,
}

/// A slot that ended with code 0.
#[derive(Clone, Copy, Debug)]
struct Done {
    /// The revision of the plan under which it ended.
    revision: u32,
    at: Duration,
}

/// A slot's failures since it last ran for the steady time.
#[derive(Clone, Copy, Debug, Default)]
struct Strikes {
    count: u32,
    not_before: Duration,
}

/// The result of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Completed,
    Failed,
}

/// The circumstances of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    pub(super) at: Duration,
    /// Whether the plan hasn't expired.
    pub(super) standing: bool,
    /// Whether the adapter ends together with all processes.
    pub(super) ending: bool,
    /// Start of the connection to the daemon, if there is one.
    pub(super) attached: Option<Duration>,
    /// Time after which adopted jobs that no plan has named are stopped. `None` before the first plan.
    pub(super) claims_end: Option<Duration>,
}

/// How soon a process should leave.
enum Wish {
    Stay,
    /// The program is told over the feed and leaves at its next step boundary. Signals follow after the grace.
    ByItself,
    Now,
}

#[derive(Debug, Default)]
pub(crate) struct Job {
    pub(super) name: String,
    pub(super) wanted: Option<Wanted>,
    /// Adopted, and not named by a plan yet.
    unclaimed: bool,
    /// Whether it ever had processes, even if the daemon never saw them.
    seen: bool,
    /// The incarnation of the last `Run`.
    incarnation: Option<u32>,
    pub(super) processes: BTreeMap<(u32, SlotId), Process>,
    /// Slots that this incarnation started or adopted.
    began: BTreeSet<SlotId>,
    done: BTreeMap<SlotId, Done>,
    last_exit: Duration,
    strikes: BTreeMap<SlotId, Strikes>,
    /// Set if all roles are stopped and started again: the earliest time of the start.
    restart: Option<Duration>,
    /// Whether a process failed while the job wasn't managed.
    let_down: bool,
    pub(super) outcome: Option<Outcome>,
    /// The last failure, as text for people.
    pub(super) note: String,
}

impl Job {
    /// A job that is known only by processes of an earlier run of the adapter.
    pub(super) fn unclaimed(name: String) -> Self {
        Self { name, unclaimed: true, ..Self::default() }
    }

    pub(super) fn adopt(&mut self, incarnation: u32, slot: SlotId, placement: Placement, token: String, now: Duration) {
        let process = Process { placement, started: now, leave: None, holds: Some(token), stranger: false };
        self.processes.insert((incarnation, slot), process);
        self.began.insert(slot);
        self.seen = true;
    }

    /// Takes a new plan for this job.
    pub(super) fn plan(&mut self, wanted: Wanted) {
        if let Goal::Run(run) = &wanted.goal {
            self.let_down = false;
            if self.incarnation == Some(run.incarnation) {
                self.done.retain(|slot, _| run.slots.contains_key(slot));
            } else {
                self.incarnation = Some(run.incarnation);
                let present = self.processes.keys().filter(|(incarnation, _)| *incarnation == run.incarnation);
                self.began = present.map(|(_, slot)| *slot).collect();
                self.done.clear();
                self.restart = None;
                self.outcome = None;
                self.note.clear();
                // The count stays: a program that can't run doesn't improve by being moved.
                self.strikes.values_mut().for_each(|strikes| strikes.not_before = Duration::ZERO);
            }
            let holds = fingerprint(&run.token);
            for process in self.processes.values_mut().filter(|process| process.holds.is_some()) {
                process.stranger |= self.name != wanted.name || process.holds.as_ref() != Some(&holds);
            }
        } else if wanted.goal != Goal::Release {
            self.done.clear();
            self.restart = None;
        }
        self.unclaimed = false;
        // The name can change at once, because the job doesn't start before the strangers are gone.
        if !wanted.name.is_empty() {
            self.name.clone_from(&wanted.name);
        }
        self.wanted = Some(wanted);
    }

    /// A plan named the job but can't be followed. Adopted processes still count as claimed, and continue.
    pub(super) fn hold(&mut self, grace: Duration) {
        if std::mem::take(&mut self.unclaimed) {
            self.wanted = Some(Wanted { name: self.name.clone(), goal: Goal::Release, grace });
        }
    }

    /// The job is no longer in the plan.
    pub(super) fn drop_plan(&mut self) {
        self.wanted = None;
    }

    /// Whether nothing is left to do or to report.
    pub(super) fn is_over(&self) -> bool {
        let unwanted = self.wanted.as_ref().is_none_or(|wanted| wanted.goal == Goal::End);
        unwanted && self.processes.is_empty()
    }

    /// Whether its files may still be needed.
    pub(super) fn is_active(&self) -> bool {
        let held = self.wanted.as_ref().is_some_and(|wanted| wanted.goal != Goal::End) && self.outcome.is_none();
        held || !self.processes.is_empty()
    }

    pub(super) fn run(&self) -> Option<&Run> {
        self.wanted.as_ref().and_then(Wanted::run)
    }

    /// Whether all roles are about to be started again.
    pub(super) fn is_restarting(&self) -> bool {
        self.restart.is_some()
    }

    /// Whether to report the job to the daemon. A job whose only plans were to wait isn't reported.
    pub(super) fn is_worth_a_word(&self) -> bool {
        self.seen || self.run().is_some()
    }

    /// Whether the job was adopted, and no plan has named it yet.
    pub(super) fn is_unclaimed(&self) -> bool {
        self.unclaimed
    }

    /// Whether every slot that existed ended with success. A slot that a newer revision adds doesn't count, because the
    /// program as a whole ended before.
    pub(super) fn has_left(&self) -> bool {
        let wanted = |slot: &SlotId| self.run().is_none_or(|run| run.slots.contains_key(slot));
        let ended = self.began.iter().filter(|slot| wanted(slot)).all(|slot| self.done.contains_key(slot));
        ended && self.processes.is_empty() && !self.done.is_empty()
    }

    /// Handles the end of a process. Returns a message for people if the process wasn't asked to leave and didn't
    /// succeed.
    pub(super) fn exited(
        &mut self,
        incarnation: u32,
        slot: SlotId,
        failure: Failure,
        now: Now,
        policy: &Policy,
    ) -> Option<&str> {
        let process = self.processes.remove(&(incarnation, slot))?;
        self.last_exit = now.at;
        if process.leave.is_some() || self.outcome.is_some() {
            return None; // it was asked to leave
        }
        let revision = match self.wanted.as_ref().map(|wanted| &wanted.goal) {
            Some(Goal::Run(run)) if now.standing && run.incarnation == incarnation => Some(run.revision),
            Some(Goal::Run(_) | Goal::Release) => None,
            _ => return None,
        };
        if failure.exit == Exit::Code(0) {
            self.strikes.remove(&slot);
            self.done.insert(slot, Done { revision: revision.unwrap_or(u32::MAX), at: now.at });
            return None;
        }
        if revision.is_none() {
            self.let_down = true;
            self.note = format!("{slot} {}; nobody manages it now, so it stays away", failure.describe());
        } else {
            let asks = matches!(failure.exit, Exit::Code(code) if RESTART_ALL_EXITS.contains(&code));
            let everyone = slot.role == Role::Server || asks;
            self.strike(slot, &failure, now.at.saturating_sub(process.started), now.at, policy);
            if everyone && self.outcome.is_none() {
                self.restart = self.strikes.get(&slot).map(|strikes| strikes.not_before);
                self.note += ", with all of the job";
            }
        }
        self.note += &failure.place();
        Some(&self.note)
    }

    /// Handles a process that couldn't be started. Returns a message for people.
    pub(super) fn not_started(
        &mut self,
        incarnation: u32,
        slot: SlotId,
        failure: &Failure,
        now: Now,
        policy: &Policy,
    ) -> Option<&str> {
        self.processes.remove(&(incarnation, slot))?;
        self.strike(slot, failure, Duration::ZERO, now.at, policy);
        Some(&self.note)
    }

    fn strike(&mut self, slot: SlotId, failure: &Failure, ran: Duration, now: Duration, policy: &Policy) {
        let strikes = self.strikes.entry(slot).or_default();
        if ran >= policy.steady {
            *strikes = Strikes::default();
        }
        strikes.count += 1;
        let delay = policy.delay(strikes.count);
        strikes.not_before = now.saturating_add(delay);
        let what = failure.describe();
        self.note = if failure.exit == Exit::Code(HOPELESS_EXIT) {
            self.outcome = Some(Outcome::Failed);
            format!("{slot} {what}; the program says that starting again won't help")
        } else if strikes.count >= policy.failures {
            self.outcome = Some(Outcome::Failed);
            format!("{slot} {what}; given up after {} failures", strikes.count)
        } else {
            format!("{slot} {what}; failure {} of {}, again after {delay:?}", strikes.count, policy.failures)
        };
    }

    /// Consecutive failures of the planned slot that failed most.
    pub(super) fn failures(&self) -> u32 {
        let planned = |slot| self.run().is_some_and(|run| run.slots.contains_key(slot));
        let counts = self.strikes.iter().filter(|(slot, _)| planned(slot)).map(|(_, strikes)| strikes.count);
        counts.max().unwrap_or(0)
    }

    /// Forgets the failures of slots that have run for the steady time.
    fn forgive(&mut self, now: Now, policy: &Policy, step: &mut Actions) {
        let (processes, Some(incarnation)) = (&self.processes, self.incarnation) else { return };
        self.strikes.retain(|slot, _| {
            let process = processes.get(&(incarnation, *slot)).filter(|process| process.leave.is_none());
            let Some(steady) = process.map(|process| process.started.saturating_add(policy.steady)) else {
                return true;
            };
            if now.at < steady {
                step.wake_at(steady);
            }
            now.at < steady
        });
    }

    /// Compares the goal with the existing processes, and adds the necessary actions.
    pub(super) fn reconcile(&mut self, id: u64, now: Now, policy: &Policy, step: &mut Actions) {
        self.forgive(now, policy, step);
        self.conclude(now, policy, step);
        self.dismiss(id, now, policy, step);
        self.start(id, now, policy, step);
    }

    /// If all slots ended with success, the job is complete, unless a plan on its way explains the ends otherwise.
    fn conclude(&mut self, now: Now, policy: &Policy, step: &mut Actions) {
        if self.outcome.is_some() || !self.has_left() {
            return;
        }
        let finished = match self.wanted.as_ref().map(|wanted| &wanted.goal) {
            Some(Goal::Run(_)) if now.standing => self.restart.is_none(),
            Some(Goal::Run(_) | Goal::Release) => !self.let_down,
            _ => false,
        };
        if let (true, Some(attached)) = (finished, now.attached) {
            let at = self.last_exit.max(attached).saturating_add(policy.settle);
            if now.at >= at {
                self.outcome = Some(Outcome::Completed);
                // The daemon's log has the fault from which it recovered.
                self.note.clear();
            } else {
                step.wake_at(at);
            }
        }
    }

    fn wish(&self, key: &(u32, SlotId), process: &Process, now: Now) -> Wish {
        if now.ending || self.outcome == Some(Outcome::Failed) || process.stranger {
            return Wish::Now;
        }
        match self.wanted.as_ref().map(|wanted| &wanted.goal) {
            None if !self.unclaimed || now.claims_end.is_some_and(|end| now.at >= end) => Wish::Now,
            None | Some(Goal::Release) => Wish::Stay,
            Some(Goal::Wait | Goal::End) => Wish::Now,
            Some(Goal::Run(_)) if !now.standing => Wish::Stay,
            Some(Goal::Run(run)) if key.0 != run.incarnation || self.restart.is_some() => Wish::Now,
            Some(Goal::Run(run)) if run.slots.get(&key.1) == Some(&process.placement) => Wish::Stay,
            Some(Goal::Run(_)) => Wish::ByItself,
        }
    }

    fn dismiss(&mut self, id: u64, now: Now, policy: &Policy, step: &mut Actions) {
        let grace = self.wanted.as_ref().map_or(policy.grace, |wanted| wanted.grace);
        if let (true, Some(end)) = (self.unclaimed && self.wanted.is_none(), now.claims_end) {
            step.wake_at(end);
        }
        let wishes: Vec<_> = self.processes.iter().map(|(key, process)| self.wish(key, process, now)).collect();
        for ((key, process), wish) in self.processes.iter_mut().zip(wishes) {
            let term_at = match wish {
                Wish::Stay => None,
                Wish::Now => Some(now.at),
                Wish::ByItself => Some(now.at.saturating_add(grace)),
            };
            if let Some(term_at) = term_at {
                let kill_at = term_at.saturating_add(grace);
                let leave = process.leave.get_or_insert(Leave { term_at, kill_at, sent: None });
                leave.term_at = leave.term_at.min(term_at);
                leave.kill_at = leave.kill_at.min(kill_at);
            }
            // A process that was asked to leave leaves, even if a later plan would keep it: it may already be leaving.
            let Some(leave) = &mut process.leave else { continue };
            let due = [(leave.kill_at, Signal::Kill), (leave.term_at, Signal::Term)];
            let due = due.into_iter().find(|(at, signal)| now.at >= *at && leave.sent < Some(*signal));
            if let Some((_, signal)) = due {
                leave.sent = Some(signal);
                step.actions.push(Action::Signal { job: id, incarnation: key.0, slot: key.1, signal });
            }
            match leave.sent {
                None => step.wake_at(leave.term_at),
                Some(Signal::Term) => step.wake_at(leave.kill_at),
                Some(Signal::Kill) => {}
            }
        }
    }

    fn start(&mut self, id: u64, now: Now, policy: &Policy, step: &mut Actions) {
        let Some(Goal::Run(run)) = self.wanted.as_ref().map(|wanted| &wanted.goal) else { return };
        // The old shape has to be gone before the new one starts.
        let in_the_way = |(key, process): (&(u32, SlotId), &Process)| key.0 != run.incarnation || process.stranger;
        if !now.standing || now.ending || self.outcome.is_some() || self.processes.iter().any(in_the_way) {
            return;
        }
        if let Some(not_before) = self.restart {
            if !self.processes.is_empty() {
                return;
            }
            if now.at < not_before {
                return step.wake_at(not_before);
            }
            self.restart = None;
            self.began.clear();
            self.done.clear();
        }
        if self.has_left() {
            return;
        }
        // Parameter servers start first, because workers connect to them.
        let of = |role| run.slots.iter().filter(move |(slot, _)| slot.role == role);
        for (slot, placement) in of(Role::Server).chain(of(Role::Worker)) {
            let key = (run.incarnation, *slot);
            if self.processes.contains_key(&key) {
                continue;
            }
            let struck = self.strikes.get(slot).map_or(Duration::ZERO, |strikes| strikes.not_before);
            let not_before = match self.done.get(slot) {
                Some(done) if done.revision >= run.revision => continue,
                // Either the slot left for a revision that this adapter never got, and a newer one needs it again; or
                // the whole program is ending, which is visible soon.
                Some(done) => struck.max(done.at.saturating_add(policy.settle)),
                None => struck,
            };
            if now.at < not_before {
                step.wake_at(not_before);
                continue;
            }
            let process =
                Process { placement: placement.clone(), started: now.at, leave: None, holds: None, stranger: false };
            self.processes.insert(key, process);
            self.began.insert(*slot);
            self.done.remove(slot);
            self.seen = true;
            step.actions.push(Action::Start { job: id, incarnation: run.incarnation, slot: *slot });
        }
    }
}
