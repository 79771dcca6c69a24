//! Input from C. Only this module converts pointers to values and references.
//!
//! NULL, misaligned pointers, sizes and strides are checked. For other pointers, the caller guarantees that they point
//! to valid data as described in the header, for the duration of the call. The functions here rely on it. Functions
//! that are called from C, which are `unsafe` to call, therefore need no `unsafe` block for each argument.

use std::{ffi::CStr, mem::MaybeUninit};

use libc::c_char;

use crate::{
    error::{Failure, trainmaster_error as Code},
    text::trainmaster_string,
};

/// Maximum size of a struct. A larger size is an uninitialised one.
const LARGEST: usize = 1 << 16;
/// Maximum length of a text.
const LONGEST: u64 = 1 << 24;

/// A C struct of integers, floats and raw pointers.
///
/// # Safety
/// The type is `repr(C)`, and valid for all byte values, including all zeros.
pub(crate) unsafe trait Plain: Copy {}

/// A [`Plain`] struct whose first field is its `u32` size, and which grows at its end.
///
/// # Safety
/// The type has this layout.
pub(crate) unsafe trait Grows: Plain {
    const NAME: &'static str;
    /// Its size in the first version. A caller's size is never smaller.
    const FIRST: usize;
}

// SAFETY: integers and floats are valid for all byte values.
unsafe impl Plain for u8 {}
// SAFETY: as above.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for u64 {}

/// Declares fixed structs.
macro_rules! plain {
    ($($name:ty),* $(,)?) => {$(
        // SAFETY: `repr(C)`, of integers, floats and raw pointers.
        unsafe impl $crate::borrow::Plain for $name {}
    )*};
}

/// Declares growing structs with their first sizes.
macro_rules! grows {
    ($($name:ident: $first:literal),* $(,)?) => {$(
        $crate::borrow::plain!($name);
        // SAFETY: its first field is `size`, which is checked below.
        unsafe impl $crate::borrow::Grows for $name {
            const NAME: &'static str = stringify!($name);
            const FIRST: usize = $first;
        }
        const _: () = assert!(std::mem::offset_of!($name, size) == 0 && size_of::<$name>() >= $first);
    )*};
}

pub(crate) use {grows, plain};

fn checked<T>(pointer: *const T, name: &str) -> Result<(), Failure> {
    if pointer.is_null() {
        return Err(Failure::new(Code::Null, format!("{name} is NULL")));
    }
    if !pointer.is_aligned() {
        return Err(Failure::value(format!("{name} must be aligned to {} bytes", align_of::<T>())));
    }
    Ok(())
}

/// A reference to a handle, or to another object of this library.
pub(crate) fn reference<'a, T>(pointer: *const T, name: &str) -> Result<&'a T, Failure> {
    checked(pointer, name)?;
    // SAFETY: neither NULL nor misaligned; the caller guarantees a T that outlives the call.
    Ok(unsafe { &*pointer })
}

/// A copy of a struct of any version. Fields that the caller's version lacks are zero. Fields beyond ours must be zero.
pub(crate) fn read<T: Grows>(pointer: *const T, name: &str) -> Result<T, Failure> {
    checked(pointer, name)?;
    let size = size_at(pointer, name)?;
    let known = size.min(size_of::<T>());
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: the caller's struct has `size` bytes, and `value` has at least `known`.
    unsafe { pointer.cast::<u8>().copy_to_nonoverlapping(value.as_mut_ptr().cast(), known) };
    // SAFETY: the rest of the caller's `size` bytes.
    let rest = unsafe { std::slice::from_raw_parts(pointer.cast::<u8>().add(known), size - known) };
    if rest.iter().any(|byte| *byte != 0) {
        let text =
            format!("{name} has fields set that this library doesn't know: it is older than the caller's header");
        return Err(Failure::new(Code::Size, text));
    }
    // SAFETY: a plain struct is valid for all byte values, and all bytes were written.
    Ok(unsafe { value.assume_init() })
}

/// Fills a struct of any version. Its size stays the caller's.
pub(crate) fn write<T: Grows>(pointer: *mut T, value: T, name: &str) -> Result<(), Failure> {
    checked(pointer, name)?;
    let size = size_at(pointer, name)?;
    let known = size.min(size_of::<T>());
    let from = (&raw const value).cast::<u8>();
    let to = pointer.cast::<u8>();
    // SAFETY: the caller's struct has `size` bytes. After the first four (the size), `known` of them are ours too.
    unsafe {
        to.add(4).copy_from_nonoverlapping(from.add(4), known - 4);
        to.add(known).write_bytes(0, size - known);
    }
    Ok(())
}

/// Checks that a struct can be filled later.
pub(crate) fn writable<T: Grows>(pointer: *mut T, name: &str) -> Result<(), Failure> {
    checked(pointer, name)?;
    size_at(pointer, name).map(drop)
}

