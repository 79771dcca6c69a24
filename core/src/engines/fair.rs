//! Fair: jobs as they were requested, in turns, so that each has had the same share of the cluster for the same time.
//!
//! The fair scheduler that MLFS's authors compare with as "TensorFlow with Borg" (CoNEXT'20, §2 and §4.1), which "aims to
//! achieve fairness of resource allocation among different jobs"; they tell no more. Fairness is max-min in dominant shares (Ghodsi et
//! al., DRF, NSDI'11), and since jobs run as requested or not at all, it is of shares over time: in every round the jobs come in the
//! order of their service so far, dominant share × time, the least first; who has had more makes room. That is start-time fair queueing
//! (Goyal et al., SIGCOMM'96) with jobs for flows.
//!
//! `drf` differs in two things. It divides the cluster anew in space: every job gets as many workers as make shares equal, so
//! that more jobs means fewer workers for each; it takes jobs that can be resized. Here a job has all of its workers or none, and more
//! jobs means longer turns of others; it suits jobs of fixed size.
//!
//! Chosen is:
//! * A newcomer, and who comes back from being held, has no claim on the time before: it starts with the service of the running job
//!   that has had least. So nobody's turn is longer than a round for others having come late.
//! * Ties go to who runs, then to who came first. What runs keeps its place, and free room is taken before anyone is stopped
//!   ([`serve_in_turn`](Round::serve_in_turn)); a job that doesn't fit is skipped, and is the more ahead in the next round.
//! * Service is counted from when slots were issued, restarts included.
//! * A round is a minute, as everywhere in that paper. Where restarts cost as much, set a longer `interval`, or leave it to the
//!   site's `stability`.
//!
//! Choose it to compare with, or where jobs can't be resized and every owner should see progress. Completion times suffer: of equal
//! jobs that take turns, all end late.
//!
//! Cost: O(J log J) for J jobs, plus what [`serve_in_turn`](Round::serve_in_turn) costs. The memory holds a line a job.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::engine::{About, Build, Engine, EngineError, Parameters, Round, Triggers, placing::Placing, round};
use crate::{
    ids::JobId,
    job::Job,
    settings::SettingsError,
    state::State,
    time::{Span, Time},
};

/// Millionths of the cluster times milliseconds.
type Service = i64;
const WHOLE: f64 = 1e6;

/// The engine, as its module describes it.
#[derive(Clone, Debug)]
pub struct Fair {
    interval: Span,
    placing: Placing,
}

/// What jobs have had.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Memo {
    /// Up to when service is counted.
    counted: Option<Time>,
    /// The least service among those that ran: what a newcomer starts with.
    start: Service,
    accounts: BTreeMap<JobId, Account>,
}

/// One job's.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Account {
    service: Service,
    /// Millionths of the cluster that it has now.
    share: i64,
}

impl Build for Fair {
    type Engine = Self;
    const ABOUT: About = About::new(
        "fair",
        "runs whole jobs in turns, each for an equal share of the cluster's time",
        "TensorFlow with Borg; baseline of MLFS",
    );

    fn build(parameters: &mut Parameters<'_>) -> Result<Self, SettingsError> {
        Ok(Self { interval: round::minute(parameters)?, placing: Placing::of(parameters, "spread")? })
    }
}

impl Engine for Fair {
    type Memo = Memo;
    const MEMO_VERSION: u32 = 2;
    type Index = ();

    fn triggers(&self) -> Triggers {
        Triggers { interval: Some(self.interval), arrival: true, departure: true }
    }

    fn decide(&self, round: &mut Round<'_>, memo: &mut Memo) -> Result<(), EngineError> {
        let state = round.state;
        let mut now = memo.clone();
        now.count(state);
        let (mut order, ledger) = round.jobs();
        round.budget.spend(order.len() as u64)?;
        let waits = |job: &Job| job.verdict.allocation().is_none();
        order.sort_by_cached_key(|job| (now.accounts[&job.id].service, waits(job), job.arrival, job.id));
        round.serve_in_turn(&order, ledger, self.placing)?;
        now.remember(round);
        *memo = now;
        Ok(())
    }
}

impl Memo {
    /// Adds what jobs had since that was last done. Newcomers get an account.
    fn count(&mut self, state: &State) {
        let since = self.counted.replace(state.now).unwrap_or(state.now);
        self.accounts.retain(|id, _| state.jobs.contains_key(id));
        let mut least = None;
        for (id, account) in self.accounts.iter_mut().filter(|(_, account)| account.share > 0) {
            let held = round::held(&state.jobs[id], since, state.now);
            account.service = account.service.saturating_add(account.share.saturating_mul(held.0));
            least = Some(least.map_or(account.service, |least: Service| least.min(account.service)));
        }
        self.start = self.start.max(least.unwrap_or(self.start));
        for job in state.jobs.values() {
            let account = self.accounts.entry(job.id).or_insert(Account { service: self.start, share: 0 });
            if job.held {
                account.service = account.service.max(self.start);
            }
        }
    }

    /// Who has what from now on.
    fn remember(&mut self, round: &Round<'_>) {
        let state = round.state;
        self.accounts.values_mut().for_each(|account| account.share = 0);
        for (job, allocation) in round.planned() {
            let share = job.total(allocation.shape()).dominant_share(&state.usable).min(1.0);
            // The smallest job has some of it, too.
            self.accounts.get_mut(&job.id).expect("counted before").share = (libm::round(share * WHOLE) as i64).max(1);
        }
    }
}
