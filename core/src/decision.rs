//! Decisions: allocations, verdicts, and the change from one plan to the next.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::{
    ids::{DecisionId, Incarnation, JobId, Revision, ServerId, Term},
    reason::Reason,
    shape::{Role, Shape},
    time::Time,
};

/// A part of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DeviceShare {
    /// Position in the server's device list.
    pub device: u16,
    /// Thousandths. 1000: the whole device.
    pub milli: u16,
}

/// The devices of one slot. Usually there are few, so they are stored inline.
pub type Devices = SmallVec<[DeviceShare; 4]>;

/// One worker or parameter server on one server.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Slot {
    /// Worker or parameter server.
    pub role: Role,
    /// The index, unique within the job and role. It is kept while the slot is unchanged.
    pub index: u32,
    /// The server.
    pub server: ServerId,
    /// The devices. Empty if the manager selects them.
    pub devices: Devices,
}

/// A part of a job that some engines schedule separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum WorkItem {
    /// A data chunk.
    Chunk(u32),
    /// A task of a model-parallel DAG.
    Task(u32),
}

/// The state of a work item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WorkState {
    /// In training.
    Running,
    /// Waiting on its slot, with this many other waiting items before it.
    Queued(u32),
    /// Interrupted. It keeps its slot.
    Preempted,
    /// Completed.
    Done,
}

/// A chunk or task, with its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// The chunk or task.
    pub item: WorkItem,
    /// Role and index of its slot. `None` while it waits for one.
    pub slot: Option<(Role, u32)>,
    /// The state.
    pub state: WorkState,
}

/// The slots and the work of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allocation {
    /// Workers first, each role sorted by index.
    slots: Vec<Slot>,
    /// The work, for engines that schedule chunks or tasks. Sorted by slot, items without a slot first, and by item.
    work: Vec<Work>,
    workers: u32,
}

impl Allocation {
    /// Creates an allocation from slots in any order.
    pub fn new(mut slots: Vec<Slot>) -> Self {
        slots.sort_unstable_by_key(|slot| (slot.role, slot.index));
        let workers = slots.partition_point(|slot| slot.role == Role::Worker) as u32;
        Self { slots, work: Vec::new(), workers }
    }

    /// The same slots with chunks or tasks, in any order.
    pub fn with_work(mut self, mut work: Vec<Work>) -> Self {
        work.sort_unstable_by_key(|work| (work.slot, work.item));
        self.work = work;
        self
    }

    /// All slots: workers first, each role sorted by index.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// The slots of one role, sorted by index.
    pub fn of(&self, role: Role) -> &[Slot] {
        let (workers, servers) = self.slots.split_at(self.workers as usize);
        if role == Role::Worker { workers } else { servers }
    }

    /// The slot of a role and index. O(log slots).
    pub fn slot(&self, role: Role, index: u32) -> Option<&Slot> {
        let mine = self.of(role);
        mine.binary_search_by_key(&index, |slot| slot.index).ok().map(|at| &mine[at])
    }

    /// Chunks and tasks: sorted by slot, items without a slot first, and by item.
    pub fn work(&self) -> &[Work] {
        &self.work
    }

    /// The work of a slot. O(log work).
    pub fn work_of(&self, slot: &Slot) -> &[Work] {
        let key = Some((slot.role, slot.index));
        let from = self.work.partition_point(|work| work.slot < key);
        let count = self.work[from..].partition_point(|work| work.slot == key);
        &self.work[from..from + count]
    }

    /// The shape (w, p).
    pub fn shape(&self) -> Shape {
        Shape { workers: self.workers, servers: self.slots.len() as u32 - self.workers }
    }

    /// Whether all workers are on one server. O(workers).
    pub fn is_together(&self) -> bool {
        self.of(Role::Worker).windows(2).all(|pair| pair[0].server == pair[1].server)
    }

    /// Whether the slot computes now. A worker does if some of its work runs, a parameter server if any work runs. All
    /// slots do if the engine doesn't schedule work. Idle slots are charged memory and disk only. O(log work), for a
    /// parameter server O(work).
    pub fn is_busy(&self, slot: &Slot) -> bool {
        let runs = |work: &Work| work.state == WorkState::Running;
        self.work.is_empty()
            || match slot.role {
                Role::Worker => self.work_of(slot).iter().any(runs),
                Role::Server => self.work.iter().any(runs),
            }
    }

    /// Whether the allocation contains exactly this slot. O(log slots).
    pub fn has(&self, slot: &Slot) -> bool {
        self.slot(slot.role, slot.index) == Some(slot)
    }

    /// The allocation without some of its slots. The work of removed slots has no slot, but parameter servers that it
    /// kept busy remain busy.
    pub(crate) fn keeping(&self, keeps: impl Fn(&Slot) -> bool) -> Self {
        let kept = Self::new(self.slots.iter().filter(|slot| keeps(slot)).cloned().collect());
        kept.with_work_of(self, |_, work| work.state)
    }

