//! The file: its tables, retention, and recovery after an error.

use std::{
    fs::{self, OpenOptions},
    panic::{self, AssertUnwindSafe},
    path::{Path, PathBuf},
};

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, backends::FileBackend};
use trainmaster_core::{JobId, Term, journal::Record};
use trainmaster_feed::Kept;
use trainmaster_net::secret;

use super::{
    FILE, Loaded, StoreError, Write,
    faults::{Backend, Faults},
};
use crate::{access::whose, ended::EndedJob, store::Audit};

pub(super) const RECORDS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("records");
/// Older snapshots that are kept for replay, each with the bytes of records from it to the next. The last two aren't
/// here.
const HISTORY: TableDefinition<'_, u64, u64> = TableDefinition::new("history");
const SECRETS: TableDefinition<'_, u64, &str> = TableDefinition::new("secrets");
const ENDED: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("ended");
pub(super) const AUDIT: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("audit");
const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
pub(super) const ABOUT: TableDefinition<'_, &str, &str> = TableDefinition::new("about");

const TERM: &str = "term";
const SNAPSHOT: &str = "snapshot";
const PREVIOUS: &str = "previous";
/// Bytes of the last snapshot and of the records since.
const SINCE: &str = "since";
pub(super) const VERSION: &str = "version";

/// Cache for pages. It is small, because the journal is written once and read at the start.
const CACHE: usize = 16 << 20;
/// Maximum number of audit entries. Beyond it, the caller with the most loses its oldest.
pub(super) const AUDITS: usize = 10_000;

/// The file. After an error it is closed, and opened again by the next write.
#[derive(Debug)]
pub(crate) struct Disk {
    path: PathBuf,
    faults: Faults,
    /// Maximum bytes of records before the last but one snapshot.
    history: u64,
    database: Option<Database>,
    /// The callers of the audit entries in the file.
    audits: Kept<u64>,
    /// Number of the next record. After an error, the file may or may not contain a record with this number.
    next: u64,
    doubtful: bool,
}

impl Disk {
    /// Opens the store of a state folder, or makes it. Only its owner may read it.
    ///
    /// # Errors
    /// The store is unusable, in use by another daemon, or damaged.
    pub(crate) fn open(folder: &Path, history: u64, faults: Faults) -> Result<(Self, Loaded), StoreError> {
        secret::make_folder(folder)
            .map_err(|error| StoreError::File { path: folder.to_owned(), problem: error.to_string() })?;
        let path = folder.join(FILE);
        let (database, loaded) = unpanicked(|| {
            let database = open(&path, &faults)?;
            let loaded = load(&path, &database)?;
            let audits = audits(&database).map_err(|error| corrupt(&path, "the audit", &error))?;
            Ok(((database, audits), loaded))
        })
        .unwrap_or_else(|problem| Err(corrupt(&path, "the file", &problem)))?;
        let (database, audits) = database;
        let next = loaded.first + loaded.records.len() as u64;
        Ok((Self { path, faults, history, database: Some(database), audits, next, doubtful: false }, loaded))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes everything or nothing, and returns once it is on disk.
    ///
    /// # Errors
    /// The write may or may not have happened. The caller may write the same again, or something else in its place.
    pub(crate) fn commit(&mut self, write: &Write) -> Result<(), String> {
        if write.is_empty() {
            return Ok(());
        }
        let result = unpanicked(|| self.try_commit(write)).flatten();
        self.doubtful = result.is_err();
        result
    }

    /// The library abandons a file after an error, and closing it can panic where writing did. So the file stays open
    /// only after a complete write. Otherwise it is closed here and opened again later.
    fn try_commit(&mut self, write: &Write) -> Result<(), String> {
        let database = match self.database.take() {
            Some(database) => database,
            None => {
                let database = open(&self.path, &self.faults).map_err(|error| error.to_string())?;
                self.audits = audits(&database).map_err(|error| error.to_string())?;
                database
            }
        };
        let first = if self.doubtful { Some(self.next) } else { None };
        put(&database, &mut self.audits, write, self.next, first, self.history).map_err(|error| error.to_string())?;
        self.next += write.records.len() as u64;
        self.database = Some(database);
        Ok(())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = unpanicked(|| drop(self.database.take()));
    }
}

/// Catches panics. The library checks pages when it reads them, but a damaged file can still make it panic.
pub(super) fn unpanicked<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    panic::catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(ToString::to_string).or_else(|| panic.downcast_ref().cloned());
        text.unwrap_or_else(|| "it makes no sense".into())
    })
}

