//! The command line of `trainmaster`, with a file per command. Long commands have crates of their own: the daemon, the
//! demonstration and the analyses.

mod act;
mod adapter;
mod certs;
mod doctor;
mod engines;
mod explain;
mod jobs;
mod logs;
mod mode;
mod nodes;
mod paa;
mod plan;
mod run;
mod serve;
mod status;
mod submit;
mod token;
mod top;
mod traces;
mod wait;
mod watch;

use std::{path::PathBuf, process::ExitCode, sync::LazyLock};

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use clap_complete::Shell;
#[cfg(feature = "train")]
use trainmaster_analysis::train_policy;
use trainmaster_analysis::{fit, replay, simulate};
use trainmaster_manager::Adapters;
use trainmaster_terminal::{
    Answered, Failure, Output,
    client::{self, block_on, without_address, without_daemon},
};

use self::act::Act;

const EXIT_CODES: &str = "\
Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 no daemon reached, 4 doctor found problems.";

/// The version with its commit, which `scripts/dist` tells, and what it was built for.
fn build() -> &'static str {
    static BUILD: LazyLock<String> = LazyLock::new(|| {
        let commit = option_env!("TRAINMASTER_COMMIT").map_or_else(String::new, |commit| format!("commit {commit}, "));
        let libc = if cfg!(target_env = "musl") { "static" } else { "dynamic" };
        let kind = if cfg!(debug_assertions) { ", debug" } else { "" };
        let features =
            [("highs", cfg!(feature = "highs")), ("otel", cfg!(feature = "otel")), ("train", cfg!(feature = "train"))];
        let features: String = features.iter().filter(|(_, has)| *has).map(|(name, _)| format!(", {name}")).collect();
        format!("{} ({commit}{} {libc}{kind}{features})", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH)
    });
    &BUILD
}

/// Schedules distributed training jobs on an existing cluster manager.
#[derive(Parser, Debug)]
#[command(
    name = "trainmaster",
    version = build(),
    after_help = EXIT_CODES,
    subcommand_required = true,
    arg_required_else_help = true,
    max_term_width = 100
)]
struct Cli {
    /// Print JSON instead of tables; may also follow the command
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: client::ServerArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Run the daemon until Ctrl-C
    #[command(args(without_address()))]
    Serve(Answered<serve::ServeArgs>),
    /// Train jobs for real on a virtual cluster: watch them grow and shrink, or compare engines
    #[command(args(without_daemon()))]
    Demo(trainmaster_demo::Args),
    /// Run a command as a job, show what it prints, and end with it
    Run(run::RunArgs),
    /// Submit job files
    Submit(Answered<submit::SubmitArgs>),
    /// End jobs for good
    Cancel(Answered<act::ActArgs>),
    /// Hold jobs: they save a checkpoint and release their slots
    Pause(Answered<act::ActArgs>),
    /// Let held jobs continue
    Resume(Answered<act::ActArgs>),
    /// List the jobs
    Jobs(Answered<jobs::JobsArgs>),
    /// List the servers: what is free, and which jobs are there
    Nodes(Answered<nodes::NodesArgs>),
    /// Wait until jobs have ended
    Wait(Answered<wait::WaitArgs>),
    /// Show what a job's programs print
    Logs(logs::LogsArgs),
    /// Follow the jobs as they change, or some with their progress, until Ctrl-C
    Watch(Answered<watch::WatchArgs>),
    /// Show the cluster, its tenants and its jobs at a glance, until Ctrl-C
    Top(Answered<top::TopArgs>),
    /// Explain a job's state and allocation
    Explain(Answered<explain::ExplainArgs>),
    /// Show what an engine would change now
    Plan(Answered<plan::PlanArgs>),
    /// Show or set the scheduling mode
    Mode(Answered<mode::ModeArgs>),
    /// Show the daemon's state in a few lines
    Status(Answered<status::StatusArgs>),
    /// Make, list, rotate and revoke the tokens of callers
    #[command(subcommand)]
    Token(token::TokenCommand),
    /// Run a small certificate authority: certificates for the daemon, its managers and users
    #[command(subcommand, args(without_daemon()))]
    Certs(certs::CertsCommand),
    /// Check the daemon, this machine and the adapters for problems
    Doctor(Answered<doctor::DoctorArgs>),
    /// List the scheduling engines, or one engine's parameters
    #[command(args(without_daemon()))]
    Engines(Answered<engines::EnginesArgs>),
    /// Fit the engines' models to measured speeds or losses
    #[command(subcommand, args(without_daemon()))]
    Fit(fit::FitCommand),
    /// Assign a model's parameter blocks to parameter servers
    #[command(args(without_daemon()))]
    Paa(Answered<paa::PaaArgs>),
    /// Simulate a workload on a virtual cluster under several engines
    #[command(args(without_daemon()))]
    Simulate(Answered<simulate::SimulateArgs>),
    /// Train a policy on a virtual cluster, for an engine that uses one
    #[cfg(feature = "train")]
    #[command(args(without_daemon()))]
    TrainPolicy(Answered<train_policy::TrainPolicyArgs>),
    /// Print a script that completes commands and options in your shell
    #[command(args(without_daemon()))]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write manual pages of all commands
    #[command(args(without_daemon()))]
    Man {
        /// The folder, which must exist: trainmaster.1, trainmaster-submit.1 …
        folder: PathBuf,
    },
    /// Inspect a daemon's journal: show its content, repeat its decisions, or simulate its jobs under other engines
    #[command(args(without_daemon()))]
    Replay(Answered<replay::ReplayArgs>),
}

