//! Jobs from C.

use trainmaster_core::{
    JobSpec, Span, Time, TrainingMode,
    job::{
        self, Convergence, Dataset, ExternalId, Partition, ProfiledSpeed, Resize, RoleSpec, StopChoice, Utility,
        UtilityKind,
    },
};

use crate::{
    borrow::{self, grows, plain},
    error::Failure,
    server::{amounts, labels, pick, trainmaster_amounts, trainmaster_labels},
    text::trainmaster_string,
};

/// Allowed changes of a running job's shape.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum trainmaster_resize {
    /// Workers and parameter servers.
    Any = 0,
    /// Workers only.
    Workers = 1,
    /// None: it runs in its requested shape.
    Fixed = 2,
}

/// The way in which gradients are combined.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum trainmaster_training_mode {
    /// Parameter servers wait for all workers in each step.
    Sync = 0,
    /// Parameter servers apply each worker's gradients when they arrive.
    Async = 1,
    /// There are no parameter servers: workers form a ring.
    Allreduce = 2,
}

/// When the scheduler may end the job before its convergence rule applies.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum trainmaster_stop {
    /// Only when the convergence rule applies.
    Epochs = 0,
    /// When the requested accuracy is reached or out of reach; without one, when further training would hardly improve
    /// the accuracy.
    Optimal = 1,
    /// When the requested accuracy is reached.
    Accuracy = 2,
}

/// The curve of a job's utility over the time t from its arrival to its end.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum trainmaster_utility_kind {
    /// value / (1 + e^(decay * (t - target)))
    Sigmoid = 0,
    /// value
    Constant = 1,
    /// value * (1 - t / (2 * target)), at least 0
    Linear = 2,
    /// value up to the target, then 0
    Step = 3,
    /// From the points.
    Table = 4,
}

/// Demand of one worker or one parameter server, and bounds of their number.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_role {
    /// sizeof(struct trainmaster_role).
    pub size: u32,
    /// Minimum number; 0 is 1.
    pub min: u32,
    /// Maximum number, up to 10000; 0: as requested.
    pub max: u32,
    /// The number that it gets from an engine that doesn't choose; 0: the minimum.
    pub requested: u32,
    /// Demand of one. At most one kind of GPU, in whole GPUs or a share of one.
    pub demand: trainmaster_amounts,
    /// The program to start. Empty if the manager knows it.
    pub command: trainmaster_string,
}

/// A convergence rule.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_convergence {
    /// sizeof(struct trainmaster_convergence).
    pub size: u32,
    /// Number of consecutive epochs; 0 is 3 ...
    pub patience: u32,
    /// ... that each lower the loss by less than this fraction of the first epoch's loss, from 0 up to 1. With 0 the
    /// job trains exactly `max_epochs`.
    pub delta: f64,
    /// Maximum number of epochs; 0 is 200.
    pub max_epochs: u32,
    /// Reserved: 0.
    pub reserved: u32,
}

/// A point of a utility table. Never grows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_worth {
    /// From this time after the arrival on, in milliseconds ...
    pub elapsed_ms: i64,
    /// ... an end has this utility.
    pub worth: f64,
}

/// Utility of a job by its completion time (engine `oasis`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_utility {
    /// sizeof(struct trainmaster_utility).
    pub size: u32,
    /// One of TRAINMASTER_UTILITY_KIND_*.
    pub kind: u32,
    /// Maximum utility, from 0 to 10^9.
    pub value: f64,
    /// Steepness of a sigmoid, per hour, from 0 to 10^6.
    pub decay: f64,
    /// In milliseconds.
    pub target_ms: i64,
    /// The first point of a table, by time. Other kinds have none.
    pub points: *const trainmaster_worth,
    /// Number of elements.
    pub points_count: u64,
    /// Bytes from one element to the next.
    pub points_stride: u64,
}

/// Training data, for engines that schedule chunks (`oasis`, `edge`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_dataset {
    /// sizeof(struct trainmaster_dataset).
    pub size: u32,
    /// Number of data chunks, at least 1.
    pub chunks: u32,
    /// Mini-batches per chunk, at least 1.
    pub batches_per_chunk: u32,
    /// Number of passes over each chunk, at least 1.
    pub epochs: u32,
    /// Time of a mini-batch on one worker without communication, in milliseconds. 0: from the fitted speed.
    pub batch_time_ms: i64,
    /// The location from which chunks are uploaded. A server's label `upload.` with this name has the duration.
    pub upload: trainmaster_string,
    /// Size of a chunk on the disk of the server that trains it, in MiB. 0 if unknown.
    pub chunk_size: i64,
}

