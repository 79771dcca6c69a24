//! Tokens: 128 random bits that a job reports with. Only their hash is kept where many can read.

use std::fmt;

use tonic::{Status, metadata::MetadataMap};

/// A secret on its way to the one who needs it; not shown in logs.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// From 128 bits that nobody can guess.
    pub fn new(random: [u8; 16]) -> Self {
        Self(random.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// The text that travels.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// What is kept of it.
    pub fn hash(&self) -> [u8; 32] {
        *blake3::hash(self.0.as_bytes()).as_bytes()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// Whether a text is the token of this hash, in constant time.
pub fn token_matches(given: &str, hash: &[u8; 32]) -> bool {
    // Comparing `blake3::Hash` takes the same time wherever the difference is.
    blake3::hash(given.as_bytes()) == blake3::Hash::from_bytes(*hash)
}

/// The token in `authorization: Bearer …`.
///
/// # Errors
/// UNAUTHENTICATED: there is none, or it is no bearer token.
pub fn bearer(metadata: &MetadataMap) -> Result<&str, Status> {
    let value = metadata
        .get("authorization")
        .ok_or_else(|| Status::unauthenticated("no token: send it as metadata \"authorization: Bearer <token>\""))?;
    let token = value.to_str().ok().and_then(|text| {
        let (scheme, token) = text.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    });
    token.ok_or_else(|| Status::unauthenticated("the metadata \"authorization\" must be \"Bearer <token>\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_matches_its_own_hash_only() {
        let (one, two) = (Token::new([1; 16]), Token::new([2; 16]));
        assert!(token_matches(one.reveal(), &one.hash()));
        assert!(!token_matches(two.reveal(), &one.hash()));
        assert_eq!(one.reveal().len(), 32);
        assert_eq!(format!("{one:?}"), "Token(…)");
    }

    #[test]
    fn only_bearer_tokens_are_read() {
        let with = |value: &str| {
            let mut metadata = MetadataMap::new();
            metadata.insert("authorization", value.parse().unwrap());
            bearer(&metadata).map(str::to_owned).map_err(|status| status.code())
        };
        assert_eq!(with("Bearer abc"), Ok("abc".to_owned()));
        assert_eq!(with("bearer abc"), Ok("abc".to_owned()));
        assert_eq!(with("Basic abc"), Err(tonic::Code::Unauthenticated));
        assert_eq!(bearer(&MetadataMap::new()).unwrap_err().code(), tonic::Code::Unauthenticated);
    }
}
