//! What is decided: allocations, verdicts, and the delta between one plan and the next.

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
    /// Thousandths; 1000 = the whole device.
    pub milli: u16,
}

/// The devices of one slot: few, so they live in place.
pub type Devices = SmallVec<[DeviceShare; 4]>;

/// One worker or parameter server on one server.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Slot {
    /// What it does.
    pub role: Role,
    /// Kept while the slot stays as it is; unique within the job and role.
    pub index: u32,
    /// Where.
    pub server: ServerId,
    /// Empty where the manager picks them.
    pub devices: Devices,
}

/// What a finer engine schedules inside a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum WorkItem {
    /// A data chunk.
    Chunk(u32),
    /// A task of a model-parallel DAG.
    Task(u32),
}

/// What happens to a work item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WorkState {
    /// Being trained.
    Running,
    /// Next but so many on its slot.
    Queued(u32),
    /// Interrupted; it stays where it is.
    Preempted,
    /// Nothing is left to do of it.
    Done,
}

/// A chunk or task, and the slot that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// Which.
    pub item: WorkItem,
    /// Role and index of its slot; none while it waits for one.
    pub slot: Option<(Role, u32)>,
    /// What happens to it.
    pub state: WorkState,
}

/// Everything a job is given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allocation {
    /// Workers first, each role by index.
    slots: Vec<Slot>,
    /// For engines that schedule chunks or tasks; else empty. By slot, those without one first, and item.
    work: Vec<Work>,
    workers: u32,
}

impl Allocation {
    /// From slots in any order.
    pub fn new(mut slots: Vec<Slot>) -> Self {
        slots.sort_unstable_by_key(|slot| (slot.role, slot.index));
        let workers = slots.partition_point(|slot| slot.role == Role::Worker) as u32;
        Self { slots, work: Vec::new(), workers }
    }

    /// The same slots with chunks or tasks on them, in any order.
    pub fn with_work(mut self, mut work: Vec<Work>) -> Self {
        work.sort_unstable_by_key(|work| (work.slot, work.item));
        self.work = work;
        self
    }

    /// All slots: workers first, each role by index.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// The slots of one role, by index.
    pub fn of(&self, role: Role) -> &[Slot] {
        let (workers, servers) = self.slots.split_at(self.workers as usize);
        if role == Role::Worker { workers } else { servers }
    }

    /// The slot of a role and index. O(log slots).
    pub fn slot(&self, role: Role, index: u32) -> Option<&Slot> {
        let mine = self.of(role);
        mine.binary_search_by_key(&index, |slot| slot.index).ok().map(|at| &mine[at])
    }

    /// Chunks and tasks: by slot, those without one first, and item.
    pub fn work(&self) -> &[Work] {
        &self.work
    }

    /// What a slot has to do. O(log work).
    pub fn work_of(&self, slot: &Slot) -> &[Work] {
        let key = Some((slot.role, slot.index));
        let from = self.work.partition_point(|work| work.slot < key);
        let count = self.work[from..].partition_point(|work| work.slot == key);
        &self.work[from..from + count]
    }

    /// (w, p).
    pub fn shape(&self) -> Shape {
        Shape { workers: self.workers, servers: self.slots.len() as u32 - self.workers }
    }

    /// Whether the slot computes now: a worker some of whose work runs, a parameter server where any work runs, and
    /// everyone where nobody schedules work. What isn't busy is charged memory and disk only. O(log work), of a server
    /// O(work).
    pub fn is_busy(&self, slot: &Slot) -> bool {
        let runs = |work: &Work| work.state == WorkState::Running;
        self.work.is_empty()
            || match slot.role {
                Role::Worker => self.work_of(slot).iter().any(runs),
                Role::Server => self.work.iter().any(runs),
            }
    }

    /// Whether it has this very slot. O(log slots).
    pub fn has(&self, slot: &Slot) -> bool {
        self.slot(slot.role, slot.index) == Some(slot)
    }

