//! The results of Slurm's `slurm_load_*` calls as plain data. Only the used fields are included, with texts as Slurm
//! prints them.

/// All data that was loaded at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observation {
    /// The controller's time, in Unix seconds.
    pub at: i64,
    /// `slurm_load_node` with SHOW_ALL | SHOW_DETAIL.
    pub nodes: Vec<Node>,
    /// `slurm_load_partitions`.
    pub partitions: Vec<Partition>,
    /// `slurm_load_jobs` with SHOW_ALL | SHOW_DETAIL.
    pub jobs: Vec<Job>,
}

/// `node_info_t`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// `name`.
    pub name: String,
    /// `node_state`: a base state and flags.
    pub state: u32,
    /// `cpus_efctv`, or `cpus` if that is 0.
    pub cpus: u32,
    /// `threads` of a core.
    pub threads: u32,
    /// `real_memory` less `mem_spec_limit`, in MiB.
    pub memory: u64,
    /// `tmp_disk`, in MiB.
    pub disk: u64,
    /// `features_act`.
    pub features: String,
    /// `gres`.
    pub gres: String,
    /// `gres_drain`.
    pub gres_drain: String,
    /// `gres_used`.
    pub gres_used: String,
    /// SELECT_NODEDATA_SUBCNT of NODE_STATE_ALLOCATED.
    pub used_cpus: u32,
    /// SELECT_NODEDATA_MEM_ALLOC, in MiB.
    pub used_memory: u64,
    /// `cpu_load`, in hundredths of a CPU. `None`: NO_VAL.
    pub load: Option<u32>,
}

/// `partition_info_t`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Partition {
    /// `name`.
    pub name: String,
    /// `nodes`, a list.
    pub nodes: String,
    /// Whether `state_up` allows jobs to start: PARTITION_UP.
    pub up: bool,
    /// `def_mem_per_cpu`, with its flag.
    pub default_memory: Memory,
}

/// The memory of a job, in MiB: `pn_min_memory` with or without MEM_PER_CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Memory {
    /// Slurm's own default.
    #[default]
    Unset,
    /// On each node.
    PerNode(u64),
    /// For each CPU.
    PerCpu(u64),
}

impl Memory {
    /// MEM_PER_CPU.
    pub const PER_CPU: u64 = 1 << 63;

    /// Converts Slurm's number. 0 and NO_VAL64 are unset.
    pub fn of(raw: u64) -> Self {
        match raw {
            0 | 0xffff_ffff_ffff_fffe | u64::MAX => Self::Unset,
            raw if raw & Self::PER_CPU != 0 => Self::PerCpu(raw & !Self::PER_CPU),
            raw => Self::PerNode(raw),
        }
    }

    /// Slurm's number; 0 if unset.
    pub fn raw(self) -> u64 {
        match self {
            Self::Unset => 0,
            Self::PerNode(all) => all,
            Self::PerCpu(each) => each | Self::PER_CPU,
        }
    }
}

/// `slurm_job_info_t`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Job {
    /// `job_id`.
    pub id: u32,
    /// For a heterogeneous job: `het_job_id` (its leader's number) and `het_job_offset`.
    pub component: Option<(u32, u32)>,
    /// `name`.
    pub name: String,
    /// `user_name`, or the number `user_id` if it is empty.
    pub user: String,
    /// `account`; empty if there is none.
    pub account: String,
    /// `partition`.
    pub partition: String,
    /// `comment`.
    pub comment: String,
    /// `admin_comment`.
    pub admin_comment: String,
    /// `job_state`: a base state and flags.
    pub state: u32,
    /// `state_reason` as a word (`slurm_job_reason_string`): `BeginTime`, `Resources`, `Dependency`.
    pub reason: String,
    /// `priority`; 0 = held.
    pub priority: u32,
    /// `start_time`: for a pending job, the earliest start, if it has one.
    pub start: i64,
    /// `nodes`, a list.
    pub nodes: String,
    /// `gres_detail_str`, one for each node.
    pub gres: Vec<String>,
    /// `batch_host`.
    pub batch_host: String,
    /// `tres_alloc_str`.
    pub tres: String,
    /// `tres_per_job`.
    pub tres_per_job: String,
    /// `exit_code`, as `wait` returns it.
    pub exit: u32,
}

/// The meaning of a node's state for Trainmaster's jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeUse {
    /// The node isn't available.
    Down,
    /// The node hasn't answered recently, or not yet since slurmctld started. Its jobs continue, as far as Slurm knows.
    Silent,
    /// Running jobs may stay. No new job starts.
    Draining,
    /// Slurm keeps it for a job that it plans to start there.
    Planned,
    /// Available to all jobs.
    Up,
}

impl Node {
    /// Classifies the node's state.
    pub fn usable(&self) -> NodeUse {
        const DRAIN: u32 = 1 << 9;
        const NO_RESPOND: u32 = 1 << 11;
        const POWERED_DOWN: u32 = 1 << 12;
        const FAIL: u32 = 1 << 13;
        const MAINT: u32 = 1 << 15;
        const REBOOT: u32 = 1 << 16 | 1 << 20;
        const POWERING_DOWN: u32 = 1 << 18 | 1 << 23 | 1 << 25;
        const RESERVED: u32 = 1 << 5;
        const PLANNED: u32 = 1 << 21;
        const INVALID: u32 = 1 << 22;
        // Other base states are DOWN, ERROR and FUTURE. After a restart of slurmctld, nodes are UNKNOWN until they
        // answer.
        let base_is_down = !matches!(self.state & 0xf, 0 | 2 | 3 | 5);
        let has = |flags: u32| self.state & flags != 0;
        if base_is_down || has(POWERED_DOWN | INVALID) {
            NodeUse::Down
        } else if self.state & 0xf == 0 || has(NO_RESPOND) {
            NodeUse::Silent
        } else if has(DRAIN | FAIL | MAINT | REBOOT | POWERING_DOWN | RESERVED) {
            NodeUse::Draining
        } else if has(PLANNED) {
            NodeUse::Planned
        } else {
            NodeUse::Up
        }
    }
}

