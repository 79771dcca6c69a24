//! Managers' streams: what each has reported, the messages it got, and its pending ones.

use std::collections::{BTreeMap, BTreeSet};

use trainmaster_core::{JobId, ServerSpec};
use trainmaster_feed::JobAssignment;
use trainmaster_proto::v1;

use crate::session::Outbox;

/// An attached manager.
pub(super) struct Session {
    pub(super) stream: u64,
    pub(super) outbox: Outbox,
    /// Jobs that were sent to it.
    pub(super) told: BTreeSet<u64>,
}

/// A manager's stream.
#[derive(Debug)]
pub(super) struct OpenStream {
    pub(super) id: u64,
    /// Whether it may take servers over from an absent manager: an administrator, or an adapter in the daemon.
    pub(super) trusted: bool,
    /// Whether its submissions may name their external origin.
    pub(super) takes_submissions: bool,
    /// Its reports since its snapshot began.
    pub(super) brought: Brought,
}

/// The reports of a manager with its own token. Their share is limited, so that others have room.
#[derive(Debug, Default)]
pub(super) struct Brought {
    servers: BTreeSet<String>,
    resources: BTreeSet<String>,
    slots: BTreeMap<JobId, usize>,
    all_slots: usize,
}

/// For 100,000 servers.
const SERVERS: usize = 32_768;
/// For 256 names.
const RESOURCES: usize = 64;
/// Maximum number of observed slots: twice as many as the largest clusters run.
const SLOTS: usize = 250_000;

impl Brought {
    /// Counts a server.
    ///
    /// # Errors
    /// The share is exceeded.
    pub(super) fn server(&mut self, spec: &ServerSpec) -> Result<(), String> {
        let is_new = !self.servers.contains(&spec.name);
        if is_new && self.servers.len() >= SERVERS {
            return Err(format!("{SERVERS} servers are the most that one manager may have"));
        }
        self.resources(spec.capacity.keys().chain(&spec.devices))?;
        if is_new {
            self.servers.insert(spec.name.clone());
        }
        Ok(())
    }

    /// Counts names of resources.
    ///
    /// # Errors
    /// As [`Self::server`].
    pub(super) fn resources<'a>(&mut self, names: impl Iterator<Item = &'a String>) -> Result<(), String> {
        let new: BTreeSet<&String> = names.filter(|name| !self.resources.contains(*name)).collect();
        if self.resources.len() + new.len() > RESOURCES {
            return Err(format!("{RESOURCES} resources are the most that one manager may name"));
        }
        let new: Vec<String> = new.into_iter().cloned().collect();
        self.resources.extend(new);
        Ok(())
    }

    pub(super) fn without(&mut self, server: &str) {
        self.servers.remove(server);
    }

    /// Counts the slots of a job.
    ///
    /// # Errors
    /// As [`Self::server`].
    pub(super) fn slots(&mut self, job: JobId, slots: usize) -> Result<(), String> {
        let others = self.all_slots - self.slots.get(&job).copied().unwrap_or_default();
        if others + slots > SLOTS {
            return Err(format!("{SLOTS} slots are the most that one manager may see"));
        }
        self.all_slots = others + slots;
        self.slots.insert(job, slots);
        Ok(())
    }

    /// Removes a job's slots from the count.
    pub(super) fn gives_up(&mut self, job: JobId) {
        self.all_slots -= self.slots.remove(&job).unwrap_or_default();
    }
}

/// A manager that waits for its first plan after its snapshot.
pub(super) struct Attaching {
    pub(super) manager: String,
    pub(super) stream: u64,
    pub(super) outbox: Outbox,
}

/// Messages that wait for the disk.
pub(super) struct News {
    pub(super) term: u64,
    pub(super) decision: u64,
    pub(super) plans: Vec<v1::JobPlan>,
    pub(super) assignments: Vec<(JobId, JobAssignment)>,
    pub(super) attached: Vec<Attaching>,
    /// Managers that get the full plan, and the full plan.
    pub(super) full: Vec<String>,
    pub(super) all: Vec<v1::JobPlan>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manager_brings_no_more_than_its_share() {
        let mut brought = Brought::default();
        let server = |name: String, resource: &str| ServerSpec {
            name,
            capacity: [("cpu".to_owned(), 1000), (resource.to_owned(), 1)].into(),
            ..ServerSpec::default()
        };
        for at in 0..RESOURCES - 1 {
            brought.server(&server("one".into(), &format!("r{at}"))).unwrap();
        }
        assert!(brought.server(&server("one".into(), "one-more")).unwrap_err().contains("64 resources"));
        assert!(brought.resources([&"one-more".to_owned()].into_iter()).is_err());
        for at in 1..SERVERS {
            brought.server(&server(format!("s{at}"), "r0")).unwrap();
        }
        assert!(brought.server(&server("one-more".into(), "r0")).unwrap_err().contains("32768 servers"));
        brought.server(&server("one".into(), "r0")).unwrap();
        brought.without("one");
        brought.server(&server("one-more".into(), "r0")).unwrap();
        brought.slots(JobId(1), SLOTS).unwrap();
        assert!(brought.slots(JobId(2), 1).unwrap_err().contains("250000 slots"));
        brought.gives_up(JobId(1));
        brought.slots(JobId(2), SLOTS).unwrap();
    }
}
