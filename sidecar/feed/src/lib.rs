//! The metrics feed: where training programs say how far they are, and are told what they are part of.
//!
//! [`FeedService`] is a gRPC service over a [`FeedHost`]: whoever owns the scheduler. The host says through a [`Feed`]
//! handle what each job is given ([`Feed::set`]), and takes reports; tokens, floods, addresses and watchers are dealt
//! with here. It needs no daemon: anything with a Tokio runtime can serve it, on a port that [`JobKeeper`] keeps.

mod host;
mod keeper;
mod kept;
mod limits;
mod metrics;
mod registry;
mod service;
mod token;
mod watch;

pub use self::{
    host::{Acknowledgement, FeedHost, Unavailable},
    keeper::JobKeeper,
    kept::Kept,
    limits::Limits,
    metrics::FeedMetrics,
    registry::{Feed, FeedCaller, JobAssignment, Standing},
    service::{AskFirst, FeedService},
    token::{Token, hash_of},
};
