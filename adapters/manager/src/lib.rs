//! An adapter's side of `manager.proto`: the code that all cluster managers share.
//!
//! An adapter is one translator. It implements [`Follows`], which takes orders for jobs, and [`Manager`], which reports
//! the state and acts. [`run`] does the rest: it attaches to the [`Daemon`], reconnects, answers plans and sends
//! changes. A [`Follower`] keeps track of the plan in force. `sidecar/daemon/tests/service/fifth.rs` is a complete
//! example.
//!
//! [`AdapterInfo`] describes an adapter for its host.

mod agent;
mod daemon;
mod follower;
mod info;
mod logs;
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
        AdapterCommand, AdapterInfo, Adapters, Check, CheckJob, CommandAnswer, DaemonAddress, Health, Launch, OpenLogs,
        Running, Shutdown, nearest_folder,
    },
    logs::{LONGEST_PART, LogPart, Logs, LogsOf, MOST_LOGS},
    order::{Action, MOST_SLOTS, Order, Run, Token},
    outbox::{Outbox, PlanAnswer, Snapshot},
    remote::{Remote, RemoteError},
    slot::{Placement, Share, SlotId, role},
};