/// A speed in a shape. Never grows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_speed {
    /// Parameter servers; 0 for all-reduce.
    pub servers: u32,
    /// Workers, at least 1.
    pub workers: u32,
    /// Steps per second.
    pub speed: f64,
}

/// An array of speeds.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_speeds {
    /// The first element.
    pub data: *const trainmaster_speed,
    /// Number of elements.
    pub count: u64,
    /// Bytes from one element to the next.
    pub stride: u64,
}

/// One partition of a model.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_partition {
    /// Number of parameters. 0 in all partitions: they have equal sizes.
    pub parameters: u64,
    /// The first of the partitions whose output it needs, by index in the array. They are earlier ones.
    pub after: *const u32,
    /// Number of elements.
    pub after_count: u64,
}

/// An array of partitions.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_partitions {
    /// The first element.
    pub data: *const trainmaster_partition,
    /// Number of elements.
    pub count: u64,
    /// Bytes from one element to the next.
    pub stride: u64,
}

/// A training job. Set the known fields and leave the rest 0. For each field, 0, an empty text and NULL mean what its
/// comment says, or that it is unknown.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_job {
    /// sizeof(struct trainmaster_job).
    pub size: u32,
    /// Engines that use priorities prefer higher ones.
    pub priority: i32,
    /// One of TRAINMASTER_RESIZE_*.
    pub resize: u32,
    /// One of TRAINMASTER_TRAINING_MODE_*.
    pub mode: u32,
    /// Unique among active jobs: 1 to 128 letters, digits, '.', '_' and '-', not starting with '.' and not a number.
    pub name: trainmaster_string,
    /// The kind of network. Jobs of one model share fitted speeds. Empty: the name.
    pub model: trainmaster_string,
    /// Owner of the job; empty is "default".
    pub tenant: trainmaster_string,
    /// Name of its queue; empty is "default".
    pub queue: trainmaster_string,
    /// Examples per step: of the whole job (sync, all-reduce) or of one worker (async); 0 is 1.
    pub batch: u64,
    /// Examples per epoch. 0 if only the program knows.
    pub examples: u64,
    /// Its workers. Not NULL.
    pub worker: *const trainmaster_role,
    /// Its parameter servers. NULL exactly for all-reduce.
    pub server: *const trainmaster_role,
    /// NULL: 3 consecutive epochs with gains below 0.01, at most 200.
    pub convergence: *const trainmaster_convergence,
    /// NULL: unknown.
    pub utility: *const trainmaster_utility,
    /// NULL: unknown.
    pub dataset: *const trainmaster_dataset,
    /// Size of the parameters in MiB.
    pub model_size_mib: i64,
    /// Deadline in milliseconds after its arrival.
    pub deadline_ms: i64,
    /// Maximum run time in milliseconds, after which it is stopped. 0: unlimited.
    pub time_limit_ms: i64,
    /// First estimate of a restart's cost, in milliseconds. It is measured while the job runs.
    pub restart_cost_ms: i64,
    /// Requested accuracy, up to 1.
    pub accuracy: f64,
    /// From 1 (low) to 10.
    pub urgency: u32,
    /// Reserved: 0.
    pub reserved: u32,
    /// Labels that a server must have. `topology.require` and `topology.prefer` say instead how close to each other the
    /// job's slots must be: `server`, `rack`, `block` or `zone`. `worker.sizes` says with how many workers the job can
    /// run: `multiples of 4`, `powers of 2` or a list such as `1,2,4`. `parallel.tp`, `parallel.pp` and `parallel.ep`
    /// say how its model is cut.
    pub labels: trainmaster_labels,
    /// Speeds that were measured before submission.
    pub profile: trainmaster_speeds,
    /// The cluster that the job came from, and its name there; empty: unknown.
    pub external_cluster: trainmaster_string,
    /// See `external_cluster`.
    pub external_name: trainmaster_string,
    /// 32 bytes: the BLAKE3 hash of the token with which the job reports. NULL: none.
    pub token_hash: *const u8,
    /// Not 0: no server may have both workers and parameter servers of the job. 0 for all-reduce.
    pub separate_roles: u32,
    /// One of TRAINMASTER_STOP_*.
    pub stop: u32,
    /// Partitions of its model, each after the ones that it depends on. Empty if every worker has the whole model.
    /// Worker i trains partition i % K of replica i / K; resize is then TRAINMASTER_RESIZE_FIXED.
    pub partitions: trainmaster_partitions,
    /// The same as `stop` while the cluster is overloaded: one of TRAINMASTER_STOP_*; 0: as `stop`.
    pub stop_under_load: u32,
    /// Reserved: 0.
    pub reserved_too: u32,
}

