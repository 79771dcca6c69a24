//! What is learnt about a job while it runs: how far it is from convergence, how fast it trains with other numbers of
//! workers and parameter servers, which of its workers is too slow, and what accuracy it will have.
//!
//! Source: Optimus (EuroSys'18), §3.1 ([`convergence`]), §3.2 ([`speed`]) and §5.2 ([`straggler`]); MLFS (CoNEXT'20), §3.5
//! ([`learning_curve`]). Every engine that predicts uses these fits.
//!
//! All of it is pure and bit-same on every machine: no clock, no globals, transcendental functions from `libm`, sums in a
//! fixed order, loops bounded by counts. Histories ([`LossHistory`], [`SpeedHistory`]) take reports in O(1) and bounded
//! memory; fits are made from them when somebody wants to know, which costs about a millisecond or less.

pub mod convergence;
pub mod learning_curve;
mod linear;
pub mod nnls;
pub mod speed;
pub mod straggler;

pub use convergence::{
    Convergence, Family, FitError, LossFit, LossHistory, LossPoint, Options as ConvergenceOptions, Prediction,
};
pub use learning_curve::{AccuracyHistory, Forecast, OptStop, Stop};
pub use speed::{
    Confidence, Contradiction, SpeedCurve, SpeedFit, SpeedHistory, SpeedModel, SpeedOptions, SpeedPrior, SpeedSample,
    TypeFactor,
};
pub use straggler::{Straggler, StragglerOptions, StragglerSignal, StragglerWatch};
