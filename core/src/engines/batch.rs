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
//!   ([`Place::cloud`](crate::server::Place::cloud)). A job costs slots × hours × price. Its hours are those of the
//!   remaining chunks of its dataset, or else the predicted ones. If both are unknown, they are the mean of the other
//!   jobs in its batch.
//! * **Workers.** The authors call it elastic sharing (§I) whose allocation isn't adjusted later (§II). So the number
//!   of a job's workers is decided when it starts, and stays: of the numbers within its bounds that its place has room
//!   for, the one that costs least; the largest of several. That is mostly the largest of all, since more workers need
//!   the parameter servers for a shorter time. It is at least what the job requested (`elastic = "more"`), any number
//!   within its bounds (`"any"`), or what it requested (`"off"`). A job of unknown duration gets what it requested.
//!   With `"any"` jobs whose speed grows less than their workers get few: one worker costs least, and takes longest.
//! * **Order.** The cost of a batch is minimised by regret. Each job is tried at the edge alone and in the cloud alone,
//!   with the free room. The job with the largest additional cost of its more expensive place, per share of the cluster
//!   that it takes, comes first. Jobs with one possible place come before all others. Each job gets the cheaper place
//!   if it still holds the whole job, if only with the fewest workers, otherwise the other one. (The assignment of
//!   cheap room is a knapsack problem. This is its greedy rule, which is exact except for the last job that fits.)
//! * **Splitting.** A job that neither place holds is spread over both, cheaper servers first. Its gradients may then
//!   cross the uplink, but the job runs.
//! * **Ties.** If prices are equal, the edge comes first, because the data is there.
//! * **Waiting.** Jobs without room wait, and so does the next batch, until all jobs of this batch run. A job at a
//!   limit of its tenant or queue doesn't delay the next batch. So no job starves. A job that lost its place rejoins
//!   its batch.
//!
//! Without cloud servers, this engine is first come, first served by batches. Choose it for comparisons.
//!
//! Cost: O(J log J) for J jobs, plus O(W + log W · w log S) for each job of a batch that can start, with W numbers of
//! workers to choose from and w slots.

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
    shape::Shape,
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
    elastic: Elastic,
    placing: Placing,
}

