//! `trainmaster run`: submits a command as a job, shows what it prints, and ends with it.

use std::{env, io, path::Path, time::Duration};

use clap::Args;
use rustix::fs::{Access, access};
use tokio::signal::unix::{SignalKind, signal};
use toml::{Table, Value};
use tonic::{Code, Status};
use trainmaster_core::{
    JobSpec,
    job::LONGEST_FILE,
    text::{quoted, read_toml, shown},
};
use trainmaster_host::bounded::read_text;
use trainmaster_proto::{
    job_from_spec,
    v1::{CancelRequest, JobStatus, ListRequest, SubmitRequest},
};
use trainmaster_terminal::{
    Failure, Output,
    client::{Daemon, ServerArgs},
};

use super::logs::Logs;

/// Variables of this environment by which a program finds its files. Others may be secrets, or mean nothing elsewhere.
const PASSED: [&str; 8] =
    ["PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "HOME", "LANG", "TZ", "OMP_NUM_THREADS", "HF_HOME"];
const PASSED_STARTS: [&str; 3] = ["PYTHON", "CONDA_", "LC_"];
/// Maximum bytes of a variable's name and value.
const LONGEST_VARIABLE: usize = 8 << 10;

/// The command's arguments.
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// Name of the job [default: the script's or program's name and a number]
    #[arg(long)]
    name: Option<String>,
    /// Numbers of workers with which it can run: 3, or 1:8 [default: 1]
    #[arg(long, short = 'n', value_name = "MIN:MAX", value_parser = range)]
    workers: Option<(u32, u32)>,
    /// GPUs of a worker
    #[arg(long)]
    gpu: Option<f64>,
    /// CPUs of a worker [default: 1]
    #[arg(long)]
    cpu: Option<f64>,
    /// Memory of a worker, such as 16GiB
    #[arg(long)]
    memory: Option<String>,
    /// How its processes start [default: by the command]
    #[arg(long, value_name = "LAUNCHER", value_parser = ["torchrun", "none"])]
    launcher: Option<String>,
    /// What a change of the number of workers does to it [default: by the launcher]
    #[arg(long, value_name = "CHANGE", value_parser = ["in_place", "restart", "fixed"])]
    elastic: Option<String>,
    /// A variable of the command's environment, besides PATH, VIRTUAL_ENV and the like; without a value, as it is here
    #[arg(long, value_name = "NAME[=VALUE]")]
    env: Vec<String>,
    /// A job file with all else; what is given here replaces its keys
    #[arg(long, value_name = "FILE")]
    file: Option<String>,
    /// Only submit it
    #[arg(long, short)]
    detach: bool,
    /// The command, such as `torchrun train.py`; it runs in this folder, with this PATH
    #[arg(required_unless_present = "file", last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

fn range(text: &str) -> Result<(u32, u32), String> {
    let (least, most) = text.split_once([':', '-']).unwrap_or((text, text));
    let number = |text: &str| text.parse::<u32>().ok().filter(|count| *count > 0);
    match (number(least), number(most)) {
        (Some(least), Some(most)) if least <= most => Ok((least, most)),
        _ => Err("must be a number of at least 1, such as 3, or a range from fewer to more, such as 1:8".into()),
    }
}

/// Runs the command. Ctrl-C, SIGTERM and a closed terminal cancel the job.
///
/// # Errors
/// The daemon's. The job is invalid, or ended without success.
pub(crate) async fn run(args: &RunArgs, server: &ServerArgs, output: Output) -> Result<(), Failure> {
    if matches!(output, Output::Json) {
        return Err(Failure::Usage("run shows what a program prints, not JSON; leave --json out".into()));
    }
    let spec = spec(args)?;
    if let Some(program) = args.command.first().filter(|_| server.is_local()) {
        look_up(program)?;
    }
    let daemon = Daemon::connect(server).await?;
    let found = server.is_found();
    // From here on, a signal cancels the job instead of ending this program.
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let request = SubmitRequest { job: Some(job_from_spec(&spec)), external: None };
    let reply = daemon.jobs().submit(request).await.map_err(|status| daemon.failure(&status).about(&spec.name))?;
    let reply = reply.into_inner();
    say(&format!("job {} ({}) submitted", reply.job, spec.name));
    reply.notes.iter().take(8).for_each(|note| say(&format!("note: {}", shown(note, 1000))));
    if args.detach {
        return Ok(());
    }
    tokio::select! {
        ended = follow(daemon, server, found, reply.job, &spec.name) => return ended,
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
    let number = reply.job;
    let cancelled = tokio::select! {
        cancelled = cancel(server, number) => cancelled,
        _ = interrupt.recv() => Err(Failure::refused("interrupted again")),
    };
    Err(Failure::refused(match cancelled {
        Ok(()) => format!("interrupted; job {number} is cancelled, and its processes are told to end"),
        Err(why) => format!("interrupted, but job {number} may go on; `trainmaster cancel {number}` ends it: {why}"),
    }))
}

async fn cancel(server: &ServerArgs, number: u64) -> Result<(), Failure> {
    let daemon = Daemon::connect(server).await?;
    let request = CancelRequest { job: number.to_string() };
    daemon.jobs().cancel(request).await.map(drop).map_err(|status| daemon.failure(&status))
}

/// Finds a program on this machine, on which the job will start it.
fn look_up(program: &str) -> Result<(), Failure> {
    let is_program = |path: &Path| access(path, Access::EXEC_OK).is_ok() && path.is_file();
    let found = match program.contains('/') {
        true => is_program(Path::new(program)),
        false => env::split_paths(&env::var_os("PATH").unwrap_or_default()).any(|at| is_program(&at.join(program))),
    };
    let problem = format!("{}: there is no such program, in this folder or in PATH", shown(program, 200));
    if found { Ok(()) } else { Err(Failure::refused(problem)) }
}

/// Waits for a daemon that went away. The job goes on meanwhile.
///
/// If the daemon was `found` by its discovery file, nothing is sent before there is one again: another program can
/// listen at the address, and the next daemon listens a moment before it is found.
pub(crate) async fn again(server: &ServerArgs, found: bool) -> Daemon {
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        if found && !server.is_found() {
            continue;
        }
        if let Ok(daemon) = Daemon::connect(server).await {
            return daemon;
        }
    }
}

/// Whether a call may work later: the daemon can't be reached, stops, or has too much to do.
pub(crate) fn is_away(status: &Status, failure: &Failure) -> bool {
    // Also with a wrong certificate, which may be replaced meanwhile.
    matches!(failure, Failure::Unreachable { .. } | Failure::Unusable { .. })
        || matches!(status.code(), Code::Unavailable | Code::ResourceExhausted | Code::DeadlineExceeded)
}

/// Shows the job's output, and changes of its state, until it has ended.
async fn follow(mut daemon: Daemon, server: &ServerArgs, found: bool, number: u64, name: &str) -> Result<(), Failure> {
    let mut logs = Logs::new(&number.to_string(), true, None);
    let mut before = String::new();
    let (mut away, mut is_first, mut is_lost) = (false, true, false);
    loop {
        let request = ListRequest { jobs: vec![number.to_string()], ..ListRequest::default() };
        let (mut stream, mut lost) = match daemon.jobs().watch(request).await {
            Ok(stream) => (Some(stream.into_inner()), Status::unavailable("the daemon ended the list")),
            Err(status) => (None, status),
        };
        while let Some(list) = &mut stream {
            let reply = tokio::select! {
                reply = list.message() => reply,
                part = logs.next(&daemon) => {
                    match part {
                        Ok(Some(part)) => logs.print(part, &mut io::stdout().lock())?,
                        Ok(None) => {}
                        Err(status) => {
                            let is_for_good = !is_away(&status, &daemon.failure(&status));
                            if is_for_good {
                                logs.give_up();
                            }
                            if is_for_good || !is_lost {
                                say(&format!("note: no output for now: {}", shown(status.message(), 1000)));
                            }
                            is_lost = true;
                        }
                    }
                    continue;
                }
            };
            let list = match reply {
                Ok(Some(list)) => list,
                Ok(None) => break,
                Err(status) => {
                    lost = status;
                    break;
                }
            };
            away = false;
            let Some(job) = list.jobs.into_iter().find(|job| job.job == number && job.name == name) else {
                // The first list can be older than the job.
                if is_first && before.is_empty() {
                    continue;
                }
                return Err(Failure::refused(format!("job {number} ({name}) isn't known to the daemon any more")));
            };
            let now = state(&job);
            if now != before {
                say(&format!("job {number}: {now}"));
                before.clone_from(&now);
            }
            if job.ended_ms.is_some() {
                print_rest(&mut logs, &daemon).await?;
                return match job.state.as_str() {
                    "completed" => Ok(()),
                    _ => Err(Failure::refused(format!("job {number} ({name}) did not complete"))),
                };
            }
        }
        let failure = daemon.failure(&lost);
        if !is_away(&lost, &failure) {
            return Err(failure.about(name));
        }
        if !away {
            say(&format!("the daemon is away; job {number} goes on, and this waits for the daemon"));
            away = true;
        }
        daemon = again(server, found).await;
        is_first = false;
    }
}

/// Prints what is left of an ended job's logs.
async fn print_rest(logs: &mut Logs, daemon: &Daemon) -> Result<(), Failure> {
    while !logs.is_over() {
        match logs.next(daemon).await {
            Ok(Some(part)) => logs.print(part, &mut io::stdout().lock())?,
            Ok(None) => {}
            Err(status) => {
                say(&format!("note: the rest of the output is missing: {}", shown(status.message(), 1000)));
                break;
            }
        }
    }
    Ok(logs.finish(&mut io::stdout().lock())?)
}

fn state(job: &JobStatus) -> String {
    let shape = match (job.workers, job.servers) {
        (0, 0) => String::new(),
        (1, 0) => " on 1 worker".into(),
        (workers, 0) => format!(" on {workers} workers"),
        (workers, servers) => format!(" on {workers} workers and {servers} servers"),
    };
    let reason = if job.reason.is_empty() { String::new() } else { format!(": {}", shown(&job.reason, 1000)) };
    format!("{}{shape}{reason}", job.state)
}

fn say(text: &str) {
    eprintln!("trainmaster: {text}");
}

/// The job of a command.
fn spec(args: &RunArgs) -> Result<JobSpec, Failure> {
    let mut table = match &args.file {
        Some(file) => {
            let text = read_text(Path::new(file), LONGEST_FILE as u64)
                .map_err(|error| Failure::refused(format!("{file} can't be read: {error}")))?;
            read_toml(&text, LONGEST_FILE).map_err(|error| Failure::refused(format!("{file}: {error}")))?
        }
        None => Table::new(),
    };
    let folder = env::current_dir()?;
    let folder = folder.to_str().ok_or_else(|| Failure::refused("the name of this folder isn't UTF-8"))?;
    fill(
        &mut table,
        args,
        folder,
        env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?))),
    )?;
    let text = toml::to_string(&table).map_err(|error| Failure::refused(error.to_string()))?;
    JobSpec::from_toml(&text).map_err(|error| Failure::refused(error.to_string()))
}

