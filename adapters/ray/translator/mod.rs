//! Ray's cluster as a state machine. The inputs are plans and the state of Ray's head, and the outputs are data to
//! write, groups to remove and requests to the autoscaler. It has no I/O and no clock: `now` is the time since the
//! adapter's start, and `clock_ms` the Unix time.

#[cfg(test)]
mod hostile;
mod job;
mod order;
mod request;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use trainmaster_manager::{self as manager, Follower, Follows, Named, PlanAnswer, Snapshot, Taken};
use trainmaster_proto::v1;

use self::{
    job::{Job, Refusal, Seen, Told},
    order::{Action, DriverPlan, Note},
};
use super::{
    amounts::{self, Kinds},
    bounds::{MOST_DELETED, number, words},
    config::Config,
    servers::{self, Names},
    view::{Group, NodeId, Request, Resources, View},
};
use crate::{
    file::MOST_DEVICES,
    foreign::ForeignUse,
    load::{Load, Meter},
};

pub(crate) const SERVER: &str = "server/";
pub(crate) const PLAN: &str = "plan/";
pub(crate) const RECORD: &str = "job/";
pub(crate) const REQUEST: &str = "request";

/// An action at Ray's head.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Effect {
    Put { key: String, value: String },
    Delete { key: String },
    RemoveGroup { id: Vec<u8> },
    Ask(Request),
}

/// Actions and messages that are due.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Effects {
    pub(crate) effects: Vec<Effect>,
    /// Plans that can't be carried out, with their decisions.
    pub(crate) refused: Vec<(u64, PlanAnswer)>,
}

/// All jobs and nodes of a Ray cluster.
#[derive(Debug)]
pub(crate) struct Translator {
    config: Arc<Config>,
    view: View,
    names: Names,
    kinds: Kinds,
    foreign: ForeignUse<NodeId>,
    meter: Meter,
    servers: Arc<BTreeMap<String, v1::Server>>,
    jobs: BTreeMap<u64, Job>,
    /// The data that this adapter wrote, as far as it is known to exist.
    written: BTreeMap<String, String>,
    /// The last request to the autoscaler, by this adapter or an earlier one.
    asked: Option<Request>,
    /// The differing request of others, once it was logged.
    overwritten: Option<Request>,
    /// Groups to remove. They stay here while they are seen.
    removing: BTreeSet<Vec<u8>>,
    follower: Follower,
    /// Why the cluster can only be observed, if so. Drivers continue as they are.
    observing: Option<String>,
}

impl Translator {
    pub(crate) fn new(config: Arc<Config>) -> Self {
        Self {
            config,
            view: View::default(),
            names: Names::default(),
            kinds: Kinds::default(),
            foreign: ForeignUse::default(),
            meter: Meter::default(),
            servers: Arc::default(),
            jobs: BTreeMap::new(),
            written: BTreeMap::new(),
            asked: None,
            overwritten: None,
            removing: BTreeSet::new(),
            follower: Follower::default(),
            observing: None,
        }
    }

    /// The daemon is connected.
    pub(crate) fn attached(&mut self) {
        self.follower.attached();
    }

    /// Why the cluster can only be observed, if so.
    pub(crate) fn observing(&self) -> Option<&str> {
        self.observing.as_deref()
    }

    /// The daemon's current and previous jobs.
    pub(crate) fn known(&self) -> BTreeSet<u64> {
        self.jobs.iter().filter(|(_, job)| job.listed || job.note.is_some()).map(|(id, _)| *id).collect()
    }

    /// Sets whether the cluster can only be observed, and why.
    pub(crate) fn observe(&mut self, why: Option<String>) {
        self.observing = why;
    }

    /// Takes a plan. Returns answers for the jobs that it changes.
    pub(crate) fn plan(&mut self, now: Duration, plan: v1::Plan) -> Vec<PlanAnswer> {
        self.follow(now, plan)
    }

