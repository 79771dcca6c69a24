//! Jobs: what was asked for ([`JobSpec`]) and what is known about each active one ([`Job`]).

mod file;

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use self::file::JobFileError;
use crate::{
    decision::{Allocation, Role, Shape, Verdict},
    fit::{LossFit, LossHistory, Prediction, SpeedFit, SpeedHistory, Straggler, StragglerWatch},
    ids::{Incarnation, JobId, QueueId, ResourceId, Revision, TenantId},
    reason::Reason,
    resources::{Amounts, GPU, ResourceTypes},
    time::{Span, Time},
};

/// How a job may be resized while it runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Resize {
    /// Workers and parameter servers.
    #[default]
    Any,
    /// Workers only; parameter servers stay at what was requested.
    Workers,
    /// Never: it runs as requested or not at all.
    Fixed,
}

/// How gradients meet parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TrainingMode {
    /// Parameter servers wait for every worker in each step.
    #[default]
    Sync,
    /// Parameter servers update with each worker's gradients as they come.
    Async,
    /// No parameter servers: workers form a ring.
    AllReduce,
}

/// When a job has converged: [`patience`](Self::patience) epochs in a row lower the loss by less than `delta` times
/// the first loss (Optimus §2.1), or `max_epochs` are done.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Convergence {
    /// A fraction of the first loss.
    pub delta: f64,
    /// Epochs in a row.
    pub patience: u32,
    /// The end in any case.
    pub max_epochs: u32,
}

impl Default for Convergence {
    fn default() -> Self {
        Self { delta: 0.01, patience: 3, max_epochs: 200 }
    }
}

/// What one worker or one parameter server needs, and how many there may be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoleSpec {
    /// By resource name, in sub-units.
    pub demand: BTreeMap<String, i64>,
    /// The fewest that the job runs with.
    pub min: u32,
    /// The most it can use.
    pub max: u32,
    /// What it gets from an engine that doesn't choose.
    pub requested: u32,
    /// The program to start; empty where the manager knows it.
    pub command: String,
}

/// What an early completion is worth (OASiS §3).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Utility {
    /// The curve.
    pub kind: UtilityKind,
    /// Worth when done at once.
    pub value: f64,
    /// How sharply it falls around the target.
    pub decay: f64,
    /// When half of it is gone.
    pub target: Span,
}

/// The family of a [`Utility`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)] // the curves' usual names
pub enum UtilityKind {
    Sigmoid,
    Constant,
    Linear,
    Step,
}

/// Training data, for engines that schedule chunks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dataset {
    /// Data chunks (D_j).
    pub chunks: u32,
    /// Mini-batches in a chunk (Mb_j).
    pub batches_per_chunk: u32,
    /// Times each chunk is trained (E_j).
    pub epochs: u32,
    /// Where a chunk is uploaded from.
    pub upload: String,
}

/// A speed measured before the job was submitted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProfiledSpeed {
    /// p.
    pub servers: u32,
    /// w.
    pub workers: u32,
    /// Steps per second.
    pub speed: f64,
}

