//! One application: its job, its plan, and how long something has been missing.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use trainmaster_core::{JobSpec, Role, text::shown};
use trainmaster_manager::{Action, Order, Placement, Run, SlotId};
use trainmaster_proto::v1::{ObservedJob, ObservedPhase, Slot};

use super::{
    super::{
        amounts,
        config::{Api, Config},
        jobfile,
        nodes::Nodes,
        slots::AllocationRequest,
        wire::{self, ApplicationState, ContainerState},
    },
    labels::Expected,
};

/// Time after which an application that the ResourceManager doesn't report is considered gone.
const GONE: Duration = Duration::from_secs(30);
/// Wait before a plan is sent again after no ApplicationMaster started in time.
const MASTER_RETRY: Duration = Duration::from_secs(10);
/// Minimum priority of an application whose job has to run.
const TO_RUN: i32 = 1;
/// Maximum number of slots that a refusal names.
const MOST_NAMED: usize = 3;

/// The job of an application.
#[derive(Debug, Default, PartialEq)]
pub(super) enum Link {
    /// It wasn't submitted to the daemon yet.
    #[default]
    None,
    /// It is being submitted.
    Asked,
    Job(u64),
    /// It can't be a job, with the cause.
    Refused(String),
}

/// How an application ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum End {
    Succeeded(String),
    Failed(String),
    /// It was killed by someone.
    Killed(String),
}

/// A plan that can't be carried out.
#[derive(Debug, PartialEq)]
pub(super) struct Refusal {
    pub(super) cause: String,
    pub(super) retry_after: Option<Duration>,
}

/// One application.
#[derive(Debug, Default)]
pub(super) struct App {
    /// The last report. `None` while it isn't reported.
    pub(super) row: Option<wire::Application>,
    /// The specification from its job file.
    pub(super) spec: Option<JobSpec>,
    /// Whether its name includes the application's number.
    pub(super) numbered: bool,
    pub(super) link: Link,
    /// The tenant of its job.
    pub(super) tenant: String,
    /// Time of the next submission to the daemon, or of the next query.
    pub(super) ask_at: Duration,
    pub(super) order: Option<Order>,
    /// The newest decision that named it. Refusals refer to it.
    pub(super) decision: u64,
    /// Whether a plan has named it since it was linked to this job.
    pub(super) listed: bool,
    /// Why its order can't be carried out.
    pub(super) refused: Option<String>,
    pub(super) end: Option<End>,
    /// Whether the daemon was asked to cancel it.
    pub(super) cancelling: bool,
    /// The basis for identifying containers if YARN doesn't report their slots: incarnation and servers of the last
    /// planned run.
    pub(super) basis: Option<(u32, BTreeMap<SlotId, String>)>,
    /// The slot of each container, if YARN doesn't report it.
    pub(super) labels: BTreeMap<String, i64>,
    /// Whether the ResourceManager ever reported it.
    was_seen: bool,
    /// The time since which it has had no job, and whether that was logged.
    pub(super) jobless: Option<(Duration, bool)>,
    /// Time of its order.
    since: Duration,
    /// Time since which it hasn't been reported.
    gone: Option<Duration>,
    /// Time since which its ApplicationMaster has been missing.
    masterless: Option<Duration>,
    /// Time since which slots have had no container.
    short: Option<Duration>,
}

/// A slot's container.
pub(super) struct Held<'a> {
    pub(super) incarnation: u32,
    pub(super) server: &'a str,
    state: ContainerState,
    pub(super) container: &'a wire::Container,
}

impl App {
    /// Why a job of this tenant can't be this application's.
    pub(super) fn is_anothers(&self, tenant: &str) -> Option<String> {
        let row = self.row.as_ref()?;
        let user = jobfile::name(&row.user);
        let differs = !row.user.is_empty() && tenant != user;
        differs.then(|| format!("tenant: \"{}\" must be {user:?}, the application's user", shown(tenant, 64)))
    }

