//! Jobs in batches, each batch at the least cost, and every job to its end.
//!
//! BatchSche, as the authors of the edge-cloud scheduler A_online set up a scheduler of theirs to compare with (the paper's
//! §V, with two sentences): jobs that aren't completed are grouped into batches, and batches are scheduled one by one so
//! that resources cost least; since the cloud is cheap and has room, most jobs end up there. Nothing is preempted.
//!
//! All else is chosen:
//! * Jobs gather until the first of them has done so for `batch`, or until there are `batch_jobs`: that is a batch.
//! * A slot costs `edge_price` an hour on a server of the edge and `cloud_price` on one of the cloud
//!   ([`Place::cloud`](crate::server::Place::cloud)). A job costs its slots × the hours it needs × that: in the shape that
//!   was requested, for the time that is left of its dataset's chunks or as its fits predict. Where neither says anything,
//!   the mean of the others in its batch.
//! * The cost of a batch is made small by regret: each job is tried at the edge alone and in the cloud alone, on what is
//!   free; who would lose most if it had to take the dearer, for each share of the cluster that it takes, comes first, and
//!   before all others who has no choice. Each then takes the cheaper of both that still holds it whole, else the other.
//!   (Who gets the room that is cheap is a knapsack; this is its greedy rule, exact but for the last job that fits.) A job
//!   that neither holds is spread over both, cheaper servers first: its gradients may then go over the uplink, but it runs.
//! * Equal prices: the edge, where the data is.
//! * What of a batch has no room waits, and so does the next batch until all of this one run, unless it is its tenant or
//!   queue that is at a limit: nobody starves. Jobs that lost their place go with the batch that they came with.
//!
//! Without a server of the cloud these are batches first come first served. Choose it to compare with.
//!
//! Cost: O(J log J) for J jobs, plus O(log S) a slot, four times, for the jobs of a batch that can start.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use imbl::Vector;
use serde::{Deserialize, Serialize};

use super::{
    Budget, Build, DefaultValue as Value, Engine, EngineError, ParameterInfo, Parameters, Triggers,
    board::{Board, Largest},
    ledger::Ledger,
    optimus::{run, wait},
    placing::{self, Placing, placement},
    rounds,
};
use crate::{
    decision::{Allocation, Proposal},
    ids::JobId,
    job::Job,
    place::SortBy,
    reason::{Reason, Scope},
    settings::SettingsError,
    state::{Change, State},
    time::{Span, Time},
};

pub(super) const NAME: &str = "batch";
pub(super) const SUMMARY: &str = "gathers jobs into batches and places each where it costs least, edge or cloud";
pub(super) const PAPER: &str = "BatchSche, baseline of A_online";
pub(super) const PARAMETERS: &[ParameterInfo] = &[
    ParameterInfo { name: "batch", default: Value::Text("600s"), meaning: "longest time that jobs gather for a batch" },
    ParameterInfo { name: "batch_jobs", default: Value::Number(10.0), meaning: "so many jobs are a batch at once" },
    ParameterInfo {
        name: "edge_price",
        default: Value::Number(1.0),
        meaning: "an hour of a worker or parameter server on a server whose label zone isn't \"cloud\"",
    },
    ParameterInfo {
        name: "cloud_price",
        default: Value::Number(0.5),
        meaning: "the same where it is; only the ratio matters",
    },
    placement("consolidate"),
];

/// The engine, as its module describes it.
#[derive(Clone, Debug)]
pub struct Batch {
    span: Span,
    jobs: usize,
    /// Of the edge and of the cloud.
    prices: [f64; 2],
    placing: Placing,
}

/// Who belongs together.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Memo {
    /// Since when jobs gather; none where nobody does.
    since: Option<Time>,
    /// The batch of each active job that is in one, counted from the first.
    batches: BTreeMap<JobId, u64>,
    count: u64,
    /// The server that had the last slot, for round-robin.
    last: u32,
}

