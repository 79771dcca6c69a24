//! Events, and the errors of events that can't be accepted.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{
    batch::GradientNoise,
    decision::{DeviceShare, Slot},
    ids::{DecisionId, Incarnation, JobId, Term},
    job::{ExternalId, JobSpec, JobSpecError, Phase},
    policy::{Policy, PolicyError},
    server::ServerSpec,
    settings::{Mode, Settings, SettingsError},
    shape::Role,
    time::Span,
};

/// Something that happened. Events are the only input of the core.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// New settings: engine, parameters, stability, limits.
    Configured(Box<Settings>),
    /// New mode: active, shadow or paused.
    ModeSet(Mode),
    /// A new host took over. Its decisions have this term, and plans of older terms are void.
    TermBegan(Term),
    /// A server arrived or changed.
    ServerSet {
        /// The manager's name.
        manager: String,
        /// The complete description.
        server: ServerSpec,
    },
    /// Servers left, and everything on them is gone. An event contains all servers that leave at the same time, because
    /// its cost is one pass over all jobs.
    ServersLeft {
        /// Names of the servers. All must be known.
        names: Vec<String>,
    },
    /// The total foreign use of a server.
    ForeignUse {
        /// The server's name.
        server: String,
        /// Amounts by resource name, in sub-units.
        amounts: BTreeMap<String, i64>,
        /// Shares of the server's devices.
        devices: Vec<DeviceShare>,
    },
    /// A job was submitted.
    JobSubmitted {
        /// The specification.
        spec: Box<JobSpec>,
        /// The manager's name for the job.
        external: Option<ExternalId>,
        /// Hash of the token that the job's reports carry.
        token_hash: Option<[u8; 32]>,
    },
    /// A job ended.
    JobEnded {
        /// The job.
        job: JobId,
        /// The kind of end.
        end: End,
    },
    /// A user holds or resumes a job.
    JobHeld {
        /// The job.
        job: JobId,
        /// Whether it is held or resumed.
        held: bool,
    },
    /// A training program reported.
    Reported {
        /// The job.
        job: JobId,
        /// The incarnation of the program.
        incarnation: Incarnation,
        /// The reporting slot.
        slot: (Role, u32),
        /// The report.
        report: Report,
    },
    /// All slots of a job that the manager observes, with their phase.
    Observed {
        /// The job.
        job: JobId,
        /// The incarnation of the slots.
        incarnation: Incarnation,
        /// All existing slots. Empty: all are released.
        slots: Vec<ObservedSlot>,
        /// The phase.
        phase: Phase,
    },
    /// The result of an issued change.
    Enacted {
        /// The decision.
        decision: DecisionId,
        /// The job.
        job: JobId,
        /// The result.
        result: Enactment,
    },
    /// A full resync of a manager begins. Servers and jobs that it omits until its end count as gone.
    SyncBegin {
        /// The manager's name.
        manager: String,
    },
    /// The resync is complete.
    SyncEnd {
        /// The manager's name.
        manager: String,
        /// If true, jobs that it didn't mention have ended. Otherwise only their slots are gone.
        owns_queue: bool,
    },
    /// Measured load of a server since the last measurement, independent of reservations.
    Utilisation {
        /// The server's name.
        server: String,
        /// Total use by resource name, in sub-units. GPUs are in `devices`.
        used: BTreeMap<String, i64>,
        /// Load of the devices. Devices without an entry are idle.
        devices: Vec<DeviceShare>,
        /// The parts that slots use. Entries of jobs that aren't active are ignored.
        slots: Vec<SlotUse>,
    },
    /// A learnt policy for an engine, which uses it from now on.
    PolicySet {
        /// The engine's name, as in the [registry](crate::engines::REGISTRY).
        engine: String,
        /// The policy. `None`: the engine uses its own heuristic again.
        policy: Option<Box<Policy>>,
    },
    /// The journal's record of a refused report. The report itself isn't kept, so that refused reports can't fill the
    /// disk.
    ReportIgnored {
        /// The job of the report.
        job: JobId,
    },
    /// The journal's record of any other refused event: only the time has advanced.
    Elapsed,
    /// The batch and the gradients of the report that follows, of a job whose batch the scheduler may choose.
    BatchReported {
        /// The job.
        job: JobId,
        /// The incarnation of the program.
        incarnation: Incarnation,
        /// The reporting slot.
        slot: (Role, u32),
        /// The report's sequence number.
        seq: u64,
        /// Examples per step of the whole job in its steps.
        batch: Option<u64>,
        /// Statistics of its gradients.
        noise: Option<GradientNoise>,
    },
}

