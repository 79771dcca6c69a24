//! A limit on an engine's work, and the error of an engine that can't decide.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A limit on an engine's work. It counts steps instead of seconds, so that a replay stops at the same point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    left: u64,
    given: u64,
}

impl Budget {
    /// No limit.
    pub const UNLIMITED: Self = Self::steps(u64::MAX);

    /// A budget of this many steps. A step examines about one candidate (tens of nanoseconds).
    pub const fn steps(steps: u64) -> Self {
        Self { left: steps, given: steps }
    }

    /// Uses steps.
    ///
    /// # Errors
    /// Fewer steps are left.
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

    /// A part of the steps left, up to this many. Its use must be [spent](Self::spend) here afterwards.
    pub(crate) fn part(&self, steps: u64) -> Self {
        Self::steps(self.left.min(steps))
    }

    /// Steps left.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Steps used so far.
    pub fn spent(&self) -> u64 {
        self.given - self.left
    }
}

/// Why an engine couldn't decide. The last plan stays in force.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EngineError {
    /// The budget is used up.
    #[error("the engine used up its budget of {given} steps")]
    Exhausted {
        /// The budget in steps.
        given: u64,
    },
}