impl Build for Batch {
    fn build(parameters: &Parameters) -> Result<Self, SettingsError> {
        let price = |name| parameters.number(name, 0.0..=1e9);
        Ok(Self {
            span: parameters.span("batch")?,
            jobs: parameters.whole("batch_jobs", 1..=1_000_000)? as usize,
            prices: [price("edge_price")?, price("cloud_price")?],
            placing: Placing::of(parameters)?,
        })
    }
}

impl Engine for Batch {
    type Memo = Memo;
    type Index = Board;

    fn triggers(&self) -> Triggers {
        Triggers { interval: None, arrival: true, departure: true }
    }

    fn decide(
        &self,
        state: &State,
        changes: &Vector<Change>,
        memo: &mut Memo,
        board: &mut Board,
        budget: &mut Budget,
    ) -> Result<Proposal, EngineError> {
        board.sync(state, changes, SortBy::Share);
        let mut now = memo.clone();
        let (free, mut ledger) = rounds::free_jobs(state);
        let (run, waiting): (Vec<_>, Vec<_>) = free.partition(|job| job.verdict.allocation().is_some());
        for job in run {
            ledger.take(job, &job.total(job.shape()), 1);
        }
        let mut proposal = Proposal::default();
        let batches = self.group(state, &mut now, waiting, &mut proposal);
        let mut counter = Counter { engine: self, state, board, budget, ledger, last: &mut now.last };
        let mut largest = Largest::default();
        let mut ahead = None;
        let mut position = 0;
        for batch in batches.into_values() {
            if let Some(first) = ahead {
                for job in batch {
                    position += 1;
                    wait(&mut proposal, job, Reason::Behind { job: first, position });
                }
                continue;
            }
            for (job, reason) in counter.schedule(batch, &mut largest, &mut proposal)? {
                // Its tenant's or queue's limit is nobody else's concern.
                if !matches!(&reason, Reason::Exhausted { scope: Scope::Tenant(_) | Scope::Queue(_), .. }) {
                    position += 1;
                    ahead = ahead.or(Some(job.id));
                }
                wait(&mut proposal, job, reason);
            }
        }
        *memo = now;
        Ok(proposal)
    }
}

impl Batch {
    /// The jobs that wait of each batch that is complete, the first one first. Those that still gather are told until when.
    fn group<'a>(
        &self,
        state: &State,
        memo: &mut Memo,
        waiting: Vec<&'a Arc<Job>>,
        proposal: &mut Proposal,
    ) -> BTreeMap<u64, Vec<&'a Arc<Job>>> {
        memo.batches.retain(|id, _| state.job(*id).is_some());
        let gathering: BTreeSet<JobId> =
            waiting.iter().map(|job| job.id).filter(|id| !memo.batches.contains_key(id)).collect();
        let until = *memo.since.get_or_insert(state.now) + self.span;
        if gathering.is_empty() {
            memo.since = None;
        } else if gathering.len() >= self.jobs || state.now >= until {
            memo.since = None;
            memo.count += 1;
            memo.batches.extend(gathering.into_iter().map(|id| (id, memo.count)));
        } else {
            proposal.wake_at = Some(until);
        }
        let mut batches: BTreeMap<u64, Vec<_>> = BTreeMap::new();
        for job in waiting {
            match memo.batches.get(&job.id) {
                Some(batch) => batches.entry(*batch).or_default().push(job),
                None => wait(proposal, job, Reason::Scheduled { next_start: until }),
            }
        }
        batches
    }
}

/// What is left while batches are scheduled.
struct Counter<'a> {
    engine: &'a Batch,
    state: &'a State,
    board: &'a mut Board,
    budget: &'a mut Budget,
    ledger: Ledger,
    last: &'a mut u32,
}