/// A job as its owner describes it, validated.
///
/// The same fields travel in the TOML job file ([`JobSpec::from_toml`]), `job.proto` and the C struct.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobSpec {
    /// Unique among active jobs.
    pub name: String,
    /// Jobs of one model share what was learnt about its speed.
    pub model: String,
    /// Who pays.
    pub tenant: String,
    /// Which queue it waits in.
    pub queue: String,
    /// Higher goes first where an engine looks at it.
    pub priority: i32,
    /// What may change while it runs.
    pub resize: Resize,
    /// Synchronous, asynchronous or all-reduce.
    pub mode: TrainingMode,
    /// Examples a step trains: of the whole job (sync, all-reduce) or of one worker (async).
    pub batch: u64,
    /// Examples in an epoch; 0 where only the program knows.
    pub examples: u64,
    /// When it is done.
    pub convergence: Convergence,
    /// Its workers.
    pub worker: RoleSpec,
    /// Its parameter servers; none for all-reduce.
    pub server: Option<RoleSpec>,
    /// MiB of parameters; 0 where unknown.
    pub model_size: i64,
    /// Worth of an early end (OASiS).
    pub utility: Option<Utility>,
    /// Time after arrival by which it should be done (MLFS).
    pub deadline: Option<Span>,
    /// Accuracy that suffices (MLFS).
    pub accuracy: Option<f64>,
    /// From 1 (can wait) to 10 (MLFS).
    pub urgency: Option<u32>,
    /// Chunks (OASiS, edge).
    pub dataset: Option<Dataset>,
    /// Labels that a server must carry.
    pub labels: BTreeMap<String, String>,
    /// It is stopped after running so long.
    pub time_limit: Option<Span>,
    /// What a restart costs, as first guess.
    pub restart_cost: Option<Span>,
    /// Speeds measured beforehand.
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
    /// The smallest valid job: one worker of one GPU, all defaults. A start for builders and tests.
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
            model_size: 0,
            utility: None,
            deadline: None,
            accuracy: None,
            urgency: None,
            dataset: None,
            labels: BTreeMap::new(),
            time_limit: None,
            restart_cost: None,
            profile: Vec::new(),
        }
    }

    /// Reads a TOML job file.
    ///
    /// # Errors
    /// Names the key (and line, for syntax), the value and what is allowed.
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

    /// Checks everything that can be checked without a cluster.
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
                return fail(
                    key,
                    format!("{name:?} must be 1 to 128 letters, digits, '.', '_' or '-', not starting with '.'"),
                );
            }
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
        for (key, role) in [("worker", Some(&self.worker)), ("server", self.server.as_ref())] {
            let Some(role) = role else { continue };
            role.validate(key)?;
        }
        if self.accuracy.is_some_and(|accuracy| !(0.0..=1.0).contains(&accuracy)) {
            return fail("accuracy", "must be from 0 to 1".into());
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
        if let Some(utility) = &self.utility
            && !(utility.value.is_finite() && utility.value >= 0.0 && utility.decay.is_finite() && utility.decay >= 0.0)
        {
            return fail("utility", "value and decay must be finite and at least 0".into());
        }
        Ok(())
    }

    /// The counts an engine may give: what the job allows and its `resize` rule.
    pub fn bounds(&self) -> Bounds {
        let counts =
            |role: &RoleSpec, fixed: bool| if fixed { (role.requested, role.requested) } else { (role.min, role.max) };
        let workers = counts(&self.worker, self.resize == Resize::Fixed);
        let servers = self.server.as_ref().map_or((0, 0), |role| counts(role, self.resize != Resize::Any));
        Bounds { workers, servers }
    }

    /// The shape the owner asked for.
    pub fn requested(&self) -> Shape {
        Shape { workers: self.worker.requested, servers: self.server.as_ref().map_or(0, |role| role.requested) }
    }
}

