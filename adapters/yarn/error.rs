//! Errors that keep the adapter from running.

use std::{io, net::SocketAddr};

use thiserror::Error;

/// An error that keeps the adapter from running. Errors of YARN or of the daemon are reported instead, and the adapter
/// continues.
#[derive(Debug, Error)]
pub enum YarnError {
    /// This adapter can't listen.
    #[error("listen = {address}: {error}")]
    Listen {
        /// The configured address.
        address: SocketAddr,
        /// The cause.
        error: io::Error,
    },
    /// A certificate, a key or a token can't be used.
    #[error("{0}")]
    Secret(String),
}
