//! The form of a speed function, its samples, and its prior.

use serde::{Deserialize, Serialize};

/// Form of a job's speed function, given by how its workers synchronise. θ in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum SpeedModel {
    /// Synchronous parameter servers: 1/f = θ0·M/w + θ1 + θ2·w/p + θ3·w + θ4·p (Eq. 4).
    Sync {
        /// M, the global batch in examples per step.
        batch: f64,
    },
    /// Asynchronous parameter servers: w/f = θ0 + θ1·w/p + θ2·w + θ3·p (Eq. 3). θ4 stays 0.
    Async,
    /// Ring all-reduce, no parameter servers: 1/f = θ0·M/w + θ1 + θ2·(w−1)/w + θ3·w, and + θ4·(w−1)/w if the workers
    /// are on several servers. Here p is the number of servers on which the workers are: one up to 1, several from 2.
    AllReduce {
        /// M, the global batch in examples per step.
        batch: f64,
    },
}

impl SpeedModel {
    /// M; 1 if the model has none, or if the value is invalid.
    pub(super) fn batch(self) -> f64 {
        match self {
            Self::Sync { batch } | Self::AllReduce { batch } if batch.is_finite() && batch > 0.0 => batch,
            _ => 1.0,
        }
    }

    /// Whether the model has parameter servers (p > 0).
    #[must_use]
    pub fn has_servers(self) -> bool {
        !matches!(self, Self::AllReduce { .. })
    }

    /// p as the function takes it: parameter servers, or for all-reduce 1 or 2.
    pub(super) fn places(self, servers: u32) -> u32 {
        if self.has_servers() { servers } else { servers.clamp(1, 2) }
    }

    pub(super) fn has_batch(self) -> bool {
        !matches!(self, Self::Async)
    }

    /// The factors of θ at (p, w), and k (1 or w): the sum of the terms is k/f.
    pub(super) fn terms(self, p: f64, w: f64, batch: f64) -> ([f64; 5], f64) {
        match self {
            Self::Sync { .. } => ([batch / w, 1.0, w / p, w, p], 1.0),
            Self::Async => ([1.0, w / p, w, p, 0.0], w),
            Self::AllReduce { .. } => {
                let ring = (w - 1.0) / w;
                ([batch / w, 1.0, ring, w, if p > 1.0 { ring } else { 0.0 }], 1.0)
            }
        }
    }

    /// Number of θ in the model.
    pub(super) fn coefficients(self) -> usize {
        if matches!(self, Self::Async) { 4 } else { 5 }
    }

    /// Number of different samples from which the function counts as fitted. A job that never was on several servers
    /// needn't know what that costs.
    pub(crate) fn enough(self) -> usize {
        if matches!(self, Self::Sync { .. }) { 5 } else { 4 }
    }

    /// Number of computation terms, which come first. The others are communication (Optimus, Eq. 2).
    pub(super) fn compute_terms(self) -> usize {
        if matches!(self, Self::Async) { 1 } else { 2 }
    }

    /// Fractions of a (1, 1) step from which unknown terms are guessed: mostly computation, and a small cost per
    /// additional member. So an unknown job gains from its first few workers, but not from its hundredth. Rings cost
    /// little: measured ones mostly take 0.4 to 5 % of a step alone, and 0.1 to 1.6 % more with each worker.
    pub(super) fn shape(self) -> [f64; 5] {
        match self {
            Self::Sync { .. } => [0.75 / self.batch(), 0.1, 0.125, 0.015, 0.01],
            Self::Async => [0.85, 0.125, 0.015, 0.01, 0.0],
            Self::AllReduce { .. } => [0.895 / self.batch(), 0.1, 0.03, 0.005, 0.1],
        }
    }

    /// Fractions of a (1, 1) step that terms may well have, though they are guessed smaller: some measured rings take a
    /// quarter of a step.
    pub(super) fn reach(self) -> [f64; 5] {
        match self {
            Self::AllReduce { .. } => [0.0, 0.0, 0.28, 0.02, 0.5],
            Self::Sync { .. } | Self::Async => [0.0; 5],
        }
    }
}

