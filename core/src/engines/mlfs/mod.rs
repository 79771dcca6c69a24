//! MLFS: tasks of model-parallel jobs, ordered by their contribution to accuracy and deadlines, on servers with
//! measured load.
//!
//! Wang, Liu and Shen, *Job Scheduling for Large-Scale Machine Learning Clusters*, CoNEXT'20. The tasks of a job are
//! its slots: a worker for each [partition](crate::job::Partition) of each replica of its model, and its parameter
//! servers.
//! * **MLF-H** (`priority.rs`, `host.rs`, `overload.rs`): tasks are placed one by one in order of their priority, each
//!   on the server nearest to an ideal one (least used, nearest to its peers). The load of servers is measured. Tasks
//!   leave servers that carry more than `overload` of a resource, once that has cost the jobs there a restart's time
//!   (`weighed`).
//! * **MLF-RL** (`policy.rs`): a learnt [policy](crate::policy), if one is [set](crate::Event::PolicySet), chooses the
//!   order and the place of each task: a server, its current place, or the queue. Without a policy, MLF-H chooses.
//! * **MLF-C** ([`Job::stops`]): jobs stop by their owners' rule, and while the cluster is overloaded by their rule for
//!   that case. Under other engines the scheduler does that, if its setting
//!   [`early_stop`](crate::Settings::early_stop) says so.
//!
//! `mlf-h` is this engine with `stop = false` and `policy = false`. With `stop = false` alone it is the paper's MLF-RL.
//!
//! Deviations from the paper, for open points and for real clusters:
//! * An iteration is an epoch, because losses are stored by epoch.
//! * The tasks of a job need each other in each iteration. So all are placed or none, in the turn of the first one.
//!   Parameter servers are first among them. A job that doesn't fit blocks no others.
//! * A task without measurements is expected to use as much as its model's tasks, or else `overload` of its demand. So
//!   a server that is full by reservations isn't overloaded. Without measurements this is an engine of reservations. To
//!   let tasks share GPUs, measure them and let the pool [oversubscribe](crate::settings::ShapeRules::oversubscribe).
//! * A single task never overloads a server, because moving it would not help. Likewise, a server without other tasks
//!   can't refuse one.
//! * r is the predicted remaining time, at least a round. If there is no prediction, its term is 0. A task's deadline
//!   is its job's, less the parts of r for its descendants, in proportion to their parameters.
//! * A job without a deadline has the latest of all. A job without an urgency has the lowest.
//! * The ML and C terms are each divided by the largest one of all active tasks before they are mixed (`scaled`), so
//!   that α is the actual weight.
//! * The traffic between partitions of a replica is assumed to equal the size of an average partition, because job
//!   files don't contain it. The penalty of a move is the same for every host, so it has no effect.
//! * MLF-H chooses the tasks that may leave an overloaded server, also under a policy. The policy then decides whether
//!   they leave, and where to. No task is held back while nothing runs. If a job's servers must have equal
//!   reservations, a policy only chooses the order.
//! * A job is preempted if a task must leave and no server is underloaded. All its tasks wait together.
//!
//! Choose it if deadlines and accuracies are important, and for model-parallel jobs on GPUs that tasks share. Cost:
//! O(partitions of all jobs + planned slots + servers · resources) per decision, and O(servers · resources) for each
//! placed task. A policy adds a score (30 inputs · hidden units) for each waiting job, and ten for each placed task.
//! After a class of jobs found no room, larger jobs of the same class aren't tried, and neither are jobs for which
//! there are too few GPUs.

mod host;
mod overload;
mod parameters;
mod policy;
mod priority;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, btree_map::Entry},
    sync::Arc,
};

use imbl::Vector;
use serde::{Deserialize, Serialize};

