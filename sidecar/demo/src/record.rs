//! Samples of all jobs in a run, and results derived from them.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use trainmaster_proto::v1::JobStatus;

/// Results of tasks in a run.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Tasks {
    /// The server that was overloaded on purpose, and its device.
    pub(super) overloaded: Option<(String, u32)>,
    /// Tasks that left it during the overload.
    pub(super) moved: Vec<Moved>,
    /// Validation accuracy of each job.
    pub(super) accuracies: BTreeMap<String, Accuracy>,
}

/// A task that moved.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Moved {
    pub(super) job: String,
    pub(super) worker: u32,
    pub(super) from: String,
    pub(super) to: String,
    pub(super) at_s: f64,
    /// Duration of the overload until then.
    pub(super) after_s: f64,
}

/// Accuracy of a job at its end, and the possible one.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Accuracy {
    /// The best accuracy of the epochs that it trained.
    pub(super) best: f64,
    /// The best accuracy of all its epochs, from a separate training to the last epoch. Training is bit-identical
    /// everywhere.
    pub(super) possible: f64,
}

/// One sample of one job.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Sample {
    /// Seconds since the run began.
    pub(super) t: f64,
    pub(super) workers: u32,
    pub(super) servers: u32,
    pub(super) epoch: u32,
    pub(super) step: u64,
    pub(super) loss: Option<f64>,
    pub(super) speed: Option<f64>,
    #[serde(skip)]
    predicted_speed: Option<f64>,
    #[serde(skip)]
    pub(super) predicted_epochs: Option<f64>,
    #[serde(skip)]
    incarnation: u32,
    /// Idle workers.
    #[serde(skip)]
    idle: BTreeSet<u32>,
}

/// A change of a running job's shape.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Rescale {
    pub(super) at_s: f64,
    /// w+p.
    pub(super) from: String,
    pub(super) to: String,
    /// Whether it was a new incarnation.
    pub(super) restarted: bool,
    /// Speed after / before: predicted by the fit at that time, and reported.
    pub(super) predicted_gain: Option<f64>,
    pub(super) measured_gain: Option<f64>,
}

/// One job of a run.
#[derive(Clone, Debug, Serialize)]
pub(super) struct JobRecord {
    pub(super) engine: String,
    pub(super) seed: u64,
    pub(super) name: String,
    pub(super) state: String,
    pub(super) arrival_s: f64,
    pub(super) jct_s: f64,
    /// Time from submission to the first running slot.
    pub(super) waited_s: f64,
    pub(super) epochs: u32,
    /// Total epochs, as predicted when half of them were done.
    pub(super) predicted_halfway: Option<f64>,
    pub(super) restart_s: f64,
    pub(super) rescales: Vec<Rescale>,
    /// Number of times that a worker got its device back from another job.
    pub(super) regained: u32,
    /// How it ended, in words.
    pub(super) reason: String,
    /// Number of incarnations.
    pub(super) incarnations: u32,
    pub(super) samples: Vec<Sample>,
}

/// One engine's run over the workload.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Run {
    pub(super) engine: String,
    pub(super) seed: u64,
    /// Whether all jobs completed, or were stopped by their owners' rules. Otherwise the run isn't used for
    /// measurements.
    pub(super) complete: bool,
    pub(super) average_jct_s: f64,
    pub(super) makespan_s: f64,
    pub(super) rescales: u32,
    pub(super) restart_s: f64,
    /// Results of single tasks, if the run is about them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tasks: Option<Tasks>,
    #[serde(skip)]
    pub(super) jobs: Vec<JobRecord>,
}

/// Collects samples during a run.
pub(super) struct Watch {
    began_ms: i64,
    series: Vec<(JobStatus, Vec<Sample>)>,
}

impl Watch {
    /// Without samples. The jobs are submitted later.
    pub(super) fn new(began_ms: i64) -> Self {
        Self { began_ms, series: Vec::new() }
    }

