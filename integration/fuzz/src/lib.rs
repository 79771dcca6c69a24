//! Fuzz targets: all parsers of input from users, jobs, managers and files.
//!
//! A [`Target`] accepts any bytes and must return without a panic, on a stack of [`STACK`] bytes, in reasonable memory
//! and time. [`Inputs`] generates bytes from seeds and from words with a meaning for the target. `corpus/` has inputs
//! that reached new code under libFuzzer, and the tests run all of them again.

pub mod inputs;
mod target;
mod targets;

pub use self::{inputs::Inputs, target::Target, targets::ALL};

/// Stack of a thread in a cluster manager.
pub const STACK: usize = 256 << 10;

/// Finds a target by name.
pub fn find(name: &str) -> Option<&'static Target> {
    ALL.iter().find(|target| target.name == name)
}
