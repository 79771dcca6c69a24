//! All jobs of the machine as a state machine. The inputs are plans, exits and time, and the outputs are starts and
//! signals. It has no I/O and no clock: `now` is the time since the adapter's start.

mod actions;
mod capacity;
mod job;
mod observe;
pub(crate) mod plan;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use trainmaster_manager::{Follower, Follows, Named, Order, Placement, PlanAnswer, Taken};
use trainmaster_proto::v1;

pub(crate) use self::actions::{Action, Actions, Exit, Failure, Policy, Signal};
use self::{
    job::{Job, Now},
    plan::{Resolve, Run, Wanted},
};
use super::{cluster::Cluster, slot::ProcessId};

/// Maximum number of ended jobs that the plan still names. Beyond it, the jobs with the lowest numbers are forgotten.
const KEPT_OUTCOMES: usize = 256;

/// A living process that an earlier run of the adapter left.
#[derive(Clone, Debug)]
pub(crate) struct Adopted {
    pub(crate) id: ProcessId,
    pub(crate) name: String,
    pub(crate) placement: Placement,
    pub(crate) token: String,
}

/// All jobs of this machine.
#[derive(Debug)]
pub(crate) struct Fleet {
    cluster: Arc<Cluster>,
    policy: Policy,
    jobs: BTreeMap<u64, Job>,
    /// Jobs whose last plan was refused, with their names. They haven't ended, so their files are kept.
    refused: BTreeMap<u64, String>,
    follower: Follower,
    /// Changes of the plan that is being taken.
    changed: Vec<(u64, Wanted)>,
    resolve: Resolve,
    attached: Option<Duration>,
    claims_end: Option<Duration>,
    ending: bool,
}

impl Fleet {
    pub(crate) fn new(cluster: Arc<Cluster>, policy: Policy, resolve: Resolve, adopted: Vec<Adopted>) -> Self {
        let mut jobs: BTreeMap<u64, Job> = BTreeMap::new();
        for Adopted { id, name, placement, token } in adopted {
            let job = jobs.entry(id.job).or_insert_with(|| Job::unclaimed(name));
            job.adopt(id.incarnation, id.slot, placement, token, Duration::ZERO);
        }
        Self {
            cluster,
            policy,
            jobs,
            refused: BTreeMap::new(),
            follower: Follower::default(),
            changed: Vec::new(),
            resolve,
            attached: None,
            claims_end: None,
            ending: false,
        }
    }

    /// The daemon is connected.
    pub(crate) fn attached(&mut self, now: Duration) {
        self.attached = Some(now);
        self.follower.attached();
    }

    /// The connection to the daemon is lost.
    pub(crate) fn detached(&mut self) {
        self.attached = None;
    }

    /// From now on, all processes are stopped and none is started.
    pub(crate) fn end(&mut self) {
        self.ending = true;
    }

