//! The specification of a job by its owner, with the checks that need no cluster.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use thiserror::Error;

use super::{
    file,
    file::JobFileError,
    pairs,
    sizes::{MOST_WORKERS, Parallel, Sizes},
    utility::Utility,
};
use crate::{
    forms,
    resources::{GpuTypes, is_gpu},
    shape::Shape,
    text::{is_unseen, shown},
    time::Span,
    topology::{Level, Topology},
};

/// Which roles may be resized while the job runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
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
    pub batch_time: Option<Span>,
    /// The source of uploads. A server's label `upload.` with this name states the time of an upload to it.
    #[serde(default)]
    pub upload: String,
    /// MiB of a chunk on the disk of the server that trains it. 0 if unknown.
    #[serde(default, with = "forms::mebibytes")]
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
pub struct ProfiledSpeed {
    /// p.
    #[serde(rename = "p")]
    pub servers: u32,
    /// w.
    #[serde(rename = "w")]
    pub workers: u32,
    /// Steps per second.
    pub speed: f64,
}

/// Maximum number of parts of a model.
const MOST_PARTITIONS: usize = 256;
/// Maximum number of resources of one role, and maximum bytes of their names.
const MOST_RESOURCES: usize = 16;
const LONGEST_RESOURCE: usize = 64;
/// Maximum number of GPU types in one demand.
const MOST_TYPES: usize = 8;
/// Maximum number of required labels, and maximum bytes of a label and of its value.
const MOST_LABELS: usize = 64;
const LONGEST_LABEL: usize = 128;
const LONGEST_LABEL_VALUE: usize = 256;
/// Maximum number of profiled speeds. It exceeds the number of (p, w) pairs that are kept of a job's own measurements.
const MOST_PROFILED: usize = 256;
/// Maximum bytes of the upload source.
const LONGEST_UPLOAD: usize = 128;

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
    /// Examples per step: of the whole job (sync, all-reduce) or of one worker (async).
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
    /// slots must be ([`Topology`]). `worker.sizes` and `parallel.tp`, `parallel.pp` and `parallel.ep` say with how
    /// many workers it can run ([`JobSpec::sizes`]).
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
        let role = |demand: &[(&str, i64)], max| RoleSpec {
            demand: demand.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
            min: 1,
            max,
            requested: 1,
            command: String::new(),
        };
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
            worker: role(&[("gpu", 1000), ("cpu", 1000)], 16),
            server: Some(role(&[("cpu", 1000)], 16)),
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

    /// Makes the checks of a new job: [`validate`](Self::validate), and rules that jobs in old journals may break.
    ///
    /// # Errors
    /// The first key that is wrong, its value and what is allowed.
    pub fn validate_new(&self) -> Result<(), JobSpecError> {
        self.validate()?;
        let names = [("name", &self.name), ("model", &self.model), ("tenant", &self.tenant), ("queue", &self.queue)];
        match names.into_iter().find(|(_, name)| name.starts_with('-')) {
            None => Ok(()),
            // Commands would read it as an option.
            Some((key, name)) => {
                Err(JobSpecError { key: key.into(), problem: format!("{name:?} must not start with '-'") })
            }
        }
    }

    /// Makes all checks that need no cluster.
    ///
    /// # Errors
    /// The first key that is wrong, its value and what is allowed.
    pub fn validate(&self) -> Result<(), JobSpecError> {
        let fail = |key: &str, problem: String| Err(JobSpecError { key: key.into(), problem });
        for (key, name) in
            [("name", &self.name), ("model", &self.model), ("tenant", &self.tenant), ("queue", &self.queue)]
        {
            let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
            if name.is_empty() || name.len() > 128 || name.starts_with('.') || !name.chars().all(allowed) {
                let name = shown(name, 128);
                return fail(
                    key,
                    format!("\"{name}\" must be 1 to 128 letters, digits, '.', '_' or '-', not starting with '.'"),
                );
            }
        }
        if self.name.bytes().all(|byte| byte.is_ascii_digit()) {
            return fail("name", format!("{:?} reads as a job's number; put a letter into it", self.name));
        }
        if self.batch == 0 {
            return fail("batch", "0 must be at least 1".into());
        }
        let Convergence { delta, patience, max_epochs } = self.convergence;
        if !(0.0..1.0).contains(&delta) {
            return fail("convergence.delta", format!("{delta} must be from 0 up to 1, a fraction of the first loss"));
        }
        if patience == 0 || max_epochs == 0 {
            let key = if patience == 0 { "convergence.patience" } else { "convergence.max_epochs" };
            return fail(key, "0 must be at least 1".into());
        }
        match (self.mode, &self.server) {
            (TrainingMode::AllReduce, Some(_)) => {
                return fail(
                    "server",
                    "an allreduce job has no parameter servers; leave it out or change the mode".into(),
                );
            }
            (TrainingMode::Sync | TrainingMode::Async, None) => {
                return fail(
                    "server",
                    "is missing: a sync or async job needs parameter servers (mode = \"allreduce\" needs none)".into(),
                );
            }
            _ => {}
        }
        // If it were ignored, the key would promise something that an all-reduce job can't have.
        if self.separate_roles && self.server.is_none() {
            return fail(
                "separate_roles",
                "true needs parameter servers to keep apart, which an allreduce job hasn't; leave it out".into(),
            );
        }
        for (key, role) in [("worker", Some(&self.worker)), ("server", self.server.as_ref())] {
            let Some(role) = role else { continue };
            role.validate(key)?;
            let list = role.demand.keys().find(|name| matches!(GpuTypes::of(name), Some(GpuTypes::OneOf(_))));
            if let Some(name) = list.filter(|_| key == "server") {
                return fail("server.gpu", format!("{name:?}: only workers may have one of several types; name one"));
            }
        }
        if let Some(accuracy) = self.accuracy.filter(|accuracy| !(0.0..=1.0).contains(accuracy)) {
            return fail("accuracy", format!("{accuracy} must be from 0 to 1"));
        }
        self.validate_sizes()?;
        self.validate_labels()?;
        self.validate_stop()?;
        self.validate_partitions()?;
        if self.profile.len() > MOST_PROFILED {
            return fail("profile", format!("{} measurements must be at most {MOST_PROFILED}", self.profile.len()));
        }
        for (at, sample) in self.profile.iter().enumerate() {
            let no_servers = self.server.is_none();
            if sample.workers == 0 || (sample.servers == 0) != no_servers || !(sample.speed > 0.0 && sample.speed < 1e9)
            {
                return fail(
                    &format!("profile[{at}]"),
                    format!(
                        "p = {}, w = {}, speed = {} must have w ≥ 1, {} and a speed above 0",
                        sample.servers,
                        sample.workers,
                        sample.speed,
                        if no_servers { "p = 0" } else { "p ≥ 1" }
                    ),
                );
            }
        }
        if let Some(Err((key, problem))) = self.utility.as_ref().map(Utility::check) {
            return fail(key, problem);
        }
        if let Some(data) = &self.dataset {
            for (field, count) in
                [("chunks", data.chunks), ("batches_per_chunk", data.batches_per_chunk), ("epochs", data.epochs)]
            {
                if count == 0 {
                    return fail(&format!("dataset.{field}"), "0 must be at least 1".into());
                }
            }
            if data.upload.len() > LONGEST_UPLOAD || data.upload.chars().any(is_unseen) {
                let text = shown(&data.upload, LONGEST_UPLOAD);
                return fail(
                    "dataset.upload",
                    format!("\"{text}\" must be at most {LONGEST_UPLOAD} bytes without control characters"),
                );
            }
            if !(0..=1 << 40).contains(&data.chunk_size) {
                return fail("dataset.chunk_size", format!("{} MiB must be from 0 to 2^40", data.chunk_size));
            }
            if data.batch_time.is_some_and(|time| time <= Span::ZERO) {
                return fail("dataset.batch_time", "must be above 0, such as \"250ms\"".into());
            }
        }
        Ok(())
    }

    fn validate_labels(&self) -> Result<(), JobSpecError> {
        let fail = |problem: String| Err(JobSpecError { key: "constraints.labels".into(), problem });
        if self.labels.len() > MOST_LABELS {
            return fail(format!("{} labels must be at most {MOST_LABELS}", self.labels.len()));
        }
        for (text, most) in
            self.labels.iter().flat_map(|(label, value)| [(label, LONGEST_LABEL), (value, LONGEST_LABEL_VALUE)])
        {
            if text.len() > most || text.chars().any(is_unseen) {
                return fail(format!(
                    "\"{}\" must be at most {most} bytes without control characters",
                    shown(text, most)
                ));
            }
        }
        for label in [Topology::REQUIRE, Topology::PREFER] {
            if let Some(Err(allowed)) = self.labels.get(label).map(|level| level.parse::<Level>()) {
                let level = shown(&self.labels[label], LONGEST_LABEL_VALUE);
                return Err(JobSpecError { key: label.into(), problem: format!("\"{level}\" {allowed}") });
            }
        }
        Ok(())
    }

    fn validate_sizes(&self) -> Result<(), JobSpecError> {
        let fail = |key: &str, problem: String| Err(JobSpecError { key: key.into(), problem });
        if let Some(text) = self.labels.get(Sizes::LABEL) {
            if text.len() > LONGEST_LABEL_VALUE {
                let problem = format!(
                    "a list of {} characters must have at most {LONGEST_LABEL_VALUE}; a rule is shorter, such as \
                     \"multiples of 4\"",
                    text.len()
                );
                return fail(Sizes::LABEL, problem);
            }
            text.parse::<Sizes>().or_else(|problem| fail(Sizes::LABEL, problem).map(|()| Sizes::Any))?;
        }
        let parallel =
            Parallel::of(&self.labels).map_err(|(key, problem)| JobSpecError { key: key.into(), problem })?;
        let key = match parallel {
            Some(_) => "parallel",
            None if self.labels.contains_key(Sizes::LABEL) => Sizes::LABEL,
            None => return Ok(()),
        };
        if self.dataset.is_some() {
            return fail(key, "can't be used with a dataset, whose engines choose any number of workers".into());
        }
        let (min, max) = (self.worker.min, self.worker.max);
        let gpus = self.worker.whole_gpus();
        if let Some(parallel) = parallel
            && parallel.group(gpus) > u64::from(max)
        {
            let Parallel { tensor, pipeline, expert } = parallel;
            let problem = format!(
                "tp = {tensor}, pp = {pipeline}, ep = {expert} need a multiple of {} workers with {gpus} GPUs each, \
                 and worker.max is {max}",
                parallel.group(gpus)
            );
            return fail(key, problem);
        }
        let sizes = self.sizes();
        if sizes == Sizes::Listed(SmallVec::new()) {
            let group = parallel.map_or(1, |parallel| parallel.group(gpus));
            let problem = format!("{} has no multiple of {group}, as parallel needs", self.labels[Sizes::LABEL]);
            return fail(Sizes::LABEL, problem);
        }
        if sizes.at_least(min).is_none_or(|least| least > max) {
            return fail(key, format!("{sizes}: none is from worker.min = {min} to worker.max = {max}"));
        }
        let requested = self.worker.requested;
        if !sizes.has(requested) {
            let near = [sizes.at_most(requested), sizes.at_least(requested)].into_iter().flatten();
            let near: Vec<_> = near.filter(|size| (min..=max).contains(size)).map(|size| size.to_string()).collect();
            let sizes = sizes.within(min, max);
            let problem = format!("{requested} isn't one of the job's sizes ({sizes}); ask for {}", near.join(" or "));
            return fail("worker.requested", problem);
        }
        Ok(())
    }

    fn validate_stop(&self) -> Result<(), JobSpecError> {
        let fail = |key: &str, problem: &str| Err(JobSpecError { key: key.into(), problem: problem.into() });
        if self.stop == StopChoice::Accuracy && self.accuracy.is_none() {
            return fail("stop", "\"accuracy\" needs the accuracy that suffices; give it as accuracy = 0.9");
        }
        if self.stop_under_load < self.stop {
            return fail(
                "stop_under_load",
                "must not be later than stop: \"epochs\", \"optimal\", \"accuracy\" in this order",
            );
        }
        Ok(())
    }

    fn validate_partitions(&self) -> Result<(), JobSpecError> {
        let fail = |key: &str, problem: String| Err(JobSpecError { key: key.into(), problem });
        let count = self.partitions.len();
        if count == 0 {
            return Ok(());
        }
        if count > MOST_PARTITIONS {
            return fail("partitions", format!("{count} parts must be at most {MOST_PARTITIONS}"));
        }
        if self.resize != Resize::Fixed {
            return fail(
                "partitions",
                "a model that is cut into parts runs as requested; add resize = \"fixed\"".into(),
            );
        }
        if !(self.worker.requested as usize).is_multiple_of(count) {
            let problem = format!("{} must be a multiple of the {count} partitions", self.worker.requested);
            return fail("worker.requested", problem);
        }
        for (at, part) in self.partitions.iter().enumerate() {
            if let Some(later) = part.after.iter().find(|other| **other as usize >= at) {
                return fail(
                    &format!("partitions[{at}].after"),
                    format!("{later} must be the place of an earlier part, below {at}"),
                );
            }
            let mut needed = part.after.clone();
            needed.sort_unstable();
            if let Some(pair) = needed.windows(2).find(|pair| pair[0] == pair[1]) {
                return fail(&format!("partitions[{at}].after"), format!("{} is named twice", pair[0]));
            }
        }
        Ok(())
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
        if let Ok(Some(Parallel { tensor, pipeline, expert })) = Parallel::of(&self.labels) {
            let names = ["TRAINMASTER_TP", "TRAINMASTER_PP", "TRAINMASTER_EP"];
            environment.extend(names.into_iter().zip([tensor, pipeline, expert].map(|number| number.to_string())));
        }
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

    /// The shape that the owner requested.
    pub fn requested(&self) -> Shape {
        Shape { workers: self.worker.requested, servers: self.server.as_ref().map_or(0, |role| role.requested) }
    }
}

