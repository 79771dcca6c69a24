//! Fair: jobs in their requested shapes take turns, so that all get the same share of the cluster over time.
//!
//! MLFS's authors compare with this scheduler as "TensorFlow with Borg" (CoNEXT'20, §2 and §4.1), which "aims to
//! achieve fairness of resource allocation among different jobs"; they give no details. Here fairness is max-min in
//! dominant shares (Ghodsi et al., DRF, NSDI'11). Jobs run in their requested shape or not at all, so shares are
//! equalised over time. In each round, jobs come in the order of their service so far (dominant share × time), smallest
//! first. Jobs with more service make room. This is start-time fair queueing (Goyal et al., SIGCOMM'96) with jobs as
//! flows.
//!
//! `drf` differs in two ways. It divides the cluster in space in each round: jobs get as many workers as make shares
//! equal, so more jobs mean fewer workers for each. And it resizes jobs. Here a job has all of its workers or none, and
//! more jobs mean longer turns of others, which suits jobs of fixed size.
//!
//! The following choices are our own:
//! * A new job, or a resumed one, has no claim for the time before. It starts with the smallest service of the running
//!   jobs. So no turn becomes longer than a round because others arrive late.
//! * Ties go to running jobs, then to earlier ones. Running jobs keep their place, and free room is used before jobs
//!   are stopped (`Round::serve_in_turn`). A job that doesn't fit is skipped, and comes earlier in the
//!   next round.
//! * Service counts from the issue of slots, including restarts.
//! * A round is a minute, as throughout that paper. If a restart costs about as much, set a longer `interval`, or use
//!   the site's `stability`.
//!
//! Choose it for comparisons, or if jobs can't be resized and every owner should see progress. Completion times suffer:
//! equal jobs that take turns all end late.
//!
//! Cost: O(J log J) for J jobs, plus the cost of `Round::serve_in_turn`. The memory has one entry per
//! job.

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

/// The service of jobs.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Memo {
    /// Time up to which service is counted.
    counted: Option<Time>,
    /// The smallest service of the jobs that ran: the start of a new job.
    start: Service,
    accounts: BTreeMap<JobId, Account>,
}

/// Service of one job.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Account {
    service: Service,
    /// Its current share in millionths of the cluster.
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
    /// Adds the service since the last count. New jobs get an account.
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

    /// Records the shares from now on.
    fn remember(&mut self, round: &Round<'_>) {
        let state = round.state;
        self.accounts.values_mut().for_each(|account| account.share = 0);
        for (job, allocation) in round.planned() {
            let share = job.total(allocation.shape()).dominant_share(&state.usable).min(1.0);
            // The smallest job has a positive share too.
            self.accounts.get_mut(&job.id).expect("counted before").share = (libm::round(share * WHOLE) as i64).max(1);
        }
    }
}
