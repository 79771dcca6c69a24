//! `trainmaster serve`: runs the daemon until a signal.

use std::{
    io, panic,
    path::{self, Path, PathBuf},
    process,
    str::FromStr,
};

use anyhow::{Error, anyhow};
use clap::Args;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Serialize, Serializer};
use tokio::{runtime::Handle, task::JoinHandle};
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;
use trainmaster_core::{Settings, settings::Parameter};
use trainmaster_daemon::{Config, Daemon, Flags, LogLines, ServeError, settings_table, settings_text};
use trainmaster_manager::Adapters;
use trainmaster_terminal::stop::StopSignals;
use trainmaster_terminal::{Failure, Output, Paper, Show, client::ServerArgs, found::Note};

use super::engines::entry;

/// Maximum number of log lines in memory.
const LINES: usize = 8192;

/// The command's arguments.
#[derive(Args, Debug)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    flags: Flags,
    /// A parameter of the engine (`trainmaster engines NAME` lists them); may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<Assignment>,
    /// Print the effective settings of the scheduler as a settings file, and exit
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
    fn config(&self, available: Adapters, server: &ServerArgs) -> anyhow::Result<Config> {
        let mut flags = self.flags.clone();
        // The token file of clients is the administrator's token of the daemon.
        flags.admin_token_file = flags.admin_token_file.or_else(|| server.token_file().cloned());
        let mut config = flags.config()?;
        config.available = available;
        let settings = &mut config.settings;
        settings.parameters.extend(self.set.iter().map(|Assignment(key, value)| (key.clone(), value.clone())));
        // Flags change what the file says.
        let file = flags.config.as_deref().filter(|_| flags.engine.is_none() && self.set.is_empty());
        check_engines(settings, file)?;
        Ok(config)
    }
}

/// Checks that the engine accepts its parameters, and that the one for its failures exists. `file`: what the error
/// names.
pub(crate) fn check_engines(settings: &Settings, file: Option<&Path>) -> anyhow::Result<()> {
    let build = || {
        entry(&settings.engine).map_err(Error::msg)?.build(&settings.parameters)?;
        entry(&settings.fallback).map_err(|problem| anyhow!("fallback: {problem}"))?;
        Ok(())
    };
    build().map_err(|error: Error| match file {
        Some(file) => anyhow!("{}: [scheduler]: {error}", file.display()),
        None => error,
    })
}

/// Runs the daemon until SIGINT (Ctrl-C) or SIGTERM. A second signal ends it without waiting.
///
/// # Errors
/// The configuration is invalid, or the daemon can't start.
pub(crate) fn run(args: &ServeArgs, adapters: Adapters, server: &ServerArgs, output: Output) -> Result<(), Failure> {
    let config = args.config(adapters, server)?;
    if args.print_settings {
        return output.show(&Printed(config.settings));
    }
    let mut config = config;
    let _log = start_log(&mut config);
    open_more_files(config.limits.connections);
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
        let mut signals = StopSignals::new()?;
        let serving = |daemon: &Daemon| Serving {
            url: daemon.url().to_owned(),
            state_dir: config.state_dir.display().to_string(),
            engine: config.settings.engine.clone(),
        };
        // A start can wait for a disk or a pipe.
        let daemon = tokio::select! {
            started = start(config.clone()) => started.map_err(Error::from)?.map_err(Error::from)?,
            () = signals.next() => {
                eprintln!("ended before it was ready");
                process::exit(0);
            }
        };
        let ca = config.tls.as_ref().map(|tls| tls.ca.clone().unwrap_or_else(|| tls.cert.clone()));
        let note = Note { token_file: absolute(daemon.admin_token()), ca: ca.as_deref().map(absolute) };
        let noted = note.write(daemon.url());
        if let Err(error) = &noted {
            tracing::warn!(%error, token_file = %note.token_file.display(), "other commands need --token-file");
        }
        // The reader of the output may be gone, but the clients aren't.
        let _ = output.stream(&serving(&daemon));
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
        drop(noted);
        Ok(())
    })
}

/// Starts the daemon on a thread of its own: it reads files, and signals are heard meanwhile even with one CPU.
fn start(config: Config) -> JoinHandle<Result<Daemon, ServeError>> {
    tokio::task::spawn_blocking(|| Handle::current().block_on(Daemon::start(config)))
}

/// Raises this process's limit on open files, if necessary and possible, to that of these connections and a reserve for
/// everything else. The usual limit is 1,024, below the one that a process may set itself.
fn open_more_files(connections: usize) {
    let limit = getrlimit(Resource::Nofile);
    let wanted = (connections as u64).saturating_mul(2);
    let current = limit.maximum.map_or(wanted, |most| wanted.min(most));
    if limit.current.is_some_and(|now| now < current) {
        // If that fails, the port limits its connections and logs it.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(current), ..limit });
    }
}

/// Starts the log on standard error, written by a separate thread. If the disk is full, or the reader is stuck or gone,
/// lines are dropped and counted, and nothing else is affected. Dropping the guard writes the remaining lines.
fn start_log(config: &mut Config) -> WorkerGuard {
    let filter = EnvFilter::try_from_env("TRAINMASTER_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = NonBlockingBuilder::default().lossy(true).buffered_lines_limit(LINES).thread_name("log");
    let (writer, guard) = builder.finish(io::stderr());
    config.log = LogLines::of(writer.error_counter());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).with_ansi(Paper::stderr_has_colour()).init();
    panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
    guard
}

fn absolute(path: &Path) -> PathBuf {
    path::absolute(path).unwrap_or_else(|_| path.to_owned())
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

/// Settings, shown as a settings file.
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
        line.serve.config(Adapters::default(), &line.server).map_err(|error| format!("{error:#}"))
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
        assert_eq!(config(&["--engine", "optimus"]).unwrap().settings, default);
        assert_eq!(config(&["--engine", "drf"]).unwrap().settings.parameters, [].into());
        let set = config(&["--set", "shrink_to_fit=false"]).unwrap().settings;
        assert_eq!(set.parameters["shrink_to_fit"], Parameter::Flag(false));
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
        ] {
            let message = config(args).unwrap_err();
            assert!(message.contains(expected), "{args:?}: {message}");
        }
    }
}
