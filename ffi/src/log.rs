//! Log messages of a scheduler for its caller.

use libc::c_void;

use crate::{
    guard,
    handle::trainmaster_scheduler,
    owned::{Log, trainmaster_log_writer},
    text::trainmaster_message,
};

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
