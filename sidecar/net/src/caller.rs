//! Who calls, and who decides what they may.

use std::{net::SocketAddr, sync::Arc};

use axum::{
    extract::Request,
    http::{HeaderMap, header},
};
use tonic::Status;

use crate::{Share, proof::Proof};

/// The other end of a connection.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its address.
    pub address: SocketAddr,
    /// The URI names in its certificate, where it showed one that the port trusts.
    pub certified: Arc<[String]>,
    pub(crate) proof: Arc<Proof>,
}

/// Somebody who was let in.
#[derive(Clone, Debug)]
pub struct Caller {
    /// For logs and audits; no secret.
    pub name: Arc<str>,
    /// What it may hold, each by itself and together with others.
    pub shares: Vec<Share>,
    /// Never kept waiting because of what others hold: who can end what goes wrong.
    pub first: bool,
    /// Whether it still counts; none: as long as its connection.
    pub standing: Option<Standing>,
}

/// Whether somebody who was let in still counts, as who has shown a token that may be revoked.
#[derive(Clone)]
pub struct Standing(Arc<dyn Fn() -> bool + Send + Sync>);

impl Standing {
    /// As this says, whenever it is asked.
    pub fn new(counts: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(counts))
    }

    pub(crate) fn counts(&self) -> bool {
        (self.0)()
    }
}

impl std::fmt::Debug for Standing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Standing").field(&self.counts()).finish()
    }
}

/// What a path serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A page over plain HTTP.
    Page,
    /// The same, long.
    LongPage,
    /// A call that is answered once.
    Call,
    /// A call that is answered as long as somebody listens, and sees to it itself that they aren't too many.
    Watch,
    /// A call that is answered with a list, once or as long as somebody reads.
    List,
    /// A stream of requests that never ends.
    Endless,
}

/// Decides who may call what.
pub trait Doorkeeper: Send + Sync + 'static {
    /// What is served at a path.
    fn kind(&self, path: &str) -> Kind;

    /// Who calls, if that may be called by them; `None`: by anybody. Asked before the body is read; what the handler needs to
    /// know goes into the request's extensions. The connection's other end is there as a [`Peer`].
    ///
    /// # Errors
    /// What is answered instead.
    fn admit(&self, request: &mut Request) -> Result<Option<Caller>, Status>;
}

/// The token in `authorization: Bearer …`; none where the header is missing.
///
/// # Errors
/// UNAUTHENTICATED: it is no bearer token.
pub fn bearer(headers: &HeaderMap) -> Result<Option<&str>, Status> {
    let Some(value) = headers.get(header::AUTHORIZATION) else { return Ok(None) };
    let token = value.to_str().ok().and_then(|text| {
        let (scheme, token) = text.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    });
    token.map(Some).ok_or_else(|| Status::unauthenticated("authorization: must be Bearer <token>"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bearer_token_is_found() {
        let mut headers = HeaderMap::new();
        assert_eq!(bearer(&headers).unwrap(), None);
        for (value, token) in
            [("Bearer abc", Some("abc")), ("bearer  abc", Some("abc")), ("abc", None), ("Basic abc", None)]
        {
            headers.insert(header::AUTHORIZATION, value.parse().unwrap());
            assert_eq!(bearer(&headers).ok().flatten(), token, "{value}");
        }
    }
}