    pub(super) fn job(&self) -> Option<u64> {
        match self.link {
            Link::Job(job) => Some(job),
            _ => None,
        }
    }

    /// Takes the ResourceManager's report.
    pub(super) fn see(
        &mut self,
        mut row: wire::Application,
        nodes: &Nodes,
        config: &Config,
        largest: &HashMap<String, i64>,
        mut complain: impl FnMut(String),
    ) {
        self.gone = None;
        self.keep_awaited(&mut row, nodes);
        match ApplicationState::try_from(row.state) {
            Ok(ApplicationState::Succeeded) => self.end = Some(End::Succeeded(row.diagnostics.clone())),
            Ok(ApplicationState::Failed) => self.end = Some(End::Failed(row.diagnostics.clone())),
            Ok(ApplicationState::Killed) => self.end = Some(End::Killed(row.diagnostics.clone())),
            Ok(ApplicationState::Pending | ApplicationState::Running) => {}
            Err(_) => {
                let last = self.row.as_ref().map_or(ApplicationState::Pending, wire::Application::state);
                complain(format!("{}: state {} is unknown; it is taken for {last:?}", row.id, row.state));
                row.set_state(last);
            }
        }
        // The submission doesn't change, and is no longer reported after the end. Over REST, only the daemon knows it.
        let is_new = self.row.as_ref().is_none_or(|row| row.untold) && !row.untold;
        if config.api == Api::PlugIns && is_new && self.spec.is_none() && self.end.is_none() {
            let read = jobfile::read(&row.job, &row.user, &row.queue, config.accounts);
            match read.and_then(|spec| amounts::check_size(&spec, largest).map(|()| spec)) {
                Ok(spec) => self.spec = Some(spec),
                Err(problem) if self.link == Link::None => self.link = Link::Refused(problem),
                Err(problem) => complain(format!("{}: {problem}", row.id)),
            }
        }
        self.row = Some(row);
        self.was_seen = true;
    }

    /// Whether its job file hasn't been reported yet.
    pub(super) fn is_untold(&self) -> bool {
        self.row.as_ref().is_some_and(|row| row.untold)
    }

    /// Keeps the containers on nodes that haven't returned since the ResourceManager restarted.
    pub(super) fn keep_awaited(&self, row: &mut wire::Application, nodes: &Nodes) {
        let earlier = self.row.iter().flat_map(|row| &row.containers);
        let kept: Vec<_> = earlier
            .filter(|held| nodes.is_awaited(&held.node) && row.containers.iter().all(|told| told.id != held.id))
            .cloned()
            .collect();
        row.containers.extend(kept);
    }

    /// Handles a snapshot without it. Returns whether it can be forgotten.
    pub(super) fn miss(&mut self, now: Duration, id: &str) -> bool {
        self.row = None;
        let long = now >= *self.gone.get_or_insert(now) + GONE;
        if long && self.end.is_none() {
            let what = if self.was_seen { "doesn't know it any more" } else { "never told of it" };
            self.end = Some(End::Failed(format!("{id}: the ResourceManager {what}")));
        }
        match self.link {
            Link::None | Link::Refused(_) => true,
            Link::Asked => false,
            // By then the daemon was told that no slot is left.
            Link::Job(_) => match &self.order {
                Some(order) => long && order.ends(),
                // It may also have ended just when the daemon reported it.
                None => self.gone.is_some_and(|gone| now >= gone + 2 * GONE),
            },
        }
    }

    /// Its required priority: applications of jobs that have to run get their ApplicationMasters before those that
    /// wait.
    pub(super) fn priority(&self) -> Option<i32> {
        let row = self.row.as_ref().filter(|row| row.state() == ApplicationState::Pending)?;
        Some(row.priority.max(TO_RUN))
    }

