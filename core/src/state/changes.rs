//! Changes that the engine doesn't know yet: in order, and bounded even if no decision is made for long.

use std::collections::BTreeSet;

use imbl::Vector;
use serde::{Deserialize, Serialize};

use crate::ids::{JobId, ServerId};

/// A change since the engine last ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Change {
    /// A server came, left or changed, or its planned use changed.
    Server(ServerId),
    /// A job arrived, was held or released, made progress, or its predictions changed.
    Job(JobId),
    /// A job completed another data chunk.
    Trained(JobId),
    /// A job ended.
    Ended(JobId),
    /// The engine's proposal for this job didn't fit at commit, or its plan no longer fits.
    Dropped(JobId),
    /// Settings or limits changed.
    Settings,
    /// The load of a server was measured.
    Measured(ServerId),
}

/// Lists up to this length aren't compacted.
const FEW: usize = 4096;

/// Whether undelivered changes let an engine run before its interval is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Urgency {
    /// Triggers any engine.
    pub(crate) at_once: bool,
    /// Triggers engines that run on arrivals.
    pub(crate) arrival: bool,
    /// Triggers engines that run when jobs end, are held or complete a data chunk.
    pub(crate) departure: bool,
}

impl Urgency {
    fn add(&mut self, other: Self) {
        self.at_once |= other.at_once;
        self.arrival |= other.arrival;
        self.departure |= other.departure;
    }
}

/// The changes since the engine last succeeded.
///
/// Noting a change is O(1) amortised. The list is compacted when its length has doubled since the last time. That
/// removes repeated changes, changes of ended jobs, and the ends of jobs that the engine never knew. At most two
/// entries per server, three per active job, and one for each job that was active when the engine last succeeded
/// remain.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Changes {
    list: Vector<Change>,
    urgency: Urgency,
    /// Jobs from this number on arrived after the engine last succeeded, so it doesn't know them.
    unknown_from: JobId,
    /// Length above which the list is compacted.
    compact_at: usize,
    /// The changes in the open ticket.
    #[serde(skip)]
    delivery: Option<Delivery>,
}

/// The first `count` changes are in the open ticket. They stay unchanged until it returns.
#[derive(Clone, Copy, Debug)]
struct Delivery {
    count: usize,
    urgency: Urgency,
    unknown_from: JobId,
}

impl Changes {
    fn delivering(&self) -> usize {
        self.delivery.map_or(0, |delivery| delivery.count)
    }

    /// Adds a change. The list may then have to be [compacted](Self::compact).
    pub(super) fn push(&mut self, change: Change, urgency: Urgency) {
        self.urgency.add(urgency);
        if self.list.len() == self.delivering() || self.list.back() != Some(&change) {
            self.list.push_back(change);
        }
    }

    pub(super) fn is_long(&self) -> bool {
        self.list.len() > self.compact_at.max(FEW)
    }

    pub(super) fn compact(&mut self, is_active: impl Fn(JobId) -> bool) {
        let delivered = self.delivering();
        let unknown_from = self.delivery.map_or(self.unknown_from, |delivery| delivery.unknown_from);
        let mut seen = BTreeSet::new();
        let matters = |change: &Change| match change {
            Change::Job(id) | Change::Trained(id) | Change::Dropped(id) => is_active(*id),
            Change::Ended(id) => *id < unknown_from,
            Change::Server(_) | Change::Measured(_) | Change::Settings => true,
        };
        let kept = self.list.iter().copied().enumerate();
        let kept = kept.filter(|(at, change)| *at < delivered || (matters(change) && seen.insert(*change)));
        self.list = kept.map(|(_, change)| change).collect();
        self.compact_at = 2 * self.list.len();
    }

    /// All changes.
    pub(crate) fn list(&self) -> &Vector<Change> {
        &self.list
    }

    /// The urgency of all changes.
    pub(crate) fn urgency(&self) -> Urgency {
        let mut all = self.urgency;
        all.add(self.delivery.map_or(Urgency::default(), |delivery| delivery.urgency));
        all
    }

