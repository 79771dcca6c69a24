//! What managers say, until it is taken: managers by turns, and a little of it at a time, so that nobody waits until a large
//! snapshot was taken.

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

use trainmaster_core::{Event, JobId};
use trainmaster_proto::Observed;

use super::{Turn, owner::Owner};
use crate::daemon::{access::Who, session::Outbox};

/// So long the owner listens until it looks after others.
const SLICE: Duration = Duration::from_millis(5);
/// Time is looked at after so many messages, and after each event, which may take milliseconds.
const MESSAGES: usize = 16;

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
    messages: VecDeque<(JobId, String)>,
    events: VecDeque<Event>,
    /// Of a stream that begins.
    pub(super) outbox: Option<Outbox>,
    /// How much of it can't be, and the first of that.
    pub(super) wrong: (u64, Option<String>),
    _turn: Turn,
}

/// What waits, in the order in which each stream said it.
#[derive(Default)]
pub(super) struct Hearing {
    streams: BTreeMap<u64, Heard>,
    /// Whose turn comes first.
    turns: VecDeque<u64>,
}

#[derive(Default)]
struct Heard {
    taking: Option<Taking>,
    waiting: VecDeque<Said>,
}

impl Hearing {
    pub(super) fn add(&mut self, stream: u64, said: Said) {
        let heard = self.streams.entry(stream).or_insert_with(|| {
            self.turns.push_back(stream);
            Heard::default()
        });
        heard.waiting.push_back(said);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.turns.is_empty()
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

impl Owner {
    /// Takes what managers said, for a short time.
    pub(super) fn hear(&mut self) {
        let end = Instant::now() + SLICE;
        while let Some(stream) = self.hearing.turns.pop_front() {
            let mut heard = self.hearing.streams.remove(&stream).unwrap_or_default();
            let is_point = self.hear_one(stream, &mut heard, end);
            if heard.taking.is_some() || !heard.waiting.is_empty() {
                self.hearing.streams.insert(stream, heard);
                self.hearing.turns.push_back(stream);
            }
            if is_point || Instant::now() >= end {
                return;
            }
        }
    }

    /// What is thrown away may be large.
    fn forget(&self, what: impl Send + 'static) {
        self.threads.spawn_blocking(move || drop(what));
    }

    /// Whether a snapshot is complete: what follows from it comes before anybody begins another one.
    fn hear_one(&mut self, stream: u64, heard: &mut Heard, end: Instant) -> bool {
        loop {
            if let Some(taking) = &mut heard.taking {
                // What was replaced may still have had something to say; the newer one's snapshot says it all.
                let is_open = self.is_open(&taking.manager, stream);
                while is_open && let Some((job, message)) = taking.messages.pop_front() {
                    self.take_message(&taking.manager, job, &message);
                    if taking.messages.len().is_multiple_of(MESSAGES) && Instant::now() >= end {
                        return false;
                    }
                }
                while is_open && let Some(event) = taking.events.pop_front() {
                    self.take_event(&taking.manager, event, &mut taking.wrong);
                    if Instant::now() >= end {
                        return false;
                    }
                }
                let mut taking = heard.taking.take().expect("it is being taken");
                if !is_open {
                    self.forget((std::mem::take(&mut taking.events), std::mem::take(&mut taking.messages)));
                }
                let was_snapshot = taking.is_snapshot;
                self.taken(stream, taking, is_open);
                if was_snapshot {
                    return true;
                }
            }
            match heard.waiting.pop_front() {
                None => return false,
                Some(Said::Detach { manager }) => self.detach(&manager, stream),
                Some(Said::Attach { outbox, observed, who, turn }) => {
                    if let Some(outbox) = self.attach(stream, outbox, &observed, &who) {
                        heard.taking = self.begin(stream, observed, Some(outbox), turn);
                    }
                }
                Some(Said::Observe { observed, turn }) => heard.taking = self.begin(stream, observed, None, turn),
            }
        }
    }

    fn begin(&mut self, stream: u64, observed: Observed, outbox: Option<Outbox>, turn: Turn) -> Option<Taking> {
        if !self.is_open(&observed.manager, stream) {
            self.forget(observed);
            return None;
        }
        self.begin_observed(&observed);
        let Observed { manager, is_snapshot, events, messages, .. } = observed;
        let (messages, events) = (messages.into(), events.into());
        Some(Taking { manager, is_snapshot, messages, events, outbox, wrong: (0, None), _turn: turn })
    }
}
