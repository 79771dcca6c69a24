//! `trainmaster fit`: the fits that engines predict with, on measurements of one's own.

mod columns;
mod loss;
mod speed;

use clap::Subcommand;

use super::{Answered, Failure, Output, client::without_daemon};

/// What can be fitted.
#[derive(Subcommand, Debug)]
pub(crate) enum FitCommand {
    /// Training speed by numbers of parameter servers and workers
    #[command(args(without_daemon()))]
    Speed(Answered<speed::SpeedArgs>),
    /// A loss curve, its end and where it converges
    #[command(args(without_daemon()))]
    Loss(Answered<loss::LossArgs>),
}

/// Runs the command.
///
/// # Errors
/// The file can't be read, has a value that isn't allowed, or too few rows.
pub(crate) fn run(command: &FitCommand, output: impl Fn(bool) -> Output) -> Result<(), Failure> {
    match command {
        FitCommand::Speed(Answered { args, json }) => speed::run(args, output(*json)),
        FitCommand::Loss(Answered { args, json }) => loss::run(args, output(*json)),
    }
}
