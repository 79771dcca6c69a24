//! A Ray cluster as a manager: its nodes are servers, and drivers make the placement groups that plans ask for.
//!
//! [`run`] attaches to a daemon over `manager.proto` and looks at Ray's head over gRPC. What the head tells goes
//! through a state machine without I/O (`translator`), which says what the daemon is told, what is written where
//! drivers read it, and what the autoscaler is asked for. A version of Ray that wasn't tested is only observed, over
//! the dashboard's REST API. See the folder's README for what is written where, and for every setting.

mod agent;
mod amounts;
mod bounds;
mod config;
mod dashboard;
mod doctor;
mod entry;
mod gcs;
mod head;
mod names;
mod reading;
mod servers;
mod translator;
mod view;

use thiserror::Error;

pub use self::{
    agent::run,
    config::{Api, Config, NodeType, Untested},
    doctor::doctor,
    entry::INFO,
};

/// The adapter can't run. What goes wrong with Ray or with the daemon is reported and survived instead.
#[derive(Debug, Error)]
pub enum RayError {
    /// The daemon's address or certificate can't be used.
    #[error("daemon {address:?}: {problem}; write http://host:port, or https://host:port")]
    Daemon {
        /// What was given.
        address: String,
        /// What is wrong.
        problem: String,
    },
}
