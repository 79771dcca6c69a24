//! A watch stream: the current assignment at once, then the latest one after each change.

use std::{pin::Pin, sync::Arc};

use futures_util::{Stream, stream};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    task::yield_now,
};
use tonic::Status;
use trainmaster_core::JobId;
use trainmaster_proto::{EncodedAssignment, role_to_wire};

use crate::registry::{Feed, SlotKey, View};

/// Assignments up to this size need no room, because a stream uses as much in any case.
const SMALL: usize = 1 << 10;

/// Room for an unread assignment.
type Room = OwnedSemaphorePermit;

/// Result of a watch call.
pub(crate) type Assignments = Pin<Box<dyn Stream<Item = Result<EncodedAssignment, Status>> + Send>>;

/// Streams assignments to one slot until it disconnects. A slow reader skips outdated assignments. An assignment that
/// isn't small is created only when there is room for it.
pub(crate) fn stream(watcher: Watcher) -> Assignments {
    let telling = Telling { watcher, told: false, unread: None };
    Box::pin(stream::unfold(Some(telling), Telling::next))
}

struct Telling {
    watcher: Watcher,
    told: bool,
    /// Room of the last assignment, until it is sent.
    unread: Option<Room>,
}

impl Telling {
    async fn next(telling: Option<Self>) -> Option<(Result<EncodedAssignment, Status>, Option<Self>)> {
        let mut telling = telling?;
        if telling.told {
            // The last assignment was taken. The port asks for the next one after it is sent.
            yield_now().await;
            telling.unread = None;
            if let Err(gone) = telling.watcher.changed().await {
                return Some((Err(gone), None));
            }
        }
        telling.told = true;
        let (assignment, room) = telling.watcher.look().await;
        telling.unread = room;
        Some((Ok(assignment), Some(telling)))
    }
}

/// A stream that watches a job.
#[derive(Debug)]
pub(crate) struct Watcher {
    pub(crate) feed: Feed,
    pub(crate) job: JobId,
    pub(crate) slot: SlotKey,
    pub(crate) stream: u64,
    pub(crate) view: watch::Receiver<Arc<View>>,
    /// The tenant, for a job without an assignment so far.
    pub(crate) idle: Option<String>,
    /// The slot's own address, which is part of each of its assignments.
    pub(crate) address: String,
    pub(crate) turn: Arc<Semaphore>,
    pub(crate) unread: Arc<Semaphore>,
}

impl Watcher {
    /// The current assignment for the slot, once there is room for it, from the tenant's unread bytes or the job's own
    /// permit. Later changes count as new.
    pub(crate) async fn look(&mut self) -> (EncodedAssignment, Option<Room>) {
        let most = self.feed.limits().unread_bytes;
        let mut room = None;
        let mut size = SMALL;
        let view = loop {
            let view = self.view.borrow_and_update().clone();
            // It may have grown meanwhile.
            if view.assignment.len() <= size {
                break view;
            }
            size = view.assignment.len();
            drop((view, room.take()));
            let bytes = u32::try_from(size.min(most)).unwrap_or(u32::MAX);
            let taken = tokio::select! {
                biased;
                taken = self.unread.clone().acquire_many_owned(bytes) => taken,
                turn = self.turn.clone().acquire_owned() => turn,
            };
            room = Some(taken.expect("it is never closed"));
        };
        (self.told(&view), room)
    }

    fn told(&self, view: &View) -> EncodedAssignment {
        let (incarnation, role, index) = self.slot;
        if view.incarnation != incarnation {
            return view.assignment.told(0, None);
        }
        let last_seq = self.feed.last_accepted(self.job, view, (role, index));
        let own = (!self.address.is_empty()).then(|| ((role_to_wire(role).into(), index), &*self.address));
        view.assignment.told(last_seq, own)
    }

