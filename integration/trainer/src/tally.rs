//! Results of training on some examples.

use serde::{Deserialize, Serialize};

/// Counts and sums over some examples of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Sum of the losses, in fixed-point units.
    pub loss: i64,
    /// Number of examples whose largest score is the label's.
    pub correct: u64,
    /// Number of examples.
    pub examples: u64,
}

impl Tally {
    /// Adds another tally.
    pub(crate) fn add(&mut self, other: Self) {
        self.loss = self.loss.saturating_add(other.loss);
        self.correct += other.correct;
        self.examples += other.examples;
    }
}