/// Opens the file. A new one gets its name once it is complete, so an empty file is never mistaken for a new one.
fn open(path: &Path, faults: &Faults) -> Result<Database, StoreError> {
    if path.symlink_metadata().is_err() {
        make(path, faults)?;
    }
    let fail = |problem: String| StoreError::File { path: path.to_owned(), problem };
    let file = OpenOptions::new().read(true).write(true).open(path).map_err(|error| fail(error.to_string()))?;
    if file.metadata().is_ok_and(|file| file.is_file() && file.len() == 0) {
        return Err(corrupt(path, "the file", &"it is empty"));
    }
    database(file, faults).map_err(|error| match error {
        redb::DatabaseError::DatabaseAlreadyOpen => {
            fail("another daemon uses this state folder; --state-dir takes another".into())
        }
        redb::DatabaseError::Storage(redb::StorageError::Corrupted(problem)) => corrupt(path, "the file", &problem),
        other => fail(other.to_string()),
    })
}

/// Makes the file, unless another daemon does so at the same time.
fn make(path: &Path, faults: &Faults) -> Result<(), StoreError> {
    let fail = |error: &dyn std::fmt::Display| StoreError::File { path: path.to_owned(), problem: error.to_string() };
    let folder = path.parent().unwrap_or(Path::new("."));
    let unnamed = tempfile::Builder::new().prefix(".journal-").tempfile_in(folder).map_err(|error| fail(&error))?;
    let file = unnamed.as_file().try_clone().map_err(|error| fail(&error))?;
    drop(database(file, faults).map_err(|error| fail(&error))?);
    match unnamed.persist_noclobber(path) {
        Ok(_) => {}
        Err(error) if error.error.kind() == std::io::ErrorKind::AlreadyExists => return Ok(()),
        Err(error) => return Err(fail(&error.error)),
    }
    fs::File::open(folder).and_then(|folder| folder.sync_all()).map_err(|error| fail(&error))?;
    tracing::info!(journal = %path.display(), "a new state folder: nothing is known of jobs that ran before");
    Ok(())
}

fn database(file: fs::File, faults: &Faults) -> Result<Database, redb::DatabaseError> {
    let backend = Backend { file: FileBackend::new(file)?, faults: faults.clone() };
    Database::builder().set_cache_size(CACHE).create_with_backend(backend)
}

fn put(
    database: &Database,
    kept: &mut Kept<u64>,
    write: &Write,
    mut next: u64,
    doubtful_from: Option<u64>,
    history: u64,
) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    {
        let mut records = transaction.open_table(RECORDS)?;
        if let Some(from) = doubtful_from {
            records.retain_in(from.., |_, _| false)?;
        }
        let mut meta = transaction.open_table(META)?;
        let mut past = transaction.open_table(HISTORY)?;
        let mut since = meta.get(SINCE)?.map_or(0, |since| since.value());
        for record in &write.records {
            records.insert(next, record.as_slice())?;
            if Record::is_snapshot(record) {
                let last = meta.get(SNAPSHOT)?.map(|last| last.value());
                if let Some(last) = last.filter(|last| *last < next) {
                    meta.insert(PREVIOUS, last)?;
                    let oldest = keep(&mut past, last, history)?;
                    records.retain_in(..oldest, |_, _| false)?;
                    // A store from before this count has at least the snapshot.
                    past.insert(last, since.max(1))?;
                }
                meta.insert(SNAPSHOT, next)?;
                since = 0;
            }
            since += record.len() as u64;
            next += 1;
        }
        meta.insert(SINCE, since)?;
        let mut about = transaction.open_table(ABOUT)?;
        if let Some(term) = write.beside.term {
            meta.insert(TERM, term.0)?;
            about.insert(VERSION, env!("CARGO_PKG_VERSION"))?;
        }
        let mut secrets = transaction.open_table(SECRETS)?;
        for (job, secret) in &write.beside.secrets {
            match secret {
                Some(secret) => drop(secrets.insert(job.0, secret.as_str())?),
                None => drop(secrets.remove(job.0)?),
            }
        }
        let mut ended = transaction.open_table(ENDED)?;
        for job in &write.beside.ended {
            ended.insert(job.id().0, job.encode().as_slice())?;
        }
        for job in &write.beside.forgotten {
            ended.remove(job.0)?;
        }
        let mut audits = transaction.open_table(AUDIT)?;
        let end = audits.last()?.map_or(0, |(at, _)| at.value() + 1);
        for (at, audit) in (end..).zip(&write.beside.audits) {
            let row = postcard::to_allocvec(audit).expect("an audit entry is plain data");
            audits.insert(at, row.as_slice())?;
            for gone in kept.insert("", whose(&audit.who), at) {
                audits.remove(gone)?;
            }
        }
    }
    transaction.commit()?;
    Ok(())
}

