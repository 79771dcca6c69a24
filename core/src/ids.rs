//! Identifiers: dense numbers for tables in hot paths, increasing numbers for everything that is never reused.

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
    /// A job. The number increases with every submission and is never reused.
    JobId(u64), "job "
);
id!(
    /// A server (machine): a dense index into [`State::servers`](crate::State::servers). A server that leaves and
    /// returns under the same name keeps its number.
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
    /// Number of a committed decision. It increases by one with each decision of a term.
    DecisionId(u64), "decision "
);
id!(
    /// The epoch of a scheduler process. Plans of older terms are void.
    Term(u64), "term "
);
id!(
    /// One attempt to decide. A newer ticket supersedes an open older one.
    TicketId(u64), "ticket "
);
id!(
    /// Number of a start of a job. A new incarnation starts all slots from a checkpoint.
    Incarnation(u32), "incarnation "
);
id!(
    /// Number of a change in place within one incarnation: workers are added or removed, and nothing restarts.
    Revision(u32), "revision "
);

impl ServerId {
    /// The index into dense tables of servers.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl ResourceId {
    /// The index into an [`Amounts`](crate::resources::Amounts).
    pub fn index(self) -> usize {
        self.0.into()
    }
}