    /// The slots that are unchanged in both, with the work in `other`. Work runs only on slots that are already busy.
    pub fn common(&self, other: &Self) -> Self {
        let common = Self::new(self.slots.iter().filter(|slot| other.has(slot)).cloned().collect());
        common.with_work_of(other, |slot, work| match (work.state, slot) {
            (WorkState::Running, Some(slot)) if self.is_busy(slot) => WorkState::Running,
            (WorkState::Running, _) => WorkState::Queued(0),
            (state, _) => state,
        })
    }

    /// The observed slots with the work in `known`, except that slots observed as `idle` run none. If a slot is
    /// observed as busy but has no running work, its first item counts as running.
    pub(crate) fn working_as(self, known: &Self, idle: impl Fn(&Slot) -> bool) -> Self {
        let mut seen = self.with_work_of(known, |slot, work| match work.state {
            WorkState::Running if slot.is_some_and(&idle) => WorkState::Queued(0),
            state => state,
        });
        for slot in seen.slots.iter().filter(|slot| slot.role == Role::Worker && !idle(slot)) {
            let first = seen.work.partition_point(|work| work.slot < Some((slot.role, slot.index)));
            let mine = seen.work[first..].partition_point(|work| work.slot == Some((slot.role, slot.index)));
            let mine = &mut seen.work[first..first + mine];
            if !mine.iter().any(|work| work.state == WorkState::Running)
                && let Some(first) = mine.first_mut()
            {
                first.state = WorkState::Running;
            }
        }
        seen
    }

    /// The same slots with another allocation's work in other states. Items whose slot isn't here have no slot.
    fn with_work_of(self, other: &Self, state: impl Fn(Option<&Slot>, &Work) -> WorkState) -> Self {
        let own = |work: &Work| {
            let slot = work.slot.and_then(|(role, index)| self.slot(role, index));
            Work { item: work.item, slot: slot.map(|slot| (slot.role, slot.index)), state: state(slot, work) }
        };
        let work = other.work.iter().map(own).collect();
        self.with_work(work)
    }
}

/// The scheduler's answer for one job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// The job runs with this allocation.
    Run(Arc<Allocation>),
    /// The job has no slots for now.
    Wait(Reason),
    /// The job is refused, for now or permanently.
    Reject(Reason),
    /// The job is ended.
    Stop(Reason),
    /// The job is handed back to the manager in this shape.
    Release(Shape),
}

impl Verdict {
    /// The allocation, if the job runs.
    pub fn allocation(&self) -> Option<&Arc<Allocation>> {
        match self {
            Self::Run(allocation) => Some(allocation),
            _ => None,
        }
    }

    /// Why the job doesn't run.
    pub fn reason(&self) -> Option<&Reason> {
        match self {
            Self::Wait(reason) | Self::Reject(reason) | Self::Stop(reason) => Some(reason),
            Self::Run(_) | Self::Release(_) => None,
        }
    }

    /// Whether both are of the same kind, with equal allocations or shapes. Numbers in reasons are ignored.
    pub fn same_kind(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Run(mine), Self::Run(theirs)) => Arc::ptr_eq(mine, theirs) || mine == theirs,
            (Self::Release(mine), Self::Release(theirs)) => mine == theirs,
            (Self::Wait(mine), Self::Wait(theirs))
            | (Self::Reject(mine), Self::Reject(theirs))
            | (Self::Stop(mine), Self::Stop(theirs)) => mine.same_kind(theirs),
            _ => false,
        }
    }
}

/// An engine's proposal: changes of [`Job::verdict`](crate::Job::verdict). Other jobs keep theirs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposal {
    /// The changes, at most one per job.
    pub changes: Vec<(JobId, Verdict)>,
    /// Time at which the engine wants to run again even without changes.
    pub wake_at: Option<Time>,
}

/// The origin of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    /// The engine, unchanged.
    Engine,
    /// The engine, without the parts that no longer fitted at commit.
    Pruned,
    /// The fallback engine, after several consecutive failures of the engine.
    Fallback,
    /// None: the engine failed, and the last plan stays in force.
    Kept,
}

/// A committed change of the plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// Term of the scheduler process.
    pub term: Term,
    /// Number of the decision.
    pub id: DecisionId,
    /// Number of the decision whose plan it changes.
    pub base: DecisionId,
    /// Time of the commit.
    pub at: Time,
    /// Jobs with a changed verdict, each once, by id.
    pub changes: Vec<(JobId, Verdict)>,
    /// The origin.
    pub source: Source,
    /// Jobs whose proposed verdict no longer fitted.
    pub dropped: Vec<JobId>,
    /// Time at which the engine wants to run again.
    pub wake_at: Option<Time>,
}

impl Decision {
    /// The encoding in the journal and for the digest.
    pub(crate) fn encode(&self) -> Vec<u8> {
        postcard::to_allocvec(self).expect("a decision is plain data")
    }
}

/// A message to a manager about one job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Issue {
    /// The job.
    pub job: JobId,
    /// The current verdict for the manager. See [`State::effective`](crate::State::effective).
    pub verdict: Verdict,
    /// The incarnation that should run.
    pub incarnation: Incarnation,
    /// Number of in-place changes of this incarnation.
    pub revision: Revision,
}
