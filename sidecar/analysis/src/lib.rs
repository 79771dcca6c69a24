//! Commands that need no daemon: simulations, recorded journals, fits of measurements, and the training of policies.

pub mod fit;
pub mod replay;
pub mod simulate;
#[cfg(feature = "train")]
pub mod train_policy;
