//! Log messages of a scheduler for its caller.

use std::ffi::{c_char, c_void};

use crate::{guard, owned::Log, scheduler::trainmaster_scheduler, text::trainmaster_message};

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

/// Sets the receiver of the log. NULL: none, the default. `user` is passed to it unchanged and must live as long. Works
/// on a poisoned scheduler.
///
/// Errors: NULL, BUSY. Threads: one at a time for a scheduler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_scheduler_set_log(
    scheduler: *mut trainmaster_scheduler,
    writer: trainmaster_log_writer,
    user: *mut c_void,
    message: *mut trainmaster_message,
) -> u32 {
    guard::call(message, || {
        trainmaster_scheduler::open(scheduler)?.log = Log::new(writer, user);
        Ok(())
    })
}
