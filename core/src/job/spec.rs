//! The specification of a job by its owner.

use std::{collections::BTreeMap, ops::RangeInclusive};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{
    file,
    file::JobFileError,
    launcher::{Elastic, Launcher, Start},
    pairs,
    sizes::{MOST_WORKERS, Parallel, Sizes},
    utility::Utility,
};
#[cfg(feature = "schema")]
use crate::amount::{DurationText, SizeText};
use crate::{
    batch::BatchRange,
    forms,
    resources::{GpuTypes, is_gpu},
    shape::Shape,
    time::Span,
};

/// Which roles may be resized while the job runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Resize {
    /// Workers and parameter servers.
    #[default]
    Any,
    /// Workers only. The number of parameter servers stays as requested.
    Workers,
    /// None: the job runs with the requested shape or not at all.
    Fixed,
}

/// How workers exchange gradients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum TrainingMode {
    /// Parameter servers wait for the gradients of all workers in each step.
    #[default]
    Sync,
    /// Parameter servers apply the gradients of each worker when they arrive.
    Async,
    /// Without parameter servers: workers form a ring.
    AllReduce,
}

/// When a job has converged: [`patience`](Self::patience) epochs in a row lower the loss by less than `delta` times
/// the first loss (Optimus §2.1), or `max_epochs` are done. With a `delta` of 0 no epoch is flat, so the job trains
/// exactly `max_epochs`; job files say `epochs = N`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Convergence {
    /// A fraction of the first loss, from 0 up to 1.
    pub delta: f64,
    /// Epochs in a row.
    pub patience: u32,
    /// Maximum number of epochs.
    pub max_epochs: u32,
}

impl Convergence {
    /// A fixed number of epochs, whatever the losses.
    #[must_use]
    pub fn after(epochs: u32) -> Self {
        Self { delta: 0.0, max_epochs: epochs, ..Self::default() }
    }

    /// The number of epochs, if it is fixed.
    #[must_use]
    pub fn fixed(&self) -> Option<u32> {
        (self.delta == 0.0).then_some(self.max_epochs)
    }
}

impl Default for Convergence {
    fn default() -> Self {
        Self { delta: 0.01, patience: 3, max_epochs: 200 }
    }
}

/// The demand of one worker or parameter server, and the allowed counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoleSpec {
    /// Amounts by resource name, in sub-units.
    pub demand: BTreeMap<String, i64>,
    /// The minimum with which the job runs.
    pub min: u32,
    /// The maximum that the job can use.
    pub max: u32,
    /// The count that the job gets from an engine that doesn't choose.
    pub requested: u32,
    /// The program to start. Empty if the manager knows it.
    pub command: String,
}

/// Training data, for engines that schedule chunks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Dataset {
    /// Data chunks (D_j).
    pub chunks: u32,
    /// Mini-batches per chunk (Mb_j).
    pub batches_per_chunk: u32,
    /// Number of passes over each chunk (E_j).
    pub epochs: u32,
    /// Time of one mini-batch on one worker, without communication (τ). If it is unset, engines derive it from the
    /// fitted speed of a single worker.
    #[serde(default, with = "forms::optional_span")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<DurationText>"))]
    pub batch_time: Option<Span>,
    /// The source of uploads. A server's label `upload.` with this name states the time of an upload to it.
    #[serde(default)]
    pub upload: String,
    /// MiB of a chunk on the disk of the server that trains it. 0 if unknown.
    #[serde(default, with = "forms::mebibytes")]
    #[cfg_attr(feature = "schema", schemars(with = "SizeText"))]
    pub chunk_size: i64,
}

impl Dataset {
    /// Maximum number of chunks that are tracked one by one. No engine dispatches the chunks of a larger dataset.
    pub const MOST_TRACKED: u32 = 10_000;
}

/// One of several parts into which a model is cut. It is a task: each replica of the model trains the part on a worker
/// of its own (MLFS §3.2).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Partition {
    /// Number of parameters in the part (S_k). 0 in all parts: they have equal size.
    pub parameters: u64,
    /// The parts whose output this one needs, as indices of earlier list entries.
    pub after: Vec<u32>,
}

impl StopChoice {
    /// All choices, from the latest to the earliest end.
    pub const ALL: [Self; 3] = [Self::Epochs, Self::Optimal, Self::Accuracy];
}

