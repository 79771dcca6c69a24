//! Workloads: a cluster, the jobs that arrive, and what goes wrong. Each generator is a file and a line in
//! [`WORKLOADS`].

mod edge;
mod mishaps;
mod mlfs;
mod oasis;
mod optimus;
mod philly;
pub mod pollux;
pub mod trace;

use std::collections::BTreeMap;

use thiserror::Error;

use super::{Lots, Speed, Truth};
use crate::{
    decision::DeviceShare,
    job::JobSpec,
    server::ServerSpec,
    settings::Parameter,
    time::{Span, Time},
};

/// Everything that a simulation plays.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Workload {
    /// The cluster.
    pub servers: Vec<ServerSpec>,
    /// By arrival.
    pub jobs: Vec<SimJob>,
    /// Servers that fail, and come back.
    pub outages: Vec<Outage>,
    /// What else happens to the cluster, by time.
    pub changes: Vec<(Time, ServerChange)>,
    /// From a decision to the manager's acting on it.
    pub enact_delay: Span,
    /// Reports are at least so far apart; besides, there is at most one an epoch.
    pub report_every: Span,
    /// Thousandths of devices and cores that may be [reserved](crate::settings::ShapeRules::overbook), beyond 1000; the
    /// settings' own where they overbook.
    pub overbook: u16,
    /// Stop here even if jobs are left. None: when nothing can happen any more.
    pub end: Option<Time>,
    /// Engine parameters that belong to the experiment (its interval, its slots), before what the user sets: `name` for
    /// every engine that has such a parameter, `engine.name` for one.
    pub parameters: BTreeMap<String, Parameter>,
}

/// A job that arrives.
#[derive(Clone, Debug, PartialEq)]
pub struct SimJob {
    /// When its owner submits it.
    pub arrival: Time,
    /// What the owner asks for; the name must be unique in the workload.
    pub spec: JobSpec,
    /// Measured before it is handed to the scheduler, where `spec` has no profile.
    pub profiling: Option<Profiling>,
    /// Steps that it was trained before it came here, as its checkpoint says.
    pub done: u64,
    /// What no engine sees.
    pub truth: Truth,
}

/// Short runs of a job at a few shapes before it joins the cluster's queue. They take time, which counts as the job's.
#[derive(Clone, Debug, PartialEq)]
pub struct Profiling {
    /// (p, w) to measure.
    pub pairs: Vec<(u32, u32)>,
    /// Time that one run takes.
    pub each: Span,
    /// Relative deviation of what is measured.
    pub noise: f64,
}

/// What happens to a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerChange {
    /// It comes, or is another one than before.
    Set(ServerSpec),
    /// It leaves, with all that runs there.
    Left(String),
    /// All that other work uses of it from now on.
    ForeignUse {
        /// The server's name.
        server: String,
        /// By resource name, in sub-units.
        amounts: BTreeMap<String, i64>,
        /// Shares of its devices.
        devices: Vec<DeviceShare>,
    },
}

/// A server that is away for a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outage {
    /// Its place in [`Workload::servers`].
    pub server: usize,
    /// When it fails, with all that runs there.
    pub at: Time,
    /// When it is back; none: never.
    pub back: Option<Time>,
}

/// What a generator is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Draws arrivals, jobs and all that is random in them.
    pub seed: u64,
    /// Instead of the generator's own number of jobs.
    pub jobs: Option<u32>,
    /// Instead of the generator's own number of servers.
    pub servers: Option<u32>,
}

impl Workload {
    /// Lets every worker be so many times as fast, its network too, and lets jobs say so (speed augmentation: edge-cloud
    /// paper, Definition 1). Uploads take what they took.
    ///
    /// # Errors
    /// The factor is out of range, or a job doesn't train in chunks of mini-batches whose time it tells.
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
    /// Whether the numbers can be met at all.
    ///
    /// # Errors
    /// One is out of range.
    pub fn check(&self) -> Result<(), WorkloadError> {
        for (key, asked, most) in [("jobs", self.jobs, 1_000_000), ("servers", self.servers, 100_000)] {
            if let Some(asked) = asked.filter(|asked| *asked == 0 || *asked > most) {
                return Err(WorkloadError { key, problem: format!("{asked} must be from 1 to {most}") });
            }
        }
        Ok(())
    }
}

