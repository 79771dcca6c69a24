//! Output for C: handles, results with all data that they point to, and calls of C's callbacks.

use std::{any::Any, ffi::CString};

use libc::{c_char, c_void};

use crate::{borrow, error::Failure, text::trainmaster_string};

/// Gives a handle to C, which returns it to [`free`].
pub(crate) fn hand<T>(value: T) -> *mut T {
    Box::into_raw(Box::new(value))
}

/// Takes a handle back. NULL is ignored.
pub(crate) fn free<T>(pointer: *mut T) {
    if !pointer.is_null() {
        // SAFETY: C got it from `hand`, and guarantees to return it once and not to use it any more.
        drop(unsafe { Box::from_raw(pointer) });
    }
}

/// The data that a result's pointers point to.
#[derive(Default)]
pub(crate) struct Keep(Vec<Box<dyn Any>>);

impl Keep {
    /// Keeps a value on the heap, at a fixed address.
    pub(crate) fn keep<T: 'static>(&mut self, value: T) {
        self.0.push(Box::new(value));
    }

    /// Keeps an array, and returns its address and length.
    pub(crate) fn array<T: 'static>(&mut self, values: Vec<T>) -> (*const T, u64) {
        if values.is_empty() {
            return (std::ptr::null(), 0);
        }
        let parts = (values.as_ptr(), values.len() as u64);
        self.keep(values);
        parts
    }

    /// Keeps a text.
    pub(crate) fn text(&mut self, text: String) -> trainmaster_string {
        let of = trainmaster_string::of(&text);
        self.keep(text);
        of
    }
}

/// A struct for C with its data. C sees the struct alone.
#[repr(C)]
struct Owned<V> {
    view: V,
    keep: Keep,
}

/// Gives a result to C through an output argument.
pub(crate) fn hand_result<V>(out: *mut *const V, view: V, keep: Keep, name: &str) -> Result<(), Failure> {
    borrow::settable(out, name)?;
    borrow::set(out, hand(Owned { view, keep }).cast_const().cast(), name)
}

/// Takes a result back. NULL is ignored.
pub(crate) fn free_result<V>(pointer: *const V) {
    free(pointer.cast_mut().cast::<Owned<V>>());
}

/// Severity of a line of the log.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum trainmaster_log_level {
    /// An administrator has to act: a panic, or a paused scheduler.
    Error = 0,
    /// A handled failure: of an engine, or a truncated end of a journal.
    Warning = 1,
    /// Information.
    Info = 2,
}

/// Takes a line: the pointer that was given with the function, one of TRAINMASTER_LOG_LEVEL_*, and a text that ends
/// with a zero byte and is valid until the function returns. It is called by the thread that uses the scheduler, within
/// that call: it must not use the same scheduler (that fails with TRAINMASTER_ERROR_BUSY), throw, or jump out.
pub type trainmaster_log_writer = Option<unsafe extern "C" fn(user: *mut c_void, level: u32, text: *const c_char)>;

/// The log of a caller.
#[derive(Clone, Copy)]
pub(crate) struct Log {
    pub(crate) write: unsafe extern "C" fn(*mut c_void, u32, *const c_char),
    pub(crate) user: *mut c_void,
}

// SAFETY: the header says that a log is called from any thread that uses the handle.
unsafe impl Send for Log {}

impl Log {
    pub(crate) fn new(write: trainmaster_log_writer, user: *mut c_void) -> Option<Self> {
        write.map(|write| Self { write, user })
    }

    pub(crate) fn write(self, level: u32, text: &str) {
        let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
        // SAFETY: a function of this type, with its own pointer, and a text that outlives the call.
        unsafe { (self.write)(self.user, level, text.as_ptr()) };
    }
}

/// Takes a record: the pointer that was given with the function, `length` bytes to append to the journal unchanged, and
/// 1 if the record is a snapshot. Records before a snapshot are not needed to restore. Returns 0 when the record is
/// stored. After another result, this record and all later ones are passed again the next time. It is called by the
/// draining thread, within that call: it must not use the same scheduler (that fails with TRAINMASTER_ERROR_BUSY),
/// throw, or jump out.
pub type trainmaster_journal_writer =
    Option<unsafe extern "C" fn(user: *mut c_void, record: *const u8, length: u64, is_snapshot: u32) -> u32>;

/// Passes a record to a caller's writer. False if it failed to store it.
pub(crate) fn write_record(
    writer: trainmaster_journal_writer,
    user: *mut c_void,
    record: &[u8],
    is_snapshot: bool,
) -> Result<bool, Failure> {
    let Some(write) = writer else {
        return Err(Failure::new(crate::error::trainmaster_error::Null, "writer is NULL"));
    };
    // SAFETY: a function of this type, with its own pointer, and bytes that outlive the call.
    Ok(unsafe { write(user, record.as_ptr(), record.len() as u64, is_snapshot.into()) } == 0)
}
