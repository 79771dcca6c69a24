//! The journal: everything that happened and everything that was decided, each record framed and checksummed.
//!
//! A record is its body's length (u32, little endian), the first four bytes of the body's BLAKE3 hash, and the body in
//! postcard, starting with the format's version. Recovery starts at the last snapshot and replays what follows; a
//! committed decision is made again by the same engine from the same state, and must have the same digest.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{
    decision::Decision,
    engines::Budget,
    event::Event,
    ids::TicketId,
    scheduler::{FitTicket, Scheduler, Ticket, Why},
    settings::SettingsError,
    state::State,
    time::Time,
};

/// Grows when a record's layout changes.
const VERSION: u8 = 3;

/// One record.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Record {
    /// Something happened.
    Event {
        /// When.
        at: Time,
        /// What.
        event: Event,
    },
    /// A ticket was opened.
    Prepared {
        /// When.
        at: Time,
        /// Which.
        ticket: TicketId,
    },
    /// A ticket became a decision.
    Committed {
        /// When.
        at: Time,
        /// Which.
        ticket: TicketId,
        /// What its engine was allowed.
        budget: Budget,
        /// The encoded [`Decision`].
        delta: Vec<u8>,
        /// The digest over all decisions up to this.
        digest: [u8; 32],
    },
    /// A ticket came to nothing.
    Abandoned {
        /// When.
        at: Time,
        /// Which.
        ticket: TicketId,
        /// Why.
        why: Why,
    },
    /// A fit ticket was opened.
    FitsPrepared {
        /// When.
        at: Time,
        /// Which.
        ticket: TicketId,
    },
    /// Fits were taken over.
    FitsCommitted {
        /// When.
        at: Time,
        /// Which.
        ticket: TicketId,
    },
    /// Everything, as of now.
    Snapshot(Box<Saved>),
}

/// A scheduler at rest.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Saved {
    pub(crate) state: State,
    pub(crate) memo_version: u32,
    pub(crate) memo: Vec<u8>,
    pub(crate) failures: u32,
    pub(crate) next_ticket: u64,
    pub(crate) digest: [u8; 32],
    pub(crate) decided_at: Option<Time>,
    pub(crate) wake_at: Option<Time>,
}

/// A journal that can't be replayed.
#[derive(Debug, Error)]
pub enum JournalError {
    /// Nothing to start from.
    #[error("the journal has no snapshot to start from")]
    NoSnapshot,
    /// A record is cut off, changed, or of another version.
    #[error("record {at} is unreadable: {problem}")]
    Unreadable {
        /// Its position.
        at: usize,
        /// What is wrong.
        problem: String,
    },
    /// The settings name an engine or parameter that is gone.
    #[error("record {at}: {problem}")]
    Settings {
        /// Its position.
        at: usize,
        /// What is wrong.
        problem: SettingsError,
    },
    /// A decision came out differently: the engine is not the one that made it, or it isn't deterministic.
    #[error("record {at}: decision of {ticket} came out differently when replayed")]
    Diverged {
        /// Its position.
        at: usize,
        /// Whose.
        ticket: TicketId,
    },
}

impl Record {
    /// Framed and checksummed.
    pub fn encode(&self) -> Vec<u8> {
        let mut frame = vec![0; 8];
        frame.push(VERSION);
        let mut frame = postcard::to_extend(self, frame).expect("a record is plain data");
        let length = (frame.len() - 8) as u32;
        let check = blake3::hash(&frame[8..]);
        frame[..4].copy_from_slice(&length.to_le_bytes());
        frame[4..8].copy_from_slice(&check.as_bytes()[..4]);
        frame
    }

    /// Reads one frame.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub fn decode(frame: &[u8]) -> Result<Self, String> {
        let (header, body) = frame.split_at_checked(8).ok_or("it is shorter than a header")?;
        let length = u32::from_le_bytes(header[..4].try_into().expect("four bytes")) as usize;
        if length != body.len() {
            return Err(format!("it says {length} bytes and has {}", body.len()));
        }
        if blake3::hash(body).as_bytes()[..4] != header[4..] {
            return Err("its checksum is wrong".into());
        }
        match body.split_first() {
            Some((&VERSION, body)) => postcard::from_bytes(body).map_err(|error| error.to_string()),
            Some((version, _)) => Err(format!("it is of version {version}; this program reads version {VERSION}")),
            None => Err("it is empty".into()),
        }
    }

    /// Whether recovery can start here. Looks at two bytes.
    pub fn is_snapshot(frame: &[u8]) -> bool {
        // Postcard writes the variant's number first.
        frame.get(8) == Some(&VERSION) && frame.get(9) == Some(&6)
    }

    /// The decision of a commit.
    pub fn decision(&self) -> Option<Decision> {
        match self {
            Self::Committed { delta, .. } => postcard::from_bytes(delta).ok(),
            _ => None,
        }
    }
}

pub(crate) fn replay<'a>(records: impl IntoIterator<Item = &'a [u8]>) -> Result<Scheduler, JournalError> {
    let frames: Vec<&[u8]> = records.into_iter().collect();
    let start = frames.iter().rposition(|frame| Record::is_snapshot(frame)).ok_or(JournalError::NoSnapshot)?;
    let mut scheduler: Option<Scheduler> = None;
    let mut tickets: BTreeMap<TicketId, Ticket> = BTreeMap::new();
    let mut fit_tickets: BTreeMap<TicketId, FitTicket> = BTreeMap::new();
    for (at, frame) in frames.iter().enumerate().skip(start) {
        let record = Record::decode(frame).map_err(|problem| JournalError::Unreadable { at, problem })?;
        let Some(scheduler) = &mut scheduler else {
            let Record::Snapshot(saved) = record else { return Err(JournalError::NoSnapshot) };
            scheduler = Some(Scheduler::from_saved(*saved).map_err(|problem| JournalError::Settings { at, problem })?);
            continue;
        };
        match record {
            // What was refused then is refused now; both count alike.
            Record::Event { at, event } => drop(scheduler.apply(at, event)),
            Record::Prepared { at, ticket } => {
                tickets.clear();
                tickets.insert(ticket, scheduler.prepare(at));
            }
            Record::Committed { at: time, ticket, budget, digest, .. } => {
                let diverged = JournalError::Diverged { at, ticket };
                // No snapshot is taken while a ticket is open, so its record is missing, or it was superseded.
                let Some(open) = tickets.remove(&ticket) else { return Err(diverged) };
                let outcome = open.run(budget);
                if scheduler.commit(time, outcome).is_err() || scheduler.digest() != digest {
                    return Err(diverged);
                }
            }
            Record::Abandoned { at, ticket, why } => {
                tickets.remove(&ticket);
                fit_tickets.remove(&ticket);
                scheduler.abandon(at, ticket, why);
            }
            Record::FitsPrepared { at, ticket } => {
                fit_tickets.clear();
                fit_tickets.extend(scheduler.prepare_fits(at).map(|open| (ticket, open)));
            }
            Record::FitsCommitted { at, ticket } => {
                if let Some(open) = fit_tickets.remove(&ticket) {
                    let _ = scheduler.commit_fits(at, open.run());
                }
            }
            Record::Snapshot(_) => {}
        }
    }
    let mut scheduler = scheduler.ok_or(JournalError::NoSnapshot)?;
    // What was open when the journal ended has no one to finish it.
    let now = scheduler.state().now;
    let open: Vec<TicketId> = tickets.into_keys().chain(fit_tickets.into_keys()).collect();
    for ticket in open {
        scheduler.abandon(now, ticket, Why::Lost);
    }
    Ok(scheduler)
}
