//! The priority of tasks (MLFS, §3.3.1, Eq. 2 to 6).

use std::{collections::BTreeMap, ops::Range, sync::Arc};

use imbl::Vector;

use super::parameters::Mlfs;
use crate::{
    engine::round,
    ids::{JobId, ResourceId},
    job::{Job, JobSpec},
    place::partition_shares,
    resources::Amounts,
    shape::Shape,
    state::{Change, Mandate, State},
    time::{Span, Time},
    topology::Domain,
};

/// Limit of a sum over the graph, which grows as (γ · out-degree) to the depth.
const MOST: f64 = 1e100;
/// Number of job classes after which all are recomputed.
const MOST_CLASSES: usize = 4096;

/// Data of a job for decisions, valid from one report to the next.
pub(super) struct Known {
    /// S_k / S_J, by partition.
    pub(super) shares: Box<[f64]>,
    /// Range of its partitions and their edges in [`Parts`].
    parts: Range<usize>,
    edges: Range<usize>,
    /// The largest ML_k before scaling.
    most_ml: f64,
    deadline: Option<Time>,
    /// r in hours. None: unknown.
    pub(super) remaining: Option<f64>,
    /// Jobs of one class have the same demands on a server.
    pub(super) class: u32,
    /// The chosen type of GPU, on which class and total depend.
    kind: Option<ResourceId>,
    /// The domain, on which the class depends.
    domain: Option<Arc<Domain>>,
    /// Its requested shape, and the total demand.
    pub(super) shape: Shape,
    pub(super) total: Amounts,
}

/// The partitions of all jobs, job by job. They are contiguous because every decision visits all of them.
#[derive(Default)]
struct Parts {
    /// The fraction of the job's remaining time that comes after each partition. Deadlines of its tasks are earlier by
    /// that.
    later: Vec<f64>,
    /// ML_k before scaling (Eq. 2 and 3).
    ml: Vec<f64>,
    /// Dependencies as (part, one of its prerequisites), relative to the job's first part, the last parts first.
    edges: Vec<(u32, u32)>,
}

impl Parts {
    fn add(&mut self, spec: &JobSpec, shares: &[f64]) -> (Range<usize>, Range<usize>) {
        let (first, first_edge) = (self.ml.len(), self.edges.len());
        let parts = spec.partitions.iter().enumerate().rev();
        self.edges.extend(parts.flat_map(|(at, part)| part.after.iter().map(move |before| (at as u32, *before))));
        self.ml.resize(first + shares.len(), 0.0);
        self.later.resize(first + shares.len(), 0.0);
        let later = &mut self.later[first..];
        for (part, before) in &self.edges[first_edge..] {
            let (part, before) = (*part as usize, *before as usize);
            later[before] = f64::max(later[before], later[part] + shares[part]);
        }
        (first..self.ml.len(), first_edge..self.edges.len())
    }

    /// Copies the data of a job from another instance.
    fn take(&mut self, from: &Self, known: &mut Known) {
        let (first, first_edge) = (self.ml.len(), self.edges.len());
        self.later.extend_from_slice(&from.later[known.parts.clone()]);
        self.ml.extend_from_slice(&from.ml[known.parts.clone()]);
        self.edges.extend_from_slice(&from.edges[known.edges.clone()]);
        (known.parts, known.edges) = (first..self.ml.len(), first_edge..self.edges.len());
    }
}

/// The common demands of a class of jobs.
type Class = (Amounts, Option<ResourceId>, Amounts, BTreeMap<String, String>, Option<Arc<Domain>>, bool, String);

/// [`Known`] of all active jobs, updated by changes.
#[derive(Default)]
pub(super) struct Jobs {
    known: BTreeMap<JobId, Known>,
    parts: Parts,
    /// Number of parts of ended jobs.
    ended: usize,
    classes: BTreeMap<Class, u32>,
}

