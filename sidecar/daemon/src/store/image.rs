//! Reads a store without changing it. The file is copied into memory and opened there, without a lock, so a daemon may
//! use it.

use std::{io::Read, path::Path, thread, time::Duration};

use redb::{Database, ReadOnlyDatabase, ReadableDatabase, ReadableTable, StorageBackend, backends::InMemoryBackend};
use trainmaster_core::journal::{self, Record};
use trainmaster_net::secret::open_file;

use super::{
    Audit, FILE, StoreError,
    disk::{ABOUT, AUDIT, RECORDS, VERSION, corrupt, unpanicked},
};

/// Maximum number of copies. A daemon's write can tear a copy, which the library detects by the pages' checksums.
const ATTEMPTS: u32 = 10;
const PAUSE: Duration = Duration::from_millis(50);
/// The first bytes of a store.
const MAGIC: [u8; 9] = *b"redb\x1a\x0a\xa9\x0d\x0a";

/// The content of a journal's file.
#[derive(Debug)]
pub struct JournalFile {
    /// Encoded records with their numbers, including those that can't be decoded.
    pub records: Vec<(u64, Vec<u8>)>,
    /// Why there may be further, unreadable records.
    pub damage: Option<String>,
    /// The version of the last program that wrote to it. None in a plain file of records.
    pub version: Option<String>,
    /// Whether a daemon was using it.
    pub in_use: bool,
}

impl JournalFile {
    /// Reads a daemon's journal from its file or state folder, or a file of consecutive records
    /// ([`Scheduler::drain_journal`](trainmaster_core::Scheduler::drain_journal)).
    ///
    /// # Errors
    /// The file doesn't exist, isn't a journal, or is too damaged to read anything.
    pub fn read(path: &Path) -> Result<Self, StoreError> {
        let inside = path.join(FILE);
        let path = if path.is_dir() { &inside } else { path };
        if begins_as_store(path) {
            let read = unpanicked(|| Self::of_store(path));
            return read.unwrap_or_else(|problem| Err(corrupt(path, "the file", &problem)));
        }
        let bytes = load(path)?;
        let records: Vec<(u64, Vec<u8>)> = (0..).zip(journal::frames(&bytes).map(<[u8]>::to_vec)).collect();
        if let Some(Err(problem)) = records.first().map(|(_, frame)| Record::decode(frame)) {
            let problem = format!("it is neither a daemon's journal nor a file of records; record 0: {problem}");
            return Err(StoreError::File { path: path.to_owned(), problem });
        }
        Ok(Self { records, damage: None, version: None, in_use: false })
    }

    fn of_store(path: &Path) -> Result<Self, StoreError> {
        let fail = |error: redb::Error| corrupt(path, "the file", &error);
        let database = open(path)?;
        let transaction = database.begin_read().map_err(|error| fail(error.into()))?;
        let version =
            transaction.open_table(ABOUT).ok().and_then(|about| Some(about.get(VERSION).ok()??.value().to_owned()));
        let table = match transaction.open_table(RECORDS) {
            Ok(table) => table,
            Err(redb::TableError::TableDoesNotExist(_)) => {
                return Err(StoreError::File { path: path.to_owned(), problem: "no journal is in it".into() });
            }
            Err(error) => return Err(fail(error.into())),
        };
        let mut records = Vec::new();
        // A damaged page ends the reading, with an error or with a panic of the library.
        let read = unpanicked(|| -> Result<(), redb::Error> {
            for row in table.iter()? {
                let (number, frame) = row?;
                records.push((number.value(), frame.value().to_vec()));
            }
            Ok(())
        });
        let damage = read.and_then(|read| read.map_err(|error| error.to_string())).err();
        Ok(Self { records, damage, version, in_use: is_in_use(path) })
    }
}

pub(super) fn read_audit(path: &Path) -> Result<Vec<Audit>, StoreError> {
    let database = open(path)?;
    let read = || -> Result<Vec<Audit>, redb::Error> {
        let table = database.begin_read()?.open_table(AUDIT)?;
        let rows = table.iter()?.map(|row| {
            let row = row?.1;
            postcard::from_bytes(row.value()).map_err(|error| redb::Error::Corrupted(error.to_string()))
        });
        rows.collect()
    };
    read().map_err(|error| corrupt(path, "the audit", &error))
}

fn begins_as_store(path: &Path) -> bool {
    let mut head = [0; MAGIC.len()];
    open_file(path).and_then(|mut file| file.read_exact(&mut head)).is_ok() && head == MAGIC
}