/// Adds what the arguments, the folder and the environment say to the keys of a job file.
fn fill(
    table: &mut Table,
    args: &RunArgs,
    folder: &str,
    variables: impl Iterator<Item = (String, String)>,
) -> Result<(), Failure> {
    let Value::Table(worker) = table.entry("worker").or_insert_with(|| Value::Table(Table::new())) else {
        return Err(Failure::refused("worker: must be a table"));
    };
    if let Some((least, most)) = args.workers {
        let counts = [("min", least), ("max", most)];
        worker.extend(counts.map(|(key, count)| (key.to_owned(), Value::Integer(count.into()))));
        worker.remove("requested");
    }
    let amounts = [("gpu", args.gpu), ("cpu", args.cpu)];
    worker.extend(amounts.into_iter().filter_map(|(key, amount)| Some((key.to_owned(), Value::Float(amount?)))));
    if let Some(memory) = &args.memory {
        worker.insert("memory".into(), Value::String(memory.clone()));
    }
    if !worker.keys().any(|key| key.starts_with("gpu") || key == "cpu") {
        worker.insert("cpu".into(), Value::Integer(1));
    }
    if !args.command.is_empty() {
        let command = args.command.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ");
        worker.insert("command".into(), Value::String(command));
    }
    if let Some(name) = &args.name {
        table.insert("name".into(), Value::String(name.clone()));
    } else if !table.contains_key("name") {
        table.insert("name".into(), Value::String(name(&args.command)));
    }
    for (key, value) in [("launcher", &args.launcher), ("elastic", &args.elastic)] {
        table.extend(value.iter().map(|value| (key.to_owned(), Value::String(value.clone()))));
    }
    table.entry("mode").or_insert_with(|| Value::String("allreduce".into()));
    table.entry("workdir").or_insert_with(|| Value::String(folder.into()));
    let Value::Table(env) = table.entry("env").or_insert_with(|| Value::Table(Table::new())) else {
        return Err(Failure::refused("env: must be a table of names and values"));
    };
    for (name, value) in variables {
        let passed = PASSED.contains(&name.as_str()) || PASSED_STARTS.iter().any(|start| name.starts_with(start));
        let named = args.env.contains(&name);
        if (passed && name.len() + value.len() < LONGEST_VARIABLE) || named {
            env.entry(name).or_insert(Value::String(value));
        }
    }
    for given in &args.env {
        match given.split_once('=') {
            Some((name, value)) => {
                env.insert(name.into(), Value::String(value.into()));
            }
            None if env.contains_key(given) => {}
            None => return Err(Failure::Usage(format!("--env {given}: this environment has no such variable"))),
        }
    }
    Ok(())
}

