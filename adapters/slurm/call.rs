//! The calls for Slurm, and their results.

use trainmaster_core::Span;

use super::{
    comment::{Asked, Given},
    reservation::Reservation,
    seen::Memory,
};

/// One call of Slurm's API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlurmCall {
    /// The job.
    pub id: u32,
    /// The action.
    pub action: Action,
}

/// An action on a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// `slurm_update_job`.
    Update(Box<Update>),
    /// `slurm_requeue(id, 0)`: the job stops with SIGTERM, KillWait and SIGKILL, and is pending again.
    Requeue,
    /// `slurm_kill_job(id, SIGKILL, 0)`, which first sends SIGTERM and waits for KillWait.
    Cancel,
}

/// The purpose of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The job gets nodes.
    Start,
    /// A running job gives up nodes.
    Shrink,
    /// The job's lease is renewed, or the job is held.
    Hold,
    /// The job is handed back.
    Release,
}

/// The fields for `slurm_update_job`. `None` and unset fields keep the value of `slurm_init_job_desc_msg`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Update {
    /// The purpose.
    pub purpose: Purpose,
    /// `min_nodes` and `max_nodes`.
    pub nodes: Option<(u32, u32)>,
    /// `num_tasks`.
    pub tasks: Option<u32>,
    /// `ntasks_per_node`.
    pub tasks_per_node: Option<u32>,
    /// `cpus_per_task`.
    pub cpus_per_task: Option<u32>,
    /// `min_cpus`.
    pub cpus: Option<u32>,
    /// `pn_min_cpus`.
    pub cpus_per_node: Option<u32>,
    /// `pn_min_memory`, in the form of [`Memory::raw`].
    pub memory: Memory,
    /// `tres_per_node`; empty to remove it.
    pub tres_per_node: Option<String>,
    /// `tres_per_job`.
    pub tres_per_job: Option<String>,
    /// `req_nodes`, with commas; empty for any.
    pub req_nodes: Option<String>,
    /// `priority`.
    pub priority: Option<u32>,
    /// `begin_time`, in Unix seconds.
    pub begin: Option<i64>,
    /// `admin_comment`.
    pub admin_comment: Option<String>,
}

impl Update {
    fn new(purpose: Purpose) -> Self {
        Self {
            purpose,
            nodes: None,
            tasks: None,
            tasks_per_node: None,
            cpus_per_task: None,
            cpus: None,
            cpus_per_node: None,
            memory: Memory::Unset,
            tres_per_node: None,
            tres_per_job: None,
            req_nodes: None,
            priority: None,
            begin: None,
            admin_comment: None,
        }
    }

    /// The single update that lets a job start on these nodes. `per_job`: the job requested a total number of GPUs, so
    /// that this number has to match too.
    pub fn start(reservation: &Reservation, given: &Given, now: i64, per_job: bool) -> Self {
        let nodes = reservation.nodes.len() as u32;
        Self {
            nodes: Some((nodes, nodes)),
            tasks: Some(nodes * reservation.tasks_per_node),
            tasks_per_node: Some(reservation.tasks_per_node),
            cpus_per_task: Some(reservation.cpus_per_task),
            cpus: Some(nodes * reservation.cpus_per_node()),
            cpus_per_node: Some(reservation.cpus_per_node()),
            memory: reservation.memory_per_node.map_or(Memory::Unset, Memory::PerNode),
            tres_per_node: Some(reservation.tres(1)),
            tres_per_job: per_job.then(|| reservation.tres(nodes.into())),
            req_nodes: Some(reservation.nodes.join(",")),
            begin: Some(now),
            admin_comment: Some(given.to_string()),
            ..Self::new(Purpose::Start)
        }
    }

    /// An update after which a running job keeps only these nodes.
    pub fn shrink(nodes: &[String], given: &Given) -> Self {
        Self { req_nodes: Some(nodes.join(",")), admin_comment: Some(given.to_string()), ..Self::new(Purpose::Shrink) }
    }

    /// An update that prevents a start before `begin`. `why` is a text for people.
    pub fn hold(begin: i64, why: Option<String>) -> Self {
        Self { begin: Some(begin), admin_comment: why, ..Self::new(Purpose::Hold) }
    }

    /// An update that hands the job back to Slurm from `begin` on. With `asked`, the job also gets its submitted
    /// options again. `default` is the default memory of its partition.
    pub fn release(begin: i64, asked: Option<&Asked>, default: Memory) -> Self {
        let mut update = Self { begin: Some(begin), ..Self::new(Purpose::Release) };
        if let Some(asked) = asked {
            let (least, most) = asked.nodes;
            update.nodes = Some((least.max(1), if most == 0 { u32::from(u16::MAX) } else { most }));
            update.tasks = Some(asked.tasks);
            update.tasks_per_node = Some(asked.tasks_per_node);
            update.cpus_per_task = Some(asked.cpus_per_task);
            update.cpus = Some(asked.tasks.saturating_mul(asked.cpus_per_task));
            update.cpus_per_node = Some(asked.cpus_per_task.saturating_mul(asked.tasks_per_node.max(1)));
            update.memory = if asked.memory == Memory::Unset { default } else { asked.memory };
            update.tres_per_node = Some(asked.tres_per_node.clone());
            update.tres_per_job = (!asked.tres_per_job.is_empty()).then(|| asked.tres_per_job.clone());
            update.req_nodes = Some(String::new());
            update.admin_comment = Some(String::new());
        }
        update
    }
}

impl SlurmCall {
    /// Whether the call gives the job nothing that a journal has to record: it holds the job, or hands it back to
    /// Slurm.
    pub fn gives_nothing(&self) -> bool {
        matches!(&self.action, Action::Update(update) if matches!(update.purpose, Purpose::Hold | Purpose::Release))
    }
}

/// The result of a call: success, or Slurm's error number and text.
pub type CallResult = Result<(), SlurmError>;

/// An error of Slurm's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlurmError {
    /// The number in slurm_errno.h.
    pub code: u32,
    /// `slurm_strerror`.
    pub text: String,
}

impl SlurmError {
    /// ESLURM_INVALID_JOB_ID: the job is gone.
    pub const GONE: u32 = 2017;

    /// When to ask again: soon if Slurm was only busy. Otherwise the core chooses.
    pub fn retry_after(&self) -> Option<Span> {
        // ESLURM_NODES_BUSY, ESLURM_TRANSITION_STATE_NO_UPDATE, and all errors of sockets and messages.
        let passing = matches!(self.code, 2016 | 2020 | 1000..=1999 | 5000..=5999);
        passing.then_some(Span::seconds(1))
    }

    /// Whether the call's job has ended or is gone.
    pub fn is_gone(&self) -> bool {
        // ESLURM_ALREADY_DONE.
        matches!(self.code, Self::GONE | 2021)
    }
}

impl std::fmt::Display for SlurmError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Slurm: {} (error {})", self.text, self.code)
    }
}
