//! The commands of adapters: `trainmaster <adapter> <command> …`.

use clap::{Arg, ArgAction, ArgMatches, Command};
use serde::Serialize;
use trainmaster_core::text::shown;
use trainmaster_manager::{AdapterCommand, Adapters, CommandAnswer, DaemonAddress};
use trainmaster_terminal::{
    Failure,
    client::{ServerArgs, without_daemon},
    output::{Output, Paper, Show},
};

/// A call of such a command.
#[derive(Clone, Debug)]
pub(crate) struct AdapterCall {
    command: &'static AdapterCommand,
    arguments: Vec<String>,
    pub(crate) json: bool,
}

/// Runs the command.
///
/// # Errors
/// The adapter's.
pub(crate) fn run(call: &AdapterCall, server: &ServerArgs, output: Output) -> Result<(), Failure> {
    let daemon = DaemonAddress {
        address: server.address(),
        token_file: server.find_token_file(),
        ca: server.find_ca(),
        certificate: server.certificate(),
    };
    let answer = (call.command.run)(&call.arguments, &daemon)?;
    output.show(&Shown(answer))
}

struct Shown(CommandAnswer);

impl Serialize for Shown {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.json.serialize(serializer)
    }
}

impl Show for Shown {
    fn text(&self, _: &Paper) -> String {
        let lines = self.0.text.lines().map(|line| shown(line, usize::MAX));
        lines.collect::<Vec<_>>().join("\n")
    }
}

impl AdapterCall {
    /// The call of an adapter's command, if it is one.
    pub(crate) fn of(matches: &ArgMatches, adapters: Adapters) -> Option<Self> {
        let (adapter, matches) = matches.subcommand()?;
        let (_, commands) = adapters.commands.iter().find(|(name, _)| *name == adapter)?;
        let (name, matches) = matches.subcommand()?;
        let command = commands.iter().find(|command| command.name == name)?;
        let arguments = if command.arguments.is_empty() { None } else { matches.get_many::<String>("arguments") };
        let arguments = arguments.into_iter().flatten().cloned().collect();
        Some(Self { command, arguments, json: matches.get_flag("json") })
    }
}

/// The program with the adapters' commands.
pub(crate) fn with_commands(program: Command, adapters: Adapters) -> Command {
    let json =
        || Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print JSON for programs instead of text");
    let one = |command: &'static AdapterCommand| {
        let named = Command::new(command.name).about(command.about).arg(json());
        let named = if command.asks_daemon { named } else { named.args(without_daemon()) };
        match command.arguments {
            "" => named,
            names => named.arg(Arg::new("arguments").value_name(names).required(true)),
        }
    };
    adapters.commands.iter().fold(program, |program, (adapter, commands)| {
        let named = Command::new(*adapter)
            .about(format!("Commands of the adapter {adapter}"))
            .subcommand_required(true)
            .arg_required_else_help(true)
            .subcommands(commands.iter().map(one));
        let asks_daemon = commands.iter().any(|command| command.asks_daemon);
        program.subcommand(if asks_daemon { named } else { named.args(without_daemon()) })
    })
}
