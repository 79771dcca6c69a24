//! `trainmaster serve`: runs the daemon until a signal.

use std::{
    env, io, panic,
    path::{self, Path, PathBuf},
    process,
    str::FromStr,
};

use anyhow::{Error, anyhow};
use clap::Args;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Serialize;
use tokio::{runtime::Handle, task::JoinHandle};
use toml::Table;
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::{EnvFilter, Layer as _, layer::SubscriberExt as _, util::SubscriberInitExt as _};
use trainmaster_core::{
    Settings,
    engine::Entry,
    settings::Parameter,
    text::{LONGEST, read_toml},
};
use trainmaster_daemon::{Config, Daemon, Flags, LogFormat, LogLines, ServeError, merge, settings_table};
use trainmaster_manager::Adapters;
use trainmaster_terminal::stop::StopSignals;
use trainmaster_terminal::{
    Failure, Output, Paper, Show,
    client::{ServerArgs, TOKEN_FILE},
    found::Note,
};

use super::{engines::entry, traces::Traces};

/// A variable with keys of the configuration, as of `--set`.
pub(crate) const VARIABLE: &str = "TRAINMASTER_SET";
/// Maximum number of log lines in memory.
const LINES: usize = 8192;

/// The command's arguments.
#[derive(Args, Debug)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    flags: Flags,
    /// A parameter of the engine (`trainmaster engines NAME` lists them), or any other key of the configuration by its
    /// path, such as limits.jobs=500 or, of the scheduler, stability.min_run=5s; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<Assignment>,
    /// Print the scheduler's settings in force as a settings file, and exit
    #[arg(long)]
    print_settings: bool,
    /// Print the whole configuration in force as a configuration file, and exit
    #[arg(long, conflicts_with = "print_settings")]
    print_config: bool,
}

/// The keys of [`Settings`].
const SETTINGS: [&str; 14] = [
    "caps",
    "early_stop",
    "engine",
    "fallback",
    "fallback_after",
    "parameters",
    "queues",
    "refusal_backoff",
    "refusals",
    "seed",
    "shape",
    "share_models",
    "stability",
    "tenants",
];

/// The keys of [`Config`], without those of the scheduler's settings.
const CONFIGURATION: [&str; 19] = [
    "adapters",
    "admin_token_file",
    "advertise",
    "decision",
    "end_jobs",
    "grace",
    "journal",
    "limits",
    "listen",
    "log_format",
    "metrics",
    "names",
    "orphan_grace",
    "otlp",
    "plan_ttl",
    "policy",
    "state_dir",
    "tls",
    "trainer",
];

/// `KEY=VALUE`.
#[derive(Clone, Debug)]
struct Assignment {
    key: String,
    value: String,
}

impl FromStr for Assignment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_good = |(key, _): &(&str, &str)| !key.is_empty() && !text.contains('\n');
        let (key, value) = text.split_once('=').filter(is_good).ok_or("write KEY=VALUE, in one line")?;
        Ok(Self { key: key.trim().into(), value: value.trim().into() })
    }
}

impl Assignment {
    /// Those of a variable, between semicolons that don't stand in quotes.
    fn several(text: &str) -> Result<Vec<Self>, String> {
        let mut quote = None;
        let is_end = |c: char| {
            match quote {
                Some(open) if open == c => quote = None,
                None if c == '"' || c == '\'' => quote = Some(c),
                _ => {}
            }
            c == ';' && quote.is_none()
        };
        text.split(is_end).filter(|part| !part.trim().is_empty()).map(str::parse).collect()
    }

    /// The name of the parameter, if the engine has one of this name. An unknown word is refused as a parameter, too:
    /// the error lists the engine's.
    fn parameter(&self, engine: &str) -> Option<&str> {
        let key = self.key.as_str();
        let has = |entry: &Entry| entry.parameters().iter().any(|parameter| parameter.name == key);
        let others = ["scheduler", "scheduler_file"];
        let is_known = key.contains('.') || [&SETTINGS[..], &CONFIGURATION, &others].concat().contains(&key);
        (!is_known || entry(engine).is_ok_and(has)).then_some(key)
    }