    /// Takes a view of Ray's head. Cost: O(nodes + bundles + jobs).
    pub(crate) fn see(&mut self, now: Duration, mut view: View) {
        if let Some(written) = view.written.take() {
            self.remember(&view, written);
        }
        self.kinds.admit(&mut view.nodes, &self.config);
        view.groups.sort_by_key(|group| group.name.job);
        self.view = view;
        self.removing.retain(|id| self.view.groups.iter().any(|group| group.id == *id));
        for id in self.view.records.keys().chain(self.view.groups.iter().map(|group| &group.name.job)) {
            self.jobs.entry(*id).or_default();
        }
        let wanted = self.jobs.values().flat_map(Job::wants).collect();
        let busy = self.busy();
        self.names.update(&self.view.nodes, &self.config, &wanted, &busy);
        self.look_at_servers(now);
    }

    /// Returns the actions that are due, from the last view. Only changed data is written. Cost: O(jobs + groups).
    pub(crate) fn step(&mut self, now: Duration, clock_ms: i64) -> Effects {
        let mut step = Effects::default();
        self.refuse_overdue(now, &mut step);
        self.forget_over(&mut step);
        if self.observing.is_some() {
            step.effects.clear();
            return step;
        }
        let wanted = self.to_write(clock_ms);
        for (key, value) in &wanted {
            if self.written.get(key) != Some(value) {
                step.effects.push(Effect::Put { key: key.clone(), value: value.clone() });
            }
        }
        let mut gone = std::mem::replace(&mut self.written, wanted);
        gone.retain(|key, _| !self.written.contains_key(key));
        for _ in 0..MOST_DELETED {
            let Some((key, _)) = gone.pop_first() else { break };
            step.effects.push(Effect::Delete { key });
        }
        // The others follow in the next step, because anyone may have written very many.
        self.written.append(&mut gone);
        if self.config.request_resources {
            self.ask(&mut step);
        }
        step
    }

    /// Returns the complete state for the daemon, and assumes that it is sent now.
    pub(crate) fn snapshot(&mut self) -> Snapshot {
        let mut groups = by_job(&self.view);
        let mut jobs = BTreeMap::new();
        for (id, job) in &mut self.jobs {
            let seen = Seen::new(&self.view, groups.remove(id).unwrap_or_default(), *id, job.told());
            job.told_over = job.is_over(&seen);
            jobs.extend(job.observe(*id, &seen, &self.names).map(|job| (*id, job)));
        }
        self.meter.know(&self.servers);
        Snapshot { servers: self.servers.clone(), jobs }
    }

    /// Takes the data that an earlier run wrote, and that still exists after a restart of the head.
    fn remember(&mut self, view: &View, written: BTreeMap<String, String>) {
        for (key, value) in &written {
            if let Some(name) = key.strip_prefix(SERVER) {
                self.names.restore(name, value, &view.nodes, &self.config);
            } else if let Some(id) = key.strip_prefix(PLAN).and_then(number)
                && let Some(note) = Note::from_json(value)
            {
                let job = self.jobs.entry(id).or_default();
                if job.note.is_none() {
                    job.plan(note);
                }
            }
        }
        self.asked = written.get(REQUEST).and_then(|request| request::from_json(request));
        self.written = written;
    }

    /// Servers in use by anyone.
    fn busy(&self) -> BTreeSet<String> {
        let foreign = self.servers.values().filter(|server| !server.foreign.is_empty()).map(|server| &server.name);
        let nodes = self.view.groups.iter().flat_map(Group::placed).filter_map(|(_, node, _)| self.names.of(node));
        foreign.cloned().chain(nodes.map(str::to_owned)).collect()
    }

