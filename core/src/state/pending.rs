//! Pending work of the scheduler, and pending messages to managers.

use imbl::{OrdMap, OrdSet};
use serde::{Deserialize, Serialize};

use crate::{
    decision::Issue,
    ids::{JobId, ServerId},
    tables::table,
    time::Time,
};

/// Pending work of the scheduler.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Pending {
    /// Servers on which the plan may no longer fit.
    pub(crate) unsettled: OrdSet<ServerId>,
    /// Whether a limit may have shrunk.
    pub(crate) limits_changed: bool,
    /// Jobs whose verdict changed since the last decision.
    pub(crate) revised: OrdSet<JobId>,
    /// Jobs whose plan isn't fully issued.
    pub(crate) unissued: OrdSet<JobId>,
    /// Planned jobs that wait for room on a server. A release there lets them try again.
    pub(crate) parked: OrdSet<(ServerId, JobId)>,
    /// Jobs with reports that aren't in their fits yet.
    pub(crate) unfitted: OrdSet<JobId>,
    /// Ends of time limits and of waits after refusals.
    pub(crate) timers: OrdSet<(Time, JobId)>,
}

/// Pending messages to managers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Outbox {
    /// Jobs whose issued slots changed since the host last asked.
    pub(crate) unsent: OrdSet<JobId>,
    /// Jobs that the host asked about at least once and that aren't forgotten yet.
    pub(crate) told: OrdSet<JobId>,
    /// Last messages about jobs without any slots left, until the host asks.
    #[serde(deserialize_with = "table")]
    pub(crate) farewells: OrdMap<JobId, Issue>,
}

impl Pending {
    /// Lets the jobs that wait for room on these servers try again.
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