/// A request that a generator can't meet.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{key}: {problem}")]
pub struct WorkloadError {
    /// What of the request.
    pub key: &'static str,
    /// The value and what is allowed.
    pub problem: String,
}

/// A line of [`WORKLOADS`].
#[derive(Clone, Copy)]
pub struct Entry {
    /// Its name.
    pub name: &'static str,
    /// What it is, in one line.
    pub summary: &'static str,
    /// Where its numbers come from.
    pub source: &'static str,
    build: fn(&Request) -> Result<Workload, WorkloadError>,
}

impl Entry {
    /// The workload of a seed, with its jobs in the order of their arrival.
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

/// All workloads that the core can make by itself.
pub const WORKLOADS: &[Entry] = &[
    optimus::UNIFORM,
    optimus::SYNC,
    optimus::ASYNC,
    optimus::POISSON,
    optimus::BURSTY,
    oasis::MIXED,
    oasis::TIMELY,
    oasis::SMALL,
    philly::ENTRY,
    pollux::ENTRY,
    edge::LARGE,
    edge::TESTBED,
    mlfs::TESTBED,
    mlfs::LARGE,
    mlfs::TRACE,
];

/// An arrival, in intervals from the start, most of which are quiet, as in the Google cluster trace: the weight of an
/// interval is exponential to the third power, so that a few hold most jobs.
fn spikes(lots: Lots, job: u64, intervals: u32) -> f64 {
    let weight = |interval: u64| {
        let draw = lots.of(1).exponential(interval);
        draw * draw * draw
    };
    let intervals = u64::from(intervals);
    let total: f64 = (0..intervals).map(weight).sum();
    let mut left = lots.unit(2 * job) * total;
    let interval = (0..intervals).find(|interval| {
        left -= weight(*interval);
        left < 0.0
    });
    interval.unwrap_or(intervals - 1) as f64 + lots.unit(2 * job + 1)
}

/// The workload of a name.
///
/// # Errors
/// There is none; the error lists those there are.
pub fn find(name: &str) -> Result<&'static Entry, WorkloadError> {
    WORKLOADS.iter().find(|entry| entry.name == name).ok_or_else(|| {
        let known: Vec<_> = WORKLOADS.iter().map(|entry| entry.name).collect();
        WorkloadError {
            key: "workload",
            problem: format!("{name:?} is not a workload; there are {}", known.join(", ")),
        }
    })
}

impl SimJob {
    /// The spec as it is submitted: with the profile, if one is measured. `lots` are the job's.
    pub fn submitted(&self, lots: Lots) -> JobSpec {
        let mut spec = self.spec.clone();
        if let Some(profiling) = self.profiling.as_ref().filter(|_| spec.profile.is_empty()) {
            let measure = |(at, &(servers, workers)): (usize, &(u32, u32))| {
                let shape = crate::shape::Shape { workers, servers };
                let speed = self.truth.speed.alone(&self.spec, shape);
                let error = 1.0 + profiling.noise * lots.normal(at as u64);
                crate::job::ProfiledSpeed { servers, workers, speed: speed * error.max(0.1) }
            };
            spec.profile = profiling.pairs.iter().enumerate().map(measure).filter(|pair| pair.speed > 0.0).collect();
        }
        spec
    }

    /// When it is submitted.
    pub fn submission(&self) -> Time {
        match &self.profiling {
            Some(profiling) if self.spec.profile.is_empty() => {
                self.arrival + Span(profiling.each.0.saturating_mul(profiling.pairs.len() as i64))
            }
            _ => self.arrival,
        }
    }
}