    fn look_at_servers(&mut self, now: Duration) {
        let mut ours: BTreeMap<&NodeId, Resources> = BTreeMap::new();
        for group in self.view.groups.iter().filter(|group| self.is_ours(group)) {
            for (_, node, resources) in group.placed() {
                let held = ours.entry(node).or_default();
                for (name, amount) in resources {
                    *held.entry(name.clone()).or_default() += amount;
                }
            }
        }
        self.foreign.retain(|node| self.view.nodes.contains_key(node));
        let mut seen = BTreeMap::new();
        for (id, node) in &self.view.nodes {
            let name = self.names.of(id).expect("every node has a name");
            let used = amounts::foreign(node, ours.get(id).unwrap_or(&Resources::new()));
            let used = self.foreign.settle(now, id, used);
            let mut devices = Vec::new();
            // Needed only to distinguish GPUs in foreign use from those of Trainmaster's jobs.
            if used.contains_key("GPU") {
                let held = self.jobs.values().flat_map(|job| job.devices_on(name));
                for (device, milli) in held.filter(|(device, _)| i64::from(*device) < MOST_DEVICES) {
                    let device = device as usize;
                    devices.resize(devices.len().max(device + 1), 0);
                    devices[device] += i64::from(milli);
                }
            }
            seen.insert(name.to_owned(), servers::server(name, node, &self.config, used, &devices));
        }
        for node_type in &self.config.node_types {
            for name in node_type.servers() {
                let waits = || servers::to_come(&name, node_type, &self.config);
                seen.entry(name.clone()).or_insert_with(waits);
            }
        }
        if *self.servers != seen {
            self.servers = Arc::new(seen);
        }
    }

    /// Takes the nodes' loads. Returns those that the daemon doesn't know.
    pub(crate) fn measured(&mut self, loads: BTreeMap<NodeId, Load>) -> Vec<v1::ServerUse> {
        let named = loads.into_iter().filter_map(|(node, load)| Some((self.names.of(&node)?.to_owned(), load)));
        self.meter.changed(named.collect())
    }

    /// The daemon knows no loads.
    pub(crate) fn forget_loads(&mut self) {
        self.meter.forget();
    }

    /// Whether the daemon can know the group's job. Otherwise the group is foreign use.
    fn is_ours(&self, group: &Group) -> bool {
        let job = self.jobs.get(&group.name.job);
        let could = job.and_then(Job::told).is_none_or(|told| told.may_have(group));
        could && (!self.follower.knows_all() || job.is_some_and(|job| job.listed))
    }

    fn refuse_overdue(&mut self, now: Duration, step: &mut Effects) {
        let mut groups = by_job(&self.view);
        for (id, job) in &mut self.jobs {
            let seen = Seen::new(&self.view, groups.remove(id).unwrap_or_default(), *id, job.told());
            let overdue = job.overdue(now, &seen, &self.names, &self.config, self.view.infeasible);
            let Some(Refusal { cause, groups, retry_after }) = overdue else { continue };
            // If the cluster can only be observed, a retry wouldn't help soon.
            let retry_after = retry_after.filter(|_| self.observing.is_none());
            let cause = words(&self.observing.clone().unwrap_or(cause));
            self.removing.extend(groups);
            job.note.as_mut().expect("it had a plan").refused = Some(cause.clone());
            step.refused.push((job.decision, PlanAnswer { retry_after, ..PlanAnswer::refused(*id, cause) }));
        }
        // The removal is repeated while the group exists, because the head may not have been reachable.
        step.effects.extend(self.removing.iter().map(|id| Effect::RemoveGroup { id: id.clone() }));
    }

    /// Forgets jobs that have ended, whose end the daemon knows, and of which nothing is left. Also deletes their
    /// drivers' records.
    fn forget_over(&mut self, step: &mut Effects) {
        if !self.follower.knows_all() {
            return;
        }
        let (view, mut groups) = (&self.view, by_job(&self.view));
        self.jobs.retain(|id, job| {
            let seen = Seen::new(view, groups.remove(id).unwrap_or_default(), *id, job.told());
            // A driver writes its record before the daemon's plan for the job arrives.
            let over = job.told_over && job.is_over(&seen) && (job.note.is_some() || !seen.driver_lives);
            if over && seen.record.is_some() {
                step.effects.push(Effect::Delete { key: format!("{RECORD}{id}") });
            }
            !over
        });
    }

