//! What can happen, and what can't be accepted.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{
    decision::{DeviceShare, Slot},
    ids::{DecisionId, Incarnation, JobId, Term},
    job::{ExternalId, JobSpec, JobSpecError, Phase},
    policy::{Policy, PolicyError},
    server::ServerSpec,
    settings::{Mode, Settings, SettingsError},
    shape::Role,
    time::Span,
};

/// Something that happened. Everything the core knows comes from these.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// Engine, parameters, stability, limits.
    Configured(Box<Settings>),
    /// Active, shadow or paused.
    ModeSet(Mode),
    /// A host took over: its decisions are of this term, and plans of older ones are void.
    TermBegan(Term),
    /// A server came, or changed in any way.
    ServerSet {
        /// The manager's name.
        manager: String,
        /// The whole description.
        server: ServerSpec,
    },
    /// Servers are gone, with all that ran there. All that leave at a time together: jobs are looked through once.
    ServersLeft {
        /// Their names; each is known.
        names: Vec<String>,
    },
    /// All that other work uses of a server.
    ForeignUse {
        /// The server's name.
        server: String,
        /// By resource name, in sub-units.
        amounts: BTreeMap<String, i64>,
        /// Shares of its devices.
        devices: Vec<DeviceShare>,
    },
    /// A job was submitted.
    JobSubmitted {
        /// What is asked for.
        spec: Box<JobSpec>,
        /// The manager's name for it.
        external: Option<ExternalId>,
        /// Hash of the token that the job reports with.
        token_hash: Option<[u8; 32]>,
    },
    /// A job is over.
    JobEnded {
        /// Which.
        job: JobId,
        /// How.
        end: End,
    },
    /// A person holds a job, or lets it go on.
    JobHeld {
        /// Which.
        job: JobId,
        /// Hold or go on.
        held: bool,
    },
    /// A training program reported.
    Reported {
        /// Which job.
        job: JobId,
        /// Its program's incarnation.
        incarnation: Incarnation,
        /// Who of it.
        slot: (Role, u32),
        /// What.
        report: Report,
    },
    /// All slots of a job that the manager sees, and what they do.
    Observed {
        /// Which job.
        job: JobId,
        /// The incarnation the slots belong to.
        incarnation: Incarnation,
        /// All that exist; none = all released.
        slots: Vec<ObservedSlot>,
        /// What they do.
        phase: Phase,
    },
    /// What became of an issued change.
    Enacted {
        /// The decision.
        decision: DecisionId,
        /// The job.
        job: JobId,
        /// What became of it.
        result: Enactment,
    },
    /// A full resync of one manager begins: what it doesn't mention by its end is gone.
    SyncBegin {
        /// The manager's name.
        manager: String,
    },
    /// It is complete.
    SyncEnd {
        /// The manager's name.
        manager: String,
        /// Jobs it didn't mention have ended (else only their slots are gone).
        owns_queue: bool,
    },
    /// What was measured on a server since the last time: what it really carries, whatever was reserved.
    Utilisation {
        /// The server's name.
        server: String,
        /// All that is in use there, by resource name, in sub-units; GPUs are in `devices`.
        used: BTreeMap<String, i64>,
        /// How busy its devices are; those that aren't named are idle.
        devices: Vec<DeviceShare>,
        /// The part of it that slots use. Of jobs that aren't active nothing is taken.
        slots: Vec<SlotUse>,
    },
    /// What an engine learnt elsewhere: it follows this policy from now on.
    PolicySet {
        /// The engine's name, as in the [registry](crate::engines::REGISTRY).
        engine: String,
        /// None: it decides by its own heuristic again.
        policy: Option<Box<Policy>>,
    },
    /// What is left in a journal of a report that was refused: nobody fills a disk with what isn't taken.
    ReportIgnored {
        /// Whose.
        job: JobId,
    },
    /// What is left in a journal of any other event that was refused: time went on.
    Elapsed,
}

/// What a slot was measured to use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotUse {
    /// Whose.
    pub job: JobId,
    /// Its role and index.
    pub slot: (Role, u32),
    /// By resource name, in sub-units, without GPUs.
    pub used: BTreeMap<String, i64>,
    /// Its part of how busy the server's devices are.
    pub devices: Vec<DeviceShare>,
}

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum End {
    /// Converged, or through all its epochs.
    Completed,
    /// Given up.
    Failed,
    /// By a person.
    Cancelled,
    /// By the scheduler.
    Stopped,
}

