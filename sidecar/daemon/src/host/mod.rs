//! The owner of the scheduler, and the handle for all others.
//!
//! One task on its own thread takes commands in batches, stamps them with the time, applies them, and passes the
//! journal's records to the store. The next batch gathers during a write. A command is answered once its records are on
//! disk. Engines and fits run on other threads.

mod answers;
mod command;
mod decide;
mod events;
mod handle;
mod hearing;
mod jobs;
mod journal;
mod metrics;
mod owner;
mod predictions;
mod publish;
mod recover;
mod run;
mod said;
mod streams;
mod view;

pub(crate) use self::{
    answers::{Submission, Submitted},
    command::Command,
    handle::Host,
    metrics::HostMetrics,
    owner::{HostOptions, JobLimits, Opened},
    run::start,
};
