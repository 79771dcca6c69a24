//! YARN's cluster as a state machine. The inputs are the ResourceManager's reports and the daemon's plans. The outputs
//! are the plug-ins' plan, ApplicationMasters' orders, and messages and requests to the daemon. It has no I/O and no
//! clock: `now` is the time since the adapter's start, and `clock_ms` the Unix time.

mod app;
mod labels;
mod orders;
#[cfg(test)]
mod random;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use trainmaster_core::{JobSpec, Role};
use trainmaster_manager::{Follower, Follows, Named, Order, PlanAnswer, Snapshot, Taken};
use trainmaster_proto::{spec_from_job, v1};

use self::app::{App, End, Link, Refusal, possible};
pub(crate) use self::orders::alone;
use super::{
    amounts,
    cluster_state::{ClusterState, is_queue},
    config::{Accounts, Api, Config},
    jobfile,
    nodes::{self, Nodes},
    secret::SecretHash,
    wire,
};
use crate::{foreign::ForeignUse, load::Meter};

/// Wait before the daemon is asked again if it couldn't answer.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Time after which a warning says that an application without a job is left alone.
const LEFT_ALONE: Duration = Duration::from_secs(10);
/// Maximum time between two queries of the daemon's jobs. It reports jobs that no plan has named yet only when it is
/// queried.
const LOOK_UP: Duration = Duration::from_secs(30);
/// The queue of a job file that names none.
const NO_QUEUE: &str = "default";

/// Requests and answers for the daemon.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Requests {
    /// Applications with their jobs, in the order of their submission. No more are added until all of them are
    /// answered.
    pub(crate) submit: Vec<(String, JobSpec)>,
    pub(crate) cancel: Vec<u64>,
    /// Plans that can't be carried out, with their decisions.
    pub(crate) refused: Vec<(u64, PlanAnswer)>,
    /// Whether to query the daemon for its jobs and their specifications, because YARN doesn't report them.
    pub(crate) look_up: bool,
}

/// The daemon's answer to a submission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Submitted {
    Job(u64),
    NameTaken(String),
    Refused(String),
    /// It can't answer now.
    Away,
}

/// The answer to ApplicationMasters and plug-ins if there is no plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoPlan;

/// All applications and nodes of a YARN cluster.
#[derive(Debug)]
pub(crate) struct Translator {
    config: Arc<Config>,
    /// The environment of all jobs' processes, in addition to their own.
    environment: BTreeMap<String, String>,
    nodes: Nodes,
    foreign: ForeignUse<String>,
    meter: Meter,
    /// Time of the next report of the nodes' loads.
    measure_at: Duration,
    servers: Arc<BTreeMap<String, v1::Server>>,
    apps: BTreeMap<String, App>,
    /// Applications by job.
    jobs: HashMap<u64, String>,
    follower: Follower,
    /// Whether a full plan arrived since the daemon attached (again). Then the daemon doesn't have jobs that it doesn't
    /// name.
    synced: bool,
    /// The last plan for the plug-ins, and its number.
    told: (Vec<wire::ApplicationPlan>, u64),
    /// The number of the plan that they enforce.
    enforced: u64,
    /// The maximum container, by YARN's names.
    largest: HashMap<String, i64>,
    /// The errors in the last snapshot.
    complaints: BTreeSet<String>,
    /// Time of the next query of the daemon's jobs.
    look_up_at: Duration,
}

impl Translator {
    pub(crate) fn new(config: Arc<Config>, environment: BTreeMap<String, String>) -> Self {
        Self {
            config,
            environment,
            nodes: Nodes::default(),
            foreign: ForeignUse::default(),
            meter: Meter::default(),
            measure_at: Duration::ZERO,
            servers: Arc::default(),
            apps: BTreeMap::new(),
            jobs: HashMap::new(),
            follower: Follower::default(),
            synced: false,
            told: (Vec::new(), 0),
            enforced: 0,
            largest: HashMap::new(),
            complaints: BTreeSet::new(),
            look_up_at: LOOK_UP,
        }
    }