/// A slot as a manager names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObservedSlot {
    /// What it does.
    pub role: Role,
    /// Its index.
    pub index: u32,
    /// The server's name.
    pub server: String,
    /// Its devices, where the manager says.
    pub devices: Vec<DeviceShare>,
}

/// What became of an issued change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Enactment {
    /// It is being carried out.
    Accepted,
    /// Part of it is; observations say which.
    Partial,
    /// Not at all.
    Refused {
        /// The manager's words.
        cause: Arc<str>,
        /// When to ask again; none: with back-off.
        retry_after: Option<Span>,
    },
}

/// Progress of a training program, since its last report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Grows by at least one with each report of a slot's incarnation.
    pub seq: u64,
    /// Steps done since the job began.
    pub step: u64,
    /// Whole epochs done.
    pub epoch: u32,
    /// Steps in one epoch at this shape.
    pub steps_per_epoch: u64,
    /// Mean training loss.
    pub loss: Option<f64>,
    /// Validation accuracy.
    pub accuracy: Option<f64>,
    /// Steps this covers.
    pub steps: u32,
    /// The time they took at a steady shape.
    pub duration: Span,
    /// w they ran with.
    pub workers: u32,
    /// p they ran with.
    pub servers: u32,
    /// Mean time between one worker's gradients, in milliseconds.
    pub slot_times: Vec<(u32, f64)>,
    /// Time from start to first step, once per incarnation.
    pub restart: Option<Span>,
    /// Data chunks that are trained to their end, by their place in the dataset: at least those since the last report.
    pub chunks: Vec<u32>,
}

/// An event that can't be accepted. Nothing changed.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum EventError {
    /// The job description is wrong.
    #[error("job: {0}")]
    Spec(#[from] JobSpecError),
    /// The settings are wrong.
    #[error("settings: {0}")]
    Settings(#[from] SettingsError),
    /// An active job has that name.
    #[error("name: {name:?} is the name of active job {job}; names must be unique among active jobs", job = job.0)]
    DuplicateName {
        /// The name.
        name: String,
        /// Who has it.
        job: JobId,
    },
    /// Not even its smallest shape could ever run, were it alone.
    #[error("{0}")]
    NeverFits(String),
    /// A type of resource beside as many others as there may be: fewer where a job brings it than where a server has
    /// it.
    #[error("resource {name:?}: there may be {most} types of resources beside it, and as many are in use")]
    ResourceTypes {
        /// Its name.
        name: String,
        /// How many there may be.
        most: usize,
    },
    /// The engine in charge can never run it.
    #[error("engine {engine:?} can't run it: {problem}")]
    Unsupported {
        /// Its name.
        engine: String,
        /// The key, the value and what is allowed.
        problem: String,
    },
    /// No such active job.
    #[error("there is no active {0}")]
    UnknownJob(JobId),
    /// No such server.
    #[error("there is no server {0:?}")]
    UnknownServer(String),
    /// A server description is wrong.
    #[error("server {server:?}: {problem}")]
    Server {
        /// Its name.
        server: String,
        /// The value and what is allowed.
        problem: String,
    },
    /// A sync bracket that doesn't match.
    #[error("manager {manager:?}: {problem}")]
    Sync {
        /// The manager's name.
        manager: String,
        /// What is wrong.
        problem: &'static str,
    },
    /// A report that is out of order, out of range, or of another incarnation. It is counted on the job.
    #[error("report of {job} ignored: {problem}")]
    Report {
        /// The job.
        job: JobId,
        /// What is wrong.
        problem: &'static str,
    },
    /// A manager refused what is no longer issued. It is counted on the job.
    #[error("the refusal of what {decision} gave {job} comes late: it has something else since {issued_in}")]
    LateRefusal {
        /// The job.
        job: JobId,
        /// What was refused.
        decision: DecisionId,
        /// Since when something else is issued.
        issued_in: DecisionId,
    },
    /// The policy may not decide; what the engine followed before stands.
    #[error("policy: {0}")]
    Policy(#[from] PolicyError),
    /// Time went back.
    #[error("time {given} ms is before {now} ms, and time never goes back")]
    Time {
        /// The event's.
        given: i64,
        /// The state's.
        now: i64,
    },
}

impl From<&Slot> for (Role, u32) {
    fn from(slot: &Slot) -> Self {
        (slot.role, slot.index)
    }
}