    fn to_write(&self, clock_ms: i64) -> BTreeMap<String, String> {
        let nodes = self.names.iter().map(|(name, node)| (format!("{SERVER}{name}"), node.to_string()));
        let notes = self.jobs.iter().filter_map(|(id, job)| Some((id, job.note.as_ref()?)));
        let notes = notes.map(|(id, note)| (format!("{PLAN}{id}"), note.to_json()));
        let Config { name, node_types, .. } = &*self.config;
        let request = (!node_types.is_empty()).then(|| {
            let text = request::to_json(name, node_types, &self.wanted(), &self.busy(), &self.names, clock_ms);
            (REQUEST.to_owned(), text)
        });
        nodes.chain(notes).chain(request).collect()
    }

    /// Servers that plans name.
    fn wanted(&self) -> BTreeSet<&str> {
        self.jobs.values().flat_map(Job::wants).collect()
    }

    /// Sends the request to the autoscaler if it changed, and again if someone else has changed it since.
    fn ask(&mut self, step: &mut Effects) {
        let wanted = request::merged(&self.config.node_types, &self.wanted(), &self.busy());
        let there = &self.view.asked;
        if wanted == *there {
            self.overwritten = None;
        } else if self.asked.as_ref() == Some(&wanted) && self.overwritten.as_ref() != Some(there) {
            // Only someone else can have changed it. After a restart of the head, `self.asked` is `None`.
            tracing::warn!(request = %wanted, there = %there, "somebody else asked the autoscaler for other nodes");
            self.overwritten = Some(there.clone());
        }
        // If no nodes are needed, others' requests may stay.
        let others = wanted.is_empty() && self.asked.as_ref() != Some(there);
        if wanted != *there && !others {
            if self.asked.as_ref() != Some(&wanted) {
                tracing::info!(request = %wanted, "asking the autoscaler");
            }
            step.effects.push(Effect::Ask(wanted.clone()));
            self.view.asked = wanted.clone();
        }
        self.asked = Some(wanted);
    }
}

impl Follows for Translator {
    fn follower(&mut self) -> &mut Follower {
        &mut self.follower
    }

    fn devices(&self, server: &str) -> Option<Option<usize>> {
        self.servers.contains_key(server).then_some(None)
    }

    fn order(&mut self, _: Duration, named: &Named, order: Result<manager::Order, String>) -> Taken {
        let id = named.job;
        let job = self.jobs.entry(id).or_default();
        job.decision = named.decision;
        job.listed = true;
        let order = match order {
            Err(cause) => return Taken::Refused(cause),
            Ok(order) => DriverPlan::of(order),
        };
        if let Some(why) = &self.observing {
            let told = Told { name: &order.name, newest: job.newest.max(order.incarnation) };
            let seen = Seen::new(&self.view, self.view.groups_of(id).iter().collect(), id, Some(told));
            if !seen.is_as(&order, &self.names) {
                // A running job continues with its last order. An order to end isn't refused: the observed slots show
                // that it isn't followed.
                if order.action == Action::Run {
                    return Taken::Refused(why.clone());
                }
                job.plan(Note::new(named.decision, order));
                return Taken::Ignored;
            }
        }
        if job.note.as_ref().is_some_and(|note| note.order == order && note.refused.is_none()) {
            return Taken::Same;
        }
        job.plan(Note::new(named.decision, order));
        Taken::New
    }

    fn unlisted(&mut self, _: Duration, decision: u64, listed: &BTreeSet<u64>) {
        for (_, job) in self.jobs.iter_mut().filter(|(id, _)| !listed.contains(id)) {
            job.listed = false;
            if let Some(note) = job.note.as_ref().filter(|note| !note.order.ends()) {
                job.plan(Note::new(decision, note.order.unlisted()));
            }
        }
    }
}

fn by_job(view: &View) -> BTreeMap<u64, Vec<&Group>> {
    let mut groups: BTreeMap<u64, Vec<&Group>> = BTreeMap::new();
    for group in &view.groups {
        groups.entry(group.name.job).or_default().push(group);
    }
    groups
}