/// The callers of the audit entries in a file.
fn audits(database: &impl ReadableDatabase) -> Result<Kept<u64>, redb::Error> {
    let mut kept = Kept::new(AUDITS);
    let table = match database.begin_read()?.open_table(AUDIT) {
        Ok(table) => table,
        Err(redb::TableError::TableDoesNotExist(_)) => return Ok(kept),
        Err(error) => return Err(error.into()),
    };
    for row in table.iter()? {
        let (at, row) = row?;
        let audit: Option<Audit> = postcard::from_bytes(row.value()).ok();
        kept.insert("", audit.as_ref().map_or("", |audit| whose(&audit.who)), at.value());
    }
    Ok(kept)
}

/// Removes the oldest segments before the last but one snapshot that exceed the limit. Returns the number of the first
/// record that is kept.
fn keep(past: &mut redb::Table<'_, u64, u64>, previous: u64, history: u64) -> Result<u64, redb::Error> {
    let mut total = 0;
    for row in past.iter()? {
        total += row?.1.value();
    }
    while total > history
        && let Some((_, bytes)) = past.pop_first()?
    {
        total -= bytes.value();
    }
    Ok(past.first()?.map_or(previous, |(oldest, _)| oldest.value()))
}

/// The data for a start: the records from the last but one snapshot on.
fn load(path: &Path, database: &impl ReadableDatabase) -> Result<Loaded, StoreError> {
    let transaction = database.begin_read().map_err(|error| corrupt(path, "the file", &error))?;
    let absent = |error: &redb::TableError| matches!(error, redb::TableError::TableDoesNotExist(_));
    let mut loaded = Loaded::default();
    match transaction.open_table(META) {
        Ok(meta) => {
            let number = |key| match meta.get(key) {
                Ok(value) => Ok(value.map(|value| value.value())),
                Err(error) => Err(corrupt(path, key, &error)),
            };
            loaded.term = Term(number(TERM)?.unwrap_or(0));
            loaded.snapshot = number(SNAPSHOT)?;
            loaded.previous = number(PREVIOUS)?;
        }
        // A new file has no records.
        Err(error) if absent(&error) => return Ok(loaded),
        Err(error) => return Err(corrupt(path, "the file", &error)),
    }
    let about = transaction.open_table(ABOUT).map_err(|error| corrupt(path, VERSION, &error))?;
    let version = about.get(VERSION).map_err(|error| corrupt(path, VERSION, &error))?;
    loaded.version = version.map(|version| version.value().to_owned()).unwrap_or_default();

    let records = transaction.open_table(RECORDS).map_err(|error| corrupt(path, "the journal", &error))?;
    let needed = loaded.previous.or(loaded.snapshot).unwrap_or(0)..;
    let rows = records.range(needed).map_err(|error| corrupt(path, "the journal", &error))?;
    let mut expected = None;
    for row in rows {
        let (at, record) = row.map_err(|error| corrupt(path, "the journal", &error))?;
        let at = at.value();
        if let Some(expected) = expected.filter(|expected| *expected != at) {
            let what = format!("journal record {expected}");
            let problem = format!("it is missing: record {at} follows record {}", expected - 1);
            return Err(StoreError::Corrupt { path: path.to_owned(), what, problem });
        }
        if expected.is_none() {
            loaded.first = at;
        }
        expected = Some(at + 1);
        loaded.records.push(record.value().to_vec());
    }
    let secrets = transaction.open_table(SECRETS).map_err(|error| corrupt(path, "the tokens", &error))?;
    for row in secrets.iter().map_err(|error| corrupt(path, "the tokens", &error))? {
        let (job, secret) = row.map_err(|error| corrupt(path, "the tokens", &error))?;
        loaded.secrets.push((JobId(job.value()), secret.value().to_owned()));
    }
    let ended = transaction.open_table(ENDED).map_err(|error| corrupt(path, "ended jobs", &error))?;
    for row in ended.iter().map_err(|error| corrupt(path, "ended jobs", &error))? {
        let (job, row) = row.map_err(|error| corrupt(path, "ended jobs", &error))?;
        match EndedJob::decode(row.value()) {
            Ok(job) => loaded.ended.push(job),
            // Ended jobs are for display only. Active jobs are in the journal.
            Err(error) => tracing::warn!(job = job.value(), error, "what was kept of an ended job is unreadable"),
        }
    }
    Ok(loaded)
}

pub(super) fn corrupt(path: &Path, what: &str, problem: &dyn std::fmt::Display) -> StoreError {
    StoreError::Corrupt { path: path.to_owned(), what: what.to_owned(), problem: problem.to_string() }
}

