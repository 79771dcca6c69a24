//! What the engine has not heard of yet: in order, and bounded however long nobody decides.

use std::collections::BTreeSet;

use imbl::Vector;
use serde::{Deserialize, Serialize};

use crate::ids::{JobId, ServerId};

/// Something an engine may want to know about, since it last ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Change {
    /// A server came, left or changed, or the plan's use of it did.
    Server(ServerId),
    /// A job came, was held or released, progressed, or its predictions changed.
    Job(JobId),
    /// A job has trained another data chunk to its end.
    Trained(JobId),
    /// A job is over.
    Ended(JobId),
    /// What the engine proposed for this job no longer fitted at commit, or no longer fits.
    Dropped(JobId),
    /// Settings or limits.
    Settings,
    /// What a server carries was measured anew.
    Measured(ServerId),
}

/// Shorter lists aren't looked through for what can go.
const FEW: usize = 4096;

/// What of the undelivered would make an engine run before its interval is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Urgency {
    /// Any engine.
    pub(crate) at_once: bool,
    /// One that runs when jobs come.
    pub(crate) arrival: bool,
    /// One that runs when jobs end or are held.
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
/// Noting one is O(1) amortised: once the list has doubled since it was last looked through, repetitions go, and all
/// that is about jobs which the engine never knew and which are over. What stays is at most two entries per server,
/// three per active job, and one for each job that was active when the engine last succeeded.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Changes {
    list: Vector<Change>,
    urgency: Urgency,
    /// Jobs from this number on came after the engine last succeeded: it doesn't know them.
    unknown_from: JobId,
    /// The list is looked through when it is longer.
    compact_at: usize,
    /// What the open ticket has.
    #[serde(skip)]
    delivery: Option<Delivery>,
}

/// The first so many changes are in the open ticket: they stay as they are until it is back.
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

    /// Adds one; the list may then have to be [compacted](Self::compact).
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

    /// All of them.
    pub(crate) fn list(&self) -> &Vector<Change> {
        &self.list
    }

    /// What would make an engine run now.
    pub(crate) fn urgency(&self) -> Urgency {
        let mut all = self.urgency;
        all.add(self.delivery.map_or(Urgency::default(), |delivery| delivery.urgency));
        all
    }

    /// A ticket is opened with all of them, while jobs below `next_job` are known.
    pub(crate) fn deliver(&mut self, next_job: JobId) {
        self.returned();
        let urgency = std::mem::take(&mut self.urgency);
        self.delivery = Some(Delivery { count: self.list.len(), urgency, unknown_from: next_job });
    }

    /// The open ticket's engine succeeded: what it had is no news any more.
    pub(crate) fn delivered(&mut self) {
        if let Some(delivery) = self.delivery.take() {
            self.list = self.list.skip(delivery.count);
            self.unknown_from = delivery.unknown_from;
            self.compact_at = 0;
        }
    }

    /// The open ticket came to nothing: what it had comes again with the next.
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
        // Two jobs that the engine knows; one of them will end.
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
        // It failed: its engine before it, if any, knew neither.
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
