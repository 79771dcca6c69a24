//! What C hands in: pointers become values or references here and nowhere else.
//!
//! NULL, misaligned pointers, sizes and strides are checked; that a pointer which is none of these points to what the
//! header says, for as long as the call lasts, is the caller's word. The functions here take it, so that those that are
//! called from C, which are `unsafe` to call, need no block of their own for each argument.

use std::mem::MaybeUninit;

use crate::{
    error::{Failure, trainmaster_error as Code},
    text::trainmaster_string,
};

/// Larger than any struct will ever be: a size beyond is a number that was never set.
const LARGEST: usize = 1 << 16;
/// Larger than any text that makes sense.
const LONGEST: u64 = 1 << 24;

/// A C struct of integers, floats and raw pointers.
///
/// # Safety
/// `repr(C)`, and valid whatever its bytes are, all zeros included.
pub(crate) unsafe trait Plain: Copy {}

/// A [`Plain`] struct whose first field is its `u32` size, and which grows at its end.
///
/// # Safety
/// It is.
pub(crate) unsafe trait Grows: Plain {
    const NAME: &'static str;
    /// Its size in the first version that had it: no caller's is smaller.
    const FIRST: usize;
}

// SAFETY: integers and floats are valid whatever their bytes are.
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

/// Declares growing structs with the size that each had at first.
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

/// A handle, or anything else that this library made.
pub(crate) fn reference<'a, T>(pointer: *const T, name: &str) -> Result<&'a T, Failure> {
    checked(pointer, name)?;
    // SAFETY: neither NULL nor misaligned; the caller says that it is a T which outlives the call.
    Ok(unsafe { &*pointer })
}

/// A copy of a struct of whatever version: what the caller's doesn't have is zero, what it has beyond ours must be.
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
    // SAFETY: a plain struct is valid whatever its bytes are, and all were written.
    Ok(unsafe { value.assume_init() })
}

/// Fills in a struct of whatever version; its size stays the caller's.
pub(crate) fn write<T: Grows>(pointer: *mut T, value: T, name: &str) -> Result<(), Failure> {
    checked(pointer, name)?;
    let size = size_at(pointer, name)?;
    let known = size.min(size_of::<T>());
    let from = (&raw const value).cast::<u8>();
    let to = pointer.cast::<u8>();
    // SAFETY: the caller's struct has `size` bytes, behind the first four (the size) `known` of them are ours, too.
    unsafe {
        to.add(4).copy_from_nonoverlapping(from.add(4), known - 4);
        to.add(known).write_bytes(0, size - known);
    }
    Ok(())
}

/// Checks that a struct could be filled in, before there is anything to fill in.
pub(crate) fn writable<T: Grows>(pointer: *mut T, name: &str) -> Result<(), Failure> {
    checked(pointer, name)?;
    size_at(pointer, name).map(drop)
}

fn size_at<T: Grows>(pointer: *const T, name: &str) -> Result<usize, Failure> {
    // SAFETY: neither NULL nor misaligned (callers looked), and every growing struct begins with its size.
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
    // SAFETY: neither NULL nor misaligned; the caller says that it may be written.
    unsafe { pointer.write(value) };
    Ok(())
}

/// Checks that an output could be set.
pub(crate) fn settable<T>(pointer: *mut T, name: &str) -> Result<(), Failure> {
    checked(pointer, name)
}

/// Fills a caller's buffer.
pub(crate) fn fill(to: *mut u8, bytes: &[u8]) {
    // SAFETY: the caller says that as many bytes are there, and that no other thread uses them.
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

    /// Where an element is.
    pub(crate) fn at(&self, index: usize) -> *mut T {
        assert!(index < self.count, "within the array");
        // In bounds of what the caller calls an array; never read without being one.
        self.data.wrapping_byte_add(index * self.stride).cast_mut()
    }
}

impl<T: Grows> Array<T> {
    /// A copy of an element, of whatever version.
    pub(crate) fn read(&self, index: usize, name: &str) -> Result<T, Failure> {
        let at = self.at(index);
        let name = format!("{name}[{index}]");
        checked(at, &name)?;
        if size_at(at, &name)? > self.stride {
            return Err(Failure::new(Code::Size, format!("{name}: its size is more than the stride")));
        }
        read(at, &name)
    }

    /// Copies of all.
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
    // SAFETY: every element lies within the array, is as large as a T, and any bytes are one.
    Ok((0..array.len()).map(|index| unsafe { array.at(index).read() }).collect())
}

/// A text's own copy.
pub(crate) fn text(text: trainmaster_string, name: &str) -> Result<String, Failure> {
    if text.length > LONGEST {
        return Err(Failure::new(Code::Size, format!("{name}: {} bytes must be at most {LONGEST}", text.length)));
    }
    let bytes = bytes(text.data.cast(), text.length, name)?;
    std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| Failure::value(format!("{name} must be UTF-8")))
}

/// Bytes, for as long as the call lasts.
pub(crate) fn bytes<'a>(data: *const u8, length: u64, name: &str) -> Result<&'a [u8], Failure> {
    if length == 0 {
        return Ok(&[]);
    }
    checked(data, name)?;
    if length > isize::MAX as u64 {
        return Err(Failure::new(Code::Size, format!("{name}: there are no {length} bytes")));
    }
    // SAFETY: not NULL; the caller says that as many bytes are there while the call lasts.
    Ok(unsafe { std::slice::from_raw_parts(data, length as usize) })
}