    /// Takes the daemon's knowledge of it from before any plan.
    pub(super) fn learn(&mut self, incarnation: u32, slots: &[Slot]) {
        if self.basis.is_some() || incarnation == 0 {
            return;
        }
        let read = |slot: &Slot| Some((SlotId::of(slot).ok()?, slot.server.clone()));
        self.basis = Some((incarnation, slots.iter().filter_map(read).collect()));
    }

    /// The expected containers. `is_free`: no plan is in force for it.
    pub(super) fn expected(&self, nodes: &Nodes, is_free: bool) -> Expected {
        let Some((incarnation, slots)) = &self.basis else { return Expected::default() };
        let node = |server: &String| nodes.node(server).map_or_else(|| server.clone(), |node| node.id.clone());
        let is_free = is_free || self.order.as_ref().is_some_and(|order| matches!(order.action, Action::Release(_)));
        Expected {
            incarnation: *incarnation,
            nodes: slots.iter().map(|(slot, server)| (*slot, node(server))).collect(),
            anywhere: is_free,
        }
    }

    /// Whether the daemon was queried and has no job for it.
    pub(super) fn is_left_alone(&self) -> bool {
        self.jobless.is_some_and(|(_, said)| said)
    }

    /// Whether it is unknown how it ended, or if it did.
    pub(super) fn is_missed(&self) -> bool {
        self.row.is_none() && self.end.is_none() && self.job().is_some()
    }

    /// Takes a plan.
    pub(super) fn plan(&mut self, now: Duration, order: Order) {
        if let Some(run) = order.run() {
            self.basis = Some((order.incarnation, servers(run)));
        }
        self.order = Some(order);
        self.refused = None;
        self.since = now;
        self.masterless = None;
        self.short = None;
    }

    /// The daemon doesn't know the job any more, or not yet. It is asked again, and its answer decides.
    pub(super) fn unlink(&mut self) {
        *self = Self {
            row: self.row.take(),
            spec: self.spec.take(),
            numbered: self.numbered,
            end: self.end.take(),
            gone: self.gone,
            was_seen: self.was_seen,
            labels: std::mem::take(&mut self.labels),
            ..Self::default()
        };
    }

    /// The container of each slot: the one of the newest incarnation, and among several of those the running one.
    pub(super) fn held<'a>(&'a self, nodes: &'a Nodes) -> BTreeMap<SlotId, Held<'a>> {
        let mut held: BTreeMap<SlotId, Held<'a>> = BTreeMap::new();
        for container in self.row.iter().flat_map(|row| &row.containers) {
            let request = AllocationRequest::from_id(container.allocation_request);
            let (Some(request), Some(server)) = (request, nodes.server(&container.node)) else { continue };
            let state = container.state();
            let rank = |held: &Held<'_>| (held.incarnation, held.state == ContainerState::Running);
            let this = Held { incarnation: request.incarnation(), server, state, container };
            if held.get(&request.slot()).is_none_or(|other| rank(other) < rank(&this)) {
                held.insert(request.slot(), this);
            }
        }
        held
    }

    /// The demand that the daemon counts for a slot, by the core's names.
    pub(super) fn demand(&self, role: Role) -> Option<&BTreeMap<String, i64>> {
        let spec = self.spec.as_ref()?;
        match role {
            Role::Worker => Some(&spec.worker.demand),
            Role::Server => spec.server.as_ref().map(|server| &server.demand),
        }
    }

    /// The slots that should have containers, each with its server. These are the planned ones, or, if the plan was
    /// refused, the running ones, if they are sufficient to continue.
    pub(super) fn wanted(&self, nodes: &Nodes) -> BTreeMap<SlotId, String> {
        let Some((order, run)) = self.run() else { return BTreeMap::new() };
        let mut wanted = servers(run);
        if self.refused.is_none() {
            return wanted;
        }
        let held = self.held(nodes);
        wanted.retain(|slot, server| held.get(slot).is_some_and(|held| runs(held, order) && held.server == server));
        let goes_on = has_roles(run, |role| wanted.keys().any(|kept| kept.role == role));
        if goes_on { wanted } else { BTreeMap::new() }
    }

