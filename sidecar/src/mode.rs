//! `trainmaster mode`: the scheduling mode.

use clap::{Args, ValueEnum};
use serde::Serialize;
use trainmaster_proto::v1::{SchedulingMode, SetModeRequest, StatusRequest};
use trainmaster_terminal::{
    Failure, Output, Paper, Show,
    client::{Daemon, ServerArgs},
};

use super::act::unwritten;

/// The command's arguments.
#[derive(Args, Debug)]
pub(crate) struct ModeArgs {
    /// The new mode; without one, the current mode is shown
    #[arg(value_enum)]
    mode: Option<Mode>,
}

/// The scheduling modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// The engine decides, and plans are sent to managers
    Active,
    /// The engine decides, and nothing is sent to managers
    Shadow,
    /// Nothing is decided, and all jobs are handed back to their managers
    Paused,
}

impl Mode {
    fn words(self) -> &'static str {
        match self {
            Self::Active => "active: the engine decides and the manager is told",
            Self::Shadow => "shadow: the engine decides and nobody is told",
            Self::Paused => {
                "paused: nothing is decided, and every job is back with its manager: running jobs go on, and waiting \
                 ones start only if the manager has a queue of its own"
            }
        }
    }

    /// Name of the mode.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Shadow => "shadow",
            Self::Paused => "paused",
        }
    }
}

impl From<SchedulingMode> for Mode {
    fn from(mode: SchedulingMode) -> Self {
        match mode {
            SchedulingMode::Active => Self::Active,
            SchedulingMode::Shadow => Self::Shadow,
            SchedulingMode::Paused => Self::Paused,
        }
    }
}

impl From<Mode> for SchedulingMode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Active => Self::Active,
            Mode::Shadow => Self::Shadow,
            Mode::Paused => Self::Paused,
        }
    }
}

/// Runs the command.
///
/// # Errors
/// The daemon's.
pub(crate) async fn run(args: &ModeArgs, server: &ServerArgs, output: Output) -> Result<(), Failure> {
    let daemon = Daemon::connect(server).await?;
    let failure = |status| daemon.failure(&status);
    let answer = match args.mode {
        None => {
            let status = daemon.admin().status(StatusRequest {}).await.map_err(failure)?.into_inner();
            ModeAnswer { mode: status.mode().into(), previous: None, not_written: String::new() }
        }
        Some(mode) => {
            let request = SetModeRequest { mode: SchedulingMode::from(mode).into() };
            let reply = daemon.admin().set_mode(request).await.map_err(failure)?.into_inner();
            let previous = Some(reply.previous().into());
            ModeAnswer { mode, previous, not_written: reply.not_written }
        }
    };
    output.show(&answer)
}

#[derive(Serialize)]
struct ModeAnswer {
    mode: Mode,
    #[serde(skip_serializing_if = "Option::is_none")]
    previous: Option<Mode>,
    /// Why a restart of the daemon would lose the change.
    #[serde(skip_serializing_if = "String::is_empty")]
    not_written: String,
}

impl Show for ModeAnswer {
    fn text(&self, _: &Paper) -> String {
        let before = match self.previous {
            Some(previous) if previous != self.mode => format!(" (was {})", previous.name()),
            Some(_) => " (as it was)".into(),
            None => String::new(),
        };
        format!("{}{before}{}", self.mode.words(), unwritten(&self.not_written))
    }
}