impl Partition {
    /// A chain of `count` equal parts, each after the previous one: a model that is cut between its layers.
    pub fn chain(count: u32) -> Vec<Self> {
        (0..count).map(|at| Self { parameters: 0, after: at.checked_sub(1).into_iter().collect() }).collect()
    }
}

/// When training ends (MLFS §3.5), in addition to [`Convergence`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum StopChoice {
    /// Only by the owner's convergence rule (option i).
    #[default]
    Epochs,
    /// When the requested accuracy is reached or out of reach; without one, when further training would gain nothing
    /// (option ii, OptStop).
    Optimal,
    /// When the requested accuracy is reached (option iii).
    Accuracy,
}

/// A speed measured before the job was submitted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProfiledSpeed {
    /// Number of parameter servers (p).
    #[serde(rename = "p")]
    pub servers: u32,
    /// Number of workers (w).
    #[serde(rename = "w")]
    pub workers: u32,
    /// Steps per second.
    pub speed: f64,
}

/// A job as described by its owner, validated.
///
/// The TOML job file ([`JobSpec::from_toml`]), `job.proto` and the C struct have the same fields.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobSpec {
    /// Unique among active jobs.
    pub name: String,
    /// Name of the model. Jobs of one model share fitted speeds.
    pub model: String,
    /// The tenant that the job counts for.
    pub tenant: String,
    /// The queue of the job.
    pub queue: String,
    /// Engines that consider priorities take higher ones first.
    pub priority: i32,
    /// Which roles may be resized while it runs.
    pub resize: Resize,
    /// Synchronous, asynchronous or all-reduce.
    pub mode: TrainingMode,
    /// Examples per step: of the whole job (sync, all-reduce) or of one worker (async). Of a job whose batch the
    /// scheduler may choose, the one that it starts with.
    pub batch: u64,
    /// Examples per epoch. 0 if only the program knows.
    pub examples: u64,
    /// When the job has converged.
    pub convergence: Convergence,
    /// Demand and counts of the workers.
    pub worker: RoleSpec,
    /// Demand and counts of the parameter servers. `None` for all-reduce.
    pub server: Option<RoleSpec>,
    /// No server hosts both workers and parameter servers of the job, even if the pool allows it.
    pub separate_roles: bool,
    /// MiB of parameters. 0 if unknown.
    pub model_size: i64,
    /// The job's worth by its completion time (OASiS).
    pub utility: Option<Utility>,
    /// Time after arrival by which the job should be done (MLFS).
    pub deadline: Option<Span>,
    /// The accuracy that suffices (MLFS).
    pub accuracy: Option<f64>,
    /// When the scheduler ends the job.
    pub stop: StopChoice,
    /// The earliest choice that the owner allows while the cluster is overloaded. It is at least `stop`.
    pub stop_under_load: StopChoice,
    /// Urgency from 1 (can wait) to 10 (MLFS).
    pub urgency: Option<u32>,
    /// The data chunks (OASiS, edge).
    pub dataset: Option<Dataset>,
    /// The parts of the model, each after the parts that it needs. Empty if each worker has the whole model. Worker i
    /// trains part i mod K of replica i / K. So the job runs as requested (`resize = "fixed"`), with K workers per
    /// replica.
    pub partitions: Vec<Partition>,
    /// Labels that a server must have. `topology.require` and `topology.prefer` say how close to each other the job's
    /// slots must be ([`Topology`](crate::topology::Topology)). `worker.sizes` and `parallel.tp`, `parallel.pp` and
    /// `parallel.ep` say with how many workers it can run ([`JobSpec::sizes`]). `batch.min`, `batch.max` and
    /// `batch.local` say which batches the scheduler may choose ([`BatchRange`]).
    pub labels: BTreeMap<String, String>,
    /// Run time after which the job is stopped.
    pub time_limit: Option<Span>,
    /// Initial estimate of the cost of a restart.
    pub restart_cost: Option<Span>,
    /// Speeds measured before submission.
    pub profile: Vec<ProfiledSpeed>,
}

/// A job description that can't be accepted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{key}: {problem}")]
pub struct JobSpecError {
    /// The key, as in the job file.
    pub key: String,
    /// The value and what is allowed.
    pub problem: String,
}

