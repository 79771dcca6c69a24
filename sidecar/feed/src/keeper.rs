//! The access check of a port for reports of jobs.

use std::sync::Arc;

use axum::extract::Request;
use tonic::Status;
use trainmaster_net::{Caller, Doorkeeper, Kind, Paces, Rate, Share, affordable, bearer};

use crate::Feed;

/// Calls of one job's programs: many slots start at once, and each reports about once a second.
const RATE: Rate = Rate { second: 500.0, burst: 10_000.0 };
/// Bytes of pending calls: of one job, with an addition per slot, and of one tenant's jobs.
const JOB_BYTES: usize = 2 << 20;
const SLOT_BYTES: usize = 3 << 10;
const TENANT_BYTES: usize = 32 << 20;

/// Admits the programs of jobs by their tokens, each with a share of the port.
#[derive(Debug)]
pub struct JobKeeper {
    feed: Feed,
    connections: usize,
    paces: Paces,
}

impl JobKeeper {
    /// `connections`: the port's maximum of connections. The jobs of one tenant get at most half of them.
    pub fn new(feed: Feed, connections: usize) -> Self {
        Self { feed, connections: affordable(connections), paces: Paces::default() }
    }

    /// Identifies the job of a token.
    ///
    /// # Errors
    /// No job has the token, or the job calls too often.
    pub fn job(&self, token: Option<&str>) -> Result<Caller, Status> {
        let caller = self.feed.caller(token)?;
        let (key, tenant): (Arc<str>, Arc<str>) = match caller.job {
            Some(job) => (job.to_string().into(), format!("jobs of tenant {}", caller.tenant).into()),
            None => ("jobs without a token".into(), "jobs without a token".into()),
        };
        self.paces.take(&key, RATE)?;
        // One program per slot, another one that replaces it, and some observers.
        let own = 2 * caller.slots + 64;
        let shares = vec![
            Share { key: key.clone(), bytes: JOB_BYTES + SLOT_BYTES * caller.slots, lists: 0, connections: own },
            Share { key: tenant, bytes: TENANT_BYTES, lists: 0, connections: (self.connections / 2).max(1) },
        ];
        Ok(Caller { name: key, shares, first: false, standing: None })
    }
}

/// For a port with the feed alone.
impl Doorkeeper for JobKeeper {
    fn kind(&self, path: &str) -> Kind {
        if path.ends_with("/Watch") { Kind::Watch } else { Kind::Call }
    }

    fn admit(&self, request: &mut Request) -> Result<Option<Caller>, Status> {
        self.job(bearer(request.headers())?).map(Some)
    }
}
