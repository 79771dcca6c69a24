//! Converts observations of Slurm to events.

use std::collections::{BTreeMap, BTreeSet};

use trainmaster_core::{End, Event, Incarnation, ObservedSlot, Phase, Role, job::ExternalId};
use trainmaster_manager::Action as Wanted;

use super::{
    super::{
        comment::{Given, Part, Tag},
        gres::{parse_gres, parse_tres, total},
        hostlist,
        node::{self, Own, partitions_by_node},
        seen::{Ending, Job, JobPhase, Node, NodeUse, Observation},
    },
    Ordered, Servers, Tracked, Translator,
    spec::{described, spec},
};

/// Seconds within which a newly started slurmctld gets answers from its nodes, if at all.
const SETTLING: i64 = 15;

impl Translator {
    /// Returns the changes since the last observation, for the core. A job's state is reported once the plan has its
    /// number.
    pub fn observe(&mut self, seen: &Observation) -> Vec<Event> {
        self.now = seen.at;
        let begun = *self.begun.get_or_insert(seen.at);
        let silent = || seen.nodes.iter().any(|node| node.usable() == NodeUse::Silent);
        if !self.synced && (0..SETTLING).contains(&(seen.at - begun)) && silent() {
            // slurmctld was just started and is asking its nodes for their jobs. The nodes aren't gone.
            return Vec::new();
        }
        let mut events = std::mem::take(&mut self.events);
        let first = !std::mem::replace(&mut self.synced, true);
        let manager = self.config.manager.clone();
        if first {
            events.push(Event::SyncBegin { manager: manager.clone() });
        }
        let listed: BTreeSet<u32> = seen.jobs.iter().map(|job| job.id).collect();
        let defaults = seen.partitions.iter().map(|partition| (partition.name.clone(), partition.default_memory));
        self.defaults = defaults.collect();
        self.track(seen, first);
        self.servers(seen, &mut events);
        for (id, job) in &mut self.jobs {
            if let Some(ordered) = self.orders.get_mut(id) {
                job.tell(ordered, seen.at, listed.contains(id), first, &mut events);
            }
        }
        if first {
            // This ends jobs that ended while no agent ran.
            events.push(Event::SyncEnd { manager, owns_queue: true });
        }
        self.offer(seen, &mut events);
        self.jobs.retain(|id, _| listed.contains(id));
        let jobs = &self.jobs;
        self.orders.retain(|id, ordered| jobs.contains_key(id) || !ordered.is_over());
        let orders = &self.orders;
        self.by_core.retain(|job, id| orders.get(id).is_some_and(|ordered| ordered.job == *job));
        self.by_part.retain(|_, id| jobs.contains_key(id));
        events
    }

    fn track(&mut self, seen: &Observation, first: bool) {
        let component = |job: &Job| job.component.filter(|(_, offset)| *offset == 1);
        let of_servers = seen.jobs.iter().filter_map(|job| Some((component(job)?.0, job)));
        let of_servers: BTreeMap<u32, &Job> = of_servers.collect();
        for job in &seen.jobs {
            let servers = of_servers.get(&job.id).copied();
            if let Some(tracked) = self.jobs.get_mut(&job.id) {
                tracked.follow(job, servers, seen.at);
            } else if let Some(tag) = Tag::read(&job.comment)
                && !matches!(job.phase(), JobPhase::Over(_))
            {
                let servers = servers.and_then(|servers| Some((servers, Part::read(&servers.comment)?)));
                // One component alone is no job.
                if job.component.is_none() || servers.is_some() {
                    self.by_part.extend(servers.iter().map(|(servers, _)| (servers.id, job.id)));
                    self.jobs.insert(job.id, Tracked::new(job, tag, servers, seen.at, first));
                }
            }
        }
    }

