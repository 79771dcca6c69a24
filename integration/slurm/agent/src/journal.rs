//! The journal file. It contains the core's records in sequence, each with its length and checksum.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    path::{Path, PathBuf},
    time::Instant,
};

use trainmaster_core::{
    Scheduler,
    journal::{self, Record},
};
use trainmaster_host::{Store, Write, Written};

/// Restores the scheduler from a folder's journal, if there is one. An unreadable journal is renamed. The essential
/// data of a job is also in its comments, so that a start without journal loses what was learnt, but no jobs.
///
/// # Errors
/// The file can't be opened or renamed.
pub(crate) fn restore(folder: &Path) -> io::Result<Option<Scheduler>> {
    let path = path(folder);
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    // A truncated last record was never acknowledged.
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

/// The file. Each snapshot starts a new file. After a failed write only a snapshot can follow.
#[derive(Debug)]
pub(crate) struct JournalFile {
    path: PathBuf,
    /// `None` before the first snapshot, and after a failed write.
    file: Option<File>,
    /// Number of bytes that were written and synced.
    length: u64,
}

impl JournalFile {
    /// Creates a journal. No file is changed before the first snapshot is written.
    pub(crate) fn new(folder: &Path) -> Self {
        Self { path: path(folder), file: None, length: 0 }
    }

    fn append(&mut self, records: &[Vec<u8>]) -> io::Result<()> {
        if let Some(at) = records.iter().rposition(|record| Record::is_snapshot(record)) {
            return self.begin(&records[at..].concat());
        }
        let bytes = records.concat();
        let mut file = self.file.take().ok_or_else(|| io::Error::other("only a snapshot can follow"))?;
        if let Err(error) = file.write_all(&bytes).and_then(|()| file.sync_data()) {
            // The partial record uses space that may be needed. Even if this fails, a new file follows.
            let _ = file.set_len(self.length);
            return Err(error);
        }
        self.length += bytes.len() as u64;
        self.file = Some(file);
        Ok(())
    }

    /// Writes a new file, which replaces the old one when it is complete.
    fn begin(&mut self, bytes: &[u8]) -> io::Result<()> {
        let fresh = self.path.with_extension("new");
        let mut file = OpenOptions::new().create(true).write(true).truncate(true).open(&fresh)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&fresh, &self.path)?;
        if let Some(folder) = self.path.parent() {
            File::open(folder)?.sync_all()?;
        }
        (self.file, self.length) = (Some(file), bytes.len() as u64);
        Ok(())
    }
}

impl Store for JournalFile {
    type Beside = ();

    fn write(&mut self, write: Write<()>) -> Option<Written<()>> {
        let (begun, bytes) = (Instant::now(), write.bytes());
        let result = match write.is_empty() {
            true => Ok(()),
            false => self.append(&write.records).map_err(|error| (error.to_string(), write)),
        };
        Some(Written { result, bytes, took: begun.elapsed() })
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
    use prometheus::Registry;
    use trainmaster_core::{Event, JobSpec, Settings, Time};
    use trainmaster_host::{Journal, JournalLimits, JournalMetrics};

    use super::*;

    fn submit(scheduler: &mut Scheduler, name: &str) {
        let event = Event::JobSubmitted { spec: Box::new(JobSpec::minimal(name)), external: None, token_hash: None };
        scheduler.apply(Time(1), event).unwrap();
    }

    fn fresh() -> Scheduler {
        let mut scheduler = Scheduler::new(Settings { engine: "fifo".into(), ..Settings::default() }).unwrap();
        scheduler.start_journal();
        scheduler
    }

    fn write(file: &mut JournalFile, scheduler: &mut Scheduler) -> Result<(), String> {
        let write = Write { records: scheduler.drain_journal(), beside: () };
        file.write(write).unwrap().result.map_err(|(problem, _)| problem)
    }

    #[test]
    fn what_was_written_is_restored() {
        let folder = tempfile::tempdir().unwrap();
        assert!(restore(folder.path()).unwrap().is_none());
        let mut scheduler = fresh();
        let mut file = JournalFile::new(folder.path());
        write(&mut file, &mut scheduler).unwrap();
        submit(&mut scheduler, "a");
        write(&mut file, &mut scheduler).unwrap();
        submit(&mut scheduler, "b");
        let restored = restore(folder.path()).unwrap().unwrap();
        assert_eq!(restored.state().jobs.len(), 1, "b was never written");
        write(&mut file, &mut scheduler).unwrap();
        // A crash during a write.
        let path = folder.path().join("journal");
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..whole.len() - 3]).unwrap();
        let mut restored = restore(folder.path()).unwrap().unwrap();
        assert_eq!(restored.state().jobs.len(), 1);
        // Continuing from there starts a new file.
        restored.start_journal();
        let mut file = JournalFile::new(folder.path());
        submit(&mut restored, "c");
        write(&mut file, &mut restored).unwrap();
        let again = restore(folder.path()).unwrap().unwrap();
        assert_eq!(again.state().jobs.len(), 2);
        assert_eq!(again.digest(), restored.digest());
    }

    #[test]
    fn a_disk_that_is_full_for_a_while_loses_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let metrics = JournalMetrics::register(&Registry::new()).unwrap();
        let mut full = JournalFile::new(folder.path());
        let mut scheduler = fresh();
        write(&mut full, &mut scheduler).unwrap();
        full.file = Some(OpenOptions::new().write(true).open("/dev/full").unwrap());
        let mut journal = Journal::new(full, JournalLimits::default(), metrics, &[]);
        let mut step = |scheduler: &mut Scheduler, number: u32| {
            journal.retry_now();
            if journal.error().is_some() {
                assert!(scheduler.snapshot());
            }
            journal.add(scheduler.drain_journal());
            journal.then(number);
            let (effects, outcome) = journal.step().unwrap();
            assert_eq!(effects, [number]);
            outcome.map_err(|problem| problem.to_string())
        };
        submit(&mut scheduler, "a");
        assert!(step(&mut scheduler, 1).unwrap_err().contains("No space left"));
        submit(&mut scheduler, "b");
        step(&mut scheduler, 2).unwrap();
        submit(&mut scheduler, "c");
        step(&mut scheduler, 3).unwrap();
        let restored = restore(folder.path()).unwrap().unwrap();
        assert_eq!((restored.state().jobs.len(), restored.digest()), (3, scheduler.digest()));
    }

    #[test]
    fn a_folder_that_comes_later_is_written_then() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("later");
        let mut scheduler = fresh();
        submit(&mut scheduler, "a");
        let mut file = JournalFile::new(&inner);
        let records = scheduler.drain_journal();
        let (_, again) = file.write(Write { records, beside: () }).unwrap().result.unwrap_err();
        fs::create_dir(&inner).unwrap();
        file.write(again).unwrap().result.unwrap();
        assert_eq!(restore(&inner).unwrap().unwrap().state().jobs.len(), 1);
    }

    #[test]
    fn what_can_t_be_read_is_put_aside() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("journal"), b"nonsense that is long enough").unwrap();
        assert!(restore(folder.path()).unwrap().is_none());
        assert!(folder.path().join("journal.unreadable").exists() && !folder.path().join("journal").exists());
    }
}
