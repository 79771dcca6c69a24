//! Inputs of MLFS's learnt policy (MLF-RL: §3.4) for a task and its possible places, and the choice: by the heuristic
//! of MLF-H, or by a [`Network`] that scores each (task, place).
//!
//! A place is the least loaded devices of a server, the task's current place, or the queue. Two things are chosen: the
//! next task, and its place. A policy takes the task with the highest score on an ideal server, and then the place with
//! the highest score. It considers only the [`NEAREST`] servers to the heuristic's ideal, so the cost of a choice
//! doesn't grow with the cluster.

use std::cmp::Ordering;

use super::{
    host::Task,
    priority::{Jobs, Priorities},
};
use crate::{
    decision::Slot,
    ids::ServerId,
    job::Job,
    place::Load,
    policy::{Demonstration, Inputs, Network},
    resources::{Amounts, GPU},
    shape::Role,
    state::State,
    time::Span,
};

/// Number of servers that a policy chooses from.
pub(super) const NEAREST: usize = 8;
/// Steps of the [budget](crate::Budget) for one score.
pub(super) const SCORE: u64 = 4;
/// Maximum number of jobs in one demonstration of an order.
const SHOWN: usize = 24;

/// Inputs of a policy, all of the order of 1. Times are hours, as ln(1 + h) / 4. Unknown values are 0.
pub(in crate::engines) const INPUTS: Inputs = Inputs {
    version: 1,
    names: &[
        // The task and its job.
        "waits",
        "is_server",
        "gpus",
        "share",
        "use",
        "remaining",
        "remaining_known",
        "waited",
        "ran",
        "progress",
        "epochs",
        "priority_ml",
        "priority_computation",
        "urgency",
        "deadline",
        "slack",
        "late",
        "accuracy_left",
        // The cluster.
        "load",
        "queue",
        "free",
        // The place.
        "server",
        "stays",
        "used",
        "fullest",
        "device",
        "idle",
        "distance",
        "near",
        "apart",
    ],
};

/// Number of inputs for the place.
const OF_PLACE: usize = 9;
/// Number of inputs for the task and the cluster.
const OF_TASK: usize = INPUTS.names.len() - OF_PLACE;

/// Inputs for a place.
pub(super) type PlaceInputs = [f32; OF_PLACE];
/// Inputs for a task in a cluster.
pub(super) type TaskInputs = [f32; OF_TASK];

/// Inputs for the queue.
pub(super) const QUEUE: PlaceInputs = [0.0; OF_PLACE];

/// The chosen place of a task.
pub(super) enum Choice {
    /// This slot.
    To(Slot),
    /// Its current place.
    Stay,
    /// The queue, although there is a place.
    Wait {
        /// Score of waiting.
        waiting: f32,
        /// Server of the best place …
        server: ServerId,
        /// … and its score.
        score: f32,
    },
    /// No server has room for it.
    Nowhere,
}

/// A possible place of a task.
pub(super) struct Candidate {
    pub(super) slot: Slot,
    /// Whether it is the current place.
    pub(super) stays: bool,
    /// Squared distance from the ideal: in use, and in the traffic that stays on the server.
    pub(super) distance: (f64, f64),
    /// The fraction of the task's traffic that stays on the server.
    pub(super) near: f64,
}

impl Candidate {
    /// The heuristic's order: by distance, then by server.
    fn order(a: &Self, b: &Self) -> Ordering {
        let sum = |candidate: &Self| candidate.distance.0 + candidate.distance.1;
        sum(a).total_cmp(&sum(b)).then(a.slot.server.cmp(&b.slot.server))
    }

    fn inputs(&self, load: &Load) -> PlaceInputs {
        let (used, fullest) = mean_and_most(load.parts(self.slot.server));
        let devices = load.devices(self.slot.server);
        let own = self.slot.devices.iter().filter_map(|share| devices.get(usize::from(share.device)));
        let (busy, _) = mean_and_most(own.clone().map(|device| device.used));
        let idle = own.clone().all(|device| device.slots == 0);
        let distance = self.distance.0.min(4.0) as f32;
        let apart = libm::sqrt(self.distance.1) as f32;
        [1.0, flag(self.stays), used, fullest, busy, flag(idle), distance, self.near as f32, apart]
    }
}

/// The method of choice.
pub(super) enum Chooser<'a> {
    /// MLF-H.
    Heuristic,
    /// MLF-H, with demonstrations for an observer.
    Shown(Sight<'a>, Vec<Demonstration>),
    /// MLF-RL.
    Policy(Sight<'a>, &'a Network),
}

