//! Flags and variables with their own checks. `settings` combines them.

use std::path::PathBuf;

use clap::Args;

use crate::{data::DataKind, id::Role};

/// How gradients are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// Parameter servers wait for every worker's gradients of a step.
    Sync,
    /// Parameter servers apply each worker's gradients when they arrive.
    Async,
    /// Workers sum their gradients around a ring, without parameter servers.
    Allreduce,
}

/// The job. The scheduler sets these from the job file.
#[derive(Args, Clone, Debug)]
pub struct JobArgs {
    /// How gradients are combined.
    #[arg(long, env = "TRAINMASTER_MODE", default_value = "sync")]
    pub mode: Mode,
    /// Examples per step: of the whole job (sync, allreduce) or of one worker (async).
    #[arg(
        long,
        env = "TRAINMASTER_BATCH",
        default_value_t = 64,
        value_parser = clap::value_parser!(u64).range(1..=1 << 24),
    )]
    pub batch: u64,
    /// Examples per epoch; 0 for the default of 2000 (iris: 120).
    #[arg(
        long,
        env = "TRAINMASTER_EXAMPLES",
        default_value_t = 0,
        value_parser = clap::value_parser!(u64).range(0..=1 << 40),
    )]
    pub examples: u64,
    /// An epoch is flat if it lowers the loss by less than this fraction of the first epoch's; 0: never converge.
    #[arg(long, env = "TRAINMASTER_DELTA", default_value_t = 0.01, value_parser = share)]
    pub delta: f64,
    /// Number of consecutive flat epochs that are convergence.
    #[arg(long, env = "TRAINMASTER_PATIENCE", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub patience: u32,
    /// Maximum number of epochs; 0 for the default of 100.
    #[arg(long, env = "TRAINMASTER_MAX_EPOCHS", default_value_t = 0)]
    pub max_epochs: u32,
    /// Number of partitions of the model, cut so that the largest one is as small as possible: worker i trains
    /// partition i mod K of replica i / K. 1: each worker trains the whole model.
    #[arg(long, env = "TRAINMASTER_PARTITIONS", value_name = "K", default_value_t = 1)]
    pub partitions: u32,
    /// The predecessor of each partition, as set by the scheduler: -:0:1 is a chain of three partitions. Other graphs
    /// are refused.
    #[arg(long, env = "TRAINMASTER_PARTITIONS_AFTER", value_name = "PARTS", default_value = "", hide = true)]
    pub partitions_after: String,
    /// Number of data chunks, if the scheduler assigns chunks to workers; 0: the dataset isn't divided.
    #[arg(long, env = "TRAINMASTER_CHUNKS", default_value_t = 0)]
    pub chunks: u32,
    /// Passes over each chunk.
    #[arg(
        long,
        env = "TRAINMASTER_CHUNK_EPOCHS",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..),
    )]
    pub chunk_epochs: u32,
    /// Mini-batches per chunk.
    #[arg(
        long,
        env = "TRAINMASTER_CHUNK_BATCHES",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..),
    )]
    pub chunk_batches: u32,
}

/// The model and its data.
#[derive(Args, Clone, Debug)]
pub struct ModelArgs {
    /// Kind of the examples.
    #[arg(long, default_value = "blobs", help_heading = "Model and data")]
    pub data: DataKind,
    /// Number of classes [default: 10; iris has 3].
    #[arg(long, value_parser = clap::value_parser!(u32).range(2..=10_000), help_heading = "Model and data")]
    pub classes: Option<u32>,
    /// Number of features [default: 16; iris has 4].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000), help_heading = "Model and data")]
    pub features: Option<u32>,
    /// Sizes of the hidden layers (at most 2), as in 64,32; none is softmax regression.
    #[arg(
        long,
        value_delimiter = ',',
        num_args = 1..=2,
        value_parser = clap::value_parser!(u32).range(1..=100_000),
        help_heading = "Model and data",
    )]
    pub hidden: Vec<u32>,
    /// Standard deviation of the blobs, or perturbation of the teacher's scores; ignored for iris.
    #[arg(long, default_value_t = 1.5, value_parser = not_negative, help_heading = "Model and data")]
    pub noise: f64,
    /// Fraction of generated examples with a random label, 0 to 1.
    #[arg(long, default_value_t = 0.05, value_parser = share, help_heading = "Model and data")]
    pub label_noise: f64,
    /// Learning rate of gradient descent.
    #[arg(long, default_value_t = 0.02, value_parser = positive, help_heading = "Model and data")]
    pub learning_rate: f64,
    /// Momentum, 0 to 1.
    #[arg(long, default_value_t = 0.0, value_parser = share, help_heading = "Model and data")]
    pub momentum: f64,
    /// Seed of the data, the initial parameters and the order of the examples.
    #[arg(long, default_value_t = 1, help_heading = "Model and data")]
    pub seed: u64,
}

