//! The journal as a file: the core's records one after another, each with its own length and checksum.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
};

use trainmaster_core::{
    Scheduler,
    journal::{self, Record},
};

/// Bytes after the last snapshot at which a new one is wanted.
const SNAPSHOT_AFTER: u64 = 16 << 20;
/// Bytes that wait in memory while the disk can't be written; beyond these a snapshot replaces them.
const MOST_WAITING: usize = 64 << 20;

/// The open journal.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    file: Option<File>,
    bytes: u64,
    waiting: Vec<Vec<u8>>,
    /// Records were dropped: only a snapshot can follow.
    broken: bool,
}

impl Journal {
    /// The scheduler that a journal tells of, if there is one. What can't be read is put aside under another name: what
    /// matters of a job stands in its comments too, so a fresh start loses what was learnt, not jobs.
    pub(crate) fn restore(folder: &Path) -> io::Result<Option<Scheduler>> {
        let path = path(folder);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        // A last one that is cut short was never acknowledged.
        let records: Vec<&[u8]> = journal::frames(&bytes).filter(|record| is_whole(record)).collect();
        let last = records.iter().rposition(|record| Record::is_snapshot(record));
        let restored = match last {
            Some(last) => Scheduler::restore(records[last..].iter().copied()).map_err(|error| error.to_string()),
            None => Err("it has no snapshot to start from".to_owned()),
        };
        match restored {
            Ok(scheduler) => Ok(Some(scheduler)),
            Err(problem) => {
                let aside = path.with_extension("unreadable");
                tracing::error!(%problem, aside = %aside.display(), "the journal can't be read; starting without it");
                fs::rename(&path, &aside)?;
                Ok(None)
            }
        }
    }

    /// Begins a new file with what the scheduler is now.
    pub(crate) fn begin(folder: &Path, scheduler: &mut Scheduler) -> Self {
        scheduler.start_journal();
        Self { path: path(folder), file: None, bytes: 0, waiting: scheduler.drain_journal(), broken: false }
    }

    /// Writes what happened since the last call, and syncs it: only then may anybody be told.
    pub(crate) fn write(&mut self, scheduler: &mut Scheduler) -> io::Result<()> {
        self.waiting.extend(scheduler.drain_journal());
        if self.broken || self.bytes > SNAPSHOT_AFTER {
            // Not while a ticket is open; none is between rounds.
            if scheduler.snapshot() {
                self.waiting = scheduler.drain_journal();
                (self.file, self.broken) = (None, false);
            }
        }
        if self.waiting.is_empty() {
            return Ok(());
        }
        let result = self.append();
        if result.is_ok() {
            self.waiting.clear();
        } else {
            // A part may be on disk: the next attempt starts a new file.
            self.broken = true;
            if self.waiting.iter().map(Vec::len).sum::<usize>() > MOST_WAITING {
                self.waiting.clear();
            }
        }
        result
    }

    fn append(&mut self) -> io::Result<()> {
        let bytes = self.waiting.concat();
        if let Some(file) = &mut self.file {
            file.write_all(&bytes)?;
            file.sync_data()?;
            self.bytes += bytes.len() as u64;
            return Ok(());
        }
        // It takes the old one's place once it is whole.
        let fresh = self.path.with_extension("new");
        let mut file = OpenOptions::new().create(true).write(true).truncate(true).open(&fresh)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        fs::rename(&fresh, &self.path)?;
        if let Some(folder) = self.path.parent() {
            File::open(folder)?.sync_all()?;
        }
        (self.file, self.bytes) = (Some(file), 0);
        Ok(())
    }
}

fn path(folder: &Path) -> PathBuf {
    folder.join("journal")
}

fn is_whole(record: &[u8]) -> bool {
    record.first_chunk().is_some_and(|length| record.len() == 8 + u32::from_le_bytes(*length) as usize)
}

#[cfg(test)]
mod tests {
    use trainmaster_core::{Event, JobSpec, Settings, Time};

    use super::*;

    fn submit(scheduler: &mut Scheduler, name: &str) {
        let event = Event::JobSubmitted { spec: Box::new(JobSpec::minimal(name)), external: None, token_hash: None };
        scheduler.apply(Time(1), event).unwrap();
    }

    fn fresh() -> Scheduler {
        Scheduler::new(Settings { engine: "fifo".into(), ..Settings::default() }).unwrap()
    }

    #[test]
    fn what_was_written_is_restored() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Journal::restore(folder.path()).unwrap().is_none());
        let mut scheduler = fresh();
        let mut journal = Journal::begin(folder.path(), &mut scheduler);
        journal.write(&mut scheduler).unwrap();
        submit(&mut scheduler, "a");
        journal.write(&mut scheduler).unwrap();
        submit(&mut scheduler, "b");
        let restored = Journal::restore(folder.path()).unwrap().unwrap();
        assert_eq!(restored.state().jobs.len(), 1, "b was never written");
        journal.write(&mut scheduler).unwrap();
        // A crash in the middle of a write.
        let path = folder.path().join("journal");
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..whole.len() - 3]).unwrap();
        let restored = Journal::restore(folder.path()).unwrap().unwrap();
        assert_eq!(restored.state().jobs.len(), 1);
        // Going on from there begins a file of its own.
        let mut restored = restored;
        let mut journal = Journal::begin(folder.path(), &mut restored);
        submit(&mut restored, "c");
        journal.write(&mut restored).unwrap();
        let again = Journal::restore(folder.path()).unwrap().unwrap();
        assert_eq!(again.state().jobs.len(), 2);
        assert_eq!(again.digest(), restored.digest());
    }

    #[test]
    fn a_disk_that_fails_for_a_while_loses_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("later");
        let mut scheduler = fresh();
        let mut journal = Journal::begin(&inner, &mut scheduler);
        for name in ["a", "b"] {
            submit(&mut scheduler, name);
            journal.write(&mut scheduler).unwrap_err();
        }
        fs::create_dir(&inner).unwrap();
        journal.write(&mut scheduler).unwrap();
        assert_eq!(Journal::restore(&inner).unwrap().unwrap().state().jobs.len(), 2);
    }

    #[test]
    fn what_can_t_be_read_is_put_aside() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("journal"), b"nonsense that is long enough").unwrap();
        assert!(Journal::restore(folder.path()).unwrap().is_none());
        assert!(folder.path().join("journal.unreadable").exists() && !folder.path().join("journal").exists());
    }
}
