//! Fuzz targets: all parsers of input from users, jobs, managers and files.
//!
//! A [`Target`] accepts any bytes and must return without a panic, on a stack of [`STACK`] bytes, in reasonable memory
//! and time. [`Inputs`] generates bytes from seeds and from words with a meaning for the target. `corpus/` has inputs
//! that reached new code under libFuzzer, and the tests run all of them again.

pub mod inputs;
mod targets;

pub use self::{inputs::Inputs, targets::ALL};

/// Stack of a thread in a cluster manager.
pub const STACK: usize = 256 << 10;

/// A parser.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name on the command line, and of its folder in `corpus/`.
    pub name: &'static str,
    /// Parses any bytes.
    pub run: fn(&[u8]),
    /// Valid inputs.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Words with a meaning in inputs.
    pub words: &'static [&'static str],
}

impl Target {
    /// Finds a target by name.
    pub fn find(name: &str) -> Option<&'static Self> {
        ALL.iter().find(|target| target.name == name)
    }
}
