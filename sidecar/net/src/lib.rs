//! A port for untrusted callers: gRPC and a few pages over HTTP. No caller can harm another one.
//!
//! The service provides the access check ([`Doorkeeper`]). This crate calls it before a request's body is read, and
//! handles the rest:
//!
//! * **No browsers** ([`Door`]): requests that a web page could cause are refused. These have an `Origin`, a host name
//!   other than this machine's, or another content type than gRPC's.
//! * **Shares** ([`Share`]): each caller has limits on connections, on bytes in progress, and on lists that are being
//!   read. A caller that exceeds its own share gets an error.
//! * **Unproven connections** ([`Port`]): a connection without an admitted call within half a minute is closed. If
//!   there are too many, the oldest one is closed for a new one.
//! * **Panics**: each request is answered; a panic is answered with INTERNAL.

mod caller;
mod door;
mod listen;
mod load;
mod metrics;
mod paces;
mod patient;
mod proof;
pub mod secret;
mod shares;
mod tls;

use std::sync::Arc;

use axum::{Router, middleware};

pub use self::{
    caller::{Caller, Doorkeeper, Kind, Peer, Standing, bearer},
    door::{Door, refuse},
    listen::{Port, affordable},
    load::LoadLimits,
    metrics::{Adder, NetMetrics},
    paces::{Paces, Rate},
    secret::TokenFile,
    shares::Share,
    tls::{Tls, TlsError, TlsFiles, is_host},
};
use self::{door::Guard, load::Load};

/// Adds the checks and limits of this crate to a router. Calls that aren't allowed don't reach it.
pub fn guarded(
    router: Router,
    door: Door,
    doorkeeper: Arc<dyn Doorkeeper>,
    limits: LoadLimits,
    metrics: NetMetrics,
) -> Router {
    let load = Load::new(limits, doorkeeper.clone(), metrics.clone());
    let guard = Guard::new(door, doorkeeper, metrics);
    router
        .fallback(door::nothing_here)
        .layer(middleware::from_fn_with_state(load, load::bound))
        .layer(middleware::from_fn_with_state(guard.clone(), door::open))
        .layer(middleware::from_fn_with_state(guard, door::catch_panics))
}