const CONFIGURING: u32 = 1 << 14;
const COMPLETING: u32 = 1 << 15;

/// A job's phase, as far as Trainmaster distinguishes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobPhase {
    /// In the queue.
    Pending,
    /// On its nodes, which are being prepared.
    Starting,
    /// On its nodes.
    Running,
    /// Leaving its nodes. If it is requeued, it returns to the queue.
    Leaving {
        /// Whether it returns to the queue.
        requeued: bool,
    },
    /// It has ended.
    Over(Ending),
}

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// With exit code 0.
    Completed,
    /// Cancelled by a person.
    Cancelled,
    /// Ended in any other way.
    Failed,
}

impl Job {
    /// Classifies the job's state.
    pub fn phase(&self) -> JobPhase {
        const REQUEUE: u32 = 1 << 10 | 1 << 11 | 1 << 12;
        const POWER_UP: u32 = 1 << 18;
        let has = |flags: u32| self.state & flags != 0;
        let base = self.state & 0xff;
        if has(COMPLETING) {
            return JobPhase::Leaving { requeued: base == 0 || has(REQUEUE) };
        }
        match base {
            0 => JobPhase::Pending,
            1 if has(CONFIGURING | POWER_UP) => JobPhase::Starting,
            1 | 2 => JobPhase::Running,
            3 => JobPhase::Over(Ending::Completed),
            4 => JobPhase::Over(Ending::Cancelled),
            _ => JobPhase::Over(Ending::Failed),
        }
    }

    /// Merges this leader of a heterogeneous job and its other component into one job. It has the nodes of both, is
    /// pending until neither is, and can start when both can.
    #[must_use]
    pub fn with(&self, other: &Self) -> Self {
        use JobPhase::{Leaving, Over, Pending, Running, Starting};
        let state = match (self.phase(), other.phase()) {
            (Over(_), Leaving { .. }) => self.state & 0xff | COMPLETING,
            (Pending, Leaving { .. } | Starting) | (Starting | Running, Leaving { .. }) | (Running, Starting) => {
                other.state
            }
            (Running, Pending) => self.state | CONFIGURING,
            (Pending, Running) => other.state | CONFIGURING,
            _ => self.state,
        };
        let nodes = [&self.nodes, &other.nodes].into_iter().filter(|nodes| !matches!(nodes.as_str(), "" | "(null)"));
        Self {
            state,
            nodes: nodes.cloned().collect::<Vec<_>>().join(","),
            start: self.start.max(other.start),
            priority: self.priority.min(other.priority),
            reason: if other.waits_for_jobs() { &other.reason } else { &self.reason }.clone(),
            ..self.clone()
        }
    }

    /// Whether it is pending because of another job: `Dependency`, `DependencyNeverSatisfied`.
    pub fn waits_for_jobs(&self) -> bool {
        self.reason.starts_with("Dependency")
    }

    /// Whether a person holds it.
    pub fn is_held(&self) -> bool {
        self.phase() == JobPhase::Pending && self.priority == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_components_are_as_far_as_the_slower_one() {
        use JobPhase::{Leaving, Over, Pending, Running, Starting};
        let job = |state: u32| Job { state, ..Job::default() };
        let requeued = COMPLETING | 1 << 10;
        for (leader, other, together) in [
            (0, 0, Pending),
            (1, 1, Running),
            (0, 1, Starting),
            (1, 0, Starting),
            (1, 1 | CONFIGURING, Starting),
            (1 | CONFIGURING, 1, Starting),
            (0, 1 | CONFIGURING, Starting),
            (requeued, 1, Leaving { requeued: true }),
            (1, requeued, Leaving { requeued: true }),
            (0, requeued, Leaving { requeued: true }),
            (requeued, 0, Leaving { requeued: true }),
            (3, 3 | COMPLETING, Leaving { requeued: false }),
            (3 | COMPLETING, 3, Leaving { requeued: false }),
            (3, 3, Over(Ending::Completed)),
            (5, 4, Over(Ending::Failed)),
        ] {
            assert_eq!(job(leader).with(&job(other)).phase(), together, "{leader:#x} and {other:#x}");
        }
        let leader = Job { nodes: "node[1-2]".into(), start: 7, priority: 9, reason: "BeginTime".into(), ..job(1) };
        let other = Job { nodes: "node4".into(), start: 8, priority: 0, reason: "Dependency".into(), ..job(1) };
        let both = leader.with(&other);
        assert_eq!((&*both.nodes, both.start, both.priority, &*both.reason), ("node[1-2],node4", 8, 0, "Dependency"));
        assert_eq!(leader.with(&Job { nodes: "(null)".into(), ..other }).nodes, "node[1-2]");
    }
}
