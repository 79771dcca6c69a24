//! What a connection has shown so far.

use std::sync::{
    Mutex, OnceLock, PoisonError,
    atomic::{AtomicU32, Ordering},
};

use tokio::sync::Notify;
use tonic::Status;

use crate::{
    Caller,
    shares::{Shares, Taken, What},
};

/// On a connection so many calls are refused before it ends, if none was let in.
const PATIENCE: u32 = 16;

/// Whether somebody who was let in has called on a connection, and what it counts against.
#[derive(Debug, Default)]
pub(crate) struct Proof {
    refused: AtomicU32,
    /// Whose it is: set once. Empty for who has no share.
    held: OnceLock<Mutex<Option<Taken>>>,
    /// It is to end.
    pub(crate) over: Notify,
}

impl Proof {
    /// A call was let in: the connection is its caller's from now on.
    ///
    /// # Errors
    /// It has as many connections as it may; this one ends.
    pub(crate) fn give(&self, shares: &Shares, caller: &Caller) -> Result<(), Status> {
        if self.is_given() {
            return Ok(());
        }
        match shares.take(&caller.shares, What::Connections, 1) {
            Ok(taken) => {
                // Of two calls at once the first counts.
                let _ = self.held.set(Mutex::new(Some(taken)));
                Ok(())
            }
            Err(full) => {
                self.over.notify_one();
                Err(full)
            }
        }
    }

    /// A call was refused: who only ever knocks has to connect anew for it.
    pub(crate) fn refuse(&self) {
        if self.refused.fetch_add(1, Ordering::Relaxed) + 1 >= PATIENCE && !self.is_given() {
            self.over.notify_one();
        }
    }

    pub(crate) fn is_given(&self) -> bool {
        self.held.get().is_some()
    }

    /// The connection has ended, whoever still knows of it.
    pub(crate) fn end(&self) {
        if let Some(held) = self.held.get() {
            held.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
    }
}
