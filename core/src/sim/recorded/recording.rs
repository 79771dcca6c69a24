//! What a journal tells, and workloads made of it.

use std::sync::Arc;

use serde::Serialize;

use super::known::{Known, LeftOut};
use crate::{
    event::End,
    ids::JobId,
    job::JobSpec,
    server::ServerSpec,
    settings::Settings,
    sim::{lots::Lots, workload::ServerChange, workload::SimJob, workload::Workload},
    time::{Span, Time},
};

/// A draw's random numbers, apart from those of the play.
const DRAWS: u64 = 7 << 32;
/// Parameters that are the site's rather than the engine's.
const EXPERIMENT: [&str; 2] = ["interval", "slot"];
/// Slots and intervals that divide a day begin when they began.
const DAY: i64 = 86_400_000;

/// What a journal tells of a cluster and its jobs.
#[derive(Clone, Debug)]
pub struct Recording {
    /// When it begins.
    pub from: Time,
    /// When it ends.
    pub to: Time,
    /// As they were at the end.
    pub settings: Settings,
    /// By arrival.
    pub jobs: Vec<RecordedJob>,
    /// From a decision to the manager's acting on it.
    pub enact_delay: Span,
    /// For so long nobody enacted decisions: shadow mode, or paused.
    pub inactive: Span,
    /// Share of the GPUs (of the cores, where there are none) that jobs held while there were jobs.
    pub utilisation: f64,
    pub(super) servers: Vec<ServerSpec>,
    pub(super) changes: Vec<(Time, ServerChange)>,
    pub(super) report_every: Span,
}

/// A job of a recording.
#[derive(Clone, Debug)]
pub struct RecordedJob {
    /// Its number.
    pub id: JobId,
    /// Its name; with its number where several have that name.
    pub name: String,
    /// What its owner asked for.
    pub spec: Arc<JobSpec>,
    /// When it came, or when the recording begins.
    pub arrival: Time,
    /// It was there before the recording begins.
    pub was_there: bool,
    /// When and how it ended; none if it hadn't, or if that isn't recorded.
    pub end: Option<(Time, End)>,
    /// It is gone without an end: records are missing.
    pub lost: bool,
    /// Reports that were accepted.
    pub reports: u32,
    /// Time without a slot.
    pub waited: Span,
    /// Starts after the first.
    pub restarts: u32,
    /// Changes of shape while it ran.
    pub rescales: u32,
    /// What is known of it, or why it can't be simulated.
    pub known: Result<Known, LeftOut>,
}

/// How the jobs of a recording that [ended](RecordedJob::ended), and that can be simulated, fared in fact. Times in
/// seconds, none where no job ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Reality {
    /// How many.
    pub jobs: usize,
    /// How many more there were.
    pub left: usize,
    /// Mean of end − arrival.
    pub average_jct_s: Option<f64>,
    /// Half of them took at most so long.
    pub median_jct_s: Option<f64>,
    /// 99 in 100 did.
    pub p99_jct_s: Option<f64>,
    /// From the first arrival to the last end.
    pub makespan_s: Option<f64>,
    /// Sum of what their ends were worth.
    pub utility: f64,
    /// Mean time without a slot.
    pub waiting_s: Option<f64>,
    /// Sum of starts after the first.
    pub restarts: u32,
    /// Sum of changes of shape of running jobs.
    pub rescales: u32,
    /// [`Recording::utilisation`].
    pub utilisation: f64,
}

impl Recording {
    /// The jobs that can be simulated, in the order of every [`workload`](Self::workload).
    pub fn simulated(&self) -> impl Iterator<Item = (&RecordedJob, &Known)> {
        self.jobs.iter().filter_map(|job| Some((job, job.known.as_ref().ok()?)))
    }

    /// The same arrivals on the same servers, with truths drawn from what is known. Its time starts on the day on which
    /// the recording begins.
    ///
    /// How often the engine decided belongs to the experiment: its `interval` or `slot` is in [`Workload::parameters`] as far
    /// as it was set.
    pub fn workload(&self, seed: u64) -> Workload {
        let origin = self.from.0.div_euclid(DAY) * DAY;
        let shift = |at: Time| Time(at.0 - origin);
        let lots = Lots::new(seed).of(DRAWS);
        let jobs = self.simulated().map(|(job, known)| SimJob {
            arrival: shift(job.arrival),
            spec: job.remaining_spec(known),
            profiling: None,
            done: known.goal.done,
            truth: known.draw(&job.spec, lots.of(job.id.0)),
        });
        let mut parameters = self.settings.parameters.clone();
        parameters.retain(|name, _| EXPERIMENT.contains(&name.as_str()));
        Workload {
            servers: self.servers.clone(),
            jobs: jobs.collect(),
            changes: self.changes.iter().map(|(at, change)| (shift(*at), change.clone())).collect(),
            enact_delay: self.enact_delay,
            report_every: self.report_every,
            parameters,
            ..Workload::default()
        }
    }

    /// How it was in fact.
    pub fn reality(&self) -> Reality {
        let ended: Vec<(&RecordedJob, Time)> =
            self.simulated().filter_map(|(job, _)| Some((job, job.ended()?))).collect();
        let mut jcts: Vec<f64> = ended.iter().map(|(job, end)| (*end - job.arrival).as_seconds()).collect();
        jcts.sort_by(f64::total_cmp);
        let count = jcts.len();
        let rank = |share: f64| jcts.get(((share * count as f64).ceil() as usize).max(1) - 1).copied();
        let mean = |sum: f64| (count > 0).then(|| sum / count as f64);
        let first = ended.iter().map(|(job, _)| job.arrival).min();
        let last = ended.iter().map(|(_, end)| *end).max();
        Reality {
            jobs: count,
            left: self.simulated().count() - count,
            average_jct_s: mean(jcts.iter().sum()),
            median_jct_s: rank(0.5),
            p99_jct_s: rank(0.99),
            makespan_s: last.zip(first).map(|(last, first)| (last - first).as_seconds()),
            utility: ended
                .iter()
                .filter_map(|(job, end)| Some(job.spec.utility.as_ref()?.at(*end - job.arrival)))
                // An empty sum of floats is −0.
                .fold(0.0, |sum, utility| sum + utility),
            waiting_s: mean(ended.iter().map(|(job, _)| job.waited.as_seconds()).sum()),
            restarts: ended.iter().map(|(job, _)| job.restarts).sum(),
            rescales: ended.iter().map(|(job, _)| job.rescales).sum(),
            utilisation: self.utilisation,
        }
    }
}

impl RecordedJob {
    /// When it ended by itself, or by a person. What the scheduler stopped another engine may complete: it hasn't ended.
    pub fn ended(&self) -> Option<Time> {
        self.end.filter(|(_, end)| *end != End::Stopped).map(|(at, _)| at)
    }

    /// What its owner asks for, of a job that was there before: with what was left of its deadline and its time.
    fn remaining_spec(&self, known: &Known) -> JobSpec {
        let less = |span: Span, gone: Span| Span((span.0 - gone.0).max(1000));
        let spec = &self.spec;
        JobSpec {
            name: self.name.clone(),
            deadline: spec.deadline.map(|deadline| less(deadline, known.age)),
            time_limit: spec.time_limit.map(|limit| less(limit, known.ran)),
            ..(**spec).clone()
        }
    }
}
