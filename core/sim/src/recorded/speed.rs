//! Speed of a recorded job in any shape.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{
    job::Watched,
    known::{LeftOut, Models},
};
use crate::{draws::Draws, truth::Speed};
use trainmaster_core::{
    fit::{Confidence, SpeedFit, SpeedHistory, SpeedModel, SpeedOptions, SpeedSample},
    job::{Job, JobSpec},
};

/// The basis of a job's speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SpeedBasis {
    /// Its own reports.
    Reports,
    /// The profile in its job file.
    Profile,
    /// Other jobs of its model.
    Model,
    /// The job file: the time of a mini-batch, and bandwidths.
    Declared,
}

/// Speed of a job.
#[derive(Clone, Debug)]
pub struct KnownSpeed {
    /// Basis of the speed.
    pub basis: SpeedBasis,
    /// Number of measured shapes.
    pub shapes: usize,
    /// Relative standard error at the measured shapes. None if the speed is only declared.
    pub error: Option<f64>,
    /// The same at twice the workers and parameter servers of the largest measured shape, within the job's bounds.
    pub error_beyond: Option<f64>,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    Fitted(Box<Measured>),
    Declared(Speed),
}

/// A fit with its input, for draws of alternatives.
#[derive(Clone, Debug)]
struct Measured {
    fit: SpeedFit,
    samples: Vec<SpeedSample>,
    /// Source of coefficients that the samples don't determine. None: as in any job.
    like: Option<Box<Measured>>,
}

impl Measured {
    fn new(history: &SpeedHistory, form: SpeedModel, like: Option<Self>) -> Self {
        let prior = like.as_ref().map(|like| like.fit.prior(1.0));
        let fit = history.fit(form, &SpeedOptions { prior, ..SpeedOptions::default() });
        Self { fit, samples: history.samples(), like: like.map(Box::new) }
    }

    fn draw(&self, normal: &mut dyn Iterator<Item = f64>) -> SpeedFit {
        let prior = self.like.as_ref().map(|like| like.draw(normal).prior(1.0));
        self.fit.draw(&self.samples, &SpeedOptions { prior, ..SpeedOptions::default() }, normal)
    }
}

impl KnownSpeed {
    pub(super) fn of(watched: &Watched, models: &Models) -> Result<Self, LeftOut> {
        let job = &watched.last;
        let form = job.speed_model();
        let model = models.speeds.get(&job.model).map(|speeds| Measured::new(speeds, form, None));
        if job.learnt.speeds.is_empty() {
            return match model.filter(|model| model.fit.confidence >= Confidence::Sparse) {
                Some(model) => Ok(Self::fitted(SpeedBasis::Model, job, model)),
                None => declared(&job.spec).map(Self::declared).ok_or(LeftOut::UnknownSpeed),
            };
        }
        // As the scheduler fits it: profile and reports, pulled towards the model's jobs.
        let scheduled = Measured::new(&job.learnt.speeds, form, model);
        if watched.speeds.is_empty() {
            let reported = job.learnt.progress.speed.is_some();
            let basis = if reported { SpeedBasis::Reports } else { SpeedBasis::Profile };
            return Ok(Self::fitted(basis, job, scheduled));
        }
        Ok(Self::fitted(SpeedBasis::Reports, job, Measured::new(&watched.speeds, form, Some(scheduled))))
    }

    fn fitted(basis: SpeedBasis, job: &Job, measured: Measured) -> Self {
        let Measured { fit, samples, .. } = &measured;
        let errors: Vec<f64> = samples.iter().map(|at| fit.relative_error(at.servers, at.workers)).collect();
        let most = job.bounds().most();
        let largest = |of: fn(&SpeedSample) -> u32| samples.iter().map(of).max().unwrap_or(0);
        let workers = largest(|at| at.workers).saturating_mul(2).min(most.workers);
        let servers = largest(|at| at.servers).saturating_mul(2).min(most.servers);
        Self {
            basis,
            shapes: samples.len(),
            error: Some(errors.iter().sum::<f64>() / errors.len().max(1) as f64),
            error_beyond: Some(fit.relative_error(servers, workers)),
            kind: Kind::Fitted(Box::new(measured)),
        }
    }

    fn declared(speed: Speed) -> Self {
        let basis = SpeedBasis::Declared;
        Self { basis, shapes: 0, error: None, error_beyond: None, kind: Kind::Declared(speed) }
    }

    /// The most probable speed.
    pub fn best(&self) -> Speed {
        match &self.kind {
            Kind::Fitted(measured) => Speed::Fitted(measured.fit.curve()),
            Kind::Declared(speed) => speed.clone(),
        }
    }

    pub(super) fn is_drawn(&self) -> bool {
        matches!(self.kind, Kind::Fitted(_))
    }

    pub(super) fn draw(&self, draws: Draws) -> Speed {
        match &self.kind {
            Kind::Fitted(measured) => Speed::Fitted(measured.draw(&mut (0..).map(|key| draws.normal(key))).curve()),
            Kind::Declared(speed) => speed.clone(),
        }
    }
}

/// Separate mini-batches, with gradients and parameters sent over the reserved bandwidth (OASiS, §III).
fn declared(spec: &JobSpec) -> Option<Speed> {
    let time = spec.dataset.as_ref()?.batch_time?;
    let bandwidth = |table: &BTreeMap<String, i64>| table.get("bandwidth").copied().filter(|mbit| *mbit > 0);
    let own = bandwidth(&spec.worker.demand);
    let sent = 2.0 * 8.388_608 * spec.model_size.max(0) as f64;
    let served = spec.server.as_ref().and_then(|role| bandwidth(&role.demand));
    let seconds = time.as_seconds() + own.map_or(0.0, |mbit| sent / mbit as f64);
    let per_server = own.zip(served).map_or(f64::INFINITY, |(own, served)| served as f64 / own as f64);
    (seconds > 0.0).then_some(Speed::MiniBatches { seconds, per_server, together: None })
}