impl Jobs {
    /// O(changes), with O(epochs with a loss + partitions with their edges) per changed job. After new settings, or
    /// once half of the partitions belong to ended jobs, O(partitions of all jobs).
    pub(super) fn sync(&mut self, engine: &Mlfs, state: &State, changes: &Vector<Change>) {
        if self.known.is_empty() || self.classes.len() > MOST_CLASSES || changes.contains(&Change::Settings) {
            *self = Self::default();
            for job in state.jobs.values() {
                self.learn(engine, state, job);
            }
            return;
        }
        for change in changes {
            match change {
                Change::Job(id) => match state.job(*id) {
                    Some(job) => self.learn(engine, state, job),
                    None => self.forget(*id),
                },
                Change::Ended(id) => self.forget(*id),
                _ => {}
            }
        }
        if self.ended > self.parts.ml.len() / 2 {
            let old = std::mem::take(&mut self.parts);
            self.known.values_mut().for_each(|known| self.parts.take(&old, known));
            self.ended = 0;
        }
    }

    pub(super) fn classes(&self) -> usize {
        self.classes.len()
    }

    pub(super) fn get(&self, job: &Job) -> &Known {
        &self.known[&job.id]
    }

    /// Data of all active jobs, in the state's order.
    fn values(&self) -> impl Iterator<Item = &Known> {
        self.known.values()
    }

    fn learn(&mut self, engine: &Mlfs, state: &State, job: &Job) {
        let Self { known, parts, classes, .. } = self;
        let known = known.entry(job.id).or_insert_with(|| {
            let (spec, shape) = (&job.spec, job.spec.requested());
            let shares = partition_shares(spec);
            let (parts, edges) = parts.add(spec, &shares);
            Known {
                shares,
                parts,
                edges,
                most_ml: 0.0,
                deadline: spec.deadline.map(|span| job.arrival + span),
                remaining: None,
                class: u32::MAX,
                kind: None,
                domain: None,
                shape,
                total: Amounts::default(),
            }
        });
        if known.class == u32::MAX || known.kind != job.gpu_kind() || known.domain != job.domain {
            let next = classes.len() as u32;
            known.class = *classes.entry(class(job)).or_insert(next);
            (known.kind, known.total) = (job.gpu_kind(), job.total(known.shape));
            known.domain.clone_from(&job.domain);
        }
        known.remaining = round::remaining_time(job, known.shape).map(|left| left.as_seconds() / 3600.0);
        let urgency = if engine.urgency { f64::from(state.urgency(job).unwrap_or(1)) } else { 1.0 };
        let gain = urgency * loss_term(job);
        let ml = &mut parts.ml[known.parts.clone()];
        for (ml, share) in ml.iter_mut().zip(&known.shares) {
            *ml = gain * share;
        }
        known.most_ml = with_children(ml, &parts.edges[known.edges.clone()], engine.gamma);
    }

    fn forget(&mut self, id: JobId) {
        if let Some(known) = self.known.remove(&id) {
            self.ended += known.parts.len();
        }
    }
}

fn class(job: &Job) -> Class {
    let (worker, server, spec) = (job.worker.amounts.clone(), job.server.amounts.clone(), &job.spec);
    (worker, job.gpu_kind(), server, spec.labels.clone(), job.domain.clone(), spec.separate_roles, spec.model.clone())
}

/// Adds the values of its children to each partition's own value. Returns the largest value.
fn with_children(worth: &mut [f64], edges: &[(u32, u32)], gamma: f64) -> f64 {
    for (part, before) in edges {
        let child = worth[*part as usize].min(MOST);
        worth[*before as usize] += gamma * child;
    }
    let mut most = 0.0;
    for worth in worth {
        *worth = worth.min(MOST);
        most = f64::max(most, *worth);
    }
    most
}

/// Expected gain of the next epoch; 1 in the first.
fn loss_term(job: &Job) -> f64 {
    let points = job.learnt.losses.points();
    let gains: Vec<f64> = points.windows(2).map(|pair| (pair[0].loss - pair[1].loss).max(0.0)).collect();
    let epoch = f64::from(job.learnt.progress.epoch) + 1.0;
    let Some(last) = gains.last() else { return 1.0 / epoch };
    let total: f64 = gains.iter().sum();
    if total > 0.0 { last / total / epoch } else { 0.0 }
}

/// Priorities of all tasks of all active jobs. Replicas of a partition have the same priority.
pub(super) struct Priorities<'a> {
    jobs: &'a Jobs,
    /// C_k before scaling, for all [`Parts`].
    c: Vec<f64>,
    /// Scales of ML_k and C_k, and their scaled weights in the mix.
    scales: (f64, f64),
    weights: (f64, f64),
    active: Vec<Active<'a>>,
}

