//! Which task goes first (MLFS, §3.3.1, Eq. 2 to 6).

use std::{collections::BTreeMap, sync::Arc};

use imbl::Vector;

use super::Mlfs;
use crate::{
    engines::rounds,
    ids::JobId,
    job::{Job, Partition},
    place::partition_shares,
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

    fn learn(&mut self, job: &Arc<Job>) {
        let spec = &job.spec;
        let server = spec.server.as_ref().map(|role| role.demand.clone());
        let class = (spec.worker.demand.clone(), server, spec.labels.clone(), spec.separate_roles, spec.model.clone());
        let next = self.classes.len() as u32;
        let class = *self.classes.entry(class).or_insert(next);
        let shares = partition_shares(spec);
        let later = later(&spec.partitions, &shares);
        let remaining = rounds::remaining_time(job, spec.requested()).map(|left| left.as_seconds() / 3600.0);
        self.known.insert(job.id, Known { shares, later, loss: loss_term(job), remaining, class });
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
    /// ML_k and C_k, job by job, partition by partition.
    terms: Vec<(f64, f64)>,
    /// Where each job's begin, by job.
    first: Vec<(JobId, usize)>,
    alpha: f64,
    most: (f64, f64),
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
            most: (0.0, 0.0),
        };
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
                    priorities.most = (priorities.most.0.max(*ml), priorities.most.1.max(*c));
                }
            }
        }
        if !engine.scaled {
            priorities.most = (1.0, 1.0);
        }
        priorities
    }

    /// ML_k and C_k of a partition, as they are mixed.
    fn mixed(&self, job: JobId, part: usize) -> (f64, f64) {
        let at = self.first.binary_search_by_key(&job, |(id, _)| *id).expect("every active job has priorities");
        let (ml, c) = self.terms[self.first[at].1 + part];
        let scaled = |value: f64, most: f64| if most > 0.0 { value / most } else { 0.0 };
        (scaled(ml, self.most.0), scaled(c, self.most.1))
    }

    /// ML_k and C_k of a partition, of the order of 1: what a policy sees.
    pub(super) fn terms_of(&self, job: JobId, part: usize) -> (f64, f64) {
        let (ml, c) = self.mixed(job, part);
        (ml.min(4.0), c.min(4.0))
    }

    /// P_k of a partition (Eq. 6).
    pub(super) fn of_part(&self, job: JobId, part: usize) -> f64 {
        let (ml, c) = self.mixed(job, part);
        self.alpha * ml + (1.0 - self.alpha) * c
    }

    /// Of the task that goes first.
    pub(super) fn of_job(&self, job: &Job) -> f64 {
        (0..job.spec.partitions.len().max(1)).map(|part| self.of_part(job.id, part)).fold(0.0, f64::max)
    }
}
