//! Bounded reads of files that users name. They may be devices, pipes or too large.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

/// Maximum bytes of a table of measurements or of recorded jobs.
pub const TABLE: u64 = 1 << 30;

/// Reads a text file of at most `most` bytes.
///
/// # Errors
/// The file can't be read, is longer, or isn't UTF-8.
pub fn read_text(path: &Path, most: u64) -> io::Result<String> {
    take_text(File::open(path)?, most)
}

/// Reads a text of at most `most` bytes from `source`.
///
/// # Errors
/// As [`read_text`].
pub fn take_text(source: impl Read, most: u64) -> io::Result<String> {
    let bytes = take(source, most)?;
    String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is no text in UTF-8"))
}

/// Reads a file of at most `most` bytes.
///
/// # Errors
/// The file can't be read, or is longer.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    take(File::open(path)?, most)
}

fn take(source: impl Read, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it has more than {most} bytes")));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_never_ends_is_refused() {
        let error = read_text(Path::new("/dev/zero"), 1000).unwrap_err();
        assert_eq!(error.to_string(), "it has more than 1000 bytes");
    }

    #[test]
    fn a_text_up_to_the_bound_is_read_whole() {
        assert_eq!(take_text("é".as_bytes(), 2).unwrap(), "é");
        assert!(take_text("éa".as_bytes(), 2).unwrap_err().to_string().contains("more than 2"));
        assert!(take_text(&b"\xff"[..], 2).unwrap_err().to_string().contains("UTF-8"));
    }
}
