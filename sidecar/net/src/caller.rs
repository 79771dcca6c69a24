//! Callers, and the check of their permissions.

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
    /// The URI names in its certificate, if it has one that the port trusts.
    pub certified: Arc<[String]>,
    pub(crate) proof: Arc<Proof>,
}

/// An admitted caller.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Name for logs and audits. Not secret.
    pub name: Arc<str>,
    /// Limits for what it may hold, alone and together with others.
    pub shares: Vec<Share>,
    /// Never delayed because of others' use: for callers that can resolve problems.
    pub first: bool,
    /// Whether its admission is still valid. None: as long as its connection.
    pub standing: Option<Standing>,
}

/// Whether an admission is still valid, for callers with a token that may be revoked.
#[derive(Clone)]
pub struct Standing(Arc<dyn Fn() -> bool + Send + Sync>);

impl Standing {
    /// A standing whose validity is this function's result.
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

/// The kind of service at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A page over plain HTTP.
    Page,
    /// A long page over plain HTTP.
    LongPage,
    /// A call with one answer.
    Call,
    /// A call with answers as long as its reader stays. The service limits the number of its readers.
    Watch,
    /// A call with a list as its answer, once or as long as its reader stays.
    List,
    /// A call with a log as its answer, in small parts, as long as its reader stays.
    Log,
    /// An endless stream of requests.
    Endless,
}

/// The access check: which callers may call which services.
pub trait Doorkeeper: Send + Sync + 'static {
    /// The kind of service at a path.
    fn kind(&self, path: &str) -> Kind;

    /// Identifies the caller, if it may call the service. `None`: anybody may. Called before the body is read. Data for
    /// the handler goes into the request's extensions, which contain the other end of the connection as a [`Peer`].
    ///
    /// # Errors
    /// The answer in place of the service's.
    fn admit(&self, request: &mut Request) -> Result<Option<Caller>, Status>;
}

/// The token in `authorization: Bearer …`. None without the header.
///
/// # Errors
/// UNAUTHENTICATED: the header has no bearer token.
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