plain!(trainmaster_worth, trainmaster_speed, trainmaster_partition);
grows!(
    trainmaster_role: 56,
    trainmaster_convergence: 24,
    trainmaster_utility: 56,
    trainmaster_dataset: 40,
    trainmaster_job: 272,
);

/// A job's description, and its external id.
pub(crate) struct Submission {
    pub(crate) spec: JobSpec,
    pub(crate) external: Option<ExternalId>,
    pub(crate) token_hash: Option<[u8; 32]>,
}

/// Maximum time or duration in both directions. 31,000 years keep sums within their type.
const MOST_MS: i64 = 1_000_000_000_000_000;

pub(crate) fn span(ms: i64, name: &str) -> Result<Span, Failure> {
    if (0..=MOST_MS).contains(&ms) {
        return Ok(Span(ms));
    }
    Err(Failure::value(format!("{name}: {ms} ms must be from 0 to {MOST_MS}")))
}

pub(crate) fn time(ms: i64, name: &str) -> Result<Time, Failure> {
    span(ms, name).map(|span| Time(span.0))
}

fn known(ms: i64, name: &str) -> Result<Option<Span>, Failure> {
    Ok(Some(span(ms, name)?).filter(|span| *span > Span::ZERO))
}

fn optional<T: borrow::Grows, R>(
    pointer: *const T,
    name: &str,
    convert: impl FnOnce(T) -> Result<R, Failure>,
) -> Result<Option<R>, Failure> {
    if pointer.is_null() { Ok(None) } else { borrow::read(pointer, name).and_then(convert).map(Some) }
}

fn or<T: Default + PartialEq>(value: T, default: T) -> T {
    if value == T::default() { default } else { value }
}

impl trainmaster_job {
    pub(crate) fn convert(&self) -> Result<Submission, Failure> {
        let text = |text, name: &str| borrow::text(text, &format!("job.{name}"));
        let name = text(self.name, "name")?;
        let counts = borrow::read(self.worker, "job.worker")?;
        let given = |count: u32| (count > 0).then_some(count);
        let (max, requested) = (given(counts.max), given(counts.requested));
        let worker = role(counts, "job.worker")?;
        let profile = borrow::copies(self.profile.data, self.profile.count, self.profile.stride, "job.profile")?;
        let choices =
            [("epochs", StopChoice::Epochs), ("optimal", StopChoice::Optimal), ("accuracy", StopChoice::Accuracy)];
        let stop = pick(self.stop, "job.stop", &choices)?;
        let mut spec = JobSpec {
            model: or(text(self.model, "model")?, name.clone()),
            name,
            tenant: or(text(self.tenant, "tenant")?, "default".into()),
            queue: or(text(self.queue, "queue")?, "default".into()),
            priority: self.priority,
            resize: pick(
                self.resize,
                "job.resize",
                &[("any", Resize::Any), ("workers", Resize::Workers), ("fixed", Resize::Fixed)],
            )?,
            mode: training_mode(self.mode, "job.mode")?,
            batch: or(self.batch, 1),
            examples: self.examples,
            convergence: optional(self.convergence, "job.convergence", |rule| Ok(rule.convert()))?.unwrap_or_default(),
            worker,
            server: optional(self.server, "job.server", |server| role(server, "job.server"))?,
            separate_roles: self.separate_roles != 0,
            model_size: span(self.model_size_mib, "job.model_size_mib")?.0,
            utility: optional(self.utility, "job.utility", utility)?,
            deadline: known(self.deadline_ms, "job.deadline_ms")?,
            accuracy: Some(self.accuracy).filter(|accuracy| *accuracy != 0.0),
            stop,
            stop_under_load: match self.stop_under_load {
                0 => stop,
                choice => pick(choice, "job.stop_under_load", &choices)?,
            },
            urgency: Some(self.urgency).filter(|urgency| *urgency > 0),
            partitions: partitions(self.partitions)?,
            dataset: optional(self.dataset, "job.dataset", dataset)?,
            labels: labels(self.labels, "job.labels")?,
            time_limit: known(self.time_limit_ms, "job.time_limit_ms")?,
            restart_cost: known(self.restart_cost_ms, "job.restart_cost_ms")?,
            profile: profile
                .iter()
                .map(|at| ProfiledSpeed { servers: at.servers, workers: at.workers, speed: at.speed })
                .collect(),
        };
        spec.count_workers(max, requested);
        spec.validate()?;
        let cluster = text(self.external_cluster, "external_cluster")?;
        let native = text(self.external_name, "external_name")?;
        let external = (!native.is_empty()).then_some(ExternalId { cluster, native });
        let token_hash = match self.token_hash.is_null() {
            true => None,
            false => borrow::bytes(self.token_hash, 32, "job.token_hash")?.try_into().ok(),
        };
        Ok(Submission { spec, external, token_hash })
    }
}

