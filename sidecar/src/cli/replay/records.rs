//! The records of a journal, and those that can't be read.

use std::path::Path;

use serde::Serialize;
use trainmaster_core::journal::{Record, Saved};

use crate::{cli::Failure, daemon::JournalFile};

/// A journal that begins with a snapshot.
pub(super) struct Records {
    pub(super) path: String,
    pub(super) file: JournalFile,
    /// Place of the first snapshot that can be read.
    start: usize,
    pub(super) unreadable: Vec<Unreadable>,
}

/// A record that can't be read.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Unreadable {
    pub(super) record: u64,
    pub(super) problem: String,
}

impl Records {
    /// Reads a journal.
    ///
    /// # Errors
    /// It can't be read, it isn't one, or it has no snapshot to start from.
    pub(super) fn read(path: &Path) -> Result<Self, Failure> {
        let name = path.display().to_string();
        let file = JournalFile::read(path).map_err(|error| Failure::refused(error.to_string()))?;
        let mut unreadable = Vec::new();
        let mut start = None;
        for (place, (number, frame)) in file.records.iter().enumerate() {
            match Record::decode(frame) {
                Ok(Record::Snapshot(_)) => drop(start.get_or_insert(place)),
                Ok(_) => {}
                Err(problem) => unreadable.push(Unreadable { record: *number, problem }),
            }
        }
        let Some(start) = start else {
            let cause = match unreadable.first() {
                Some(Unreadable { record, problem }) => format!("record {record}: {problem}"),
                None => "it has no snapshot to start from".into(),
            };
            return Err(Failure::refused(format!("{name}: the journal can't be replayed: {cause}")));
        };
        Ok(Self { path: name, file, start, unreadable })
    }

    /// The snapshot to start from, and its number.
    pub(super) fn snapshot(&self) -> (u64, Saved) {
        let (number, frame) = &self.file.records[self.start];
        match Record::decode(frame) {
            Ok(Record::Snapshot(saved)) => (*number, *saved),
            _ => unreachable!("it was found as a snapshot that can be read"),
        }
    }

    /// What follows the snapshot, each with its number. Behind a record that can't be read nothing follows until the next
    /// snapshot: the records between are of a state that nobody knows.
    pub(super) fn following(&self) -> impl Iterator<Item = (u64, Record)> + '_ {
        let mut lost = false;
        self.file.records[self.start + 1..].iter().filter_map(move |(number, frame)| {
            let record = Record::decode(frame);
            lost = match &record {
                Err(_) => true,
                Ok(Record::Snapshot(_)) => false,
                Ok(_) => lost,
            };
            record.ok().filter(|_| !lost).map(|record| (*number, record))
        })
    }

    /// Every record that can be read, whatever stands before it.
    pub(super) fn readable(&self) -> impl Iterator<Item = (u64, Record)> + '_ {
        self.file.records.iter().filter_map(|(number, frame)| Some((*number, Record::decode(frame).ok()?)))
    }

    /// What is damaged, in a sentence.
    pub(super) fn problem(&self) -> Option<String> {
        let damage =
            || self.file.damage.as_ref().map(|damage| format!("{}: its end can't be read: {damage}", self.path));
        let Some(first) = self.unreadable.first() else { return damage() };
        let more = match self.unreadable.len() - 1 {
            0 => String::new(),
            more => format!(", and {more} more can't be read"),
        };
        Some(format!("{}: record {} is unreadable: {}{more}", self.path, first.record, first.problem))
    }
}
