//! `trainmaster replay`: content of a journal, repeated decisions, and simulation of its jobs under other engines.

mod basis;
mod contents;
mod records;
mod verify;
mod what_if;

use std::path::PathBuf;

use clap::Args;
use trainmaster_terminal::{Failure, Output};

use self::{contents::Contents, records::Records};

/// The command's arguments.
#[derive(Args, Debug)]
pub struct ReplayArgs {
    /// A daemon's state folder, its journal.redb, or a file of concatenated records; the daemon may be running
    #[arg(value_name = "JOURNAL")]
    journal: PathBuf,
    /// Repeat each decision and compare it with the recorded one, byte by byte
    #[arg(long, conflicts_with_all = ["what_if", "set", "draws"])]
    verify: bool,
    /// Simulate the recorded jobs, as known from their reports, under the journal's own engine and these
    #[arg(long, value_name = "ENGINES", value_delimiter = ',')]
    what_if: Vec<String>,
    /// Set a parameter of one of these engines; may be repeated
    #[arg(long, value_name = "ENGINE.PARAMETER=VALUE", requires = "what_if")]
    set: Vec<String>,
    /// Number of simulations, each with other values for what the reports leave open
    #[arg(
        long,
        value_name = "N",
        default_value_t = 10,
        value_parser = clap::value_parser!(u64).range(1..=10_000),
        requires = "what_if",
    )]
    draws: u64,
    /// Number of threads, at most four times the processors [default: the number of processors]
    #[arg(long, value_name = "N", requires = "what_if")]
    threads: Option<usize>,
    /// Omit the durations of decisions, so that equal runs print the same bytes
    #[arg(long, requires = "what_if")]
    no_timing: bool,
}

/// Runs the command.
///
/// # Errors
/// The journal can't be read or has unreadable records, decisions differ, or a simulation fails.
pub fn run(args: &ReplayArgs, output: Output) -> Result<(), Failure> {
    let records = Records::read(&args.journal)?;
    if args.verify {
        return verify::run(&records, output);
    }
    if !args.what_if.is_empty() {
        return what_if::run(args, &records, output);
    }
    let contents = Contents::of(&records);
    output.show(&contents)?;
    records.problem().map_or(Ok(()), |problem| Err(Failure::refused(problem)))
}
