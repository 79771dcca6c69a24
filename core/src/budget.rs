//! A bound on an engine's work, and the error of one that can't decide.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A bound on an engine's work, in steps rather than seconds, so that a replay stops where the original did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    left: u64,
    given: u64,
}

impl Budget {
    /// No bound.
    pub const UNLIMITED: Self = Self::steps(u64::MAX);

    /// So many steps; a step is about one candidate looked at (tens of nanoseconds).
    pub const fn steps(steps: u64) -> Self {
        Self { left: steps, given: steps }
    }

    /// Takes steps off.
    ///
    /// # Errors
    /// There are fewer left.
    #[inline]
    pub fn spend(&mut self, steps: u64) -> Result<(), EngineError> {
        match self.left.checked_sub(steps) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => Err(EngineError::Exhausted { given: self.given }),
        }
    }

    /// At most so many of the steps left, to be [spent](Self::spend) here once they are used.
    pub(crate) fn part(&self, steps: u64) -> Self {
        Self::steps(self.left.min(steps))
    }

    /// Steps left.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Steps taken so far.
    pub fn spent(&self) -> u64 {
        self.given - self.left
    }
}

/// An engine that couldn't decide. The last plan stands.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EngineError {
    /// Its budget is used up.
    #[error("the engine used up its budget of {given} steps")]
    Exhausted {
        /// What it was given.
        given: u64,
    },
}
