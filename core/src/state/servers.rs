//! Arrival, change and departure of servers.

use std::{
    collections::{BTreeMap, BTreeSet, BinaryHeap},
    sync::Arc,
};

use super::{Change, State, roster::MOST_ABSENT};
use crate::{
    decision::{Allocation, DeviceShare, Slot, Verdict},
    event::EventError,
    ids::{JobId, ManagerId, ResourceId, ServerId},
    job::Job,
    reason::Reason,
    resources::{Amounts, GPU, ResourceTypes, counted_as, is_gpu},
    server::{Hosts, Place, Server, ServerSpec, Usage, devices_match},
    text::{is_unseen, shown},
};

/// Maximum number of present servers: six times the size of the largest clusters.
const MOST: usize = 100_000;
/// Number of absent servers that are kept, in addition to those that jobs still refer to. The ids of the others are
/// given to new servers.
const STAY: usize = MOST_ABSENT / 2;
/// Maximum bytes of a server's name, and of a label and its value.
const LONGEST_NAME: usize = 256;
const LONGEST_LABEL: usize = 1024;
/// Maximum number of labels of a server.
const MOST_LABELS: usize = 256;
/// Maximum bytes of a resource's name.
const LONGEST_RESOURCE: usize = 64;

impl State {
    pub(super) fn set_server(&mut self, manager: &str, spec: &ServerSpec) -> Result<(), EventError> {
        let fail = |problem: String| Err(EventError::Server { server: shown(&spec.name, 64).into(), problem });
        if let Err(problem) = check_texts(spec) {
            return fail(problem);
        }
        check_amounts(&spec.name, &spec.capacity)?;
        let strange = |kind: &&String| !is_gpu(kind) || kind.contains(['|', '*']);
        if let Some(kind) = spec.devices.iter().find(strange) {
            return fail(format!("device {kind:?} must be \"gpu\" or \"gpu:<type>\", without | and *"));
        }
        if spec.devices.len() > usize::from(u16::MAX) {
            return fail(format!("{} devices must be at most 65535", spec.devices.len()));
        }
        let hosts = match Hosts::of(&spec.labels) {
            Ok(hosts) => hosts,
            Err(problem) => return fail(problem),
        };
        let place = match Place::of(&spec.labels) {
            Ok(place) => Arc::new(place),
            Err(problem) => return fail(problem),
        };
        let known = self.roster.server_ids.get(spec.name.as_str()).copied();
        let there = self.servers.len() - self.roster.absent.len() - self.roster.free.len();
        if there >= MOST && known.is_none_or(|id| !self.server(id).present) {
            return fail(format!("{there} servers are there, and that is the most"));
        }
        let types = used(&spec.capacity).chain(spec.devices.iter().map(String::as_str));
        self.make_room_for_types(types, ResourceTypes::MOST)?;
        let manager = self.roster.manager(manager, &self.servers);
        let resources = Arc::make_mut(&mut self.resources);
        let mut capacity = resources.demand(&spec.capacity);
        let devices: Arc<[_]> = spec.devices.iter().map(|kind| resources.intern(kind)).collect();
        for &kind in &*devices {
            capacity.add(GPU, 1000);
            if kind != GPU {
                capacity.add(kind, 1000);
            }
        }
        let id = known.unwrap_or_else(|| self.new_server(&spec.name, manager));
        if let Some((servers, _)) = &mut self.roster.managers[manager.0 as usize].sync {
            servers.insert(id);
        }
        let oversubscribe = self.settings.shape.oversubscribe;
        let change = |server: &mut Server| {
            server.manager = manager;
            server.capacity = capacity;
            server.labels = Arc::new(spec.labels.clone());
            server.hosts = hosts;
            server.place = place;
            server.oversubscribe(oversubscribe);
            server.draining = spec.draining;
            server.present = true;
            server.left = None;
            if server.devices != devices {
                server.measured = None;
            }
            server.devices = devices.clone();
        };
        if let Some(turn) = self.server(id).left {
            self.roster.absent.remove(&turn);
        }
        if known.is_none() || self.server(id).devices == devices {
            self.change_server(id, change);
            return Ok(());
        }
        match self.server(id).lends_devices() {
            true => self.with_other_devices(id, |state| state.change_server(id, change)),
            false => self.change_server(id, change),
        }
        if self.server(id).planned != Usage::default() {
            self.evict_from_exchanged_devices(id);
        }
        Ok(())
    }

