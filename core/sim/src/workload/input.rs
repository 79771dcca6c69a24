//! The content of a workload, and the request to a generator.

use std::collections::BTreeMap;

use thiserror::Error;

use crate::{
    draws::Draws,
    truth::{Speed, Truth},
};
use trainmaster_core::{
    decision::DeviceShare,
    job::JobSpec,
    server::ServerSpec,
    settings::Parameter,
    time::{Span, Time},
};

/// The input of a simulation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Workload {
    /// Servers of the cluster.
    pub servers: Vec<ServerSpec>,
    /// Jobs by arrival.
    pub jobs: Vec<SimJob>,
    /// Failures of servers, with their ends.
    pub outages: Vec<Outage>,
    /// Other changes of the cluster, by time.
    pub changes: Vec<(Time, ServerChange)>,
    /// Time from a decision to its enactment by the manager.
    pub enact_delay: Span,
    /// Minimum time between reports. In addition, there is at most one per epoch.
    pub report_every: Span,
    /// Thousandths of devices and cores that can be
    /// [reserved](trainmaster_core::settings::ShapeRules::oversubscribe), if above 1000. The settings have priority if
    /// they oversubscribe.
    pub oversubscribe: u16,
    /// End of the simulation, even if jobs remain. None: until nothing can happen any more.
    pub end: Option<Time>,
    /// Engine parameters of the experiment (its interval, its slots), with lower priority than the user's. `name`
    /// applies to all engines with such a parameter, `engine.name` to one.
    pub parameters: BTreeMap<String, Parameter>,
}

/// A job of a workload.
#[derive(Clone, Debug, PartialEq)]
pub struct SimJob {
    /// Time of its submission by the owner.
    pub arrival: Time,
    /// The job file. The name must be unique in the workload.
    pub spec: JobSpec,
    /// Measurements before submission, if `spec` has no profile.
    pub profiling: Option<Profiling>,
    /// Steps from before the workload, contained in its checkpoint.
    pub done: u64,
    /// The truth, which engines don't see.
    pub truth: Truth,
}

/// Short runs of a job in a few shapes before its submission. They take time, which counts as the job's.
#[derive(Clone, Debug, PartialEq)]
pub struct Profiling {
    /// (p, w) to measure.
    pub pairs: Vec<(u32, u32)>,
    /// Time of one run.
    pub each: Span,
    /// Relative deviation of the measurements.
    pub noise: f64,
}

/// A change of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerChange {
    /// The server arrives, or has changed.
    Set(ServerSpec),
    /// The server leaves, with all its slots.
    Left(String),
    /// New total of foreign use on the server.
    ForeignUse {
        /// Name of the server.
        server: String,
        /// Amounts by resource name, in sub-units.
        amounts: BTreeMap<String, i64>,
        /// Shares of its devices.
        devices: Vec<DeviceShare>,
    },
}

/// A temporary failure of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outage {
    /// Index in [`Workload::servers`].
    pub server: usize,
    /// Time of the failure, which ends all slots there.
    pub at: Time,
    /// Time of its return. None: it doesn't return.
    pub back: Option<Time>,
}

/// Parameters of a generator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Seed for arrivals, jobs and their random parts.
    pub seed: u64,
    /// Number of jobs, instead of the generator's own.
    pub jobs: Option<u32>,
    /// Number of servers, instead of the generator's own.
    pub servers: Option<u32>,
}

impl Workload {
    /// Makes every worker and its network faster by a factor, also in the job files (speed augmentation: edge-cloud
    /// paper, Definition 1). Uploads keep their times.
    ///
    /// # Errors
    /// The factor is out of range, or a job doesn't train in chunks of mini-batches with a known time.
    pub fn speed_up(&mut self, factor: f64) -> Result<(), WorkloadError> {
        let wrong = |problem: String| WorkloadError { key: "speed", problem };
        if !(0.1..=10.0).contains(&factor) {
            return Err(wrong(format!("{factor} must be from 0.1 to 10")));
        }
        for job in &mut self.jobs {
            let each = job.spec.dataset.as_mut().and_then(|data| data.batch_time.as_mut());
            let (Some(each), Speed::MiniBatches { seconds, together, .. }) = (each, &mut job.truth.speed) else {
                let name = &job.spec.name;
                return Err(wrong(format!("job {name} has no batch_time; the workloads edge and edge-testbed do")));
            };
            each.0 = ((each.0 as f64 / factor).round() as i64).max(1);
            *seconds /= factor;
            together.iter_mut().for_each(|together| *together /= factor);
            for role in std::iter::once(&mut job.spec.worker).chain(&mut job.spec.server) {
                if let Some(bandwidth) = role.demand.get_mut("bandwidth") {
                    *bandwidth = (*bandwidth as f64 * factor).round() as i64;
                }
            }
        }
        Ok(())
    }
}