impl RoleSpec {
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

    fn validate(&self, key: &str) -> Result<(), JobSpecError> {
        let fail = |field: &str, problem: String| Err(JobSpecError { key: format!("{key}.{field}"), problem });
        if self.demand.len() > MOST_RESOURCES {
            return fail("resources", format!("{} resources must be at most {MOST_RESOURCES}", self.demand.len()));
        }
        for (name, &value) in &self.demand {
            if let Some(types @ GpuTypes::OneOf(_)) = GpuTypes::of(name) {
                validate_types(name, types).map_err(|problem| JobSpecError { key: format!("{key}.gpu"), problem })?;
            } else if name.is_empty()
                || name.len() > LONGEST_RESOURCE
                || name.chars().any(|c| is_unseen(c) || c.is_whitespace())
            {
                let name = shown(name, LONGEST_RESOURCE);
                return fail(
                    "resources",
                    format!("\"{name}\" must be a name of 1 to {LONGEST_RESOURCE} bytes without spaces"),
                );
            }
            if !(0..=1_000_000_000_000).contains(&value) {
                return fail(name, format!("{value} must be from 0 to 10^12 sub-units"));
            }
            if is_gpu(name) && value > 1000 && value % 1000 != 0 {
                return fail(
                    name,
                    format!("{} must be a whole number or a fraction of one device", value as f64 / 1000.0),
                );
            }
        }
        let kinds: Vec<_> = self.demand.iter().filter(|(name, value)| name.starts_with("gpu") && **value > 0).collect();
        if kinds.len() > 1 {
            return fail("gpu", format!("name one kind of GPU, not both {:?} and {:?}", kinds[0].0, kinds[1].0));
        }
        if self.demand.values().all(|value| *value == 0) {
            return fail("cpu", "a demand of nothing can't be scheduled; give at least one resource".into());
        }
        if self.min == 0 || self.min > self.max || self.max > MOST_WORKERS {
            let problem = format!("min = {}, max = {} must be 1 ≤ min ≤ max ≤ {MOST_WORKERS}", self.min, self.max);
            return fail("max", problem);
        }
        if !(self.min..=self.max).contains(&self.requested) {
            return fail(
                "requested",
                format!("{} must be from min = {} to max = {}", self.requested, self.min, self.max),
            );
        }
        if self.command.len() > 4096 || self.command.contains('\0') {
            let problem = format!("{} characters must be at most 4096, none of them NUL", self.command.len());
            return fail("command", problem);
        }
        Ok(())
    }
}

