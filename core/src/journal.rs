//! The journal: the record of all events and decisions. Each record is framed and has a checksum.
//!
//! A record consists of its body's length (u32, little endian), the first four bytes of the body's BLAKE3 hash, and the
//! body in postcard. The body starts with the version of the format. Recovery starts at the last snapshot and replays
//! the following records ([`crate::replay`]). For each committed decision, the same engine decides again from the same
//! state, and the digest must be the same.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{
    budget::Budget,
    decision::Decision,
    event::Event,
    fit::speed::SpeedTable,
    ids::{JobId, TicketId},
    job::Batching,
    settings::SettingsError,
    state::{SavedNoise, State},
    time::Time,
    topology::Domain,
};

/// Version of the format that is written. It increases when a record's layout changes.
pub const VERSION: u8 = 18;

/// The oldest version that is read. Since then, snapshots have got [`Saved::domains`] (15), [`Saved::tables`] (16),
/// [`Saved::batches`] (17) and [`Saved::noises`] (18) at their end.
const OLDEST: u8 = 14;

/// The number of [`Record::Snapshot`], which postcard writes first.
const SNAPSHOT: u8 = 6;

/// Why a ticket was abandoned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Why {
    /// It took longer than the host allows.
    Late,
    /// The host lost it.
    Lost,
}

/// One record.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Record {
    /// An event was applied.
    Event {
        /// Time of the event.
        at: Time,
        /// The event.
        event: Event,
    },
    /// A ticket was opened.
    Prepared {
        /// Time of the opening.
        at: Time,
        /// The ticket.
        ticket: TicketId,
    },
    /// A ticket was committed as a decision.
    Committed {
        /// Time of the commit.
        at: Time,
        /// The ticket.
        ticket: TicketId,
        /// The engine's budget.
        budget: Budget,
        /// The encoded [`Decision`].
        delta: Vec<u8>,
        /// The digest over all decisions up to this one.
        digest: [u8; 32],
    },
    /// A ticket was abandoned.
    Abandoned {
        /// Time of the end.
        at: Time,
        /// The ticket.
        ticket: TicketId,
        /// The cause.
        why: Why,
    },
    /// A fit ticket was opened.
    FitsPrepared {
        /// Time of the opening.
        at: Time,
        /// The ticket.
        ticket: TicketId,
    },
    /// Fits were committed.
    FitsCommitted {
        /// Time of the commit.
        at: Time,
        /// The ticket.
        ticket: TicketId,
    },
    /// The complete state.
    Snapshot(Box<Saved>),
}

/// The saved state of a scheduler without an open ticket.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Saved {
    pub(crate) state: State,
    pub(crate) memo_version: u32,
    pub(crate) memo: Vec<u8>,
    pub(crate) failures: u32,
    pub(crate) fallback_since: Option<Time>,
    pub(crate) next_ticket: u64,
    pub(crate) digest: [u8; 32],
    pub(crate) decided_at: Option<Time>,
    pub(crate) wake_at: Option<Time>,
    /// The domains of jobs that ask for closeness.
    pub(crate) domains: Vec<(Domain, Vec<JobId>)>,
    /// Measured speeds of jobs that run only with some numbers of workers.
    pub(crate) tables: Vec<(JobId, SpeedTable)>,
    /// Batches and gradient noise of jobs with a range of batches.
    pub(crate) batches: Vec<(JobId, Batching)>,
    /// The gradient noise that models and fits know.
    pub(crate) noises: Vec<SavedNoise>,
}

impl Saved {
    /// The state: the cluster, its jobs and the plan.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The encoded state, without the data that isn't in the journal: which jobs the host was told of.
    pub(super) fn essence(&self) -> Vec<u8> {
        let mut saved = self.clone();
        saved.state.forget_told();
        postcard::to_allocvec(&saved).expect("a snapshot is plain data")
    }
}

/// Why a journal can't be replayed.
#[derive(Debug, Error)]
pub enum JournalError {
    /// The journal has no snapshot.
    #[error("the journal has no snapshot to start from")]
    NoSnapshot,
    /// A record is truncated, changed, or of another version.
    #[error("record {at} is unreadable: {problem}")]
    Unreadable {
        /// Index of the record.
        at: usize,
        /// The problem.
        problem: String,
    },
    /// The settings name an engine or parameter that no longer exists.
    #[error("record {at}: {problem}")]
    Settings {
        /// Index of the record.
        at: usize,
        /// The problem.
        problem: SettingsError,
    },
    /// A replayed decision differs: the engine has changed since, or isn't deterministic.
    #[error("record {at}: decision of {ticket} came out differently when replayed")]
    Diverged {
        /// Index of the record.
        at: usize,
        /// The ticket of the decision.
        ticket: TicketId,
    },
}

impl Record {
    /// Encodes the record, with its frame and checksum.
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

    /// Decodes one frame.
    ///
    /// # Errors
    /// States what is wrong with the frame.
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
            Some((version @ OLDEST..VERSION, body)) if body.first() == Some(&SNAPSHOT) => {
                // Lists that weren't there yet are empty.
                let missing = &[0, 0, 0, 0][..usize::from(VERSION - version)];
                postcard::from_bytes(&[body, missing].concat()).map_err(|error| error.to_string())
            }
            Some((OLDEST..=VERSION, body)) => postcard::from_bytes(body).map_err(|error| error.to_string()),
            Some((version, _)) => {
                Err(format!("it is of version {version}; this program reads versions {OLDEST} to {VERSION}"))
            }
            None => Err("it is empty".into()),
        }
    }

    /// Whether recovery can start at this record. Reads two bytes.
    pub fn is_snapshot(frame: &[u8]) -> bool {
        frame.get(8).is_some_and(|version| (OLDEST..=VERSION).contains(version)) && frame.get(9) == Some(&SNAPSHOT)
    }

    /// Time of the record. `None` for a snapshot of a scheduler before its first event.
    pub fn at(&self) -> Option<Time> {
        match self {
            Self::Event { at, .. }
            | Self::Prepared { at, .. }
            | Self::Committed { at, .. }
            | Self::Abandoned { at, .. }
            | Self::FitsPrepared { at, .. }
            | Self::FitsCommitted { at, .. } => Some(*at),
            Self::Snapshot(saved) => Some(saved.state.now).filter(|now| *now != Time(i64::MIN)),
        }
    }

    /// The decision of a commit.
    pub fn decision(&self) -> Option<Decision> {
        match self {
            Self::Committed { delta, .. } => postcard::from_bytes(delta).ok(),
            _ => None,
        }
    }
}

/// Splits concatenated records into frames. If the end is truncated, the rest after the last complete frame is returned
/// as a frame that can't be decoded.
///
/// ```
/// use trainmaster_core::{Scheduler, Settings, journal};
///
/// let mut scheduler = Scheduler::new(Settings::default()).unwrap();
/// scheduler.start_journal();
/// let mut file = scheduler.drain_journal().concat();
/// file.extend([9, 0, 0]);
/// let records: Vec<_> = journal::frames(&file).map(journal::Record::decode).collect();
/// assert!(records.len() == 2 && records[0].is_ok() && records[1].is_err());
/// ```
pub fn frames(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let length = match bytes.first_chunk::<4>() {
            Some(header) => 8 + u32::from_le_bytes(*header) as usize,
            None if bytes.is_empty() => return None,
            None => bytes.len(),
        };
        let (frame, rest) = bytes.split_at(length.min(bytes.len()));
        bytes = rest;
        Some(frame)
    })
}
