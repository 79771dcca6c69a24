//! Training speed as a function of the numbers of parameter servers and workers.
//!
//! Source: Optimus (EuroSys'18), §3.2, Eq. 3 (asynchronous) and Eq. 4 (synchronous). The function for all-reduce is our
//! own. [`nnls`](super::nnls::nnls()) fits the coefficients θ ≥ 0 to measured (p, w, speed). Each row is divided by its
//! fitted step time (in a few rounds; by the measured step time in the first), so the fit minimises the relative error
//! of f.
//!
//! Additions to the paper, all of them off in [`SpeedOptions::paper`]:
//! - Computation and communication can **overlap**: T² = C² + cross·C·S + S² instead of T = C + S, if that fits better.
//! - Single measurements that no fit explains have lower weights.
//! - A weak pull towards a **shape** determines the coefficients that the samples don't determine (see below).
//! - Each **server type** has a factor. [`SpeedFit::next_to_profile`] returns the most informative pair to measure.
//!
//! Jobs that run only with some numbers of workers have a [`SpeedTable`] of what was measured beside the function.
//!
//! Jobs that may choose their batch have a [`Goodput`]: speeds with the best batch, in steps of the submitted one.
//!
//! [`LevelFit`] is a second form for all-reduce, for rows that tell on how many servers the workers were. `trainmaster
//! fit speed` uses it; engines don't yet.
//!
//! Mean error of f on measured all-reduce steps, with one function for all batch sizes and placements of a model.
//! (Steps of the same (w, M) on the same number of servers differ by 3 to 6 % among themselves.)
//!
//! | model | all points | 10 random points | paper's form, all | 10 |
//! |---|---|---|---|---|
//! | cifar10 | 7.1–8.2 % | 9.5–11.0 % | 10.8–11.2 % | 13.3–14.5 % |
//! | deepspeech2 | 6.5–6.8 % | 8.3–8.9 % | 7.3–8.4 % | 8.8–10.2 % |
//! | imagenet | 7.2–7.4 % | 9.2–9.7 % | 8.6–8.7 % | 10.3–10.5 % |
//!
//! On synthetic parameter-server jobs with 3 % noise, 5 random pairs give errors of 4 to 6 %, and 10 give 2 to 3 %. Ten
//! pairs with p = w give 9 % (sync) and 13 % (async); plain NNLS gives 42 and 50 % or more.
//!
//! **Few or one-sided samples.** With p = w only, w/p is constant and p equals w. Then infinitely many θ fit equally
//! well. Plain NNLS returns an extreme one, with the whole constant in one term, and extrapolates badly. So every fit
//! adds one weak row per coefficient, which pulls it towards a shape: the θ of the model's other jobs ([`SpeedPrior`]),
//! or a generic one, scaled to the samples' speed. The samples dominate where they determine a coefficient. The rest is
//! divided between the terms in the shape's proportions. With one sample, the fit is the shape through that sample.
//! Without samples it is the shape itself ([`Confidence`] states the case).

#![allow(clippy::needless_range_loop)] // the code follows the indices of the textbook

mod curve;
mod draw;
mod fit;
mod goodput;
mod history;
mod levels;
mod model;
mod solve;
mod table;
mod types;

pub use self::{
    curve::SpeedCurve,
    fit::SpeedFit,
    goodput::Goodput,
    history::{Contradiction, SpeedHistory},
    levels::{LevelFit, StepSample},
    model::{Confidence, SpeedModel, SpeedOptions, SpeedPrior, SpeedSample, TypeFactor},
    table::SpeedTable,
    types::TypeSpeeds,
};
