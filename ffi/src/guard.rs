//! Catches panics at the boundary to C.

use std::{
    cell::RefCell,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Once,
};

use crate::{
    borrow,
    error::{Failure, TRAINMASTER_OK, trainmaster_error as Code},
    text::trainmaster_message,
};

thread_local! {
    /// Message and place of a panic on this thread while it is inside the library. `None` outside.
    static WORDS: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Reports panics inside the library by number, message and log instead of on standard error. Other panics are
/// unaffected.
fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let others = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let inside = WORDS.try_with(|words| {
                let mut words = words.borrow_mut();
                if let Some(words) = words.as_mut() {
                    let place = panic.location().map(|at| format!(" at {at}")).unwrap_or_default();
                    *words = format!("{}{place}", panic.payload_as_str().unwrap_or("no message"));
                }
                words.is_some()
            });
            if inside != Ok(true) {
                others(panic);
            }
        }));
    });
}

/// Runs a function, and returns a panic as its message.
///
/// # Errors
/// The function panicked: message and place of the panic.
pub fn catch<T>(body: impl FnOnce() -> T) -> Result<T, String> {
    listen();
    let before = WORDS.replace(Some(String::new()));
    let result = catch_unwind(AssertUnwindSafe(body));
    let words = WORDS.replace(before).unwrap_or_default();
    result.map_err(|payload| {
        // If dropping the payload panics as well, it is leaked.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(payload)));
        words
    })
}

/// The body of every fallible function: returns the error number, and writes the message to the caller's buffer.
pub(crate) fn call(message: *mut trainmaster_message, body: impl FnOnce() -> Result<(), Failure>) -> u32 {
    let caught = catch(body).unwrap_or_else(|words| Err(panicked(&words)));
    let (code, text) = match caught {
        Ok(()) => (TRAINMASTER_OK, String::new()),
        Err(Failure { code, text }) => (code as u32, text),
    };
    tell(message, &text);
    code
}

/// The body of an infallible function.
pub(crate) fn quiet(body: impl FnOnce()) {
    let _ = catch(body);
}

pub(crate) fn panicked(words: &str) -> Failure {
    Failure::new(Code::Panic, format!("a bug in trainmaster: {words}"))
}

fn tell(message: *mut trainmaster_message, text: &str) {
    let Ok(&(mut buffer)) = borrow::reference(message.cast_const(), "message") else { return };
    buffer.tell(text);
    let _ = borrow::set(message, buffer, "message");
}
