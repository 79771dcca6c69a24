//! What a connection has shown so far.

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

/// So often it is asked whether whoever was let in still counts.
const LOOK: Duration = Duration::from_secs(2);
/// On a connection so many calls are refused before it ends, if none was let in.
const PATIENCE: u32 = 16;

/// Whether somebody who was let in has called on a connection, and what it counts against.
#[derive(Debug)]
pub(crate) struct Proof {
    refused: AtomicU32,
    /// Connections that callers may have who aren't [first](Caller::first).
    others: Arc<Semaphore>,
    held: Mutex<Held>,
    /// It is to end.
    pub(crate) over: Notify,
}

/// What a connection counts against.
#[derive(Debug, Default)]
struct Held {
    /// Whose it is: the first caller's who was let in.
    by: Option<(Taken, Option<OwnedSemaphorePermit>)>,
    /// Whether the last caller who was let in still counts.
    standing: Option<Standing>,
    /// It counts against nothing any more: what is still under way on it is about to end.
    is_over: bool,
}

impl Proof {
    /// Of a connection that takes one of these, unless its caller is [first](Caller::first).
    pub(crate) fn new(others: Arc<Semaphore>) -> Self {
        Self { refused: AtomicU32::default(), others, held: Mutex::default(), over: Notify::new() }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        // Every change leaves it whole.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call was let in: the connection is its caller's from now on.
    ///
    /// # Errors
    /// It has as many connections as it may, or others have; this one ends.
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

    /// Waits until its caller no longer counts.
    pub(crate) async fn ends(&self) {
        while self.held().standing.as_ref().is_none_or(Standing::counts) {
            sleep(LOOK).await;
        }
    }

    /// A call was refused: who only ever knocks has to connect anew for it.
    pub(crate) fn refuse(&self) {
        if self.refused.fetch_add(1, Ordering::Relaxed) + 1 >= PATIENCE && !self.is_given() {
            self.over.notify_one();
        }
    }

    pub(crate) fn is_given(&self) -> bool {
        self.held().by.is_some()
    }

    /// The connection has ended, whoever still knows of it.
    pub(crate) fn end(&self) {
        *self.held() = Held { is_over: true, ..Held::default() };
    }
}
