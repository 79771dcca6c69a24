//! A Ray cluster as a manager. Its nodes are servers, and drivers create the placement groups that plans require.
//!
//! [`run`] attaches to a daemon over `manager.proto` and polls Ray's head over gRPC. A state machine without I/O
//! (`translator`) turns the head's state into messages to the daemon, data for drivers, and requests to the autoscaler.
//! An untested version of Ray is only observed, over the dashboard's REST API. The folder's README describes the
//! written data and every setting.

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
