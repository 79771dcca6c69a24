//! An adapter's side of `manager.proto`, the same for every manager: the stream to the daemon, and what is sent on it.

mod link;
mod outbox;

pub(crate) use self::{
    link::{Heard, Link, LinkError},
    outbox::{Answer, Outbox, Picture},
};