impl JobSpec {
    /// The smallest valid job: one worker with one GPU, defaults for the rest. A starting point for builders and tests.
    pub fn minimal(name: &str) -> Self {
        Self {
            name: name.into(),
            model: name.into(),
            tenant: "default".into(),
            queue: "default".into(),
            priority: 0,
            resize: Resize::Any,
            mode: TrainingMode::Sync,
            batch: 256,
            examples: 0,
            convergence: Convergence::default(),
            worker: RoleSpec::of(&[("gpu", 1000), ("cpu", 1000)], 1..=16, 1),
            server: Some(RoleSpec::of(&[("cpu", 1000)], 1..=16, 1)),
            separate_roles: false,
            model_size: 0,
            utility: None,
            deadline: None,
            accuracy: None,
            stop: StopChoice::Epochs,
            stop_under_load: StopChoice::Epochs,
            urgency: None,
            dataset: None,
            partitions: Vec::new(),
            labels: BTreeMap::new(),
            time_limit: None,
            restart_cost: None,
            profile: Vec::new(),
        }
    }

    /// Reads a TOML job file.
    ///
    /// # Errors
    /// Names the key (and the line of a syntax error), the value and what is allowed.
    ///
    /// ```
    /// use trainmaster_core::JobSpec;
    /// let spec = JobSpec::from_toml(r#"
    ///     name = "resnet50"
    ///     worker = { gpu = 1, cpu = 4, memory = "10GiB", max = 16, requested = 4 }
    ///     server = { cpu = 4, memory = "10GiB", max = 16 }
    /// "#).unwrap();
    /// assert_eq!(spec.worker.demand["memory"], 10 * 1024);
    /// let error = JobSpec::from_toml("name = \"a\"\nworker = { gpus = 1 }").unwrap_err();
    /// assert!(error.to_string().contains("worker.gpus"));
    /// ```
    pub fn from_toml(text: &str) -> Result<Self, JobFileError> {
        file::parse(text)
    }

    /// The JSON Schema of the TOML job file. It allows all valid files, and refuses unknown keys and wrong types; what
    /// depends on several keys only [`from_toml`](Self::from_toml) checks.
    #[cfg(feature = "schema")]
    pub fn file_schema() -> schemars::Schema {
        schemars::schema_for!(file::File)
    }

    /// Reads the job file's fields from pairs of dotted key and value, for channels without a file. Text needs no
    /// quotes.
    ///
    /// # Errors
    /// Names the key, the value and what is allowed, in one line.
    ///
    /// ```
    /// use trainmaster_core::JobSpec;
    /// let pairs = [("name", "a"), ("mode", "allreduce"), ("worker.gpu", "1"), ("deadline", "12h")];
    /// assert_eq!(JobSpec::from_pairs(pairs).unwrap().worker.demand["gpu"], 1000);
    /// let error = JobSpec::from_pairs([("name", "a"), ("worker.gpus", "1")]).unwrap_err();
    /// assert!(error.to_string().contains("worker.gpus"));
    /// ```
    pub fn from_pairs<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, JobFileError> {
        pairs::parse(pairs)
    }

    /// The counts that an engine can choose: the job's limits under its `resize` rule.
    pub fn bounds(&self) -> Bounds {
        self.bounds_with(self.sizes())
    }

    /// The same with the job's [sizes](Self::sizes), which take longer to read than all else.
    pub(super) fn bounds_with(&self, sizes: Sizes) -> Bounds {
        let counts =
            |role: &RoleSpec, fixed: bool| if fixed { (role.requested, role.requested) } else { (role.min, role.max) };
        let (fewest, most) = counts(&self.worker, self.resize == Resize::Fixed);
        let servers = self.server.as_ref().map_or((0, 0), |role| counts(role, self.resize != Resize::Any));
        let workers = (sizes.at_least(fewest).unwrap_or(fewest), sizes.at_most(most).unwrap_or(most));
        Bounds { workers, servers, sizes }
    }

