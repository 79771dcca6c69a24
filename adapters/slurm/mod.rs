//! Slurm, as far as it can be said without talking to it: its texts and records become the core's events, the core's
//! plan becomes calls of Slurm's API, their answers become events again. No I/O, no clock, no Slurm library: the
//! plugins in `integration/slurm` bring those.
//!
//! * [`comment`] and [`submit`]: which jobs are ours, what they ask for, and what is wrong with them;
//! * [`seen`], [`gres`], [`hostlist`], [`node`]: what Slurm's records and texts mean;
//! * [`reservation`], [`order`]: an allocation as Slurm can reserve it, and the calls that make it so;
//! * [`Translator`]: all of it over time.
//!
//! `COMMANDS` alone talks to somebody: to the agent inside slurmctld, for `trainmaster slurm …`.
//!
//! See the folder's README for how a job is held, started, resized and handed back.

#[cfg(feature = "registry")]
mod client;
pub mod comment;
mod config;
pub mod gres;
pub mod hostlist;
pub mod node;
pub mod order;
pub mod reservation;
pub mod seen;
pub mod submit;
mod translator;

use trainmaster_core::settings::ShapeRules;

#[cfg(feature = "registry")]
pub use self::client::COMMANDS;
pub use self::{
    config::{Config, ConfigError},
    translator::Translator,
};

/// What Slurm can carry out: a job reserves the same on each of its nodes, and a running one that holds GPUs can't be
/// given more.
pub fn shape_rules() -> ShapeRules {
    ShapeRules { equal_per_server: true, grow_in_place: false, ..ShapeRules::default() }
}