    /// Adds a sample of all jobs.
    pub(super) fn look(&mut self, now_ms: i64, jobs: Vec<JobStatus>) {
        let t = (now_ms - self.began_ms) as f64 / 1000.0;
        for job in jobs {
            let sample = Sample {
                t,
                workers: job.workers,
                servers: job.servers,
                epoch: job.epoch,
                step: job.step,
                loss: job.loss,
                speed: job.speed,
                predicted_speed: job.predicted_speed,
                predicted_epochs: job.predicted_epochs,
                incarnation: job.incarnation,
                idle: job.slots.iter().filter(|slot| slot.idle && slot.role == 0).map(|slot| slot.index).collect(),
            };
            match self.series.iter_mut().find(|(known, _)| known.job == job.job) {
                Some((known, samples)) => {
                    let ended = known.ended_ms.is_some();
                    *known = job;
                    if !ended {
                        samples.push(sample);
                    }
                }
                None => self.series.push((job, vec![sample])),
            }
        }
    }

    /// Seconds from the start of the run to the last sample.
    pub(super) fn seconds(&self) -> f64 {
        self.series.iter().filter_map(|(_, samples)| samples.last()).map(|sample| sample.t).fold(0.0, f64::max)
    }

    /// The last sample of the jobs.
    pub(super) fn latest(&self) -> impl Iterator<Item = &JobStatus> {
        self.series.iter().map(|(job, _)| job)
    }

    /// Number of ended jobs.
    pub(super) fn ended(&self) -> usize {
        self.latest().filter(|job| job.ended_ms.is_some()).count()
    }

    /// The record of a run with `expected` jobs. Unfinished jobs count until `now_ms`.
    pub(super) fn finish(self, engine: &str, seed: u64, expected: usize, now_ms: i64) -> Run {
        let began_ms = self.began_ms;
        let seconds = |ms: i64| (ms - began_ms) as f64 / 1000.0;
        let jobs: Vec<JobRecord> = self
            .series
            .into_iter()
            .map(|(job, samples)| {
                let ended = job.ended_ms.unwrap_or(now_ms);
                let halfway = samples.iter().find(|sample| sample.epoch >= job.epoch.div_ceil(2));
                JobRecord {
                    engine: engine.into(),
                    seed,
                    state: job.state,
                    arrival_s: seconds(job.submitted_ms),
                    jct_s: (ended - job.submitted_ms) as f64 / 1000.0,
                    waited_s: (job.started_ms.unwrap_or(ended) - job.submitted_ms) as f64 / 1000.0,
                    epochs: job.epoch,
                    predicted_halfway: halfway.and_then(|sample| sample.predicted_epochs),
                    restart_s: job.restart_ms as f64 / 1000.0,
                    rescales: rescales(&samples),
                    regained: regained(&samples),
                    reason: job.reason,
                    incarnations: samples.iter().map(|sample| sample.incarnation).max().unwrap_or(0),
                    name: job.name,
                    samples,
                }
            })
            .collect();
        let count = jobs.len().max(1) as f64;
        let first = jobs.iter().map(|job| job.arrival_s).fold(f64::INFINITY, f64::min);
        let last = jobs.iter().map(|job| job.arrival_s + job.jct_s).fold(0.0, f64::max);
        Run {
            engine: engine.into(),
            seed,
            complete: jobs.len() == expected
                && jobs.iter().all(|job| matches!(job.state.as_str(), "completed" | "stopped")),
            average_jct_s: jobs.iter().map(|job| job.jct_s).sum::<f64>() / count,
            makespan_s: last - first,
            rescales: jobs.iter().map(|job| job.rescales.len() as u32).sum(),
            restart_s: jobs.iter().map(|job| job.restart_s).sum(),
            tasks: None,
            jobs,
        }
    }
}

/// Number of times that a worker that had trained was idle, and trained again.
fn regained(samples: &[Sample]) -> u32 {
    let mut lost: BTreeSet<u32> = BTreeSet::new();
    let mut count = 0;
    for pair in samples.windows(2) {
        let (before, now) = (&pair[0], &pair[1]);
        // Workers whose data were still being uploaded had not trained.
        lost.extend(now.idle.difference(&before.idle));
        let back: Vec<u32> = lost.difference(&now.idle).copied().collect();
        count += back.iter().filter(|worker| **worker < now.workers).count() as u32;
        lost.retain(|worker| now.idle.contains(worker));
    }
    count
}

