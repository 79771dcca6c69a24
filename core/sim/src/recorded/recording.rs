//! The content of a journal, and workloads from it.

use std::sync::Arc;

use serde::Serialize;

use super::known::{Known, LeftOut};
use crate::{draws::Draws, workload::ServerChange, workload::SimJob, workload::Workload};
use trainmaster_core::{
    event::End,
    ids::JobId,
    job::JobSpec,
    server::ServerSpec,
    settings::Settings,
    time::{Span, Time},
};

/// Key of a draw's random numbers, separate from those of the simulation.
const DRAWS: u64 = 7 << 32;
/// Parameters of the site rather than the engine.
const EXPERIMENT: [&str; 2] = ["interval", "slot"];
/// The origin of time is on a day boundary, so that slots and intervals that divide a day keep their phase.
const DAY: i64 = 86_400_000;

/// The content of a journal: a cluster and its jobs.
#[derive(Clone, Debug)]
pub struct Recording {
    /// Start of the recording.
    pub from: Time,
    /// End of the recording.
    pub to: Time,
    /// Settings at the end.
    pub settings: Settings,
    /// Jobs by arrival.
    pub jobs: Vec<RecordedJob>,
    /// Time from a decision to its enactment by the manager.
    pub enact_delay: Span,
    /// Time without enactment of decisions: shadow mode, or paused.
    pub inactive: Span,
    /// Fraction of the GPUs (of the cores, if there are no GPUs) that jobs held while there were jobs.
    pub utilisation: f64,
    pub(super) servers: Vec<ServerSpec>,
    pub(super) changes: Vec<(Time, ServerChange)>,
    pub(super) report_every: Span,
}

/// A job of a recording.
#[derive(Clone, Debug)]
pub struct RecordedJob {
    /// Number of the job.
    pub id: JobId,
    /// Name of the job, with its number if several jobs have the same name.
    pub name: String,
    /// The job file.
    pub spec: Arc<JobSpec>,
    /// Time of arrival, or start of the recording.
    pub arrival: Time,
    /// The job existed at the start of the recording.
    pub was_there: bool,
    /// Time and kind of the end. None if the job hadn't ended, or if the end isn't recorded.
    pub end: Option<(Time, End)>,
    /// The job is gone without an end, because records are missing.
    pub lost: bool,
    /// Number of accepted reports.
    pub reports: u32,
    /// Time without slots.
    pub waited: Span,
    /// Number of starts after the first.
    pub restarts: u32,
    /// Number of shape changes while it ran.
    pub rescales: u32,
    /// Knowledge about the job, or why it can't be simulated.
    pub known: Result<Known, LeftOut>,
}

/// Actual results of the jobs that [ended](RecordedJob::ended) and that can be simulated. Times in seconds. `None` if
/// there are no such jobs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Reality {
    /// Number of these jobs.
    pub jobs: usize,
    /// Number of other jobs.
    pub left: usize,
    /// Mean of end − arrival.
    pub average_jct_s: Option<f64>,
    /// Median of end − arrival.
    pub median_jct_s: Option<f64>,
    /// 99th percentile of end − arrival.
    pub p99_jct_s: Option<f64>,
    /// Time from the first arrival to the last end.
    pub makespan_s: Option<f64>,
    /// Total utility.
    pub utility: f64,
    /// Mean time without slots.
    pub waiting_s: Option<f64>,
    /// Total of starts after the first.
    pub restarts: u32,
    /// Total of shape changes of running jobs.
    pub rescales: u32,
    /// [`Recording::utilisation`].
    pub utilisation: f64,
}

impl Recording {
    /// The jobs that can be simulated, in the order of every [`workload`](Self::workload).
    pub fn simulated(&self) -> impl Iterator<Item = (&RecordedJob, &Known)> {
        self.jobs.iter().filter_map(|job| Some((job, job.known.as_ref().ok()?)))
    }

    /// The same arrivals on the same servers, with truths drawn from the recording. Its time starts on the day on which
    /// the recording begins.
    ///
    /// The frequency of decisions is part of the experiment: [`Workload::parameters`] contains the engine's `interval`
    /// or `slot` if it was set.
    pub fn workload(&self, seed: u64) -> Workload {
        let origin = self.from.0.div_euclid(DAY) * DAY;
        let shift = |at: Time| Time(at.0 - origin);
        let draws = Draws::new(seed).of(DRAWS);
        let jobs = self.simulated().map(|(job, known)| SimJob {
            done: known.goal.done,
            ..SimJob::new(shift(job.arrival), job.remaining_spec(known), known.draw(&job.spec, draws.of(job.id.0)))
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

    /// The actual results.
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
    /// Time of its own end, or of its cancellation. A job that the scheduler stopped hasn't ended, because another
    /// engine may complete it.
    pub fn ended(&self) -> Option<Time> {
        self.end.filter(|(_, end)| *end != End::Stopped).map(|(at, _)| at)
    }

    /// The job file of a job from before the recording, with its remaining deadline and time limit.
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
