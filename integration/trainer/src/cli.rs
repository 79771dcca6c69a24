//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::args::{Devices, SlotArgs, TrainingArgs, devices, share};

/// A distributed training program for any cluster manager: parameter servers or all-reduce over TCP, elastic.
///
/// Without a command it is one process of a job; the program that starts it sets the TRAINMASTER_… variables.
#[derive(Parser, Debug)]
#[command(name = "trainmaster-trainer", version, args_conflicts_with_subcommands = true, args_override_self = true)]
pub struct Cli {
    /// A whole job instead of one process.
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub slot: SlotArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub training: TrainingArgs,
}

/// Whole jobs on this machine, without a scheduler.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Train one job with all its processes on this machine.
    Run(RunArgs),
    /// Measure a job's speed with several numbers of servers and workers; writes CSV with the columns p,w,speed.
    Profile(ProfileArgs),
    /// Keep emulated devices busy like a foreign process, until the standard input ends.
    Occupy(OccupyArgs),
}

/// Flags of `occupy`.
#[derive(clap::Args, Clone, Debug)]
pub struct OccupyArgs {
    /// Folder with a folder for each device, as in TRAINMASTER_DEVICE_DIR.
    #[arg(long, value_name = "FOLDER")]
    pub device_dir: PathBuf,
    /// Devices in the folder, as 0,1.
    #[arg(long, value_name = "NUMBERS", value_parser = devices)]
    pub devices: Devices,
    /// Fraction of the time for which each device is busy, from 0 to 1.
    #[arg(long, value_name = "PART", default_value_t = 1.0, value_parser = share)]
    pub share: f64,
}

/// Common flags of local jobs.
#[derive(clap::Args, Clone, Debug)]
pub struct LocalArgs {
    /// Place the processes on this number of emulated machines, in turn; 0: each on its own. Relevant for
    /// --device-nic-mbit.
    #[arg(long, default_value_t = 0)]
    pub spread: u32,
    /// Show the logs of the processes.
    #[arg(long)]
    pub verbose: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub training: TrainingArgs,
}

/// Flags of `run`.
#[derive(clap::Args, Clone, Debug)]
pub struct RunArgs {
    /// Number of workers; with --partitions K, a multiple of K.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub workers: u32,
    /// Number of parameter servers (none with --mode allreduce).
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub servers: u32,
    /// Folder for checkpoints; a job with checkpoints there resumes from them.
    #[arg(long, value_name = "FOLDER")]
    pub checkpoint_dir: Option<PathBuf>,
    /// Print the summary as JSON.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub local: LocalArgs,
}

/// Flags of `profile`. `--steps` is the number of measured steps for each pair (default 10; of every worker with --mode
/// async).
#[derive(clap::Args, Clone, Debug)]
pub struct ProfileArgs {
    /// Pairs to measure, as SERVERS:WORKERS,…
    #[arg(
        long,
        value_name = "P:W",
        value_delimiter = ',',
        value_parser = pair(':'),
        conflicts_with_all = ["grid", "random"],
    )]
    pub pairs: Vec<(u32, u32)>,
    /// Measure all pairs up to these numbers of servers and workers.
    #[arg(long, value_name = "PMAX,WMAX", value_parser = pair(','), conflicts_with = "random")]
    pub grid: Option<(u32, u32)>,
    /// Measure this number of different random pairs (from --seed), within --limit.
    #[arg(long, value_name = "COUNT")]
    pub random: Option<u32>,
    /// Maximum servers and workers of a random pair.
    #[arg(long, value_name = "PMAX,WMAX", default_value = "8,8", value_parser = pair(','))]
    pub limit: (u32, u32),
    /// Number of steps at the start of each run that aren't measured (of every worker with --mode async).
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    pub warm_up: u32,
    /// Measure this number of pairs at a time; only useful with an emulated device.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub concurrent: u32,
    /// Write the table to a file instead of standard output.
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub local: LocalArgs,
}

fn pair(separator: char) -> impl Fn(&str) -> Result<(u32, u32), String> + Clone + Send + Sync {
    move |text| {
        let (servers, workers) = text.split_once(separator).unwrap_or_default();
        match (servers.trim().parse::<u32>(), workers.trim().parse::<u32>()) {
            (Ok(servers), Ok(workers)) if servers <= 1000 && (1..=1000).contains(&workers) => Ok((servers, workers)),
            _ => Err(format!("must be SERVERS{separator}WORKERS, as in 2{separator}4, each at most 1000")),
        }
    }
}
