//! `trainmaster demo`: real training jobs share a virtual cluster. In its first minute jobs grow and shrink under one
//! engine; a comparison runs nine jobs under several engines, one after the other.
//!
//! All parts are those of the product: the daemon with its journal, the local adapter, the trainer's processes. Only
//! the device is emulated (unless `--real`): gradients are computed, then the step is stretched to the device's time.

mod chunks;
mod plot;
mod profile;
mod progress;
mod record;
mod report;
mod session;
mod tasks;
mod view;
mod workload;

use std::{
    path::{Path, PathBuf},
    process::{self, ExitCode},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use clap::Args as ClapArgs;
use trainmaster_manager::Adapters;
use trainmaster_terminal::stop::{Stop, StopSignals};

use self::{
    profile::Profile,
    progress::progress,
    record::Run,
    workload::{CLUSTER, DemoJob, FIRST, JOBS, arrivals, settings},
};

/// Flags of `trainmaster demo`.
#[derive(ClapArgs, Clone, Debug)]
pub struct Args {
    /// Number of workloads, which differ in their data and, in a comparison, in the jobs' arrivals
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=100),
    )]
    pub seeds: u32,
    /// Seed of the first workload
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(..=i64::from(MOST_SEED)),
    )]
    pub seed: u32,
    /// Run nine jobs under `optimus`, `drf` and `fifo`, one after the other, and compare; it takes about five minutes
    #[arg(long, conflicts_with = "engines")]
    pub compare: bool,
    /// Compare these engines, each once, in the order of their runs: names of `trainmaster engines`. `edge` or `mlfs`
    /// alone: other jobs, whose data chunks or tasks are scheduled one by one
    #[arg(long, visible_alias = "engine", value_name = "NAMES", value_delimiter = ',')]
    pub engines: Vec<String>,
    /// No emulated devices: larger models, at the speed of this machine
    #[arg(long)]
    pub real: bool,
    /// Factor of the work in each job, to show a full cluster
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=100),
    )]
    pub work: u32,
    /// Write the whole record into this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the timelines and the fitted curves into this folder, as SVG
    #[arg(long, value_name = "FOLDER", default_value = "demo")]
    pub out: PathBuf,
    /// The training program [default: trainmaster-trainer beside this program, else in PATH]
    #[arg(long, value_name = "FILE")]
    pub trainer: Option<PathBuf>,
    /// Maximum duration of a run in seconds
    #[arg(
        long,
        value_name = "SECONDS",
        allow_negative_numbers = true,
        default_value_t = 600,
        value_parser = clap::value_parser!(u32).range(1..=86_400),
    )]
    pub limit: u32,
}

/// The engine of the first minute.
const ENGINE: &str = "optimus";
/// The engines that are compared if none are named.
const COMPARED: [&str; 3] = ["optimus", "drf", "fifo"];

/// Maximum seed. Seeds of a workload's jobs are a hundred times its own, and more.
const MOST_SEED: u32 = 1_000_000_000;

/// Runs the demonstration. After Ctrl-C or SIGTERM it ends its processes and then itself.
///
/// # Errors
/// The training program is missing, an engine is unknown or named twice, a daemon doesn't start, a file can't be
/// written, or the run was interrupted.
pub fn run(args: Args, adapters: Adapters) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let mut signals = StopSignals::new()?;
        let (ask, stop) = Stop::new();
        tokio::spawn(async move {
            signals.next().await;
            eprintln!("stopping: its training programs end first; a second signal ends it at once");
            ask();
            signals.next().await;
            eprintln!("ended at once; its training programs end by themselves within {:?}", session::ORPHAN_GRACE);
            process::exit(1);
        });
        demo(&args, adapters, &stop).await
    })
}

