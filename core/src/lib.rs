//! The policy core.

pub mod fit;
pub mod paa;