pub use self::parameters::Mlfs;
use self::{
    host::{Home, Hosts, Task, tasks},
    overload::{Lost, Mover, Place, movers},
    policy::{Choice, Chooser, SCORE, Sight},
    priority::{Active, Jobs, Known, Priorities},
};
pub(super) use self::{parameters::for_completion, policy::INPUTS};
use crate::engine::{
    About, Budget, Build, Engine, EngineError, Limits, Parameters, Round, Triggers,
    board::{Board, Largest},
    ledger::Ledger,
};
use crate::{
    decision::{Allocation, Proposal, Slot, Verdict},
    ids::JobId,
    job::Job,
    place::{Load, SortBy},
    policy::{Demonstration, Network},
    reason::{Reason, ReasonKind, Scope, Share},
    resources::Amounts,
    settings::SettingsError,
    shape::{Role, Shape},
    state::State,
    time::{Span, Time},
};

/// Derived data of jobs.
#[derive(Default)]
pub struct Index(Jobs);

/// The memo between decisions.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Memo {
    /// Start of the wait of jobs that ran before or were held. Other jobs wait since their arrival.
    again: BTreeMap<JobId, Time>,
    /// The cost of overload to the jobs at each place.
    lost: BTreeMap<Place, Lost>,
    /// The time of the last decision.
    decided: Option<Time>,
}

const PAPER: &str = "Wang et al., Job Scheduling for Large-Scale Machine Learning Clusters, CoNEXT'20";

impl Build for Mlfs {
    type Engine = Self;
    const ABOUT: About = About::new(
        "mlfs",
        "places tasks by accuracy, deadline and measured load, and stops jobs with nothing to gain",
        PAPER,
    )
    .learning(&INPUTS);

    fn build(parameters: &mut Parameters<'_>) -> Result<Self, SettingsError> {
        Self::read(Self::ABOUT.name, parameters, true)
    }
}

/// MLF-H alone.
pub struct MlfH;

impl Build for MlfH {
    type Engine = Mlfs;
    const ABOUT: About = About::new(
        "mlf-h",
        "places tasks by accuracy, deadline and measured load (mlfs without its early stops and its policy)",
        PAPER,
    );

    fn build(parameters: &mut Parameters<'_>) -> Result<Mlfs, SettingsError> {
        Mlfs::read(Mlfs::ABOUT.name, parameters, false)
    }
}

impl Memo {
    /// Start of a job's wait.
    fn since(&self, job: &Job) -> Time {
        self.again.get(&job.id).copied().unwrap_or(job.arrival)
    }

    fn remember(&mut self, state: &State) {
        self.again.retain(|id, _| state.job(*id).is_some_and(|job| job.verdict.allocation().is_none()));
        for job in state.jobs.values().filter(|job| job.verdict.allocation().is_none()) {
            if job.held {
                // The job is held by a user and doesn't wait for room.
                self.again.insert(job.id, state.now);
            } else if job.seen.started.is_some() {
                self.again.entry(job.id).or_insert(state.now);
            }
        }
    }
}

/// A turn: by priority, highest first, then by job number. The last is its index in [`Next`].
type Turn = (Reverse<u64>, JobId, usize);

/// The object of a turn.
enum Next<'a> {
    /// A waiting job, and its first task.
    Job(Waiting<'a>, Task),
    /// A task that leaves its server, with its index among those.
    Mover(usize, &'a Mover<'a>),
}

/// A waiting job.
#[derive(Clone, Copy)]
struct Waiting<'a> {
    job: &'a Arc<Job>,
    known: &'a Known,
    class: u32,
    shape: Shape,
    /// Whether the plan states already that it waits for room. A decision repeats a reason only if its kind changes.
    told: bool,
}

impl Engine for Mlfs {
    type Memo = Memo;
    const MEMO_VERSION: u32 = 2;
    type Index = Index;

    fn triggers(&self) -> Triggers {
        Triggers { interval: Some(self.interval), arrival: true, departure: true }
    }

    fn limits(&self) -> Limits {
        Limits::Measured(libm::round(self.overload * 1000.0) as u16)
    }