    fn servers(&mut self, seen: &Observation, events: &mut Vec<Event>) {
        let partitions = partitions_by_node(&seen.partitions);
        let mut own: BTreeMap<&str, Own> = BTreeMap::new();
        let mut expected = BTreeSet::new();
        for (id, job) in &self.jobs {
            if job.seen.phase() == JobPhase::Pending {
                expected.extend(job.slots().iter().map(|slot| slot.server.as_str()).filter(|_| job.let_go.is_some()));
            }
            // The core doesn't charge a job that it doesn't know, so its use is foreign use.
            for (name, part) in job.own.iter().filter(|_| self.orders.contains_key(id)) {
                let sum = own.entry(name).or_default();
                sum.cpus += part.cpus;
                sum.memory += part.memory;
                part.gres.iter().for_each(|(kind, count)| *sum.gres.entry(kind.clone()).or_insert(0) += count);
            }
        }
        let (none, nothing) = (BTreeSet::new(), Own::default());
        let mut there = BTreeSet::new();
        for node in &seen.nodes {
            let partitions = partitions.get(&node.name).unwrap_or(&none);
            let expects = expected.contains(node.name.as_str());
            if node.usable() == NodeUse::Silent && self.servers.contains_key(&node.name) {
                // Its state is unchanged until Slurm considers it down.
                there.insert(node.name.clone());
                continue;
            }
            let Some(server) = node::server(node, partitions, expects, &self.config) else { continue };
            there.insert(node.name.clone());
            let foreign = node::foreign(node, own.get(node.name.as_str()).unwrap_or(&nothing));
            let known = self.servers.get(&node.name);
            if known.is_none_or(|(known, _)| *known != server) {
                events.push(Event::ServerSet { manager: self.config.manager.clone(), server: server.clone() });
            }
            let told = known.map(|(_, foreign)| foreign);
            if told.map_or(!foreign.is_empty(), |told| *told != foreign) || (known.is_none() && told.is_none()) {
                let (server, amounts) = (node.name.clone(), foreign.clone());
                events.push(Event::ForeignUse { server, amounts, devices: Vec::new() });
            }
            self.servers.insert(node.name.clone(), (server, foreign));
        }
        let gone: Vec<String> = self.servers.keys().filter(|name| !there.contains(*name)).cloned().collect();
        if !gone.is_empty() {
            self.servers.retain(|name, _| there.contains(name));
            self.loads.retain(|name, _| there.contains(name));
            events.push(Event::ServersLeft { names: gone });
        }
        if self.config.measure {
            self.measure(&seen.nodes, events);
        }
    }

    /// Reports loads that changed by a twentieth of a node's CPUs. One that is no longer known is reported as none.
    fn measure(&mut self, nodes: &[Node], events: &mut Vec<Event>) {
        for node in nodes.iter().filter(|node| self.servers.contains_key(&node.name)) {
            let load = node::used(node);
            let changed = match (self.loads.get(&node.name), load) {
                (Some(told), Some(load)) => (told - load).abs() * 20 >= i64::from(node.cpus.max(1)) * 1000,
                (told, load) => told.is_some() || load.is_some(),
            };
            if !changed {
                continue;
            }
            let used = load.map(|load| ("cpu".to_owned(), load)).into_iter().collect();
            let (server, devices, slots) = (node.name.clone(), Vec::new(), Vec::new());
            events.push(Event::Utilisation { server, used, devices, slots });
            match load {
                Some(load) => _ = self.loads.insert(node.name.clone(), load),
                None => _ = self.loads.remove(&node.name),
            }
        }
    }

    /// Submits jobs to the core, but not before their owner's `--begin`, nor while they depend on other jobs.
    fn offer(&mut self, seen: &Observation, events: &mut Vec<Event>) {
        let threads = seen.nodes.iter().map(|node| node.threads).max().unwrap_or(1);
        for (id, job) in &mut self.jobs {
            let ready = match job.seen.phase() {
                JobPhase::Pending => job.tag.begin <= seen.at && !job.seen.waits_for_jobs(),
                JobPhase::Over(_) => false,
                _ => true,
            };
            if self.orders.contains_key(id) || !ready || job.offered_until > seen.at {
                continue;
            }
            job.offered_until = seen.at + (self.config.lease / 2).max(1);
            let servers = job.servers.as_ref().map(|servers| (&servers.seen, &servers.part));
            match spec(&job.seen, &job.tag, servers, &seen.partitions, threads) {
                Ok(spec) => {
                    job.told_held = Some(false);
                    events.push(Event::JobSubmitted {
                        spec: Box::new(spec),
                        external: Some(ExternalId { cluster: self.config.manager.clone(), native: id.to_string() }),
                        token_hash: Some(job.tag.token),
                    });
                }
                Err(why) => job.refused = Some(why),
            }
        }
    }
}

