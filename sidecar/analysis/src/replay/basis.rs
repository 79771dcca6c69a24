//! The basis of a simulation of recorded jobs, and its reliability.

use std::collections::BTreeMap;

use serde::Serialize;
use trainmaster_core::{Span, event::End};
use trainmaster_sim::recorded::{GoalBasis, Known, LeftOut, RecordedJob, Recording, SpeedBasis};

use crate::simulate::runs::Run;

/// Jobs with fewer reports are mentioned.
const FEW: u32 = 3;

/// Results of the repeated decisions.
#[derive(Clone, Copy, Default, Serialize)]
pub(super) struct Agreement {
    pub(super) agree: u64,
    pub(super) differ: u64,
}

/// The journal's own engine in the simulation, compared with the recording, for jobs that ended in both.
#[derive(Serialize)]
pub(super) struct Trust {
    jobs: usize,
    recorded_jct_s: f64,
    simulated_jct_s: f64,
    /// Simulated mean divided by recorded mean.
    ratio: f64,
    /// Median relative error over the jobs.
    median_error: f64,
}

impl Trust {
    pub(super) fn of(recording: &Recording, runs: &[Run]) -> Option<Self> {
        let mut pairs: Vec<(f64, f64)> = Vec::new();
        for (at, (job, _)) in recording.simulated().enumerate() {
            let recorded = job.ended().map(|end| (end - job.arrival).as_seconds());
            pairs.extend(recorded.zip(mean_jct(runs, at)));
        }
        let jobs = pairs.len();
        let mean = |of: fn(&(f64, f64)) -> f64| pairs.iter().map(of).sum::<f64>() / jobs as f64;
        let (recorded_jct_s, simulated_jct_s) = (mean(|pair| pair.0), mean(|pair| pair.1));
        let mut errors: Vec<f64> = pairs.iter().map(|(real, sim)| (sim / real.max(1e-3) - 1.0).abs()).collect();
        errors.sort_by(f64::total_cmp);
        let median_error = errors.get(jobs.saturating_sub(1) / 2).copied()?;
        (recorded_jct_s > 0.0).then(|| Self {
            jobs,
            recorded_jct_s,
            simulated_jct_s,
            ratio: simulated_jct_s / recorded_jct_s,
            median_error,
        })
    }

    /// As a sentence.
    pub(super) fn sentence(&self) -> String {
        format!(
            "How far to trust it: the {} jobs that ended took {:.0} s on average; simulated under the same engine \
             {:.0} s ({:.2} ×), and half of them are off by at most {:.0} %.",
            self.jobs,
            self.recorded_jct_s,
            self.simulated_jct_s,
            self.ratio,
            self.median_error * 100.0
        )
    }
}

/// The sources of the truths, as numbers of jobs.
#[derive(Serialize)]
pub(super) struct Basis {
    jobs: usize,
    simulated: usize,
    left_out: BTreeMap<LeftOut, usize>,
    speed: BTreeMap<SpeedBasis, usize>,
    epochs: BTreeMap<GoalBasis, usize>,
    /// Simulated jobs with fewer than three reports.
    few_reports: usize,
    /// Simulated jobs that were observed in one shape only.
    one_shape: usize,
    /// Jobs from before the recording.
    there_before: usize,
    /// Medians of the standard errors of speeds, in observed shapes and in twice the largest.
    speed_error: Option<f64>,
    speed_error_beyond: Option<f64>,
    enact_delay_s: f64,
    start_s: f64,
    checkpoint_s: f64,
    /// Time without enactment of decisions.
    inactive_s: f64,
    decisions: Agreement,
}

impl Basis {
    pub(super) fn of(recording: &Recording, decisions: Agreement) -> Self {
        let known: Vec<(&RecordedJob, &Known)> = recording.simulated().collect();
        let middle = |mut values: Vec<f64>| {
            values.sort_by(f64::total_cmp);
            values.get(values.len().saturating_sub(1) / 2).copied()
        };
        let seconds = |of: fn(&Known) -> Span| {
            middle(known.iter().map(|(_, known)| of(known).as_seconds()).collect()).unwrap_or(0.0)
        };
        Self {
            jobs: recording.jobs.len(),
            simulated: known.len(),
            left_out: count(recording.jobs.iter().filter_map(|job| job.known.as_ref().err().copied())),
            speed: count(known.iter().map(|(_, known)| known.speed.basis)),
            epochs: count(known.iter().map(|(_, known)| known.goal.basis)),
            few_reports: known.iter().filter(|(job, _)| job.reports < FEW).count(),
            one_shape: known.iter().filter(|(_, known)| known.speed.shapes == 1).count(),
            there_before: known.iter().filter(|(job, _)| job.was_there).count(),
            speed_error: middle(known.iter().filter_map(|(_, known)| known.speed.error).collect()),
            speed_error_beyond: middle(known.iter().filter_map(|(_, known)| known.speed.error_beyond).collect()),
            enact_delay_s: recording.enact_delay.as_seconds(),
            start_s: seconds(|known| known.start),
            checkpoint_s: seconds(|known| known.checkpoint),
            inactive_s: recording.inactive.as_seconds(),
            decisions,
        }
    }

    /// The number of jobs left out, with reasons.
    pub(super) fn left_out(&self) -> Option<String> {
        let told = self.left_out.iter().map(|(why, count)| {
            let because = match why {
                LeftOut::UnknownSpeed => {
                    "never reported, and neither their model's other jobs nor their descriptions tell their speed"
                }
                LeftOut::UnknownWork => "are of a model of which nothing tells how many steps an epoch has",
                LeftOut::NeverTrained => "were cancelled or failed before they had trained",
            };
            format!("{count} {because}")
        });
        let told: Vec<String> = told.collect();
        (!told.is_empty()).then(|| told.join("; "))
    }