/// An active job in a decision.
#[derive(Clone, Copy)]
pub(super) struct Active<'a> {
    pub(super) job: &'a Arc<Job>,
    pub(super) known: &'a Known,
    /// Whether this decision may change its slots.
    pub(super) is_free: bool,
}

impl<'a> Priorities<'a> {
    /// O(partitions of all jobs, with their edges).
    pub(super) fn of(engine: &Mlfs, state: &'a State, jobs: &'a Jobs, waited: impl Fn(&Job) -> Span) -> Self {
        let hours = |span: Span| span.as_seconds() / 3600.0;
        let round = hours(engine.interval);
        let latest = jobs.values().filter_map(|known| known.deadline).max();
        let parts = &jobs.parts;
        let mut c = vec![0.0; parts.later.len()];
        let mut active = Vec::with_capacity(state.jobs.len());
        let mut most = (0.0_f64, 0.0_f64);
        for (job, known) in state.jobs.values().zip(jobs.values()) {
            let remaining = known.remaining.map(|remaining| remaining.max(round));
            let shared = remaining.map_or(0.0, |remaining| engine.gamma_remaining / remaining)
                + engine.gamma_waited * hours(waited(job));
            let c = &mut c[known.parts.clone()];
            match known.deadline.or(latest) {
                Some(at) => {
                    let (left, remaining) = (hours(at - state.now), remaining.unwrap_or(0.0));
                    for (c, later) in c.iter_mut().zip(&parts.later[known.parts.clone()]) {
                        let left = left - later * remaining;
                        let deadline = engine.gamma_deadline / left.max(round);
                        *c = if left > 0.0 { deadline + shared } else { shared };
                    }
                }
                None => c.fill(shared),
            }
            let highest = with_children(c, &parts.edges[known.edges.clone()], engine.gamma);
            let is_free = state.mandate(job) == Mandate::Free;
            active.push(Active { job, known, is_free });
            // Jobs that can't be scheduled don't affect the scale.
            if is_free || job.verdict.allocation().is_some() {
                most = (most.0.max(known.most_ml), most.1.max(highest));
            }
        }
        // If the largest value is 0, all values are, and need no scale.
        let scale = |most: f64| if engine.scaled && most > 0.0 { 1.0 / most } else { 1.0 };
        let scales = (scale(most.0), scale(most.1));
        let weights = (engine.alpha * scales.0, (1.0 - engine.alpha) * scales.1);
        Self { jobs, c, scales, weights, active }
    }

    /// ML_k and C_k of a job's partitions before scaling.
    fn terms(&self, known: &Known) -> impl Iterator<Item = (f64, f64)> {
        let parts = known.parts.clone();
        self.jobs.parts.ml[parts.clone()].iter().copied().zip(self.c[parts].iter().copied())
    }

    /// P_k (Eq. 6).
    fn mixed(&self, (ml, c): (f64, f64)) -> f64 {
        self.weights.0 * ml + self.weights.1 * c
    }

    /// ML_k and C_k of a partition, scaled to the order of 1, as inputs of a policy.
    pub(super) fn terms_of(&self, known: &Known, part: usize) -> (f64, f64) {
        let (ml, c) = self.terms(known).nth(part).expect("it is one of the job's");
        ((ml * self.scales.0).min(4.0), (c * self.scales.1).min(4.0))
    }

    /// P_k of all partitions of a job.
    pub(super) fn of_parts(&self, known: &Known) -> impl Iterator<Item = f64> {
        self.terms(known).map(|terms| self.mixed(terms))
    }

    /// P_k of a partition.
    pub(super) fn of_part(&self, known: &Known, part: usize) -> f64 {
        self.of_parts(known).nth(part).expect("it is one of the job's")
    }

    /// All active jobs, in the state's order.
    pub(super) fn active(&self) -> &[Active<'a>] {
        &self.active
    }

    /// The first partition of a job, and its priority.
    pub(super) fn first(&self, known: &Known) -> (usize, f64) {
        let of = self.of_parts(known).enumerate();
        of.reduce(|best, next| if next.1 > best.1 { next } else { best }).unwrap_or_default()
    }
}
