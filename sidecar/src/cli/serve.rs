//! `trainmaster serve`: the daemon, until it is told to stop.

use std::{io, process, str::FromStr};

use anyhow::{Error, anyhow};
use clap::Args;
use serde::{Serialize, Serializer};
use tracing_subscriber::EnvFilter;
use trainmaster_core::{Settings, settings::Parameter};

use super::{Failure, Output, Paper, Show, client::ServerArgs, engines::entry};
use crate::{
    daemon::{Config, Daemon, Flags, ServeError, settings_table, settings_text},
    stop::StopSignals,
};

/// The command's arguments.
#[derive(Args, Debug)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    flags: Flags,
    /// A parameter of the engine (`trainmaster engines NAME` lists them); may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<Assignment>,
    /// Print the scheduler's settings that would be in force, as a settings file, and end
    #[arg(long)]
    print_settings: bool,
}

/// `KEY=VALUE`.
#[derive(Clone, Debug)]
struct Assignment(String, Parameter);

impl FromStr for Assignment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (key, value) = text.split_once('=').filter(|(key, _)| !key.is_empty()).ok_or("write KEY=VALUE")?;
        let parameter = match (value.parse::<f64>(), value) {
            (_, "true") => Parameter::Flag(true),
            (_, "false") => Parameter::Flag(false),
            (Ok(number), _) if number.is_finite() => Parameter::Number(number),
            _ => Parameter::Text(value.into()),
        };
        Ok(Self(key.into(), parameter))
    }
}

impl ServeArgs {
    fn config(&self, server: &ServerArgs) -> anyhow::Result<Config> {
        let mut flags = self.flags.clone();
        // What clients show is what the daemon asks for.
        flags.admin_token_file = flags.admin_token_file.or_else(|| server.token_file().cloned());
        let mut config = flags.config()?;
        let settings = &mut config.settings;
        settings.parameters.extend(self.set.iter().map(|Assignment(key, value)| (key.clone(), value.clone())));
        entry(&settings.engine).map_err(Error::msg)?.build(&settings.parameters)?;
        entry(&settings.fallback).map_err(|problem| anyhow!("fallback: {problem}"))?;
        Ok(config)
    }
}

/// Runs the daemon until it gets SIGINT (Ctrl-C) or SIGTERM; a second one ends it without waiting for anything.
///
/// # Errors
/// The configuration makes no sense, or the daemon can't start.
pub(crate) fn run(args: &ServeArgs, server: &ServerArgs, output: Output) -> Result<(), Failure> {
    let config = args.config(server)?;
    if args.print_settings {
        return output.show(&Printed(config.settings));
    }
    let filter = EnvFilter::try_from_env("TRAINMASTER_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(Paper::stderr_has_colour())
        .init();
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
        let mut signals = StopSignals::new()?;
        let serving = |daemon: &Daemon| Serving {
            url: daemon.url().to_owned(),
            state_dir: config.state_dir.display().to_string(),
            engine: config.settings.engine.clone(),
        };
        let daemon = Daemon::start(config.clone()).await.map_err(Error::from)?;
        output.stream(&serving(&daemon))?;
        tokio::select! {
            () = signals.next() => {}
            () = daemon.failed() => {
                daemon.stop().await;
                return Err(Error::from(ServeError::Failed).into());
            }
        }
        tracing::info!("stopping; a second signal ends it at once");
        tokio::spawn(async move {
            signals.next().await;
            process::exit(1);
        });
        daemon.stop().await;
        Ok(())
    })
}

#[derive(Serialize)]
struct Serving {
    url: String,
    state_dir: String,
    engine: String,
}

impl Show for Serving {
    fn text(&self, _: &Paper) -> String {
        format!("serving at {}, state in {}, engine {}", self.url, self.state_dir, self.engine)
    }
}

/// Settings, as the file that would give them.
struct Printed(Settings);

impl Serialize for Printed {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        settings_table(&self.0).serialize(serializer)
    }
}

impl Show for Printed {
    fn text(&self, _: &Paper) -> String {
        settings_text(&self.0).trim_end().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        serve: ServeArgs,
        #[command(flatten)]
        server: ServerArgs,
    }

    fn config(args: &[&str]) -> Result<Config, String> {
        let line = Line::try_parse_from([&["serve"], args].concat()).map_err(|error| error.to_string())?;
        line.serve.config(&line.server).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn parameters_are_set_over_the_files() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("daemon.toml");
        let text =
            "[scheduler]\nengine = \"optimus\"\n[scheduler.parameters]\ninterval = \"60s\"\njoint_steps = true\n";
        std::fs::write(&file, text).unwrap();
        let file = file.to_str().unwrap();
        let set = ["--config", file, "--set", "interval=5s", "--set", "young_job_factor=0.95"];
        let parameters = config(&set).unwrap().settings.parameters;
        assert_eq!(parameters["interval"], Parameter::Text("5s".into()));
        assert_eq!(parameters["young_job_factor"], Parameter::Number(0.95));
        assert_eq!(parameters["joint_steps"], Parameter::Flag(true));
    }

    #[test]
    fn an_engine_doesnt_get_the_parameters_of_another() {
        let default = config(&[]).unwrap().settings;
        assert_eq!(default.engine, "optimus");
        assert!(!default.parameters.is_empty());
        assert_eq!(config(&["--engine", "optimus"]).unwrap().settings, default);
        assert_eq!(config(&["--engine", "drf"]).unwrap().settings.parameters, [].into());
        let set = config(&["--set", "shrink_to_fit=false"]).unwrap().settings;
        assert_eq!(set.parameters["shrink_to_fit"], Parameter::Flag(false));
        assert_eq!(set.parameters.len(), default.parameters.len());
        let other = config(&["--engine", "drf", "--set", "interval=5s"]).unwrap().settings;
        assert_eq!(other.parameters, [("interval".to_owned(), Parameter::Text("5s".into()))].into());
    }

    #[test]
    fn mistakes_are_named() {
        for (args, expected) in [
            (&["--set", "intervall=5s"][..], "intervall"),
            (&["--set", "interval=soon"], "interval"),
            (&["--set", "interval"], "KEY=VALUE"),
            (&["--set", "=1"], "KEY=VALUE"),
            (&["--engine", "optimum"], "there are optimus"),
            (&["--config", "nowhere.toml"], "nowhere.toml"),
            (&["--token-file", "nowhere"], "nowhere"),
        ] {
            let message = config(args).unwrap_err();
            assert!(message.contains(expected), "{args:?}: {message}");
        }
    }
}