    /// Adds an absent server, with the next id or the id of a forgotten server.
    fn new_server(&mut self, name: &str, manager: ManagerId) -> ServerId {
        let free = self.forget_server();
        let id = free.unwrap_or(ServerId(self.servers.len() as u32));
        let turn = self.roster.absent.get_max().map_or(0, |(last, _)| last + 1);
        let server = Arc::new(Server {
            id,
            name: name.into(),
            manager,
            capacity: Amounts::default(),
            devices: Arc::new([]),
            labels: Arc::default(),
            hosts: Hosts::default(),
            place: Arc::default(),
            draining: false,
            present: false,
            left: Some(turn),
            left_at: self.now,
            foreign: Usage::default(),
            planned: Usage::default(),
            charged: Usage::default(),
            measured: None,
            bookable: self.settings.shape.oversubscribe,
        });
        match free {
            Some(id) => self.servers[id.index()] = server,
            None => self.servers.push_back(server),
        }
        self.roster.absent.insert(turn, id);
        self.roster.server_ids.insert(name.into(), id);
        id
    }

    /// The id of a forgotten server, if too many absent ones are kept. O(1), and O(slots of all jobs) once for many new
    /// servers.
    fn forget_server(&mut self) -> Option<ServerId> {
        if self.roster.free.is_empty() && self.roster.absent.len() >= self.roster.forget_at {
            self.forget_servers();
        }
        self.roster.free.pop_front()
    }

    fn forget_servers(&mut self) {
        let mut held = BTreeSet::new();
        for job in self.jobs.values().chain(self.leaving.values()) {
            let allocations = [job.issued.allocation.as_ref(), job.seen.allocation.as_ref(), job.verdict.allocation()];
            held.extend(allocations.into_iter().flatten().flat_map(|has| has.slots()).map(|slot| slot.server));
            held.extend(job.verdict.reason().into_iter().chain(&job.issued.reason).filter_map(Reason::server));
        }
        // By manager, the most recently absent server first.
        let mut gone: BTreeMap<ManagerId, Vec<(u64, ServerId)>> = BTreeMap::new();
        for (turn, id) in self.roster.absent.iter().rev().filter(|(_, id)| !held.contains(id)) {
            gone.entry(self.server(*id).manager).or_default().push((*turn, *id));
        }
        // Servers of the manager with most absent ones are forgotten first, so that no manager evicts the servers of
        // others.
        let mut most: BinaryHeap<_> = gone.iter().map(|(manager, of)| (of.len(), *manager)).collect();
        for _ in STAY..self.roster.absent.len() {
            let Some((count, manager)) = most.pop() else { break };
            let Some((turn, id)) = gone.get_mut(&manager).and_then(Vec::pop) else { break };
            most.push((count - 1, manager));
            self.roster.absent.remove(&turn);
            let name = self.server(id).name.clone();
            self.roster.server_ids.remove(&name);
            let server = self.server_mut(id);
            (server.capacity, server.devices, server.labels) = Default::default();
            self.roster.free.push_back(id);
        }
        // Servers that can't be forgotten aren't checked again for each new server.
        self.roster.forget_at = MOST_ABSENT.max(self.roster.absent.len() + STAY);
    }

