//! Trainmaster's policy core: how many workers and parameter servers every training job gets, where they run, when
//! that changes, and which jobs run at all.
//!
//! The core is a state machine without I/O, clock, threads or randomness of its own: events go into a [`Scheduler`],
//! decisions come out, and the same events give byte-same decisions on any machine. Hosts (a daemon, a C program, a
//! simulator) bring the events, the time and the threads.
//!
//! * [`scheduler`]: the loop, [`state`]: what is known, [`engines`]: who decides, [`guard`]: who checks that.
//! * [`fit`]: what is learnt about running jobs; [`place`]: where things go; [`paa`]: which parameter server gets what.
//! * [`policy`]: networks that engines may follow, learnt outside.
//! * [`solver`]: mixed-integer programs, for the engines that solve one.
//! * [`journal`]: recovery, audit and replay; [`explain`]: why a job has what it has.

pub mod amount;
pub mod budget;
pub mod decision;
pub mod engine;
pub mod engines;
pub mod event;
pub mod explain;
pub mod fit;
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
pub mod sim;
pub mod solver;
pub mod state;
mod tables;
#[cfg(feature = "testing")]
pub mod testing;
pub mod text;
pub mod time;

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
    state::{Mandate, State},
    time::{Span, Time},
};
