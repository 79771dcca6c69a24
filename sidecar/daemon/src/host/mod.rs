//! The owner of the scheduler, and the handle that everybody else has.
//!
//! One task on a thread of its own takes commands in batches, stamps them with the time, applies them, and hands the
//! journal's records to the store. While one batch is being written the next one gathers; a command is answered once
//! its records are on disk. Engines and fits run on other threads.

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
