//! The one port: connections, TLS, and who is let in.

pub(crate) mod guard;
pub(crate) mod http;
pub(crate) mod listen;
pub(crate) mod load;
mod metrics;
mod patient;
mod tls;

pub(crate) use self::{metrics::NetMetrics, tls::acceptor};
