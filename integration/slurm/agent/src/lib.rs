//! Trainmaster inside slurmctld: the Rust part of the plugin `slurmctld/trainmaster`.
//!
//! In each round, the plugin's thread loads Slurm's data, passes it to the [`Agent`], carries out the returned
//! [`SlurmCall`]s and reports Slurm's answers. The core makes all decisions, and the adapter does all translation. This
//! crate has the journal under Slurm's own state folder, the feed for training programs on its own thread, the control
//! socket, and the handling of errors: only error numbers leave [`abi`].
//!
//! [`SlurmCall`]: trainmaster_adapters::slurm::call::SlurmCall

#[allow(unsafe_code)] // a C ABI
pub mod abi;
mod agent;
mod config;
mod control;
#[cfg(feature = "fault-injection")]
mod fault;
mod feed;
mod journal;
mod log;

pub use self::{
    agent::{Agent, Folders},
    config::Config,
};
