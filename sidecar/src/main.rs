//! The `trainmaster` program.

use std::process::ExitCode;

use clap::Parser;
use trainmaster_sidecar::cli::{Cli, run};

fn main() -> ExitCode {
    run(Cli::parse())
}
