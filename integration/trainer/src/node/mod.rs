//! The work of a process in its role, under the chief's orders. The chief's process has a node too, with the same
//! messages as all others.

mod pipeline;
mod replica;
mod server;
mod stuck;
mod worker;

use std::{collections::BTreeSet, rc::Rc, time::Instant};

use anyhow::{Context, Result};

use crate::{
    args::Mode,
    chunks::Orders,
    holder::Holder,
    id::{Id, Role},
    layout::Layout,
    net::Net,
    settings::Settings,
    store::Store,
    wire::Message,
};
use replica::Replica;
use server::Server;
pub(crate) use stuck::Stuck;
use worker::Worker;

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
    fn tell_ready(self, ready: bool, net: &mut Net) {
        if net.is_up(self.chief) {
            net.send(self.chief, if ready { Message::Ready { revision: self.revision } } else { Message::Unready });
        }
    }

    /// Sends the chief what it asked for at a version.
    fn answer(
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

    fn reach(self, holder: &mut Holder, version: u64) -> Result<(), Stuck> {
        let reached = holder.reach(version);
        if reached { Ok(()) } else { Err(Stuck::Behind { me: self.me, at: holder.version, version }) }
    }

    fn unexpected(self, from: Id, message: &Message) -> Stuck {
        Stuck::Other(format!("{} can't deal with {message:?} from {from}", self.me))
    }
}

/// The role of this process. `servers`: the job's parameter servers, ascending; empty for all-reduce. `store`: a
/// worker's storage for data chunks.
pub(crate) fn new(settings: &Rc<Settings>, seat: Seat, servers: &[Id], store: Option<Store>) -> Result<Box<dyn Node>> {
    if settings.mode == Mode::Allreduce {
        return Ok(Box::new(Replica::new(settings, seat)));
    }
    let layout = Layout::new(&settings.network.blocks(), servers.len())?;
    Ok(match seat.me.role {
        Role::Server => {
            let place = servers.iter().position(|id| *id == seat.me);
            let place = place.context("this parameter server isn't in its job")?;
            Box::new(Server::new(settings, seat, &layout, place))
        }
        Role::Worker => Box::new(Worker::new(settings, seat, servers.to_vec(), &layout, store)),
    })
}
