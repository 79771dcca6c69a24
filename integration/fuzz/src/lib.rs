//! Parsers and what is fed to them: everything that reads what a user, a job, a manager or a file brings.
//!
//! A [`Target`] takes any bytes and must return: without a panic, on a stack of [`STACK`] bytes, with memory and time within
//! reason. [`Inputs`] makes bytes up from seeds and from words that mean something to the target; `corpus/` holds those that
//! libFuzzer found to reach something new, and the tests feed all of it again.

pub mod inputs;
mod targets;

pub use self::{inputs::Inputs, targets::ALL};

/// What a thread of a cluster manager may have left of its stack.
pub const STACK: usize = 256 << 10;

/// Something that reads.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// As it is called on the command line, and its folder in `corpus/`.
    pub name: &'static str,
    /// Reads any bytes.
    pub run: fn(&[u8]),
    /// Inputs that make sense.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// What may make sense within one.
    pub words: &'static [&'static str],
}

impl Target {
    /// The one of a name.
    pub fn find(name: &str) -> Option<&'static Self> {
        ALL.iter().find(|target| target.name == name)
    }
}