/// Checks a list of GPU types, such as `gpu:a100|v100`.
fn validate_types(name: &str, types: GpuTypes<'_>) -> Result<(), String> {
    let wrong = |problem: String| Err(format!("\"{}\" {problem}", shown(name, LONGEST_RESOURCE)));
    if name.len() > LONGEST_RESOURCE * MOST_TYPES {
        return wrong(format!("must have at most {} bytes", LONGEST_RESOURCE * MOST_TYPES));
    }
    let mut listed: Vec<String> = types.listed().collect();
    if listed.len() > MOST_TYPES || listed.len() != name.split('|').count() {
        return wrong(format!("must list 2 to {MOST_TYPES} types, such as \"gpu:a100|v100\""));
    }
    let strange = |c: char| is_unseen(c) || c.is_whitespace() || c == '*';
    if let Some(kind) = listed.iter().find(|kind| kind.len() > LONGEST_RESOURCE || kind.chars().any(strange)) {
        let kind = shown(kind, LONGEST_RESOURCE);
        return wrong(format!(
            "lists \"{kind}\", which must have at most {LONGEST_RESOURCE} bytes without spaces or *"
        ));
    }
    listed.sort_unstable();
    match listed.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => wrong(format!("lists {} twice", pair[0])),
        None => Ok(()),
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
