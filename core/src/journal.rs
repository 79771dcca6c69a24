//! The journal: everything that happened and everything that was decided, each record framed and checksummed.
//!
//! A record is its body's length (u32, little endian), the first four bytes of the body's BLAKE3 hash, and the body in
//! postcard, starting with the format's version. Recovery starts at the last snapshot and replays what follows
//! ([`crate::replay`]): a committed decision is made again by the same engine from the same state, and must have the
//! same digest.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{
    budget::Budget, decision::Decision, event::Event, ids::TicketId, settings::SettingsError, state::State, time::Time,
};

/// The format that is written and read; grows when a record's layout changes.
pub const VERSION: u8 = 10;

/// Why a ticket came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Why {
    /// It took longer than its host allows.
    Late,
    /// Its host lost it.
    Lost,
}

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
    pub(crate) fallback_since: Option<Time>,
    pub(crate) next_ticket: u64,
    pub(crate) digest: [u8; 32],
    pub(crate) decided_at: Option<Time>,
    pub(crate) wake_at: Option<Time>,
}

impl Saved {
    /// The cluster, its jobs and the plan.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Its bytes, less what isn't in the journal: which jobs the host has asked about.
    pub(super) fn essence(&self) -> Vec<u8> {
        let mut saved = self.clone();
        saved.state.forget_told();
        postcard::to_allocvec(&saved).expect("a snapshot is plain data")
    }
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

    /// When it was written; none for a snapshot of a scheduler to which nothing has happened yet.
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

/// The frames of records that were written one after the other. What is left behind the last whole one, if the end was
/// cut off, comes as a frame that can't be decoded.
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
