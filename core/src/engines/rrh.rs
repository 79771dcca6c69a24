//! RRH: the risk-reward heuristic. It admits jobs that are worth more than the delay that they cause, and runs those
//! with the largest gain.
//!
//! Irwin, Grit, Chase, *Balancing Risk and Reward in a Market-Based Task Service*, HPDC'04, as described for comparison
//! by OASiS's authors (INFOCOM'18, §V): a job is admitted if its utility, less the cost of the delay by its admission,
//! is above a threshold. On each arrival and completion, unfinished jobs continue or pause by future gain less cost,
//! always in their requested shapes. Slots are placed round-robin.
//!
//! Neither paper defines the cost of a delay on a cluster with many running jobs. Here, with rⱼ the remaining time of
//! job j and fⱼ its utility by its end, j gains fⱼ(now + rⱼ). Running it costs sⱼ · Σ_{i ≠ j}
//! fᵢ(now + rᵢ) − fᵢ(now + rⱼ + rᵢ). This is the loss of the other admitted jobs if they wait until its end, weighted
//! by its dominant share sⱼ of the cluster. Further choices:
//! * rⱼ is the remaining work of the job's dataset, or else the predicted time. If both are unknown, the job counts as
//!   about to end.
//! * A job without a utility is worth 1 whenever it ends.
//! * A continuing job keeps its place. A starting job takes free room, or else the room of running jobs with smaller
//!   gains, if that is enough. The rest goes to the next jobs: room isn't left idle because of a negative net gain.
//! * A rejected job stays rejected.
//!
//! Choose it for comparisons with `oasis`: it has utilities too, but neither prices nor a view of the future.
//!
//! Cost: O(J²) utilities for J jobs, and a walk over the servers per slot.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::engine::{
    About, Build, Engine, EngineError, Parameters, Round, Triggers, board::Largest, ledger::Ledger, placing::Placing,
    round,
};
use crate::{
    decision::{Allocation, Verdict},
    ids::JobId,
    job::{Job, Utility, UtilityKind},
    reason::{Reason, Worth},
    settings::SettingsError,
    state::{Mandate, State},
    time::Span,
};

/// The engine, as its module describes it.
#[derive(Clone, Debug)]
pub struct Rrh {
    threshold: f64,
    placing: Placing,
}

/// The engine's memory: admitted and rejected jobs.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Memo {
    admitted: BTreeMap<JobId, bool>,
}

impl Build for Rrh {
    type Engine = Self;
    const ABOUT: About = About::new(
        "rrh",
        "admits and runs jobs by the utility they gain less what they cost others",
        "Irwin et al., Risk-Reward Heuristic, HPDC'04; baseline of OASiS",
    );

    fn build(parameters: &mut Parameters<'_>) -> Result<Self, SettingsError> {
        let threshold = "a job is admitted if its utility less the cost of the delay it brings is above this";
        Ok(Self {
            threshold: parameters.number("threshold", 0.0, -1e12..=1e12, threshold)?,
            placing: Placing::of(parameters, "round_robin")?,
        })
    }
}

impl Engine for Rrh {
    type Memo = Memo;
    type Index = ();

    fn triggers(&self) -> Triggers {
        Triggers { interval: None, arrival: true, departure: true }
    }

    fn decide(&self, round: &mut Round<'_>, memo: &mut Memo) -> Result<(), EngineError> {
        let state = round.state;
        let mut ledger = Ledger::of(state);
        let mut admitted = memo.admitted.clone();
        admitted.retain(|id, _| state.job(*id).is_some());
        let mut stakes: Vec<Stake<'_>> = Vec::new();
        let mut newcomers = Vec::new();
        for job in state.jobs.values() {
            match state.mandate(job) {
                Mandate::Free => match admitted.get(&job.id) {
                    // Another engine started it.
                    None if job.verdict.allocation().is_none() => newcomers.push(Stake::of(state, job)),
                    Some(false) => {}
                    _ => stakes.push(Stake::of(state, job)),
                },
                Mandate::Pinned(kept) => ledger.take(job, &job.total(kept.shape()), 1),
                // The job can't be changed, but its slots count.
                Mandate::Closed => ledger.take(job, &job.total(job.shape()), 1),
            }
        }
        for newcomer in newcomers {
            round.budget.spend(stakes.len() as u64 + 1)?;
            let (gain, cost) = (newcomer.gain(Span::ZERO), newcomer.cost(&stakes));
            let worth_it = gain - cost > self.threshold;
            admitted.insert(newcomer.job.id, worth_it);
            if worth_it {
                stakes.push(newcomer);
            }
        }
        for (id, _) in admitted.iter().filter(|(_, admitted)| !**admitted) {
            let job = &state.jobs[id];
            let rejected = Stake::of(state, job);
            let free = state.mandate(job) == Mandate::Free;
            if free && !matches!(job.verdict, Verdict::Reject(_)) {
                let reason = Reason::Outweighed {
                    worth: Worth::of(rejected.gain(Span::ZERO)),
                    cost: Worth::of(rejected.cost(&stakes)),
                    threshold: Worth::of(self.threshold),
                };
                round.proposal.changes.push((job.id, Verdict::Reject(reason)));
            }
        }
        round.budget.spend((stakes.len() * stakes.len()) as u64)?;
        let mut order: Vec<(f64, &Arc<Job>)> =
            stakes.iter().map(|stake| (stake.gain(Span::ZERO) - stake.cost(&stakes), stake.job)).collect();
        order.sort_by(|(mine, a), (theirs, b)| theirs.total_cmp(mine).then((a.arrival, a.id).cmp(&(b.arrival, b.id))));
        let jobs: Vec<&Arc<Job>> = order.into_iter().map(|(_, job)| job).collect();
        let mut room = Slots { round, ledger, placing: self.placing };
        let given = room.hand_out(&jobs)?;
        let Slots { round, ledger, .. } = room;
        let mut largest = Largest::default();
        for (job, given) in jobs.iter().zip(given) {
            match given {
                Some(allocation) => round.proposal.run(job, allocation),
                None => {
                    let reason = largest.refusal(state, &round.board.room, &ledger, job, job.spec.requested());
                    round.proposal.wait(job, reason);
                }
            }
        }
        *memo = Memo { admitted };
        Ok(())
    }
}