/// Data for the inputs of tasks.
pub(super) struct Sight<'a> {
    pub(super) state: &'a State,
    pub(super) jobs: &'a Jobs,
    pub(super) priorities: &'a Priorities<'a>,
    pub(super) waited: &'a dyn Fn(&Job) -> Span,
    /// Whether goals other than the completion time are among the inputs.
    pub(super) goals: bool,
    /// Whether slots run: no task waits for an empty cluster.
    may_wait: bool,
    cluster: [f32; 3],
    /// Inputs of an ideal place.
    ideal: PlaceInputs,
}

fn flag(is: bool) -> f32 {
    f32::from(u8::from(is))
}

fn hours(span: Span) -> f64 {
    span.as_seconds() / 3600.0
}

fn of_hours(hours: f64) -> f32 {
    (libm::log1p(hours.max(0.0)) / 4.0) as f32
}

impl<'a> Sight<'a> {
    /// O(jobs + servers · resources).
    pub(super) fn new(
        state: &'a State,
        load: &Load,
        jobs: &'a Jobs,
        priorities: &'a Priorities<'a>,
        waited: &'a dyn Fn(&Job) -> Span,
        goals: bool,
    ) -> Self {
        let mut least = vec![f64::INFINITY; load.resources().len()];
        let (mut degree, mut servers, mut planned) = (0.0, 0_u32, 0);
        for server in state.present_servers() {
            degree += load.degree(server.id);
            servers += 1;
            planned += server.planned.amounts[GPU];
            for (least, part) in least.iter_mut().zip(load.parts(server.id)) {
                *least = least.min(part);
            }
        }
        let queued = state.jobs.values().filter(|job| job.verdict.allocation().is_none()).count();
        let free = 1.0 - planned as f64 / state.capacity[GPU].max(1) as f64;
        let cluster = [
            (degree / f64::from(servers.max(1))) as f32,
            (libm::log1p(queued as f64) / 4.0) as f32,
            free.clamp(-1.0, 1.0) as f32,
        ];
        let (used, fullest) = mean_and_most(least.into_iter().filter(|part| part.is_finite()));
        let ideal = [1.0, 0.0, used, fullest, 0.0, 1.0, 0.0, 1.0, 0.0];
        let may_wait = queued < state.jobs.len();
        Self { state, jobs, priorities, waited, goals, may_wait, cluster, ideal }
    }

    /// Inputs of a task. O(1), apart from the [known](super::priority::Known) values of its job.
    fn task(&self, job: &Job, task: Task, uses: &Amounts) -> TaskInputs {
        let known = self.jobs.get(job);
        let (part, shape) = (task.part(job), job.spec.requested());
        let gpus = job.gpus(shape) as f64 / 1000.0;
        let epochs = f64::from(job.spec.convergence.max_epochs);
        let mut inputs = [0.0; OF_TASK];
        let of_job = [
            flag(job.verdict.allocation().is_none()),
            flag(task.role == Role::Server),
            (libm::log2(1.0 + gpus) / 5.0) as f32,
            part.map_or(1.0, |part| known.shares[part] as f32),
            (uses[GPU] as f64 / 1000.0).min(2.0) as f32,
            known.remaining.map_or(0.0, of_hours),
            flag(known.remaining.is_some()),
            of_hours(hours((self.waited)(job))),
            flag(job.seen.started.is_some()),
            (f64::from(job.learnt.progress.epoch) / epochs.max(1.0)).min(1.0) as f32,
            (libm::log1p(epochs) / 6.0) as f32,
        ];
        inputs[..of_job.len()].copy_from_slice(&of_job);
        if self.goals {
            let (ml, computation) = self.priorities.terms_of(known, part.unwrap_or(0));
            let span = job.spec.deadline;
            let left = span.map(|span| hours(job.arrival + span - self.state.now));
            let slack = left.map_or(1.0, |left| (left - known.remaining.unwrap_or(0.0)) / 24.0);
            let gap = job.spec.accuracy.map_or(0.0, |wanted| wanted - job.learnt.accuracies.best().unwrap_or(0.0));
            let of_goals = [
                ml as f32,
                computation as f32,
                self.state.urgency(job).unwrap_or(1).min(100) as f32 / 10.0,
                span.map_or(1.0, |span| of_hours(hours(span))),
                slack.clamp(-1.0, 1.0) as f32,
                flag(left.is_some_and(|left| left <= 0.0)),
                gap.clamp(0.0, 1.0) as f32,
            ];
            inputs[of_job.len()..][..of_goals.len()].copy_from_slice(&of_goals);
        }
        inputs[OF_TASK - self.cluster.len()..].copy_from_slice(&self.cluster);
        inputs
    }
}