impl Counter<'_> {
    /// Starts what it can of a batch. Returns the others, each with its reason.
    fn schedule<'a>(
        &mut self,
        batch: Vec<&'a Arc<Job>>,
        largest: &mut Largest<'a>,
        proposal: &mut Proposal,
    ) -> Result<Vec<(&'a Arc<Job>, Reason)>, EngineError> {
        let mut order = Vec::with_capacity(batch.len());
        for (job, hours) in hours(&batch) {
            order.push((self.regret(job, hours)?, job));
        }
        order.sort_by(|(mine, a), (theirs, b)| theirs.total_cmp(mine).then((a.arrival, a.id).cmp(&(b.arrival, b.id))));
        let mut left = Vec::new();
        for (_, job) in order {
            let total = job.total(job.spec.requested());
            let found = if self.ledger.has(job, &total) { self.cheapest(job)? } else { None };
            match found {
                Some(allocation) => {
                    self.ledger.take(job, &total, 1);
                    run(proposal, job, allocation);
                }
                None => left.push(job),
            }
        }
        let reasons = left.into_iter().map(|job| {
            let shape = job.spec.requested();
            let total = job.total(shape);
            let reason = if self.ledger.has(job, &total) {
                largest.reason(self.state, &self.board.room, job, shape)
            } else {
                self.ledger.reason(self.state, job, &total)
            };
            (job, reason)
        });
        Ok(reasons.collect())
    }

    /// What it costs more where it costs more, for each share of the cluster; infinite where there is no choice.
    fn regret(&mut self, job: &Job, hours: f64) -> Result<f64, EngineError> {
        let shape = job.spec.requested();
        let last = *self.last;
        for cloud in [false, true] {
            let found = self.place_in(Some(cloud), job)?;
            *self.last = last;
            match found {
                Some(allocation) => self.board.give_back(self.state, job, &allocation),
                None => return Ok(f64::INFINITY),
            }
        }
        let [edge, cloud] = self.engine.prices;
        let share = job.total(shape).dominant_share(&self.state.usable).max(1e-12);
        Ok(hours * f64::from(shape.workers + shape.servers) * (edge - cloud).abs() / share)
    }

    /// Its place at the least cost.
    fn cheapest(&mut self, job: &Job) -> Result<Option<Arc<Allocation>>, EngineError> {
        let [edge, cloud] = self.engine.prices;
        let cloud_first = cloud < edge;
        for zone in [Some(cloud_first), Some(!cloud_first)] {
            let found = self.place_in(zone, job)?;
            if found.is_some() {
                return Ok(found);
            }
        }
        let (state, shape) = (self.state, job.spec.requested());
        self.board.place_each(state, job, shape, self.budget, |board, job, role| {
            let need = &job.demand(role).amounts;
            let freest = |cloud| {
                let mut servers = board.free.freest_in(&board.room, need, Some(cloud));
                servers.find(|id| placing::holds(state, board, *id, job, role))
            };
            freest(cloud_first).or_else(|| freest(!cloud_first))
        })
    }

    /// A place in the cloud alone, or at the edge alone.
    fn place_in(&mut self, cloud: Option<bool>, job: &Job) -> Result<Option<Arc<Allocation>>, EngineError> {
        self.board.room.limit(cloud);
        let shape = job.spec.requested();
        let found = self.engine.placing.place(self.state, self.board, job, shape, self.last, self.budget);
        self.board.room.limit(None);
        found
    }
}

/// The hours that each job needs.
fn hours<'a>(batch: &[&'a Arc<Job>]) -> Vec<(&'a Arc<Job>, f64)> {
    let known = |job: &Job| Some(rounds::remaining_time(job, job.spec.requested())?.as_seconds() / 3600.0);
    let times: Vec<f64> = batch.iter().filter_map(|job| known(job)).collect();
    let mean = if times.is_empty() { 1.0 } else { times.iter().sum::<f64>() / times.len() as f64 };
    batch.iter().map(|job| (*job, known(job).unwrap_or(mean))).collect()
}
