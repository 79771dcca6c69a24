//! The access check of the daemon's port.

use std::sync::Arc;

use axum::extract::Request;
use tonic::Status;
use trainmaster_feed::{Feed, JobKeeper};
use trainmaster_net::{Caller, Doorkeeper, Kind as Serves, Paces, Peer, Rate, Share, bearer};

use super::{
    Kind, Role, Tokens, Who,
    rules::{self, Allowed},
};

/// Identifies callers and their permissions.
pub(crate) struct Keeper {
    tokens: Tokens,
    feed: Feed,
    jobs: JobKeeper,
    limits: KeeperLimits,
    paces: Paces,
}

/// Limits of all callers together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeeperLimits {
    /// Connections of the port. The jobs of one tenant get at most half of them.
    pub(crate) connections: usize,
    /// Lists that are being read. One caller gets at most a sixteenth of them.
    pub(crate) lists: usize,
    /// Whether the metrics need no token.
    pub(crate) metrics_open: bool,
}

impl Keeper {
    pub(crate) fn new(tokens: Tokens, feed: Feed, limits: KeeperLimits) -> Self {
        let jobs = JobKeeper::new(feed.clone(), limits.connections);
        Self { tokens, feed, jobs, limits, paces: Paces::default() }
    }

    /// The caller with this token or certificate.
    fn holder(&self, request: &Request, token: Option<&str>) -> Result<(Who, String), Status> {
        let peer = request.extensions().get::<Peer>();
        let address = peer.map_or_else(|| ([0, 0, 0, 0], 0).into(), |peer| peer.address);
        if let Some(token) = token {
            if let Some((role, name)) = self.tokens.find(token) {
                return Ok((Who::new(role, address, &name).with(self.tokens.clone(), token), name));
            }
            // The holder of a job's token may learn that it is one.
            if self.feed.caller(Some(token)).is_ok() {
                return Err(Status::permission_denied("a job's token is for that job's reports alone"));
            }
            return Err(Status::unauthenticated("this token is not known, or no longer"));
        }
        let named = peer.into_iter().flat_map(|peer| peer.certified.iter()).find_map(|uri| Role::of_uri(uri));
        if let Some((role, name)) = named {
            let name = format!("certificate {name}");
            return Ok((Who::new(role, address, &name), name));
        }
        Err(Status::unauthenticated("this call needs a token: authorization: Bearer <token>"))
    }
}

impl Doorkeeper for Keeper {
    fn kind(&self, path: &str) -> Serves {
        // Unknown paths are answered in the caller's protocol.
        rules::find(path).map_or(Serves::Page, |rule| rule.serves)
    }

    fn admit(&self, request: &mut Request) -> Result<Option<Caller>, Status> {
        let Some(rule) = rules::find(request.uri().path()) else { return Ok(None) };
        if matches!(rule.allowed, Allowed::Anybody) || (self.limits.metrics_open && rule.path == "/metrics") {
            return Ok(None);
        }
        let token = bearer(request.headers())?;
        if rule.allowed.holds(Kind::Job) {
            return self.jobs.job(token).map(Some);
        }
        let (who, name) = self.holder(request, token)?;
        let kind = who.role.kind();
        if !rule.allowed.holds(kind) {
            let Allowed::These(kinds) = rule.allowed else { return Ok(None) };
            let may = kinds.iter().map(|kind| kind.word()).collect::<Vec<_>>().join(", ");
            let problem = format!("{name} has the role {}; this call is for {may}", kind.word());
            return Err(Status::permission_denied(problem));
        }
        let name: Arc<str> = name.into();
        let lists = (self.limits.lists / 16).max(1);
        let share = |bytes: usize, connections: usize| vec![Share { key: name.clone(), bytes, lists, connections }];
        let (shares, rate) = match kind {
            Kind::Admin | Kind::Job => (Vec::new(), None),
            Kind::Submit => (share(8 << 20, 256), Some(Rate { second: 200.0, burst: 2000.0 })),
            Kind::Manager => (share(64 << 20, 64), Some(Rate { second: 1000.0, burst: 10_000.0 })),
            Kind::Read | Kind::Metrics => (share(1 << 20, 64), Some(Rate { second: 100.0, burst: 1000.0 })),
        };
        rate.map_or(Ok(()), |rate| self.paces.take(&name, rate))?;
        let first = kind == Kind::Admin;
        let standing = who.standing();
        request.extensions_mut().insert(who);
        Ok(Some(Caller { name, shares, first, standing }))
    }
}