impl Request {
    /// Checks the numbers against the allowed ranges.
    ///
    /// # Errors
    /// A number is out of range.
    pub fn check(&self) -> Result<(), WorkloadError> {
        for (key, asked, most) in [("jobs", self.jobs, 1_000_000), ("servers", self.servers, 100_000)] {
            if let Some(asked) = asked.filter(|asked| *asked == 0 || *asked > most) {
                return Err(WorkloadError { key, problem: format!("{asked} must be from 1 to {most}") });
            }
        }
        Ok(())
    }
}

/// An invalid request to a generator.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{key}: {problem}")]
pub struct WorkloadError {
    /// The invalid part of the request.
    pub key: &'static str,
    /// Its value and the allowed range.
    pub problem: String,
}

/// A line of [`WORKLOADS`](super::WORKLOADS).
#[derive(Clone, Copy)]
pub struct Entry {
    /// Name of the workload.
    pub name: &'static str,
    /// Description in one line.
    pub summary: &'static str,
    /// Source of its numbers.
    pub source: &'static str,
    pub(super) build: fn(&Request) -> Result<Workload, WorkloadError>,
}

impl Entry {
    /// Generates the workload of a seed, with jobs in order of arrival.
    ///
    /// # Errors
    /// The request is out of range.
    pub fn build(&self, request: &Request) -> Result<Workload, WorkloadError> {
        request.check()?;
        let mut workload = (self.build)(request)?;
        workload.jobs.sort_by_key(|job| job.arrival);
        Ok(workload)
    }
}

impl SimJob {
    /// A new job, without measurements before its submission.
    pub fn new(arrival: Time, spec: JobSpec, truth: Truth) -> Self {
        Self { arrival, spec, profiling: None, done: 0, truth }
    }

    /// The job file as submitted, with the measured profile. `draws` are the job's.
    pub fn submitted(&self, draws: Draws) -> JobSpec {
        let mut spec = self.spec.clone();
        if let Some(profiling) = self.profiling.as_ref().filter(|_| spec.profile.is_empty()) {
            let measure = |(at, &(servers, workers)): (usize, &(u32, u32))| {
                let shape = trainmaster_core::shape::Shape { workers, servers };
                let speed = self.truth.speed.alone(&self.spec, shape);
                let error = 1.0 + profiling.noise * draws.normal(at as u64);
                trainmaster_core::job::ProfiledSpeed { servers, workers, speed: speed * error.max(0.1) }
            };
            spec.profile = profiling.pairs.iter().enumerate().map(measure).filter(|pair| pair.speed > 0.0).collect();
        }
        spec
    }

    /// Time of its submission to the scheduler.
    pub fn submission(&self) -> Time {
        match &self.profiling {
            Some(profiling) if self.spec.profile.is_empty() => {
                self.arrival + Span(profiling.each.0.saturating_mul(profiling.pairs.len() as i64))
            }
            _ => self.arrival,
        }
    }
}

/// An arrival in intervals from the start. As in the Google cluster trace, most intervals are quiet: the weight of an
/// interval is exponential to the third power, so that a few hold most jobs.
pub(super) fn spikes(draws: Draws, job: u64, intervals: u32) -> f64 {
    let weight = |interval: u64| {
        let draw = draws.of(1).exponential(interval);
        draw * draw * draw
    };
    let intervals = u64::from(intervals);
    let total: f64 = (0..intervals).map(weight).sum();
    let mut left = draws.unit(2 * job) * total;
    let interval = (0..intervals).find(|interval| {
        left -= weight(*interval);
        left < 0.0
    });
    interval.unwrap_or(intervals - 1) as f64 + draws.unit(2 * job + 1)
}
