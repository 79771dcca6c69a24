//! Trainmaster's one binary as a library: the daemon, its command line and a demonstration.

pub mod cli;
pub mod daemon;
pub mod demo;
mod stop;
