//! Optimus: the numbers of workers and parameter servers that shorten training most, on the minimum number of servers
//! that hold them evenly.
//!
//! Peng, Bao, Chen, Wu and Guo, *Optimus: An Efficient Dynamic Resource Scheduler for Deep Learning Clusters*,
//! EuroSys'18, §4. In each interval it minimises Σ Q_j / f_j(p_j, w_j) over the active jobs, with Q the remaining steps
//! until convergence (§3.1) and f the fitted speed (§3.2). Each job starts with one worker and one parameter server, in
//! order of arrival. Then the job with the largest gain in completion time per share of the cluster gets the next
//! worker or parameter server (§4.1, Eq. 9). Placement takes smaller jobs first, and spreads each evenly over the
//! minimum number of the freest servers (§4.2, Theorem 1). A worker that is slower than half of its job's median is
//! replaced by one on another server (§5.2).
//!
//! Where the paper leaves points open:
//! * Jobs of a higher priority get their first units first.
//! * A gain is divided by the dominant *share*, because amounts of different resources aren't comparable.
//! * If no even spread of both roles fits, parameter servers go to other servers, because clusters mix servers with and
//!   without GPUs.
//! * If a job's next unit doesn't fit, it tries its other unit. Then it leaves the queue, and the others continue.
//! * A job with an unchanged (w, p) keeps its place.
//! * Without a measured speed, a job's remaining time in its requested shape counts as the median of the others'.
//! * Slow workers are replaced if that earns a restart back.
//! * A job that runs only with some numbers of workers gets the one with the largest gain per worker next.
//! * Some jobs can't use every server, because of their labels. If their servers have no room, their units go to the
//!   other jobs.
//! * `optimus` also decides when jobs come or end. Rounds about all jobs are 10 s apart at least, and a minute at most.
//! * A waiting job takes the room of jobs of a lower priority. If these can't leave yet, it is held for it.
//!
//! `optimus-paper` is the paper's algorithm, with these interpretations and without additions. `optimus` has those
//! additions on that shorten completion times on measured workloads (docs/experiments.md).
//!
//! Choose it if jobs converge and report loss and speed, which its predictions need. Cost, for J jobs with T units in
//! total on S servers: at most O(T log J) for the allocation (most units are handed out without the heap), and
//! O(T + J·k² + T·log S) for the placement, with k the servers of one job. No step costs J × S while there is room; see
//! [`FreeIndex`](crate::place::FreeIndex) for the case of scarce room. A decision less than `min_interval` after a
//! round visits each job once to sum up the running ones, and costs the above for the waiting ones. Jobs that can't use
//! every server and find no room there cost the same again, at most twice in a decision.

mod allocate;
mod candidate;

use std::{cmp::Reverse, collections::BTreeSet};

use serde::{Deserialize, Serialize};

use self::{allocate::keep_what_restarts_do_not_earn, candidate::Candidate};
use crate::engine::{
    About, Build, Engine, EngineError, Parameters, Round, Triggers, confined,
    forecast::{Forecast, Kinds, guess_unknown_times},
    ledger::Ledger,
    placing::Placing,
    resizing::{Homeless, Resizing},
};
use crate::{
    ids::JobId,
    place::SortBy,
    resources::CPU,
    settings::SettingsError,
    state::Mandate,
    time::{Span, Time},
};

/// Number of times that units which unearned changes leave are handed out again.
const HANDED_OUT_AGAIN: u32 = 2;

/// The engine, as its module describes it.
#[derive(Clone, Debug)]
pub struct Optimus {
    interval: Span,
    min_interval: Span,
    young_job_factor: f64,
    sort_by: SortBy,
    joint_steps: bool,
    rescale_cost: bool,
    resizing: Resizing,
    between_rounds: bool,
    replace_stragglers: bool,
    explore: bool,
    relative_gain: bool,
    short_first: bool,
    pass_over: bool,
    prefer: bool,
}

/// The engine's memory.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Memo {
    /// Time of the last decision about all jobs. Unset if every decision is about all jobs.
    last_round: Option<Time>,
}

const PAPER: &str = "Peng et al., Optimus, EuroSys'18";

impl Build for Optimus {
    type Engine = Self;
    const ABOUT: About = About::new(
        "optimus",
        "gives each next worker or parameter server to the job whose remaining time it shortens most",
        PAPER,
    );

