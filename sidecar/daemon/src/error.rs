//! Why the daemon doesn't run.

use std::net::SocketAddr;

use thiserror::Error;
use trainmaster_core::SettingsError;

use super::store::StoreError;

/// Why the daemon can't start, or go on. Whatever else goes wrong later is logged, counted and survived.
#[derive(Debug, Error)]
pub enum ServeError {
    /// A key of the configuration has a value that isn't allowed.
    #[error("{0}")]
    Config(String),
    /// Tokens can't be read or made, or others can read them.
    #[error("tokens: {0}")]
    Tokens(String),
    /// The scheduler's settings aren't allowed.
    #[error("scheduler.{0}")]
    Settings(SettingsError),
    /// The store can't be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The journal can't be replayed by this program.
    #[error("{0}")]
    Replay(String),
    /// The port can't be listened on.
    #[error("listen: {address}: {error}")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// Why not.
        error: std::io::Error,
    },
    /// An adapter can't be started.
    #[error("adapter {name:?}: {problem}")]
    Adapter {
        /// Its name.
        name: String,
        /// Why not.
        problem: String,
    },
    /// The scheduler's thread ended by itself.
    #[error("the scheduler failed, and its log says why; what was acknowledged is in the journal")]
    Failed,
    /// The system has no threads, or the first write failed.
    #[error("can't start: {0}")]
    Start(#[from] std::io::Error),
}
