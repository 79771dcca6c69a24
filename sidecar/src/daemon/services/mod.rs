//! The gRPC services: each asks the host and translates.

pub(crate) mod admin;
pub(crate) mod jobs;
pub(crate) mod manager;

use std::net::SocketAddr;

use tonic::Request;

/// Bytes of one request of a person or a training program.
pub(crate) const SMALL: usize = 4 << 20;
/// Bytes of one message from or to a manager: a snapshot of a large cluster.
pub(crate) const LARGE: usize = 256 << 20;

/// Who calls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    /// With the admin token; else from this machine, where none is asked for.
    pub(crate) with_token: bool,
}

/// Who calls, in words, for the audit.
fn who<T>(request: &Request<T>) -> String {
    match request.extensions().get::<Peer>() {
        Some(Peer { address, with_token: true }) => format!("{address} with the admin token"),
        Some(Peer { address, .. }) => address.to_string(),
        None => "this process".into(),
    }
}