/// An emulated device: gradients are computed for real, then the step takes as long as it would on the device.
#[derive(Args, Clone, Debug)]
pub struct DeviceArgs {
    /// Milliseconds per example of a worker's share (forward pass).
    #[arg(
        long,
        value_name = "MS",
        default_value_t = 0.0,
        value_parser = not_negative,
        help_heading = "Emulated device",
    )]
    pub device_example_ms: f64,
    /// Milliseconds per step and worker, independent of its share (backward pass).
    #[arg(
        long,
        value_name = "MS",
        default_value_t = 0.0,
        value_parser = not_negative,
        help_heading = "Emulated device",
    )]
    pub device_step_ms: f64,
    /// Milliseconds to apply one worker's gradients to the whole model; a parameter server takes its part of that.
    #[arg(
        long,
        value_name = "MS",
        default_value_t = 0.0,
        value_parser = not_negative,
        help_heading = "Emulated device",
    )]
    pub device_update_ms: f64,
    /// Milliseconds per connection and step, at each end.
    #[arg(
        long,
        value_name = "MS",
        default_value_t = 0.0,
        value_parser = not_negative,
        help_heading = "Emulated device",
    )]
    pub device_connection_ms: f64,
    /// Milliseconds from a process's start until it is ready.
    #[arg(
        long,
        value_name = "MS",
        default_value_t = 0.0,
        value_parser = not_negative,
        help_heading = "Emulated device",
    )]
    pub device_start_ms: f64,
    /// Size of the emulated model, in MiB.
    #[arg(
        long,
        value_name = "MIB",
        default_value_t = 0.0,
        value_parser = not_negative,
        help_heading = "Emulated device",
    )]
    pub device_model_mib: f64,
    /// Rate of each process's network interface in each direction, in Mbit/s; 0: infinite. Only for traffic between
    /// different servers.
    #[arg(
        long,
        value_name = "MBIT",
        default_value_t = 0.0,
        value_parser = not_negative,
        help_heading = "Emulated device",
    )]
    pub device_nic_mbit: f64,
    /// Workers that are slower than the others, as INDEX:FACTOR,… (3:2.5 makes worker 3 take 2.5 times as long).
    #[arg(
        long,
        value_name = "INDEX:FACTOR",
        value_delimiter = ',',
        value_parser = straggler,
        help_heading = "Emulated device",
    )]
    pub device_straggler: Vec<(u32, f64)>,
}

/// Intervals and time limits.
#[derive(Args, Clone, Debug)]
pub struct PaceArgs {
    /// Maximum number of steps in total; 0: no limit.
    #[arg(long, visible_alias = "steps", default_value_t = 0, help_heading = "Pace")]
    pub max_steps: u64,
    /// Interval of reports in milliseconds (in addition to the end of every epoch).
    #[arg(long, value_name = "MS", default_value_t = 1000, help_heading = "Pace")]
    pub report_ms: u64,
    /// Maximum number of steps between reports; 0: no limit.
    #[arg(long, default_value_t = 0, help_heading = "Pace")]
    pub report_steps: u32,
    /// Number of steps after a change of workers that don't count as steady speed.
    #[arg(long, default_value_t = 1, help_heading = "Pace")]
    pub settle_steps: u32,
    /// Interval of checkpoints in milliseconds …
    #[arg(long, value_name = "MS", default_value_t = 30_000, help_heading = "Pace")]
    pub checkpoint_ms: u64,
    /// … and in epochs; 0: by time only.
    #[arg(long, default_value_t = 0, help_heading = "Pace")]
    pub checkpoint_epochs: u32,
    /// Maximum time that the first step waits for missing workers, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 30_000, help_heading = "Pace")]
    pub gather_ms: u64,
    /// Time for the replacement of a lost process before the job stops with a checkpoint, in milliseconds.
    #[arg(
        long,
        value_name = "MS",
        default_value_t = 60_000,
        value_parser = clap::value_parser!(u64).range(1..),
        help_heading = "Pace",
    )]
    pub replace_ms: u64,
    /// Maximum time that a job without any possible step waits, in milliseconds.
    #[arg(
        long,
        value_name = "MS",
        default_value_t = 600_000,
        value_parser = clap::value_parser!(u64).range(1..),
        help_heading = "Pace",
    )]
    pub start_ms: u64,
}