#[cfg(test)]
mod tests {
    use trainmaster_core::{End, Event, JobSpec, Scheduler, Settings, Time};

    use super::{super::Beside, *};

    fn journal() -> Scheduler {
        let mut scheduler = Scheduler::new(Settings { engine: "fifo".into(), ..Settings::default() }).unwrap();
        scheduler.start_journal();
        scheduler
    }

    fn submitted(scheduler: &mut Scheduler, name: &str, at: i64) {
        let spec = Box::new(JobSpec::minimal(name));
        scheduler.apply(Time(at), Event::JobSubmitted { spec, external: None, token_hash: None }).unwrap();
    }

    fn records(scheduler: &mut Scheduler) -> Write {
        Write { records: scheduler.drain_journal(), beside: Beside::default() }
    }

    #[test]
    fn records_before_the_last_but_one_snapshot_go() {
        let folder = tempfile::tempdir().unwrap();
        let (mut disk, loaded) = Disk::open(folder.path(), 0, Faults::default()).unwrap();
        assert!(loaded.records.is_empty());
        let mut scheduler = journal();
        for round in 0..4 {
            submitted(&mut scheduler, &format!("job{round}"), round);
            assert!(scheduler.snapshot());
            disk.commit(&records(&mut scheduler)).unwrap();
        }
        drop(disk);
        let (_, loaded) = Disk::open(folder.path(), 0, Faults::default()).unwrap();
        // Snapshot 0, then an event and a snapshot in each round, so 6 and 8 are the last two.
        assert_eq!((loaded.first, loaded.previous, loaded.snapshot), (6, Some(6), Some(8)));
        assert_eq!(loaded.records.len(), 3);
        let restored = Scheduler::restore(loaded.records.iter().map(Vec::as_slice)).unwrap();
        assert_eq!(restored.state().jobs.len(), 4);
    }

    #[test]
    fn so_many_bytes_of_history_stay_for_replay() {
        let folder = tempfile::tempdir().unwrap();
        let (mut disk, _) = Disk::open(folder.path(), 2500, Faults::default()).unwrap();
        let mut scheduler = journal();
        let mut all = Vec::new();
        for round in 0..40 {
            submitted(&mut scheduler, &format!("job{round}"), round);
            scheduler
                .apply(Time(round), Event::JobEnded { job: JobId(round as u64 + 1), end: End::Cancelled })
                .unwrap();
            assert!(scheduler.snapshot());
            let write = records(&mut scheduler);
            all.extend(write.records.clone());
            disk.commit(&write).unwrap();
            let kept = super::super::read_journal(folder.path()).unwrap();
            assert!(Record::is_snapshot(&kept[0].1));
            let frames: Vec<&Vec<u8>> = kept.iter().map(|(_, frame)| frame).collect();
            assert!(frames.iter().rev().zip(all.iter().rev()).all(|(mine, theirs)| *mine == theirs));
            // Records from the last but one snapshot on are needed. Before it, as many whole segments as fit are kept.
            let needed = kept.iter().rev().filter(|(_, frame)| Record::is_snapshot(frame)).nth(1).map(|(at, _)| *at);
            let history = |from: u64| -> usize {
                kept.iter()
                    .filter(|(at, _)| (from..needed.unwrap_or(0)).contains(at))
                    .map(|(_, frame)| frame.len())
                    .sum()
            };
            assert!(history(0) <= 2500, "{} bytes of history", history(0));
            if kept[0].0 > 0 {
                let first = all.len() - kept.len();
                let before = all[..first].iter().rposition(|frame| Record::is_snapshot(frame)).unwrap();
                let more: usize = all[before..first].iter().map(Vec::len).sum();
                assert!(history(0) + more > 2500, "there is room for {more} bytes more");
            }
        }
        drop(disk);
        let (_, loaded) = Disk::open(folder.path(), 2500, Faults::default()).unwrap();
        assert_eq!(loaded.records.len(), 4, "a daemon reads what it needs");
        assert_eq!(loaded.first + 4, all.len() as u64);
    }

    #[test]
    fn a_full_disk_loses_nothing_that_was_promised() {
        let folder = tempfile::tempdir().unwrap();
        let faults = Faults::default();
        let (mut disk, _) = Disk::open(folder.path(), 0, faults.clone()).unwrap();
        let mut scheduler = journal();
        disk.commit(&records(&mut scheduler)).unwrap();
        submitted(&mut scheduler, "a", 1);
        let write = records(&mut scheduler);
        faults.set_full(true);
        for _ in 0..3 {
            let error = disk.commit(&write).unwrap_err();
            assert!(!error.is_empty());
        }
        faults.set_full(false);
        disk.commit(&write).unwrap();
        drop(disk);
        let (_, loaded) = Disk::open(folder.path(), 0, Faults::default()).unwrap();
        assert_eq!(loaded.records.len(), 2);
    }

