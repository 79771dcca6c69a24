//! Trainmaster's policy core. It decides which training jobs run, how many workers and parameter servers each gets,
//! where they run, and when that changes.
//!
//! The core is a state machine without I/O, clock, threads or randomness of its own. A [`Scheduler`] receives events
//! and returns decisions. The same events give byte-identical decisions on any machine. The host (a daemon, a C
//! program, a simulator) provides the events, the time and the threads.
//!
//! * [`scheduler`]: the main loop; [`state`]: the state; [`engines`]: the engines; [`guard`]: the check of their
//!   proposals.
//! * [`fit`]: models of running jobs; [`place`]: placement; [`paa`]: the distribution of parameter blocks over
//!   parameter servers.
//! * [`policy`]: learnt policies for engines, trained outside.
//! * [`solver`]: mixed-integer programs, for the engines that solve one.
//! * [`journal`]: recovery, audit and replay; [`explain`]: explanations of a job's state.

pub mod amount;
pub mod batch;
pub mod budget;
pub mod decision;
pub mod engine;
pub mod engines;
pub mod event;
pub mod explain;
pub mod fit;
mod forms;
pub mod guard;
pub mod ids;
pub mod job;
pub mod journal;
pub mod paa;
pub mod place;
pub mod policy;
pub mod reason;
pub mod replay;
pub mod resources;
pub mod scheduler;
pub mod server;
pub mod settings;
pub mod shape;
pub mod solver;
pub mod state;
mod tables;
#[cfg(feature = "testing")]
pub mod testing;
pub mod text;
pub mod time;
pub mod topology;

pub use self::{
    budget::Budget,
    decision::{Allocation, Decision, DeviceShare, Devices, Issue, Proposal, Slot, Source, Verdict},
    event::{Enactment, End, Event, EventError, ObservedSlot, Report, SlotUse},
    ids::{DecisionId, Incarnation, JobId, QueueId, ResourceId, Revision, ServerId, TenantId, Term, TicketId},
    job::{Job, JobFileError, JobSpec, Phase, TrainingMode},
    policy::Policy,
    reason::Reason,
    scheduler::{Scheduler, Ticket},
    server::{Server, ServerSpec},
    settings::{Mode, Settings, SettingsError},
    shape::{Role, Shape},
    state::{Keeps, Mandate, State},
    time::{Span, Time},
};
