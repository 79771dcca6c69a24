//! Tiresias: least attained service first, with preemption. A job's age is two-dimensional: its GPUs times its running
//! time.
//!
//! Gu et al., *Tiresias: A GPU Cluster Manager for Distributed Deep Learning*, NSDI'19. Nothing is predicted for any
//! job:
//! * `order = "las"` (Tiresias-L): jobs move down through a few queues when their attained service exceeds
//!   `thresholds`. Upper queues go first. Within a queue, jobs that run go before jobs that wait, as in the authors'
//!   simulator; both go by start time, then by arrival. So a job is stopped for jobs of higher queues alone. If a
//!   stopped job could come back by its start time, it would stop those that started later, again and again.
//! * `order = "gittins"` (Tiresias-G): jobs go by the Gittins index of their age, highest first. With S the service of
//!   completed jobs, it is P(S − a ≤ Δ | S > a) / E[min(S − a, Δ) | S > a]. Ages are rounded down to whole quanta Δ,
//!   the first threshold, as in the authors' simulator. For a job older than all completed ones the index is 0. It uses
//!   the last `HISTORY` completed jobs. Until `ENOUGH` jobs have completed, least attained service decides.
//! * `promote`: a job that has waited for this multiple of its running time returns to the first queue, and its age
//!   restarts (PROMOTEKNOB). The default is off (`0`), as in the authors' simulator; then long jobs may starve while
//!   young ones arrive. If jobs are much longer than the first threshold and the cluster is overloaded, promotions are
//!   constant: with 8, forty jobs of the workload `oasis` were stopped 60,000 times instead of 54, without a gain.
//! * Jobs get their requested shape or nothing. The authors of the edge-cloud paper and of MLFS compare with this
//!   engine. The default has three queues with limits of 3,250 and 7,200 GPU-seconds, as in the authors' simulator. The
//!   former use the first limit alone, and Pollux's authors one of 16 GPU-hours (57,600). Most jobs should end in the
//!   first queues, so set what suits their lengths.
//!
//! The papers leave some points open. The following choices are our own:
//! * Service is the job's [GPU time](Job::service), including restarts. A job without GPUs ages as if each worker had
//!   one.
//! * The authors consolidate jobs on few servers if a profile of their tensors' sizes shows a skewed model. Job files
//!   have no tensor sizes, so every job is consolidated (`placement = "consolidate"`): evenly on the minimum number of
//!   servers. If that isn't possible, slots go one by one to the fullest servers, because no job gets less than it
//!   requested.
//! * Decisions are made on each arrival and departure, when a job enters another queue while others wait, and at
//!   intervals.
//!
//! Choose it for comparisons, or if speeds and lengths are unknown.
//!
//! Cost: O(J log J) for J jobs, plus the cost of `Round::serve_in_turn`. The memory has one entry per
//! job, and `HISTORY` numbers.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use crate::engine::{
    About, Build, Engine, EngineError, Parameters, Round, Triggers, placing::Placing, preempting::cloud, round,
};
use crate::{
    ids::JobId,
    job::{Job, Service},
    settings::SettingsError,
    state::State,
    time::{Span, Time},
};

/// Number of completed jobs that the Gittins index requires.
const ENOUGH: usize = 20;
/// Number of completed jobs whose service is remembered.
const HISTORY: usize = 1000;

/// Minimum time between rounds for changes of queues.
const SOONEST: Span = Span::seconds(1);

const GPU_SECOND: f64 = 1e6;

/// The engine, as its module describes it.
#[derive(Clone, Debug)]
pub struct Tiresias {
    gittins: bool,
    thresholds: Vec<Service>,
    promote: f64,
    interval: Span,
    placing: Placing,
    cloud: bool,
}

/// The service of jobs so far.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Memo {
    /// Time up to which service is counted.
    counted: Option<Time>,
    /// Ages of active jobs that had slots at some time.
    ages: BTreeMap<JobId, Age>,
    /// Service of completed jobs, in order of completion.
    ended: VecDeque<Service>,
}

/// Age of a job.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Age {
    /// Time of its first slots.
    started: Time,
    /// Service at the last count.
    service: Service,
    /// Service at the last promotion; 0 before.
    promoted: Service,
    /// Time running and waiting since then.
    ran: Span,
    waited: Span,
    /// Thousandths of GPUs from the last decision; 0 while it waits.
    gpus: i64,
}

impl Build for Tiresias {
    type Engine = Self;
    const ABOUT: About = About::new(
        "tiresias",
        "runs whole jobs by how little GPU time they have had, or by their Gittins index",
        "Gu et al., Tiresias, NSDI'19; baseline of A_online and MLFS",
    );

