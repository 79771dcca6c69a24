//! A port that strangers may knock at: gRPC and a few pages over HTTP, served so that nobody who calls can hurt another.
//!
//! Whoever serves something says who may call what ([`Doorkeeper`]); this crate asks before a request's body is read, and
//! sees to the rest:
//!
//! * **Browsers stay outside** ([`Door`]): requests that a web page could bring about (with an `Origin`, for a name that isn't
//!   this machine's, of another content type than gRPC's) are refused.
//! * **Everybody has a share** ([`Share`]): of connections, of bytes that are under way, of lists that are being read. One's
//!   own share being used up is an answer to oneself.
//! * **Connections have to prove something** ([`Port`]): who hasn't made one call that was let in within half a minute goes, and
//!   before that whoever waits longest makes room for who comes.
//! * Whatever a request does, it is answered: a panic as INTERNAL.

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
    metrics::NetMetrics,
    paces::{Paces, Rate},
    secret::TokenFile,
    shares::Share,
    tls::{Tls, TlsError, TlsFiles, is_host},
};
use self::{door::Guard, load::Load};

/// Puts a router behind the door: who may not call what isn't heard, and what calls hold is bounded.
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