fn partitions(parts: trainmaster_partitions) -> Result<Vec<Partition>, Failure> {
    let parts = borrow::copies(parts.data, parts.count, parts.stride, "job.partitions")?;
    let part = |(at, part): (usize, &trainmaster_partition)| {
        let after = borrow::copies(part.after, part.after_count, 4, &format!("job.partitions[{at}].after"))?;
        Ok(Partition { parameters: part.parameters, after })
    };
    parts.iter().enumerate().map(part).collect()
}

pub(crate) fn training_mode(mode: u32, name: &str) -> Result<TrainingMode, Failure> {
    let modes = [("sync", TrainingMode::Sync), ("async", TrainingMode::Async), ("allreduce", TrainingMode::AllReduce)];
    pick(mode, name, &modes)
}

impl trainmaster_convergence {
    pub(crate) fn convert(&self) -> Convergence {
        let defaults = Convergence::default();
        Convergence {
            // Zero has a meaning: only epochs without any gain count.
            delta: self.delta,
            patience: or(self.patience, defaults.patience),
            max_epochs: or(self.max_epochs, defaults.max_epochs),
        }
    }
}

fn role(role: trainmaster_role, name: &str) -> Result<RoleSpec, Failure> {
    let min = or(role.min, 1);
    let requested = or(role.requested, min);
    Ok(RoleSpec {
        demand: amounts(role.demand, &format!("{name}.demand"))?,
        min,
        max: or(role.max, requested),
        requested,
        command: borrow::text(role.command, &format!("{name}.command"))?,
    })
}

fn utility(utility: trainmaster_utility) -> Result<Utility, Failure> {
    use UtilityKind::{Constant, Linear, Sigmoid, Step, Table};
    let kinds = [("sigmoid", Sigmoid), ("constant", Constant), ("linear", Linear), ("step", Step), ("table", Table)];
    let points = borrow::copies(utility.points, utility.points_count, utility.points_stride, "job.utility.points")?;
    Ok(Utility {
        kind: pick(utility.kind, "job.utility.kind", &kinds)?,
        value: utility.value,
        decay: utility.decay,
        target: span(utility.target_ms, "job.utility.target_ms")?,
        points: points
            .iter()
            .map(|point| Ok((span(point.elapsed_ms, "job.utility.points")?, point.worth)))
            .collect::<Result<_, Failure>>()?,
    })
}

fn dataset(data: trainmaster_dataset) -> Result<job::Dataset, Failure> {
    Ok(Dataset {
        chunks: data.chunks,
        batches_per_chunk: data.batches_per_chunk,
        epochs: data.epochs,
        batch_time: known(data.batch_time_ms, "job.dataset.batch_time_ms")?,
        upload: borrow::text(data.upload, "job.dataset.upload")?,
        chunk_size: data.chunk_size,
    })
}
