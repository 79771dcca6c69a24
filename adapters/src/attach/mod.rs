//! An adapter's side of `manager.proto`, the same for every manager: the stream to the daemon, and what is sent on it.

#[cfg(feature = "yarn")]
mod calls;
mod link;
mod outbox;

#[cfg(feature = "yarn")]
pub(crate) use self::calls::Calls;
pub(crate) use self::{
    link::{Heard, Link, LinkError},
    outbox::{Answer, Outbox, Picture},
};
