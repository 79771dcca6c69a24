//! The journal: records that the caller stores, and a scheduler restored from them. Also the engine's memo and the
//! digest.

use libc::c_void;
use trainmaster_core::{Scheduler, journal};

use crate::{
    borrow,
    error::{Failure, trainmaster_error as Code},
    guard,
    handle::trainmaster_scheduler,
    owned::{self, trainmaster_journal_writer, trainmaster_log_level as Level},
    text::trainmaster_message,
};

/// Starts a journal. Its first record is a snapshot, and each change adds a few hundred bytes. Records stay in memory
/// until trainmaster_scheduler_drain_journal() takes them. An open ticket is superseded. Call it once, after
/// trainmaster_scheduler_new() or trainmaster_scheduler_restore(). Another call starts a new journal.
///
/// Errors: NULL, BUSY, POISONED, PANIC. Threads: one at a time for a scheduler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_scheduler_start_journal(
    scheduler: *mut trainmaster_scheduler,
    message: *mut trainmaster_message,
) -> u32 {
    guard::call(message, || {
        let mut inner = trainmaster_scheduler::healthy(scheduler)?;
        inner.records.clear();
        inner.change(|core| {
            core.start_journal();
            Ok(())
        })?;
        inner.keeps_journal = true;
        Ok(())
    })
}

/// Passes the records since the last call to `writer`, in order. Before you acknowledge something to others (a job's
/// number, a report), it should be in the journal, on disk. For a poisoned scheduler: the records from before the
/// panic.
///
/// Errors: NULL, BUSY, WRITE. Threads: one at a time for a scheduler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_scheduler_drain_journal(
    scheduler: *mut trainmaster_scheduler,
    writer: trainmaster_journal_writer,
    user: *mut c_void,
    message: *mut trainmaster_message,
) -> u32 {
    guard::call(message, || {
        let mut inner = trainmaster_scheduler::open(scheduler)?;
        if writer.is_none() {
            return Err(Failure::new(Code::Null, "writer is NULL"));
        }
        while let Some(record) = inner.records.front() {
            if !owned::write_record(writer, user, record, journal::Record::is_snapshot(record))? {
                let text = format!("the journal's writer refused a record; {} wait", inner.records.len());
                return Err(Failure::new(Code::Write, text));
            }
            inner.records.pop_front();
        }
        Ok(())
    })
}

/// Adds a snapshot to the journal, from which it can be restored. Its size grows with the cluster and its jobs. While a
/// ticket is open, it returns ORDER.
///
/// Errors: NULL, BUSY, POISONED, PANIC, ORDER. Threads: one at a time for a scheduler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_scheduler_snapshot(
    scheduler: *mut trainmaster_scheduler,
    message: *mut trainmaster_message,
) -> u32 {
    guard::call(message, || {
        let mut inner = trainmaster_scheduler::healthy(scheduler)?;
        if inner.change(|core| Ok(core.snapshot()))? {
            return Ok(());
        }
        Err(Failure::new(Code::Order, "no snapshot while a ticket is open, or where no journal is kept"))
    })
}

/// Restores the scheduler from a journal: its records in order, concatenated as they were drained, from the last
/// snapshot on (earlier ones may be omitted). The settings are the journal's. Earlier tickets are void, and the
/// scheduler is no longer poisoned. The log stays set. If a journal was active, it starts again with a snapshot.
///
/// Every decision is repeated and must be the same. A truncated record at the journal's end, as after a crash, is
/// ignored. `*used`, which may be NULL, is the length without it: truncate the file there before you append. After an
/// error it is the start of the bad record (0 if there is none), and the scheduler is unchanged.
///
/// Errors: NULL, SIZE, BUSY, PANIC, SETTINGS, NO_SNAPSHOT, UNREADABLE, DIVERGED. Threads: one at a time for a
/// scheduler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_scheduler_restore(
    scheduler: *mut trainmaster_scheduler,
    records: *const u8,
    length: u64,
    used: *mut u64,
    message: *mut trainmaster_message,
) -> u32 {
    guard::call(message, || {
        let report = |bytes: usize| if used.is_null() { Ok(()) } else { borrow::set(used, bytes as u64, "used") };
        report(0)?;
        let mut inner = trainmaster_scheduler::open(scheduler)?;
        let bytes = borrow::bytes(records, length, "records")?;
        let whole = whole(bytes);
        let frames: Vec<&[u8]> = journal::frames(&bytes[..whole]).collect();
        let restored =
            guard::catch(|| Scheduler::restore(frames.iter().copied())).map_err(|words| guard::panicked(&words))?;
        match restored {
            Ok(core) => {
                if whole < bytes.len() {
                    let torn = bytes.len() - whole;
                    inner
                        .log(Level::Warning, &format!("ignored {torn} bytes of a record cut off at the journal's end"));
                }
                report(whole)?;
                inner.replace(core);
                Ok(())
            }
            Err(error) => {
                if let journal::JournalError::Unreadable { at, .. }
                | journal::JournalError::Settings { at, .. }
                | journal::JournalError::Diverged { at, .. } = &error
                {
                    report(frames[..*at].iter().map(|frame| frame.len()).sum())?;
                }
                Err(error.into())
            }
        }
    })
}

/// The bytes up to a truncated last record.
fn whole(bytes: &[u8]) -> usize {
    let torn = journal::frames(bytes).last().filter(|frame| {
        let length = frame.first_chunk::<4>().map(|header| 8 + u64::from(u32::from_le_bytes(*header)));
        length.is_none_or(|length| (frame.len() as u64) < length)
    });
    bytes.len() - torn.map_or(0, <[u8]>::len)
}

/// The engine's memory between decisions, as in snapshots, for audits and comparisons of replicas. The journal contains
/// it already. Writes its bytes to `buffer` and its length to `*length`. If `capacity` is less, only the length is
/// written, and TRAINMASTER_ERROR_BUFFER is returned. `*version` is the version of its layout. `buffer` may be NULL if
/// `capacity` is 0.
///
/// Errors: NULL, BUSY, POISONED, PANIC, BUFFER. Threads: one at a time for a scheduler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_scheduler_memo(
    scheduler: *const trainmaster_scheduler,
    buffer: *mut u8,
    capacity: u64,
    length: *mut u64,
    version: *mut u32,
    message: *mut trainmaster_message,
) -> u32 {
    guard::call(message, || {
        let inner = trainmaster_scheduler::healthy(scheduler)?;
        borrow::settable(version, "version")?;
        let (layout, bytes) = inner.core.memo_bytes();
        borrow::set(length, bytes.len() as u64, "length")?;
        borrow::set(version, layout, "version")?;
        if capacity < bytes.len() as u64 {
            let text = format!("the buffer has {capacity} bytes; the memo needs {}", bytes.len());
            return Err(Failure::new(Code::Buffer, text));
        }
        if !bytes.is_empty() {
            borrow::settable(buffer, "buffer")?;
            borrow::fill(buffer, &bytes);
        }
        Ok(())
    })
}

/// Writes the digest over all decisions so far to `digest`, 32 bytes. Schedulers with equal decisions have equal
/// digests.
///
/// Errors: NULL, BUSY, POISONED. Threads: one at a time for a scheduler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_scheduler_digest(
    scheduler: *const trainmaster_scheduler,
    digest: *mut u8,
    message: *mut trainmaster_message,
) -> u32 {
    guard::call(message, || {
        let inner = trainmaster_scheduler::healthy(scheduler)?;
        borrow::settable(digest, "digest")?;
        borrow::fill(digest, &inner.core.digest());
        Ok(())
    })
}