    /// A file of the daemon's configuration with this key alone.
    fn table(&self) -> anyhow::Result<Table> {
        let Self { key, value } = self;
        let key = key.strip_prefix("scheduler.").unwrap_or(key);
        if key == "engine" {
            return Err(anyhow!("engine={value}: use --engine, which leaves out the parameters of another engine"));
        }
        let text = toml::Value::from(value.as_str());
        let read = |value: &str| read_toml::<Table>(&format!("{key} = {value}"), LONGEST);
        let table = read(value).or_else(|_| read(&text.to_string())).map_err(|_| {
            anyhow!(
                "{key}: must be a path of keys, such as stability.min_run; a key with other characters than \
                 letters, digits, _ and - stands in quotes: queues.batch.\"gpu:a100\"=4"
            )
        })?;
        let is_outside = |key: &String| key.starts_with("scheduler") || CONFIGURATION.contains(&key.as_str());
        if let Some(unknown) = table.keys().find(|key| !is_outside(key) && !SETTINGS.contains(&key.as_str())) {
            let (all, scheduler) = (CONFIGURATION.join(", "), SETTINGS.join(", "));
            return Err(anyhow!(
                "{unknown}: unknown key; the configuration has {all}, and [scheduler] has {scheduler}"
            ));
        }
        let inside = |table| Table::from_iter([("scheduler".to_owned(), toml::Value::Table(table))]);
        Ok(if table.keys().all(is_outside) { table } else { inside(table) })
    }

    fn value(&self) -> Parameter {
        match (self.value.parse::<f64>(), self.value.as_str()) {
            (_, "true") => Parameter::Flag(true),
            (_, "false") => Parameter::Flag(false),
            (Ok(number), _) if number.is_finite() => Parameter::Number(number),
            (_, text) => Parameter::Text(text.into()),
        }
    }
}

/// Sets parameters of the engine and keys of the configuration, all keys together: some need each other. Returns
/// whether one is the scheduler's.
fn set(config: &mut Config, all: &[Assignment]) -> anyhow::Result<bool> {
    let (mut given, mut is_scheduler) = (Table::new(), false);
    for assignment in all {
        if let Some(name) = assignment.parameter(&config.settings.engine) {
            config.settings.parameters.insert(name.to_owned(), assignment.value());
            is_scheduler = true;
        } else {
            merge(&mut given, assignment.table()?);
        }
    }
    is_scheduler |= given.contains_key("scheduler");
    if !given.is_empty() {
        *config = config.clone().with(given)?;
    }
    Ok(is_scheduler)
}

/// The file's configuration, with the keys of [`VARIABLE`] over it, and the flags over both. Also whether the variable
/// has keys of the scheduler.
///
/// # Errors
/// The file's, or names what is wrong in the variable or the flags.
pub(crate) fn with_variable(flags: &Flags, variable: &str) -> anyhow::Result<(Config, bool)> {
    let mut config = flags.file()?;
    let all = Assignment::several(variable).map_err(Error::msg);
    let is_scheduler = all.and_then(|all| set(&mut config, &all)).map_err(|error| anyhow!("{VARIABLE}: {error}"))?;
    Ok((flags.over(config)?, is_scheduler))
}

impl ServeArgs {
    /// The configuration in force: that of [`with_variable`], and the keys of `--set` over it.
    fn config(&self, available: Adapters, server: &ServerArgs, variable: &str) -> anyhow::Result<Config> {
        let mut flags = self.flags.clone();
        // A given token file is the administrator's.
        let own = server.token_file().filter(|file| !is_of_clients(file)).cloned();
        flags.admin_token_file = flags.admin_token_file.or(own);
        let (mut config, more) = with_variable(&flags, variable)?;
        config.available = available;
        let most = set(&mut config, &self.set).map_err(|error| anyhow!("--set: {error}"))?;
        // They change what the file says.
        let is_the_files = flags.engine.is_none() && !more && !most;
        check_engines(&config.settings, flags.config.as_deref().filter(|_| is_the_files))?;
        Ok(config)
    }
}