fn size_at<T: Grows>(pointer: *const T, name: &str) -> Result<usize, Failure> {
    // SAFETY: neither NULL nor misaligned (checked by callers), and each growing struct begins with its size.
    let size = unsafe { pointer.cast::<u32>().read() } as usize;
    if (T::FIRST..=LARGEST).contains(&size) {
        return Ok(size);
    }
    let text = format!("{name}: size is {size} and must be sizeof(struct {}), at least {}", T::NAME, T::FIRST);
    Err(Failure::new(Code::Size, text))
}

/// Sets an output that is a plain value.
pub(crate) fn set<T>(pointer: *mut T, value: T, name: &str) -> Result<(), Failure> {
    checked(pointer, name)?;
    // SAFETY: neither NULL nor misaligned; the caller guarantees that it is writable.
    unsafe { pointer.write(value) };
    Ok(())
}

/// Checks that an output can be set.
pub(crate) fn settable<T>(pointer: *mut T, name: &str) -> Result<(), Failure> {
    checked(pointer, name)
}

/// Fills a caller's buffer.
pub(crate) fn fill(to: *mut u8, bytes: &[u8]) {
    // SAFETY: the caller guarantees that the buffer exists, and that no other thread uses it.
    unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
}

/// A C array: pointer, count, and bytes from one element to the next.
pub(crate) struct Array<T> {
    data: *const T,
    count: usize,
    stride: usize,
}

impl<T> Array<T> {
    pub(crate) fn new(data: *const T, count: u64, stride: u64, name: &str) -> Result<Self, Failure> {
        if count == 0 {
            return Ok(Self { data, count: 0, stride: 0 });
        }
        checked(data, name)?;
        let (least, aligned) = (size_of::<T>().min(4) as u64, stride.is_multiple_of(align_of::<T>() as u64));
        let bytes = count.checked_mul(stride).filter(|bytes| *bytes <= isize::MAX as u64);
        if stride < least || !aligned || bytes.is_none() {
            let text =
                format!("{name}: {count} elements {stride} bytes apart is no array; the stride is the element's size");
            return Err(Failure::new(Code::Size, text));
        }
        Ok(Self { data, count: count as usize, stride: stride as usize })
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Address of an element.
    pub(crate) fn at(&self, index: usize) -> *mut T {
        assert!(index < self.count, "within the array");
        // The address is within the caller's array. The caller guarantees that the array exists when an element is
        // read.
        self.data.wrapping_byte_add(index * self.stride).cast_mut()
    }
}

impl<T: Grows> Array<T> {
    /// A copy of an element of any version.
    pub(crate) fn read(&self, index: usize, name: &str) -> Result<T, Failure> {
        let at = self.at(index);
        let name = format!("{name}[{index}]");
        checked(at, &name)?;
        if size_at(at, &name)? > self.stride {
            return Err(Failure::new(Code::Size, format!("{name}: its size is more than the stride")));
        }
        read(at, &name)
    }

    /// Copies of all elements.
    pub(crate) fn all(&self, name: &str) -> Result<Vec<T>, Failure> {
        (0..self.count).map(|index| self.read(index, name)).collect()
    }
}

/// Copies of the elements of an array of fixed structs.
pub(crate) fn copies<T: Plain>(data: *const T, count: u64, stride: u64, name: &str) -> Result<Vec<T>, Failure> {
    let array = Array::new(data, count, stride, name)?;
    if count > 0 && array.stride < size_of::<T>() {
        let text = format!("{name}: a stride of {stride} bytes is less than an element's {}", size_of::<T>());
        return Err(Failure::new(Code::Size, text));
    }
    // SAFETY: each element lies within the array, is as large as a T, and all byte values are valid.
    Ok((0..array.len()).map(|index| unsafe { array.at(index).read() }).collect())
}

/// A copy of a text.
pub(crate) fn text(text: trainmaster_string, name: &str) -> Result<String, Failure> {
    if text.length > LONGEST {
        return Err(Failure::new(Code::Size, format!("{name}: {} bytes must be at most {LONGEST}", text.length)));
    }
    let bytes = bytes(text.data.cast(), text.length, name)?;
    std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| Failure::value(format!("{name} must be UTF-8")))
}

/// Bytes for the duration of the call.
pub(crate) fn bytes<'a>(data: *const u8, length: u64, name: &str) -> Result<&'a [u8], Failure> {
    if length == 0 {
        return Ok(&[]);
    }
    checked(data, name)?;
    if length > isize::MAX as u64 {
        return Err(Failure::new(Code::Size, format!("{name}: there are no {length} bytes")));
    }
    // SAFETY: not NULL; the caller guarantees that the bytes exist during the call.
    Ok(unsafe { std::slice::from_raw_parts(data, length as usize) })
}

/// The bytes of a C string for the duration of the call, without the zero byte. NULL is an empty text.
pub(crate) fn until_zero<'a>(text: *const c_char) -> &'a [u8] {
    if text.is_null() {
        return &[];
    }
    // SAFETY: not NULL; the caller guarantees that a zero byte ends it, and that it exists during the call.
    unsafe { CStr::from_ptr(text) }.to_bytes()
}
