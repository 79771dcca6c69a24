//! What Slurm is to be asked for, and what it answers.

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
    /// What.
    pub action: Action,
}

/// What is to be done with a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// `slurm_update_job`.
    Update(Box<Update>),
    /// `slurm_requeue(id, 0)`: it stops with SIGTERM, KillWait and SIGKILL, and is pending again.
    Requeue,
    /// `slurm_kill_job(id, SIGKILL, 0)`, which gives it SIGTERM and KillWait first.
    Cancel,
}

/// Why an update is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// It is given nodes.
    Start,
    /// A running job gives nodes up.
    Shrink,
    /// Its lease is renewed, or it is held.
    Hold,
    /// It is handed back.
    Release,
}

/// What `slurm_update_job` is given; whatever is `None` or unset keeps the value of `slurm_init_job_desc_msg`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Update {
    /// What for.
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
    /// `pn_min_memory`, as [`Memory::raw`] has it.
    pub memory: Memory,
    /// `tres_per_node`; empty to take it away.
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

    /// The one update that lets a job start on these nodes. `per_job`: it asked for GPUs in all, so that this number
    /// has to agree.
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

    /// A running job keeps only these nodes.
    pub fn shrink(nodes: &[String], given: &Given) -> Self {
        Self { req_nodes: Some(nodes.join(",")), admin_comment: Some(given.to_string()), ..Self::new(Purpose::Shrink) }
    }

    /// It doesn't start before then; `why` is for people.
    pub fn hold(begin: i64, why: Option<String>) -> Self {
        Self { begin: Some(begin), admin_comment: why, ..Self::new(Purpose::Hold) }
    }

    /// It is Slurm's again, from then on; as it was submitted, where it was changed since. `default` is the memory that
    /// its partition gives those who don't ask.
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
    /// Whether it gives a job nothing that a journal would have to remember: the job is held, or Slurm's own again.
    pub fn gives_nothing(&self) -> bool {
        matches!(&self.action, Action::Update(update) if matches!(update.purpose, Purpose::Hold | Purpose::Release))
    }
}

/// What came of an order: Slurm's error number and its words for it.
pub type CallResult = Result<(), SlurmError>;

/// An error of Slurm's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlurmError {
    /// As in slurm_errno.h.
    pub code: u32,
    /// `slurm_strerror`.
    pub text: String,
}

impl SlurmError {
    /// ESLURM_INVALID_JOB_ID: the job is gone.
    pub const GONE: u32 = 2017;

    /// When it makes sense to ask again: soon where Slurm was only busy, else as the core thinks best.
    pub fn retry_after(&self) -> Option<Span> {
        // ESLURM_NODES_BUSY, ESLURM_TRANSITION_STATE_NO_UPDATE, and everything about sockets and messages.
        let passing = matches!(self.code, 2016 | 2020 | 1000..=1999 | 5000..=5999);
        passing.then_some(Span::seconds(1))
    }

    /// Whether the job it was about is over or gone.
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
