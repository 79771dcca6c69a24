//! Which task goes first (MLFS, §3.3.1, Eq. 2 to 6).

use std::{collections::BTreeMap, sync::Arc};

use imbl::Vector;

use super::Mlfs;
use crate::{
    engines::rounds,
    ids::JobId,
    job::{Job, Partition},
    place::partition_shares,
    resources::Amounts,
    state::{Change, Mandate, State},
    time::Span,
};

/// A sum over the graph is cut here: it grows as (γ · out-degree) to the depth.
const MOST: f64 = 1e100;
/// Classes of jobs that are told apart before all are looked at anew.
const MOST_CLASSES: usize = 4096;

/// What a priority needs of a job, from one report to the next.
pub(super) struct Known {
    /// S_k / S_J, by partition.
    pub(super) shares: Box<[f64]>,
    /// The part of the job's remaining time that comes after each partition's own: its tasks' deadlines are so much earlier.
    later: Box<[f64]>,
    /// (1/I) · δl of the last epoch / Σ δl (Eq. 2).
    loss: f64,
    /// r in hours; none: nothing says it.
    pub(super) remaining: Option<f64>,
    /// Jobs of one class need the same of a server.
    pub(super) class: u32,
    /// What it needs as requested.
    pub(super) total: Amounts,
}

/// What jobs of one class have in common.
type Class = (BTreeMap<String, i64>, Option<BTreeMap<String, i64>>, BTreeMap<String, String>, bool, String);

/// [`Known`] of every active job, kept up by the changes.
#[derive(Default)]
pub(super) struct Jobs {
    known: BTreeMap<JobId, Known>,
    classes: BTreeMap<Class, u32>,
}

impl Jobs {
    /// O(changes), each job that changed O(epochs with a loss).
    pub(super) fn sync(&mut self, state: &State, changes: &Vector<Change>) {
        if self.known.is_empty() || self.classes.len() > MOST_CLASSES || changes.contains(&Change::Settings) {
            (self.known, self.classes) = Default::default();
            for job in state.jobs.values() {
                self.learn(job);
            }
            return;
        }
        for change in changes {
            match change {
                Change::Job(id) => match state.job(*id) {
                    Some(job) => self.learn(job),
                    None => _ = self.known.remove(id),
                },
                Change::Ended(id) => _ = self.known.remove(id),
                _ => {}
            }
        }
    }

    pub(super) fn classes(&self) -> usize {
        self.classes.len()
    }

    pub(super) fn get(&self, job: &Job) -> &Known {
        &self.known[&job.id]
    }

    /// Of every active job, in the order of the state's.
    pub(super) fn values(&self) -> impl Iterator<Item = &Known> {
        self.known.values()
    }

    fn learn(&mut self, job: &Arc<Job>) {
        let spec = &job.spec;
        let server = spec.server.as_ref().map(|role| role.demand.clone());
        let class = (spec.worker.demand.clone(), server, spec.labels.clone(), spec.separate_roles, spec.model.clone());
        let next = self.classes.len() as u32;
        let class = *self.classes.entry(class).or_insert(next);
        let shares = partition_shares(spec);
        let later = later(&spec.partitions, &shares);
        let remaining = rounds::remaining_time(job, spec.requested()).map(|left| left.as_seconds() / 3600.0);
        let total = job.total(spec.requested());
        self.known.insert(job.id, Known { shares, later, loss: loss_term(job), remaining, class, total });
    }
}

/// The longest way of parts that come after each.
fn later(parts: &[Partition], shares: &[f64]) -> Box<[f64]> {
    let mut later = vec![0.0; shares.len()];
    for (at, part) in parts.iter().enumerate().rev() {
        for before in &part.after {
            let before = *before as usize;
            later[before] = f64::max(later[before], later[at] + shares[at]);
        }
    }
    later.into()
}

/// How much the next epoch is likely to gain: 1 in the first.
fn loss_term(job: &Job) -> f64 {
    let points = job.losses.points();
    let gains: Vec<f64> = points.windows(2).map(|pair| (pair[0].loss - pair[1].loss).max(0.0)).collect();
    let epoch = f64::from(job.progress.epoch) + 1.0;
    let Some(last) = gains.last() else { return 1.0 / epoch };
    let total: f64 = gains.iter().sum();
    if total > 0.0 { last / total / epoch } else { 0.0 }
}

/// Priorities of all tasks of all active jobs. Replicas of a partition are alike.
pub(super) struct Priorities {
    /// ML_k and C_k as they are mixed, job by job, partition by partition.
    terms: Vec<(f64, f64)>,
    /// Where each job's begin, by job.
    first: Vec<(JobId, usize)>,
    alpha: f64,
}

