//! Replay of a journal's records with the same core.

use crate::{
    decision::{Decision, Issue},
    event::EventError,
    ids::TicketId,
    journal::{JournalError, Record, Saved},
    scheduler::{FitTicket, Scheduler, Ticket, Why},
    settings::SettingsError,
};

/// A scheduler that replays a journal, record by record, from any of its snapshots.
///
/// ```
/// use trainmaster_core::{Event, JobSpec, Scheduler, Settings, Time, journal::Record, replay::{Replay, Replayed}};
///
/// let mut scheduler = Scheduler::new(Settings { engine: "fifo".into(), ..Settings::default() }).unwrap();
/// scheduler.start_journal();
/// let spec = Box::new(JobSpec::minimal("mnist"));
/// scheduler.apply(Time(1), Event::JobSubmitted { spec, external: None, token_hash: None }).unwrap();
/// scheduler.decide(Time(2));
/// let records: Vec<Record> = scheduler.drain_journal().iter().map(|frame| Record::decode(frame).unwrap()).collect();
///
/// let Record::Snapshot(saved) = &records[0] else { panic!("a journal begins with a snapshot") };
/// let mut replay = Replay::new((**saved).clone()).unwrap();
/// let steps: Vec<Replayed> = records[1..].iter().map(|record| replay.step(record).unwrap()).collect();
/// assert!(matches!(steps.last(), Some(Replayed::Decided(Ok(_)))));
/// assert_eq!(replay.scheduler().digest(), scheduler.digest());
/// ```
pub struct Replay {
    scheduler: Scheduler,
    ticket: Option<(TicketId, Ticket)>,
    fits: Option<(TicketId, FitTicket)>,
}

/// The result of a replayed record.
#[derive(Debug)]
pub enum Replayed {
    /// An event was applied. Events that were refused before are refused again.
    Event(Result<(), EventError>),
    /// A ticket was opened or abandoned, or fits were committed.
    Ticket,
    /// A decision was made again. It is identical to the recorded one, byte by byte, or differs.
    Decided(Result<Decision, Box<Difference>>),
    /// A snapshot, from which the replay continues.
    Snapshot {
        /// Whether the records before it lead to the snapshot. If not, some are missing (for example, because a disk
        /// was full), were changed, or come from another version.
        follows: bool,
    },
}

/// A replayed decision that differs from the recorded one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The ticket.
    pub ticket: TicketId,
    /// The recorded decision.
    pub recorded: Made,
    /// The replayed decision. `None` if the ticket isn't open here, because its record is missing or another ticket
    /// superseded it.
    pub replayed: Option<Made>,
}

/// A decision, with the digest over all decisions up to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    /// [`Scheduler::digest`].
    pub digest: [u8; 32],
    /// The decision. `None` if its bytes can't be decoded.
    pub decision: Option<Decision>,
}

impl Replay {
    /// Starts at a snapshot.
    ///
    /// # Errors
    /// The settings name an engine or a parameter that no longer exists.
    pub fn new(saved: Saved) -> Result<Self, SettingsError> {
        Ok(Self { scheduler: Scheduler::from_saved(saved)?, ticket: None, fits: None })
    }

    /// The scheduler after the records so far.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// The messages for managers from the records since the last call. See [`Scheduler::take_issues`].
    pub fn take_issues(&mut self) -> Vec<Issue> {
        self.scheduler.take_issues()
    }

