//! Proofs of identity: applications' secrets and the plug-ins' token.

use ring::digest::{SHA256, digest};
use trainmaster_core::text;

/// The hash of a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SecretHash([u8; 32]);

impl SecretHash {
    /// Computes the hash of a secret.
    pub(crate) fn of(secret: &str) -> Self {
        Self(digest(&SHA256, secret.as_bytes()).as_ref().try_into().expect("SHA-256 has 32 bytes"))
    }

    /// Parses hexadecimal digits. Returns `None` if they aren't a hash.
    pub(crate) fn parse(hex: &str) -> Option<Self> {
        text::from_hex(hex).map(Self)
    }

    /// The hash in hexadecimal digits.
    pub(crate) fn hex(self) -> String {
        text::hex(&self.0)
    }

    /// Whether this is the secret. The duration doesn't depend on the position of a difference.
    pub(crate) fn matches(self, secret: &str) -> bool {
        let differences = self.0.iter().zip(Self::of(secret).0).fold(0, |seen, (known, given)| seen | (known ^ given));
        differences == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_matches_its_own_hash_only() {
        // The output of `printf abc | sha256sum`.
        let hex = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let hash = SecretHash::parse(hex).unwrap();
        assert_eq!((hash, hash.hex().as_str()), (SecretHash::of("abc"), hex));
        assert_eq!(SecretHash::parse(&hex.to_uppercase()), Some(hash));
        assert!(hash.matches("abc") && !hash.matches("abd") && !hash.matches(""));
        for wrong in ["", "ba78", &hex.replace('b', "g"), &hex.replace("ba", "é")] {
            assert_eq!(SecretHash::parse(wrong), None, "{wrong}");
        }
    }
}
