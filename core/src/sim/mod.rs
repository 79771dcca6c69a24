//! A virtual cluster around the same [`Scheduler`](crate::Scheduler): what would an engine have done with these jobs?
//!
//! Nothing of the scheduler is done a second time here. The simulator plays the parts around it: owners who submit
//! [`workload`]s, a manager who starts and stops what is issued, training programs that report. What is [`true`](truth)
//! of a job, its speed where it is placed and when it converges, engines learn through those events alone; profiling,
//! restarts, checkpoints and late enactment cost the time they cost.
//!
//! Time is virtual and randomness comes by name from a seed ([`Lots`]), so that a run is the same on any machine and two
//! engines meet the same luck.

mod carried;
mod chunks;
mod errors;
mod lots;
mod meter;
pub mod offline;
mod play;
mod program;
mod queue;
pub mod recorded;
pub mod truth;
mod uploads;
pub mod workload;

pub use self::{
    errors::Errors,
    lots::Lots,
    meter::{Fate, JobReport, Place, Report, Trace},
    play::{Host, Options, SimError, play},
    truth::{Curve, Goal, Loss, SlotLoad, Speed, StepTime, Stragglers, Truth},
    workload::{Outage, Profiling, Request, ServerChange, SimJob, Workload, WorkloadError},
};