impl Tracked {
    fn new(job: &Job, tag: Tag, servers: Option<(&Job, Part)>, now: i64, first: bool) -> Self {
        let given = Given::read(&job.admin_comment);
        let of_servers = servers.as_ref().map(|(seen, _)| *seen);
        let servers = servers.map(|(_, part)| Servers { seen: Job::default(), part, update: None, refused: false });
        let mut tracked = Self {
            seen: Job::default(),
            tag,
            servers,
            offered_until: i64::MIN,
            refused: None,
            told: None,
            told_held: None,
            told_end: false,
            // A previous run may have been stopped just now. Before the first observation, the state is unknown.
            requeued: if first || given.is_some() { now } else { i64::MIN },
            given,
            leaving: None,
            said: None,
            own: BTreeMap::new(),
            let_go: None,
            done_since: None,
            called: false,
            retry: (0, 0),
            pending: None,
        };
        tracked.follow(job, of_servers, now);
        tracked
    }

    fn follow(&mut self, leader: &Job, of_servers: Option<&Job>, now: i64) {
        self.called = false;
        let others = |job: &Job, other: &Job| (&job.nodes, &job.tres) != (&other.nodes, &other.tres);
        let mut moved = false;
        if let (Some(servers), Some(seen)) = (&mut self.servers, of_servers) {
            moved = others(&servers.seen, seen);
            servers.seen.clone_from(seen);
        }
        let whole = self.servers.as_ref().map(|servers| leader.with(&servers.seen));
        let job = whole.as_ref().unwrap_or(leader);
        if job.phase() == JobPhase::Pending && self.seen.phase() != JobPhase::Pending {
            self.requeued = now;
        }
        match job.phase() {
            // The nodes of a leaving job become fewer. Its resources on each node are no longer reported.
            JobPhase::Leaving { .. } => {
                let nodes: BTreeSet<String> = hostlist::expand(&job.nodes).unwrap_or_default().into_iter().collect();
                self.own.retain(|name, _| nodes.contains(name));
            }
            JobPhase::Starting | JobPhase::Running => {
                self.let_go = None;
                if moved || others(&self.seen, job) || self.own.is_empty() {
                    self.own = held(leader);
                    self.own.extend(self.servers.iter().flat_map(|servers| held(&servers.seen)));
                }
            }
            JobPhase::Pending | JobPhase::Over(_) => {
                self.own.clear();
                self.leaving = None;
                // Its owner holds it, so it can't start until it is let go again.
                if job.is_held() {
                    self.let_go = None;
                }
            }
        }
        if self.seen != *job {
            self.seen = job.clone();
        }
    }

    /// Whether it is in the queue and can't start by itself.
    fn is_kept(&self, now: i64) -> bool {
        let leased = self.let_go.is_none() && self.seen.start > now;
        self.seen.phase() == JobPhase::Pending && (leased || self.seen.is_held())
    }

