//! Tokens: 128 random bits with which a job reports. Only the hash is kept in places that many can read.

use std::fmt;

use trainmaster_core::text::hex;

/// A secret for its user. Logs don't show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// A token from 128 unpredictable bits.
    pub fn new(random: [u8; 16]) -> Self {
        Self(hex(&random))
    }

    /// The text for the user.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// The hash that is kept.
    pub fn hash(&self) -> [u8; 32] {
        hash_of(&self.0)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// The hash of a token from a caller.
pub fn hash_of(token: &str) -> [u8; 32] {
    *blake3::hash(token.as_bytes()).as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_has_a_hash_of_its_own_and_is_not_shown() {
        let (one, two) = (Token::new([1; 16]), Token::new([2; 16]));
        assert_eq!(hash_of(one.reveal()), one.hash());
        assert_ne!(two.hash(), one.hash());
        assert_eq!(one.reveal().len(), 32);
        assert_eq!(format!("{one:?}"), "Token(…)");
    }
}
