//! A simulated cluster around the real [`Scheduler`](trainmaster_core::Scheduler), to compare engines on the same jobs.
//!
//! The scheduler itself isn't simulated. The simulator provides its environment: owners that submit [`workload`]s, a
//! manager that starts and stops slots, and training programs that report. The [`truth`] about a job, such as its speed
//! in a placement and its convergence, reaches engines through these events alone. Profiling, restarts, checkpoints and
//! late enactment take their time.
//!
//! Time is virtual, and random numbers come from a seed by key ([`Draws`]). So a run is the same on every machine, and
//! two engines have the same random numbers.

mod carried;
mod chunks;
mod draws;
mod errors;
mod meter;
mod noise;
pub mod offline;
mod play;
mod program;
mod queue;
pub mod recorded;
pub mod truth;
mod uploads;
pub mod workload;

pub use self::{
    draws::Draws,
    errors::Errors,
    meter::{Fate, JobReport, Place, Report, Trace},
    play::{Host, Options, SimError, play},
    truth::{Curve, Goal, Loss, SlotLoad, Speed, StepTime, Stragglers, Truth},
    workload::{Outage, Profiling, Request, ServerChange, SimJob, Workload, WorkloadError},
};
