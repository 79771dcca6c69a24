//! One job: its plan, its state in the cluster, and how long something has been missing.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use trainmaster_manager::{Placement, Share};
use trainmaster_proto::v1::{ObservedJob, ObservedPhase};

use super::{
    super::{
        config::Config,
        names::SlotId,
        servers::Names,
        view::{Group, GroupState, OnDriverDeath, Record, RecordPhase, View},
    },
    order::{Action, DriverPlan, Note},
};

/// The state of a job in the cluster.
pub(super) struct Seen<'a> {
    pub(super) groups: Vec<&'a Group>,
    /// Its driver's record. `None` if the record is of another job with this number.
    pub(super) record: Option<&'a Record>,
    /// The name of another daemon's job with this number, if there is one.
    pub(super) taken_by: Option<&'a str>,
    pub(super) driver_lives: bool,
    /// Whether drivers' records can't be read.
    silent: bool,
}

impl<'a> Seen<'a> {
    pub(super) fn new(view: &'a View, mut groups: Vec<&'a Group>, id: u64, told: Option<Told<'_>>) -> Self {
        groups.retain(|group| told.is_none_or(|told| told.may_have(group)));
        let said = view.records.get(&id);
        let record = said.filter(|record| told.is_none_or(|told| record.name == told.name));
        let lives = |record: &Record| view.drivers.contains(&record.driver);
        Self {
            groups,
            record,
            taken_by: said.filter(|said| record.is_none() && lives(said)).map(|said| said.name.as_str()),
            driver_lives: record.is_some_and(lives),
            silent: view.silent,
        }
    }

    /// The end of the job, if it ended by itself or with its driver.
    fn end(&self) -> Option<(ObservedPhase, String)> {
        let record = self.record?;
        match record.phase {
            RecordPhase::Completed => Some((ObservedPhase::Completed, record.message.clone())),
            RecordPhase::Failed => Some((ObservedPhase::Failed, record.message.clone())),
            RecordPhase::Active if !self.driver_lives && record.on_driver_death == OnDriverDeath::Cancel => {
                Some((ObservedPhase::Failed, format!("its driver (Ray job {}) ended", record.driver)))
            }
            RecordPhase::Active => None,
        }
    }

    /// Slots with a reservation on a living node, with the servers' names, by incarnation.
    fn reserved<'n>(&self, names: &'n Names) -> BTreeMap<u32, BTreeMap<SlotId, &'n str>> {
        let mut reserved: BTreeMap<u32, BTreeMap<SlotId, &str>> = BTreeMap::new();
        for group in &self.groups {
            let placed = group.placed().filter_map(|(slot, node, _)| Some((slot, names.of(node)?)));
            reserved.entry(group.name.incarnation).or_default().extend(placed);
        }
        reserved.retain(|_, slots| !slots.is_empty());
        reserved
    }

    /// Whether the state already matches a plan.
    pub(super) fn is_as(&self, order: &DriverPlan, names: &Names) -> bool {
        let reserved = self.reserved(names);
        match order.action {
            Action::Run => {
                let planned = order.slots().iter().map(|slot| (slot.id(), slot.server.as_str())).collect();
                reserved == BTreeMap::from([(order.incarnation, planned)])
            }
            Action::Release => true,
            Action::Wait | Action::Stop | Action::Reject => reserved.is_empty(),
        }
    }

    /// The reserved slots that work according to the record. A record of another incarnation doesn't affect them.
    fn working<'n>(&self, names: &'n Names) -> BTreeMap<u32, BTreeMap<SlotId, &'n str>> {
        let mut working = self.reserved(names);
        if let Some(running) = self.record.and_then(|record| record.running.as_ref())
            && let Some(slots) = working.get_mut(&running.incarnation)
        {
            slots.retain(|slot, _| running.has(*slot));
        }
        working.retain(|_, slots| !slots.is_empty());
        working
    }
}

/// The data that a job's driver was given.
#[derive(Clone, Copy)]
pub(super) struct Told<'a> {
    pub(super) name: &'a str,
    /// The newest incarnation.
    pub(super) newest: u32,
}

impl Told<'_> {
    /// Whether a group can be the job's. Groups of an incarnation that no driver was given are from someone else.
    pub(super) fn may_have(self, group: &Group) -> bool {
        group.name.incarnation <= self.newest
    }
}

