//! The `trainmaster` program.

use std::process::ExitCode;

use trainmaster_adapters::ADAPTERS;
use trainmaster_sidecar::cli;

fn main() -> ExitCode {
    cli::run(ADAPTERS)
}