    /// The numbers of workers with which the job can run: those of the label `worker.sizes` that are multiples of what
    /// its [`Parallel`] needs, within the limits of [`bounds`](Self::bounds). O(1) without such labels.
    pub fn sizes(&self) -> Sizes {
        if self.labels.is_empty() {
            return Sizes::Any;
        }
        let parallel = Parallel::of(&self.labels).ok().flatten();
        let group = parallel.map_or(1, |parallel| parallel.group(self.worker.whole_gpus()));
        Sizes::of(&self.labels).in_groups_of(group.try_into().unwrap_or(u32::MAX))
    }

    /// Sets the workers' `max` and `requested`, by default the smallest of the job's [sizes](Self::sizes) from `min`
    /// on, or `min` if that is beyond `max`.
    pub fn count_workers(&mut self, max: Option<u32>, requested: Option<u32>) {
        let most = max.unwrap_or(MOST_WORKERS);
        let least = self.sizes().at_least(self.worker.min).filter(|least| *least <= most);
        self.worker.requested = requested.unwrap_or(least.unwrap_or(self.worker.min));
        self.worker.max = max.unwrap_or(self.worker.requested);
    }

    /// Environment variables of the job's processes. The manager adds its own.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        let mode = match self.mode {
            TrainingMode::Sync => "sync",
            TrainingMode::Async => "async",
            TrainingMode::AllReduce => "allreduce",
        };
        let mut environment = vec![
            ("TRAINMASTER_MODE", mode.to_owned()),
            ("TRAINMASTER_BATCH", self.batch.to_string()),
            ("TRAINMASTER_EXAMPLES", self.examples.to_string()),
            ("TRAINMASTER_DELTA", self.convergence.delta.to_string()),
            ("TRAINMASTER_PATIENCE", self.convergence.patience.to_string()),
            ("TRAINMASTER_MAX_EPOCHS", self.convergence.max_epochs.to_string()),
        ];
        if let Ok(Some(range)) = BatchRange::of(self) {
            // For the requested shape, where nobody knows another.
            range.batch(self.worker.requested, self.batch as f64).tell(self.batch, &mut environment);
        }
        if let Ok(Some(Parallel { tensor, pipeline, expert })) = Parallel::of(&self.labels) {
            let names = ["TRAINMASTER_TP", "TRAINMASTER_PP", "TRAINMASTER_EP"];
            environment.extend(names.into_iter().zip([tensor, pipeline, expert].map(|number| number.to_string())));
        }
        environment.extend(Launcher::variables(&self.start(), &self.name, self.bounds().workers));
        if !self.partitions.is_empty() {
            // The characters need no quotes in any shell: a chain of three is -:0:1. A part after two others has both
            // as 0+1.
            let after = |part: &Partition| match part.after.as_slice() {
                [] => "-".to_owned(),
                after => after.iter().map(u32::to_string).collect::<Vec<_>>().join("+"),
            };
            let after = self.partitions.iter().map(after).collect::<Vec<_>>().join(":");
            environment.push(("TRAINMASTER_PARTITIONS", self.partitions.len().to_string()));
            environment.push(("TRAINMASTER_PARTITIONS_AFTER", after));
        }
        if let Some(data) = &self.dataset {
            environment.extend([
                ("TRAINMASTER_CHUNKS", data.chunks.to_string()),
                ("TRAINMASTER_CHUNK_EPOCHS", data.epochs.to_string()),
                ("TRAINMASTER_CHUNK_BATCHES", data.batches_per_chunk.to_string()),
                ("TRAINMASTER_UPLOAD", data.upload.clone()),
            ]);
        }
        environment
    }

    /// How its programs start.
    pub fn start(&self) -> Start<'_> {
        Start {
            labels: &self.labels,
            command: &self.worker.command,
            allreduce: self.mode == TrainingMode::AllReduce,
            most: self.worker.max,
            gpus: self.worker.whole_gpus(),
        }
    }

    /// Adds labels that follow from a new job's commands, where it doesn't have them: [how it starts](Launcher), and
    /// [what a change does to it](Elastic).
    pub fn infer_start(&mut self) {
        let start = self.start();
        let launcher = (Launcher::of(&start) == Ok(Launcher::Torchrun)).then_some("torchrun");
        let elastic = Elastic::inferred(&start);
        for (label, value) in [(Launcher::LABEL, launcher), (Elastic::LABEL, elastic)] {
            if let Some(value) = value {
                self.labels.entry(label.into()).or_insert_with(|| value.into());
            }
        }
    }

    /// Puts words before its commands. After that, nothing can be inferred from them any more.
    pub(super) fn start_with(&mut self, words: &str) {
        for (label, value) in [(Launcher::LABEL, "none"), (Elastic::LABEL, "in_place")] {
            self.labels.entry(label.into()).or_insert_with(|| value.into());
        }
        for role in [Some(&mut self.worker), self.server.as_mut()].into_iter().flatten() {
            if !role.command.trim().is_empty() {
                role.command = format!("{words} {}", role.command);
            }
        }
    }

    /// The shape that the owner requested.
    pub fn requested(&self) -> Shape {
        Shape { workers: self.worker.requested, servers: self.server.as_ref().map_or(0, |role| role.requested) }
    }
}

