//! Proof that a connection has had an admitted call.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore},
    time::sleep,
};
use tonic::Status;

use crate::{
    Caller, Standing,
    shares::{Shares, Taken, What},
};

/// Interval of checks whether an admission is still valid.
const LOOK: Duration = Duration::from_secs(2);
/// Number of refused calls after which a connection without an admitted call is closed.
const PATIENCE: u32 = 16;

/// Whether a connection has had an admitted call, and the shares that it uses.
#[derive(Debug)]
pub(crate) struct Proof {
    refused: AtomicU32,
    /// Permits for callers that aren't [first](Caller::first).
    others: Arc<Semaphore>,
    held: Mutex<Held>,
    /// Notifies that the connection must end.
    pub(crate) over: Notify,
}

/// Shares of a connection.
#[derive(Debug, Default)]
struct Held {
    /// Shares of its caller: the first one that was admitted.
    by: Option<(Taken, Option<OwnedSemaphorePermit>)>,
    /// Whether the last admission is still valid.
    standing: Option<Standing>,
    /// The connection uses no shares any more, because it is about to end.
    is_over: bool,
}

impl Proof {
    /// A connection that takes one of these permits, unless its caller is [first](Caller::first).
    pub(crate) fn new(others: Arc<Semaphore>) -> Self {
        Self { refused: AtomicU32::default(), others, held: Mutex::default(), over: Notify::new() }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        // Each change leaves it consistent.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call was admitted, so the connection belongs to its caller from now on.
    ///
    /// # Errors
    /// The caller, or all callers together, have the maximum number of connections. This one ends.
    pub(crate) fn give(&self, shares: &Shares, caller: &Caller) -> Result<(), Status> {
        let mut held = self.held();
        if held.by.is_none() && !held.is_over {
            let full = |_| Status::resource_exhausted("there are as many connections as there may be; try again later");
            let place = || self.others.clone().try_acquire_owned().map_err(full);
            let taken = shares
                .take(&caller.shares, What::Connections, 1)
                .and_then(|taken| Ok((taken, (!caller.first).then(place).transpose()?)));
            held.by = Some(taken.inspect_err(|_| self.over.notify_one())?);
        }
        held.standing.clone_from(&caller.standing);
        Ok(())
    }

    /// Waits until its caller's admission is invalid.
    pub(crate) async fn ends(&self) {
        while self.held().standing.as_ref().is_none_or(Standing::counts) {
            sleep(LOOK).await;
        }
    }

    /// Counts a refused call. A connection with refused calls only is closed.
    pub(crate) fn refuse(&self) {
        if self.refused.fetch_add(1, Ordering::Relaxed) + 1 >= PATIENCE && !self.is_given() {
            self.over.notify_one();
        }
    }

    pub(crate) fn is_given(&self) -> bool {
        self.held().by.is_some()
    }

    /// Releases the shares of a closed connection, even if it is still referenced.
    pub(crate) fn end(&self) {
        *self.held() = Held { is_over: true, ..Held::default() };
    }
}