/// One job.
#[derive(Debug, Default)]
pub(super) struct Job {
    /// `None` for a job that exists in the cluster and that no plan has named yet.
    pub(super) note: Option<Note>,
    /// The newest decision that named it. Refusals refer to it.
    pub(super) decision: u64,
    /// The newest planned incarnation.
    pub(super) newest: u32,
    /// Whether the daemon knows it.
    pub(super) listed: bool,
    /// Whether the daemon was told that nothing is left of the job. Before that, it counts the slots that it saw last.
    pub(super) told_over: bool,
    /// The time since which its driver has owed placement groups.
    owed: Option<Duration>,
    /// The time since which a node has been awaited.
    awaited: Option<Duration>,
    /// The time since which each of its groups has been pending.
    pending: BTreeMap<Vec<u8>, Duration>,
    /// The planned devices of slots, kept while the slots may exist, because Ray doesn't report devices.
    devices: BTreeMap<(u32, SlotId), Vec<(u32, u32)>>,
}

/// A plan that can't be carried out.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) cause: String,
    /// Groups to withdraw.
    pub(super) groups: Vec<Vec<u8>>,
    /// Wait before the next try, if a person can resolve the cause at any time.
    pub(super) retry_after: Option<Duration>,
}

/// Maximum wait of a newly started driver for its plan.
const DRIVER_RETRY: Duration = Duration::from_secs(10);

impl Job {
    /// Takes a plan, or one that an earlier run of this adapter wrote.
    pub(super) fn plan(&mut self, note: Note) {
        let incarnation = note.order.incarnation;
        for slot in note.order.slots() {
            self.devices.insert((incarnation, slot.id()), slot.devices.clone());
        }
        self.decision = self.decision.max(note.decision);
        self.newest = self.newest.max(incarnation);
        self.owed = None;
        self.awaited = None;
        self.pending.clear();
        self.note = Some(note);
    }

