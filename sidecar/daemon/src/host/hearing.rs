//! Managers' observations are taken in turns, a few events at a time. So nobody waits for a large snapshot.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use trainmaster_core::Event;
use trainmaster_proto::Observed;

use super::{
    answers::Turn,
    owner::Owner,
    said::{Heard, Said, Taking},
};
use crate::session::Outbox;

/// Time for observations until the owner does other work.
const SLICE: Duration = Duration::from_millis(5);
/// Time for observations of managers with their own tokens. Their pause afterwards is a multiple of the time that they
/// used, including its effects. All of them together take a fifth of the owner's time.
const SCOPED_SLICE: Duration = Duration::from_millis(2);
/// Number of messages between checks of the time. Events may take milliseconds, so the time is also checked after each.
const MESSAGES: usize = 16;
/// Number of such a manager's servers that leave at a time.
const LEAVING: usize = 500;

impl Owner {
    /// Queues a stream's message.
    pub(super) fn add_said(&mut self, stream: u64, said: Said) {
        let trusted = match &said {
            Said::Attach { who, .. } => who.role.is_trusted(),
            Said::Observe { observed, .. } => self.is_trusted(&observed.manager),
            Said::Detach { manager } => self.is_trusted(manager),
        };
        self.hearing.add(stream, trusted, said);
    }

    /// Takes observations for a short time.
    pub(super) fn hear(&mut self) {
        if self.hear_some(true, Instant::now() + SLICE) || self.hearing.scoped.is_empty() || self.journal.is_behind() {
            return;
        }
        let now = Instant::now();
        if self.hearing.rests.is_none_or(|until| until <= now) {
            self.hearing.since = Some(now);
            self.hear_some(false, now + SCOPED_SLICE);
        }
    }

    /// Whether the time for observations is over.
    fn hear_some(&mut self, trusted: bool, end: Instant) -> bool {
        while let Some(stream) = self.hearing.turns(trusted).pop_front() {
            let mut heard = self.hearing.streams.remove(&stream).unwrap_or_default();
            let is_point = self.hear_one(stream, &mut heard, end);
            if heard.taking.is_some() || !heard.waiting.is_empty() {
                self.hearing.streams.insert(stream, heard);
                self.hearing.turns(trusted).push_back(stream);
            }
            if is_point || Instant::now() >= end {
                return true;
            }
        }
        false
    }

    /// Dropped data may be large.
    fn forget(&self, what: impl Send + 'static) {
        self.threads.spawn_blocking(move || drop(what));
    }

    /// Whether a snapshot is complete. Its effects come before the next snapshot.
    fn hear_one(&mut self, stream: u64, heard: &mut Heard, end: Instant) -> bool {
        loop {
            if let Some(taking) = &mut heard.taking {
                // A replaced stream may have pending observations. The newer stream's snapshot replaces them.
                let is_open = self.is_open(&taking.manager, stream);
                while is_open && let Some(message) = taking.messages.pop_front() {
                    self.take_message(&taking.manager, taking.is_snapshot, message);
                    if taking.messages.len().is_multiple_of(MESSAGES) && Instant::now() >= end {
                        return false;
                    }
                }
                while is_open && let Some(event) = self.next(taking) {
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
                    match self.attach(stream, outbox, &observed, &who) {
                        Some(outbox) => heard.taking = self.begin(stream, observed, Some(outbox), turn),
                        None => self.forget(observed),
                    }
                }
                Some(Said::Observe { observed, turn }) => heard.taking = self.begin(stream, observed, None, turn),
            }
        }
    }

    /// The next event. Each event of a manager with its own token takes a short time, so the servers that its snapshot
    /// doesn't contain leave in parts before the snapshot ends.
    fn next(&self, taking: &mut Taking) -> Option<Event> {
        if taking.trusted {
            return taking.events.pop_front();
        }
        if let Some(Event::SyncEnd { .. }) = taking.events.front()
            && !std::mem::replace(&mut taking.swept, true)
        {
            let names = self.scheduler.state().servers_missing_in_sync(&taking.manager);
            if names.len() > LEAVING {
                taking.events.push_front(Event::ServersLeft { names });
            }
        }
        split(&mut taking.events)
    }

    fn begin(&mut self, stream: u64, observed: Observed, outbox: Option<Outbox>, turn: Turn) -> Option<Taking> {
        if !self.is_open(&observed.manager, stream) {
            self.forget(observed);
            return None;
        }
        self.begin_observed(&observed);
        let Observed { manager, is_snapshot, events, messages, .. } = observed;
        let (messages, events) = (messages.into(), events.into());
        let trusted = self.is_trusted(&manager);
        Some(Taking {
            manager,
            is_snapshot,
            trusted,
            swept: false,
            messages,
            events,
            outbox,
            wrong: (0, None),
            _turn: turn,
        })
    }
}

/// The next event, with at most [`LEAVING`] servers that leave.
fn split(events: &mut VecDeque<Event>) -> Option<Event> {
    match events.front_mut() {
        Some(Event::ServersLeft { names }) if names.len() > LEAVING => {
            Some(Event::ServersLeft { names: names.split_off(names.len() - LEAVING) })
        }
        _ => events.pop_front(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_leave_some_at_a_time() {
        let all: Vec<String> = (0..2 * LEAVING + 1).map(|at| at.to_string()).collect();
        let last = Event::ServersLeft { names: vec!["last".into()] };
        let mut events = VecDeque::from([Event::ServersLeft { names: all.clone() }, last]);
        let mut parts = Vec::new();
        while let Some(Event::ServersLeft { names }) = split(&mut events) {
            parts.push(names);
        }
        assert!(events.is_empty());
        assert_eq!(parts.iter().map(Vec::len).collect::<Vec<_>>(), [LEAVING, LEAVING, 1, 1]);
        assert_eq!(parts.pop().unwrap(), ["last"]);
        let mut left = parts.concat();
        left.sort_by_key(|name| name.parse::<usize>().unwrap());
        assert_eq!(left, all);
    }
}