    /// What is left of it without some of its slots. Their work is nobody's, but what it kept busy still is.
    pub(crate) fn keeping(&self, keeps: impl Fn(&Slot) -> bool) -> Self {
        let kept = Self::new(self.slots.iter().filter(|slot| keeps(slot)).cloned().collect());
        kept.with_work_of(self, |_, work| work.state)
    }

    /// The slots that are in both, unchanged, with what `other` has them do as far as they are busy already.
    pub fn common(&self, other: &Self) -> Self {
        let common = Self::new(self.slots.iter().filter(|slot| other.has(slot)).cloned().collect());
        common.with_work_of(other, |slot, work| match (work.state, slot) {
            (WorkState::Running, Some(slot)) if self.is_busy(slot) => WorkState::Running,
            (WorkState::Running, _) => WorkState::Queued(0),
            (state, _) => state,
        })
    }

    /// These slots doing what `known` has them do, less those that are seen `idle`; who is seen busy where nothing is
    /// to run still runs something.
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

    /// The same slots with another allocation's work in other states; nobody's where its slot isn't here.
    fn with_work_of(self, other: &Self, state: impl Fn(Option<&Slot>, &Work) -> WorkState) -> Self {
        let own = |work: &Work| {
            let slot = work.slot.and_then(|(role, index)| self.slot(role, index));
            Work { item: work.item, slot: slot.map(|slot| (slot.role, slot.index)), state: state(slot, work) }
        };
        let work = other.work.iter().map(own).collect();
        self.with_work(work)
    }
}

/// What is decided about one job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// It runs with this.
    Run(Arc<Allocation>),
    /// It has nothing for now.
    Wait(Reason),
    /// It is refused, for now or for good.
    Reject(Reason),
    /// It is ended.
    Stop(Reason),
    /// It is handed back to the manager in this shape.
    Release(Shape),
}

impl Verdict {
    /// What it runs with, if it runs.
    pub fn allocation(&self) -> Option<&Arc<Allocation>> {
        match self {
            Self::Run(allocation) => Some(allocation),
            _ => None,
        }
    }

    /// Why it doesn't run.
    pub fn reason(&self) -> Option<&Reason> {
        match self {
            Self::Wait(reason) | Self::Reject(reason) | Self::Stop(reason) => Some(reason),
            Self::Run(_) | Self::Release(_) => None,
        }
    }

    /// Whether both are of one kind, and runs alike; the numbers in a reason don't matter.
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

/// What an engine proposes: changes to [`Job::verdict`](crate::Job::verdict), jobs that it doesn't name keep theirs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposal {
    /// At most one per job.
    pub changes: Vec<(JobId, Verdict)>,
    /// When the engine wants to run again even if nothing happens.
    pub wake_at: Option<Time>,
}

/// Who a decision comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    /// The engine, as it proposed.
    Engine,
    /// The engine, less what no longer fitted at commit.
    Pruned,
    /// The fallback engine, after the engine failed several times in a row.
    Fallback,
    /// Nobody: the engine failed and the last plan stands.
    Kept,
}

/// A committed change of the plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// Leader epoch.
    pub term: Term,
    /// Its number.
    pub id: DecisionId,
    /// The decision whose plan it changes.
    pub base: DecisionId,
    /// When it was committed.
    pub at: Time,
    /// Jobs whose verdict changed, each once, by id.
    pub changes: Vec<(JobId, Verdict)>,
    /// Whose it is.
    pub source: Source,
    /// Jobs whose proposed verdict no longer fitted.
    pub dropped: Vec<JobId>,
    /// When the engine wants to run again.
    pub wake_at: Option<Time>,
}

impl Decision {
    /// As the journal keeps it and as it is digested.
    pub(crate) fn encode(&self) -> Vec<u8> {
        postcard::to_allocvec(self).expect("a decision is plain data")
    }
}

/// What a manager is to be told about one job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Issue {
    /// Which.
    pub job: JobId,
    /// What it is to have now; see [`State::effective`](crate::State::effective).
    pub verdict: Verdict,
    /// Restarts so far.
    pub incarnation: Incarnation,
    /// Changes in place of this incarnation.
    pub revision: Revision,
}
