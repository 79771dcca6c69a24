//! What waits of what managers said.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Instant,
};

use trainmaster_core::{Event, JobId};
use trainmaster_proto::Observed;

use super::answers::Turn;
use crate::{access::Who, session::Outbox};

/// Managers with tokens of their own aren't listened to for so many times as long as they were.
const RESTS: u32 = 4;

/// What one stream says.
pub(super) enum Said {
    /// It begins, with a snapshot.
    Attach {
        outbox: Outbox,
        observed: Observed,
        who: Who,
        turn: Turn,
    },
    Observe {
        observed: Observed,
        turn: Turn,
    },
    /// It is over.
    Detach {
        manager: String,
    },
}

/// An observation of which a part was taken.
pub(super) struct Taking {
    pub(super) manager: String,
    pub(super) is_snapshot: bool,
    pub(super) trusted: bool,
    /// What its snapshot doesn't name has left.
    pub(super) swept: bool,
    pub(super) messages: VecDeque<(JobId, String)>,
    pub(super) events: VecDeque<Event>,
    /// Of a stream that begins.
    pub(super) outbox: Option<Outbox>,
    /// How much of it can't be, and the first of that.
    pub(super) wrong: (u64, Option<String>),
    pub(super) _turn: Turn,
}

/// What waits, in the order in which each stream said it.
#[derive(Default)]
pub(super) struct Hearing {
    pub(super) streams: BTreeMap<u64, Heard>,
    /// Whose turn comes first: of the trusted, and of those with tokens of their own.
    pub(super) trusted: VecDeque<u64>,
    pub(super) scoped: VecDeque<u64>,
    /// Since when one of those has been heard, with what follows from it, and until when they wait after that.
    pub(super) since: Option<Instant>,
    pub(super) rests: Option<Instant>,
}

#[derive(Default)]
pub(super) struct Heard {
    pub(super) taking: Option<Taking>,
    pub(super) waiting: VecDeque<Said>,
}

impl Hearing {
    pub(super) fn turns(&mut self, trusted: bool) -> &mut VecDeque<u64> {
        if trusted { &mut self.trusted } else { &mut self.scoped }
    }

    pub(super) fn add(&mut self, stream: u64, trusted: bool, said: Said) {
        if !self.streams.contains_key(&stream) {
            self.turns(trusted).push_back(stream);
        }
        self.streams.entry(stream).or_default().waiting.push_back(said);
    }

    /// When there is something to be taken: now, where the time is past. Those with tokens of their own wait for the
    /// disk.
    pub(super) fn wake_at(&self, now: Instant, is_behind: bool) -> Option<Instant> {
        match self.trusted.is_empty() {
            false => Some(now),
            true if self.scoped.is_empty() || is_behind => None,
            true => Some(self.rests.unwrap_or(now)),
        }
    }

    /// What followed from what was heard is done.
    pub(super) fn rest(&mut self) {
        if let Some(since) = self.since.take() {
            self.rests = Some(Instant::now() + RESTS * since.elapsed());
        }
    }

    /// Of streams whose snapshots weren't taken.
    pub(super) fn outboxes(&self) -> impl Iterator<Item = &Outbox> {
        let begun = self.streams.values().filter_map(|heard| heard.taking.as_ref()?.outbox.as_ref());
        let waiting = self.streams.values().flat_map(|heard| &heard.waiting).filter_map(|said| match said {
            Said::Attach { outbox, .. } => Some(outbox),
            _ => None,
        });
        begun.chain(waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trusted_are_heard_while_the_others_rest() {
        let (now, over) = (Instant::now(), || Said::Detach { manager: "m".into() });
        let mut hearing = Hearing::default();
        assert_eq!(hearing.wake_at(now, false), None);
        hearing.add(1, false, over());
        assert_eq!((hearing.wake_at(now, false), hearing.wake_at(now, true)), (Some(now), None));
        hearing.since = Some(now);
        hearing.rest();
        let rests = hearing.wake_at(now, false).unwrap();
        assert!(rests > now && hearing.since.is_none());
        hearing.rest();
        assert_eq!(hearing.wake_at(now, false), Some(rests));
        hearing.add(2, true, over());
        assert_eq!((hearing.wake_at(now, false), hearing.wake_at(now, true)), (Some(now), Some(now)));
    }
}
