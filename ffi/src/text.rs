//! Texts, and buffers for messages.

use libc::c_char;

use crate::borrow::plain;

/// A text in UTF-8 without a terminating zero byte. `data` may be NULL if `length` is 0. Texts in arguments are read
/// during the call and never kept. Texts in results belong to the result. Never grows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_string {
    /// The first byte.
    pub data: *const c_char,
    /// Length in bytes.
    pub length: u64,
}

/// A caller's buffer for the message of a failure. Every function accepts NULL instead. Never grows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_message {
    /// The buffer, or NULL.
    pub data: *mut c_char,
    /// Its size in bytes. The text is truncated to fit, and always ends with a zero byte if the size is at least 1.
    pub capacity: u64,
    /// Set by the function: length of the whole text without the zero byte, 0 after TRAINMASTER_OK.
    pub length: u64,
}

plain!(trainmaster_string, trainmaster_message);

impl trainmaster_string {
    pub(crate) const EMPTY: Self = Self { data: std::ptr::null(), length: 0 };

    /// A text whose address is fixed while the result exists.
    pub(crate) fn of(text: &str) -> Self {
        Self { data: text.as_ptr().cast(), length: text.len() as u64 }
    }
}
