//! A YARN cluster as a manager. Plug-ins in its ResourceManager report the state and enforce plans, and jobs'
//! ApplicationMasters follow them.
//!
//! [`run`] attaches to a daemon over `manager.proto` and serves the plug-ins and the ApplicationMasters (`server`, over
//! `bridge.proto` and `master.proto`). Both sides meet in a state machine without I/O (`translator`). It determines the
//! messages to the daemon, the plug-ins' plan, and each ApplicationMaster's orders. If plug-ins can't be installed in
//! the ResourceManager, its REST API is polled instead (`poller`), and executes what it can (`actions`). The folder's
//! README describes the effects of a plan, and every setting.

mod actions;
mod agent;
mod amounts;
mod client;
mod cluster_state;
mod config;
mod doctor;
mod door;
mod entry;
mod error;
mod jobfile;
mod nodes;
mod poller;
mod rest;
mod secret;
mod server;
mod shared;
mod slots;
mod tony;
mod translator;
pub mod wire;

pub use self::{
    agent::run,
    client::COMMANDS,
    config::{Accounts, Api, Config, Master, Tls},
    doctor::doctor,
    entry::INFO,
    error::YarnError,
    jobfile::read as read_job_file,
};
