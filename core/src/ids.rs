//! Identifiers: dense numbers for what the hot paths index, growing numbers for what is never reused.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

id!(
    /// A job. Grows with every submission and is never reused.
    JobId(u64), "job "
);
id!(
    /// A server (machine): a dense index into [`State::servers`](crate::State::servers), kept when the server leaves
    /// and comes back under the same name.
    ServerId(u32), "server "
);
id!(
    /// A tenant: a dense index, kept while the tenant has active jobs.
    TenantId(u32), "tenant "
);
id!(
    /// A queue: a dense index, kept while the queue has active jobs.
    QueueId(u32), "queue "
);
id!(
    /// A cluster manager that reports servers.
    ManagerId(u32), "manager "
);
id!(
    /// A resource type: an index into [`ResourceTypes`](crate::resources::ResourceTypes) and into every
    /// [`Amounts`](crate::resources::Amounts).
    ResourceId(u16), "resource "
);
id!(
    /// Grows by one with every committed decision of a term.
    DecisionId(u64), "decision "
);
id!(
    /// Leader epoch: a plan of an older term is void.
    Term(u64), "term "
);
id!(
    /// One attempt to decide; a newer ticket supersedes an older one that is still open.
    TicketId(u64), "ticket "
);
id!(
    /// Counts a job's restarts: everything stops and starts again from a checkpoint.
    Incarnation(u32), "incarnation "
);
id!(
    /// Counts a job's changes in place within one incarnation: workers came or went, nobody restarted.
    Revision(u32), "revision "
);

impl ServerId {
    /// The position in dense per-server tables.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl ResourceId {
    /// The position in an [`Amounts`](crate::resources::Amounts).
    pub fn index(self) -> usize {
        self.0.into()
    }
}
