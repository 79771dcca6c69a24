//! What is yet to be done: by the scheduler, and by managers.

use imbl::{OrdMap, OrdSet};
use serde::{Deserialize, Serialize};

use crate::{
    decision::Issue,
    ids::{JobId, ServerId},
    tables::table,
    time::Time,
};

/// What the scheduler is yet to do.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Pending {
    /// Servers where the plan may no longer fit.
    pub(crate) unsettled: OrdSet<ServerId>,
    /// A limit may have shrunk.
    pub(crate) limits_changed: bool,
    /// Jobs whose verdict changed since the last decision.
    pub(crate) revised: OrdSet<JobId>,
    /// Jobs whose plan is not (or not wholly) issued.
    pub(crate) unissued: OrdSet<JobId>,
    /// Planned jobs that wait for room on a server: tried again when something there is released.
    pub(crate) parked: OrdSet<(ServerId, JobId)>,
    /// Jobs with reports that their fits don't know.
    pub(crate) unfitted: OrdSet<JobId>,
    /// When something about a job ends by itself: a time limit, a refusal's wait.
    pub(crate) timers: OrdSet<(Time, JobId)>,
}

/// What managers are yet to be sent.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Outbox {
    /// Jobs whose issued part changed since the host last asked.
    pub(crate) unsent: OrdSet<JobId>,
    /// Jobs that the host asked about at least once, and that aren't forgotten yet.
    pub(crate) told: OrdSet<JobId>,
    /// The last message about jobs of which nothing is left, until the host asks.
    #[serde(deserialize_with = "table")]
    pub(crate) farewells: OrdMap<JobId, Issue>,
}

impl Pending {
    /// Lets jobs try again that wait for room on these servers.
    pub(crate) fn unpark(&mut self, servers: impl IntoIterator<Item = ServerId>) {
        for server in servers {
            let waiting: Vec<JobId> =
                self.parked.range((server, JobId(0))..=(server, JobId(u64::MAX))).map(|(_, job)| *job).collect();
            for job in waiting {
                self.parked.remove(&(server, job));
                self.unissued.insert(job);
            }
        }
    }
}
