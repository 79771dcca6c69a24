//! Errors that keep the daemon from running.

use std::net::SocketAddr;

use thiserror::Error;
use trainmaster_core::SettingsError;

use super::store::StoreError;

/// An error that keeps the daemon from starting or continuing. The daemon logs, counts and survives all other errors.
#[derive(Debug, Error)]
pub enum ServeError {
    /// A key of the configuration has a value that isn't allowed.
    #[error("{0}")]
    Config(String),
    /// Tokens can't be read or made, or others can read them.
    #[error("tokens: {0}")]
    Tokens(String),
    /// The scheduler's settings are invalid.
    #[error("scheduler.{0}")]
    Settings(SettingsError),
    /// The store is unusable.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// This program can't replay the journal.
    #[error("{0}")]
    Replay(String),
    /// The daemon can't listen on the port.
    #[error("listen: {address}: {error}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The cause.
        error: std::io::Error,
    },
    /// An adapter can't be started.
    #[error("adapter {name:?}: {problem}")]
    Adapter {
        /// The adapter's name.
        name: String,
        /// The cause.
        problem: String,
    },
    /// The scheduler's thread ended by itself.
    #[error("the scheduler failed, and its log says why; what was acknowledged is in the journal")]
    Failed,
    /// The system provides no threads, or the first write failed.
    #[error("can't start: {0}")]
    Start(#[from] std::io::Error),
}