    #[test]
    fn nobodys_flood_of_audit_entries_takes_anothers() {
        let folder = tempfile::tempdir().unwrap();
        let audits = |whose: &str, port: i64, count: usize| {
            let who = format!("127.0.0.1:{port} with {whose}");
            Write {
                records: Vec::new(),
                beside: Beside {
                    audits: vec![Audit { at: port, who, what: "pause job1".into() }; count],
                    ..Beside::default()
                },
            }
        };
        let (mut disk, _) = Disk::open(folder.path(), 0, Faults::default()).unwrap();
        disk.commit(&audits("token operator (admin)", 1, 3)).unwrap();
        disk.commit(&audits("token a (submit)", 2, AUDITS)).unwrap();
        drop(disk);
        let (mut disk, _) = Disk::open(folder.path(), 0, Faults::default()).unwrap();
        disk.commit(&audits("token a (submit)", 3, 2)).unwrap();
        drop(disk);
        let kept = crate::store::read_audit(folder.path()).unwrap();
        let from = |port: i64| kept.iter().filter(|audit| audit.at == port).count();
        assert_eq!((kept.len(), from(1), from(2), from(3)), (AUDITS, 3, AUDITS - 5, 2));
    }

    #[test]
    fn a_missing_record_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let (mut disk, _) = Disk::open(folder.path(), 0, Faults::default()).unwrap();
        let mut scheduler = journal();
        for (at, name) in ["a", "b", "c"].into_iter().enumerate() {
            submitted(&mut scheduler, name, at as i64);
        }
        disk.commit(&records(&mut scheduler)).unwrap();
        drop(disk);
        let database = Database::open(folder.path().join(FILE)).unwrap();
        let transaction = database.begin_write().unwrap();
        transaction.open_table(RECORDS).unwrap().remove(2).unwrap();
        transaction.commit().unwrap();
        drop(database);
        let error = Disk::open(folder.path(), 0, Faults::default()).unwrap_err().to_string();
        assert!(error.contains("journal record 2 is unreadable: it is missing: record 3 follows record 1"), "{error}");
    }

    #[test]
    fn nothing_that_a_damaged_file_makes_the_library_do_ends_the_thread() {
        let folder = tempfile::tempdir().unwrap();
        let (mut disk, _) = Disk::open(folder.path(), 0, Faults::default()).unwrap();
        let mut scheduler = journal();
        for at in 0..40 {
            submitted(&mut scheduler, &format!("job{at}"), at);
            disk.commit(&records(&mut scheduler)).unwrap();
        }
        drop(disk);
        let path = folder.path().join(FILE);
        let whole = fs::read(&path).unwrap();
        let write = Write { records: vec![vec![0; 100]; 10], beside: Beside::default() };
        let mut unwritten = 0;
        // Damages the head of the file, and the page that lists the free pages, which a write trusts.
        for at in (0..512).chain(4096..4224) {
            for byte in [0, 19, 255] {
                let mut bytes = whole.clone();
                bytes[at] = byte;
                fs::write(&path, bytes).unwrap();
                if let Ok((mut disk, _)) = Disk::open(folder.path(), 0, Faults::default()) {
                    unwritten += usize::from(disk.commit(&write).is_err());
                }
            }
        }
        assert!(unwritten > 0, "no damage was met by a write");
    }

    #[test]
    fn two_daemons_cannot_share_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        let (_disk, _) = Disk::open(folder.path(), 0, Faults::default()).unwrap();
        let error = Disk::open(folder.path(), 0, Faults::default()).unwrap_err().to_string();
        assert!(error.contains("another daemon"), "{error}");
    }

    #[test]
    fn an_empty_file_is_no_new_one() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(FILE), "").unwrap();
        for _ in 0..2 {
            let error = Disk::open(folder.path(), 0, Faults::default()).unwrap_err().to_string();
            assert!(error.contains("the file is unreadable: it is empty. Nothing was changed"), "{error}");
        }
        assert_eq!(fs::metadata(folder.path().join(FILE)).unwrap().len(), 0);
    }

    #[test]
    fn what_is_no_store_is_named() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(FILE), vec![7; 100_000]).unwrap();
        let error = Disk::open(folder.path(), 0, Faults::default()).unwrap_err().to_string();
        assert!(error.contains(FILE), "{error}");
    }
}
