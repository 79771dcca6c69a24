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

pub use self::{
    agent::run,
    config::{Api, Config, NodeType, Untested},
    doctor::doctor,
    entry::INFO,
};