    /// Its order, if it has to run.
    fn run(&self) -> Option<(&Order, &Run)> {
        self.order.as_ref().and_then(|order| Some((order, order.run()?)))
    }

    /// Why its plan can't be carried out: the ApplicationMaster or containers are missing for too long. `None`
    /// otherwise.
    pub(super) fn overdue(&mut self, now: Duration, nodes: &Nodes, config: &Config) -> Option<Refusal> {
        let order = self.order.as_ref().filter(|_| self.refused.is_none() && self.end.is_none())?;
        let (run, row) = (order.run()?, self.row.as_ref()?);
        if row.state() == ApplicationState::Pending {
            self.short = None;
            let (since, patience) = (*self.masterless.get_or_insert(now), config.master_timeout);
            let cause = || {
                format!("no ApplicationMaster came within {patience:?}: {} is pending in queue {:?}", row.id, row.queue)
            };
            return (now >= since + patience).then(|| Refusal { cause: cause(), retry_after: Some(MASTER_RETRY) });
        }
        self.masterless = None;
        let held = self.held(nodes);
        let has = |slot: &SlotId, at: &Placement| {
            held.get(slot).is_some_and(|held| {
                held.incarnation == order.incarnation
                    && held.server == at.server
                    && held.state != ContainerState::Reserved
            })
        };
        let missing: Vec<_> = run.slots.iter().filter(|(slot, at)| !has(slot, at)).collect();
        // Older incarnations have to leave first.
        let older = held.values().any(|held| held.incarnation != order.incarnation);
        if older || missing.is_empty() {
            self.short = None;
            return None;
        }
        let (since, patience) = (*self.short.get_or_insert(now), config.placement_timeout);
        (now >= since + patience).then(|| {
            let (count, all) = (missing.len(), run.slots.len());
            let named = missing.iter().take(MOST_NAMED);
            let named: Vec<_> = named.map(|(slot, at)| describe(row, order, nodes, **slot, &at.server)).collect();
            let more = if count > MOST_NAMED { ", …" } else { "" };
            let cause =
                format!("{count} of {all} slots got no container within {patience:?}: {}{more}", named.join(", "));
            Refusal { cause, retry_after: None }
        })
    }

    /// Whether it should have ended long ago.
    pub(super) fn lingers(&self, now: Duration, config: &Config) -> bool {
        let order = self.order.as_ref().filter(|order| matches!(order.action, Action::Stop { .. }));
        order.is_some_and(|order| {
            let grace = order.grace.unwrap_or_default();
            now >= self.since.saturating_add(grace).saturating_add(config.master_timeout)
        })
    }

    /// Its observation for the manager protocol.
    pub(super) fn observe(&self, job: u64, nodes: &Nodes) -> ObservedJob {
        let held = self.held(nodes);
        let planned = self.order.as_ref().map(|order| order.incarnation);
        let incarnation = held.values().map(|held| held.incarnation).max().or(planned).unwrap_or(0);
        let is_rejected = self.order.as_ref().is_some_and(|order| order.action == Action::Reject);
        let (phase, message) = match &self.end {
            Some(End::Succeeded(diagnostics)) => (ObservedPhase::Completed, diagnostics.clone()),
            Some(End::Failed(diagnostics)) => (ObservedPhase::Failed, diagnostics.clone()),
            // It can't be cancelled any more, because it never had to run.
            Some(End::Killed(diagnostics)) if is_rejected => (ObservedPhase::Failed, diagnostics.clone()),
            // The daemon is asked to cancel the job. After its stop order arrives, the daemon is told again that no
            // slot is left. Until then it counts the slots that it had issued.
            Some(End::Killed(_)) | None => (self.phase(&held), String::new()),
        };
        let slots = held.iter().map(|(slot, held)| {
            let placement = Placement { server: held.server.to_owned(), devices: Vec::new() };
            placement.to_wire(*slot, false)
        });
        ObservedJob { job, incarnation, slots: slots.collect(), phase: phase.into(), message, failures: 0 }
    }

