//! `trainmaster fit`: the fits that engines predict with, on measurements of one's own.

mod columns;
mod loss;
mod speed;

use clap::Subcommand;

use super::{Failure, Output};

/// What can be fitted.
#[derive(Subcommand, Debug)]
pub(crate) enum FitCommand {
    /// Training speed by numbers of parameter servers and workers
    Speed(speed::SpeedArgs),
    /// A loss curve, its end and where it converges
    Loss(loss::LossArgs),
}

/// Runs the command.
///
/// # Errors
/// The file can't be read, has a value that isn't allowed, or too few rows.
pub(crate) fn run(command: &FitCommand, output: Output) -> Result<(), Failure> {
    match command {
        FitCommand::Speed(args) => speed::run(args, output),
        FitCommand::Loss(args) => loss::run(args, output),
    }
}
