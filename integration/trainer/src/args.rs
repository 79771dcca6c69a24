//! Flags and variables with their own checks. `settings` combines them.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use serde_json::Value;

use crate::{data::DataKind, device::Device, id::Role};

/// How gradients are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Parameter servers wait for every worker's gradients of a step.
    Sync,
    /// Parameter servers apply each worker's gradients when they arrive.
    Async,
    /// Workers sum their gradients around a ring, without parameter servers.
    Allreduce,
}

/// The training.
#[derive(Args, Clone, Debug, Serialize)]
#[allow(missing_docs)] // each group documents itself
pub struct TrainingArgs {
    #[command(flatten)]
    #[serde(flatten)]
    pub job: JobArgs,
    #[command(flatten)]
    #[serde(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    #[serde(flatten)]
    pub device: Device,
    #[command(flatten)]
    #[serde(flatten)]
    pub pace: PaceArgs,
}

impl TrainingArgs {
    /// The equivalent flags.
    pub fn flags(&self) -> Vec<String> {
        let values = serde_json::to_value(self).expect("flags are plain data");
        let flag = |(name, value): (&String, &Value)| {
            shown(value, ",").map(|value| format!("--{}={value}", name.replace('_', "-")))
        };
        values.as_object().into_iter().flatten().filter_map(flag).collect()
    }
}

/// A flag's value. None for a flag that isn't given. Parts of a list's item are separated by colons.
fn shown(value: &Value, separator: &str) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().filter_map(|item| shown(item, ":")).collect();
            (!items.is_empty()).then(|| items.join(separator))
        }
        other => Some(other.to_string()),
    }
}

/// The job. The scheduler sets these from the job file.
#[derive(Args, Clone, Debug, Serialize)]
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
#[derive(Args, Clone, Debug, Serialize)]
#[command(next_help_heading = "Model and data")]
pub struct ModelArgs {
    /// Kind of the examples.
    #[arg(long, default_value = "blobs")]
    pub data: DataKind,
    /// Number of classes [default: 10; iris has 3].
    #[arg(long, value_parser = clap::value_parser!(u32).range(2..=10_000))]
    pub classes: Option<u32>,
    /// Number of features [default: 16; iris has 4].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub features: Option<u32>,
    /// Sizes of the hidden layers (at most 2), as in 64,32; none is softmax regression.
    #[arg(long, value_delimiter = ',', num_args = 1..=2, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub hidden: Vec<u32>,
    /// Standard deviation of the blobs, or perturbation of the teacher's scores; ignored for iris.
    #[arg(long, default_value_t = 1.5, value_parser = not_negative)]
    pub noise: f64,
    /// Fraction of generated examples with a random label, 0 to 1.
    #[arg(long, default_value_t = 0.05, value_parser = share)]
    pub label_noise: f64,
    /// Learning rate of gradient descent.
    #[arg(long, default_value_t = 0.02, value_parser = positive)]
    pub learning_rate: f64,
    /// Momentum, 0 to 1.
    #[arg(long, default_value_t = 0.0, value_parser = share)]
    pub momentum: f64,
    /// Seed of the data, the initial parameters and the order of the examples.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// Intervals and time limits.
#[derive(Args, Clone, Debug, Serialize)]
#[command(next_help_heading = "Pace")]
pub struct PaceArgs {
    /// Maximum number of steps in total; 0: no limit.
    #[arg(long, visible_alias = "steps", default_value_t = 0)]
    pub max_steps: u64,
    /// Interval of reports in milliseconds (in addition to the end of every epoch).
    #[arg(long, value_name = "MS", default_value_t = 1000)]
    pub report_ms: u64,
    /// Maximum number of steps between reports; 0: no limit.
    #[arg(long, default_value_t = 0)]
    pub report_steps: u32,
    /// Number of steps after a change of workers that don't count as steady speed.
    #[arg(long, default_value_t = 1)]
    pub settle_steps: u32,
    /// Interval of checkpoints in milliseconds …
    #[arg(long, value_name = "MS", default_value_t = 30_000)]
    pub checkpoint_ms: u64,
    /// … and in epochs; 0: by time only.
    #[arg(long, default_value_t = 0)]
    pub checkpoint_epochs: u32,
    /// Maximum time that the first step waits for missing workers, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 30_000)]
    pub gather_ms: u64,
    /// Time for the replacement of a lost process before the job stops with a checkpoint, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 60_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub replace_ms: u64,
    /// Maximum time that a job without any possible step waits, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 600_000, value_parser = clap::value_parser!(u64).range(1..))]
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

pub(crate) fn not_negative(text: &str) -> Result<f64, String> {
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

pub(crate) fn straggler(text: &str) -> Result<(u32, f64), String> {
    let expected = || "must be INDEX:FACTOR, as in 3:2.5".to_owned();
    let (index, factor) = text.split_once(':').ok_or_else(expected)?;
    Ok((index.parse().map_err(|_| expected())?, positive(factor)?))
}
