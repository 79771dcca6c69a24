//! The queue of managers' observations.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Instant,
};

use trainmaster_core::Event;
use trainmaster_proto::{JobMessage, Observed};

use super::answers::Turn;
use crate::{access::Who, session::Outbox};

/// Pause of managers with their own tokens, as a multiple of the time that they used.
const RESTS: u32 = 4;

/// A message of a manager's stream.
pub(super) enum Said {
    /// The stream begins, with a snapshot.
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
    /// The stream ends.
    Detach {
        manager: String,
    },
}

/// An observation that is partly taken.
pub(super) struct Taking {
    pub(super) manager: String,
    pub(super) is_snapshot: bool,
    pub(super) trusted: bool,
    /// Servers and slots that the snapshot doesn't contain have left.
    pub(super) swept: bool,
    pub(super) messages: VecDeque<JobMessage>,
    pub(super) events: VecDeque<Event>,
    /// The first observation of a stream.
    pub(super) outbox: Option<Outbox>,
    /// Number of invalid events in it, and the first of them.
    pub(super) wrong: (u64, Option<String>),
    pub(super) _turn: Turn,
}

/// Pending observations, in the order of each stream.
#[derive(Default)]
pub(super) struct Hearing {
    pub(super) streams: BTreeMap<u64, Heard>,
    /// Queues of streams: trusted ones, and those with their own tokens.
    pub(super) trusted: VecDeque<u64>,
    pub(super) scoped: VecDeque<u64>,
    /// The start of the current turn of streams with their own tokens, and the end of the pause after it.
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

    /// The time of the next observation. A time in the past means now. Streams with their own tokens wait for the disk.
    pub(super) fn wake_at(&self, now: Instant, is_behind: bool) -> Option<Instant> {
        match self.trusted.is_empty() {
            false => Some(now),
            true if self.scoped.is_empty() || is_behind => None,
            true => Some(self.rests.unwrap_or(now)),
        }
    }

    /// Ends a turn after its effects, and begins the pause.
    pub(super) fn rest(&mut self) {
        if let Some(since) = self.since.take() {
            self.rests = Some(Instant::now() + RESTS * since.elapsed());
        }
    }

    /// The outboxes of streams whose snapshots aren't taken yet.
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