    fn build(parameters: &mut Parameters<'_>) -> Result<Self, SettingsError> {
        let order = "las: queues by attained service; gittins: by the Gittins index, learnt from jobs that ended";
        let thresholds = "GPU-seconds of service at which a job goes down a queue, ascending, such as \"3250, 36000\"; \
            the first is the Gittins index's quantum";
        let promote = "who has waited so many times as long as it ran goes back to the first queue; 0: never";
        let seconds = |thresholds: Vec<f64>| thresholds.into_iter().map(|seconds| (seconds * GPU_SECOND) as Service);
        Ok(Self {
            gittins: parameters.choice("order", "las", &[("las", false), ("gittins", true)], order)?,
            thresholds: seconds(parameters.ascending("thresholds", "3250, 7200", 1.0..=1e9, thresholds)?).collect(),
            promote: parameters.number("promote", 0.0, 0.0..=1e6, promote)?,
            interval: round::minute(parameters)?,
            placing: Placing::of(parameters, "consolidate")?,
            cloud: cloud(parameters)?,
        })
    }
}

impl Engine for Tiresias {
    type Memo = Memo;
    const MEMO_VERSION: u32 = 2;
    type Index = ();

    fn triggers(&self) -> Triggers {
        Triggers { interval: Some(self.interval), arrival: true, departure: true }
    }

    fn decide(&self, round: &mut Round<'_>, memo: &mut Memo) -> Result<(), EngineError> {
        let state = round.state;
        round.board.room.limit((!self.cloud).then_some(false));
        let mut now = memo.clone();
        now.count(state);
        self.promote(&mut now.ages);
        let (jobs, ledger) = round.all_jobs();
        let order = self.in_order(&now, jobs);
        round.budget.spend(order.len() as u64)?;
        round.serve_in_turn(&order, ledger, self.placing)?;
        now.remember(round);
        round.proposal.wake_at = self.next_change(state, &now);
        *memo = now;
        Ok(())
    }
}

impl Memo {
    /// Adds the service since the last count, and removes completed jobs.
    fn count(&mut self, state: &State) {
        let since = self.counted.replace(state.now).unwrap_or(state.now);
        let ended = &mut self.ended;
        self.ages.retain(|id, age| {
            let Some(job) = state.job(*id) else {
                ended.push_back(age.service.saturating_add(age.gpus.saturating_mul((state.now - since).0)));
                return false;
            };
            if age.gpus == 0 && !job.held {
                age.waited.0 = age.waited.0.saturating_add((state.now - since).0);
            } else if age.gpus > 0 {
                age.ran.0 = age.ran.0.saturating_add(round::held(job, since, state.now).0);
            }
            age.service = job.service(state.now);
            true
        });
        ended.drain(..ended.len().saturating_sub(HISTORY));
    }

    /// Records the slots from now on.
    fn remember(&mut self, round: &Round<'_>) {
        let state = round.state;
        self.ages.values_mut().for_each(|age| age.gpus = 0);
        for (job, allocation) in round.planned() {
            let service = job.service(state.now);
            let started =
                Age { started: state.now, service, promoted: 0, ran: Span::ZERO, waited: Span::ZERO, gpus: 0 };
            self.ages.entry(job.id).or_insert(started).gpus = job.gpus(allocation.shape());
        }
    }

    fn age(&self, job: &Job) -> Service {
        self.ages.get(&job.id).map_or(0, Age::age)
    }
}

impl Age {
    /// Service since it was last promoted.
    fn age(&self) -> Service {
        self.service - self.promoted
    }
}

impl Tiresias {
    /// The queue of an age. Queue 0 goes first.
    fn queue(&self, age: Service) -> usize {
        self.thresholds.partition_point(|threshold| *threshold <= age)
    }

    /// The wait after which a job in a lower queue is promoted, by its running time.
    fn patience(&self, age: &Age) -> Option<Span> {
        let long = age.ran.0 as f64 * self.promote;
        (self.promote > 0.0 && age.gpus == 0 && self.queue(age.age()) > 0).then(|| Span(libm::ceil(long) as i64))
    }

    fn promote(&self, ages: &mut BTreeMap<JobId, Age>) {
        for age in ages.values_mut() {
            if self.patience(age).is_some_and(|patience| age.waited >= patience) {
                (age.promoted, age.ran, age.waited) = (age.service, Span::ZERO, Span::ZERO);
            }
        }
    }

    /// Jobs in order of service.
    fn in_order<'a>(&self, memo: &Memo, mut order: Vec<&'a Arc<Job>>) -> Vec<&'a Arc<Job>> {
        let gittins =
            (self.gittins && memo.ended.len() >= ENOUGH).then(|| Gittins::of(self.thresholds[0], &memo.ended));
        // The bits of floats ≥ 0 have the order of the floats.
        let rank = |job: &Job| match &gittins {
            Some(gittins) => (Reverse(gittins.index(memo.age(job)).to_bits()), 0),
            None => (Reverse(0), self.queue(memo.age(job))),
        };
        let turn =
            |job: &Job| memo.ages.get(&job.id).map_or((true, Time(i64::MAX)), |age| (age.gpus == 0, age.started));
        order.sort_by_cached_key(|job| (rank(job), turn(job), job.arrival, job.id));
        order
    }

    /// The next time when a job changes its queue. None if no job waits.
    fn next_change(&self, state: &State, memo: &Memo) -> Option<Time> {
        let is_held = |id| state.job(id).is_some_and(|job| job.held);
        let spans = memo.ages.iter().filter(|(id, _)| !is_held(**id)).filter_map(|(_, age)| {
            let next = self.thresholds.get(self.queue(age.age())).filter(|_| age.gpus > 0);
            let down = next.map(|next| Span((next - age.age() + age.gpus - 1) / age.gpus));
            let up = self.patience(age).map(|patience| Span(patience.0.saturating_sub(age.waited.0)));
            down.or(up)
        });
        let somebody_waits = memo.ages.values().filter(|age| age.gpus > 0).count() < state.jobs.len();
        spans.min().filter(|_| somebody_waits).map(|span| state.now + span.max(SOONEST))
    }
}

