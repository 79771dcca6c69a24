//! The daemon's data on disk: the scheduler's journal, and the data beside it.
//!
//! [`disk`] is the file, and [`writer`] the thread that writes to it. One file contains everything, so that related
//! data is written together: a job's submission with its token, and its end with its last status.

pub(crate) mod disk;
pub(crate) mod faults;
mod image;
pub(crate) mod writer;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::{Deserialize, Serialize};
use thiserror::Error;
use trainmaster_core::{JobId, Term};
use trainmaster_feed::Kept;

use self::disk::AUDITS;
pub use self::image::JournalFile;
use super::{access::whose, ended::EndedJob};

/// The file's name in the state folder.
pub(crate) const FILE: &str = "journal.redb";

/// A store that can't be opened, read or written.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The folder or file is unusable.
    #[error("{path}: {problem}", path = path.display())]
    File {
        /// The path.
        path: PathBuf,
        /// The cause.
        problem: String,
    },
    /// The content is invalid.
    #[error(
        "{path}: {what} is unreadable: {problem}. Nothing was changed. Restore the file from a backup, or move it away \
         to begin with an empty one; jobs that run are then unknown", path = path.display()
    )]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// The invalid part.
        what: String,
        /// The problem.
        problem: String,
    },
}

/// An audit entry: a caller's action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Audit {
    /// Milliseconds since the Unix epoch.
    pub at: i64,
    /// The caller's address, and its token or certificate.
    pub who: String,
    /// The action and its object.
    pub what: String,
}

/// Records, and the data that is written with them.
pub(crate) type Write = trainmaster_host::Write<Beside>;

/// Data that is written with records.
#[derive(Debug, Default)]
pub(crate) struct Beside {
    /// Tokens of jobs. None: the token is removed.
    pub(crate) secrets: Vec<(JobId, Option<String>)>,
    pub(crate) ended: Vec<Arc<EndedJob>>,
    pub(crate) forgotten: Vec<JobId>,
    pub(crate) audits: Vec<Audit>,
    pub(crate) term: Option<Term>,
}

impl trainmaster_host::Beside for Beside {
    fn is_empty(&self) -> bool {
        self.secrets.is_empty()
            && self.ended.is_empty()
            && self.forgotten.is_empty()
            && self.audits.is_empty()
            && self.term.is_none()
    }

    fn append(&mut self, later: Self) {
        self.secrets.extend(later.secrets);
        self.ended.extend(later.ended);
        self.forgotten.extend(later.forgotten);
        self.audits.extend(later.audits);
        self.term = later.term.or(self.term);
        // Audit entries gather while the disk is full.
        if self.audits.len() > 2 * AUDITS {
            self.give_up_audits();
        }
    }
}

impl Beside {
    /// Drops the audit entries that the file wouldn't keep. O(n log n) in their number.
    fn give_up_audits(&mut self) {
        let mut kept = Kept::new(AUDITS);
        for (at, audit) in self.audits.iter().enumerate() {
            kept.insert("", whose(&audit.who), at);
        }
        let kept: BTreeSet<usize> = kept.iter().collect();
        let audits = std::mem::take(&mut self.audits).into_iter().enumerate();
        self.audits = audits.filter_map(|(at, audit)| kept.contains(&at).then_some(audit)).collect();
    }
}

/// The content of a store at its opening.
#[derive(Debug, Default)]
pub(crate) struct Loaded {
    /// Number of the first record.
    pub(crate) first: u64,
    /// Records from the last but one snapshot on.
    pub(crate) records: Vec<Vec<u8>>,
    /// Number of the last snapshot, and of the previous one.
    pub(crate) snapshot: Option<u64>,
    pub(crate) previous: Option<u64>,
    pub(crate) secrets: Vec<(JobId, String)>,
    pub(crate) ended: Vec<EndedJob>,
    pub(crate) term: Term,
    /// The version of the last program that wrote to it.
    pub(crate) version: String,
}

/// The retained records of a daemon's journal, with their numbers. The daemon may run meanwhile.
///
/// # Errors
/// The file doesn't exist or is damaged.
pub fn read_journal(state_dir: &Path) -> Result<Vec<(u64, Vec<u8>)>, StoreError> {
    let path = state_dir.join(FILE);
    let file = JournalFile::read(&path)?;
    match file.damage {
        None => Ok(file.records),
        Some(problem) => Err(disk::corrupt(&path, "the journal", &problem)),
    }
}

/// The retained audit entries of a daemon, the oldest first. The daemon may run meanwhile.
///
/// # Errors
/// The file doesn't exist or is damaged.
pub fn read_audit(state_dir: &Path) -> Result<Vec<Audit>, StoreError> {
    image::read_audit(&state_dir.join(FILE))
}

#[cfg(test)]
mod tests {
    use trainmaster_host::Beside as _;

    use super::*;

    #[test]
    fn audit_entries_that_wait_for_the_disk_are_bounded_as_those_in_the_file() {
        let audits = |whose: &str, count: usize| {
            let who = format!("127.0.0.1:1 with {whose}");
            Beside { audits: vec![Audit { at: 0, who, what: "pause job1".into() }; count], ..Beside::default() }
        };
        let mut waiting = Beside::default();
        waiting.append(audits("token operator (admin)", 3));
        for _ in 0..50 {
            waiting.append(audits("token a (submit)", 1000));
            assert!(waiting.audits.len() <= 2 * AUDITS);
        }
        assert_eq!(waiting.audits.iter().filter(|audit| audit.who.contains("operator")).count(), 3);
    }
}
