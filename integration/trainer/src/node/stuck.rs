//! Reasons why a process can't continue.

use std::{io, time::Duration};

use crate::{exit, fixed::Diverged, id::Id};

/// The reason why a process, and therefore the job, can't continue.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Stuck {
    #[error(transparent)]
    Diverged(#[from] Diverged),
    #[error("{from} sent {me} {values} values for micro-batch {number}, which doesn't wait for so many of it now")]
    Misfit { me: Id, from: Id, number: u32, values: usize },
    #[error("a device's turns can't be booked: {0}")]
    NoTurn(#[from] io::Error),
    #[error("{me} has had no connection to {neighbour}, which has the model's part next to its own, for {waited:?}")]
    Apart { me: Id, neighbour: Id, waited: Duration },
    #[error("{me} is at step {at} and can't get to {version}")]
    Behind { me: Id, at: u64, version: u64 },
    #[error("{0}")]
    Other(String),
}

impl Stuck {
    /// Exit code of the job.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::Diverged(_) => exit::DIVERGED,
            Self::Misfit { .. } | Self::NoTurn(_) | Self::Behind { .. } | Self::Other(_) => exit::ERROR,
            Self::Apart { .. } => exit::WORKER_LOST,
        }
    }
}