    /// The daemon is connected.
    pub(crate) fn attached(&mut self) {
        self.follower.attached();
        self.synced = false;
    }

    /// Takes a plan. Returns answers for the jobs that it changes.
    pub(crate) fn plan(&mut self, now: Duration, plan: v1::Plan) -> Vec<PlanAnswer> {
        self.follow(now, plan)
    }

    /// Takes the daemon's jobs, and links applications to them. These are jobs from before this adapter's start and, if
    /// YARN doesn't report what applications are, also later ones.
    pub(crate) fn learn(&mut self, now: Duration, jobs: Vec<v1::JobStatus>) {
        for job in jobs {
            let Some(external) = job.external else { continue };
            if self.objection(&external.native, job.job, &job.tenant).is_some() {
                continue;
            }
            self.link(&external.native, job.job, &job.tenant);
            if self.config.api == Api::PlugIns {
                continue;
            }
            let app = self.apps.get_mut(&external.native).expect("just linked");
            match job.spec.map(spec_from_job) {
                Some(Ok(spec)) => app.spec = Some(spec),
                Some(Err(error)) => {
                    tracing::warn!(job = job.job, %error, "the daemon tells of a job that makes no sense");
                }
                None => {}
            }
            app.learn(job.incarnation, &job.slots);
        }
        // Some apparent foreign use is these jobs'.
        self.look_at_servers(now, &mut BTreeSet::new());
    }

    /// Why an application can't be this job of this tenant. Without plug-ins, what an application is comes from the
    /// daemon, and so from anyone who can submit. A submission for a tenant other than the application's user would run
    /// commands as that user. If tenants aren't users, the first job stays.
    fn objection(&self, application: &str, job: u64, tenant: &str) -> Option<String> {
        let app = self.apps.get(application).filter(|_| self.config.api == Api::Rest)?;
        match (self.config.accounts, app.job()) {
            (Accounts::Yarn, _) => app.is_anothers(tenant),
            (Accounts::Job, Some(other)) if other != job => Some(format!("{application} is job {other}")),
            (Accounts::Job, _) => None,
        }
    }

    /// Unlinks an application that was linked to a job before its user was known.
    fn check_owner(&mut self, application: &str) {
        let Some(app) = self.apps.get(application) else { return };
        if let (Some(job), Some(problem)) =
            (app.job(), app.job().and_then(|job| self.objection(application, job, &app.tenant)))
        {
            tracing::warn!(application, job, problem, "it isn't this job");
            self.jobs.remove(&job);
            let app = self.apps.get_mut(application).expect("just found");
            app.unlink();
            app.spec = None;
        }
    }

    /// Links an application to a job. A daemon that lost its state reuses numbers, so the application that had this
    /// number is another job.
    fn link(&mut self, application: &str, job: u64, tenant: &str) {
        if self.jobs.get(&job).is_some_and(|linked| linked == application) {
            return;
        }
        if let Some(other) = self.jobs.insert(job, application.to_owned())
            && let Some(other) = self.apps.get_mut(&other)
        {
            other.unlink();
        }
        let app = self.apps.entry(application.to_owned()).or_default();
        if let Some(other) = app.job() {
            self.jobs.remove(&other);
            app.unlink();
        }
        app.link = Link::Job(job);
        tenant.clone_into(&mut app.tenant);
    }