    /// Adds the events about this job that the core doesn't have yet.
    fn tell(&mut self, ordered: &mut Ordered, at: i64, listed: bool, first: bool, events: &mut Vec<Event>) {
        let id = ordered.job;
        let phase = self.seen.phase();
        let end = match phase {
            JobPhase::Over(Ending::Completed) => Some(End::Completed),
            JobPhase::Over(Ending::Cancelled) => Some(End::Cancelled),
            JobPhase::Over(Ending::Failed) => Some(End::Failed),
            JobPhase::Leaving { requeued: false } if !listed => Some(End::Completed),
            // Slurm forgot the job between two observations.
            JobPhase::Pending if !listed => Some(End::Cancelled),
            _ if !listed => Some(End::Completed),
            _ => None,
        };
        let (slots, doing) = match (end, phase) {
            (Some(_), _) | (None, JobPhase::Pending | JobPhase::Over(_)) => (Vec::new(), Phase::Stopped),
            (None, JobPhase::Starting) => (self.observed(), Phase::Starting),
            (None, JobPhase::Running) => (self.observed(), Phase::Running),
            (None, JobPhase::Leaving { .. }) => (self.observed(), Phase::Stopping),
        };
        let incarnation = Incarnation(self.given.as_ref().map_or(0, |given| given.incarnation));
        let now = (incarnation, slots, doing);
        // While it is handed back, the core keeps the slots for it.
        let frees = ordered.frees && !matches!(ordered.order.action, Wanted::Release(_)) && self.is_kept(at);
        let news = match end {
            // It may have started and ended between two observations. This event frees its issued slots.
            Some(_) if !self.told_end => true,
            // Slurm holds the job, so the slots that the core revoked are free.
            None if frees => true,
            // A job that never had slots isn't reported, except in a resync.
            _ => self.told.as_ref().map_or(first || !now.1.is_empty(), |told| *told != now),
        };
        // The end comes first: its issued slots become free only when they are observed to be gone after it.
        let over = ordered.is_over();
        if let Some(end) = end.filter(|_| !std::mem::replace(&mut self.told_end, true) && !over) {
            events.push(Event::JobEnded { job: id, end });
        }
        if news {
            ordered.frees &= !frees;
            let (incarnation, slots, phase) = now.clone();
            events.push(Event::Observed { job: id, incarnation, slots, phase });
            self.told = Some(now);
        }
        if !over && end.is_none() && self.told_held != Some(self.seen.is_held()) {
            self.told_held = Some(self.seen.is_held());
            events.push(Event::JobHeld { job: id, held: self.seen.is_held() });
        }
    }

    /// Its last allocation.
    fn slots(&self) -> &[ObservedSlot] {
        self.given.as_ref().map_or(&[], |given| &given.slots)
    }

    /// Its slots on its current nodes.
    fn observed(&self) -> Vec<ObservedSlot> {
        let nodes = hostlist::expand(&self.seen.nodes).unwrap_or_default();
        let here: BTreeSet<&str> = nodes.iter().map(String::as_str).collect();
        let slots: Vec<_> = self.slots().iter().filter(|slot| here.contains(slot.server.as_str())).cloned().collect();
        let used: BTreeSet<&str> = slots.iter().map(|slot| slot.server.as_str()).collect();
        if used == here { slots } else { self.guessed(&nodes) }
    }

    /// A guess from the way in which Slurm spreads tasks over nodes, if the slots' nodes aren't known.
    fn guessed(&self, nodes: &[String]) -> Vec<ObservedSlot> {
        let part = self.servers.as_ref().map(|servers| &servers.part);
        let requested = || Some(described(&self.seen, &self.tag, part).ok()?.requested());
        let Some(shape) = self.given.as_ref().map(Given::shape).or_else(requested) else { return Vec::new() };
        let of_servers = self.servers.as_ref().map(|servers| hostlist::expand(&servers.seen.nodes).unwrap_or_default());
        let spread = |role: Role, count: u32| {
            // Components share no nodes.
            let is_role =
                |node: &&String| of_servers.as_ref().is_none_or(|of| of.contains(node) == (role == Role::Server));
            let nodes: Vec<&String> = nodes.iter().filter(is_role).collect();
            let each = (count as usize).div_ceil(nodes.len().max(1)).max(1);
            (0..count).filter_map(move |index| {
                let server = (*nodes.get(index as usize / each)?).clone();
                Some(ObservedSlot { role, index, server, devices: Vec::new() })
            })
        };
        spread(Role::Worker, shape.workers).chain(spread(Role::Server, shape.servers)).collect()
    }
}

/// The resources that a running job holds on each of its nodes.
fn held(job: &Job) -> BTreeMap<String, Own> {
    let nodes = hostlist::expand(&job.nodes).unwrap_or_default();
    let tres = parse_tres(&job.tres);
    let share = |name: &str| tres.get(name).copied().unwrap_or(0).div_ceil(nodes.len().max(1) as u64);
    let (cpus, memory) = (share("cpu"), share("mem"));
    let nodes = nodes.into_iter().enumerate();
    nodes
        .map(|(at, name)| {
            let gres = job.gres.get(at).map(|text| total(&parse_gres(text))).unwrap_or_default();
            (name, Own { cpus, memory, gres })
        })
        .collect()
}
