//! Plans for C: verdicts, issues to a manager, decisions.

use std::collections::BTreeMap;

use trainmaster_core::{
    Allocation, Decision, Incarnation, Issue, JobId, Revision, Role, ServerId, Source, State, Verdict,
    decision::{Work, WorkItem, WorkState},
};

use crate::{
    borrow::grows,
    event::TRAINMASTER_NEVER,
    event::{trainmaster_slot, trainmaster_slot_role, trainmaster_slots},
    guard,
    owned::{self, Keep},
    reason::{self, trainmaster_reason},
    server::{trainmaster_device, trainmaster_devices},
    text::trainmaster_string,
};

/// Kind of a verdict.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum trainmaster_verdict_kind {
    /// The job runs with these slots.
    Run = 0,
    /// The job has no slots for now.
    Wait = 1,
    /// The job is refused.
    Reject = 2,
    /// The job is ended.
    Stop = 3,
    /// The job is handed back to its manager, with this shape.
    Release = 4,
}

/// State of a piece of work.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum trainmaster_work_state {
    /// In training.
    Running = 0,
    /// Waiting for its turn: `rank` chunks of the same job come before it on its slot.
    Queued = 1,
    /// Interrupted. It continues on the same worker.
    Preempted = 2,
    /// Trained completely.
    Done = 3,
}

/// A data chunk and its worker. Never grows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_work {
    /// Index in the dataset.
    pub chunk: u32,
    /// One of TRAINMASTER_WORK_STATE_*.
    pub state: u32,
    /// For TRAINMASTER_WORK_STATE_QUEUED.
    pub rank: u32,
    /// Index of its worker's slot. UINT32_MAX while it waits for one.
    pub worker: u32,
}

/// An array of work, by slot. Work without a slot comes first.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_works {
    /// The first element.
    pub data: *const trainmaster_work,
    /// Number of elements.
    pub count: u64,
    /// Bytes from one element to the next.
    pub stride: u64,
}

/// The verdict for one job.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_verdict {
    /// Set by the library: size of the struct in its version. Fields of your header beyond it don't exist.
    pub size: u32,
    /// One of TRAINMASTER_VERDICT_KIND_*.
    pub kind: u32,
    /// Number of the job.
    pub job: u64,
    /// Name of the job. Empty after its end.
    pub name: trainmaster_string,
    /// Number of the incarnation, which increases with each restart from a checkpoint. 0 in decisions and previews.
    pub incarnation: u32,
    /// Number of changes in place within an incarnation, in which workers are added or removed. 0 in decisions and
    /// previews.
    pub revision: u32,
    /// Number of workers, for TRAINMASTER_VERDICT_KIND_RUN and _RELEASE.
    pub workers: u32,
    /// Number of parameter servers, for the same.
    pub servers: u32,
    /// Reason why it doesn't run. NULL if it runs or is released.
    pub reason: *const trainmaster_reason,
    /// For TRAINMASTER_VERDICT_KIND_RUN.
    pub slots: trainmaster_slots,
    /// Work of its slots, if the engine schedules data chunks one by one; otherwise empty.
    pub work: trainmaster_works,
    /// The batch that a job with a range should train with: examples per step of the whole job. 0: its batch is fixed,
    /// or this isn't an issue to run.
    pub batch: u64,
    /// Examples that one replica of the model computes at once.
    pub batch_local: u64,
    /// Passes of a replica in a step.
    pub batch_passes: u32,
    /// Reserved: 0.
    pub reserved: u32,
}

/// An array of verdicts by job. Each job occurs once.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_verdicts {
    /// The first element.
    pub data: *const trainmaster_verdict,
    /// Number of elements.
    pub count: u64,
    /// Bytes from one element to the next.
    pub stride: u64,
}

/// Verdicts for some jobs: issues to a manager, or an engine's proposal. Yours; free it with trainmaster_plan_free().
/// It doesn't change, and it outlives its scheduler.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_plan {
    /// Set by the library: size of the struct in its version. Fields of your header beyond it don't exist.
    pub size: u32,
    /// Reserved: 0.
    pub reserved: u32,
    /// The term and ...
    pub term: u64,
    /// ... the decision of the plan: the `number` for TRAINMASTER_EVENT_KIND_ENACTED.
    pub decision: u64,
    /// Time of a preview's next decision. TRAINMASTER_NEVER: after the next event.
    pub wake_at: i64,
    /// By job.
    pub verdicts: trainmaster_verdicts,
}

/// Source of a decision.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum trainmaster_source {
    /// The engine.
    Engine = 0,
    /// The engine, without changes that no longer fitted.
    Pruned = 1,
    /// The fallback engine, because the engine failed several times in a row.
    Fallback = 2,
    /// None: the engine failed, see `error`, and the last plan stays in force.
    Kept = 3,
}

/// A committed change of the plan, which is the desired state. The plan of trainmaster_scheduler_take_issues() has the
/// issues for the manager, because room must be released before others can use it. Yours; free it with
/// trainmaster_decision_free(). It doesn't change, and it outlives its scheduler.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_decision {
    /// Set by the library: size of the struct in its version. Fields of your header beyond it don't exist.
    pub size: u32,
    /// One of TRAINMASTER_SOURCE_*.
    pub source: u32,
    /// The term of the host that made it.
    pub term: u64,
    /// Its number, which increases.
    pub number: u64,
    /// The decision whose plan it changes.
    pub base: u64,
    /// Time of its commit.
    pub at: i64,
    /// Time of the engine's next decision without an event, or TRAINMASTER_NEVER.
    pub wake_at: i64,
    /// The changed verdicts.
    pub verdicts: trainmaster_verdicts,
    /// The first of the numbers of jobs for which the engine's proposal no longer fitted.
    pub dropped: *const u64,
    /// Number of elements.
    pub dropped_count: u64,
    /// Reason of the engine's failure. Empty without one.
    pub error: trainmaster_string,
}

grows!(
    trainmaster_verdict: 80,
    trainmaster_plan: 56,
    trainmaster_decision: 104,
);

/// Collects the data that a result's pointers point to, with each server's name once.
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
            // The name has a fixed address, even if the server changes.
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
        // Only issues have numbers, and the batch is for issued slots.
        let batch = self.state.job(job).filter(|_| kind == Kind::Run && of.0.0 > 0).and_then(|job| job.batch());
        let batch = batch.unwrap_or_default();
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
            batch: batch.size,
            batch_local: batch.local,
            batch_passes: batch.passes,
            reserved: 0,
        }
    }

    fn verdicts(&mut self, verdicts: Vec<trainmaster_verdict>) -> trainmaster_verdicts {
        let (data, count) = self.keep.array(verdicts);
        trainmaster_verdicts { data, count, stride: stride::<trainmaster_verdict>() }
    }

    /// Issues to a manager.
    pub(crate) fn issues(mut self, issues: &[Issue]) -> (trainmaster_plan, Keep) {
        let verdicts =
            issues.iter().map(|issue| self.verdict(issue.job, &issue.verdict, (issue.incarnation, issue.revision)));
        let verdicts = verdicts.collect();
        self.plan(verdicts, None)
    }

    /// An engine's proposal.
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

/// Frees a plan. NULL is ignored. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_plan_free(plan: *const trainmaster_plan) {
    guard::quiet(|| owned::free_result(plan));
}

/// Frees a decision. NULL is ignored. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_decision_free(decision: *const trainmaster_decision) {
    guard::quiet(|| owned::free_result(decision));
}
