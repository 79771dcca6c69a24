//! The metrics feed: training programs report their progress, and receive their assignment.
//!
//! [`FeedService`] is a gRPC service over a [`FeedHost`], the owner of the scheduler. The host sets the assignment of
//! each job through a [`Feed`] handle ([`Feed::set`]), and takes reports. This crate handles tokens, rate limits,
//! addresses and watchers. It needs no daemon: any Tokio runtime can serve it, on a port with the access check
//! [`JobKeeper`].

mod callers;
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
    callers::FeedCaller,
    host::{Acknowledgement, FeedHost, Unavailable},
    keeper::JobKeeper,
    kept::Kept,
    limits::Limits,
    metrics::FeedMetrics,
    registry::{Feed, JobAssignment, Standing},
    service::{AskFirst, FeedService},
    token::{Token, hash_of},
};
