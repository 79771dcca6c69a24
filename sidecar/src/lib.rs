//! Trainmaster's one binary as a library: the daemon, its command line and a demonstration.

pub mod cli;
pub mod daemon;
pub mod demo;
pub mod policy;
mod stop;
#[cfg(feature = "train")]
mod train;