    /// Takes the daemon's answer to a submission.
    pub(crate) fn submitted(&mut self, now: Duration, application: &str, answer: Submitted) {
        let Some(app) = self.apps.get_mut(application) else { return };
        if app.link != Link::Asked {
            return;
        }
        match answer {
            Submitted::Job(job) => {
                let tenant = app.spec.as_ref().map_or_else(String::new, |spec| spec.tenant.clone());
                self.link(application, job, &tenant);
            }
            Submitted::NameTaken(_) if !app.numbered => {
                app.numbered = true;
                let spec = app.spec.as_mut().expect("it was submitted");
                spec.name = jobfile::numbered(&spec.name, application);
                app.link = Link::None;
            }
            Submitted::NameTaken(why) | Submitted::Refused(why) => {
                tracing::warn!(application, why, "an application can't be a job");
                app.link = Link::Refused(why);
            }
            Submitted::Away => {
                app.link = Link::None;
                app.ask_at = now + ASK_AGAIN;
            }
        }
    }

    /// Notes that the daemon couldn't be asked to cancel a job.
    pub(crate) fn cancel_failed(&mut self, job: u64) {
        if let Some(app) = self.jobs.get(&job).and_then(|app| self.apps.get_mut(app)) {
            app.cancelling = false;
        }
    }

    /// Takes the ResourceManager's report. Cost: O(nodes + applications + containers).
    pub(crate) fn see(&mut self, now: Duration, cluster: wire::Cluster) {
        self.take(now, cluster, None);
    }

    /// The same for a report without the slots of containers.
    pub(crate) fn see_roles(&mut self, now: Duration, told: ClusterState) {
        self.take(now, told.cluster, Some(&told.roles));
    }

    fn take(&mut self, now: Duration, mut cluster: wire::Cluster, roles: Option<&BTreeMap<String, Role>>) {
        let is_free = self.time_left(now).is_err() && self.follower.stamp().is_some();
        let mut complaints = BTreeSet::new();
        self.enforced = cluster.enforced;
        self.largest = cluster.largest_container.clone();
        self.nodes.see(now, &mut cluster, |complaint| _ = complaints.insert(complaint));
        let mut told = BTreeSet::new();
        for mut row in cluster.applications {
            if row.id.is_empty() || !told.insert(row.id.clone()) {
                complaints.insert(format!("application {:?} is told of without an id, or twice; ignored", row.id));
                continue;
            }
            let app = self.apps.entry(row.id.clone()).or_default();
            if let Some(roles) = roles {
                let expected = app.expected(&self.nodes, is_free);
                app.keep_awaited(&mut row, &self.nodes);
                labels::assign(&mut app.labels, &mut row.containers, |id| roles.get(id).copied(), &expected);
            }
            let id = row.id.clone();
            app.see(row, &self.nodes, &self.config, &self.largest, |complaint| _ = complaints.insert(complaint));
            self.check_owner(&id);
        }
        let jobs = &mut self.jobs;
        self.apps.retain(|id, app| {
            let forgotten = !told.contains(id) && app.miss(now, id);
            if forgotten && let Some(job) = app.job() {
                jobs.remove(&job);
            }
            !forgotten
        });
        self.look_at_servers(now, &mut complaints);
        for complaint in complaints.difference(&self.complaints) {
            tracing::warn!("the ResourceManager tells what makes no sense: {complaint}");
        }
        self.complaints = complaints;
    }

    fn look_at_servers(&mut self, now: Duration, complaints: &mut BTreeSet<String>) {
        // The amounts that the daemon counts for the observed slots. Any other allocated amounts are foreign use.
        let mut ours: BTreeMap<&str, BTreeMap<String, i64>> = BTreeMap::new();
        for app in self.apps.values().filter(|app| app.job().is_some()) {
            for (slot, held) in app.held(&self.nodes) {
                let of = || format!("container {}", held.container.id);
                let has = amounts::read(&of(), &held.container.resource, |complaint| _ = complaints.insert(complaint));
                let Some(demand) = app.demand(slot.role) else { continue };
                let counted = ours.entry(held.server).or_default();
                for (name, amount) in has {
                    // YARN rounds containers up.
                    *counted.entry(name.clone()).or_default() += amount.min(demand.get(&name).copied().unwrap_or(0));
                }
            }
        }
        self.foreign.retain(|server| self.nodes.node(server).is_some());
        let mut seen = BTreeMap::new();
        for (name, node) in self.nodes.iter() {
            let of = format!("use of node {:?}", node.id);
            let mut used = amounts::read(&of, &node.allocated, |complaint| _ = complaints.insert(complaint));
            used.retain(|resource, amount| {
                *amount -= ours.get(name).and_then(|ours| ours.get(resource)).copied().unwrap_or(0);
                *amount > 0
            });
            let used = self.foreign.settle(now, &name.to_owned(), used);
            let server = nodes::server(name, node, &self.config, used, |complaint| _ = complaints.insert(complaint));
            seen.insert(name.to_owned(), server);
        }
        if *self.servers != seen {
            self.servers = Arc::new(seen);
        }
    }

