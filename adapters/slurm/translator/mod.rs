//! The translation over time, as a state machine. The inputs are observations and plans, and the outputs are events and
//! calls.

mod calls;
mod follow;
mod observe;
mod spec;

use std::collections::{BTreeMap, BTreeSet};

use trainmaster_core::{
    DecisionId, Enactment, Event, Incarnation, JobId, Role, ServerSpec, event::ObservedSlot, job::Phase,
};
use trainmaster_manager::{Follower, Order};

pub use self::follow::plan_of;
use super::{
    Config,
    call::{Action, CallResult, Purpose, SlurmCall, Update},
    comment::{Given, Part, Tag},
    node::Own,
    seen::{Job, Memory},
};

/// Translates between Slurm and the core.
///
/// First the host passes the full plan ([`plan_of`]) to [`plan`](Self::plan), and later each change of it. In each
/// round, it loads an [`Observation`](super::seen::Observation), and applies the events of [`observe`](Self::observe).
/// If jobs were submitted, it does so again with the same observation, because their states are reported under the
/// numbers in the plan. It lets the core decide, and makes the [`calls`](Self::calls). It reports each answer with
/// [`answered`](Self::answered), and applies the resulting events too.
///
/// A new translator reports the whole state again, within one resync. Nothing is lost at a restart of the host, because
/// all necessary data is in the plan and in the jobs' comments.
#[derive(Debug)]
pub struct Translator {
    config: Config,
    follower: Follower,
    /// The orders in force, by Slurm's numbers.
    orders: BTreeMap<u32, Ordered>,
    jobs: BTreeMap<u32, Tracked>,
    /// Slurm's numbers of jobs, by the core's.
    by_core: BTreeMap<JobId, u32>,
    /// Slurm's numbers of jobs, by those of their second components.
    by_part: BTreeMap<u32, u32>,
    servers: BTreeMap<String, (ServerSpec, BTreeMap<String, i64>)>,
    /// The reported loads: used CPUs in thousandths.
    loads: BTreeMap<String, i64>,
    /// The default memory of each partition.
    defaults: BTreeMap<String, Memory>,
    synced: bool,
    /// Time of the first observation.
    begun: Option<i64>,
    /// Unix time in seconds of the last observation.
    now: i64,
    /// Events that occurred between observations.
    events: Vec<Event>,
}

/// A job's order in the plan.
#[derive(Debug)]
struct Ordered {
    /// The core's number of the job.
    job: JobId,
    decision: DecisionId,
    order: Order,
    /// Whether the core waits until it is told that the job's slots are free.
    frees: bool,
}

/// A job of Trainmaster's.
#[derive(Debug)]
struct Tracked {
    /// Merged with its servers' component, if there is one ([`Job::with`]).
    seen: Job,
    tag: Tag,
    servers: Option<Servers>,
    /// Time until which the job isn't submitted to the core again.
    offered_until: i64,
    /// Why the core didn't accept it.
    refused: Option<String>,
    /// The last reported observation.
    told: Option<(Incarnation, Vec<ObservedSlot>, Phase)>,
    /// Whether the core was told that its owner holds it. `None`: this isn't known.
    told_held: Option<bool>,
    /// Whether its end was reported.
    told_end: bool,
    /// The last allocation that Slurm gave it on request.
    given: Option<Given>,
    /// The change in place for which processes leave nodes.
    leaving: Option<Leaving>,
    /// Why it waits, as stated in its admin comment.
    said: Option<Why>,
    /// The resources that it holds on each node.
    own: BTreeMap<String, Own>,
    /// When it was first seen in the queue again. Slurm revokes the credentials of a stopped job with a resolution of
    /// one second. A job that starts within that second never runs, and counts as failed.
    requeued: i64,
    /// When it was released to Slurm's scheduler.
    let_go: Option<i64>,
    /// Time since which its training is done.
    done_since: Option<i64>,
    /// Whether the effect of a call hasn't been observed yet.
    called: bool,
    /// After errors: the time of the next attempt, and the number of consecutive errors.
    retry: (i64, u32),
    /// The meaning of the unanswered call for the core.
    pending: Option<Pending>,
}

/// A running job's change to fewer nodes. Slurm kills what runs on a node that a job gives up, and a killed process
/// would make the job fail. So the processes there leave first.
#[derive(Debug)]
struct Leaving {
    incarnation: u32,
    revision: u32,
    slots: BTreeSet<(Role, u32)>,
    /// When the last of them were told.
    since: i64,
    /// Time since which all of them have left.
    left: Option<i64>,
}

/// Why a pending job isn't released.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Why {
    /// The kind of the plan's reason.
    Reason(String),
    /// The core didn't accept it.
    NotTaken,
}

/// The component of a heterogeneous job with its parameter servers. The leader has the workers.
#[derive(Debug)]
struct Servers {
    seen: Job,
    part: Part,
    /// The component's own update, sent together with the leader's call.
    update: Option<Update>,
    /// Whether that update was refused. Then the leader's answer is ignored.
    refused: bool,
}

