//! What C is handed of plans: verdicts, what a manager is to be told, decisions.

use std::collections::BTreeMap;

use trainmaster_core::{
    Allocation, Decision, Incarnation, Issue, JobId, Revision, Role, ServerId, Source, State, Verdict,
    decision::{Work, WorkItem, WorkState},
};

use crate::{
    borrow::grows,
    event::{trainmaster_slot, trainmaster_slot_role, trainmaster_slots},
    guard,
    owned::{self, Keep},
    reason::{self, trainmaster_reason},
    server::{trainmaster_device, trainmaster_devices},
    status::TRAINMASTER_NEVER,
    text::trainmaster_string,
};

/// What is decided about a job.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum trainmaster_verdict_kind {
    /// It runs with these slots.
    Run = 0,
    /// It has nothing for now.
    Wait = 1,
    /// It is refused.
    Reject = 2,
    /// It is ended.
    Stop = 3,
    /// It is the manager's own again, to run with so many workers and parameter servers.
    Release = 4,
}

/// What happens to a piece of work.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum trainmaster_work_state {
    /// It is done now.
    Running = 0,
    /// It waits for its turn: `rank` others of its job go before it on its slot.
    Queued = 1,
    /// It was interrupted, and goes on where it is.
    Preempted = 2,
    /// Nothing is left of it.
    Done = 3,
}

/// A data chunk, and who trains it. Never grows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_work {
    /// Its place in the dataset.
    pub chunk: u32,
    /// One of TRAINMASTER_WORK_STATE_*.
    pub state: u32,
    /// Of TRAINMASTER_WORK_STATE_QUEUED.
    pub rank: u32,
    /// The index of its worker's slot; UINT32_MAX while it waits for one.
    pub worker: u32,
}

/// An array of work: by slot, those without one first.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_works {
    /// The first.
    pub data: *const trainmaster_work,
    /// How many.
    pub count: u64,
    /// Bytes from one to the next.
    pub stride: u64,
}

/// What one job is to have.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_verdict {
    /// Set by the library: as much of the struct is there. What your header has beyond it isn't.
    pub size: u32,
    /// One of TRAINMASTER_VERDICT_KIND_*.
    pub kind: u32,
    /// The job's number.
    pub job: u64,
    /// Its name; empty once it is over.
    pub name: trainmaster_string,
    /// Counts the job's restarts: everything stops and starts again from a checkpoint. 0 in decisions and previews.
    pub incarnation: u32,
    /// Counts changes within an incarnation: workers come or go, nobody restarts. 0 in decisions and previews.
    pub revision: u32,
    /// Workers, of TRAINMASTER_VERDICT_KIND_RUN and _RELEASE.
    pub workers: u32,
    /// Parameter servers, likewise.
    pub servers: u32,
    /// Why it doesn't run; NULL if it does, or is released.
    pub reason: *const trainmaster_reason,
    /// Of TRAINMASTER_VERDICT_KIND_RUN.
    pub slots: trainmaster_slots,
    /// What its slots do, where the engine schedules data chunks one by one; else none.
    pub work: trainmaster_works,
}

/// An array of verdicts, by job, each job once.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_verdicts {
    /// The first.
    pub data: *const trainmaster_verdict,
    /// How many.
    pub count: u64,
    /// Bytes from one to the next.
    pub stride: u64,
}

/// Verdicts on some jobs: what a manager is to be told, or what an engine would propose. Yours; free it with
/// trainmaster_plan_free(). Nothing changes in it, and it outlives its scheduler.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_plan {
    /// Set by the library: as much of the struct is there. What your header has beyond it isn't.
    pub size: u32,
    /// 0.
    pub reserved: u32,
    /// The term and ...
    pub term: u64,
    /// ... the decision it belongs to: the `number` of TRAINMASTER_EVENT_KIND_ENACTED.
    pub decision: u64,
    /// When the engine of a preview would want to run again; TRAINMASTER_NEVER: when something happens.
    pub wake_at: i64,
    /// By job.
    pub verdicts: trainmaster_verdicts,
}

/// Whose a decision is.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum trainmaster_source {
    /// The engine's.
    Engine = 0,
    /// The engine's, less what no longer fitted.
    Pruned = 1,
    /// The fallback engine's, since the engine failed several times in a row.
    Fallback = 2,
    /// Nobody's: the engine failed, see `error`, and the last plan stands.
    Kept = 3,
}

