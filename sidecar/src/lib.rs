//! Trainmaster's one binary as a library: the daemon, its command line and a demonstration.

mod bounded;
pub mod cli;
pub mod daemon;
pub mod demo;
pub mod policy;
mod stop;
#[cfg(feature = "train")]
mod train;
