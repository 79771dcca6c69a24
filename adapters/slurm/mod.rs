//! Translation for Slurm, without I/O, a clock or a Slurm library. Slurm's texts and records become the core's events,
//! the core's plan becomes calls of Slurm's API, and the answers become events. The plugins in `integration/slurm`
//! provide the rest.
//!
//! * [`comment`] and [`submit`]: which jobs are Trainmaster's, their requests, and their errors;
//! * [`seen`], [`gres`], [`hostlist`], [`node`]: the meaning of Slurm's records and texts;
//! * [`topology`]: the switches of `topology.conf`;
//! * [`reservation`], [`call`]: an allocation in the form that Slurm can reserve, and the calls for it;
//! * [`Translator`]: the translation over time.
//!
//! Only `COMMANDS` does I/O: it connects to the agent inside slurmctld, for `trainmaster slurm …`.
//!
//! The folder's README describes how a job is held, started, resized and handed back.

pub mod call;
#[cfg(feature = "registry")]
mod client;
pub mod comment;
mod config;
pub mod gres;
pub mod hostlist;
pub mod node;
pub mod reservation;
pub mod seen;
pub mod submit;
pub mod topology;
mod translator;

use trainmaster_core::settings::ShapeRules;

#[cfg(feature = "registry")]
pub use self::client::COMMANDS;
pub use self::{
    config::{Config, ConfigError},
    translator::{Translator, plan_of},
};

/// The shapes that Slurm can carry out: a job reserves the same on each of its nodes, and a running job with GPUs can't
/// get more.
pub fn shape_rules() -> ShapeRules {
    ShapeRules { equal_per_server: true, grow_in_place: false, ..ShapeRules::default() }
}
