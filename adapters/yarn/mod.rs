//! A YARN cluster as a manager: plug-ins in its ResourceManager tell what there is and enforce plans, and jobs'
//! ApplicationMasters follow them.
//!
//! [`run`] attaches to a daemon over `manager.proto` and serves the plug-ins and the ApplicationMasters (`server`, over
//! `bridge.proto` and `master.proto`). Both sides meet in a state machine without I/O (`translator`), which says what
//! the daemon is told and asked, what the plug-ins enforce, and what each ApplicationMaster is to do. Where nothing may
//! be put into the ResourceManager, its REST API is asked instead (`poller`), and has it do what it can (`actions`).
//! See the folder's README for what a plan does, and for every setting.

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
