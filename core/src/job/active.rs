//! An active job: what was asked for, what is planned, issued and seen, and what is learnt.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{
    issued::Issued,
    learnt::Learnt,
    seen::Seen,
    spec::{JobSpec, StopChoice, TrainingMode},
};
use crate::{
    decision::Verdict,
    fit::SpeedModel,
    ids::{JobId, QueueId, ResourceId, TenantId},
    resources::{Amounts, GPU, ResourceTypes, is_gpu},
    shape::{Role, Shape},
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
    /// What the manager was told to give it.
    pub issued: Issued,
    /// What the manager says of it.
    pub seen: Seen,
    /// What its reports say, and what is predicted from them.
    pub learnt: Learnt,
}

impl Job {
    /// When its time limit is over, once it has started.
    pub(crate) fn limit_at(&self) -> Option<Time> {
        Some(self.seen.started? + self.spec.time_limit?)
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

    /// Thousandths of GPUs that a shape takes, or one GPU for each worker where workers take none.
    pub fn gpus(&self, shape: Shape) -> i64 {
        match self.total(shape)[GPU] {
            0 => 1000 * i64::from(shape.workers),
            gpus => gpus,
        }
    }

    /// Steps still to train, Q_j, and whether that is a prediction from its own losses (else from `max_epochs`).
    pub fn remaining_steps(&self) -> (f64, bool) {
        let per_epoch = self.steps_per_epoch() as f64;
        match &self.learnt.fits.convergence {
            Some(prediction) => {
                // It isn't over, so at least an epoch is left, however late the prediction finds it.
                let left = prediction.epochs.saturating_sub(self.learnt.progress.epoch.into()).max(1);
                (left as f64 * per_epoch, true)
            }
            // Half the allowance: neither the dearest nor the cheapest guess about a job nobody has seen.
            None => {
                let left = f64::from(self.spec.convergence.max_epochs) / 2.0 - f64::from(self.learnt.progress.epoch);
                (left.max(1.0) * per_epoch, false)
            }
        }
    }

    /// Steps in an epoch: as reported, else from the examples, else 1.
    pub fn steps_per_epoch(&self) -> u64 {
        match self.learnt.progress.steps_per_epoch {
            0 => self.spec.examples.div_ceil(self.spec.batch).max(1),
            reported => reported,
        }
    }

    /// Predicted time left at a shape; `None` without a speed fit.
    pub fn remaining_time(&self, shape: Shape) -> Option<Span> {
        let speed = self.learnt.fits.speed.as_ref()?.speed(shape.servers, shape.workers);
        (speed > 0.0).then(|| Span::from_seconds(self.remaining_steps().0 / speed))
    }

    /// The form of its speed function.
    pub fn speed_model(&self) -> SpeedModel {
        let batch = self.spec.batch as f64;
        match self.spec.mode {
            TrainingMode::Sync => SpeedModel::Sync { batch },
            TrainingMode::Async => SpeedModel::Async,
            TrainingMode::AllReduce => SpeedModel::AllReduce { batch },
        }
    }

    /// Epochs trained, the one in progress in part.
    pub fn epochs_done(&self) -> f64 {
        let progress = &self.learnt.progress;
        let part = progress.step as f64 / self.steps_per_epoch() as f64 - f64::from(progress.epoch);
        f64::from(progress.epoch) + part.clamp(0.0, 1.0)
    }

    /// Epochs that it trains in some time at a shape; `None` where no speed is known.
    pub fn epochs_in(&self, shape: Shape, span: Span) -> Option<f64> {
        let speed = self.learnt.fits.speed.as_ref()?.speed(shape.servers, shape.workers);
        Some((speed * span.as_seconds() / self.steps_per_epoch() as f64).max(0.0))
    }
}