/// A committed change of the plan: what *should* be. What a manager is to be told is in the plan of
/// trainmaster_scheduler_take_issues(), since room has to be released before it is given to others. Yours; free it with
/// trainmaster_decision_free(). Nothing changes in it, and it outlives its scheduler.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_decision {
    /// Set by the library: as much of the struct is there. What your header has beyond it isn't.
    pub size: u32,
    /// One of TRAINMASTER_SOURCE_*.
    pub source: u32,
    /// The term of the host that made it.
    pub term: u64,
    /// Its number, which grows.
    pub number: u64,
    /// The decision whose plan it changes.
    pub base: u64,
    /// When it was committed.
    pub at: i64,
    /// When the engine wants to run again even if nothing happens; or TRAINMASTER_NEVER.
    pub wake_at: i64,
    /// The jobs whose verdict changed.
    pub verdicts: trainmaster_verdicts,
    /// The numbers of jobs for which the engine's proposal no longer fitted.
    pub dropped: *const u64,
    /// How many.
    pub dropped_count: u64,
    /// Why the engine failed, if it did.
    pub error: trainmaster_string,
}

grows!(
    trainmaster_verdict: 80,
    trainmaster_plan: 56,
    trainmaster_decision: 104,
);

/// Collects what a result's pointers point into, each server's name once.
pub(crate) struct Writer<'a> {
    state: &'a State,
    keep: Keep,
    servers: BTreeMap<ServerId, trainmaster_string>,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(state: &'a State) -> Self {
        Self { state, keep: Keep::default(), servers: BTreeMap::new() }
    }

    pub(crate) fn server(&mut self, id: ServerId) -> trainmaster_string {
        *self.servers.entry(id).or_insert_with(|| {
            // A name that stays where it is whatever becomes of the server.
            let name = self.state.server(id).name.clone();
            let text = trainmaster_string::of(&name);
            self.keep.keep(name);
            text
        })
    }

    pub(crate) fn job_name(&mut self, id: JobId) -> trainmaster_string {
        let Some(job) = self.state.job(id) else { return trainmaster_string::EMPTY };
        let text = trainmaster_string::of(&job.spec.name);
        self.keep.keep(job.spec.clone());
        text
    }

    fn slots(&mut self, allocation: &Allocation) -> trainmaster_slots {
        let slots = allocation.slots();
        let mut all = Vec::with_capacity(slots.len());
        let total = slots.iter().map(|slot| slot.devices.len()).sum();
        let mut parts = Vec::with_capacity(total);
        for slot in slots {
            let share = |share: &trainmaster_core::DeviceShare| trainmaster_device {
                device: share.device.into(),
                milli: share.milli.into(),
            };
            parts.extend(slot.devices.iter().map(share));
        }
        let mut first = 0;
        for slot in slots {
            let count = slot.devices.len();
            let data = if count > 0 { parts[first..].as_ptr() } else { std::ptr::null() };
            first += count;
            all.push(trainmaster_slot {
                size: size_of::<trainmaster_slot>() as u32,
                role: match slot.role {
                    Role::Worker => trainmaster_slot_role::Worker,
                    Role::Server => trainmaster_slot_role::Server,
                } as u32,
                index: slot.index,
                idle: u32::from(!allocation.is_busy(slot)),
                server: self.server(slot.server),
                devices: trainmaster_devices { data, count: count as u64, stride: stride::<trainmaster_device>() },
            });
        }
        if total > 0 {
            self.keep.keep(parts);
        }
        let (data, count) = self.keep.array(all);
        trainmaster_slots { data, count, stride: stride::<trainmaster_slot>() }
    }

    fn work(&mut self, allocation: &Allocation) -> trainmaster_works {
        use trainmaster_work_state as Kind;
        let view = |work: &Work| {
            let (state, rank) = match work.state {
                WorkState::Running => (Kind::Running, 0),
                WorkState::Queued(rank) => (Kind::Queued, rank),
                WorkState::Preempted => (Kind::Preempted, 0),
                WorkState::Done => (Kind::Done, 0),
            };
            let (WorkItem::Chunk(chunk) | WorkItem::Task(chunk)) = work.item;
            trainmaster_work {
                chunk,
                state: state as u32,
                rank,
                worker: work.slot.map_or(u32::MAX, |(_, index)| index),
            }
        };
        let (data, count) = self.keep.array(allocation.work().iter().map(view).collect());
        trainmaster_works { data, count, stride: stride::<trainmaster_work>() }
    }

    pub(crate) fn reason(&mut self, reason: Option<&trainmaster_core::Reason>) -> *const trainmaster_reason {
        reason.map_or(std::ptr::null(), |reason| {
            let view = reason::view(self.state, reason, &mut self.keep);
            self.keep.array(vec![view]).0
        })
    }

    fn verdict(&mut self, job: JobId, verdict: &Verdict, of: (Incarnation, Revision)) -> trainmaster_verdict {
        use trainmaster_verdict_kind as Kind;
        let (kind, shape) = match verdict {
            Verdict::Run(allocation) => (Kind::Run, allocation.shape()),
            Verdict::Wait(_) => (Kind::Wait, Default::default()),
            Verdict::Reject(_) => (Kind::Reject, Default::default()),
            Verdict::Stop(_) => (Kind::Stop, Default::default()),
            Verdict::Release(shape) => (Kind::Release, *shape),
        };
        let none = Allocation::default();
        let allocation = verdict.allocation().map_or(&none, |allocation| allocation);
        trainmaster_verdict {
            size: size_of::<trainmaster_verdict>() as u32,
            kind: kind as u32,
            job: job.0,
            name: self.job_name(job),
            incarnation: of.0.0,
            revision: of.1.0,
            workers: shape.workers,
            servers: shape.servers,
            reason: self.reason(verdict.reason()),
            slots: self.slots(allocation),
            work: self.work(allocation),
        }
    }

    fn verdicts(&mut self, verdicts: Vec<trainmaster_verdict>) -> trainmaster_verdicts {
        let (data, count) = self.keep.array(verdicts);
        trainmaster_verdicts { data, count, stride: stride::<trainmaster_verdict>() }
    }

    /// What a manager is to be told.
    pub(crate) fn issues(mut self, issues: &[Issue]) -> (trainmaster_plan, Keep) {
        let verdicts =
            issues.iter().map(|issue| self.verdict(issue.job, &issue.verdict, (issue.incarnation, issue.revision)));
        let verdicts = verdicts.collect();
        self.plan(verdicts, None)
    }

    /// What an engine would propose.
    pub(crate) fn proposal(mut self, proposal: &trainmaster_core::Proposal) -> (trainmaster_plan, Keep) {
        let verdicts = proposal.changes.iter().map(|(job, verdict)| self.verdict(*job, verdict, Default::default()));
        let mut verdicts: Vec<_> = verdicts.collect();
        verdicts.sort_unstable_by_key(|verdict| verdict.job);
        self.plan(verdicts, proposal.wake_at)
    }

    fn plan(
        mut self,
        verdicts: Vec<trainmaster_verdict>,
        wake_at: Option<trainmaster_core::Time>,
    ) -> (trainmaster_plan, Keep) {
        let plan = trainmaster_plan {
            size: size_of::<trainmaster_plan>() as u32,
            reserved: 0,
            term: self.state.term.0,
            decision: self.state.decision.0,
            wake_at: wake_at.map_or(TRAINMASTER_NEVER, |at| at.0),
            verdicts: self.verdicts(verdicts),
        };
        (plan, self.keep)
    }

    pub(crate) fn decision(mut self, decision: &Decision, error: Option<String>) -> (trainmaster_decision, Keep) {
        let verdicts = decision.changes.iter().map(|(job, verdict)| self.verdict(*job, verdict, Default::default()));
        let verdicts = verdicts.collect();
        let (dropped, dropped_count) = self.keep.array(decision.dropped.iter().map(|job| job.0).collect());
        let view = trainmaster_decision {
            size: size_of::<trainmaster_decision>() as u32,
            source: match decision.source {
                Source::Engine => trainmaster_source::Engine,
                Source::Pruned => trainmaster_source::Pruned,
                Source::Fallback => trainmaster_source::Fallback,
                Source::Kept => trainmaster_source::Kept,
            } as u32,
            term: decision.term.0,
            number: decision.id.0,
            base: decision.base.0,
            at: decision.at.0,
            wake_at: decision.wake_at.map_or(TRAINMASTER_NEVER, |at| at.0),
            verdicts: self.verdicts(verdicts),
            dropped,
            dropped_count,
            error: error.map_or(trainmaster_string::EMPTY, |error| self.keep.text(error)),
        };
        (view, self.keep)
    }

    pub(crate) fn into_keep(self) -> Keep {
        self.keep
    }

    pub(crate) fn keep(&mut self) -> &mut Keep {
        &mut self.keep
    }
}

pub(crate) fn stride<T>() -> u64 {
    size_of::<T>() as u64
}

/// Frees a plan. NULL is nothing. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_plan_free(plan: *const trainmaster_plan) {
    guard::quiet(|| owned::free_result(plan));
}

/// Frees a decision. NULL is nothing. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_decision_free(decision: *const trainmaster_decision) {
    guard::quiet(|| owned::free_result(decision));
}
