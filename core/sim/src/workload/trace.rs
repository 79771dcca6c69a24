//! Recorded jobs: the arrival, GPUs and duration of each. The host reads the files.
//!
//! A trace lacks the following values, which are assumed:
//!
//! - **Training**: all-reduce; one worker per GPU; the recorded duration with the recorded number; 100 steps per epoch.
//! - **Another number w of workers**: a step takes (1 + 0.05·(w − 1)) / w of the time on one worker. Exchange is a
//!   twentieth of computation.
//! - **Minimum and maximum of workers**: 1, and twice the recorded number.
//! - **Worker**: 1 GPU, 4 cores, 32 GiB.
//! - **Servers**: Philly's mix: 229 with 8 GPUs to 321 with 2 (together its 2,474 GPUs). ElasticFlow's: 8 GPUs. 6 cores
//!   and 64 GiB per GPU.
//! - **Start, checkpoint**: 30 s, 10 s.
//!
//! Epochs take about ten minutes, and there are at most a hundred of them. The owner's maximum is the recorded length.

use super::{SimJob, Workload};
use crate::{truth::Goal, truth::Speed, truth::StepTime, truth::Truth};
use trainmaster_core::{
    job::{Convergence, JobSpec, RoleSpec, TrainingMode},
    server::ServerSpec,
    time::{Span, Time},
};

/// Number of Philly's servers.
pub(super) const SERVERS: u32 = 550;
/// Number of those with 8 GPUs. The others have 2.
const LARGE: u32 = 229;
/// Time of the exchange of all gradients, divided by the computation time of one worker.
const EXCHANGE: f64 = 0.05;
const STEPS_PER_EPOCH: u64 = 100;
const BATCH: u64 = 4096;

/// A job of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// Unique name in the trace.
    pub name: String,
    /// Time since the trace's start.
    pub arrival: Span,
    /// Number of GPUs, at least 1.
    pub gpus: u32,
    /// Duration with these GPUs, above 0.
    pub duration: Span,
}

/// These jobs on `servers` servers. `gpus` gives a server's number of GPUs by its own number, as [`philly`] does.
pub fn recorded(jobs: impl IntoIterator<Item = Recorded>, servers: u32, gpus: fn(u32) -> u32) -> Workload {
    let mut jobs: Vec<SimJob> = jobs.into_iter().map(job).collect();
    jobs.sort_by_key(|job| job.arrival);
    Workload {
        jobs,
        servers: (0..servers).map(|number| server(number, gpus(number))).collect(),
        enact_delay: Span::seconds(1),
        report_every: Span::seconds(60),
        ..Workload::default()
    }
}

/// Number of GPUs of a server in Philly's mix. The mix is spread evenly, so that any number of servers has it.
pub fn philly(number: u32) -> u32 {
    let large = |number: u32| u64::from(number) * u64::from(LARGE) / u64::from(SERVERS);
    if large(number + 1) > large(number) { 8 } else { 2 }
}

fn server(number: u32, gpus: u32) -> ServerSpec {
    let gpus = i64::from(gpus);
    ServerSpec {
        name: format!("s{number}"),
        capacity: [("cpu", gpus * 6000), ("memory", (gpus * 64) << 10)]
            .map(|(name, have)| (name.to_owned(), have))
            .into(),
        devices: vec!["gpu".into(); gpus as usize],
        ..ServerSpec::default()
    }
}

fn job(recorded: Recorded) -> SimJob {
    let Recorded { name, arrival, gpus, duration } = recorded;
    let epochs = (duration.0.saturating_add(599_999) / 600_000).clamp(1, 100);
    let step = duration.as_seconds() / (epochs as u64 * STEPS_PER_EPOCH) as f64;
    let w = f64::from(gpus);
    // Time of a step on one worker.
    let alone = step * w / (1.0 + EXCHANGE * (w - 1.0));
    let spec = JobSpec {
        mode: TrainingMode::AllReduce,
        batch: BATCH,
        examples: BATCH * STEPS_PER_EPOCH,
        convergence: Convergence { max_epochs: epochs as u32, ..Convergence::default() },
        worker: RoleSpec::of(
            &[("gpu", 1000), ("cpu", 4000), ("memory", 32 << 10)],
            1..=gpus.saturating_mul(2).min(10_000),
            gpus,
        ),
        server: None,
        ..JobSpec::minimal(&name)
    };
    let speed = Speed::Steps(StepTime { per_example: alone / BATCH as f64, ring: EXCHANGE * alone, ..StepTime::ZERO });
    let truth = Truth {
        start: Span::seconds(30),
        checkpoint: Span::seconds(10),
        ..Truth::of(speed, Goal::Epochs(epochs as u32, None))
    };
    SimJob::new(Time(arrival.0), spec, truth)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Draws;
    use trainmaster_core::shape::Shape;

    #[test]
    fn a_job_takes_its_recorded_time_with_its_recorded_gpus() {
        for (gpus, seconds) in [(1, 1), (1, 3600), (8, 90_000), (32, 7)] {
            let recorded = Recorded { name: "a".into(), arrival: Span::ZERO, gpus, duration: Span::seconds(seconds) };
            let job = job(recorded);
            job.spec.validate().unwrap();
            let epochs = job.truth.goal.epochs(&job.spec, Draws::new(1));
            let took = |workers| {
                let steps = f64::from(epochs) * job.truth.steps_per_epoch(&job.spec) as f64;
                steps / job.truth.speed.alone(&job.spec, Shape { workers, servers: 0 })
            };
            assert!((took(gpus) / seconds as f64 - 1.0).abs() < 1e-9, "{gpus} GPUs: {}", took(gpus));
            assert!(took(gpus * 2) < took(gpus) && took(gpus * 2) > took(gpus) / 2.0);
        }
    }

    #[test]
    fn the_cluster_has_phillys_mix() {
        let gpus = |count: u32| (0..count).map(|number| server(number, philly(number)).devices.len()).sum::<usize>();
        assert_eq!(gpus(SERVERS), 2474);
        assert!((230..=260).contains(&gpus(SERVERS / 10)), "{}", gpus(SERVERS / 10));
    }
}
