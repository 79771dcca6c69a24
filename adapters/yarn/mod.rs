//! A YARN cluster as a manager: plug-ins in its ResourceManager tell what there is and enforce plans, and jobs'
//! ApplicationMasters follow them.
//!
//! [`run`] attaches to a daemon over `manager.proto` and serves the plug-ins and the ApplicationMasters (`server`, over
//! `bridge.proto` and `master.proto`). Both sides meet in a state machine without I/O (`translator`), which says what
//! the daemon is told and asked, what the plug-ins enforce, and what each ApplicationMaster is to do. Where nothing may
//! be put into the ResourceManager, its REST API is asked instead (`poller`), and has it do what it can (`deeds`). See
//! the folder's README for what a plan does, and for every setting.

mod agent;
mod amounts;
mod client;
mod config;
mod deeds;
mod doctor;
mod door;
mod entry;
mod jobfile;
mod nodes;
mod picture;
mod poller;
mod rest;
mod secret;
mod server;
mod slots;
mod tony;
mod translator;

use std::{io, net::SocketAddr};

use thiserror::Error;

pub use self::{
    agent::run,
    client::COMMANDS,
    config::{Accounts, Api, Config, Master, Tls},
    doctor::doctor,
    entry::INFO,
    jobfile::read as read_job_file,
};

/// Package `trainmaster.yarn.v1`: what plug-ins, ApplicationMasters and this adapter say to each other.
#[allow(missing_docs, clippy::all, rustdoc::all)] // generated; the documentation is in the .proto files
pub mod wire {
    tonic::include_proto!("trainmaster.yarn.v1");
}

/// The adapter can't run. What goes wrong with YARN or with the daemon is reported and survived instead.
#[derive(Debug, Error)]
pub enum YarnError {
    /// Nobody can reach this adapter.
    #[error("listen = {address}: {error}")]
    Listen {
        /// Where it was to listen.
        address: SocketAddr,
        /// Why it can't.
        error: io::Error,
    },
    /// A certificate, a key or a token can't be used.
    #[error("{0}")]
    Secret(String),
}