impl Priorities {
    /// O(partitions of all jobs, with their edges).
    pub(super) fn of(engine: &Mlfs, state: &State, jobs: &Jobs, waited: impl Fn(&Job) -> Span) -> Self {
        let hours = |span: Span| span.as_seconds() / 3600.0;
        let round = hours(engine.interval);
        let latest = state.jobs.values().filter_map(|job| Some(job.arrival + job.spec.deadline?)).max();
        let mut priorities = Self {
            terms: Vec::with_capacity(2 * state.jobs.len()),
            first: Vec::with_capacity(state.jobs.len()),
            alpha: engine.alpha,
        };
        let mut most = (0.0_f64, 0.0_f64);
        for (job, known) in state.jobs.values().zip(jobs.known.values()) {
            let first = priorities.terms.len();
            priorities.first.push((job.id, first));
            // Who can't be scheduled sets no scale.
            let counts = job.verdict.allocation().is_some() || state.mandate(job) == Mandate::Free;
            let urgency = if engine.urgency { f64::from(state.urgency(job).unwrap_or(1)) } else { 1.0 };
            let deadline = job.spec.deadline.map(|span| job.arrival + span).or(latest);
            let left = deadline.map(|at| hours(at - state.now));
            let remaining = known.remaining.map(|remaining| remaining.max(round));
            let shared = remaining.map_or(0.0, |remaining| engine.gamma_remaining / remaining)
                + engine.gamma_waited * hours(waited(job));
            // An isolated partition first, then what its children add.
            for (share, later) in known.shares.iter().zip(&known.later) {
                let left = left.map(|left| left - later * remaining.unwrap_or(0.0)).filter(|left| *left > 0.0);
                let deadline = left.map_or(0.0, |left| engine.gamma_deadline / left.max(round));
                priorities.terms.push((urgency * known.loss * share, deadline + shared));
            }
            let terms = &mut priorities.terms[first..];
            for (at, part) in job.spec.partitions.iter().enumerate().rev() {
                let child = (terms[at].0.min(MOST), terms[at].1.min(MOST));
                for before in &part.after {
                    let parent = &mut terms[*before as usize];
                    *parent = (parent.0 + engine.gamma * child.0, parent.1 + engine.gamma * child.1);
                }
            }
            for (ml, c) in terms {
                (*ml, *c) = (ml.min(MOST), c.min(MOST));
                if counts {
                    most = (most.0.max(*ml), most.1.max(*c));
                }
            }
        }
        if engine.scaled {
            let scaled = |value: f64, most: f64| if most > 0.0 { value / most } else { 0.0 };
            for (ml, c) in &mut priorities.terms {
                (*ml, *c) = (scaled(*ml, most.0), scaled(*c, most.1));
            }
        }
        priorities
    }

    /// Those of a job, partition by partition. O(log jobs).
    fn of_parts(&self, job: JobId) -> &[(f64, f64)] {
        let at = self.first.binary_search_by_key(&job, |(id, _)| *id).expect("every active job has priorities");
        self.range(at)
    }

    fn range(&self, at: usize) -> &[(f64, f64)] {
        let end = self.first.get(at + 1).map_or(self.terms.len(), |(_, end)| *end);
        &self.terms[self.first[at].1..end]
    }

    /// P_k (Eq. 6).
    fn mixed(&self, (ml, c): (f64, f64)) -> f64 {
        self.alpha * ml + (1.0 - self.alpha) * c
    }

    /// ML_k and C_k of a partition, of the order of 1: what a policy sees.
    pub(super) fn terms_of(&self, job: JobId, part: usize) -> (f64, f64) {
        let (ml, c) = self.of_parts(job)[part];
        (ml.min(4.0), c.min(4.0))
    }

    /// P_k of a partition.
    pub(super) fn of_part(&self, job: JobId, part: usize) -> f64 {
        self.mixed(self.of_parts(job)[part])
    }

    /// Of the partition of a job that goes first.
    pub(super) fn of_job(&self, job: JobId) -> f64 {
        self.best(self.of_parts(job)).1
    }

    /// Of every active job, in the order of the state's, which partition goes first, and its priority.
    pub(super) fn firsts(&self) -> impl Iterator<Item = (usize, f64)> {
        (0..self.first.len()).map(|at| self.best(self.range(at)))
    }

    fn best(&self, terms: &[(f64, f64)]) -> (usize, f64) {
        let of = terms.iter().map(|terms| self.mixed(*terms)).enumerate();
        of.reduce(|best, next| if next.1 > best.1 { next } else { best }).unwrap_or_default()
    }
}