/// Whether the clients' variable names a file. It may be a token of another role or of another daemon.
fn is_of_clients(file: &Path) -> bool {
    env::var_os(TOKEN_FILE).is_some_and(|variable| variable == file.as_os_str())
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
    let mut config = args.config(adapters, server, &env::var(VARIABLE).unwrap_or_default())?;
    if args.print_settings {
        return output.show(&Printed(settings_table(&whole(config.settings))));
    }
    if args.print_config {
        config.check().map_err(Error::from)?;
        config.settings = whole(config.settings);
        return output.show(&Printed(config.to_table().map_err(Error::from)?));
    }
    config.check().map_err(Error::from)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    // Traces are sent by the runtime, which outlives them.
    let _log = runtime.block_on(async { start_log(&mut config) })?;
    open_more_files(config.limits.connections);
    runtime.block_on(async {
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
        if args.flags.admin_token_file.is_none() && server.token_file().is_some_and(|file| is_of_clients(file)) {
            let token_file = note.token_file.display();
            tracing::warn!(%token_file, "{TOKEN_FILE} is for clients; --admin-token-file names the administrator's");
        }
        if whole(config.settings.clone()).parameters.get("on_change") == Some(&Parameter::Flag(false)) {
            let engine = &config.settings.engine;
            tracing::info!(
                "{engine} decides at its interval only; with on_change = true also when a job comes or ends"
            );
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

/// Starts the log on standard error, written by a separate thread, and traces if they are wanted. If the disk is full,
/// or the reader is stuck or gone, lines are dropped and counted, and nothing else is affected. Dropping the guards
/// writes the remaining lines and sends the remaining traces.
fn start_log(config: &mut Config) -> anyhow::Result<(Traces, WorkerGuard)> {
    let filter = EnvFilter::try_from_env("TRAINMASTER_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = NonBlockingBuilder::default().lossy(true).buffered_lines_limit(LINES).thread_name("log");
    let (writer, guard) = builder.finish(io::stderr());
    config.log = LogLines::of(writer.error_counter());
    let lines = tracing_subscriber::fmt::layer().with_writer(writer);
    let lines = match config.log_format {
        LogFormat::Text => lines.with_ansi(Paper::stderr_has_colour()).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).with_current_span(false).with_span_list(false).boxed(),
    };
    let (traces, layer) = Traces::start(config.otlp.as_deref())?;
    tracing_subscriber::registry().with(lines.with_filter(filter)).with(layer).init();
    panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
    // The log ends last.
    Ok((traces, guard))
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

/// Settings with all parameters of their engine.
fn whole(mut settings: Settings) -> Settings {
    for parameter in entry(&settings.engine).map(Entry::parameters).unwrap_or_default() {
        settings.parameters.entry(parameter.name.into()).or_insert_with(|| parameter.default.into());
    }
    settings
}

/// Settings, shown as a file of them.
#[derive(Serialize)]
#[serde(transparent)]
struct Printed(Table);

impl Show for Printed {
    fn text(&self, _: &Paper) -> String {
        self.0.to_string().trim_end().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use trainmaster_core::{Span, engines::REGISTRY};

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        serve: ServeArgs,
        #[command(flatten)]
        server: ServerArgs,
    }

    fn config(args: &[&str]) -> Result<Config, String> {
        config_with("", args)
    }

    fn config_with(variable: &str, args: &[&str]) -> Result<Config, String> {
        let line = Line::try_parse_from([&["serve"], args].concat()).map_err(|error| error.to_string())?;
        line.serve.config(Adapters::default(), &line.server, variable).map_err(|error| format!("{error:#}"))
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
    fn settings_are_set_by_their_path_and_leave_all_else() {
        let default = config(&[]).unwrap().settings;
        let set = ["stability.min_run=5s", "queues.batch.gpu=4", "seed=7", "stability.payback=0.5"];
        let args: Vec<&str> = set.iter().flat_map(|text| ["--set", text]).collect();
        let settings = config(&args).unwrap().settings;
        assert_eq!(settings.stability.min_run, Span::seconds(5));
        assert_eq!((settings.stability.payback, settings.seed), (0.5, 7));
        assert_eq!(settings.stability.rescales_per_hour, default.stability.rescales_per_hour);
        assert_eq!(settings.queues["batch"]["gpu"], 4000);
        let quoted = config(&["--set", "queues.batch.\"gpu:a100\"=4"]).unwrap().settings;
        assert_eq!(quoted.queues["batch"]["gpu:a100"], 4000);
        assert_eq!((&settings.parameters, &settings.caps), (&default.parameters, &default.caps));
        // A table given for a word, and the other way round.
        assert!(!config(&["--set", "stability=off"]).unwrap().settings.stability.enabled);
        let on = config(&["--set", "stability=off", "--set", "stability.min_run=9s"]).unwrap().settings.stability;
        assert_eq!((on.enabled, on.min_run), (true, Span::seconds(9)));
    }

    #[test]
    fn all_of_the_configuration_is_set_by_its_path() {
        let set = ["limits.jobs=500", "journal.history_bytes=1GiB", "grace=5s", "names=[\"a\"]", "seed=7"];
        let args: Vec<&str> = set.iter().flat_map(|text| ["--set", text]).collect();
        let set = config(&args).unwrap();
        assert_eq!((set.limits.jobs, set.journal.history_bytes, set.settings.seed), (500, 1 << 30, 7));
        assert_eq!((set.grace, set.names), (std::time::Duration::from_secs(5), vec!["a".to_owned()]));
        assert_eq!(set.limits.lists, config(&[]).unwrap().limits.lists);
        // Keys that need each other.
        let tls = config(&["--set", "tls.cert=c", "--set", "tls.key=k"]).unwrap().tls.unwrap();
        assert!(tls.cert.ends_with("c") && tls.key.ends_with("k"));
        assert_eq!(config(&["--set", "scheduler.seed=3"]).unwrap().settings.seed, 3);
    }

    #[test]
    fn a_variable_is_over_the_file_and_below_the_flags() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("daemon.toml");
        std::fs::write(&file, "end_jobs = true\nlisten = \":1\"\n[limits]\njobs = 1\nlists = 1").unwrap();
        let file = file.to_str().unwrap();
        let variable = "limits.jobs=2; seed = 3;names=[\"a;b\"];listen=\":2\";limits.lists=2;";
        let flags = ["--config", file, "--end-jobs=false", "--listen", ":3", "--set", "limits.lists=4"];
        let set = config_with(variable, &flags).unwrap();
        assert_eq!((set.limits.jobs, set.limits.lists, set.settings.seed), (2, 4, 3));
        assert_eq!((set.listen.port(), set.names, set.end_jobs), (3, vec!["a;b".to_owned()], false));
        assert!(config(&["--config", file]).unwrap().end_jobs && config(&["--end-jobs"]).unwrap().end_jobs);
        let wrong = |variable: &str| config_with(variable, &[]).unwrap_err();
        assert_eq!(wrong("limits"), "TRAINMASTER_SET: write KEY=VALUE, in one line");
        assert!(wrong("limits.jobs=x").starts_with("TRAINMASTER_SET: limits.jobs: invalid type: string \"x\""));
    }

    #[test]
    fn the_keys_are_those_of_the_configuration_and_its_settings() {
        let keys = |error: String| {
            let (_, expected) = error.split_once("expected one of ").expect("it lists the keys");
            let mut known: Vec<String> = expected.split('`').skip(1).step_by(2).map(ToOwned::to_owned).collect();
            known.retain(|key| !key.starts_with("scheduler"));
            known.sort_unstable();
            known
        };
        assert_eq!(keys(Settings::from_toml("x = 1").unwrap_err().to_string()), SETTINGS);
        assert_eq!(keys(Config::from_toml("x = 1").unwrap_err().to_string()), CONFIGURATION);
        assert!(CONFIGURATION.iter().all(|key| !SETTINGS.contains(key)), "each means one thing");
    }

    #[test]
    fn all_parameters_of_the_engine_are_printed_and_read_back() {
        for known in REGISTRY {
            let settings = whole(config(&["--engine", known.name]).unwrap().settings);
            assert_eq!(settings.parameters.len(), known.parameters().len());
            let again = Settings::from_toml(&settings_table(&settings).to_string()).unwrap();
            assert_eq!(again, settings);
            check_engines(&again, None).unwrap();
        }
        let given = whole(config(&["--set", "interval=5s"]).unwrap().settings);
        assert_eq!(given.parameters["interval"], Parameter::Text("5s".into()));
    }

    #[test]
    fn the_whole_configuration_is_printed_and_reads_back_anywhere() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("daemon.toml");
        let text = "adapters = [\"local=c.toml\"]\n[tls]\ncert = \"a/c.pem\"\nkey = \"k\"";
        std::fs::write(&file, text).unwrap();
        let args = ["--config", file.to_str().unwrap(), "--state-dir", "s", "--set", "stability.min_run=5s"];
        let printed = config(&args).unwrap().to_table().unwrap();
        let other = folder.path().join("elsewhere.toml");
        std::fs::write(&other, printed.to_string()).unwrap();
        let again = config(&["--config", other.to_str().unwrap()]).unwrap();
        assert_eq!(again.to_table().unwrap(), printed);
        assert_eq!(again.tls.unwrap().cert, folder.path().join("a/c.pem"));
        assert_eq!(again.adapters.unwrap()[0].config, Some(folder.path().join("c.toml")));
        assert!(again.state_dir.is_absolute());
        assert_eq!(again.settings.stability.min_run, Span::seconds(5));
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
            (&["--set", "stability.min_rum=5s"], "--set: scheduler.stability.min_rum: unknown field `min_rum`"),
            (&["--set", "stability.min_run=soon"], "--set: scheduler.stability.min_run: \"soon\" is not allowed"),
            (&["--set", "stability.payback=-1"], "-1 must be 0 or more"),
            (&["--set", "nothing.here=1"], "nothing: unknown key; the configuration has adapters, "),
            (
                &["--set", "limits.jobs=many"],
                "--set: limits.jobs: invalid type: string \"many\", expected a whole number",
            ),
            (&["--set", "limits.job=1"], "--set: limits.job: unknown field `job`"),
            (&["--set", "limits=1"], "--set: limits: "),
            (&["--set", "scheduler_file=x"], "scheduler_file: only a file can name it"),
            (&["--set", "journal.history_bytes=1GB"], "did you mean \"1GiB\"?"),
            (&["--set", "a..b=1"], "must be a path of keys"),
            (&["--set", "queues.batch.gpu:a100=4"], "queues.batch.\"gpu:a100\"=4"),
            (&["--set", "seed=5\nengine = \"fifo\""], "in one line"),
            (&["--set", "engine=fifo"], "use --engine"),
            (&["--engine", "optimum"], "there are optimus"),
            (&["--config", "nowhere.toml"], "nowhere.toml"),
        ] {
            let message = config(args).unwrap_err();
            assert!(message.contains(expected), "{args:?}: {message}");
        }
    }
}