fn mean_and_most(parts: impl Iterator<Item = f64>) -> (f32, f32) {
    let (sum, most, count) =
        parts.fold((0.0, 0.0_f64, 0_u32), |(sum, most, count), part| (sum + part, most.max(part), count + 1));
    ((sum / f64::from(count.max(1))).min(4.0) as f32, most.min(4.0) as f32)
}

impl Chooser<'_> {
    /// Score of a job's turn, by its first task. O(1).
    pub(super) fn turn(&self, job: &Job, first: Task, uses: impl FnOnce() -> Amounts, priority: f64) -> f64 {
        match self {
            Self::Heuristic | Self::Shown(..) => priority,
            Self::Policy(sight, network) => {
                f64::from(network.finish(&network.begin(&sight.task(job, first, &uses())), &sight.ideal))
            }
        }
    }

    /// Records the order of jobs for an observer, by a sample of their first tasks.
    pub(super) fn show_turns<'j>(&mut self, in_order: impl Iterator<Item = (&'j Job, Task, Amounts)>) {
        let Self::Shown(sight, shown) = self else { return };
        let tasks: Vec<TaskInputs> = in_order.map(|(job, task, uses)| sight.task(job, task, &uses)).collect();
        let step = tasks.len().div_ceil(SHOWN).max(1);
        let choices: Vec<_> = tasks.iter().step_by(step).map(|task| [&task[..], &sight.ideal].concat()).collect();
        if choices.len() > 1 {
            shown.push(Demonstration { choices, chosen: 0 });
        }
    }

    /// Chooses between possible places and the queue. O(candidates).
    pub(super) fn choose(
        &mut self,
        load: &Load,
        job: &Job,
        task: Task,
        uses: &Amounts,
        mut candidates: Vec<Candidate>,
    ) -> Choice {
        match self {
            Self::Heuristic => {
                let elsewhere = candidates.into_iter().filter(|candidate| !candidate.stays);
                elsewhere.min_by(Candidate::order).map_or(Choice::Nowhere, |best| Choice::To(best.slot))
            }
            Self::Shown(sight, shown) => {
                candidates.sort_by(Candidate::order);
                let Some(chosen) = candidates.iter().position(|candidate| !candidate.stays) else {
                    return Choice::Nowhere;
                };
                candidates.truncate(NEAREST.max(chosen + 1));
                let seen = sight.task(job, task, uses);
                let places = candidates.iter().map(|candidate| candidate.inputs(load)).chain([QUEUE]);
                shown.push(Demonstration {
                    choices: places.map(|place| [&seen[..], &place].concat()).collect(),
                    chosen,
                });
                Choice::To(candidates.swap_remove(chosen).slot)
            }
            Self::Policy(sight, network) => {
                if candidates.len() > NEAREST {
                    // The current place is last, whatever its distance.
                    let staying = candidates.iter().position(|candidate| candidate.stays);
                    let staying = staying.map(|at| candidates.swap_remove(at));
                    candidates.select_nth_unstable_by(NEAREST - 1, Candidate::order);
                    candidates.truncate(NEAREST);
                    candidates.extend(staying);
                }
                candidates.sort_by(Candidate::order);
                let begun = network.begin(&sight.task(job, task, uses));
                let scored = candidates.into_iter().map(|place| (network.finish(&begun, &place.inputs(load)), place));
                // Among equal scores the nearest.
                let best = scored.reduce(|best, next| if next.0 > best.0 { next } else { best });
                let Some((score, place)) = best else { return Choice::Nowhere };
                let waiting = network.finish(&begun, &QUEUE);
                if waiting > score && sight.may_wait {
                    return Choice::Wait { waiting, server: place.slot.server, score };
                }
                if place.stays { Choice::Stay } else { Choice::To(place.slot) }
            }
        }
    }

    /// The recorded demonstrations.
    pub(super) fn into_shown(self) -> Vec<Demonstration> {
        match self {
            Self::Shown(_, shown) => shown,
            Self::Heuristic | Self::Policy(..) => Vec::new(),
        }
    }
}