/// The script's name, or else the program's, with the number of this process, so that it differs from earlier jobs'.
fn name(command: &[String]) -> String {
    let script = command.iter().find(|word| word.ends_with(".py")).or(command.first());
    let stem = script.and_then(|path| Path::new(path).file_stem()?.to_str()).unwrap_or("job");
    let plain: String = stem.chars().filter(|c| c.is_ascii_alphanumeric() || "_.-".contains(*c)).take(100).collect();
    let plain = plain.trim_start_matches(['.', '-']);
    format!("{}-{}", if plain.is_empty() { "job" } else { plain }, std::process::id())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: RunArgs,
    }

    fn job(words: &[&str], file: &str, variables: &[(&str, &str)]) -> Result<JobSpec, String> {
        let line = Line::try_parse_from(["run"].iter().chain(words)).map_err(|error| error.to_string())?;
        let mut table: Table = file.parse().unwrap();
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        fill(&mut table, &line.args, "/home/ada/my project", variables).map_err(|failure| failure.line())?;
        JobSpec::from_toml(&toml::to_string(&table).unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_command_becomes_a_job_in_its_folder() {
        let variables =
            [("PATH", "/opt/venv/bin:/bin"), ("TERM", "xterm"), ("SSH_TTY", "x"), ("BASH_FUNC_x%%", "() {")];
        let found = job(&["-n", "1:4", "--", "torchrun", "train.py", "--lr=0.1", "a b"], "", &variables).unwrap();
        assert_eq!(
            found.worker.command,
            "env --chdir='/home/ada/my project' TRAINMASTER_CHECKPOINT_DIR='/home/ada/my project/checkpoints' \
             PATH=/opt/venv/bin:/bin torchrun train.py --lr=0.1 'a b'"
        );
        assert_eq!((found.worker.min, found.worker.max), (1, 4));
        assert!(found.name.starts_with("train-"), "{}", found.name);
        assert_eq!(found.labels["launcher"], "torchrun");
        let whole =
            "name = \"net\"\nworker = { gpu = 2, max = 8, requested = 2 }\nenv = { A = \"1\" }\nworkdir = \"/x\"";
        let named = ["--gpu", "1", "--env", "B=2", "--env", "TOKEN", "--", "python", "t.py"];
        let found = job(&named, whole, &[("A", "2"), ("TOKEN", "t")]).unwrap();
        assert_eq!((found.name.as_str(), found.worker.max, found.worker.demand["gpu"]), ("net", 8, 1000));
        assert_eq!(
            found.worker.command,
            "env --chdir=/x TRAINMASTER_CHECKPOINT_DIR=/x/checkpoints A=1 B=2 TOKEN=t python t.py",
            "the file says more than the environment"
        );
        let own = ["--launcher", "none", "--elastic", "restart", "--", "torchrun", "t.py"];
        let found = job(&own, "launcher = \"torchrun\"", &[]).unwrap();
        assert_eq!((&*found.labels["launcher"], &*found.labels["elastic"]), ("none", "restart"));
    }

    #[test]
    fn mistakes_are_named() {
        for (words, said) in [
            (&["-n", "0", "--", "a"][..], "at least 1"),
            (&["-n", "3:1", "--", "a"], "from fewer to more"),
            (&["--memory", "16", "--", "a"], "worker.memory"),
            (&["-n", "1:3", "--", "torchrun", "--standalone", "t.py"], "--standalone would make torchrun's agents"),
            (&["--launcher", "mpi", "--", "a"], "torchrun, none"),
            (&["--name", "7", "--", "a"], "reads as a job's number"),
            (&[], "COMMAND"),
        ] {
            let problem = job(words, "", &[]).unwrap_err();
            assert!(problem.contains(said), "{words:?}: {problem}");
        }
        assert!(look_up("sh").is_ok() && look_up("/bin/sh").is_ok());
        for missing in ["no-such-program", "./sh", "/tmp"] {
            assert!(look_up(missing).unwrap_err().line().contains("no such program"), "{missing}");
        }
        let long = "x".repeat(20_000);
        assert!(job(&["--env", "A", "--", "a"], "", &[("A", &long)]).unwrap_err().contains("at most 16384"));
        assert!(job(&["--", "a"], "", &[("PATH", &long)]).is_ok(), "what is too long isn't passed unasked");
        assert!(job(&["--env", "MISSING", "--", "a"], "", &[]).unwrap_err().contains("MISSING"));
        assert!(job(&["--env", "RANK=1", "--", "a"], "", &[]).unwrap_err().contains("env: RANK"));
    }
}