/// Numbers of workers that a job may get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Elastic {
    /// Any in its bounds.
    Any,
    /// The requested number or more.
    More,
    /// The requested number.
    Off,
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
        let elastic = "workers of a job, decided at its start: \"any\" number in its bounds, what it requested or \
            \"more\", or \"off\": what it requested";
        let choices = [("any", Elastic::Any), ("more", Elastic::More), ("off", Elastic::Off)];
        Ok(Self {
            span: parameters.span("batch", "600s", "longest time that jobs gather for a batch")?,
            jobs: parameters.whole("batch_jobs", 10, 1..=1_000_000, "so many jobs are a batch at once")? as usize,
            prices: [
                parameters.number("edge_price", 1.0, 0.0..=1e9, edge)?,
                parameters.number("cloud_price", 0.5, 0.0..=1e9, cloud)?,
            ],
            elastic: parameters.choice("elastic", "more", &choices, elastic)?,
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
    /// The shapes that a job may have, by number of workers. Without a known duration, no other than requested.
    fn shapes(&self, job: &Job) -> impl Iterator<Item = Shape> + use<> {
        let (asked, bounds) = (job.spec.requested(), job.bounds());
        let chunks = job.spec.dataset.as_ref().map_or(u32::MAX, |data| data.chunks);
        let most = bounds.workers.1.min(chunks).max(asked.workers);
        let is_known = round::remaining_time(job, asked).is_some();
        let workers = match self.elastic {
            Elastic::Any if is_known => bounds.workers.0..=most,
            Elastic::More if is_known => asked.workers..=most,
            _ => asked.workers..=asked.workers,
        };
        workers.filter(move |workers| bounds.sizes.has(*workers)).map(move |workers| {
            let in_proportion = u64::from(asked.servers) * u64::from(workers);
            let servers = in_proportion.div_ceil(u64::from(asked.workers.max(1)));
            let servers = u32::try_from(servers).unwrap_or(u32::MAX).clamp(bounds.servers.0, bounds.servers.1);
            Shape { workers, servers }
        })
    }

    /// The smallest of these shapes.
    fn least(&self, job: &Job) -> Shape {
        self.shapes(job).next().unwrap_or(job.spec.requested())
    }

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
            match self.cheapest(job)? {
                Some((shape, allocation)) => {
                    self.ledger.take(job, &job.total(shape), 1);
                    self.round.proposal.run(job, allocation);
                }
                None => left.push(job),
            }
        }
        let reasons = left.into_iter().map(|job| {
            let room = &self.round.board.room;
            (job, largest.refusal(self.round.state, room, &self.ledger, job, self.engine.least(job)))
        });
        Ok(reasons.collect())
    }

    /// The additional cost of the more expensive place, per share of the cluster. Infinite if there is only one place.
    fn regret(&mut self, job: &Job, hours: f64) -> Result<f64, EngineError> {
        let least = self.engine.least(job);
        for cloud in [false, true] {
            if !self.holds(job, least, Zone::Only(cloud))? {
                return Ok(f64::INFINITY);
            }
        }
        let [edge, cloud] = self.engine.prices;
        let shape = job.spec.requested();
        let share = job.total(shape).dominant_share(&self.round.state.usable).max(1e-12);
        Ok(hours * f64::from(shape.workers + shape.servers) * (edge - cloud).abs() / share)
    }

    /// The shape and the place with the lowest cost.
    fn cheapest(&mut self, job: &Job) -> Result<Option<(Shape, Arc<Allocation>)>, EngineError> {
        let [edge, cloud] = self.engine.prices;
        let cloud_first = cloud < edge;
        let shapes: Vec<Shape> = self.engine.shapes(job).collect();
        self.round.budget.spend(shapes.len() as u64)?;
        for zone in [Zone::Only(cloud_first), Zone::Only(!cloud_first), Zone::Both { cloud_first }] {
            let Some(fit) = self.largest(job, &shapes, zone)? else { continue };
            // The largest that fits is there for shapes that have more room in theory than on these servers.
            for shape in [least_cost(job, &shapes[..=fit]), shapes[fit]] {
                if let Some(found) = self.place(job, shape, zone)? {
                    return Ok(Some((shape, found)));
                }
            }
        }
        Ok(None)
    }

    /// The index of the largest shape that fits in a zone.
    fn largest(&mut self, job: &Job, shapes: &[Shape], zone: Zone) -> Result<Option<usize>, EngineError> {
        let (mut fits, mut over) = (None, shapes.len());
        let mut next = over.saturating_sub(1);
        while fits.map_or(0, |at| at + 1) < over {
            if self.ledger.has(job, &job.total(shapes[next])) && self.holds(job, shapes[next], zone)? {
                fits = Some(next);
            } else {
                over = next;
            }
            let least = fits.map_or(0, |at| at + 1);
            next = least + over.saturating_sub(least) / 2;
        }
        Ok(fits)
    }

    fn holds(&mut self, job: &Job, shape: Shape, zone: Zone) -> Result<bool, EngineError> {
        let last = *self.round.last;
        let found = self.place(job, shape, zone)?;
        *self.round.last = last;
        if let Some(allocation) = &found {
            self.round.board.give_back(self.round.state, job, allocation);
        }
        Ok(found.is_some())
    }

    fn place(&mut self, job: &Job, shape: Shape, zone: Zone) -> Result<Option<Arc<Allocation>>, EngineError> {
        let cloud_first = match zone {
            Zone::Only(cloud) => {
                self.round.board.room.limit(Some(cloud));
                let found = self.round.place(job, shape, self.engine.placing);
                self.round.board.room.limit(None);
                return found;
            }
            Zone::Both { cloud_first } => cloud_first,
        };
        let state = self.round.state;
        self.round.board.place_each(state, job, shape, self.round.budget, |board, job, role| {
            let need = &job.demand(role).amounts;
            let freest = |cloud| {
                let mut servers = board.free.freest_in(&board.room, need, Some(cloud));
                servers.find(|id| placing::holds(state, board, *id, job, role))
            };
            freest(cloud_first).or_else(|| freest(!cloud_first))
        })
    }
}

/// Servers for a job.
#[derive(Clone, Copy)]
enum Zone {
    /// In the cloud alone (`true`), or at the edge alone (`false`).
    Only(bool),
    /// Everywhere, beginning with the cheaper ones.
    Both { cloud_first: bool },
}

/// The shape that costs least: slots × hours. The largest of several. The price is the same for all of them.
fn least_cost(job: &Job, shapes: &[Shape]) -> Shape {
    let cost = |shape: &Shape| {
        let hours = round::remaining_time(job, *shape).map_or(0.0, Span::as_seconds);
        hours * f64::from(shape.workers + shape.servers)
    };
    // Durations are whole milliseconds, so equal costs can differ by one for each slot.
    let same = |shape: &Shape| f64::from(shape.workers + shape.servers) / 1000.0;
    let least = shapes.iter().map(cost).fold(f64::INFINITY, f64::min);
    let best = shapes.iter().rev().find(|shape| cost(shape) <= least + same(shape));
    best.copied().unwrap_or(job.spec.requested())
}

/// The remaining hours of each job.
fn hours<'a>(batch: &[&'a Arc<Job>]) -> Vec<(&'a Arc<Job>, f64)> {
    let known = |job: &Job| Some(round::remaining_time(job, job.spec.requested())?.as_seconds() / 3600.0);
    let times: Vec<f64> = batch.iter().filter_map(|job| known(job)).collect();
    let mean = if times.is_empty() { 1.0 } else { times.iter().sum::<f64>() / times.len() as f64 };
    batch.iter().map(|job| (*job, known(job).unwrap_or(mean))).collect()
}