    fn caveat(&self, state: &State) -> Option<&'static str> {
        let measured = state.present_servers().any(|server| server.measured.is_some());
        (!measured).then_some(
            "no manager has reported the load of a server, so reservations count instead and tasks share no GPU",
        )
    }

    fn stops_early(&self) -> bool {
        self.stop
    }

    fn decide(&self, round: &mut Round<'_, Index>, memo: &mut Memo) -> Result<(), EngineError> {
        let policy = self.policy.then(|| round.state.policy(self.learnt_by, &INPUTS)).flatten();
        let chooser = policy.map_or(Choosing::Heuristic, |policy| Choosing::Policy(policy.network()));
        (*memo, _) = self.round(round, memo, chooser)?;
        Ok(())
    }

    fn demonstrate(&self, state: &State, memo: &Memo) -> Vec<Demonstration> {
        let (changes, mut board, mut index) = (Vector::new(), Board::default(), Index::default());
        board.sync(state, &changes, SortBy::Share);
        let (mut last, mut budget) = (0, Budget::UNLIMITED);
        let mut round = Round::new(state, &changes, &mut board, &mut index, &mut last, &mut budget);
        self.round(&mut round, memo, Choosing::Shown).map_or_else(|_| Vec::new(), |(_, shown)| shown)
    }
}

/// The chooser of a round.
enum Choosing<'a> {
    Heuristic,
    Shown,
    Policy(&'a Network),
}

impl Mlfs {
    /// Runs one round. Returns the new memory, and the demonstrations for an observer.
    fn round(
        &self,
        round: &mut Round<'_, Index>,
        memo: &Memo,
        choosing: Choosing<'_>,
    ) -> Result<(Memo, Vec<Demonstration>), EngineError> {
        let state = round.state;
        round.budget.spend(state.jobs.len() as u64)?;
        let mut known = memo.clone();
        known.remember(state);
        let lost = std::mem::take(&mut known.lost);
        let passed = known.decided.replace(state.now).map_or(Span::ZERO, |last| state.now - last);
        round.index.0.sync(self, state, round.changes);
        let jobs = &round.index.0;
        let waited = |job: &Job| match job.verdict.allocation() {
            Some(_) => Span::ZERO,
            None => state.now - known.since(job),
        };
        let priorities = Priorities::of(self, state, jobs, waited);
        let load = Load::of(state, self.overload);
        let sight = |load: &Load| Sight::new(state, load, jobs, &priorities, &waited, self.goals);
        let chooser = match choosing {
            Choosing::Heuristic => Chooser::Heuristic,
            Choosing::Shown => Chooser::Shown(sight(&load), Vec::new()),
            Choosing::Policy(network) => Chooser::Policy(sight(&load), network),
        };
        let relieved = BTreeMap::new();
        let mut hosts = Hosts { state, engine: self, board: round.board, load, chooser, relieved, lost };
        let leaving = if self.migrate { movers(&mut hosts, jobs, &priorities, passed) } else { Vec::new() };
        let proposal = Proposal::default();
        let mut turns =
            Turns { hosts, jobs, priorities: &priorities, proposal, moved: BTreeMap::new(), kept: Vec::new() };
        let waiting = turns.serve(&leaving, round.budget)?;
        turns.settle(&leaving);
        if self.stop {
            turns.stop(waiting);
        }
        let Turns { proposal, hosts, .. } = turns;
        let lost = hosts.lost;
        let shown = hosts.chooser.into_shown();
        round.proposal = proposal;
        Ok((Memo { lost, ..known }, shown))
    }
}

/// A task that should leave and has no place, with the policy's choice to stay. None: the policy wasn't asked.
type Stuck<'a> = (&'a Mover<'a>, Option<bool>);

/// The tasks of one job that should leave.
#[derive(Default)]
struct Leaving<'a> {
    pays: Option<Place>,
    stuck: Vec<Stuck<'a>>,
    /// New places of the others.
    moved: Vec<Slot>,
}