    /// Slots are charged by the kind of their devices. If the devices change, the sums of the jobs on them are
    /// recomputed. O(slots of all jobs).
    fn with_other_devices(&mut self, id: ServerId, change: impl FnOnce(&mut Self)) {
        let is_there = |allocation: Option<&Arc<Allocation>>| {
            allocation.is_some_and(|allocation| allocation.slots().iter().any(|slot| slot.server == id))
        };
        let planned = self.jobs.values().filter_map(|job| Some((job, job.verdict.allocation()?)));
        let planned: Vec<(Arc<Job>, Arc<Allocation>)> = planned
            .filter(|(_, allocation)| is_there(Some(allocation)))
            .map(|(job, allocation)| (job.clone(), allocation.clone()))
            .collect();
        let all = self.jobs.values().chain(self.leaving.values());
        let all: Vec<Arc<Job>> = all
            .filter(|job| is_there(job.issued.allocation.as_ref()) || is_there(job.seen.allocation.as_ref()))
            .cloned()
            .collect();
        for (job, allocation) in &planned {
            self.add_planned(job, allocation, -1);
        }
        for job in &all {
            self.move_charge(&self.charge(job), &[]);
        }
        change(self);
        for (job, allocation) in &planned {
            self.add_planned(job, allocation, 1);
        }
        for job in &all {
            self.move_charge(&[], &self.charge(job));
        }
    }

    /// Evicts the plans that name devices which were exchanged.
    fn evict_from_exchanged_devices(&mut self, id: ServerId) {
        let server = self.server(id).clone();
        let fits = |job: &Job, slot: &Slot| {
            slot.server != id || devices_match(&server.devices, job.demand(slot.role), &slot.devices)
        };
        let void: Vec<(JobId, ResourceId, i64)> = self
            .jobs
            .values()
            .filter_map(|job| {
                let slot = job.verdict.allocation()?.slots().iter().find(|slot| !fits(job, slot))?;
                let (resource, missing) = job.demand(slot.role).devices?;
                Some((job.id, resource, missing.into()))
            })
            .collect();
        for (job, resource, missing) in void {
            self.set_verdict(job, Verdict::Wait(Reason::Evicted { server: id, resource, missing }));
            self.note(Change::Dropped(job));
        }
    }

    /// Changes a server's properties, and updates the cluster's totals.
    pub(super) fn change_server(&mut self, id: ServerId, change: impl FnOnce(&mut Server)) {
        let place = |server: &Server| (server.present, server.labels.clone());
        let sums = |server: &Server| {
            (server.usable(), if server.present { server.capacity.clone() } else { Amounts::default() })
        };
        let (usable, capacity) = sums(self.server(id));
        self.usable -= &usable;
        self.capacity -= &capacity;
        let before = place(self.server(id));
        change(self.server_mut(id));
        if place(self.server(id)) != before {
            self.domains = None;
        }
        let (usable, capacity) = sums(self.server(id));
        self.usable += &usable;
        self.capacity += &capacity;
        self.pending.unpark([id]);
        self.pending.unsettled.insert(id);
        self.moved += 1;
        self.note_changed_server(id);
    }