impl RoleSpec {
    fn validate(&self, key: &str) -> Result<(), JobSpecError> {
        let fail = |field: &str, problem: String| Err(JobSpecError { key: format!("{key}.{field}"), problem });
        for (name, &value) in &self.demand {
            if !(0..=1_000_000_000_000).contains(&value) {
                return fail(name, format!("{value} must be from 0 to 10^12 sub-units"));
            }
            let of_devices = name == "gpu" || name.starts_with("gpu:");
            if of_devices && value > 1000 && value % 1000 != 0 {
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
        if self.min == 0 || self.min > self.max || self.max > 10_000 {
            return fail("max", format!("min = {}, max = {} must be 1 ≤ min ≤ max ≤ 10000", self.min, self.max));
        }
        if !(self.min..=self.max).contains(&self.requested) {
            return fail(
                "requested",
                format!("{} must be from min = {} to max = {}", self.requested, self.min, self.max),
            );
        }
        if self.command.len() > 4096 {
            return fail("command", format!("{} characters must be at most 4096", self.command.len()));
        }
        Ok(())
    }
}

/// Inclusive ranges of what a job may be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// From, to.
    pub workers: (u32, u32),
    /// From, to; (0, 0) for all-reduce.
    pub servers: (u32, u32),
}

impl Bounds {
    /// Whether a shape is allowed.
    pub fn hold(&self, shape: Shape) -> bool {
        (self.workers.0..=self.workers.1).contains(&shape.workers)
            && (self.servers.0..=self.servers.1).contains(&shape.servers)
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

/// What one slot takes, over interned types.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Demand {
    /// Everything, devices included.
    pub amounts: Amounts,
    /// The kind of device, and how many thousandths of them: below 1000 a share of one, else whole ones.
    pub devices: Option<(ResourceId, u32)>,
}

impl Demand {
    /// From a role's table.
    pub fn new(table: &BTreeMap<String, i64>, types: &mut ResourceTypes) -> Self {
        let amounts = types.demand(table);
        let devices = table
            .iter()
            .filter(|(name, value)| (name.as_str() == "gpu" || name.starts_with("gpu:")) && **value > 0)
            .map(|(name, value)| (types.intern(name), *value as u32))
            .next();
        Self { amounts, devices }
    }

    /// Whether it wants GPUs of any kind.
    pub fn wants_gpu(&self) -> bool {
        self.amounts[GPU] > 0
    }
}

/// Where a job runs, in terms of the manager that owns it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ExternalId {
    /// The cluster.
    pub cluster: String,
    /// The manager's own name for the job.
    pub native: String,
}

/// How far a job's training has come, from its reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Steps done, over all incarnations.
    pub step: u64,
    /// Whole epochs done.
    pub epoch: u32,
    /// Steps in one epoch at the current shape; 0 until reported.
    pub steps_per_epoch: u64,
    /// The last reported loss.
    pub loss: Option<f64>,
    /// The last reported accuracy.
    pub accuracy: Option<f64>,
    /// Steps per second over the last report, at the shape it ran in.
    pub speed: Option<f64>,
    /// Reports that were ignored: nonsense, out of order, of an old incarnation.
    pub ignored: u64,
}

/// The watch over a job's workers, and whom it found last.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stragglers {
    /// None before the first report with times.
    pub(crate) watch: Option<StragglerWatch>,
    /// Those that were too slow in the last report, and in enough before it.
    pub found: Vec<Straggler>,
}

/// What the fits say, as of the last time they ran.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Fits {
    /// Loss over epochs.
    pub loss: Option<LossFit>,
    /// When that meets the job's convergence rule.
    pub convergence: Option<Prediction>,
    /// Steps per second over (p, w).
    pub speed: Option<SpeedFit>,
}

/// What the manager says a job is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// No slot exists.
    #[default]
    Stopped,
    /// Slots exist; not all of them run yet.
    Starting,
    /// All observed slots run.
    Running,
    /// Leaving, with a checkpoint.
    Stopping,
}