    /// As sentences.
    pub(super) fn sentences(&self) -> String {
        let speed = told(&self.speed, |basis| match basis {
            SpeedBasis::Reports => "from their own reports",
            SpeedBasis::Profile => "from their profiles",
            SpeedBasis::Model => "from other jobs of their models",
            SpeedBasis::Declared => "as declared",
        });
        let epochs = told(&self.epochs, |basis| match basis {
            GoalBasis::Completed => "as many as they took",
            GoalBasis::Abandoned => "as many as they had when they were cancelled or failed",
            GoalBasis::Losses => "predicted from their losses",
            GoalBasis::Model => "as many as other jobs of their models took",
            GoalBasis::Declared => "as declared",
        });
        let mut text =
            format!("It rests on {} of {} jobs. Speed: {speed}. Epochs: {epochs}.", self.simulated, self.jobs);
        if let (Some(near), Some(far)) = (self.speed_error, self.speed_error_beyond) {
            text += &format!(
                " Speeds are known to ± {:.0} % in the shapes that were seen ({} jobs in one only), and to ± {:.0} % \
                 at twice the largest (medians).",
                near * 100.0,
                self.one_shape,
                far * 100.0
            );
        }
        if self.speed.contains_key(&SpeedBasis::Declared) || self.epochs.contains_key(&GoalBasis::Declared) {
            text += " What is declared is taken at its word: ± doesn't hold how wrong it is.";
        }
        if self.few_reports > 0 {
            text += &format!(" {} reported fewer than {FEW} times.", self.few_reports);
        }
        if self.there_before > 0 {
            text += &format!(
                " {} were there before: they come with what they had trained, and engines learn them anew.",
                self.there_before
            );
        }
        if let Some(left_out) = self.left_out() {
            text += &format!(" Left out: {left_out}.");
        }
        if self.inactive_s > 0.0 {
            text += &format!(
                " For {} decisions weren't enacted (shadow or paused): what is recorded then is the manager's doing.",
                Span::from_seconds(self.inactive_s)
            );
        }
        if self.decisions.differ > 0 {
            text += &format!(" {} decisions didn't come out again; see --verify.", self.decisions.differ);
        }
        text
    }
}

fn count<T: Ord>(kinds: impl Iterator<Item = T>) -> BTreeMap<T, usize> {
    kinds.fold(BTreeMap::new(), |mut counts, kind| {
        *counts.entry(kind).or_default() += 1;
        counts
    })
}

/// Knowledge about one job.
#[derive(Serialize)]
pub(super) struct JobRow {
    job: u64,
    name: String,
    reports: u32,
    ended: Option<&'static str>,
    recorded_jct_s: Option<f64>,
    /// Under the journal's own engine, as the mean over draws.
    #[serde(skip_serializing_if = "Option::is_none")]
    simulated_jct_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    left_out: Option<LeftOut>,
    #[serde(skip_serializing_if = "Option::is_none")]
    speed: Option<SpeedRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    epochs: Option<EpochsRow>,
}

#[derive(Serialize)]
struct SpeedRow {
    basis: SpeedBasis,
    shapes: usize,
    error: Option<f64>,
    error_beyond: Option<f64>,
}

#[derive(Serialize)]
struct EpochsRow {
    basis: GoalBasis,
    epochs: u32,
    interval: [u32; 2],
}

pub(super) fn rows(recording: &Recording, own: &[Run]) -> Vec<JobRow> {
    let mut simulated = 0..;
    let mut row = |job: &RecordedJob| {
        let at = job.known.is_ok().then(|| simulated.next()).flatten();
        JobRow { simulated_jct_s: at.and_then(|at| mean_jct(own, at)), ..JobRow::of(job) }
    };
    recording.jobs.iter().map(&mut row).collect()
}

/// Mean JCT of a simulated job by index, over the draws in which it ended.
fn mean_jct(runs: &[Run], at: usize) -> Option<f64> {
    let jcts: Vec<f64> = runs.iter().filter_map(|run| run.report.jobs[at].jct_s).collect();
    (!jcts.is_empty()).then(|| jcts.iter().sum::<f64>() / jcts.len() as f64)
}

impl JobRow {
    fn of(job: &RecordedJob) -> Self {
        let known = job.known.as_ref().ok();
        Self {
            job: job.id.0,
            name: job.name.clone(),
            reports: job.reports,
            ended: job.end.map(|(_, end)| match end {
                End::Completed => "completed",
                End::Failed => "failed",
                End::Cancelled => "cancelled",
                End::Stopped => "stopped",
            }),
            recorded_jct_s: job.end.map(|(at, _)| (at - job.arrival).as_seconds()),
            simulated_jct_s: None,
            left_out: job.known.as_ref().err().copied(),
            speed: known.map(|known| SpeedRow {
                basis: known.speed.basis,
                shapes: known.speed.shapes,
                error: known.speed.error,
                error_beyond: known.speed.error_beyond,
            }),
            epochs: known.map(|known| EpochsRow {
                basis: known.goal.basis,
                epochs: known.goal.epochs,
                interval: known.goal.interval.into(),
            }),
        }
    }
}

/// `12 from their own reports, 3 from …`
fn told<T: Ord>(counts: &BTreeMap<T, usize>, words: fn(&T) -> &'static str) -> String {
    counts.iter().map(|(kind, count)| format!("{count} {}", words(kind))).collect::<Vec<_>>().join(", ")
}