    /// Waits for a change.
    ///
    /// # Errors
    /// The job is forgotten, or the feed stops.
    pub(crate) async fn changed(&mut self) -> Result<(), Status> {
        self.view.changed().await.map_err(|_| self.feed.absence(&self.job.0.to_string()))
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.feed.unwatch(self);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::{FutureExt as _, StreamExt as _};
    use prometheus::Registry;
    use prost::Message;
    use tokio::time::advance;
    use trainmaster_core::{Incarnation, Role};
    use trainmaster_proto::v1;

    use super::*;
    use crate::{FeedMetrics, JobAssignment, Limits, Standing};

    fn feed(unread_bytes: usize) -> Feed {
        let limits = Limits { unread_bytes, ..Limits::default() };
        Feed::new(limits, FeedMetrics::register(&Registry::new()).unwrap())
    }

    /// About 100 bytes per slot.
    fn given(tenant: &str, slots: u32) -> JobAssignment {
        let slot = |index| v1::Slot { index, server: "s".repeat(90), ..v1::Slot::default() };
        JobAssignment {
            tenant: tenant.into(),
            incarnation: Incarnation(1),
            standing: Standing::Run,
            slots: (0..slots).map(slot).collect(),
            ..JobAssignment::default()
        }
    }

    fn slot(index: u32) -> SlotKey {
        (Incarnation(1), Role::Worker, index)
    }

    #[tokio::test]
    async fn unread_assignments_take_bounded_room_and_delay_no_other_job() {
        let feed = feed(400_000);
        for (job, tenant) in [(1, "greedy"), (2, "greedy"), (3, "modest")] {
            feed.set(JobId(job), JobAssignment { name: format!("job{job}"), ..given(tenant, 1000) });
        }
        let watch = |job: u64, index: u32| stream(feed.watch(JobId(job), slot(index), String::new()).unwrap());
        let mut unread: Vec<_> = (0..100).map(|index| watch(1, index)).collect();
        let told = |streams: &mut Vec<Assignments>| {
            streams.iter_mut().filter_map(|stream| stream.next().now_or_never()).flatten().count()
        };
        // Four of about 98,000 bytes each within 400,000, and one with the job's own permit.
        assert_eq!(told(&mut unread), 5);
        for index in 0..2 {
            assert_eq!(told(&mut vec![watch(2, index)]), 1, "by its own turn");
        }
        assert_eq!(told(&mut vec![watch(3, 0)]), 1);
        // A watcher that disconnects releases its room.
        let rest = unread.split_off(5);
        drop(unread);
        let mut rest = rest;
        assert_eq!(told(&mut rest), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn changing_addresses_are_published_at_intervals() {
        let feed = feed(4 << 20);
        feed.set(JobId(1), given("a", 5000));
        let mut watcher = feed.watch(JobId(1), slot(0), String::new()).unwrap();
        watcher.look().await;
        for _ in 0..100 {
            drop(feed.watch(JobId(1), slot(7), "host:1".into()).unwrap());
        }
        let _stays = feed.watch(JobId(1), slot(8), "host:2".into()).unwrap();
        assert!(watcher.changed().now_or_never().is_none(), "it was told a moment ago");
        advance(Duration::from_secs(1)).await;
        watcher.changed().await.unwrap();
        let told = watcher.look().await.0.encode_to_vec();
        let peers = v1::Assignment::decode(&*told).unwrap().peers;
        assert_eq!((&*peers[7].address, &*peers[8].address), ("", "host:2"));
        // Changes by the scheduler are published at once.
        feed.set(JobId(1), JobAssignment { standing: Standing::Stop, ..given("a", 5000) });
        watcher.changed().now_or_never().expect("news").unwrap();
    }

    #[tokio::test]
    async fn jobs_without_an_assignment_share_few_watchers() {
        let feed = feed(4 << 20);
        let mut watchers = Vec::new();
        let refused = (1..100).find_map(|job| {
            feed.set(JobId(job), given("a", 0));
            (0..64).find_map(|index| match feed.watch(JobId(job), slot(index), String::new()) {
                Ok(watcher) => {
                    watchers.push(watcher);
                    None
                }
                Err(refused) => Some(refused),
            })
        });
        assert!(refused.unwrap().message().contains("given nothing yet"));
        assert_eq!(watchers.len(), 1024);
        feed.set(JobId(200), given("b", 0));
        feed.watch(JobId(200), slot(0), String::new()).unwrap();
        watchers.pop();
        feed.watch(JobId(100), slot(0), String::new()).unwrap_err();
        feed.set(JobId(100), given("a", 0));
        feed.watch(JobId(100), slot(0), String::new()).unwrap();
    }
}
