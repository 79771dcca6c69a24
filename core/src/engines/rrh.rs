//! Risk-reward heuristic: admit what is worth more than it delays, and let those run that gain most.
//!
//! Irwin, Grit, Chase, *Balancing Risk and Reward in a Market-Based Task Service*, HPDC'04, as OASiS's authors describe it
//! to compare with (INFOCOM'18, §V): a job is admitted if its utility less the cost of the delay that admitting it brings
//! is above a threshold; on every arrival and completion, unfinished jobs go on or pause by future gain less cost, always
//! with the numbers of workers and parameter servers that were requested; slots are placed round-robin.
//!
//! Neither paper says what a delay costs on a cluster where many jobs run at once; chosen is: with rⱼ the time that job j
//! still needs and fⱼ its utility by its end, j gains fⱼ(now + rⱼ), and running it costs
//! sⱼ · Σ_{i ≠ j} fᵢ(now + rᵢ) − fᵢ(now + rⱼ + rᵢ): what the other admitted jobs lose if they wait until it is done, as far
//! as its dominant share sⱼ of the cluster keeps them waiting. Further:
//! * rⱼ is the work that is left of the job's dataset, else the predicted time; unknown, the job counts as about to end.
//! * A job without a utility is worth 1 whenever it ends.
//! * A job that goes on stays where it is. One that is to start takes free room, else the room of running jobs that gain
//!   less, if that is enough. What is left over goes to whoever is next: room isn't left idle because a net gain is
//!   negative.
//! * A rejected job stays rejected.
//!
//! Choose it to compare with `oasis`: it knows utilities as well, but neither prices nor the future.
//!
//! Cost: O(J²) utilities for J jobs, and a walk over the servers a slot.

use std::{collections::BTreeMap, sync::Arc};

use imbl::Vector;
use serde::{Deserialize, Serialize};

use super::{
    Budget, Build, DefaultValue as Value, Engine, EngineError, ParameterInfo, Parameters, Triggers,
    board::{Board, Largest},
    ledger::Ledger,
    optimus::{run, wait},
    placing::{Placing, placement},
    rounds,
};
use crate::{
    decision::{Allocation, Proposal, Verdict},
    ids::JobId,
    job::{Job, Utility, UtilityKind},
    place::SortBy,
    reason::{Reason, Worth},
    settings::SettingsError,
    state::{Change, Mandate, State},
    time::Span,
};

pub(super) const NAME: &str = "rrh";
pub(super) const SUMMARY: &str = "admits and runs jobs by the utility they gain less what they cost others";
pub(super) const PAPER: &str = "Irwin et al., Risk-Reward Heuristic, HPDC'04; baseline of OASiS";
pub(super) const PARAMETERS: &[ParameterInfo] = &[
    ParameterInfo {
        name: "threshold",
        default: Value::Number(0.0),
        meaning: "a job is admitted if its utility less the cost of the delay it brings is above this",
    },
    placement("round_robin"),
];

/// The engine, as its module describes it.
#[derive(Clone, Debug)]
pub struct Rrh {
    threshold: f64,
    placing: Placing,
}

/// Who was admitted and who wasn't, and the server that had the last slot.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Memo {
    admitted: BTreeMap<JobId, bool>,
    last: u32,
}

impl Build for Rrh {
    fn build(parameters: &Parameters) -> Result<Self, SettingsError> {
        Ok(Self { threshold: parameters.number("threshold", -1e12..=1e12)?, placing: Placing::of(parameters)? })
    }
}

