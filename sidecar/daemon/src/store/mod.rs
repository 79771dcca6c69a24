//! The daemon's memory on disk: the journal of the scheduler, and what doesn't belong in it.
//!
//! [`disk`] is the file, [`writer`] the thread that writes to it. One file holds everything, so that what belongs
//! together is written together: a job's submission and its token, its end and its last status.

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
    /// The folder or file can't be used.
    #[error("{path}: {problem}", path = path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why not.
        problem: String,
    },
    /// What was read makes no sense.
    #[error(
        "{path}: {what} is unreadable: {problem}. Nothing was changed. Restore the file from a backup, or move it away \
         to begin with an empty one; jobs that run are then unknown", path = path.display()
    )]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Which part of it.
        what: String,
        /// What is wrong.
        problem: String,
    },
}

/// Who did what, and when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Audit {
    /// Milliseconds since the Unix epoch.
    pub at: i64,
    /// The caller's address, and how it was let in.
    pub who: String,
    /// The action and what it was done to.
    pub what: String,
}

/// Records, and what is written with them.
pub(crate) type Write = trainmaster_host::Write<Beside>;

/// What is written beside records.
#[derive(Debug, Default)]
pub(crate) struct Beside {
    /// Tokens of new jobs; none = forgotten.
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
        // They gather for as long as the disk is full.
        if self.audits.len() > 2 * AUDITS {
            self.give_up_audits();
        }
    }
}

impl Beside {
    /// Gives up the audit entries that the file wouldn't keep beside the others. O(n log n) in their number.
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

/// What a store held when it was opened.
#[derive(Debug, Default)]
pub(crate) struct Loaded {
    /// Number of the first record.
    pub(crate) first: u64,
    /// From the last-but-one snapshot on.
    pub(crate) records: Vec<Vec<u8>>,
    /// Number of the last snapshot, and of the one before it.
    pub(crate) snapshot: Option<u64>,
    pub(crate) previous: Option<u64>,
    pub(crate) secrets: Vec<(JobId, String)>,
    pub(crate) ended: Vec<EndedJob>,
    pub(crate) term: Term,
    /// The program's version that wrote last.
    pub(crate) version: String,
}

/// The retained records of a daemon's journal, each with its number. The daemon may be running.
///
/// # Errors
/// There is no such file, or it is damaged.
pub fn read_journal(state_dir: &Path) -> Result<Vec<(u64, Vec<u8>)>, StoreError> {
    let path = state_dir.join(FILE);
    let file = JournalFile::read(&path)?;
    match file.damage {
        None => Ok(file.records),
        Some(problem) => Err(disk::corrupt(&path, "the journal", &problem)),
    }
}

/// The retained audit entries of a daemon that may be running, the oldest first.
///
/// # Errors
/// There is no such file, or it is damaged.
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
