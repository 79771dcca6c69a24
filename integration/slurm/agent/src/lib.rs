//! Trainmaster inside slurmctld: the part of the plugin `slurmctld/trainmaster` that is not C.
//!
//! The plugin's thread goes round: it loads what Slurm shows, hands it over, carries out the [`SlurmCall`]s it is given and
//! reports what Slurm answered ([`Agent`]). All decisions are the core's, all translation is the adapter's; here are
//! the journal under Slurm's own state folder, the feed for training programs on a thread of its own, the control
//! socket, and what happens when something goes wrong: nothing leaves [`abi`] but error numbers.
//!
//! [`SlurmCall`]: trainmaster_adapters::slurm::order::SlurmCall

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