/// Measured use by a slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotUse {
    /// The job.
    pub job: JobId,
    /// Its role and index.
    pub slot: (Role, u32),
    /// Amounts by resource name, in sub-units, without GPUs.
    pub used: BTreeMap<String, i64>,
    /// Its part of the load of the server's devices.
    pub devices: Vec<DeviceShare>,
}

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum End {
    /// The job converged, or completed all its epochs.
    Completed,
    /// The job failed.
    Failed,
    /// A user cancelled the job.
    Cancelled,
    /// The scheduler stopped the job.
    Stopped,
}

/// A slot as reported by a manager.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObservedSlot {
    /// Worker or parameter server.
    pub role: Role,
    /// The index.
    pub index: u32,
    /// The server's name.
    pub server: String,
    /// The devices, if the manager reports them.
    pub devices: Vec<DeviceShare>,
}

/// The result of an issued change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Enactment {
    /// The manager carries it out.
    Accepted,
    /// The manager carries out a part. Observations show which.
    Partial,
    /// The manager refused it.
    Refused {
        /// The manager's explanation.
        cause: Arc<str>,
        /// Time until the next attempt. `None`: the back-off applies.
        retry_after: Option<Span>,
    },
}

/// Progress of a training program, since its last report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Sequence number. It increases with each report of a slot within an incarnation.
    pub seq: u64,
    /// Steps done since the job started.
    pub step: u64,
    /// Completed epochs.
    pub epoch: u32,
    /// Steps per epoch at this shape.
    pub steps_per_epoch: u64,
    /// Mean training loss.
    pub loss: Option<f64>,
    /// Validation accuracy.
    pub accuracy: Option<f64>,
    /// Number of steps that this report covers.
    pub steps: u32,
    /// Time of these steps, at a constant shape.
    pub duration: Span,
    /// Number of workers (w) during these steps.
    pub workers: u32,
    /// Number of parameter servers (p) during these steps.
    pub servers: u32,
    /// By worker: mean time between its gradients, in milliseconds.
    pub slot_times: Vec<(u32, f64)>,
    /// Time from the start to the first step, reported once per incarnation.
    pub restart: Option<Span>,
    /// Completed data chunks, by their index in the dataset: at least those since the last report.
    pub chunks: Vec<u32>,
}

/// Why an event can't be accepted. Only the time and counts of ignored inputs have changed.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum EventError {
    /// The job description is wrong.
    #[error("job: {0}")]
    Spec(#[from] JobSpecError),
    /// The settings are wrong.
    #[error("settings: {0}")]
    Settings(#[from] SettingsError),
    /// An active job has this name.
    #[error("name: {name:?} is the name of active job {job}; names must be unique among active jobs", job = job.0)]
    DuplicateName {
        /// The name.
        name: String,
        /// The job with this name.
        job: JobId,
    },
    /// Even the smallest shape could never run, even if it were alone.
    #[error("{0}")]
    NeverFits(String),
    /// Too many types of resources. The maximum is lower for types in job files than for those of servers.
    #[error("resource {name:?}: there may be {most} types of resources beside it, and as many are in use")]
    ResourceTypes {
        /// The resource's name.
        name: String,
        /// The maximum number of types.
        most: usize,
    },
    /// The current engine can't run such a job.
    #[error("engine {engine:?} can't run it: {problem}")]
    Unsupported {
        /// The engine's name.
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
        /// The server's name.
        server: String,
        /// The value and what is allowed.
        problem: String,
    },
    /// A `SyncEnd` without a `SyncBegin`.
    #[error("manager {manager:?}: {problem}")]
    Sync {
        /// The manager's name.
        manager: String,
        /// The problem.
        problem: &'static str,
    },
    /// The report is out of order, out of range, or of another incarnation. The job counts it.
    #[error("report of {job} ignored: {problem}")]
    Report {
        /// The job.
        job: JobId,
        /// The problem.
        problem: &'static str,
    },
    /// The manager refused an issue that is no longer current. The job counts it.
    #[error("the refusal of what {decision} gave {job} comes late: it has something else since {issued_in}")]
    LateRefusal {
        /// The job.
        job: JobId,
        /// The refused decision.
        decision: DecisionId,
        /// The decision that issued something else since.
        issued_in: DecisionId,
    },
    /// The policy isn't allowed. The engine's current policy stays in force.
    #[error("policy: {0}")]
    Policy(#[from] PolicyError),
    /// The time is before the last event.
    #[error("time {given} ms is before {now} ms, and time never goes back")]
    Time {
        /// Time of the event.
        given: i64,
        /// Time of the state.
        now: i64,
    },
}

impl From<&Slot> for (Role, u32) {
    fn from(slot: &Slot) -> Self {
        (slot.role, slot.index)
    }
}