fn load(path: &Path) -> Result<Vec<u8>, StoreError> {
    let fail = |problem: String| StoreError::File { path: path.to_owned(), problem };
    let mut bytes = Vec::new();
    open_file(path).and_then(|mut file| file.read_to_end(&mut bytes)).map_err(|error| fail(error.to_string()))?;
    if bytes.is_empty() { Err(fail("it is empty".into())) } else { Ok(bytes) }
}

fn open(path: &Path) -> Result<Database, StoreError> {
    let mut attempt = 0;
    loop {
        let bytes = load(path)?;
        let copied = || -> Result<Database, String> {
            let memory = InMemoryBackend::new();
            memory.set_len(bytes.len() as u64).map_err(|error| error.to_string())?;
            memory.write(0, &bytes).map_err(|error| error.to_string())?;
            Database::builder().create_with_backend(memory).map_err(|error| error.to_string())
        };
        let problem = match unpanicked(copied).flatten() {
            Ok(database) => return Ok(database),
            Err(problem) => problem,
        };
        attempt += 1;
        if attempt == ATTEMPTS || !is_in_use(path) {
            return Err(corrupt(path, "the file", &problem));
        }
        thread::sleep(PAUSE);
    }
}

/// Whether a daemon holds the file's lock. The test is short, because it would refuse a daemon that starts meanwhile.
fn is_in_use(path: &Path) -> bool {
    matches!(unpanicked(|| ReadOnlyDatabase::open(path)), Ok(Err(redb::DatabaseError::DatabaseAlreadyOpen)))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use trainmaster_core::{Event, JobSpec, Scheduler, Settings, Time};

    use super::*;
    use crate::store::{Write, disk::Disk, faults::Faults};

    fn scheduler() -> Scheduler {
        let mut scheduler = Scheduler::new(Settings { engine: "fifo".into(), ..Settings::default() }).unwrap();
        scheduler.start_journal();
        scheduler
    }

    fn submitted(scheduler: &mut Scheduler, at: i64) {
        let spec = Box::new(JobSpec::minimal(&format!("job{at}")));
        scheduler.apply(Time(at), Event::JobSubmitted { spec, external: None, token_hash: None }).unwrap();
    }

    #[test]
    fn a_store_is_read_while_a_daemon_writes_to_it() {
        let folder = tempfile::tempdir().unwrap();
        let (mut disk, _) = Disk::open(folder.path(), 0, Faults::default()).unwrap();
        let mut scheduler = scheduler();
        let mut all = Vec::new();
        for at in 0..30 {
            submitted(&mut scheduler, at);
            let records = scheduler.drain_journal();
            all.extend(records.clone());
            disk.commit(&Write { records, ..Write::default() }).unwrap();
            let read = JournalFile::read(folder.path()).unwrap();
            assert!(read.in_use && read.damage.is_none());
            assert_eq!(read.records.into_iter().map(|(_, record)| record).collect::<Vec<_>>(), all);
        }
        let before = fs::read(folder.path().join(FILE)).unwrap();
        JournalFile::read(folder.path()).unwrap();
        assert!(fs::read(folder.path().join(FILE)).unwrap() == before, "reading changed it");
        drop(disk);
        assert!(!JournalFile::read(&folder.path().join(FILE)).unwrap().in_use);
    }

    #[test]
    fn plain_records_are_a_journal_too() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("records");
        let mut scheduler = scheduler();
        submitted(&mut scheduler, 1);
        let records = scheduler.drain_journal();
        let bytes = records.concat();
        fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        let read = JournalFile::read(&path).unwrap();
        assert_eq!((read.records.len(), &read.records[0].1), (2, &records[0]));
        assert!(Record::decode(&read.records[1].1).unwrap_err().contains("it says"));
    }

    #[test]
    fn what_is_no_journal_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let problem = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            JournalFile::read(&path).unwrap_err().to_string()
        };
        assert!(problem(b"").contains("it is empty"));
        assert!(problem(b"name = 1").contains("neither a daemon's journal nor a file of records"));
        assert!(problem(&[&MAGIC[..], &[7; 5000]].concat()).contains("the file is unreadable"));
        assert!(JournalFile::read(&folder.path().join("none")).unwrap_err().to_string().contains("none"));
        let memory = folder.path().join("other.redb");
        drop(Database::create(&memory).unwrap());
        assert!(JournalFile::read(&memory).unwrap_err().to_string().contains("no journal is in it"));
    }
}