/// A call whose answer is reported to the core.
#[derive(Debug)]
struct Pending {
    decision: DecisionId,
    /// The call's allocation. `None` for a requeue, which is only the first half of a restart.
    gives: Option<Given>,
}

impl Translator {
    /// Creates a translator without any observation.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            follower: Follower::default(),
            orders: BTreeMap::new(),
            jobs: BTreeMap::new(),
            by_core: BTreeMap::new(),
            by_part: BTreeMap::new(),
            servers: BTreeMap::new(),
            loads: BTreeMap::new(),
            defaults: BTreeMap::new(),
            synced: false,
            begun: None,
            now: 0,
            events: Vec::new(),
        }
    }

    /// Reports the whole state again with the next observation.
    pub fn resync(&mut self) {
        self.synced = false;
        self.servers.clear();
        self.loads.clear();
        self.jobs.values_mut().for_each(|job| job.told = None);
    }

    /// Whether the scheduler has the whole state.
    pub fn is_synced(&self) -> bool {
        self.synced
    }

    /// The core's number for Slurm's job.
    pub fn job(&self, native: u32) -> Option<JobId> {
        Some(self.orders.get(&native)?.job)
    }

    /// The allocation that a job's programs follow, as incarnation and revision: the last one that Slurm gave it, or
    /// the one for which some of them have to leave first.
    pub fn given(&self, job: JobId) -> Option<(u32, u32)> {
        let job = self.jobs.get(self.by_core.get(&job)?)?;
        let leaving = job.leaving.as_ref().map(|leaving| (leaving.incarnation, leaving.revision));
        leaving.or_else(|| job.given.as_ref().map(|given| (given.incarnation, given.revision)))
    }

    /// Slurm's number for the core's job.
    pub fn native(&self, job: JobId) -> Option<u32> {
        self.by_core.get(&job).copied()
    }

    /// Call this if the core didn't accept an [`Event::JobSubmitted`] of [`observe`](Self::observe). The owner gets the
    /// cause, and the job is submitted again later.
    pub fn not_taken(&mut self, event: &Event, why: String) {
        if let Event::JobSubmitted { external: Some(external), .. } = event
            && let Some(job) = external.native.parse().ok().and_then(|native: u32| self.jobs.get_mut(&native))
        {
            job.refused = Some(why);
        }
    }

    /// Converts Slurm's answer to a call into events.
    pub fn answered(&mut self, call: &SlurmCall, answer: CallResult) -> Vec<Event> {
        let leader = self.by_part.get(&call.id).copied().unwrap_or(call.id);
        let core = self.job(leader);
        let Some(job) = self.jobs.get_mut(&leader) else { return Vec::new() };
        // The leader's answer arrives last, and is for both components.
        if let Some(servers) = &mut job.servers {
            let leads = call.id == job.seen.id;
            match (&answer, leads) {
                (Ok(()), false) => return Vec::new(),
                (Ok(()), true) if servers.refused => {
                    job.called = true;
                    return Vec::new();
                }
                (Err(_), false) => servers.refused = true,
                _ => {}
            }
        }
        let pending = job.pending.take();
        let Err(error) = answer else {
            job.called = true;
            job.retry = (0, 0);
            if let Action::Update(update) = &call.action {
                match update.purpose {
                    Purpose::Hold => job.let_go = None,
                    Purpose::Release => {
                        job.let_go = Some(self.now);
                        // It is as submitted, so its previous allocation is void.
                        if update.admin_comment.is_some() {
                            job.given = None;
                        }
                    }
                    Purpose::Start | Purpose::Shrink => {}
                }
            }
            // A restart is accepted after its second half.
            let Some(Pending { decision, gives: Some(given) }) = pending else { return Vec::new() };
            job.given = Some(given);
            job.leaving = None;
            job.let_go = Some(self.now);
            return enacted(core, decision, Enactment::Accepted);
        };
        // The next observation reports it.
        if error.is_gone() {
            job.called = true;
            return Vec::new();
        }
        let (_, failures) = job.retry;
        job.retry = (self.now + (1 << failures.min(6)), failures.saturating_add(1));
        job.said = None;
        let keeps = |update: &Update| matches!(update.purpose, Purpose::Hold | Purpose::Release);
        let tells = !matches!(&call.action, Action::Update(update) if keeps(update));
        let Some(Pending { decision, .. }) = pending.filter(|_| tells) else { return Vec::new() };
        let refusal = Enactment::Refused { cause: error.to_string().into(), retry_after: error.retry_after() };
        enacted(core, decision, refusal)
    }
}

fn enacted(job: Option<JobId>, decision: DecisionId, result: Enactment) -> Vec<Event> {
    job.map(|job| Event::Enacted { decision, job, result }).into_iter().collect()
}