impl RoleSpec {
    /// Demand by resource name, in sub-units; from the minimum to the maximum count, and the requested one. The
    /// manager knows the command.
    pub fn of(demand: &[(&str, i64)], counts: RangeInclusive<u32>, requested: u32) -> Self {
        Self {
            demand: demand.iter().map(|(name, amount)| ((*name).to_owned(), *amount)).collect(),
            min: *counts.start(),
            max: *counts.end(),
            requested,
            command: String::new(),
        }
    }

    /// The demand as managers get it, with one name for its GPUs: of several types the one that was chosen, `kind`
    /// (`gpu:a100`), and `gpu` for `gpu:*`.
    pub fn demand_with(&self, kind: Option<&str>) -> BTreeMap<String, i64> {
        let named = |name: &str| match (GpuTypes::of(name), kind) {
            (Some(GpuTypes::Any | GpuTypes::OneOf(_)), Some(kind)) => kind.to_owned(),
            (Some(GpuTypes::OneOf(_)), None) => "gpu".to_owned(),
            _ if name == "gpu:*" => "gpu".to_owned(),
            _ => name.to_owned(),
        };
        let is_unused = |name: &str, amount: i64| is_gpu(name) && amount == 0;
        let used = self.demand.iter().filter(|(name, amount)| !is_unused(name, **amount));
        used.map(|(name, amount)| (named(name), *amount)).collect()
    }

    /// Whole GPUs of one slot, of any type. 1 if it has none, or a part of one.
    pub(super) fn whole_gpus(&self) -> u32 {
        let most = self.demand.iter().filter(|(name, _)| is_gpu(name)).map(|(_, milli)| milli / 1000).max();
        most.map_or(1, |gpus| u32::try_from(gpus).unwrap_or(u32::MAX).max(1))
    }
}

/// The counts that a job can have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bounds {
    /// Minimum and maximum, both of them allowed.
    pub workers: (u32, u32),
    /// Minimum and maximum. (0, 0) for all-reduce.
    pub servers: (u32, u32),
    /// Which numbers of workers between them are allowed. Bounds are only saved of jobs with a dataset, which have no
    /// sizes.
    #[serde(skip)]
    pub sizes: Sizes,
}

impl Bounds {
    /// Whether a shape is allowed.
    pub fn hold(&self, shape: Shape) -> bool {
        (self.workers.0..=self.workers.1).contains(&shape.workers)
            && (self.servers.0..=self.servers.1).contains(&shape.servers)
            && self.sizes.has(shape.workers)
    }

    /// The next larger number of workers.
    #[inline]
    pub fn more_workers(&self, workers: u32) -> Option<u32> {
        self.sizes.at_least(workers + 1).filter(|more| *more <= self.workers.1)
    }

    /// The next smaller number of workers, or the smallest.
    #[inline]
    pub fn fewer_workers(&self, workers: u32) -> u32 {
        self.sizes.at_most(workers.saturating_sub(1)).map_or(self.workers.0, |fewer| fewer.max(self.workers.0))
    }

    /// The largest allowed number of workers that is at most this one, or the smallest.
    pub fn workers_at_most(&self, workers: u32) -> u32 {
        self.fewer_workers(workers.saturating_add(1))
    }

    /// The smallest allowed shape.
    pub fn least(&self) -> Shape {
        Shape { workers: self.workers.0, servers: self.servers.0 }
    }

    /// The largest allowed shape.
    pub fn most(&self) -> Shape {
        Shape { workers: self.workers.1, servers: self.servers.1 }
    }
}
