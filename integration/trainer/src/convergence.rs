//! The end of training.

/// The convergence rule of a job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Convergence {
    /// An epoch is flat if it lowers the loss by less than this fraction of the first epoch's; 0: no epoch is.
    pub(crate) delta: f64,
    /// Number of consecutive flat epochs that are convergence.
    pub(crate) patience: u32,
    /// Maximum number of epochs.
    pub(crate) max_epochs: u32,
}

/// The reason of the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Done {
    /// `patience` consecutive flat epochs.
    Converged,
    /// The maximum number of epochs is reached.
    Exhausted,
}

impl Convergence {
    /// Checks the mean losses of all epochs so far.
    pub(crate) fn check(&self, losses: &[f64]) -> Option<Done> {
        let patience = self.patience as usize;
        if self.delta > 0.0 && patience > 0 && losses.len() > patience {
            let threshold = self.delta * losses[0];
            if losses[losses.len() - patience - 1..].windows(2).all(|pair| pair[0] - pair[1] < threshold) {
                return Some(Done::Converged);
            }
        }
        (losses.len() >= self.max_epochs as usize).then_some(Done::Exhausted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: Convergence = Convergence { delta: 0.01, patience: 2, max_epochs: 10 };

    #[test]
    fn flat_epochs_in_a_row_are_convergence() {
        assert_eq!(RULE.check(&[]), None);
        assert_eq!(RULE.check(&[2.0, 1.99]), None);
        assert_eq!(RULE.check(&[2.0, 1.99, 1.985]), Some(Done::Converged));
        assert_eq!(RULE.check(&[2.0, 1.99, 1.5, 1.49]), None);
        assert_eq!(RULE.check(&[2.0, 1.0, 1.1, 1.0]), None);
        assert_eq!(RULE.check(&[2.0, 1.0, 1.1, 1.09]), Some(Done::Converged));
    }

    #[test]
    fn epochs_run_out_and_delta_zero_never_converges() {
        assert_eq!(RULE.check(&[2.0, 1.0, 0.5, 0.4, 0.3, 0.2, 0.15, 0.1, 0.05, 0.02]), Some(Done::Exhausted));
        assert_eq!(Convergence { delta: 0.0, ..RULE }.check(&[1.0; 9]), None);
        assert_eq!(Convergence { delta: 0.0, ..RULE }.check(&[1.0; 10]), Some(Done::Exhausted));
    }
}