    /// Returns the requests that are due. Cost: O(applications + slots).
    pub(crate) fn step(&mut self, now: Duration) -> Requests {
        let mut step = Requests::default();
        let is_asking = self.apps.values().any(|app| app.link == Link::Asked);
        for (id, app) in &mut self.apps {
            if let Some(Refusal { cause, retry_after }) = app.overdue(now, &self.nodes, &self.config) {
                app.refused = Some(cause.clone());
                let job = app.job().expect("only jobs have plans");
                step.refused.push((app.decision, PlanAnswer { retry_after, ..PlanAnswer::refused(job, cause) }));
            }
            let over = app.end.is_some() || app.row.is_none();
            if self.synced && !is_asking && app.link == Link::None && !over && now >= app.ask_at {
                let Some(spec) = &app.spec else { continue };
                step.submit.push((id.clone(), spec.clone()));
                app.link = Link::Asked;
            }
            let killed = matches!(app.end, Some(End::Killed(_))) && !app.order.as_ref().is_some_and(Order::ends);
            if let Some(job) = app.job().filter(|_| killed && self.synced && !app.cancelling) {
                app.cancelling = true;
                step.cancel.push(job);
            }
        }
        if self.config.api == Api::Rest {
            step.look_up = self.is_to_look_up(now);
        }
        // In the order of submission. Ids are longer after the 9,999th.
        step.submit.sort_by(|(one, _), (other, _)| (one.len(), one).cmp(&(other.len(), other)));
        step
    }

    /// Whether to query the daemon for its jobs: soon if an application waits for the answer. Logs which applications
    /// aren't jobs.
    fn is_to_look_up(&mut self, now: Duration) -> bool {
        let mut is_wanted = now >= self.look_up_at;
        for (id, app) in &mut self.apps {
            let is_live = app.row.is_some() && app.end.is_none();
            if !is_live || (app.job().is_some() && app.spec.is_some()) {
                app.jobless = None;
                continue;
            }
            let (since, said) = app.jobless.get_or_insert((now, false));
            // After this time, the job isn't expected any more.
            let is_new = now < *since + LEFT_ALONE;
            is_wanted |= is_new && now >= app.ask_at;
            if is_wanted {
                app.ask_at = now + ASK_AGAIN;
            }
            if !is_new && !std::mem::replace(said, true) {
                tracing::warn!(
                    application = id,
                    "the scheduler has no job of this application; it is left alone. `trainmaster yarn submit` \
                     submits both"
                );
            }
        }
        if is_wanted {
            self.look_up_at = now + LOOK_UP;
        }
        is_wanted
    }

    /// Applications whose job's end isn't known. The ResourceManager can report them though they aren't active.
    pub(crate) fn unended(&self) -> Vec<String> {
        let known = self.apps.iter().filter(|(_, app)| app.job().is_some() && app.end.is_none());
        known.map(|(id, _)| id.clone()).collect()
    }

    /// Applications in a queue other than their job file's, each with its current and its correct queue.
    pub(crate) fn misplaced(&self) -> Vec<(String, String, String)> {
        let misplaced = |(id, app): (&String, &App)| {
            let row = app.row.as_ref().filter(|_| app.end.is_none() && app.job().is_some())?;
            let queue = &app.spec.as_ref()?.queue;
            let is_there = queue == NO_QUEUE || row.queue.is_empty() || is_queue(&row.queue, queue);
            (!is_there).then(|| (id.clone(), row.queue.clone(), queue.clone()))
        };
        self.apps.iter().filter_map(misplaced).collect()
    }

