//! The command `trainmaster-trainer`.

use std::{io::IsTerminal, process::ExitCode, time::Instant};

use anyhow::Result;
use clap::Parser;
use tracing_subscriber::EnvFilter;
use trainmaster_trainer::{
    cli::{Cli, Command},
    exit, local,
    process::Process,
    settings::Settings,
};

fn main() -> ExitCode {
    let begun = Instant::now();
    let cli = Cli::parse();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_ansi(std::io::stderr().is_terminal())
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        .init();
    let result = match &cli.command {
        Some(command) => whole_job(command).map_err(|error| (error, exit::ERROR)),
        None => match one_process(cli, begun) {
            Ok(process) => process.run().map_err(|error| (error, exit::ERROR)),
            Err(error) => Err((error, exit::USAGE)),
        },
    };
    ExitCode::from(result.unwrap_or_else(|(error, code)| {
        eprintln!("error: {error:#}");
        code
    }))
}

fn one_process(cli: Cli, begun: Instant) -> Result<Process> {
    let settings = Settings::new(&cli.training, cli.slot.checkpoint_dir.clone())?;
    Process::new(cli.slot, settings, begun)
}

fn whole_job(command: &Command) -> Result<u8> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match command {
            Command::Run(args) => local::run::run(args).await,
            Command::Profile(args) => local::profile::run(args).await,
            Command::Occupy(args) => local::occupy::run(args),
        }
    })
}
