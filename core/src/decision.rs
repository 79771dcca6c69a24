//! What is decided: allocations, verdicts, and the delta between one plan and the next.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::{
    ids::{DecisionId, JobId, ServerId, Term},
    reason::Reason,
    time::Time,
};

/// What a slot does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Role {
    /// Computes gradients.
    Worker,
    /// Keeps parameters.
    Server,
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Worker => "worker",
            Self::Server => "parameter server",
        })
    }
}

/// Numbers of workers and parameter servers: (w, p).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Shape {
    /// w.
    pub workers: u32,
    /// p; 0 for all-reduce.
    pub servers: u32,
}

impl Shape {
    /// How many of a role.
    pub fn count(self, role: Role) -> u32 {
        match role {
            Role::Worker => self.workers,
            Role::Server => self.servers,
        }
    }

    /// No slot at all.
    pub fn is_empty(self) -> bool {
        self.workers == 0 && self.servers == 0
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}w+{}p", self.workers, self.servers)
    }
}

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
}

/// A chunk or task, and the slot that has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    /// For engines that schedule chunks or tasks; else empty. A slot whose work is all queued or preempted is charged
    /// memory and disk only.
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

    /// The same slots with chunks or tasks on them.
    pub fn with_work(mut self, work: Vec<Work>) -> Self {
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

    /// Chunks and tasks.
    pub fn work(&self) -> &[Work] {
        &self.work
    }

    /// (w, p).
    pub fn shape(&self) -> Shape {
        Shape { workers: self.workers, servers: self.slots.len() as u32 - self.workers }
    }

    /// Whether the slot computes now: it has no work items, or one that runs.
    pub fn is_busy(&self, slot: &Slot) -> bool {
        let mut mine = self.work.iter().filter(|work| work.slot == Some((slot.role, slot.index))).peekable();
        mine.peek().is_none() || mine.any(|work| work.state == WorkState::Running)
    }

    /// Whether it has this very slot. O(log slots).
    pub fn has(&self, slot: &Slot) -> bool {
        let mine = self.of(slot.role);
        mine.binary_search_by_key(&slot.index, |slot| slot.index).is_ok_and(|at| mine[at] == *slot)
    }

    /// The slots that are in both, unchanged.
    pub fn common(&self, other: &Self) -> Self {
        Self::new(self.slots.iter().filter(|slot| other.has(slot)).cloned().collect())
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
            | (Self::Stop(mine), Self::Stop(theirs)) => mine.kind() == theirs.kind(),
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
