//! `trainmaster fit`: the fits of the engines on the user's measurements.

mod columns;
mod loss;
mod speed;

use clap::Subcommand;
use trainmaster_terminal::{Answered, Failure, Output, client::without_daemon};

/// The models.
#[derive(Subcommand, Debug)]
pub enum FitCommand {
    /// Training speed by numbers of parameter servers and workers
    #[command(args(without_daemon()))]
    Speed(Answered<speed::SpeedArgs>),
    /// A loss curve with its end and its convergence
    #[command(args(without_daemon()))]
    Loss(Answered<loss::LossArgs>),
}

/// Runs the command.
///
/// # Errors
/// The file can't be read, has an invalid value, or too few rows.
pub fn run(command: &FitCommand, output: impl Fn(bool) -> Output) -> Result<(), Failure> {
    match command {
        FitCommand::Speed(Answered { args, json }) => speed::run(args, output(*json)),
        FitCommand::Loss(Answered { args, json }) => loss::run(args, output(*json)),
    }
}