impl Engine for Rrh {
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
        let mut proposal = Proposal::default();
        let mut ledger = Ledger::of(state);
        let mut admitted = memo.admitted.clone();
        admitted.retain(|id, _| state.job(*id).is_some());
        let mut stakes: Vec<Stake<'_>> = Vec::new();
        let mut newcomers = Vec::new();
        for job in state.jobs.values() {
            match state.mandate(job) {
                Mandate::Free => match admitted.get(&job.id) {
                    // Somebody else let it run.
                    None if job.verdict.allocation().is_none() => newcomers.push(Stake::of(state, job)),
                    Some(false) => {}
                    _ => stakes.push(Stake::of(state, job)),
                },
                Mandate::Pinned(kept) => ledger.take(job, &job.total(kept.shape()), 1),
                // Nobody's to change, but what it has counts.
                Mandate::Closed => ledger.take(job, &job.total(job.shape()), 1),
            }
        }
        for newcomer in newcomers {
            budget.spend(stakes.len() as u64 + 1)?;
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
                proposal.changes.push((job.id, Verdict::Reject(reason)));
            }
        }
        budget.spend((stakes.len() * stakes.len()) as u64)?;
        let mut order: Vec<(f64, &Arc<Job>)> =
            stakes.iter().map(|stake| (stake.gain(Span::ZERO) - stake.cost(&stakes), stake.job)).collect();
        order.sort_by(|(mine, a), (theirs, b)| theirs.total_cmp(mine).then((a.arrival, a.id).cmp(&(b.arrival, b.id))));
        let jobs: Vec<&Arc<Job>> = order.into_iter().map(|(_, job)| job).collect();
        let mut last = memo.last;
        let mut room = Slots { state, board, budget, ledger, placing: self.placing, last: &mut last };
        let given = room.hand_out(&jobs)?;
        let mut largest = Largest::default();
        for (job, given) in jobs.iter().zip(given) {
            match given {
                Some(allocation) => run(&mut proposal, job, allocation),
                None => {
                    let total = job.total(job.spec.requested());
                    let reason = if room.ledger.has(job, &total) {
                        largest.reason(state, &room.board.room, job, job.spec.requested())
                    } else {
                        room.ledger.reason(state, job, &total)
                    };
                    wait(&mut proposal, job, reason);
                }
            }
        }
        *memo = Memo { admitted, last };
        Ok(proposal)
    }
}

/// What a job has to gain and to lose.
struct Stake<'a> {
    job: &'a Arc<Job>,
    utility: Utility,
    /// From its arrival to its end if it runs from now on.
    elapsed: Span,
    /// Of that, from now on.
    remaining: Span,
    /// Of the cluster.
    share: f64,
}

impl<'a> Stake<'a> {
    fn of(state: &State, job: &'a Arc<Job>) -> Self {
        let shape = job.spec.requested();
        let remaining = rounds::remaining_time(job, shape).unwrap_or(Span::ZERO);
        Self {
            job,
            utility: state.utility(job).unwrap_or_else(|| Utility::new(UtilityKind::Constant)),
            elapsed: Span((state.now - job.arrival).0.saturating_add(remaining.0)),
            remaining,
            share: job.total(shape).dominant_share(&state.usable).min(1.0),
        }
    }

    /// Worth at its end if it waits so long first.
    fn gain(&self, wait: Span) -> f64 {
        self.utility.at(Span(self.elapsed.0.saturating_add(wait.0)))
    }

    /// What the others lose by waiting for it.
    fn cost(&self, others: &[Stake<'_>]) -> f64 {
        let lost = |other: &Stake<'_>| other.gain(Span::ZERO) - other.gain(self.remaining);
        self.share * others.iter().filter(|other| other.job.id != self.job.id).map(lost).sum::<f64>()
    }
}

/// Room while it is handed out.
struct Slots<'a> {
    state: &'a State,
    board: &'a mut Board,
    budget: &'a mut Budget,
    ledger: Ledger,
    placing: Placing,
    last: &'a mut u32,
}

impl Slots<'_> {
    /// What each job gets, those that come first before the others.
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
                self.board.give_back(self.state, jobs[*other], allocation);
                self.ledger.take(jobs[*other], &jobs[*other].total(allocation.shape()), -1);
            }
            if !displaced.is_empty() {
                given[at] = self.place(job)?;
            }
            for (other, allocation) in displaced {
                let total = jobs[other].total(allocation.shape());
                if self.ledger.has(jobs[other], &total) && self.board.restore(self.state, jobs[other], &allocation) {
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
        let found = self.placing.place(self.state, self.board, job, shape, self.last, self.budget)?;
        Ok(found.inspect(|_| self.ledger.take(job, &total, 1)))
    }
}
