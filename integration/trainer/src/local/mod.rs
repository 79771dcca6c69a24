//! Whole jobs on this machine without a scheduler: a small feed, and the job's processes.

pub mod board;
mod job;
pub mod occupy;
pub mod profile;
pub mod run;
