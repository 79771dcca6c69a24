//! The `trainmaster` program.

use std::process::ExitCode;

use trainmaster_adapters::ADAPTERS;

fn main() -> ExitCode {
    trainmaster_sidecar::run(ADAPTERS)
}
