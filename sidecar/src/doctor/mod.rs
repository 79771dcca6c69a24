//! `trainmaster doctor`: checks with advice for problems.

mod daemon;
mod machine;

use std::{env, path::PathBuf};

use clap::Args;
use serde::Serialize;
use trainmaster_daemon::{AdapterChoice, Config, Flags};
use trainmaster_manager::{Adapters, Check, Health};
use trainmaster_terminal::{
    Failure, Mood, Output, Paper, Show,
    client::ServerArgs,
    one_line,
    sheet::{Column, Entry, Sheet},
};

use super::serve::{VARIABLE, check_engines, with_variable};

/// The command's arguments: the relevant ones of `serve`.
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// The daemon's configuration file (TOML)
    #[arg(long, env = "TRAINMASTER_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// The daemon's state folder [default: that of the daemon that answers, else ~/.local/state/trainmaster]
    #[arg(long, env = "TRAINMASTER_STATE_DIR", value_name = "FOLDER")]
    state_dir: Option<PathBuf>,
    /// Check this adapter, with its configuration file; may be repeated [default: those of the daemon that answers]
    #[arg(long, env = "TRAINMASTER_ADAPTER", value_name = "NAME[=FILE]")]
    adapter: Vec<String>,
    /// The program of jobs without a command
    #[arg(long, env = "TRAINMASTER_TRAINER", value_name = "FILE")]
    trainer: Option<PathBuf>,
}

/// Runs the command.
///
/// # Errors
/// A problem was found, or standard output can't be written.
pub(crate) async fn run(
    args: &DoctorArgs,
    adapters: Adapters,
    server: &ServerArgs,
    output: Output,
) -> Result<(), Failure> {
    let (mut checks, theirs) = daemon::examine(server).await;
    // A daemon on another machine is checked only by its own information.
    if server.is_local() {
        let flags = Flags {
            config: args.config.clone(),
            state_dir: args.state_dir.clone(),
            adapter: args.adapter.clone(),
            trainer: args.trainer.clone(),
            ..Flags::default()
        };
        let variable = env::var(VARIABLE).unwrap_or_default();
        let checked = |(config, is_changed): (Config, bool)| {
            check_engines(&config.settings, args.config.as_deref().filter(|_| !is_changed)).map(|()| config)
        };
        match with_variable(&flags, &variable).and_then(checked) {
            Ok(mut config) => {
                config.available = adapters;
                // Without other arguments, the adapters and the folder of the running daemon are checked.
                if let (Some(theirs), None) = (&theirs, &args.config) {
                    if args.state_dir.is_none() {
                        config.state_dir.clone_from(&theirs.state_dir);
                    }
                    if args.adapter.is_empty() {
                        config.adapters = Some(theirs.adapters.iter().map(|text| AdapterChoice::parse(text)).collect());
                    }
                }
                let folder = theirs.as_ref().map(|theirs| &*theirs.state_dir);
                checks.extend(machine::examine(&config, folder, server));
            }
            Err(error) => {
                checks.push(Found::new("machine", "configuration", Health::Bad, one_line(&error.to_string())))
            }
        }
    }
    let findings = Findings { checks };
    output.show(&findings)?;
    match findings.checks.iter().filter(|found| found.verdict == Health::Bad).count() {
        0 => Ok(()),
        1 => Err(Failure::Unwell("1 problem".into())),
        count => Err(Failure::Unwell(format!("{count} problems"))),
    }
}

#[derive(Serialize)]
struct Findings {
    checks: Vec<Found>,
}

/// The result of a check.
#[derive(Serialize)]
struct Found {
    /// `daemon`, `machine` or an adapter's name.
    part: &'static str,
    check: &'static str,
    #[serde(serialize_with = "verdict")]
    verdict: Health,
    detail: String,
}

impl Found {
    fn new(part: &'static str, check: &'static str, verdict: Health, detail: impl Into<String>) -> Self {
        Self { part, check, verdict, detail: detail.into() }
    }

    fn of(part: &'static str, check: Check) -> Self {
        Self { part, check: check.name, verdict: check.verdict, detail: one_line(&check.detail) }
    }
}

fn word(verdict: Health) -> &'static str {
    match verdict {
        Health::Good => "good",
        Health::Doubtful => "doubtful",
        Health::Bad => "bad",
    }
}

fn verdict<S: serde::Serializer>(verdict: &Health, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(word(*verdict))
}

impl Show for Findings {
    fn text(&self, paper: &Paper) -> String {
        let mut sheet =
            Sheet::new([Column::spare("PART", 1), Column::key("CHECK"), Column::key(""), Column::prose("FOUND")]);
        for found in &self.checks {
            let mood = match found.verdict {
                Health::Good => Mood::Good,
                Health::Doubtful => Mood::Doubtful,
                Health::Bad => Mood::Bad,
            };
            sheet.row([
                found.part.into(),
                found.check.into(),
                Entry::new(word(found.verdict), Some(mood)),
                Entry::from(&found.detail),
            ]);
        }
        sheet.on(paper)
    }
}
