//! The thread that writes to the disk. The scheduler's thread never waits for it.

use std::{
    sync::mpsc,
    thread::{self, JoinHandle},
    time::Instant,
};

use trainmaster_host::Store;

use super::{Beside, Write, disk::Disk};

/// The result of a write.
pub(crate) type Written = trainmaster_host::Written<Beside>;

/// The thread's handle. A drop lets the thread finish and closes the file.
pub(crate) struct Writer {
    jobs: Option<mpsc::Sender<Write>>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// Starts the thread. It calls `done` after each write, in order.
    pub(crate) fn start(mut disk: Disk, done: impl Fn(Written) + Send + 'static) -> std::io::Result<Self> {
        let (jobs, received) = mpsc::channel::<Write>();
        let work = move || {
            for write in received {
                let (begun, bytes) = (Instant::now(), write.bytes());
                let _span = tracing::debug_span!("journal", records = write.records.len(), bytes).entered();
                let result = disk.commit(&write).map_err(|error| (error, write));
                done(Written { result, bytes, took: begun.elapsed() });
            }
        };
        let thread = thread::Builder::new().name("journal".into()).spawn(work)?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread) })
    }
}

impl Store for Writer {
    type Beside = Beside;

    fn write(&mut self, write: Write) -> Option<Written> {
        let jobs = self.jobs.as_ref().expect("only dropping takes it");
        // The thread runs until this handle is dropped.
        jobs.send(write).expect("the journal's thread lives");
        None
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
