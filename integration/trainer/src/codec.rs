//! Values in files: postcard, and a BLAKE3 hash that reveals damage.

use serde::{Serialize, de::DeserializeOwned};

/// The bytes of a file with this value.
pub(crate) fn seal(value: &impl Serialize) -> Vec<u8> {
    let mut bytes = postcard::to_allocvec(value).expect("values in files are plain data");
    let hash = blake3::hash(&bytes);
    bytes.extend_from_slice(hash.as_bytes());
    bytes
}

/// The value in a file. None for bytes that [`seal`] doesn't write.
pub(crate) fn open<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let (value, hash) = bytes.split_last_chunk::<{ blake3::OUT_LEN }>()?;
    if blake3::hash(value) != *hash {
        return None;
    }
    postcard::take_from_bytes(value).ok().and_then(|(value, rest)| rest.is_empty().then_some(value))
}