    pub(super) fn told(&self) -> Option<Told<'_>> {
        self.note.as_ref().map(|note| Told { name: &note.order.name, newest: self.newest })
    }

    /// Why its plan can't be carried out: nodes or the driver are missing for too long, or Ray can't place a group.
    /// `None` otherwise.
    pub(super) fn overdue(
        &mut self,
        now: Duration,
        seen: &Seen<'_>,
        names: &Names,
        config: &Config,
        infeasible: bool,
    ) -> Option<Refusal> {
        let order = &self.note.as_ref().filter(|note| note.refused.is_none())?.order;
        if order.action != Action::Run || seen.end().is_some() {
            return None;
        }
        let just = |cause| Some(Refusal { cause, groups: Vec::new(), retry_after: Some(DRIVER_RETRY) });
        if let Some(name) = seen.taken_by {
            return just(format!(
                "the cluster has another job {name:?} of the same number, from another daemon; stop its driver first"
            ));
        }
        if seen.record.is_some() && !seen.driver_lives {
            return just("its driver is gone; start it again with resume=True".into());
        }
        if let Some(refused) = seen.record.and_then(|record| record.refused.as_ref())
            && (refused.incarnation, refused.revision) == (order.incarnation, order.revision)
        {
            return Some(Refusal { cause: refused.cause.clone(), groups: Vec::new(), retry_after: None });
        }

        let missing = order.servers().into_iter().find(|server| names.node(server).is_none());
        if let Some(server) = missing {
            self.owed = None;
            let since = *self.awaited.get_or_insert(now);
            let node_type = config.node_types.iter().find(|node_type| node_type.has(server));
            let patience = match node_type {
                Some(node_type) if !infeasible => node_type.timeout,
                _ => config.placement_timeout,
            };
            return (now >= since + patience).then(|| {
                let why = if infeasible { ": the autoscaler says that it can't bring what is needed" } else { "" };
                let cause = format!("no node came for {server:?} within {patience:?}{why}");
                Refusal { cause, groups: Vec::new(), retry_after: None }
            });
        }
        self.awaited = None;

        let (incarnation, timeout) = (order.incarnation, config.placement_timeout);
        let mine = || seen.groups.iter().filter(|group| group.name.incarnation == incarnation);
        let waiting: Vec<_> = mine().filter(|group| group.state == GroupState::Pending).collect();
        self.pending.retain(|id, _| waiting.iter().any(|group| group.id == *id));
        for group in &waiting {
            self.pending.entry(group.id.clone()).or_insert(now);
        }
        let late: Vec<_> = waiting.iter().filter(|group| now >= self.pending[&group.id] + timeout).collect();
        if let Some(first) = late.first() {
            let slots: Vec<_> = first.name.slots.iter().map(|slot| slot.to_string()).collect();
            let cause =
                format!("the placement group of {} was pending for {timeout:?}: {}", slots.join(", "), first.why);
            let groups = late.iter().map(|group| group.id.clone()).collect();
            return Some(Refusal { cause, groups, retry_after: None });
        }

        // Older incarnations have to leave first, and added workers wait for the end of a step.
        let older = seen.groups.iter().any(|group| group.name.incarnation != incarnation);
        if older || mine().next().is_some() {
            self.owed = None;
            return None;
        }
        let (since, patience) = (*self.owed.get_or_insert(now), config.driver_timeout);
        if now < since + patience {
            return None;
        }
        just(match seen.record {
            Some(_) => format!("its driver made no placement group within {patience:?}"),
            None => format!("no driver came for it within {patience:?}; jobs on Ray are submitted by their drivers"),
        })
    }

    /// Its observation for the manager protocol. `None` if there is nothing to report.
    pub(super) fn observe(&mut self, id: u64, seen: &Seen<'_>, names: &Names) -> Option<ObservedJob> {
        let (reserved, working) = (seen.reserved(names), seen.working(names));
        let planned = self.note.as_ref().map(|note| note.order.incarnation);
        self.devices.retain(|(incarnation, _), _| planned == Some(*incarnation) || reserved.contains_key(incarnation));
        let end = seen.end();
        if self.note.is_none() && !self.listed && end.is_none() && reserved.is_empty() {
            return None;
        }
        // If two incarnations exist, the newer one is reported. The slots of the older one are reported too.
        let incarnation = reserved.keys().copied().max().or(planned).unwrap_or(0);
        let mut slots: BTreeMap<SlotId, (u32, &str)> = BTreeMap::new();
        for (incarnation, there) in &working {
            slots.extend(there.iter().map(|(slot, server)| (*slot, (*incarnation, *server))));
        }
        let (phase, message) =
            end.unwrap_or_else(|| (self.phase(seen, &reserved, !slots.is_empty(), incarnation), String::new()));
        let slots = slots.into_iter().map(|(slot, (incarnation, server))| {
            let devices = self.devices.get(&(incarnation, slot)).into_iter().flatten();
            let devices = devices.map(|&(device, milli)| Share { device, milli }).collect();
            Placement { server: server.to_owned(), devices }.to_wire(slot, false)
        });
        Some(ObservedJob { job: id, incarnation, slots: slots.collect(), phase: phase.into(), message, failures: 0 })
    }

    fn phase(
        &self,
        seen: &Seen<'_>,
        reserved: &BTreeMap<u32, BTreeMap<SlotId, &str>>,
        any: bool,
        incarnation: u32,
    ) -> ObservedPhase {
        let leaving = if any { ObservedPhase::Stopping } else { ObservedPhase::Stopped };
        match self.note.as_ref().map(|note| &note.order) {
            // Either no plan for it was taken, or it was released. Existing slots continue.
            None if any => ObservedPhase::Running,
            None => leaving,
            Some(order) if order.action == Action::Release && any => ObservedPhase::Running,
            Some(order) if order.action == Action::Run => {
                let works = |record: &&Record| {
                    record.running.as_ref().is_some_and(|running| running.incarnation == order.incarnation)
                };
                if reserved.keys().any(|there| *there != order.incarnation) {
                    leaving
                } else if any
                    && incarnation == order.incarnation
                    && (seen.silent || seen.record.filter(works).is_some())
                {
                    ObservedPhase::Running
                } else {
                    ObservedPhase::Starting
                }
            }
            Some(_) => leaving,
        }
    }

    /// Thousandths of each device of a server that this job has in its plan.
    pub(super) fn devices_on<'a>(&'a self, server: &'a str) -> impl Iterator<Item = (u32, u32)> + 'a {
        let slots = self.note.iter().flat_map(|note| note.order.slots());
        slots.filter(move |slot| slot.server == server).flat_map(|slot| slot.devices.iter().copied())
    }

    /// The servers in its plan, unless the plan was refused.
    pub(super) fn wants(&self) -> BTreeSet<&str> {
        self.note.iter().filter(|note| note.refused.is_none()).flat_map(|note| note.order.servers()).collect()
    }

    /// Whether nothing is left of the job, and no one waits for it.
    pub(super) fn is_over(&self, seen: &Seen<'_>) -> bool {
        let ended = self.note.as_ref().map_or(!self.listed, |note| note.order.ends());
        let told = !seen.driver_lives || seen.record.is_none_or(|record| record.phase != RecordPhase::Active);
        ended && seen.groups.is_empty() && told
    }
}
