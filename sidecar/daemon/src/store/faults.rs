//! Injected faults of the disk, for tests: it fails or hangs on demand.

use std::{
    fmt, io,
    ops::Bound,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
};

use redb::{BackendError, StorageBackend, backends::FileBackend};

#[derive(Debug, Default)]
struct Switches {
    full: bool,
    stuck: bool,
}

/// A switch between a disk that works, one that is full, and one that doesn't answer. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<(Mutex<Switches>, Condvar)>);

impl Faults {
    fn switches(&self) -> MutexGuard<'_, Switches> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes every write fail as on a full disk, or none.
    pub fn set_full(&self, full: bool) {
        self.switches().full = full;
    }

    /// Makes every write wait, or lets waiting writes continue.
    pub fn set_stuck(&self, stuck: bool) {
        self.switches().stuck = stuck;
        self.0.1.notify_all();
    }

    fn check(&self) -> io::Result<()> {
        let free = self.0.1.wait_while(self.switches(), |switches| switches.stuck);
        if free.unwrap_or_else(PoisonError::into_inner).full { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

/// The file with injected faults.
pub(super) struct Backend {
    pub(super) file: FileBackend,
    pub(super) faults: Faults,
}

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.file.fmt(f)
    }
}

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read(offset, out)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.faults.check()?;
        self.file.set_len(len)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.faults.check()?;
        self.file.sync_data()
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.faults.check()?;
        self.file.write(offset, data)
    }
    fn close(&self) -> io::Result<()> {
        self.file.close()
    }
    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.try_lock_range(start, end)
    }
    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.try_lock_shared_range(start, end)
    }
    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.lock_range(start, end)
    }
    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.lock_shared_range(start, end)
    }
    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.unlock_range(start, end)
    }
    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.query_lock_range(start, end)
    }
}