    fn build(parameters: &mut Parameters<'_>) -> Result<Self, SettingsError> {
        Self::read(parameters, true)
    }
}

/// The paper's algorithm.
pub struct OptimusPaper;

impl Build for OptimusPaper {
    type Engine = Optimus;
    const ABOUT: About = About::new("optimus-paper", "optimus as published, without this project's additions", PAPER);

    fn build(parameters: &mut Parameters<'_>) -> Result<Optimus, SettingsError> {
        Optimus::read(parameters, false)
    }
}

impl Optimus {
    /// Reads the parameters. `beyond`: the additions to the paper are on by default.
    fn read(parameters: &mut Parameters<'_>, beyond: bool) -> Result<Self, SettingsError> {
        let interval = "longest time between rounds (§6.1: 10 minutes)";
        let young = "gain of a job with few observations is multiplied by this (§4.1; 0.95 shortens JCT a little)";
        let sort_by =
            "order of servers: \"share\" = sum of free shares of all resources, \"cpu\" = free CPU as in the paper";
        let orders = [("share", SortBy::Share), ("cpu", SortBy::Amount(CPU))];
        let joint = "beyond the paper: try one worker and one parameter server together where neither alone gains";
        let rescale = "beyond the paper: keep a running job's shape unless the new one soon makes up for its restart";
        let in_place = "beyond the paper: where only workers change, what runs stays where it is, so nothing restarts";
        let shrink = "beyond the paper: a job that fits nowhere keeps its old place, or tries a smaller shape, before \
            it is paused";
        let spare = "beyond the paper: what needs no GPU leaves each free GPU what the smallest worker needs beside \
            it, if it can";
        let between = "beyond the paper: jobs that wait start as soon as there is room, and jobs that come or end \
            bring the next round forward";
        let min_interval = "beyond the paper: shortest time between rounds (`between_rounds`); what runs stays as it \
            is until then";
        let replace = "a worker slower than half the median of its job is replaced by one on another server (§5.2), if \
            that earns a restart back";
        let explore = "beyond the paper: a job with few measured speeds tries its requested workers, then twice as \
            many as ever, where there is idle room";
        let relative = "beyond the paper: a gain counts as a fraction of the job's remaining time, so that short jobs \
            grow too";
        let short = "beyond the paper: where not all jobs get their smallest shape, the one that has waited longest \
            relative to its remaining time is first, not the earliest; it trusts `epochs`";
        let pass_over = "beyond the paper: what a job would get goes to others if its labels exclude servers and the \
            rest have no room";
        let prefer = "beyond the paper: a job that waits takes the room of jobs with a lower priority, also between \
            rounds, and what it lacks is held for it";
        Ok(Self {
            interval: parameters.span("interval", if beyond { "60s" } else { "600s" }, interval)?,
            min_interval: parameters.span("min_interval", "10s", min_interval)?,
            young_job_factor: parameters.number("young_job_factor", 1.0, 0.0..=1.0, young)?,
            sort_by: parameters.choice("sort_by", "share", &orders, sort_by)?,
            joint_steps: parameters.flag("joint_steps", false, joint)?,
            rescale_cost: parameters.flag("rescale_cost", beyond, rescale)?,
            resizing: Resizing {
                placing: Placing::of(parameters, "even")?,
                in_place: parameters.flag("resize_in_place", beyond, in_place)?,
                shrink_to_fit: parameters.flag("shrink_to_fit", beyond, shrink)?,
                spare_gpus: parameters.flag("spare_gpus", beyond, spare)?,
            },
            between_rounds: parameters.flag("between_rounds", beyond, between)?,
            replace_stragglers: parameters.flag("replace_stragglers", true, replace)?,
            explore: parameters.flag("explore", beyond, explore)?,
            relative_gain: parameters.flag("relative_gain", beyond, relative)?,
            short_first: parameters.flag("short_first", beyond, short)?,
            pass_over: parameters.flag("pass_over", beyond, pass_over)?,
            prefer: parameters.flag("prefer", beyond, prefer)?,
        })
    }
}

impl Engine for Optimus {
    type Memo = Memo;
    const MEMO_VERSION: u32 = 3;
    type Index = ();

