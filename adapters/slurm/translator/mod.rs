//! The translation over time, as a state machine: observations and the core's state go in, events and orders come out.

mod observe;
mod orders;
mod spec;

use std::collections::BTreeMap;

use trainmaster_core::{
    DecisionId, Enactment, Event, Incarnation, JobId, ServerSpec, event::ObservedSlot, job::Phase, reason::ReasonKind,
};

use super::{
    Config,
    comment::{Given, Part, Tag},
    node::Own,
    order::{Action, CallResult, Purpose, SlurmCall, Update},
    seen::{Job, Memory},
};

/// Between Slurm and the core.
///
/// The host goes round: it loads an [`Observation`](super::seen::Observation), applies the events of
/// [`observe`](Self::observe) until there are no more, lets the core decide, carries out [`orders`](Self::orders), and
/// reports each answer with [`answered`](Self::answered), whose events it applies as well.
///
/// A new translator says everything anew, within one resync: after a restart of the host nothing is lost, since what
/// matters stands in the jobs' comments.
#[derive(Debug)]
pub struct Translator {
    config: Config,
    jobs: BTreeMap<u32, Tracked>,
    /// Their numbers by the core's.
    by_core: BTreeMap<JobId, u32>,
    /// Their numbers by those of their second components.
    by_part: BTreeMap<u32, u32>,
    servers: BTreeMap<String, (ServerSpec, BTreeMap<String, i64>)>,
    /// The memory that partitions give those who don't ask.
    defaults: BTreeMap<String, Memory>,
    synced: bool,
    /// When it was first shown anything.
    begun: Option<i64>,
    /// Unix time in seconds of the last observation.
    now: i64,
    /// What came up between observations.
    events: Vec<Event>,
}

/// A job of ours.
#[derive(Debug)]
struct Tracked {
    /// With its servers' component, where it has one ([`Job::with`]).
    seen: Job,
    tag: Tag,
    servers: Option<Servers>,
    core: Option<JobId>,
    /// Until then the core isn't asked to take it again.
    offered_until: i64,
    /// Why the core doesn't take it.
    refused: Option<String>,
    /// What the core was last told.
    told: Option<(Incarnation, Vec<ObservedSlot>, Phase)>,
    told_held: bool,
    /// What Slurm was last made to give it.
    given: Option<Given>,
    /// Why it waits, as its admin comment says.
    said: Option<Why>,
    /// What it holds of each node.
    own: BTreeMap<String, Own>,
    /// When it was first seen in the queue again. Slurm revokes the credentials of what it stops by the second: a job
    /// that starts within that second never does, and counts as failed.
    requeued: i64,
    /// When Slurm was told that it may start.
    let_go: Option<i64>,
    /// Since when the core no longer knows it.
    over_since: Option<i64>,
    /// What was ordered is not seen yet.
    ordered: bool,
    /// After errors: not before this, and how many there were in a row.
    retry: (i64, u32),
    /// What the order that is out means for the core.
    pending: Option<Pending>,
}

/// Why a pending job isn't let go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    Reason(ReasonKind),
    /// The core doesn't take it.
    NotTaken,
}

/// The component of a heterogeneous job that has its parameter servers; the leader has the workers.
#[derive(Debug)]
struct Servers {
    seen: Job,
    part: Part,
    /// What is to be asked for it beside the order that is out for the leader.
    update: Option<Update>,
    /// That was refused: the leader's answer comes too late.
    refused: bool,
}

/// An order whose answer the core hears of.
#[derive(Debug)]
struct Pending {
    decision: DecisionId,
    /// What it gives; none for a requeue, which is but the first half.
    gives: Option<Given>,
}

impl Translator {
    /// For a Slurm of which nothing is known yet.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            jobs: BTreeMap::new(),
            by_core: BTreeMap::new(),
            by_part: BTreeMap::new(),
            servers: BTreeMap::new(),
            defaults: BTreeMap::new(),
            synced: false,
            begun: None,
            now: 0,
            events: Vec::new(),
        }
    }

    /// Everything is said anew with the next observation.
    pub fn resync(&mut self) {
        self.synced = false;
        self.servers.clear();
        self.jobs.values_mut().for_each(|job| job.told = None);
    }

    /// The core's number for a job of Slurm's.
    pub fn job(&self, native: u32) -> Option<JobId> {
        self.jobs.get(&native)?.core
    }

    /// What Slurm was last made to give a job: incarnation and revision.
    pub fn given(&self, job: JobId) -> Option<(u32, u32)> {
        let given = self.jobs.get(self.by_core.get(&job)?)?.given.as_ref()?;
        Some((given.incarnation, given.revision))
    }

    /// Slurm's number for a job of the core's.
    pub fn native(&self, job: JobId) -> Option<u32> {
        self.by_core.get(&job).copied()
    }

    /// The core didn't accept an [`Event::JobSubmitted`] of [`observe`](Self::observe): its owner is told why, and it
    /// is offered again later.
    pub fn not_taken(&mut self, event: &Event, why: String) {
        if let Event::JobSubmitted { external: Some(external), .. } = event
            && let Some(job) = external.native.parse().ok().and_then(|native: u32| self.jobs.get_mut(&native))
        {
            job.refused = Some(why);
        }
    }

    /// What Slurm answered to an order, as events.
    pub fn answered(&mut self, order: &SlurmCall, answer: CallResult) -> Vec<Event> {
        let leader = self.by_part.get(&order.id).copied().unwrap_or(order.id);
        let Some(job) = self.jobs.get_mut(&leader) else { return Vec::new() };
        // The leader's answer comes last, and is for both.
        if let Some(servers) = &mut job.servers {
            let leads = order.id == job.seen.id;
            match (&answer, leads) {
                (Ok(()), false) => return Vec::new(),
                (Ok(()), true) if servers.refused => {
                    job.ordered = true;
                    return Vec::new();
                }
                (Err(_), false) => servers.refused = true,
                _ => {}
            }
        }
        let pending = job.pending.take();
        let Err(error) = answer else {
            job.ordered = true;
            job.retry = (0, 0);
            if let Action::Update(update) = &order.action {
                match update.purpose {
                    Purpose::Hold => job.let_go = None,
                    Purpose::Release => {
                        job.let_go = Some(self.now);
                        // As it was submitted: what it was given before is over.
                        if update.admin_comment.is_some() {
                            job.given = None;
                        }
                    }
                    Purpose::Start | Purpose::Shrink => {}
                }
            }
            // A restart is accepted once its second half is.
            let Some(Pending { decision, gives: Some(given) }) = pending else { return Vec::new() };
            job.given = Some(given);
            job.let_go = Some(self.now);
            return enacted(job.core, decision, Enactment::Accepted);
        };
        // The next observation shows it.
        if error.is_gone() {
            job.ordered = true;
            return Vec::new();
        }
        let (_, failures) = job.retry;
        job.retry = (self.now + (1 << failures.min(6)), failures.saturating_add(1));
        job.said = None;
        let keeps = |update: &Update| matches!(update.purpose, Purpose::Hold | Purpose::Release);
        let tells = !matches!(&order.action, Action::Update(update) if keeps(update));
        let Some(Pending { decision, .. }) = pending.filter(|_| tells) else { return Vec::new() };
        let refusal = Enactment::Refused { cause: error.to_string().into(), retry_after: error.retry_after() };
        enacted(job.core, decision, refusal)
    }
}

fn enacted(job: Option<JobId>, decision: DecisionId, result: Enactment) -> Vec<Event> {
    job.map(|job| Event::Enacted { decision, job, result }).into_iter().collect()
}
