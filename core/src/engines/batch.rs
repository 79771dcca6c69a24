//! BatchSche: jobs in batches, each batch at minimum cost, without preemption.
//!
//! The authors of the edge-cloud scheduler A_online describe this baseline in two sentences (§V): unfinished jobs are
//! grouped into batches, and batches are scheduled one after the other so that resources cost least. Because the cloud
//! is cheap and has room, most jobs run there. Nothing is preempted.
//!
//! The following choices are our own:
//! * **Batches.** Jobs gather until the first of them has waited for `batch`, or until there are `batch_jobs` of them.
//!   These jobs are one batch.
//! * **Cost.** A slot costs `edge_price` per hour on a server at the edge, and `cloud_price` in the cloud
//!   ([`Place::cloud`](crate::server::Place::cloud)). A job costs slots × hours × price, in its requested shape. Its
//!   hours are those of the remaining chunks of its dataset, or else the predicted ones. If both are unknown, they are
//!   the mean of the other jobs in its batch.
//! * **Order.** The cost of a batch is minimised by regret. Each job is tried at the edge alone and in the cloud alone,
//!   with the free room. The job with the largest additional cost of its more expensive place, per share of the cluster
//!   that it takes, comes first. Jobs with one possible place come before all others. Each job gets the cheaper place
//!   if it still holds the whole job, otherwise the other one. (The assignment of cheap room is a knapsack problem.
//!   This is its greedy rule, which is exact except for the last job that fits.)
//! * **Splitting.** A job that neither place holds is spread over both, cheaper servers first. Its gradients may then
//!   cross the uplink, but the job runs.
//! * **Ties.** If prices are equal, the edge comes first, because the data is there.
//! * **Waiting.** Jobs without room wait, and so does the next batch, until all jobs of this batch run. A job at a
//!   limit of its tenant or queue doesn't delay the next batch. So no job starves. A job that lost its place rejoins
//!   its batch.
//!
//! Without cloud servers, this engine is first come, first served by batches. Choose it for comparisons.
//!
//! Cost: O(J log J) for J jobs, plus O(log S) per slot, four times, for the jobs of a batch that can start.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use crate::engine::{
    About, Build, Engine, EngineError, Parameters, Round, Triggers,
    board::Largest,
    ledger::Ledger,
    placing::{self, Placing},
    round,
};
use crate::{
    decision::{Allocation, Proposal},
    ids::JobId,
    job::Job,
    reason::{Reason, Scope},
    settings::SettingsError,
    state::State,
    time::{Span, Time},
};

/// The engine, as its module describes it.
#[derive(Clone, Debug)]
pub struct Batch {
    span: Span,
    jobs: usize,
    /// Prices of the edge and of the cloud.
    prices: [f64; 2],
    placing: Placing,
}

/// The engine's memory: batches of jobs.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Memo {
    /// Time since which jobs gather. None if no job does.
    since: Option<Time>,
    /// The batch of each active job in a batch, counted from the first.
    batches: BTreeMap<JobId, u64>,
    count: u64,
}

impl Build for Batch {
    type Engine = Self;
    const ABOUT: About = About::new(
        "batch",
        "gathers jobs into batches and places each where it costs least, edge or cloud",
        "BatchSche, baseline of A_online",
    );

    fn build(parameters: &mut Parameters<'_>) -> Result<Self, SettingsError> {
        let edge = "an hour of a worker or parameter server on a server whose label zone isn't \"cloud\"";
        let cloud = "the same where it is; only the ratio matters";
        Ok(Self {
            span: parameters.span("batch", "600s", "longest time that jobs gather for a batch")?,
            jobs: parameters.whole("batch_jobs", 10, 1..=1_000_000, "so many jobs are a batch at once")? as usize,
            prices: [
                parameters.number("edge_price", 1.0, 0.0..=1e9, edge)?,
                parameters.number("cloud_price", 0.5, 0.0..=1e9, cloud)?,
            ],
            placing: Placing::of(parameters, "consolidate")?,
        })
    }
}

impl Engine for Batch {
    type Memo = Memo;
    type Index = ();

    fn triggers(&self) -> Triggers {
        Triggers { interval: None, arrival: true, departure: true }
    }