    /// Replays the next record. After a difference, the replay continues from its own state up to the next snapshot.
    ///
    /// # Errors
    /// The record is a snapshot whose settings name an engine or a parameter that no longer exists. Nothing has
    /// changed.
    pub fn step(&mut self, record: &Record) -> Result<Replayed, SettingsError> {
        match record {
            Record::Event { at, event } => return Ok(Replayed::Event(self.scheduler.apply(*at, event.clone()))),
            Record::Prepared { at, ticket } => self.ticket = Some((*ticket, self.scheduler.prepare(*at))),
            Record::Committed { .. } => return Ok(Replayed::Decided(self.decide(record))),
            Record::Abandoned { at, ticket, why } => {
                self.ticket.take_if(|(open, _)| open == ticket);
                self.fits.take_if(|(open, _)| open == ticket);
                self.scheduler.abandon(*at, *ticket, *why);
            }
            Record::FitsPrepared { at, ticket } => {
                self.fits = self.scheduler.prepare_fits(*at).map(|open| (*ticket, open));
            }
            Record::FitsCommitted { at, ticket } => {
                if let Some((_, open)) = self.fits.take_if(|(open, _)| open == ticket) {
                    let _ = self.scheduler.commit_fits(*at, open.run());
                }
            }
            Record::Snapshot(saved) => {
                let next = Scheduler::from_saved((**saved).clone())?;
                self.give_up_open();
                let follows = self.scheduler.saved().essence() == saved.essence();
                self.scheduler = next;
                return Ok(Replayed::Snapshot { follows });
            }
        }
        Ok(Replayed::Ticket)
    }

    fn decide(&mut self, record: &Record) -> Result<Decision, Box<Difference>> {
        let Record::Committed { at, ticket, budget, delta, digest } = record else { unreachable!("the caller looked") };
        let recorded = || Made { digest: *digest, decision: record.decision() };
        let missing = || Box::new(Difference { ticket: *ticket, recorded: recorded(), replayed: None });
        let (_, open) = self.ticket.take_if(|(open, _)| open == ticket).ok_or_else(missing)?;
        let decision = self.scheduler.commit(*at, open.run(*budget)).map_err(|_| missing())?;
        if self.scheduler.digest() == *digest && decision.encode() == *delta {
            return Ok(decision);
        }
        let replayed = Made { digest: self.scheduler.digest(), decision: Some(decision) };
        Err(Box::new(Difference { ticket: *ticket, recorded: recorded(), replayed: Some(replayed) }))
    }

    /// Abandons open tickets. A snapshot is only taken without open tickets, so the host had ended by then.
    fn give_up_open(&mut self) {
        let now = self.scheduler.state().now;
        let decision = self.ticket.take().map(|(id, _)| id);
        let fits = self.fits.take().map(|(id, _)| id);
        for ticket in decision.into_iter().chain(fits) {
            self.scheduler.abandon(now, ticket, Why::Lost);
        }
    }

    /// Returns the scheduler, ready to continue at the end of the journal.
    pub fn finish(mut self) -> Scheduler {
        self.give_up_open();
        self.scheduler
    }
}

impl Scheduler {
    /// Replays a journal from its last snapshot, with all later events and committed tickets.
    ///
    /// # Errors
    /// There is no snapshot, a record is unreadable, an engine no longer exists, or the digest of a replayed decision
    /// differs.
    pub fn restore<'a>(records: impl IntoIterator<Item = &'a [u8]>) -> Result<Self, JournalError> {
        let frames: Vec<&[u8]> = records.into_iter().collect();
        let start = frames.iter().rposition(|frame| Record::is_snapshot(frame)).ok_or(JournalError::NoSnapshot)?;
        let mut replay: Option<Replay> = None;
        for (at, frame) in frames.iter().enumerate().skip(start) {
            let record = Record::decode(frame).map_err(|problem| JournalError::Unreadable { at, problem })?;
            let gone = |problem| JournalError::Settings { at, problem };
            let Some(replay) = &mut replay else {
                let Record::Snapshot(saved) = record else { return Err(JournalError::NoSnapshot) };
                replay = Some(Replay::new(*saved).map_err(gone)?);
                continue;
            };
            if let Replayed::Decided(Err(difference)) = replay.step(&record).map_err(gone)? {
                return Err(JournalError::Diverged { at, ticket: difference.ticket });
            }
        }
        replay.map(Replay::finish).ok_or(JournalError::NoSnapshot)
    }
}