    /// An application's last reported priority.
    pub(crate) fn priority(&self, application: &str) -> Option<i32> {
        Some(self.apps.get(application)?.row.as_ref()?.priority)
    }

    /// The complete state for the daemon.
    pub(crate) fn snapshot(&mut self) -> Snapshot {
        self.meter.know(&self.servers);
        let jobs = self.apps.values().filter_map(|app| Some((app.job()?, app.observe(app.job()?, &self.nodes))));
        Snapshot { servers: self.servers.clone(), jobs: jobs.collect() }
    }

    /// Returns the nodes' loads that the daemon doesn't know, if it is time for them. Cost: O(nodes).
    pub(crate) fn measured(&mut self, now: Duration) -> Vec<v1::ServerUse> {
        let Some(every) = self.config.measure.filter(|_| now >= self.measure_at) else { return Vec::new() };
        self.measure_at = now + every;
        let load = |(server, node): (&str, &wire::Node)| (server.to_owned(), amounts::load(&node.used, &node.capacity));
        self.meter.changed(self.nodes.iter().map(load).collect())
    }

    /// The daemon knows no loads.
    pub(crate) fn forget_loads(&mut self) {
        self.meter.forget();
        self.measure_at = Duration::ZERO;
    }

    /// Checks that each slot of a job fits in one container.
    ///
    /// # Errors
    /// The error names the excessive amount and the maximum.
    pub(crate) fn check_size(&self, spec: &JobSpec) -> Result<(), String> {
        amounts::check_size(spec, &self.largest)
    }

    /// Whether there are nodes to schedule on.
    pub(crate) fn has_nodes(&self) -> bool {
        self.nodes.iter().next().is_some()
    }

    /// The hash of an application's secret, which its ApplicationMaster uses. `None`: there is no such application, or
    /// it has no secret.
    pub(crate) fn secret(&self, application: &str) -> Option<SecretHash> {
        SecretHash::parse(&self.apps.get(application)?.row.as_ref()?.secret_hash)
    }
}

impl Follows for Translator {
    fn follower(&mut self) -> &mut Follower {
        &mut self.follower
    }

    fn devices(&self, server: &str) -> Option<Option<usize>> {
        self.servers.contains_key(server).then_some(None)
    }

    fn order(&mut self, now: Duration, named: &Named, order: Result<Order, String>) -> Taken {
        let refused = |cause: String| if named.runs { Taken::Refused(cause) } else { Taken::Ignored };
        if let Some(external) = &named.external
            && external.cluster == self.config.name
        {
            if let Some(problem) = self.objection(&external.native, named.job, &named.tenant) {
                return refused(problem);
            }
            self.link(&external.native, named.job, &named.tenant);
        }
        let Some(app) = self.jobs.get(&named.job).and_then(|app| self.apps.get_mut(app)) else {
            return refused("it is no application: jobs on YARN are submitted to YARN".into());
        };
        app.decision = named.decision;
        app.listed = true;
        match order.and_then(possible) {
            Err(cause) => Taken::Refused(cause),
            Ok(order) if app.order.as_ref() == Some(&order) && app.refused.is_none() => Taken::Same,
            Ok(order) => {
                app.plan(now, order);
                Taken::New
            }
        }
    }

    fn unlisted(&mut self, _: Duration, _: u64, listed: &BTreeSet<u64>) {
        self.synced = true;
        let missing = |app: &&mut App| app.listed && app.job().is_some_and(|job| !listed.contains(&job));
        for app in self.apps.values_mut().filter(missing) {
            self.jobs.retain(|job, _| app.job() != Some(*job));
            app.unlink();
        }
    }
}