/// The Gittins index for the observed services.
struct Gittins {
    quantum: Service,
    /// Ascending services, with the sum of those before each.
    seen: Vec<Service>,
    sums: Vec<f64>,
}

impl Gittins {
    fn of(quantum: Service, ended: &VecDeque<Service>) -> Self {
        let mut seen: Vec<Service> = ended.iter().copied().collect();
        seen.sort_unstable();
        let sums = seen.iter().scan(0.0, |sum, service| Some(std::mem::replace(sum, *sum + *service as f64)));
        let sums = sums.chain([seen.iter().map(|service| *service as f64).sum()]).collect();
        Self { quantum, seen, sums }
    }

    /// The probability that a job of this age ends within a quantum, divided by the expected part of it that it takes.
    /// O(log seen).
    fn index(&self, age: Service) -> f64 {
        let age = age - age % self.quantum;
        let end = age.saturating_add(self.quantum);
        let older = self.seen.partition_point(|service| *service <= age);
        let longer = self.seen.partition_point(|service| *service <= end);
        let (ending, staying) = ((longer - older) as f64, (self.seen.len() - longer) as f64);
        if older == self.seen.len() {
            return 0.0;
        }
        let taken = self.sums[longer] - self.sums[older] - ending * age as f64 + staying * self.quantum as f64;
        ending / taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn engine(
        parameters: &[(&str, crate::settings::Parameter)],
    ) -> Result<std::sync::Arc<dyn crate::engine::AnyEngine>, SettingsError> {
        let given = parameters.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        crate::engines::find("tiresias").unwrap().build(&given)
    }

    #[test]
    fn the_index_is_the_probability_over_the_expected_time() {
        // Services 1, 2, 5 and 12 with a quantum of 4.
        let gittins = Gittins::of(4, &[5, 1, 12, 2].into());
        // Two of four end within it, after 1 and 2. The others take all of it: (2/4) / (11/4).
        assert!((gittins.index(0) - 2.0 / 11.0).abs() < 1e-12);
        assert_eq!(gittins.index(3), gittins.index(0), "the same quantum");
        // 5 and 12 are left: one ends after 1, and the other takes 4.
        assert!((gittins.index(4) - 1.0 / 5.0).abs() < 1e-12);
        // Only 12 is left. It ends at the end of the quantum at 12.
        assert!((gittins.index(8) - 1.0 / 4.0).abs() < 1e-12);
        assert_eq!(gittins.index(12), 0.0, "nobody was ever as old");
        assert_eq!(gittins.index(Service::MAX), 0.0);
    }

    #[test]
    fn the_index_agrees_with_its_definition() {
        let seen: VecDeque<Service> = (0..200).map(|n: i64| (n * n * 37) % 5003).collect();
        let gittins = Gittins::of(700, &seen);
        for age in (0..5200).step_by(93) {
            let from = age / 700 * 700;
            let left: Vec<f64> = seen.iter().filter(|s| **s > from).map(|s| (s - from) as f64).collect();
            let ending = left.iter().filter(|left| **left <= 700.0).count() as f64;
            let taken: f64 = left.iter().map(|left| left.min(700.0)).sum();
            let expected = if left.is_empty() { 0.0 } else { ending / taken };
            assert!((gittins.index(age) - expected).abs() < 1e-12, "{age}");
        }
    }

    #[test]
    fn thresholds_ascend_and_wrong_ones_are_named() {
        use crate::settings::Parameter::{Number, Text};
        for right in [Number(3600.0), Text("3250".into()), Text("100, 200,4000".into())] {
            assert!(engine(&[("thresholds", right)]).is_ok());
        }
        for wrong in [Number(0.0), Number(f64::NAN), Text("".into()), Text("5,5".into()), Text("9,x".into())] {
            let problem = engine(&[("thresholds", wrong)]).err().expect("refused").to_string();
            assert!(problem.contains("thresholds") && problem.contains("ascending"), "{problem}");
        }
        let problem = engine(&[("order", Text("sjf".into()))]).err().expect("refused").to_string();
        assert!(problem.contains("las, gittins"), "{problem}");
    }

    #[test]
    fn only_recent_completed_jobs_are_remembered() {
        let mut memo = Memo::default();
        memo.ended.extend(0..HISTORY as i64 + 5);
        memo.count(&State::default());
        assert_eq!((memo.ended.len(), memo.ended[0]), (HISTORY, 5));
    }
}
