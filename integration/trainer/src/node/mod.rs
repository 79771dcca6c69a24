//! The work of a process in its role, under the chief's orders. The chief's process has a node too, with the same
//! messages as all others.

mod pipeline;
mod replica;
mod server;
mod worker;

use std::{collections::BTreeSet, time::Instant};

use anyhow::{Context, Result};

use crate::{
    args::Mode,
    chunks::Orders,
    id::{Id, Role},
    layout::Layout,
    net::Net,
    settings::Settings,
    store::Store,
    wire::Message,
};
use replica::Replica;
use server::Server;
use worker::Worker;

/// A process's role in the job.
pub(crate) enum Node {
    Server(Box<Server>),
    Worker(Box<Worker>),
    Replica(Box<Replica>),
}

impl Node {
    /// `revision`: the one in which this process joined. `servers`: the job's parameter servers, ascending; empty for
    /// all-reduce. `store`: a worker's storage for data chunks.
    pub(crate) fn new(
        settings: &Settings,
        me: Id,
        chief: Id,
        revision: u32,
        servers: &[Id],
        store: Option<Store>,
    ) -> Result<Self> {
        if settings.mode == Mode::Allreduce {
            return Ok(Self::Replica(Box::new(Replica::new(settings, me, chief, revision))));
        }
        let layout = Layout::new(&settings.network.blocks(), servers.len())?;
        Ok(match me.role {
            Role::Server => {
                let place =
                    servers.iter().position(|id| *id == me).context("this parameter server isn't in its job")?;
                Self::Server(Box::new(Server::new(settings, me, chief, revision, &layout, place)))
            }
            Role::Worker => {
                Self::Worker(Box::new(Worker::new(settings, me, chief, revision, servers.to_vec(), &layout, store)))
            }
        })
    }

    /// The peers to which it needs a connection, in either direction.
    pub(crate) fn wants(&self) -> BTreeSet<Id> {
        match self {
            Self::Server(node) => BTreeSet::from([node.chief()]),
            Self::Worker(node) => node.wants().collect(),
            Self::Replica(node) => node.wants().collect(),
        }
    }

    /// Sets the data chunks that this process stores and trains in a revision.
    pub(crate) fn direct(&mut self, orders: &Orders, net: &mut Net) {
        if let Self::Worker(node) = self {
            node.direct(orders, net);
        }
    }

    pub(crate) fn up(&mut self, peer: Id, net: &mut Net) {
        match self {
            Self::Server(node) => node.up(peer, net),
            Self::Worker(node) => node.changed(net),
            Self::Replica(node) => node.changed(net),
        }
    }

    pub(crate) fn down(&mut self, peer: Id, net: &mut Net) {
        match self {
            Self::Server(node) => node.down(peer),
            Self::Worker(node) => node.changed(net),
            Self::Replica(node) => node.down(peer, net),
        }
    }

    pub(crate) fn message(&mut self, from: Id, message: Message, net: &mut Net) {
        match self {
            Self::Server(node) => node.message(from, message, net),
            Self::Worker(node) => node.message(from, message, net),
            Self::Replica(node) => node.message(from, message, net),
        }
    }

    /// Time of its next own action.
    pub(crate) fn due(&self) -> Option<Instant> {
        match self {
            Self::Server(node) => node.due(),
            Self::Worker(node) => node.due(),
            Self::Replica(node) => node.due(),
        }
    }

    /// Performs due actions.
    pub(crate) fn tick(&mut self, net: &mut Net) {
        match self {
            Self::Server(node) => node.tick(net),
            Self::Worker(node) => node.tick(net),
            Self::Replica(node) => node.tick(net),
        }
    }
}
