//! An active job: its specification, its plan, its issued and observed slots, and its fits.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{
    batches::Batching,
    issued::Issued,
    launcher::Elastic,
    learnt::Learnt,
    seen::Seen,
    sizes::Sizes,
    spec::{Bounds, JobSpec, StopChoice, TrainingMode},
};
use crate::{
    batch::Batch,
    decision::{Allocation, Verdict},
    fit::SpeedModel,
    ids::{JobId, QueueId, ResourceId, ServerId, TenantId},
    resources::{Amounts, GPU, ResourceTypes, is_gpu},
    shape::{Role, Shape},
    time::{Span, Time},
    topology::Domain,
};

/// The demand of one slot, over interned resource types.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Demand {
    /// All amounts, including devices.
    pub amounts: Amounts,
    /// The kind of device, with its thousandths: below 1000 a share of one device, else whole devices.
    pub devices: Option<(ResourceId, u32)>,
}

impl Demand {
    /// Reads a role's table.
    pub fn new(table: &BTreeMap<String, i64>, types: &mut ResourceTypes) -> Self {
        let amounts = types.demand(table);
        let devices = table
            .iter()
            .filter(|(name, value)| is_gpu(name) && **value > 0)
            .map(|(name, value)| (types.intern_demand(name), *value as u32))
            .next();
        Self { amounts, devices }
    }

    /// The type of GPU, as [`SpeedSample::server_type`](crate::fit::SpeedSample::server_type). 0 if types aren't told
    /// apart.
    pub(crate) fn speed_type(&self) -> u16 {
        self.devices.map_or(GPU.0, |(kind, _)| kind.0)
    }

    /// The same demand for GPUs of another kind, if it is one for GPUs.
    pub(crate) fn of_kind(&self, kind: ResourceId) -> Self {
        let Some((now, milli)) = self.devices else { return self.clone() };
        let others = self.amounts.iter().filter(|(id, amount)| *amount != 0 && (*id == GPU || *id != now));
        let mut amounts = Amounts::of(&others.collect::<Vec<_>>());
        if kind != GPU {
            amounts.add(kind, i64::from(milli));
        }
        Self { amounts, devices: Some((kind, milli)) }
    }

    /// Whether the slot needs GPUs of any kind.
    pub fn wants_gpu(&self) -> bool {
        self.amounts[GPU] > 0
    }
}

/// The identity of a job in its manager's cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ExternalId {
    /// Name of the cluster.
    pub cluster: String,
    /// The manager's name for the job.
    pub native: String,
}

/// An active job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// The job's number.
    pub id: JobId,
    /// The owner's specification.
    pub spec: Arc<JobSpec>,
    /// The tenant that the job counts for.
    pub tenant: TenantId,
    /// The queue of the job.
    pub queue: QueueId,
    /// The name of the job's model among the [models](crate::State::models).
    pub model: Arc<str>,
    /// Demand of one worker.
    pub worker: Demand,
    /// Demand of one parameter server. Zero for all-reduce.
    pub server: Demand,
    /// Time of submission.
    pub arrival: Time,
    /// The manager's name for the job.
    pub external: Option<ExternalId>,
    /// Hash of the token that its reports carry.
    pub token_hash: Option<[u8; 32]>,
    /// A user paused the job.
    pub held: bool,
    /// The verdict in the plan.
    pub verdict: Verdict,
    /// The slots that were sent to the manager.
    pub issued: Issued,
    /// The manager's last observation.
    pub seen: Seen,
    /// Reported progress, and the fits and predictions from it.
    pub learnt: Learnt,
    /// The servers that it may be on, if it asks for closeness
    /// ([`Topology`](crate::topology::Topology)). A snapshot of a journal has it apart.
    #[serde(skip)]
    pub domain: Option<Arc<Domain>>,
    /// The numbers of workers with which it can run, as read from its labels.
    #[serde(skip)]
    pub(crate) sizes: Sizes,
    /// The effect of a change of its number of workers, as read from its specification.
    #[serde(skip)]
    pub(crate) elastic: Elastic,
    /// Its batch and gradient noise, if its owner gives a range. A journal stores it beside the job.
    #[serde(skip)]
    pub(crate) batching: Option<Box<Batching>>,
}