/// Jobs and tasks while they are served in order.
struct Turns<'a, 'b> {
    hosts: Hosts<'b>,
    jobs: &'a Jobs,
    priorities: &'a Priorities<'a>,
    proposal: Proposal,
    /// New places of tasks that leave overloaded servers.
    moved: BTreeMap<JobId, Vec<Slot>>,
    /// Tasks that should leave, and for which the policy chose to stay (`true`) or to wait, by index.
    kept: Vec<(usize, bool)>,
}

impl Turns<'_, '_> {
    /// Places waiting jobs and leaving tasks in order. Returns whether a job still waits.
    fn serve(&mut self, leaving: &[Mover<'_>], budget: &mut Budget) -> Result<bool, EngineError> {
        let state = self.hosts.state;
        if !matches!(self.hosts.chooser, Chooser::Heuristic) {
            budget.spend(SCORE * (state.jobs.len() + leaving.len()) as u64)?;
        }
        let chooser = &self.hosts.chooser;
        let (mut turns, mut nexts) = (Vec::<Turn>::new(), Vec::new());
        let mut turn = |job: &Job, score: f64, next| {
            turns.push((Reverse(ordered(score)), job.id, nexts.len()));
            nexts.push(next);
        };
        for Active { job, known, is_free } in self.priorities.active() {
            if *is_free && job.verdict.allocation().is_none() {
                let (part, priority) = self.priorities.first(known);
                let first = first(known.shape, part);
                let score = chooser.turn(job, first, || self.hosts.expected(job, first), priority);
                let kind = job.verdict.reason().map(Reason::kind);
                let told = matches!(kind, Some(ReasonKind::NoRoom | ReasonKind::Overloaded));
                let Known { class, shape, .. } = **known;
                turn(job, score, Next::Job(Waiting { job, known, class, shape, told }, first));
            }
        }
        for (at, mover) in leaving.iter().enumerate().rev() {
            let score = chooser.turn(mover.job, mover.slot.into(), || mover.uses.clone(), mover.priority);
            turn(mover.job, score, Next::Mover(at, mover));
        }
        turns.sort_unstable();
        let turns = turns.into_iter().map(|(.., at)| &nexts[at]);
        self.show_turns(turns.clone());
        let mut ledger = Ledger::left(state);
        let mut full: Vec<Option<Shape>> = vec![None; self.jobs.classes()];
        // Since the last placement, by class: why servers with room don't take its tasks.
        let mut crowds: BTreeMap<u32, Option<Reason>> = BTreeMap::new();
        let mut largest = Largest::default();
        let mut waiting = false;
        for next in turns {
            budget.spend(1)?;
            let Waiting { job, known, class, shape, told } = match next {
                Next::Job(job, _) => *job,
                Next::Mover(at, mover) => {
                    if self.move_task(*at, mover, budget)? {
                        // The move has freed room.
                        full.fill(None);
                        crowds.clear();
                    }
                    continue;
                }
            };
            let failed = &mut full[class as usize];
            let hopeless =
                failed.is_some_and(|failed| shape.workers >= failed.workers && shape.servers >= failed.servers);
            if hopeless && told && !ledger.is_limited() {
                waiting = true;
                continue;
            }
            if !ledger.has(job, &known.total) {
                let reason = ledger.reason(state, job, &known.total);
                // A limit of its tenant or queue doesn't affect others.
                waiting |= matches!(reason, Reason::Exhausted { scope: Scope::Cluster, .. });
                self.proposal.wait(job, reason);
                continue;
            }
            if !hopeless {
                let order = self.order(job, known);
                match self.hosts.place(job, &known.shares, &order, budget)? {
                    Home::At(allocation) => {
                        ledger.take(job, &known.total, 1);
                        self.proposal.run(job, allocation);
                        crowds.clear();
                        continue;
                    }
                    Home::HeldBack(reason) => {
                        waiting = true;
                        self.proposal.wait(job, reason);
                        continue;
                    }
                    Home::Nowhere => *failed = Some(shape),
                }
            }
            waiting = true;
            if !told {
                let crowded = match crowds.entry(class) {
                    Entry::Occupied(known) => known.get().clone(),
                    Entry::Vacant(unknown) => {
                        // Tasks of one role are alike.
                        budget.spend(2 * state.servers.len() as u64)?;
                        let roles = [Role::Server, Role::Worker].into_iter().filter(|role| shape.count(*role) > 0);
                        let mut tasks = roles.map(|role| Task { role, index: 0 });
                        unknown.insert(tasks.find_map(|task| self.hosts.crowded(job, task))).clone()
                    }
                };
                let reason = crowded.unwrap_or_else(|| largest.reason(state, &self.hosts.board.room, job, shape));
                self.proposal.wait(job, reason);
            }
        }
        Ok(waiting)
    }

    /// Shows an observer the order of jobs.
    fn show_turns<'n>(&mut self, turns: impl Iterator<Item = &'n Next<'n>>) {
        if !matches!(self.hosts.chooser, Chooser::Shown(..)) {
            return;
        }
        let tasks = turns.filter_map(|next| match next {
            Next::Job(Waiting { job, .. }, first) => Some((&***job, *first, self.hosts.expected(job, *first))),
            Next::Mover(..) => None,
        });
        let tasks: Vec<(&Job, Task, Amounts)> = tasks.collect();
        self.hosts.chooser.show_turns(tasks.into_iter());
    }

