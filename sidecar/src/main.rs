//! The `trainmaster` program.

use std::process::ExitCode;

use clap::Parser;
use trainmaster::{
    cli::{Cli, run},
    demo,
};

fn main() -> ExitCode {
    // `demo --json FILE` takes a file where every other command takes a flag, so it has a parser of its own.
    if std::env::args_os().nth(1).is_some_and(|first| first == "demo") {
        return demo::main();
    }
    run(Cli::parse())
}
