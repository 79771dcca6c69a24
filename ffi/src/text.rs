//! Texts, and where a function's words go.

use std::ffi::c_char;

use crate::borrow::plain;

/// A text in UTF-8, not ended by a zero byte. `data` may be NULL where `length` is 0. In arguments it is read during the
/// call and never kept; in results it belongs to what it is found in. Never grows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_string {
    /// The first byte.
    pub data: *const c_char,
    /// In bytes.
    pub length: u64,
}

/// Where a function writes why it failed: a buffer of the caller's. Every function takes NULL instead. Never grows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_message {
    /// The buffer, or NULL.
    pub data: *mut c_char,
    /// Its size in bytes. The text is cut to fit, and always ends with a zero byte where this is at least 1.
    pub capacity: u64,
    /// Set by the function: the whole text's length without the zero byte, 0 after TRAINMASTER_OK.
    pub length: u64,
}

plain!(trainmaster_string, trainmaster_message);

impl trainmaster_string {
    pub(crate) const EMPTY: Self = Self { data: std::ptr::null(), length: 0 };

    /// Of a text that stays where it is for as long as the result does.
    pub(crate) fn of(text: &str) -> Self {
        Self { data: text.as_ptr().cast(), length: text.len() as u64 }
    }
}