    /// A job's tasks in the order of their placement: parameter servers, then by priority.
    fn order(&self, job: &Job, known: &Known) -> Vec<Task> {
        let mut order: Vec<Task> = tasks(job).collect();
        if job.spec.partitions.len() > 1 {
            let parts: Vec<f64> = self.priorities.of_parts(known).collect();
            let priority = |task: &Task| task.part(job).map_or(f64::INFINITY, |part| parts[part]);
            order.sort_by(|a, b| priority(b).total_cmp(&priority(a)));
        }
        order
    }

    /// Finds a place for a task that leaves its server. Returns whether there is one.
    fn move_task(&mut self, at: usize, mover: &Mover<'_>, budget: &mut Budget) -> Result<bool, EngineError> {
        let Mover { job, slot, uses, .. } = mover;
        budget.spend(self.hosts.steps())?;
        let moved = self.moved.entry(job.id).or_default();
        let allocation = job.verdict.allocation().expect("it has a task on a server");
        let placed = with_moved(allocation, moved);
        let shares = &self.jobs.get(job).shares;
        let task = Task::from(*slot);
        let new = match self.hosts.host(job, shares, task, uses, &placed, Some(slot)) {
            Choice::To(new) => new,
            Choice::Nowhere => return Ok(false),
            Choice::Stay => {
                self.kept.push((at, true));
                return Ok(false);
            }
            Choice::Wait { .. } => {
                self.kept.push((at, false));
                return Ok(false);
            }
        };
        self.hosts.take(job, &new, uses);
        self.hosts.board.give_back(self.hosts.state, job, &Allocation::new(vec![(*slot).clone()]));
        moved.push(new);
        if let Entry::Occupied(mut left) = self.hosts.relieved.entry(slot.server) {
            *left.get_mut() -= 1;
            if *left.get() == 0 {
                left.remove();
            }
        }
        Ok(true)
    }

