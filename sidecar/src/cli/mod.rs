//! The command line: a file per command.

mod act;
mod client;
mod doctor;
mod engines;
mod explain;
mod failure;
mod fit;
mod jobs;
mod mode;
mod output;
mod paa;
mod plan;
mod serve;
mod status;
mod submit;
mod watch;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use self::{
    act::Act,
    client::block_on,
    failure::Failure,
    output::{Mood, Output, Paper, Show},
};

const EXIT_CODES: &str = "\
Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 no daemon reached, 4 doctor found problems.";

/// Schedules distributed training jobs on the cluster manager that is already there.
#[derive(Parser, Debug)]
#[command(
    name = "trainmaster",
    version,
    after_help = EXIT_CODES,
    subcommand_required = true,
    arg_required_else_help = true,
    max_term_width = 100
)]
pub struct Cli {
    /// Print JSON for programs instead of tables for people
    #[arg(long, global = true)]
    json: bool,
    #[command(flatten)]
    server: client::ServerArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Watch nine real training jobs share a virtual cluster, and see how much each engine helps
    Demo,
    /// Run the daemon until Ctrl-C
    Serve(serve::ServeArgs),
    /// Submit job files
    Submit(submit::SubmitArgs),
    /// End jobs for good
    Cancel(act::ActArgs),
    /// Hold jobs: they give back what they have after a checkpoint
    Pause(act::ActArgs),
    /// Let held jobs go on
    Resume(act::ActArgs),
    /// List the jobs
    Jobs(jobs::JobsArgs),
    /// Follow the jobs as they change, until Ctrl-C
    Watch(watch::WatchArgs),
    /// Tell why a job has what it has
    Explain(explain::ExplainArgs),
    /// Show what an engine would change now
    Plan(plan::PlanArgs),
    /// Show or set who is in charge
    Mode(mode::ModeArgs),
    /// Show the daemon's state in a few lines
    Status,
    /// Look for problems: the daemon, this machine, the adapters
    Doctor(doctor::DoctorArgs),
    /// List the scheduling engines, or one engine's parameters
    Engines(engines::EnginesArgs),
    /// Fit speeds or losses that were measured
    #[command(subcommand)]
    Fit(fit::FitCommand),
    /// Assign a model's parameter blocks to parameter servers
    Paa(paa::PaaArgs),
}

/// Runs what the command line asks for; errors go to standard error.
pub fn run(cli: Cli) -> ExitCode {
    match dispatch(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !matches!(failure, Failure::Closed) {
                eprintln!("error: {failure}");
            }
            failure.exit_code()
        }
    }
}

fn dispatch(cli: Cli) -> Result<(), Failure> {
    let Cli { json, server, command } = cli;
    let output = Output::new(json);
    match &command {
        // `main` has taken it out already, unless flags stand before it.
        Command::Demo => Err(anyhow::anyhow!("`demo` comes first: trainmaster demo [FLAGS]").into()),
        Command::Serve(args) => serve::run(args, &server, output),
        Command::Submit(args) => block_on(submit::run(args, &server, output)),
        Command::Cancel(args) => block_on(act::run(Act::Cancel, args, &server, output)),
        Command::Pause(args) => block_on(act::run(Act::Pause, args, &server, output)),
        Command::Resume(args) => block_on(act::run(Act::Resume, args, &server, output)),
        Command::Jobs(args) => block_on(jobs::run(args, &server, output)),
        Command::Watch(args) => block_on(watch::run(args, &server, output)),
        Command::Explain(args) => block_on(explain::run(args, &server, output)),
        Command::Plan(args) => block_on(plan::run(args, &server, output)),
        Command::Mode(args) => block_on(mode::run(args, &server, output)),
        Command::Status => block_on(status::run(&server, output)),
        Command::Doctor(args) => block_on(doctor::run(args, &server, output)),
        Command::Engines(args) => engines::run(args, output),
        Command::Fit(command) => fit::run(command, output),
        Command::Paa(args) => paa::run(args, output),
    }
}