/// Changes of shape while running, each with the speeds around it.
fn rescales(samples: &[Sample]) -> Vec<Rescale> {
    // Periods of one shape. A restarting job has no shape.
    let mut stretches: Vec<&[Sample]> = Vec::new();
    let mut from = 0;
    let shape = |sample: &Sample| (sample.workers, sample.servers, sample.incarnation);
    for at in 1..=samples.len() {
        if at == samples.len() || shape(&samples[at]) != shape(&samples[from]) {
            if samples[from].workers > 0 {
                stretches.push(&samples[from..at]);
            }
            from = at;
        }
    }
    let speed = |stretch: &[Sample]| {
        // The first report after a change may still be for the shape before it.
        let seen: Vec<f64> = stretch.iter().skip(stretch.len() / 3).filter_map(|sample| sample.speed).collect();
        (!seen.is_empty()).then(|| seen.iter().sum::<f64>() / seen.len() as f64)
    };
    let label = |sample: &Sample| format!("{}w+{}p", sample.workers, sample.servers);
    let gain = |before: Option<f64>, after: Option<f64>| Some(after? / before.filter(|speed| *speed > 0.0)?);
    let pairs = stretches.windows(2).filter(|pair| {
        let (before, after) = (&pair[0][0], &pair[1][0]);
        (before.workers, before.servers) != (after.workers, after.servers)
    });
    pairs
        .map(|pair| {
            let (before, after) = (&pair[0][pair[0].len() - 1], &pair[1][0]);
            Rescale {
                at_s: after.t,
                from: label(before),
                to: label(after),
                restarted: before.incarnation != after.incarnation,
                predicted_gain: gain(before.predicted_speed, after.predicted_speed),
                measured_gain: gain(speed(pair[0]), speed(pair[1])),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(job: &JobStatus, change: impl FnOnce(&mut JobStatus)) -> JobStatus {
        let mut job = job.clone();
        change(&mut job);
        job
    }

    #[test]
    fn a_run_knows_its_gains_and_its_times() {
        let job = JobStatus {
            job: 1,
            name: "a".into(),
            submitted_ms: 1000,
            started_ms: Some(2000),
            workers: 1,
            servers: 1,
            speed: Some(2.0),
            predicted_speed: Some(2.0),
            incarnation: 1,
            ..Default::default()
        };
        let mut watch = Watch::new(1000);
        watch.look(2000, vec![job.clone()]);
        watch.look(3000, vec![seen(&job, |job| job.epoch = 4)]);
        let grown = seen(&job, |job| {
            (job.workers, job.speed, job.predicted_speed, job.epoch, job.predicted_epochs) =
                (2, Some(3.0), Some(3.6), 6, Some(9.0))
        });
        watch.look(4000, vec![grown.clone()]);
        let ended = seen(&grown, |job| {
            (job.workers, job.epoch, job.ended_ms, job.state) = (0, 10, Some(6000), "completed".into());
        });
        watch.look(6000, vec![ended]);
        assert_eq!(watch.ended(), 1);
        let run = watch.finish("optimus", 1, 1, 6000);
        assert!(run.complete);
        assert_eq!((run.average_jct_s, run.makespan_s, run.rescales), (5.0, 5.0, 1));
        let job = &run.jobs[0];
        assert_eq!((job.waited_s, job.predicted_halfway), (1.0, Some(9.0)));
        let change = &job.rescales[0];
        assert_eq!((change.from.as_str(), change.to.as_str(), change.restarted), ("1w+1p", "2w+1p", false));
        assert_eq!((change.predicted_gain, change.measured_gain), (Some(1.8), Some(1.5)));
    }

    #[test]
    fn a_run_is_complete_when_every_job_of_the_workload_is() {
        let run = |states: &[&str], expected| {
            let mut watch = Watch::new(0);
            let jobs = states.iter().zip(1..).map(|(state, job)| JobStatus {
                job,
                state: (*state).into(),
                ended_ms: Some(1000),
                ..Default::default()
            });
            watch.look(1000, jobs.collect());
            watch.finish("fifo", 1, expected, 1000)
        };
        assert!(run(&["completed", "stopped"], 2).complete);
        assert!(!run(&["completed", "failed"], 2).complete);
        assert!(!run(&["completed", "running"], 2).complete);
        assert!(!run(&["completed"], 2).complete, "the other had not arrived yet");
    }
}
