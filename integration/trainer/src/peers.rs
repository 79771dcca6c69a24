//! The other processes of the job, from the feed's assignment or the command line.

use std::collections::BTreeMap;

use anyhow::{Result, anyhow};
use trainmaster_proto::v1::{Assignment, Peer, Slot, SlotRole};

use crate::{
    args::SlotArgs,
    id::{Id, Role},
    net::Place,
};

/// All slots of an assignment with their locations.
pub(crate) fn places(assignment: &Assignment) -> BTreeMap<Id, Place> {
    let place = |peer: &Peer| {
        let slot = peer.slot.as_ref()?;
        let id = Id { role: slot.role().into(), index: slot.index };
        Some((id, Place { address: peer.address.clone(), machine: slot.server.clone() }))
    };
    assignment.peers.iter().filter_map(place).collect()
}

/// The assignment of `--peers`.
///
/// # Errors
///
/// An entry isn't `server<index>=<address>` or `worker<index>=<address>`.
pub(crate) fn assignment(slot: &SlotArgs) -> Result<Assignment> {
    let peers = slot.peers.iter().map(|entry| {
        let parsed = entry.split_once('=').and_then(|(name, address)| Some((slot_id(name)?, address)));
        let (id, address) = parsed.ok_or_else(|| {
            anyhow!("--peers has \"{entry}\"; entries are server0=host:port or worker0=host:port, separated by commas")
        })?;
        let slot = Slot { role: SlotRole::from(id.role).into(), index: id.index, ..Slot::default() };
        Ok(Peer { slot: Some(slot), address: address.to_owned() })
    });
    Ok(Assignment {
        job: slot.job,
        incarnation: slot.incarnation,
        revision: slot.revision,
        peers: peers.collect::<Result<_>>()?,
        ..Assignment::default()
    })
}

fn slot_id(name: &str) -> Option<Id> {
    let (role, index) = match (name.strip_prefix("server"), name.strip_prefix("worker")) {
        (Some(index), _) => (Role::Server, index),
        (_, Some(index)) => (Role::Worker, index),
        _ => return None,
    };
    Some(Id { role, index: index.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_have_names() {
        assert_eq!(slot_id("server0"), Some(Id::server(0)));
        assert_eq!(slot_id("worker12"), Some(Id::worker(12)));
        assert_eq!(slot_id("worker"), None);
        assert_eq!(slot_id("ps1"), None);
    }
}