/// An active job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// Its number.
    pub id: JobId,
    /// What was asked for.
    pub spec: Arc<JobSpec>,
    /// Who pays.
    pub tenant: TenantId,
    /// Where it waits.
    pub queue: QueueId,
    /// One worker's demand.
    pub worker: Demand,
    /// One parameter server's demand; zero for all-reduce.
    pub server: Demand,
    /// When it was submitted.
    pub arrival: Time,
    /// The manager's name for it.
    pub external: Option<ExternalId>,
    /// Hash of the token it reports with.
    pub token_hash: Option<[u8; 32]>,
    /// Held by a person.
    pub held: bool,
    /// What the plan says.
    pub verdict: Verdict,
    /// What the manager was told to give it; at most what the plan says and what fits beside what is not released yet.
    pub issued: Option<Arc<Allocation>>,
    /// Why less than the plan is issued.
    pub issue_reason: Option<Reason>,
    /// Restarts so far.
    pub incarnation: Incarnation,
    /// Changes in place of this incarnation.
    pub revision: Revision,
    /// The slots that the manager last saw, of whatever incarnation.
    pub observed: Option<Arc<Allocation>>,
    /// What they were doing.
    pub phase: Phase,
    /// The incarnation they belong to.
    pub observed_incarnation: Incarnation,
    /// When it first ran.
    pub started: Option<Time>,
    /// When its issued shape last changed.
    pub changed: Time,
    /// When it changed shape while running, newest last, the last hour at most.
    pub rescaled_at: Vec<Time>,
    /// How often it did in all.
    pub rescales: u32,
    /// Measured (or first given) time that a restart costs.
    pub restart_cost: Span,
    /// Time lost to restarts so far.
    pub restart_total: Span,
    /// How often in a row the manager refused what was issued.
    pub refusals: u32,
    /// Not to be issued before this, and the manager's reason.
    pub blocked: Option<(Time, Arc<str>)>,
    /// From reports.
    pub progress: Progress,
    /// Mean losses over epochs.
    pub losses: Arc<LossHistory>,
    /// Measured speeds by (p, w).
    pub speeds: Arc<SpeedHistory>,
    /// Predictions.
    pub fits: Arc<Fits>,
    /// Last sequence number accepted from each reporting slot of this incarnation.
    pub reported: BTreeMap<(Role, u32), u64>,
    /// Workers that hold the others up.
    pub stragglers: Arc<Stragglers>,
    /// The manager may have been told to stop what is issued: what comes next is a new incarnation.
    pub revoked: bool,
}

impl Job {
    /// What it is issued has changed: in place, or as a new incarnation.
    pub(crate) fn renumber(&mut self, in_place: bool) {
        if in_place {
            self.revision.0 += 1;
        } else {
            self.incarnation.0 += 1;
            self.revision = Revision(0);
            self.reported.clear();
        }
    }

    /// Workers and servers the plan gives.
    pub fn shape(&self) -> Shape {
        self.verdict.allocation().map_or(Shape::default(), |allocation| allocation.shape())
    }

    /// One slot's demand.
    pub fn demand(&self, role: Role) -> &Demand {
        match role {
            Role::Worker => &self.worker,
            Role::Server => &self.server,
        }
    }

    /// The demand of a whole shape.
    pub fn total(&self, shape: Shape) -> Amounts {
        let mut total = self.worker.amounts.times(shape.workers.into());
        total.add_times(&self.server.amounts, shape.servers.into());
        total
    }

    /// Steps still to train, Q_j, and whether that is a prediction from its own losses (else from `max_epochs`).
    pub fn remaining_steps(&self) -> (f64, bool) {
        let per_epoch = self.steps_per_epoch() as f64;
        match &self.fits.convergence {
            Some(prediction) => {
                // It isn't over, so at least an epoch is left, however late the prediction finds it.
                let left = prediction.epochs.saturating_sub(self.progress.epoch.into()).max(1);
                (left as f64 * per_epoch, true)
            }
            // Half the allowance: neither the dearest nor the cheapest guess about a job nobody has seen.
            None => {
                let left = f64::from(self.spec.convergence.max_epochs) / 2.0 - f64::from(self.progress.epoch);
                (left.max(1.0) * per_epoch, false)
            }
        }
    }

    /// Steps in an epoch: as reported, else from the examples, else 1.
    pub fn steps_per_epoch(&self) -> u64 {
        match self.progress.steps_per_epoch {
            0 => self.spec.examples.div_ceil(self.spec.batch).max(1),
            reported => reported,
        }
    }

    /// Predicted time left at a shape; `None` without a speed fit.
    pub fn remaining_time(&self, shape: Shape) -> Option<Span> {
        let speed = self.fits.speed.as_ref()?.speed(shape.servers, shape.workers);
        (speed > 0.0).then(|| Span::from_seconds(self.remaining_steps().0 / speed))
    }
}