impl Job {
    /// End of the time limit, if the job has one and has started.
    pub(crate) fn limit_at(&self) -> Option<Time> {
        Some(self.seen.started? + self.spec.time_limit?)
    }

    /// The planned numbers of workers and parameter servers.
    pub fn shape(&self) -> Shape {
        self.verdict.allocation().map_or(Shape::default(), |allocation| allocation.shape())
    }

    /// The counts that an engine can choose. O(1), or O(listed sizes).
    #[inline]
    pub fn bounds(&self) -> Bounds {
        self.spec.bounds_with(self.sizes.clone())
    }

    /// Whether what was measured with one number of workers says little about another: the job has sizes, and no
    /// parameter servers.
    pub fn has_speed_table(&self) -> bool {
        self.spec.server.is_none() && self.sizes != Sizes::Any
    }

    /// Its batch and gradient noise, if its owner gives a range.
    pub fn batching(&self) -> Option<&Batching> {
        self.batching.as_deref()
    }

    /// The batch that it should train with at its issued shape. `None` if its batch is fixed, or before it had slots.
    pub fn batch(&self) -> Option<Batch> {
        self.batching()?.chosen
    }

    /// Chooses the batch for the issued shape and the current fit. At the same shape it changes at once the first time,
    /// and later at most once a minute. Returns whether it changed.
    pub(crate) fn choose_batch(&mut self, now: Time) -> bool {
        const PAUSE: Span = Span::seconds(60);
        let places = self.issued.allocation.as_ref().map_or(0, |issued| self.places(issued));
        let (Some(batching), Some(issued)) = (&mut self.batching, &self.issued.allocation) else { return false };
        let (workers, before) = (issued.shape().workers, batching.chosen);
        let servers = places;
        let fit = self.learnt.fits.speed.as_ref();
        let goodput = fit.and_then(|fit| Some((fit.goodput()?, fit.curve())));
        let fits_shape = before.is_some_and(|before| before == batching.range.batch(workers, before.size as f64));
        if fits_shape && batching.changed.is_some_and(|at| now - at < PAUSE) {
            return false;
        }
        batching.chosen = Some(match goodput {
            Some((goodput, curve)) => {
                let measured = self.learnt.speeds.samples();
                let on = self.worker.speed_type();
                let measured: Vec<_> = measured.into_iter().filter(|sample| sample.server_type == on).collect();
                goodput.batch(&curve, (servers, workers), before, &measured)
            }
            None => {
                // Without a fit that knows the noise, a batch that was chosen with one stays.
                let known = before.filter(|_| batching.noise.is_some());
                batching.range.batch(workers, known.map_or(batching.range.submitted, |now| now.size) as f64)
            }
        });
        let changes = batching.chosen != before;
        if changes {
            batching.changed = Some(now).filter(|_| fits_shape);
        }
        changes
    }