/// The slot of this process, and its job.
#[derive(Args, Clone, Debug)]
pub struct SlotArgs {
    /// The scheduler's feed, http://host:port (or https, with --feed-ca).
    #[arg(long, env = "TRAINMASTER_FEED", value_name = "URL")]
    pub feed: Option<String>,
    /// Certificate authority of an https feed, a PEM file.
    #[arg(long, env = "TRAINMASTER_FEED_CA", value_name = "FILE")]
    pub feed_ca: Option<PathBuf>,
    /// Without a feed: all slots of the job, as server0=host:port,worker0=host:port,…
    #[arg(
        long,
        env = "TRAINMASTER_PEERS",
        value_delimiter = ',',
        value_name = "SLOT=ADDRESS",
        conflicts_with = "feed"
    )]
    pub peers: Vec<String>,
    /// The job's number.
    #[arg(long, env = "TRAINMASTER_JOB", default_value_t = 0)]
    pub job: u64,
    /// The job's name, for messages.
    #[arg(long, env = "TRAINMASTER_JOB_NAME", default_value = "")]
    pub job_name: String,
    /// The job's token: sent with every call to the feed, and used as proof of membership to the job's other processes.
    #[arg(long, env = "TRAINMASTER_TOKEN", default_value = "", hide_env_values = true)]
    pub token: String,
    /// Role of this process.
    #[arg(long, env = "TRAINMASTER_ROLE")]
    pub role: Option<Role>,
    /// Index of this process's slot in its role.
    #[arg(long, env = "TRAINMASTER_INDEX", default_value_t = 0)]
    pub index: u32,
    /// The job's incarnation for which this process was started.
    #[arg(long, env = "TRAINMASTER_INCARNATION", default_value_t = 0)]
    pub incarnation: u32,
    /// The job's revision for which this process was started.
    #[arg(long, env = "TRAINMASTER_REVISION", default_value_t = 0)]
    pub revision: u32,
    /// Name of the server (machine) of this process [default: from the assignment].
    #[arg(long, env = "TRAINMASTER_SERVER", default_value = "")]
    pub server: String,
    /// Devices of that server on which this process computes, as 0,1.
    #[arg(long, env = "TRAINMASTER_DEVICES", value_name = "NUMBERS", default_value = "", value_parser = devices)]
    pub devices: Devices,
    /// Folder with a folder for each device of that server, through which processes share emulated devices.
    #[arg(long, env = "TRAINMASTER_DEVICE_DIR", value_name = "FOLDER")]
    pub device_dir: Option<PathBuf>,
    /// Folder of the job's checkpoints, the same for all incarnations; without it nothing is saved.
    #[arg(long, env = "TRAINMASTER_CHECKPOINT_DIR", value_name = "FOLDER")]
    pub checkpoint_dir: Option<PathBuf>,
    /// Folder on this server's disk for the job's data chunks; without it they are generated when they are needed.
    #[arg(long, env = "TRAINMASTER_DATA_DIR", value_name = "FOLDER")]
    pub data_dir: Option<PathBuf>,
    /// Upload time of a data chunk to this server, in milliseconds.
    #[arg(long, env = "TRAINMASTER_UPLOAD_MS", value_name = "MS", default_value_t = 0)]
    pub upload_ms: u64,
    /// Maximum time of training without the feed, in milliseconds.
    #[arg(long, env = "TRAINMASTER_ORPHAN_GRACE_MS", value_name = "MS", default_value_t = 600_000)]
    pub orphan_grace_ms: u64,
    /// Address on which to listen for the job's other processes.
    #[arg(long, env = "TRAINMASTER_BIND", value_name = "IP:PORT", default_value = "127.0.0.1:0")]
    pub bind: std::net::SocketAddr,
    /// Host name or address of this process for the others [default: the one on which it listens].
    #[arg(long, env = "TRAINMASTER_ADVERTISE", value_name = "HOST")]
    pub advertise: Option<String>,
}

/// Device numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Devices(pub Vec<u32>);

pub(crate) fn devices(text: &str) -> Result<Devices, String> {
    let numbers = text.split(',').map(str::trim).filter(|number| !number.is_empty()).map(str::parse);
    let numbers = numbers.collect::<Result<_, _>>();
    numbers.map(Devices).map_err(|_| "must be numbers, as in 0,1; empty for none".to_owned())
}

