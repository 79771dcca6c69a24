//! What all roles have in common.

use std::{
    collections::BTreeSet,
    io,
    time::{Duration, Instant},
};

use crate::{chunks::Orders, exit, fixed::Diverged, holder::Holder, id::Id, net::Net, wire::Message};

/// A process's role in the job.
pub(crate) trait Node {
    /// The peers to which it needs a connection, in either direction.
    fn wants(&self) -> BTreeSet<Id>;

    /// Sets the data chunks that this process stores and trains in a revision.
    fn direct(&mut self, _orders: &Orders, _net: &mut Net) -> Result<(), Stuck> {
        Ok(())
    }

    fn up(&mut self, peer: Id, net: &mut Net);

    fn down(&mut self, peer: Id, net: &mut Net);

    fn message(&mut self, from: Id, message: Message, net: &mut Net) -> Result<(), Stuck>;

    /// Time of its next own action.
    fn due(&self) -> Option<Instant>;

    /// Performs due actions.
    fn tick(&mut self, net: &mut Net) -> Result<(), Stuck>;
}

/// This process's place in the job.
#[derive(Clone, Copy)]
pub(crate) struct Seat {
    pub(crate) me: Id,
    pub(crate) chief: Id,
    /// The revision in which this process joined.
    pub(crate) revision: u32,
}

impl Seat {
    /// Tells the chief whether this process can take part, if it is connected.
    pub(super) fn tell_ready(self, ready: bool, net: &mut Net) {
        if net.is_up(self.chief) {
            net.send(self.chief, if ready { Message::Ready { revision: self.revision } } else { Message::Unready });
        }
    }

    /// Sends the chief what it asked for at a version.
    pub(super) fn answer(
        self,
        holder: &mut Holder,
        version: u64,
        answer: fn(&Holder, u64) -> Message,
        net: &mut Net,
    ) -> Result<(), Stuck> {
        self.reach(holder, version)?;
        net.send(self.chief, answer(holder, version));
        Ok(())
    }

    pub(super) fn reach(self, holder: &mut Holder, version: u64) -> Result<(), Stuck> {
        let reached = holder.reach(version);
        if reached { Ok(()) } else { Err(Stuck::Behind { me: self.me, at: holder.state.version, version }) }
    }

    pub(super) fn unexpected(self, from: Id, message: &Message) -> Stuck {
        Stuck::Other(format!("{} can't deal with {message:?} from {from}", self.me))
    }
}

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
