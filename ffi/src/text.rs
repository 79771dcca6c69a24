//! Texts, and buffers for messages.

use std::{ffi::CStr, marker::PhantomData};

use libc::c_char;

use crate::borrow::{self, plain};

/// A text that ends with a zero byte. NULL is an empty text.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_c_string<'a>(*const c_char, PhantomData<&'a CStr>);

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
pub struct trainmaster_message<'a> {
    /// The buffer, or NULL.
    data: *mut c_char,
    /// Its size in bytes. The text is truncated to fit, and always ends with a zero byte if the size is at least 1.
    capacity: u64,
    /// Set by the function: length of the whole text without the zero byte, 0 after TRAINMASTER_OK.
    length: u64,
    buffer: PhantomData<&'a mut [c_char]>,
}

plain!(trainmaster_string);

impl trainmaster_string {
    pub(crate) const EMPTY: Self = Self { data: std::ptr::null(), length: 0 };

    /// A text whose address is fixed while the result exists.
    pub(crate) fn of(text: &str) -> Self {
        Self { data: text.as_ptr().cast(), length: text.len() as u64 }
    }
}

impl<'a> trainmaster_c_string<'a> {
    /// No text.
    pub const NULL: Self = Self(std::ptr::null(), PhantomData);

    /// A text for a function that C calls otherwise.
    pub const fn new(text: &'a CStr) -> Self {
        Self(text.as_ptr(), PhantomData)
    }

    /// Whether it is NULL.
    pub const fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Its bytes, without the zero byte.
    pub fn bytes(self) -> &'a [u8] {
        borrow::until_zero(self.0)
    }

    /// A copy. Invalid UTF-8 is replaced.
    pub fn to_text(self) -> String {
        String::from_utf8_lossy(self.bytes()).into_owned()
    }
}

impl<'a> trainmaster_message<'a> {
    /// A buffer for a function that C calls otherwise.
    pub fn new(buffer: &'a mut [c_char]) -> Self {
        Self { data: buffer.as_mut_ptr(), capacity: buffer.len() as u64, length: 0, buffer: PhantomData }
    }

    /// Writes a text, as much of it as there is room for.
    pub fn tell(&mut self, text: &str) {
        self.length = text.len() as u64;
        if self.data.is_null() || self.capacity == 0 {
            return;
        }
        let room = usize::try_from(self.capacity - 1).unwrap_or(usize::MAX).min(text.len());
        let cut = (0..=room).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        let mut bytes = text.as_bytes()[..cut].to_vec();
        bytes.push(0);
        borrow::fill(self.data.cast(), &bytes);
    }
}
