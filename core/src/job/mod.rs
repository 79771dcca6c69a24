//! Jobs: what was asked for ([`JobSpec`]) and what is known about each active one ([`Job`]).

mod file;
mod pairs;
mod spec;
mod training;
mod utility;

use std::{collections::BTreeMap, sync::Arc};

use imbl::OrdSet;
use serde::{Deserialize, Serialize};

pub use self::{
    file::JobFileError,
    spec::{
        Bounds, Convergence, Dataset, JobSpec, JobSpecError, Partition, ProfiledSpeed, Resize, RoleSpec, StopChoice,
        TrainingMode,
    },
    training::{Slots, Training, TrainingError},
    utility::{Utility, UtilityKind},
};
use crate::{
    decision::{Allocation, Role, Shape, Verdict},
    fit::{AccuracyHistory, LossFit, LossHistory, Prediction, SpeedFit, SpeedHistory, Stop, Straggler, StragglerWatch},
    ids::{DecisionId, Incarnation, JobId, QueueId, ResourceId, Revision, TenantId},
    reason::Reason,
    resources::{Amounts, GPU, ResourceTypes, is_gpu},
    time::{Span, Time},
};

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
            .filter(|(name, value)| is_gpu(name) && **value > 0)
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
    /// When it was last reported.
    pub at: Option<Time>,
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
    /// Why training on isn't worth it (MLF-C's OptStop), where the job may be stopped so.
    pub stop: Option<Stop>,
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
    /// The name of its model among the [models](crate::State::models).
    pub model: Arc<str>,
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
    /// The decision since which that stands: a refusal of an older one is of something else.
    pub issued_in: DecisionId,
    /// The incarnation that is to run: one more with each restart.
    pub incarnation: Incarnation,
    /// Changes in place of this incarnation.
    pub revision: Revision,
    /// The incarnation that still runs while its successor is asked for.
    pub(crate) outgoing: Option<Outgoing>,
    /// The highest incarnation so far: each number is used once.
    pub(crate) last_incarnation: Incarnation,
    /// The slots that the manager last saw, of whatever incarnation.
    pub observed: Option<Arc<Allocation>>,
    /// What they were doing.
    pub phase: Phase,
    /// The incarnation they belong to.
    pub observed_incarnation: Incarnation,
    /// When it first ran.
    pub started: Option<Time>,
    /// The shape issued last; empty before the first.
    pub last_shape: Shape,
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
    /// Something was issued since the manager last refused.
    pub(crate) retried: bool,
    /// Refusals of what was no longer issued.
    pub late_refusals: u32,
    /// From reports.
    pub progress: Progress,
    /// Data chunks trained to their end.
    pub chunks: OrdSet<u32>,
    /// Mean losses over epochs.
    pub losses: Arc<LossHistory>,
    /// Reported accuracies over epochs.
    pub accuracies: Arc<AccuracyHistory>,
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

/// An incarnation that runs on if its successor is refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Outgoing {
    pub(crate) incarnation: Incarnation,
    revision: Revision,
    reported: BTreeMap<(Role, u32), u64>,
}

impl Job {
    /// What it is issued has changed: in place, or as a new incarnation.
    pub(crate) fn renumber(&mut self, in_place: bool) {
        if in_place {
            self.revision.0 += 1;
            return;
        }
        let reported = std::mem::take(&mut self.reported);
        if self.revoked {
            // It was told to stop.
            self.outgoing = None;
        } else if self.observed.is_some() && self.observed_incarnation == self.incarnation {
            self.outgoing = Some(Outgoing { incarnation: self.incarnation, revision: self.revision, reported });
        }
        self.last_incarnation.0 += 1;
        self.incarnation = self.last_incarnation;
        self.revision = Revision(0);
    }

    /// Whether what is seen is the incarnation that the present one was to replace.
    pub(crate) fn can_go_back(&self) -> bool {
        let seen = self.observed_incarnation;
        !self.revoked
            && self.phase != Phase::Stopping
            && self.outgoing.as_ref().is_some_and(|outgoing| outgoing.incarnation == seen)
    }

    /// The incarnation before the present one goes on, in a revision of its own.
    pub(crate) fn go_back(&mut self) {
        let Some(outgoing) = self.outgoing.take() else { return };
        self.incarnation = outgoing.incarnation;
        self.revision = Revision(outgoing.revision.0 + 1);
        self.reported = outgoing.reported;
    }

    /// What its manager made of it while it was the manager's own is what it is issued now, where that can be said
    /// without a restart.
    pub(crate) fn adopt(&mut self, seen: Arc<Allocation>, decision: DecisionId) {
        if self.can_go_back() {
            self.go_back();
        } else if self.observed_incarnation != self.incarnation || self.revoked || self.phase == Phase::Stopping {
            return;
        } else if self.issued.as_ref() != Some(&seen) {
            self.renumber(true);
        }
        self.issued = Some(seen);
        self.issued_in = decision;
        self.issue_reason = None;
    }

    /// When its time limit is over, once it has started.
    pub(crate) fn limit_at(&self) -> Option<Time> {
        Some(self.started? + self.spec.time_limit?)
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

    /// Whether its owner lets it end once nothing is left to gain.
    pub fn may_stop_early(&self) -> bool {
        self.spec.stop_under_load >= StopChoice::Optimal
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
