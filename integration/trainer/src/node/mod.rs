//! The work of a process in its role, under the chief's orders. The chief's process has a node too, with the same
//! messages as all others.

mod pipeline;
mod replica;
mod role;
mod server;
mod worker;

use std::rc::Rc;

use anyhow::{Context, Result};

use crate::{
    args::Mode,
    id::{Id, Role},
    layout::Layout,
    settings::Settings,
    store::Store,
};
use replica::Replica;
pub(crate) use role::{Node, Seat, Stuck};
use server::Server;
use worker::Worker;

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
