//! The commands of adapters: `trainmaster <adapter> <command> …`.

use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches, Subcommand, error::ErrorKind};
use serde::Serialize;
use trainmaster_adapters::{AdapterCommand, Answer, Daemon, commands};
use trainmaster_core::text::shown;

use super::{
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
    let daemon = Daemon {
        address: server.address(),
        token_file: server.find_token_file(),
        ca: server.find_ca(),
        certificate: server.certificate(),
    };
    let answer = (call.command.run)(&call.arguments, &daemon)?;
    output.show(&Shown(answer))
}

struct Shown(Answer);

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

fn commands_of(adapter: &str) -> Option<&'static [AdapterCommand]> {
    commands().iter().find(|(name, _)| *name == adapter).map(|(_, commands)| *commands)
}

impl FromArgMatches for AdapterCall {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let missing = || clap::Error::new(ErrorKind::MissingSubcommand);
        let (adapter, matches) = matches.subcommand().ok_or_else(missing)?;
        let (name, matches) = matches.subcommand().ok_or_else(missing)?;
        let commands = commands_of(adapter).ok_or_else(missing)?;
        let command = commands.iter().find(|command| command.name == name).ok_or_else(missing)?;
        let arguments = if command.arguments.is_empty() { None } else { matches.get_many::<String>("arguments") };
        Ok(Self {
            command,
            arguments: arguments.into_iter().flatten().cloned().collect(),
            json: matches.get_flag("json"),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Subcommand for AdapterCall {
    fn augment_subcommands(program: Command) -> Command {
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
        commands().iter().fold(program, |program, (adapter, commands)| {
            let named = Command::new(*adapter)
                .about(format!("Commands of the adapter {adapter}"))
                .subcommand_required(true)
                .arg_required_else_help(true)
                .subcommands(commands.iter().map(one));
            let asks_daemon = commands.iter().any(|command| command.asks_daemon);
            program.subcommand(if asks_daemon { named } else { named.args(without_daemon()) })
        })
    }

    fn augment_subcommands_for_update(program: Command) -> Command {
        Self::augment_subcommands(program)
    }

    fn has_subcommand(name: &str) -> bool {
        commands_of(name).is_some()
    }
}