    /// Records that servers have left. Slots on a lost server are gone without a further message. O(slots of all jobs),
    /// for any number of servers.
    pub(super) fn servers_left(&mut self, lost: &BTreeSet<ServerId>) {
        let now = self.now;
        for id in lost {
            let turn = self.roster.absent.get_max().map_or(0, |(last, _)| last + 1);
            self.roster.absent.insert(turn, *id);
            self.change_server(*id, |server| {
                server.present = false;
                server.left = Some(turn);
                server.left_at = now;
                server.foreign = Usage::default();
                server.measured = None;
            });
        }
        let first_lost = |allocation: Option<&Arc<Allocation>>| {
            let slots = allocation.into_iter().flat_map(|allocation| allocation.slots());
            slots.map(|slot| slot.server).filter(|server| lost.contains(server)).min()
        };
        let without = |allocation: &Arc<Allocation>| {
            let kept = allocation.keeping(|slot| !lost.contains(&slot.server));
            (!kept.shape().is_empty()).then(|| Arc::new(kept))
        };
        let hit: Vec<JobId> = self
            .jobs
            .values()
            .chain(self.leaving.values())
            .filter(|job| {
                [job.issued.allocation.as_ref(), job.seen.allocation.as_ref(), job.verdict.allocation()]
                    .into_iter()
                    .any(|allocation| first_lost(allocation).is_some())
            })
            .map(|job| job.id)
            .collect();
        for job in hit {
            self.recharge(job, |job| {
                if first_lost(job.issued.allocation.as_ref()).is_some() {
                    job.issue(job.issued.allocation.as_ref().and_then(without), now);
                    // The remaining slots can't run alone.
                    job.revoke(now);
                }
                job.seen.allocation = job.seen.allocation.as_ref().and_then(without);
            });
            if let Some(job) = self.jobs.get(&job) {
                let (id, planned_on) = (job.id, first_lost(job.verdict.allocation()));
                self.pending.unissued.insert(id);
                self.outbox.unsent.insert(id);
                if let Some(server) = planned_on {
                    self.set_verdict(id, Verdict::Wait(Reason::ServerLost { server }));
                    self.note(Change::Dropped(id));
                }
            }
            self.forget_if_gone(job);
        }
    }
}

/// The names in a table whose amounts aren't zero.
pub(super) fn used(amounts: &BTreeMap<String, i64>) -> impl Iterator<Item = &str> + Clone {
    amounts.iter().filter(|(_, amount)| **amount != 0).map(|(name, _)| counted_as(name))
}

fn check_texts(spec: &ServerSpec) -> Result<(), String> {
    let plain = |what: &str, text: &str, least: usize, most: usize| {
        if (least..=most).contains(&text.len()) && !text.chars().any(is_unseen) {
            return Ok(());
        }
        let text = shown(text, most.min(64));
        Err(format!("{what} {text:?} must have {least} to {most} bytes, without control characters"))
    };
    plain("name", &spec.name, 1, LONGEST_NAME)?;
    if spec.labels.len() > MOST_LABELS {
        return Err(format!("{} labels must be at most {MOST_LABELS}", spec.labels.len()));
    }
    for (label, value) in &spec.labels {
        plain("label", label, 0, LONGEST_LABEL)?;
        plain("a label's value", value, 0, LONGEST_LABEL)?;
    }
    for kind in &spec.devices {
        plain("device", kind, 1, LONGEST_RESOURCE)?;
    }
    Ok(())
}

pub(super) fn check_amounts(server: &str, amounts: &BTreeMap<String, i64>) -> Result<(), EventError> {
    let strange = |name: &&String| name.is_empty() || name.len() > LONGEST_RESOURCE || name.chars().any(is_unseen);
    if let Some(name) = amounts.keys().find(strange) {
        let name = shown(name, LONGEST_RESOURCE);
        let problem = format!("resource {name:?} must have 1 to {LONGEST_RESOURCE} bytes, without control characters");
        return Err(EventError::Server { server: server.into(), problem });
    }
    if let Some(name) = amounts.keys().find(|name| is_gpu(name) && name.contains(['|', '*'])) {
        let problem = format!("resource {name:?} must be \"gpu\" or \"gpu:<type>\", without | and *");
        return Err(EventError::Server { server: server.into(), problem });
    }
    let wrong = amounts.iter().find(|(_, value)| !(0..=1_000_000_000_000).contains(*value));
    wrong.map_or(Ok(()), |(name, value)| {
        let problem = format!("{name} = {value} must be from 0 to 10^12 sub-units");
        Err(EventError::Server { server: server.into(), problem })
    })
}

pub(super) fn check_shares(server: &str, shares: &[DeviceShare]) -> Result<(), EventError> {
    let wrong = shares.iter().find(|share| share.milli > 1000);
    wrong.map_or(Ok(()), |share| {
        let problem = format!("{} thousandths of device {} must be at most 1000", share.milli, share.device);
        Err(EventError::Server { server: server.into(), problem })
    })
}