/// Gain and cost of a job.
struct Stake<'a> {
    job: &'a Arc<Job>,
    utility: Utility,
    /// Time from its arrival to its end if it runs from now on.
    elapsed: Span,
    /// The part of `elapsed` from now on.
    remaining: Span,
    /// Dominant share of the cluster.
    share: f64,
}

impl<'a> Stake<'a> {
    fn of(state: &State, job: &'a Arc<Job>) -> Self {
        let shape = job.spec.requested();
        let remaining = round::remaining_time(job, shape).unwrap_or(Span::ZERO);
        Self {
            job,
            utility: state.utility(job).unwrap_or_else(|| Utility::new(UtilityKind::Constant)),
            elapsed: Span((state.now - job.arrival).0.saturating_add(remaining.0)),
            remaining,
            share: job.total(shape).dominant_share(&state.usable).min(1.0),
        }
    }

    /// Utility at its end after a wait of `wait`.
    fn gain(&self, wait: Span) -> f64 {
        self.utility.at(Span(self.elapsed.0.saturating_add(wait.0)))
    }

    /// Loss of the others if they wait for it.
    fn cost(&self, others: &[Stake<'_>]) -> f64 {
        let lost = |other: &Stake<'_>| other.gain(Span::ZERO) - other.gain(self.remaining);
        self.share * others.iter().filter(|other| other.job.id != self.job.id).map(lost).sum::<f64>()
    }
}

/// Remaining room during the assignment.
struct Slots<'a, 'r> {
    round: &'a mut Round<'r>,
    ledger: Ledger,
    placing: Placing,
}

impl Slots<'_, '_> {
    /// The allocations of the jobs, assigned in this order.
    fn hand_out(&mut self, jobs: &[&Arc<Job>]) -> Result<Vec<Option<Arc<Allocation>>>, EngineError> {
        let mut given: Vec<Option<Arc<Allocation>>> =
            jobs.iter().map(|job| job.verdict.allocation().cloned()).collect();
        for (job, given) in jobs.iter().zip(&given) {
            if given.is_some() {
                self.ledger.take(job, &job.total(job.shape()), 1);
            }
        }
        for at in 0..jobs.len() {
            if given[at].is_some() {
                continue;
            }
            let (job, after) = (jobs[at], at + 1..jobs.len());
            given[at] = self.place(job)?;
            if given[at].is_some() {
                continue;
            }
            let displaced: Vec<(usize, Arc<Allocation>)> =
                after.filter_map(|other| Some((other, given[other].take()?))).collect();
            for (other, allocation) in &displaced {
                self.round.board.give_back(self.round.state, jobs[*other], allocation);
                self.ledger.take(jobs[*other], &jobs[*other].total(allocation.shape()), -1);
            }
            if !displaced.is_empty() {
                given[at] = self.place(job)?;
            }
            for (other, allocation) in displaced {
                let total = jobs[other].total(allocation.shape());
                if self.ledger.has(jobs[other], &total)
                    && self.round.board.restore(self.round.state, jobs[other], &allocation)
                {
                    self.ledger.take(jobs[other], &total, 1);
                    given[other] = Some(allocation);
                }
            }
        }
        Ok(given)
    }

    fn place(&mut self, job: &Job) -> Result<Option<Arc<Allocation>>, EngineError> {
        let shape = job.spec.requested();
        let total = job.total(shape);
        if !self.ledger.has(job, &total) {
            return Ok(None);
        }
        let found = self.round.place(job, shape, self.placing)?;
        Ok(found.inspect(|_| self.ledger.take(job, &total, 1)))
    }
}