    /// Environment variables of the job's processes: those of its specification, with the chosen batch.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        let mut environment = self.spec.environment();
        if let Some(batch) = self.batch() {
            batch.tell(self.spec.batch, &mut environment);
        }
        environment
    }

    /// Demand of one slot.
    pub fn demand(&self, role: Role) -> &Demand {
        match role {
            Role::Worker => &self.worker,
            Role::Server => &self.server,
        }
    }

    /// Whether a server is in the job's domain, if it has one. O(log servers of the domain).
    #[inline]
    pub fn is_near(&self, server: ServerId) -> bool {
        self.domain.as_ref().is_none_or(|domain| domain.has(server))
    }

    /// Whether the owner allows the scheduler to end the job when further training would gain nothing.
    pub fn may_stop_early(&self) -> bool {
        self.spec.stop_under_load >= StopChoice::Optimal
    }

    /// The kind of the workers' GPUs: `gpu` if they may be of any type.
    pub fn gpu_kind(&self) -> Option<ResourceId> {
        self.worker.devices.map(|(kind, _)| kind)
    }

    /// Demand of a whole shape.
    pub fn total(&self, shape: Shape) -> Amounts {
        let mut total = self.worker.amounts.times(shape.workers.into());
        total.add_times(&self.server.amounts, shape.servers.into());
        total
    }

    /// GPUs of a shape in thousandths, or one GPU per worker if workers need none.
    pub fn gpus(&self, shape: Shape) -> i64 {
        match self.total(shape)[GPU] {
            0 => 1000 * i64::from(shape.workers),
            gpus => gpus,
        }
    }

    /// Steps left to train, Q_j, and whether their number is fixed or predicted from the job's losses (else it is
    /// guessed from `max_epochs`).
    pub fn remaining_steps(&self) -> (f64, bool) {
        let done = self.epochs_done();
        let rule = &self.spec.convergence;
        let (left, known) = match (&self.learnt.fits.convergence, rule.fixed()) {
            (Some(prediction), _) => (prediction.epochs as f64 - done, true),
            (None, Some(epochs)) => (f64::from(epochs) - done, true),
            // The mean, if each end from now to `max_epochs` is equally likely.
            (None, None) => ((f64::from(rule.max_epochs) - done) / 2.0, false),
        };
        // The job hasn't ended, so it trains to the end of the current epoch, even if the predicted end is past.
        let current = libm::floor(done) + 1.0 - done;
        (left.max(current) * self.steps_per_epoch() as f64, known)
    }

    /// Trained examples: steps times the submitted batch.
    pub(crate) fn examples_done(&self) -> f64 {
        self.learnt.progress.step as f64 * self.spec.batch as f64
    }

    /// Steps per epoch: as reported, else computed from the examples, else 1.
    pub fn steps_per_epoch(&self) -> u64 {
        match self.learnt.progress.steps_per_epoch {
            0 => self.spec.examples.div_ceil(self.spec.batch).max(1),
            reported => reported,
        }
    }

    /// Predicted time left at a shape. `None` without a speed fit.
    pub fn remaining_time(&self, shape: Shape) -> Option<Span> {
        let speed = self.speed(shape)?;
        (speed > 0.0).then(|| Span::from_seconds(self.remaining_steps().0 / speed))
    }

    /// Whether the job's speed function tells workers on one server from workers on several. A job with an execution
    /// plan for each number of workers has one speed for each, wherever they are.
    pub(crate) fn tells_places(&self) -> bool {
        self.spec.mode == TrainingMode::AllReduce && !self.has_speed_table()
    }

    /// p of the job's [speed function](Self::speed_model) with these slots: the number of parameter servers, or for
    /// all-reduce 1 if the workers share a server, 2 if they don't. O(workers).
    pub(crate) fn places(&self, slots: &Allocation) -> u32 {
        if self.tells_places() { 1 + u32::from(!slots.is_together()) } else { slots.shape().servers }
    }

    /// p of the job's [speed function](Self::speed_model) at a shape. All-reduce counts in all shapes as it is now: on
    /// one server, or on several.
    pub fn places_at(&self, shape: Shape) -> u32 {
        let has = self.issued.allocation.as_ref().filter(|_| shape.servers == 0 && self.tells_places());
        has.map_or(shape.servers, |has| self.places(has))
    }

    /// Predicted speed at a shape, in steps per second, with p as in [`places_at`](Self::places_at). `None` without a
    /// speed fit.
    pub fn speed(&self, shape: Shape) -> Option<f64> {
        Some(self.learnt.fits.speed.as_ref()?.speed(self.places_at(shape), shape.workers))
    }

    /// The model of the job's speed function.
    pub fn speed_model(&self) -> SpeedModel {
        let batch = self.spec.batch as f64;
        match self.spec.mode {
            TrainingMode::Sync => SpeedModel::Sync { batch },
            TrainingMode::Async => SpeedModel::Async,
            TrainingMode::AllReduce => SpeedModel::AllReduce { batch },
        }
    }

    /// Epochs trained, including the trained part of the current one.
    pub fn epochs_done(&self) -> f64 {
        let progress = &self.learnt.progress;
        let part = progress.step as f64 / self.steps_per_epoch() as f64 - f64::from(progress.epoch);
        f64::from(progress.epoch) + part.clamp(0.0, 1.0)
    }

    /// Epochs that the job trains in a time span at a shape. `None` without a speed fit.
    pub fn epochs_in(&self, shape: Shape, span: Span) -> Option<f64> {
        let speed = self.speed(shape)?;
        Some((speed * span.as_seconds() / self.steps_per_epoch() as f64).max(0.0))
    }
}
