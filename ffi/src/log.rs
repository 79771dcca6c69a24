//! What a scheduler tells its caller beside results.

use std::ffi::{c_char, c_void};

use crate::{guard, owned::Log, scheduler::trainmaster_scheduler, text::trainmaster_message};

/// How urgent a line of the log is.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum trainmaster_log_level {
    /// Someone has to look: a panic, a scheduler that gave up.
    Error = 0,
    /// Something failed and was dealt with: an engine, a torn end of a journal.
    Warning = 1,
    /// Good to know.
    Info = 2,
}

/// Takes a line: the pointer that was given with the function, one of TRAINMASTER_LOG_LEVEL_*, and a text that ends
/// with a zero byte and is gone when the function returns. It is called by the thread that uses the scheduler, within
/// that call: it must not use the same scheduler (that fails as TRAINMASTER_ERROR_BUSY), throw, or jump out.
pub type trainmaster_log_writer = Option<unsafe extern "C" fn(user: *mut c_void, level: u32, text: *const c_char)>;

/// Sets who takes the log; NULL: nobody, as at first. `user` is handed to it as it is and has to live as long. Works on
/// a poisoned scheduler.
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