async fn demo(args: &Args, adapters: Adapters, stop: &Stop) -> Result<ExitCode> {
    let first = args.engines.is_empty() && !args.compare;
    let engines: Vec<&str> = match args.engines.as_slice() {
        [] if first => vec![ENGINE],
        [] => COMPARED.to_vec(),
        given => given.iter().map(String::as_str).collect(),
    };
    check(&engines)?;
    let trainer = find_trainer(args.trainer.as_deref())?;
    std::fs::create_dir_all(&args.out).with_context(|| format!("can't make {}", args.out.display()))?;
    let scratch =
        tempfile::Builder::new().prefix("trainmaster-demo-").tempdir().context("can't make a scratch folder")?;
    let of_chunks = engines == [chunks::ENGINE];
    let of_tasks = engines == [tasks::ENGINE];
    let mut runs: Vec<Run> = Vec::new();
    for seed in u64::from(args.seed)..u64::from(args.seed) + u64::from(args.seeds) {
        let (cluster, jobs) = if of_chunks {
            (chunks::CLUSTER, chunks::jobs(seed))
        } else if of_tasks {
            (tasks::CLUSTER, tasks::jobs(seed))
        } else {
            let jobs = if first { FIRST.to_vec() } else { arrivals(seed).into_iter().zip(JOBS).collect() };
            (CLUSTER, profiled(args, &jobs, &trainer, seed, stop).await?)
        };
        for engine in engines.iter().copied() {
            let plan = session::Plan {
                engine,
                seed,
                adapters,
                cluster,
                settings: settings(engine),
                jobs: jobs.clone(),
                trainer: &trainer,
                state_dir: scratch.path().join(format!("{engine}-{seed}")),
                limit: Duration::from_secs(args.limit.into()),
                stop,
            };
            let failed = || format!("engine {engine}, seed {seed}");
            let run = if of_tasks {
                tasks::run(&plan).await.with_context(failed)?
            } else {
                session::run(&plan, &mut |_| Ok(())).await.with_context(failed)?
            };
            report::print_run(&run);
            if of_chunks {
                chunks::report(&run, &plan.state_dir)?;
            }
            plot::timeline(&run, &args.out.join(format!("timeline-{engine}-{seed}.svg")))?;
            plot::curves(&run, &args.out.join(format!("losses-{engine}-{seed}.svg")))?;
            runs.push(run);
            if let Some(file) = &args.json {
                report::write_json(&runs, !args.real, file)?;
            }
            if of_tasks {
                tasks::report(&runs[runs.len() - 1])?;
            }
        }
    }
    if first {
        println!("`trainmaster demo --compare` runs nine jobs under {}, and compares.", COMPARED.join(", "));
    } else if !of_chunks && !of_tasks {
        report::print_summary(&runs, !args.real);
    }
    println!("Timelines and fitted curves: {}", args.out.display());
    match runs.iter().filter(|run| !run.complete).count() {
        0 => Ok(ExitCode::SUCCESS),
        count => bail!("{count} of {} runs had jobs that did not complete", runs.len()),
    }
}

/// The files of these jobs with measured speeds, each with its arrival.
async fn profiled(
    args: &Args,
    jobs: &[(f64, DemoJob)],
    trainer: &Path,
    seed: u64,
    stop: &Stop,
) -> Result<Vec<(f64, String)>> {
    let bar = progress(jobs.len() as u64, &format!("seed {seed}: profiling 5 shapes of each job"));
    let profiles = profile::profile(trainer, jobs, seed, args.real, &bar, stop).await?;
    bar.finish_and_clear();
    // Jobs of one run train on different data. A job has the same data under each engine.
    let file = |((&(arrival, job), profile), at): ((&(f64, DemoJob), &Profile), u64)| {
        (arrival, job.file(seed * 100 + at, args.real, args.work, profile))
    };
    Ok(jobs.iter().zip(&profiles).zip(0..).map(file).collect())
}

/// Each engine has settings, and a state folder of its own.
fn check(engines: &[&str]) -> Result<()> {
    for (alone, what) in [(chunks::ENGINE, "data chunks"), (tasks::ENGINE, "tasks")] {
        if engines.len() > 1 && engines.contains(&alone) {
            // In a table with others, its jobs would not be comparable.
            bail!("--engines {}: {alone} schedules {what} and has jobs of its own; name it alone", engines.join(","));
        }
    }
    for (at, engine) in engines.iter().enumerate() {
        if engines[..at].contains(engine) {
            bail!("--engines {}: {engine} is named twice; each engine runs once a seed", engines.join(","));
        }
        trainmaster_core::Settings::from_toml(&settings(engine))
            .and_then(trainmaster_core::Scheduler::new)
            .with_context(|| format!("--engines {engine}"))?;
    }
    Ok(())
}

fn find_trainer(given: Option<&Path>) -> Result<PathBuf> {
    const NAME: &str = "trainmaster-trainer";
    let beside = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.join(NAME)));
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&paths).map(|folder| folder.join(NAME));
    let found = match given {
        Some(path) => Some(path.to_owned()).filter(|path| path.is_file()),
        None => beside.into_iter().chain(in_path).find(|path| path.is_file()),
    };
    found.with_context(|| {
        format!(
            "{NAME} was not found; build it with the same profile (`cargo build -p {NAME}`), or name it with --trainer"
        )
    })
}
