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
    #[error("listen: {address}: {error}{}", advice(error))]
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

/// What to do about a port that can't be opened.
fn advice(error: &std::io::Error) -> &'static str {
    if error.kind() == std::io::ErrorKind::AddrInUse {
        "; `trainmaster status` says whether a daemon is there, and --listen takes another address"
    } else {
        ""
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};

    use super::*;

    #[test]
    fn a_port_in_use_comes_with_advice() {
        let told = |error: Error| ServeError::Listen { address: ([127, 0, 0, 1], 7070).into(), error }.to_string();
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let busy = told(std::net::TcpListener::bind(port.local_addr().unwrap()).unwrap_err());
        assert!(busy.starts_with("listen: 127.0.0.1:7070: ") && busy.contains("--listen takes another"), "{busy}");
        assert_eq!(told(Error::from(ErrorKind::PermissionDenied)), "listen: 127.0.0.1:7070: permission denied");
    }
}
