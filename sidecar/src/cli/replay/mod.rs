//! `trainmaster replay`: what a journal holds, whether it can be trusted, and what other engines would have done.

mod basis;
mod contents;
mod records;
mod verify;
mod what_if;

use std::path::PathBuf;

use clap::Args;

use self::{contents::Contents, records::Records};
use super::{Failure, Output};

/// The command's arguments.
#[derive(Args, Debug)]
pub(crate) struct ReplayArgs {
    /// A daemon's state folder, its journal.redb, or a file of records one after the other. The daemon may be running
    #[arg(value_name = "JOURNAL")]
    journal: PathBuf,
    /// Make every decision again and compare it with the recorded one, byte by byte
    #[arg(long, conflicts_with_all = ["what_if", "set", "draws"])]
    verify: bool,
    /// Simulate the recorded jobs, as their reports tell them, under the journal's own engine and these
    #[arg(long, value_name = "ENGINES", value_delimiter = ',')]
    what_if: Vec<String>,
    /// Set a parameter of one of these engines; may be repeated
    #[arg(long, value_name = "ENGINE.PARAMETER=VALUE", requires = "what_if")]
    set: Vec<String>,
    /// How many times to simulate, each time with other values for what the reports leave open
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=10_000), requires = "what_if")]
    draws: u64,
    /// Threads to simulate on, at most four times the processors; as many as processors unless set
    #[arg(long, value_name = "N", requires = "what_if")]
    threads: Option<usize>,
    /// Leave out how long decisions took, so that equal runs print the same bytes
    #[arg(long, requires = "what_if")]
    no_timing: bool,
}

/// Runs the command.
///
/// # Errors
/// The journal can't be read or has unreadable records, decisions come out differently, or a simulation can't go on.
pub(crate) fn run(args: &ReplayArgs, output: Output) -> Result<(), Failure> {
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