    fn phase(&self, held: &BTreeMap<SlotId, Held<'_>>) -> ObservedPhase {
        match self.order.as_ref().map(|order| (order, &order.action)) {
            // Either no plan for it is known yet, or it was released. Existing containers continue.
            None | Some((_, Action::Release(_))) if !held.is_empty() => ObservedPhase::Running,
            Some((order, Action::Run(run))) => {
                let works = |role| held.iter().any(|(held, container)| held.role == role && runs(container, order));
                if held.values().any(|held| held.incarnation != order.incarnation) {
                    leaving(held)
                } else if has_roles(run, works) {
                    ObservedPhase::Running
                } else {
                    ObservedPhase::Starting
                }
            }
            _ => leaving(held),
        }
    }
}

/// The phase if no new slots are planned.
fn leaving(held: &BTreeMap<SlotId, Held<'_>>) -> ObservedPhase {
    if held.is_empty() { ObservedPhase::Stopped } else { ObservedPhase::Stopping }
}

/// The server of each slot of a run.
fn servers(run: &Run) -> BTreeMap<SlotId, String> {
    run.slots.iter().map(|(slot, at)| (*slot, at.server.clone())).collect()
}

/// Checks that each slot can have a container.
///
/// # Errors
/// A slot has a number that no container can have. The error names it and the allowed range.
pub(super) fn possible(order: Order) -> Result<Order, String> {
    for slot in order.run().iter().flat_map(|run| run.slots.keys()) {
        AllocationRequest::new(order.incarnation, *slot)?;
    }
    Ok(order)
}

fn runs(held: &Held<'_>, order: &Order) -> bool {
    held.incarnation == order.incarnation && held.state == ContainerState::Running
}

/// Whether each role of a run satisfies a condition.
fn has_roles(run: &Run, mut has: impl FnMut(Role) -> bool) -> bool {
    let planned = |role| run.slots.keys().any(|planned| planned.role == role);
    [Role::Worker, Role::Server].into_iter().all(|role| !planned(role) || has(role))
}

/// Describes a slot without a container: whether it was requested, and the free resources on its node.
fn describe(row: &wire::Application, order: &Order, nodes: &Nodes, slot: SlotId, server: &str) -> String {
    let id = AllocationRequest::new(order.incarnation, slot).map(AllocationRequest::id).ok();
    let asked = row.requests.iter().any(|request| Some(request.allocation_request) == id && request.count > 0);
    let asked = if asked { "asked for" } else { "not asked for" };
    let free = nodes.node(server).map(|node| {
        let of = |name: &String| node.allocated.get(name).copied().unwrap_or(0);
        let free: BTreeMap<_, _> =
            node.capacity.iter().map(|(name, all)| (name, all.saturating_sub(of(name)))).collect();
        let free: Vec<_> = free.into_iter().map(|(name, free)| format!("{name} {free}")).collect();
        format!("free there: {}", free.join(", "))
    });
    format!("{} on {server:?} ({asked}; {})", slot, free.unwrap_or_else(|| "that node is gone".into()))
}

#[cfg(test)]
mod tests {
    use trainmaster_proto::v1;

    use super::*;

    #[test]
    fn each_slot_can_be_a_container() {
        let of = |incarnation, index| {
            let slot = v1::Slot { index, server: "a".into(), ..v1::Slot::default() };
            let plan = v1::JobPlan { job: 7, incarnation, slots: vec![slot], ..v1::JobPlan::default() };
            possible(Order::read(plan, |_| Some(None)).unwrap())
        };
        assert_eq!(of(1, 3).unwrap().run().unwrap().slots.len(), 1);
        assert!(of(0, 3).unwrap_err().contains("incarnation 0"));
        assert!(of(1, 1 << 31).unwrap_err().contains("worker 2147483648"));
    }
}
