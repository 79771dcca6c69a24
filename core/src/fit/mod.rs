//! Models of running jobs, fitted to their reports: convergence, speed with other numbers of workers and parameter
//! servers, stragglers, and final accuracy.
//!
//! Source: Optimus (EuroSys'18), §3.1 ([`convergence`]), §3.2 ([`speed`]) and §5.2 ([`straggler`]); MLFS (CoNEXT'20),
//! §3.5 ([`learning_curve`]). All engines that predict use these fits.
//!
//! The fits are pure, and bit-identical on every machine: no clock, no globals, transcendental functions from `libm`,
//! sums in a fixed order, loops bounded by counts. Histories ([`LossHistory`], [`SpeedHistory`]) take reports in O(1)
//! and in bounded memory. Fits are computed from them on demand, in about a millisecond or less.

pub mod convergence;
pub mod learning_curve;
mod linear;
pub mod nnls;
pub mod noise;
pub mod speed;
pub mod straggler;

pub use convergence::{
    Convergence, Family, FitError, LossFit, LossHistory, LossPoint, Options as ConvergenceOptions, Prediction,
};
pub use learning_curve::{AccuracyHistory, Forecast, OptStop, Stop};
pub use noise::{NoiseCurve, NoiseHistory};
pub use speed::{
    Confidence, Contradiction, LevelFit, SpeedCurve, SpeedFit, SpeedHistory, SpeedModel, SpeedOptions, SpeedPrior,
    SpeedSample, StepSample, TypeFactor, TypeSpeeds,
};
pub use straggler::{Straggler, StragglerOptions, StragglerSignal, StragglerWatch};
