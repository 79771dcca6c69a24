//! The `trainmaster` program.

use std::process::ExitCode;

use trainmaster_adapters::ADAPTERS;

#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    trainmaster_sidecar::run(ADAPTERS)
}