/// Runs the command line of a program with these adapters. Errors go to standard error.
pub fn run(adapters: Adapters) -> ExitCode {
    let mut program = adapter::with_commands(Cli::command(), adapters);
    let matches = program.get_matches_mut();
    let done = match adapter::AdapterCall::of(&matches, adapters) {
        Some(call) => adapter::run(
            &call,
            &client::ServerArgs::of_matches(&matches),
            Output::new(matches.get_flag("json") || call.json),
        )
        .map(|()| ExitCode::SUCCESS),
        None => Cli::from_arg_matches(&matches)
            .map_or_else(|error| error.format(&mut program).exit(), |cli| dispatch(cli, adapters)),
    };
    done.unwrap_or_else(|failure| {
        if !matches!(failure, Failure::Closed) {
            eprintln!("error: {}", failure.line());
        }
        failure.exit_code()
    })
}

fn dispatch(cli: Cli, adapters: Adapters) -> Result<ExitCode, Failure> {
    let Cli { json: early, server, command } = cli;
    let output = |late: bool| Output::new(early || late);
    let done = match &command {
        Command::Serve(Answered { args, json }) => serve::run(args, adapters, &server, output(*json)),
        Command::Demo(_) if early => Err(Failure::Usage("the demo writes JSON to a file: demo --json FILE".into())),
        Command::Demo(args) => return Ok(trainmaster_demo::run(args.clone(), adapters)?),
        Command::Run(args) => block_on(run::run(args, &server, output(false))),
        Command::Submit(Answered { args, json }) => block_on(submit::run(args, &server, output(*json))),
        Command::Cancel(Answered { args, json }) => block_on(act::run(Act::Cancel, args, &server, output(*json))),
        Command::Pause(Answered { args, json }) => block_on(act::run(Act::Pause, args, &server, output(*json))),
        Command::Resume(Answered { args, json }) => block_on(act::run(Act::Resume, args, &server, output(*json))),
        Command::Jobs(Answered { args, json }) => block_on(jobs::run(args, &server, output(*json))),
        Command::Nodes(Answered { args, json }) => block_on(nodes::run(args, &server, output(*json))),
        Command::Wait(Answered { args, json }) => block_on(wait::run(args, &server, output(*json))),
        Command::Logs(args) => block_on(logs::run(args, &server, output(false))),
        Command::Watch(Answered { args, json }) => block_on(watch::run(args, &server, output(*json))),
        Command::Top(Answered { args, json }) => block_on(top::run(args, &server, output(*json))),
        Command::Explain(Answered { args, json }) => block_on(explain::run(args, &server, output(*json))),
        Command::Plan(Answered { args, json }) => block_on(plan::run(args, &server, output(*json))),
        Command::Mode(Answered { args, json }) => block_on(mode::run(args, &server, output(*json))),
        Command::Status(Answered { args: status::StatusArgs {}, json }) => {
            block_on(status::run(&server, output(*json)))
        }
        Command::Token(command) => block_on(token::run(command, &server, output)),
        Command::Certs(command) => certs::run(command, output),
        Command::Doctor(Answered { args, json }) => block_on(doctor::run(args, adapters, &server, output(*json))),
        Command::Engines(Answered { args, json }) => engines::run(args, output(*json)),
        Command::Fit(command) => fit::run(command, output),
        Command::Completions { shell } => {
            let mut program = adapter::with_commands(Cli::command(), adapters);
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut program, "trainmaster", &mut script);
            output(false).line(String::from_utf8_lossy(&script).trim_end())
        }
        Command::Man { folder } => {
            let program = adapter::with_commands(Cli::command(), adapters).name("trainmaster");
            let unwritten = |error| Failure::refused(format!("{}: {error}", folder.display()));
            clap_mangen::generate_to(program, folder).map_err(unwritten)
        }
        Command::Paa(Answered { args, json }) => paa::run(args, output(*json)),
        Command::Simulate(Answered { args, json }) => simulate::run(args, output(*json)),
        #[cfg(feature = "train")]
        Command::TrainPolicy(Answered { args, json }) => train_policy::run(args, output(*json)),
        Command::Replay(Answered { args, json }) => replay::run(args, output(*json)),
    };
    done.map(|()| ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs};

    use clap::{Command, CommandFactory as _};

    use super::Cli;

    const PAGE: &str = include_str!("../../docs/cli.md");

    /// A page's words that begin like this, up to a character that isn't part of a word.
    fn words<'a>(page: &'a str, start: &str) -> BTreeSet<&'a str> {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let ends = |text: &str| text.find(|c| !is_part(c)).unwrap_or(text.len());
        let starts = page.match_indices(start).map(|(at, _)| &page[at..]);
        starts.map(|text| &text[..ends(text)]).filter(|word| word.len() > start.len()).collect()
    }

    fn visit(command: &Command, see: &mut impl FnMut(&Command)) {
        see(command);
        command.get_subcommands().for_each(|inner| visit(inner, see));
    }

    #[test]
    fn the_page_of_the_command_line_is_right() {
        let mut program = Cli::command();
        program.build();
        let (table, rest) = PAGE.split_once("\n\n* ").unwrap();
        let commands = table.lines().filter_map(|line| line.strip_prefix("| `"));
        let commands: BTreeSet<&str> = commands.map(|line| line.split([' ', '`']).next().unwrap()).collect();
        for command in program.get_subcommands().filter(|command| command.get_name() != "help") {
            assert!(commands.contains(command.get_name()), "docs/cli.md lacks the command {}", command.get_name());
        }
        let adapters = ["slurm", "yarn"];
        for name in commands {
            // A build without the feature `train` has one command less.
            let is_known = program.find_subcommand(name).is_some() || adapters.contains(&name);
            assert!(is_known || name == "train-policy", "docs/cli.md has {name}, which is no command");
        }
        let (mut options, mut variables) =
            (BTreeSet::new(), BTreeSet::from(["TRAINMASTER_LOG", "TRAINMASTER_SET"].map(str::to_owned)));
        visit(&program, &mut |command| {
            for arg in command.get_arguments() {
                options.extend(arg.get_long().map(|long| format!("--{long}")));
                variables.extend(arg.get_env().map(|name| name.to_string_lossy().into_owned()));
            }
        });
        // Those of train-policy, of the adapters' commands and of cargo.
        let others = ["--max-epochs", "--features", "--release"];
        for word in words(PAGE, "--")
            .into_iter()
            .filter(|word| word.as_bytes()[2].is_ascii_alphabetic() && !others.contains(word))
        {
            assert!(options.contains(word), "docs/cli.md has {word}, which no command has");
        }
        let pages: String = fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs"))
            .unwrap()
            .filter_map(|page| fs::read_to_string(page.unwrap().path()).ok())
            .collect();
        let described = words(&pages, "--");
        let own = |option: &&String| !described.contains(option.as_str()) && *option != "--help";
        let undescribed: Vec<_> = options.iter().filter(own).collect();
        assert!(undescribed.is_empty(), "no page in docs has {undescribed:?}");
        let named: BTreeSet<_> = words(PAGE, "TRAINMASTER_").into_iter().map(str::to_owned).collect();
        assert_eq!(named, variables, "the variables in docs/cli.md, and those of the commands");
        let (_, global) = rest.split_once("## Options of every command").unwrap();
        let (global, _) = global.split_once("\n\n* ").unwrap();
        for arg in program.get_arguments().filter(|arg| arg.is_global_set() || arg.get_id() == "json") {
            let long = format!("`--{}", arg.get_long().unwrap());
            let variable = arg.get_env().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            let is_row = |line: &str| line.contains(&long) && line.contains(&variable);
            assert!(global.lines().any(is_row), "docs/cli.md lacks {long} {variable}");
        }
    }
}
