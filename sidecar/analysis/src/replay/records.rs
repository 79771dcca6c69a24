//! The records of a journal, including unreadable ones.

use std::path::Path;

use serde::Serialize;
use trainmaster_core::journal::{Record, Saved};
use trainmaster_daemon::JournalFile;
use trainmaster_terminal::Failure;

/// A journal from its first snapshot on.
pub(super) struct Records {
    pub(super) path: String,
    pub(super) file: JournalFile,
    /// Index of the first readable snapshot.
    start: usize,
    pub(super) unreadable: Vec<Unreadable>,
}

/// An unreadable record.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Unreadable {
    pub(super) record: u64,
    pub(super) problem: String,
}

impl Records {
    /// Reads a journal.
    ///
    /// # Errors
    /// The file can't be read, isn't a journal, or has no snapshot.
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

    /// The first snapshot, and its number.
    pub(super) fn snapshot(&self) -> (u64, Saved) {
        let (number, frame) = &self.file.records[self.start];
        match Record::decode(frame) {
            Ok(Record::Snapshot(saved)) => (*number, *saved),
            _ => unreachable!("it was found as a snapshot that can be read"),
        }
    }

    /// The records after the snapshot, with their numbers. After an unreadable record, all records up to the next
    /// snapshot are omitted, because their state is unknown.
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

    /// All readable records, independent of the ones before them.
    pub(super) fn readable(&self) -> impl Iterator<Item = (u64, Record)> + '_ {
        self.file.records.iter().filter_map(|(number, frame)| Some((*number, Record::decode(frame).ok()?)))
    }

    /// The damage, in a sentence.
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