/// One measured speed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpeedSample {
    /// p, parameter servers. For all-reduce, the number of servers on which the workers were: up to 1 means one.
    pub servers: u32,
    /// w, workers.
    pub workers: u32,
    /// M of this measurement, if it differs from the job's. `None`: the model's.
    pub batch: Option<f64>,
    /// Type of the workers' servers; 0 if there is only one type.
    pub server_type: u16,
    /// f, steps per second.
    pub speed: f64,
    /// Weight of the sample: 1 for a careful measurement. [`SpeedHistory`](super::SpeedHistory) computes it from counts
    /// and age.
    pub weight: f64,
}

impl SpeedSample {
    /// A measurement of weight 1 at the model's own batch on server type 0.
    #[must_use]
    pub fn new(servers: u32, workers: u32, speed: f64) -> Self {
        Self { servers, workers, batch: None, server_type: 0, speed, weight: 1.0 }
    }

    /// The same measurement at a global batch of `batch` examples.
    #[must_use]
    pub fn at_batch(self, batch: f64) -> Self {
        Self { batch: Some(batch), ..self }
    }

    /// The same measurement on servers of `server_type`.
    #[must_use]
    pub fn on(self, server_type: u16) -> Self {
        Self { server_type, ..self }
    }
}

/// θ of the model's other jobs, per example, so that jobs with different batches can share it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpeedPrior {
    /// θ as in [`SpeedModel`]. If there is a sample, only the proportions matter.
    pub theta: [f64; 5],
    /// The degree of overlap of this θ, as in [`SpeedFit::cross`](super::SpeedFit::cross); 2 = none.
    pub cross: f64,
    /// Weight of the prior, ≥ 0. 1 suits coefficients with errors of up to about 30 %. With the coefficients of a wrong
    /// model, the error would grow by 3 % at five samples (8 instead of 5 %) and by 1 % at twenty.
    pub strength: f64,
}

impl SpeedPrior {
    pub(super) fn is_usable(&self) -> bool {
        let fine = |v: &f64| v.is_finite() && *v >= 0.0;
        self.theta.iter().all(fine)
            && self.theta.iter().sum::<f64>() > 0.0
            && fine(&self.strength)
            && (0.0..=2.0).contains(&self.cross)
    }
}

/// Settings of [`SpeedFit::fit`](super::SpeedFit::fit).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpeedOptions {
    /// Strength of the pull of an undetermined coefficient towards the shape, in samples per coefficient. With 0 there
    /// is no pull if there are at least as many samples as coefficients.
    pub pull: f64,
    /// Estimate one speed factor per server type. Otherwise types are ignored.
    pub server_types: bool,
    /// Allow computation and communication to overlap, if that explains the samples clearly better.
    pub overlap: bool,
    /// Reduce the weight of single measurements that no fit explains.
    pub robust: bool,
    /// θ of the model's other jobs. `None`: the generic shape.
    pub prior: Option<SpeedPrior>,
}

impl SpeedOptions {
    /// The plain NNLS of the paper.
    #[must_use]
    pub fn paper() -> Self {
        Self { pull: 0.0, server_types: false, overlap: false, robust: false, prior: None }
    }
}

impl Default for SpeedOptions {
    fn default() -> Self {
        Self { pull: 3e-4, server_types: true, overlap: true, robust: true, prior: None }
    }
}

/// The basis of a [`SpeedFit`](super::SpeedFit).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Confidence {
    /// No usable sample and no prior: the generic shape at one step per second. Only its proportions are meaningful.
    Guess,
    /// No usable sample: the model's prior, unchanged.
    Prior,
    /// Fewer distinct (p, w, M) than coefficients: the samples determine the scale, the shape the rest.
    Sparse,
    /// At least as many distinct (p, w, M) as coefficients.
    Fitted,
}

/// Speed of a server type relative to the reference (the lowest measured type).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TypeFactor {
    /// The server type.
    pub server_type: u16,
    /// Speed of computation, divided by that of the reference type. Communication is assumed to be the same.
    pub factor: f64,
}