    /// Whether any process is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.jobs.values().all(|job| job.processes.is_empty())
    }

    /// Takes a plan. Returns answers for the jobs that it changes.
    pub(crate) fn plan(&mut self, now: Duration, plan: v1::Plan) -> Vec<PlanAnswer> {
        self.claims_end.get_or_insert(now.saturating_add(self.policy.claim));
        self.follow(now, plan)
    }

    /// Whether a full plan arrived. Then jobs that it doesn't name have ended.
    pub(crate) fn knows_all(&self) -> bool {
        self.follower.knows_all()
    }

    /// Handles the end of a process. If it failed, returns a message for people: how, the number of failures, and the
    /// consequence.
    pub(crate) fn exited(&mut self, now: Duration, id: ProcessId, failure: Failure) -> Option<&str> {
        let now = self.now(now);
        self.jobs.get_mut(&id.job)?.exited(id.incarnation, id.slot, failure, now, &self.policy)
    }

    /// Handles a process that couldn't be started. Returns a message for people.
    pub(crate) fn not_started(&mut self, now: Duration, id: ProcessId, cause: String) -> Option<&str> {
        let now = self.now(now);
        let failure = Failure { exit: Exit::NotStarted, said: Some(cause), log: None };
        self.jobs.get_mut(&id.job)?.not_started(id.incarnation, id.slot, &failure, now, &self.policy)
    }

    /// Returns the actions that are due, and the time of the next step.
    pub(crate) fn step(&mut self, now: Duration) -> Actions {
        let now = self.now(now);
        let mut step = Actions { now: now.at, actions: Vec::new(), wake: None };
        for (id, job) in &mut self.jobs {
            job.reconcile(*id, now, &self.policy, &mut step);
        }
        if let Some(expires) = self.follower.expires() {
            step.wake_at(expires);
        }
        step
    }

    /// Forgets jobs that ended and that no plan keeps. Called after their last observation.
    pub(crate) fn forget_over(&mut self) {
        self.jobs.retain(|_, job| !job.is_over());
    }

    /// Name, shape and placement of a slot to start.
    pub(crate) fn order(&self, id: ProcessId) -> Option<(&str, &Run, &Placement)> {
        let job = self.jobs.get(&id.job)?;
        let run = job.run()?;
        Some((&job.name, run, run.slots.get(&id.slot)?))
    }

    /// Number and name of every job whose files may still be needed.
    pub(crate) fn active(&self) -> impl Iterator<Item = (u64, &str)> {
        let active = self.jobs.iter().filter(|(_, job)| job.is_active()).map(|(id, job)| (*id, job.name.as_str()));
        active.chain(self.refused.iter().map(|(id, name)| (*id, name.as_str())))
    }

    /// Returns all jobs that have or had processes or a shape here, for the manager protocol.
    pub(crate) fn observe(&self, now: Duration) -> BTreeMap<u64, v1::ObservedJob> {
        let now = self.now(now);
        let jobs = self.jobs.iter().filter(|(_, job)| job.is_worth_a_word());
        jobs.map(|(id, job)| (*id, observe::job(*id, job, now))).collect()
    }

    fn now(&self, at: Duration) -> Now {
        Now {
            at,
            standing: self.follower.expires().is_none_or(|expires| at < expires),
            ending: self.ending,
            attached: self.attached,
            claims_end: self.claims_end,
        }
    }

    /// Records a refused plan, which changes nothing. Returns the cause.
    fn refuse(&mut self, id: u64, name: String, cause: String) -> String {
        self.refused.insert(id, name);
        if let Some(job) = self.jobs.get_mut(&id) {
            job.hold(self.policy.grace);
        }
        cause
    }

    fn bound_outcomes(&mut self) {
        let ended: Vec<u64> =
            self.jobs.iter().filter(|(_, job)| job.outcome.is_some() && !job.is_active()).map(|(id, _)| *id).collect();
        for id in ended.iter().take(ended.len().saturating_sub(KEPT_OUTCOMES)) {
            self.jobs.remove(id);
        }
    }
}

impl Follows for Fleet {
    fn follower(&mut self) -> &mut Follower {
        &mut self.follower
    }

    fn devices(&self, server: &str) -> Option<Option<usize>> {
        Some(Some(self.cluster.server(server)?.devices().len()))
    }

    fn order(&mut self, _: Duration, job: &Named, order: Result<Order, String>) -> Taken {
        self.refused.remove(&job.job);
        match order.and_then(|order| Wanted::of(order, &self.cluster, &self.resolve)) {
            Err(cause) => Taken::Refused(self.refuse(job.job, job.name.clone(), cause)),
            Ok(wanted) if self.jobs.get(&job.job).and_then(|job| job.wanted.as_ref()) == Some(&wanted) => Taken::Same,
            Ok(wanted) => {
                self.changed.push((job.job, wanted));
                Taken::Later
            }
        }
    }

    fn unlisted(&mut self, _: Duration, _: u64, listed: &BTreeSet<u64>) {
        self.refused.retain(|job, _| listed.contains(job));
        for (_, job) in self.jobs.iter_mut().filter(|(id, _)| !listed.contains(id)) {
            job.drop_plan();
        }
    }

    fn taken(&mut self, _: Duration) -> Vec<PlanAnswer> {
        let mut changed = std::mem::take(&mut self.changed);
        let mut answers = Vec::new();
        for (id, name, cause) in capacity::prune(&self.cluster, &self.jobs, &mut changed) {
            answers.push(PlanAnswer::refused(id, self.refuse(id, name, cause)));
        }
        for (id, wanted) in changed {
            answers.push(PlanAnswer::accepted(id));
            self.jobs.entry(id).or_default().plan(wanted);
        }
        self.bound_outcomes();
        answers
    }
}
