//! Whole jobs on this machine, without a scheduler: a small feed of our own and the job's processes around it.

pub mod board;
pub mod job;
pub mod occupy;
pub mod profile;
pub mod run;