    /// Proposes the changes of the jobs with leaving tasks.
    fn settle(&mut self, leaving: &[Mover<'_>]) {
        let state = self.hosts.state;
        let mut of_job: BTreeMap<JobId, Leaving<'_>> = BTreeMap::new();
        for (at, mover) in leaving.iter().enumerate() {
            let moved = self.moved.get(&mover.job.id).into_iter().flatten();
            let new = moved.clone().find(|new| same(new, mover.slot));
            let Leaving { pays, stuck, moved } = of_job.entry(mover.job.id).or_default();
            *pays = pays.or(mover.pays);
            match new {
                Some(new) => moved.push(new.clone()),
                None => {
                    // For now, the task stays.
                    self.hosts.load.put(mover.slot, &mover.uses, 1.0);
                    let kept = self.kept.iter().find(|(kept, _)| *kept == at);
                    stuck.push((mover, kept.map(|(_, stays)| *stays)));
                }
            }
        }
        for (id, Leaving { pays, stuck, moved }) in of_job {
            let job = &state.jobs[&id];
            let room_left = state.present_servers().any(|server| !self.hosts.load.is_overloaded(server.id));
            let full = stuck.iter().find_map(|(mover, stays)| {
                let server = mover.slot.server;
                // The policy's choice, or else whether there is room on any server.
                let leaves = stays.map_or(!room_left, |stays| !stays);
                let over = state.server(server).first_overload(self.hosts.engine.overload).filter(|_| leaves);
                over.map(|(resource, used)| Reason::Overloaded { server, resource, used: Share::of(used) })
            });
            let allocation = job.verdict.allocation().expect("it has tasks on servers");
            if full.is_some() || !moved.is_empty() {
                let lost = pays.and_then(|place| self.hosts.lost.get_mut(&place));
                lost.into_iter().for_each(|lost| lost.pay(job));
            }
            if let Some(reason) = full {
                for slot in &moved {
                    let uses = self.hosts.expected(job, slot.into());
                    self.hosts.give_back(job, slot, &uses);
                }
                for slot in allocation.slots().iter().filter(|slot| !moved.iter().any(|new| same(new, slot))) {
                    let uses = self.hosts.expected(job, slot.into());
                    self.hosts.load.put(slot, &uses, -1.0);
                }
                self.proposal.wait(job, reason);
            } else if !moved.is_empty() {
                self.proposal.run(job, Arc::new(Allocation::new(with_moved(allocation, &moved))));
            }
        }
    }

    /// Stops jobs without further gain. The cluster counts as overloaded if jobs wait or the mean load is high.
    fn stop(&mut self, waiting: bool) {
        let state = self.hosts.state;
        let overloaded = waiting || {
            let load = &self.hosts.load;
            let (sum, count) = state
                .present_servers()
                .fold((0.0, 0_u32), |(sum, count), server| (sum + load.degree(server.id), count + 1));
            count > 0 && sum / f64::from(count) > self.hosts.engine.cluster_overload
        };
        for Active { job, is_free, .. } in self.priorities.active() {
            if !is_free || job.verdict.allocation().is_none() {
                continue;
            }
            let Some(reason) = job.stops(overloaded) else { continue };
            if let Some(at) = self.proposal.changes.iter().position(|(id, _)| *id == job.id) {
                // The job was about to move. The board outlives this decision, so its room is restored.
                let (_, verdict) = self.proposal.changes.remove(at);
                let before = job.verdict.allocation();
                for new in verdict.allocation().iter().flat_map(|after| after.slots()) {
                    if !before.is_some_and(|before| before.has(new)) {
                        let uses = self.hosts.expected(job, new.into());
                        self.hosts.give_back(job, new, &uses);
                    }
                }
            }
            self.proposal.changes.push((job.id, Verdict::Stop(reason)));
        }
    }
}

/// The first task of a job: a parameter server, or else the worker of the partition with the highest priority.
fn first(shape: Shape, part: usize) -> Task {
    match shape.servers {
        0 => Task { role: Role::Worker, index: part as u32 },
        _ => Task { role: Role::Server, index: 0 },
    }
}

/// Bits in the order of floats.
fn ordered(number: f64) -> u64 {
    let bits = number.to_bits();
    if bits >> 63 == 0 { bits | 1 << 63 } else { !bits }
}

fn same(a: &Slot, b: &Slot) -> bool {
    (a.role, a.index) == (b.role, b.index)
}

/// A job's slots with some of them moved.
fn with_moved(allocation: &Allocation, moved: &[Slot]) -> Vec<Slot> {
    let now = |slot: &Slot| moved.iter().find(|new| same(new, slot)).unwrap_or(slot).clone();
    allocation.slots().iter().map(now).collect()
}