    fn decide(&self, round: &mut Round<'_>, memo: &mut Memo) -> Result<(), EngineError> {
        let state = round.state;
        let mut now = memo.clone();
        let (free, mut ledger) = round.all_jobs();
        let (run, waiting): (Vec<_>, Vec<_>) = free.into_iter().partition(|job| job.verdict.allocation().is_some());
        for job in run {
            ledger.take(job, &job.total(job.shape()), 1);
        }
        let batches = self.group(state, &mut now, waiting, &mut round.proposal);
        let mut counter = Counter { engine: self, round, ledger };
        let mut largest = Largest::default();
        let mut ahead = None;
        let mut position = 0;
        for batch in batches.into_values() {
            if let Some(first) = ahead {
                for job in batch {
                    position += 1;
                    counter.round.proposal.wait(job, Reason::Behind { job: first, position });
                }
                continue;
            }
            for (job, reason) in counter.schedule(batch, &mut largest)? {
                // A limit of its tenant or queue doesn't affect others.
                if !matches!(&reason, Reason::Exhausted { scope: Scope::Tenant(_) | Scope::Queue(_), .. }) {
                    position += 1;
                    ahead = ahead.or(Some(job.id));
                }
                counter.round.proposal.wait(job, reason);
            }
        }
        *memo = now;
        Ok(())
    }
}

impl Batch {
    /// The waiting jobs of each complete batch, the first batch first. Gathering jobs get the end of their wait as a
    /// reason.
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
                None => proposal.wait(job, Reason::Scheduled { next_start: until }),
            }
        }
        batches
    }
}

/// The state while batches are scheduled.
struct Counter<'a, 'r> {
    engine: &'a Batch,
    round: &'a mut Round<'r>,
    ledger: Ledger,
}

impl Counter<'_, '_> {
    /// Starts the jobs of a batch that fit. Returns the others, each with its reason.
    fn schedule<'a>(
        &mut self,
        batch: Vec<&'a Arc<Job>>,
        largest: &mut Largest<'a>,
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
                    self.round.proposal.run(job, allocation);
                }
                None => left.push(job),
            }
        }
        let reasons = left.into_iter().map(|job| {
            let room = &self.round.board.room;
            (job, largest.refusal(self.round.state, room, &self.ledger, job, job.spec.requested()))
        });
        Ok(reasons.collect())
    }

    /// The additional cost of the more expensive place, per share of the cluster. Infinite if there is only one place.
    fn regret(&mut self, job: &Job, hours: f64) -> Result<f64, EngineError> {
        let shape = job.spec.requested();
        let last = *self.round.last;
        for cloud in [false, true] {
            let found = self.place_in(Some(cloud), job)?;
            *self.round.last = last;
            match found {
                Some(allocation) => self.round.board.give_back(self.round.state, job, &allocation),
                None => return Ok(f64::INFINITY),
            }
        }
        let [edge, cloud] = self.engine.prices;
        let share = job.total(shape).dominant_share(&self.round.state.usable).max(1e-12);
        Ok(hours * f64::from(shape.workers + shape.servers) * (edge - cloud).abs() / share)
    }

    /// The place with the lowest cost.
    fn cheapest(&mut self, job: &Job) -> Result<Option<Arc<Allocation>>, EngineError> {
        let [edge, cloud] = self.engine.prices;
        let cloud_first = cloud < edge;
        for zone in [Some(cloud_first), Some(!cloud_first)] {
            let found = self.place_in(zone, job)?;
            if found.is_some() {
                return Ok(found);
            }
        }
        let (state, shape) = (self.round.state, job.spec.requested());
        self.round.board.place_each(state, job, shape, self.round.budget, |board, job, role| {
            let need = &job.demand(role).amounts;
            let freest = |cloud| {
                let mut servers = board.free.freest_in(&board.room, need, Some(cloud));
                servers.find(|id| placing::holds(state, board, *id, job, role))
            };
            freest(cloud_first).or_else(|| freest(!cloud_first))
        })
    }

    /// A place in the cloud alone (`true`), at the edge alone (`false`), or anywhere.
    fn place_in(&mut self, cloud: Option<bool>, job: &Job) -> Result<Option<Arc<Allocation>>, EngineError> {
        self.round.board.room.limit(cloud);
        let found = self.round.place(job, job.spec.requested(), self.engine.placing);
        self.round.board.room.limit(None);
        found
    }
}

/// The remaining hours of each job.
fn hours<'a>(batch: &[&'a Arc<Job>]) -> Vec<(&'a Arc<Job>, f64)> {
    let known = |job: &Job| Some(round::remaining_time(job, job.spec.requested())?.as_seconds() / 3600.0);
    let times: Vec<f64> = batch.iter().filter_map(|job| known(job)).collect();
    let mean = if times.is_empty() { 1.0 } else { times.iter().sum::<f64>() / times.len() as f64 };
    batch.iter().map(|job| (*job, known(job).unwrap_or(mean))).collect()
}