fn number(text: &str) -> Result<f64, String> {
    text.parse::<f64>().ok().filter(|value| value.is_finite()).ok_or_else(|| "not a number".to_owned())
}

fn not_negative(text: &str) -> Result<f64, String> {
    let value = number(text)?;
    if value >= 0.0 { Ok(value) } else { Err("must be at least 0".to_owned()) }
}

fn positive(text: &str) -> Result<f64, String> {
    let value = number(text)?;
    if value > 0.0 { Ok(value) } else { Err("must be more than 0".to_owned()) }
}

pub(crate) fn share(text: &str) -> Result<f64, String> {
    let value = number(text)?;
    if (0.0..=1.0).contains(&value) { Ok(value) } else { Err("must be from 0 to 1".to_owned()) }
}

fn straggler(text: &str) -> Result<(u32, f64), String> {
    let expected = || "must be INDEX:FACTOR, as in 3:2.5".to_owned();
    let (index, factor) = text.split_once(':').ok_or_else(expected)?;
    Ok((index.parse().map_err(|_| expected())?, positive(factor)?))
}

impl JobArgs {
    /// The equivalent flags.
    #[must_use]
    pub fn flags(&self) -> Vec<String> {
        let mode = match self.mode {
            Mode::Sync => "sync",
            Mode::Async => "async",
            Mode::Allreduce => "allreduce",
        };
        vec![
            format!("--mode={mode}"),
            format!("--batch={}", self.batch),
            format!("--examples={}", self.examples),
            format!("--delta={}", self.delta),
            format!("--patience={}", self.patience),
            format!("--max-epochs={}", self.max_epochs),
            format!("--partitions={}", self.partitions),
            format!("--partitions-after={}", self.partitions_after),
            format!("--chunks={}", self.chunks),
            format!("--chunk-epochs={}", self.chunk_epochs),
            format!("--chunk-batches={}", self.chunk_batches),
        ]
    }
}

impl ModelArgs {
    /// The equivalent flags.
    #[must_use]
    pub fn flags(&self) -> Vec<String> {
        let data = match self.data {
            DataKind::Blobs => "blobs",
            DataKind::Teacher => "teacher",
            DataKind::Iris => "iris",
        };
        let mut flags = vec![
            format!("--data={data}"),
            format!("--noise={}", self.noise),
            format!("--label-noise={}", self.label_noise),
            format!("--learning-rate={}", self.learning_rate),
            format!("--momentum={}", self.momentum),
            format!("--seed={}", self.seed),
        ];
        flags.extend(self.classes.map(|classes| format!("--classes={classes}")));
        flags.extend(self.features.map(|features| format!("--features={features}")));
        if !self.hidden.is_empty() {
            flags.push(format!("--hidden={}", join(&self.hidden)));
        }
        flags
    }
}

impl DeviceArgs {
    /// The equivalent flags.
    #[must_use]
    pub fn flags(&self) -> Vec<String> {
        let mut flags = vec![
            format!("--device-example-ms={}", self.device_example_ms),
            format!("--device-step-ms={}", self.device_step_ms),
            format!("--device-update-ms={}", self.device_update_ms),
            format!("--device-connection-ms={}", self.device_connection_ms),
            format!("--device-start-ms={}", self.device_start_ms),
            format!("--device-model-mib={}", self.device_model_mib),
            format!("--device-nic-mbit={}", self.device_nic_mbit),
        ];
        if !self.device_straggler.is_empty() {
            let list: Vec<String> = self.device_straggler.iter().map(|(index, by)| format!("{index}:{by}")).collect();
            flags.push(format!("--device-straggler={}", list.join(",")));
        }
        flags
    }
}

impl PaceArgs {
    /// The equivalent flags.
    #[must_use]
    pub fn flags(&self) -> Vec<String> {
        vec![
            format!("--max-steps={}", self.max_steps),
            format!("--report-ms={}", self.report_ms),
            format!("--report-steps={}", self.report_steps),
            format!("--settle-steps={}", self.settle_steps),
            format!("--checkpoint-ms={}", self.checkpoint_ms),
            format!("--checkpoint-epochs={}", self.checkpoint_epochs),
            format!("--gather-ms={}", self.gather_ms),
            format!("--replace-ms={}", self.replace_ms),
            format!("--start-ms={}", self.start_ms),
        ]
    }
}

fn join(numbers: &[u32]) -> String {
    numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}
