//! An adapter's side of `manager.proto`: what is the same for every cluster manager.
//!
//! An adapter is one translator. It implements [`Follows`], which takes orders for jobs, and [`Manager`], which tells
//! what there is and acts; [`run`] does the rest: it attaches to the [`Daemon`], again and again, answers plans, and
//! sends what changed. A [`Follower`] keeps track of the plan in force. `sidecar/daemon/tests/service/fifth.rs` is a
//! whole one.
//!
//! [`AdapterInfo`] is what a host needs to know of an adapter to run it.

mod agent;
mod daemon;
mod follower;
mod info;
mod order;
mod outbox;
mod remote;
mod slot;
#[cfg(feature = "testing")]
pub mod testing;

pub use self::{
    agent::{Manager, run},
    daemon::{Daemon, Observations, Plans},
    follower::{Follower, Follows, Named, Taken},
    info::{
        AdapterCommand, AdapterInfo, Adapters, Check, CommandAnswer, DaemonAddress, Health, Launch, Running, Shutdown,
        nearest_folder,
    },
    order::{Action, MOST_SLOTS, Order, Run, Token},
    outbox::{Outbox, PlanAnswer, Snapshot},
    remote::{Remote, RemoteError},
    slot::{Placement, Share, SlotId, role},
};