    /// Opens a ticket with all changes. Its engine knows the jobs below `next_job`.
    pub(crate) fn deliver(&mut self, next_job: JobId) {
        self.returned();
        let urgency = std::mem::take(&mut self.urgency);
        self.delivery = Some(Delivery { count: self.list.len(), urgency, unknown_from: next_job });
    }

    /// The engine of the open ticket succeeded: its changes are removed.
    pub(crate) fn delivered(&mut self) {
        if let Some(delivery) = self.delivery.take() {
            self.list = self.list.skip(delivery.count);
            self.unknown_from = delivery.unknown_from;
            self.compact_at = 0;
        }
    }

    /// The open ticket failed: the next ticket gets its changes again.
    pub(crate) fn returned(&mut self) {
        if let Some(delivery) = self.delivery.take() {
            self.urgency.add(delivery.urgency);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(changes: &mut Changes, change: Change) {
        changes.push(change, Urgency::default());
        if changes.is_long() {
            changes.compact(|id| id.0 >= 1_000_000);
        }
    }

    #[test]
    fn jobs_that_come_and_go_leave_nothing_while_nobody_decides() {
        let mut changes = Changes::default();
        // The engine knows two jobs. One of them will end.
        push(&mut changes, Change::Job(JobId(1)));
        changes.deliver(JobId(3));
        changes.delivered();
        assert!(changes.list().is_empty());
        push(&mut changes, Change::Ended(JobId(2)));
        push(&mut changes, Change::Job(JobId(1_000_000)));
        for id in 3..50_000 {
            push(&mut changes, Change::Job(JobId(id)));
            push(&mut changes, Change::Server(ServerId(id as u32 % 7)));
            push(&mut changes, Change::Dropped(JobId(id)));
            push(&mut changes, Change::Ended(JobId(id)));
        }
        assert!(changes.list().len() <= FEW, "{}", changes.list().len());
        changes.compact(|id| id.0 >= 1_000_000);
        let kept: Vec<Change> = changes.list().iter().copied().collect();
        let mut expected = vec![Change::Ended(JobId(2)), Change::Job(JobId(1_000_000))];
        expected.extend((3..10).map(|id| Change::Server(ServerId(id % 7))));
        assert_eq!(kept, expected, "what matters, in the order in which it first happened");
    }

    #[test]
    fn what_an_open_ticket_has_stays_as_it_is() {
        let mut changes = Changes::default();
        for _ in 0..3 {
            push(&mut changes, Change::Settings);
            push(&mut changes, Change::Job(JobId(7)));
        }
        changes.deliver(JobId(8));
        push(&mut changes, Change::Ended(JobId(7)));
        push(&mut changes, Change::Ended(JobId(8)));
        changes.compact(|_| false);
        assert_eq!(changes.list().len(), 6 + 1, "the ticket's engine knows of job 7, and of no job 8");
        // The ticket failed. The last successful engine knew neither job.
        changes.returned();
        changes.compact(|_| false);
        assert_eq!(changes.list().iter().collect::<Vec<_>>(), [&Change::Settings]);
    }

    #[test]
    fn urgent_news_stay_urgent_until_an_engine_succeeds() {
        let mut changes = Changes::default();
        let arrival = Urgency { arrival: true, ..Urgency::default() };
        let departure = Urgency { departure: true, ..Urgency::default() };
        changes.push(Change::Job(JobId(1)), arrival);
        changes.deliver(JobId(2));
        assert_eq!(changes.urgency(), arrival, "until it is back nobody knows");
        changes.push(Change::Ended(JobId(1)), departure);
        changes.returned();
        assert_eq!(changes.urgency(), Urgency { arrival: true, departure: true, at_once: false });
        changes.deliver(JobId(2));
        changes.push(Change::Ended(JobId(1)), departure);
        changes.delivered();
        assert_eq!((changes.urgency(), changes.list().len()), (departure, 1), "what came meanwhile");
    }
}
