//! Why the adapter doesn't run.

use std::{io, net::SocketAddr};

use thiserror::Error;

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