    fn order(&self) -> Option<SortBy> {
        Some(self.sort_by)
    }

    fn triggers(&self) -> Triggers {
        Triggers { interval: Some(self.interval), arrival: self.between_rounds, departure: self.between_rounds }
    }

    fn decide<'a>(&self, round: &mut Round<'a>, memo: &mut Memo) -> Result<(), EngineError> {
        let state = round.state;
        let soonest = self.min_interval.min(self.interval);
        let round_before = memo.last_round.filter(|last| self.between_rounds && state.now < *last + soonest);
        let is_round = round_before.is_none();
        let plan = |round: &mut Round<'a>, passed_over: &Homeless<'a>| self.plan(round, is_round, passed_over);
        let candidates = if self.pass_over { confined::planned(round, plan)? } else { plan(round, &Vec::new())?.0 };
        if self.replace_stragglers {
            let forecasts = candidates.iter().map(|candidate| &candidate.forecast);
            self.resizing.replace_slow_workers(round, forecasts)?;
        }
        if self.prefer {
            round.prefer(self.resizing.placing);
        }
        if self.between_rounds {
            // The interval counts from the last decision of any kind. Rounds have their own time. A decision between
            // them shows that something happened, so the next round comes soon.
            let last = *memo.last_round.insert(round_before.unwrap_or(state.now));
            let next = last + if is_round { self.interval } else { soonest };
            round.proposal.wake_at = round.proposal.wake_at.into_iter().chain([next]).min();
        } else {
            // Every decision is a round, and rounds keep their time.
            round.proposal.wake_at = None;
        }
        Ok(())
    }
}

impl Optimus {
    /// Allocates and places the jobs that aren't passed over. `is_round`: all of them, not only those that wait.
    /// Returns the candidates that got their smallest shape, and those of them that found no room for it.
    fn plan<'a>(
        &self,
        round: &mut Round<'a>,
        is_round: bool,
        passed_over: &Homeless<'a>,
    ) -> Result<(Vec<Candidate<'a>>, Homeless<'a>), EngineError> {
        let state = round.state;
        let mut ledger = Ledger::of(state);
        let skipped: BTreeSet<JobId> = passed_over.iter().map(|(job, _)| job.id).collect();
        passed_over.iter().for_each(|(job, reason)| round.proposal.wait(job, reason.clone()));
        let kinds = Kinds::of(state);
        let mut candidates = Vec::with_capacity(if is_round { state.jobs.len() } else { 0 });
        for job in state.jobs.values() {
            let waits = job.verdict.allocation().is_none();
            if skipped.contains(&job.id) {
                continue;
            }
            if (is_round || waits) && state.mandate(job) == Mandate::Free {
                candidates.push(Candidate::new(self, state, Forecast::of(job, &kinds)));
            } else if !waits {
                // The job can't be changed now, but its slots count.
                ledger.take(job, &job.total(job.shape()), 1);
            }
        }
        round.budget.spend(candidates.len() as u64)?;
        guess_unknown_times(candidates.iter_mut().map(|candidate| &mut candidate.forecast));
        candidates.sort_by_cached_key(|candidate| {
            let ratio = if self.short_first { candidate.response_ratio(state.now) } else { 0.0 };
            (Reverse(state.priority(candidate.forecast.job)), Reverse(ratio.to_bits()), candidate.forecast.job.id)
        });
        self.allocate(round, &mut candidates, &mut ledger)?;
        // The slots of jobs that will wait are free for the others.
        let waiting = round.proposal.changes.iter().filter_map(|(id, _)| state.job(*id));
        waiting.for_each(|job| round.board.release(state, job));
        if self.rescale_cost {
            // Units that unearned changes leave go to the other jobs, if that earns their restarts.
            for _ in 0..HANDED_OUT_AGAIN {
                if !keep_what_restarts_do_not_earn(state, &self.resizing, &mut candidates, &mut ledger) {
                    break;
                }
                self.hand_out(round, &mut candidates, &mut ledger)?;
            }
            keep_what_restarts_do_not_earn(state, &self.resizing, &mut candidates, &mut ledger);
        }
        let planned: Vec<_> = candidates.iter().map(|candidate| (&candidate.forecast, candidate.shape)).collect();
        let homeless = self.resizing.place(round, &planned)?;
        Ok((candidates, homeless))
    }
}
