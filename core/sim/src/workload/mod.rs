//! Workloads: a cluster, arriving jobs, and failures. Each generator is a file and a line in [`WORKLOADS`].

mod edge;
pub mod gavel;
mod input;
mod mishaps;
mod mlfs;
mod oasis;
mod optimus;
mod philly;
pub mod pollux;
pub mod rubick;
pub mod trace;

use self::input::spikes;
pub use self::input::{Entry, Outage, Profiling, Request, ServerChange, SimJob, Workload, WorkloadError};

/// All workloads that the core generates without files.
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
    pollux::ADAPTIVE,
    edge::LARGE,
    edge::TESTBED,
    edge::BOUNDED,
    edge::HALF,
    edge::TWICE,
    mlfs::TESTBED,
    mlfs::EQUAL,
    mlfs::FRUGAL,
    mlfs::STRICT,
    mlfs::LARGE,
    mlfs::TRACE,
];

/// Finds a workload by name.
///
/// # Errors
/// The name is unknown. The error lists the known ones.
pub fn find(name: &str) -> Result<&'static Entry, WorkloadError> {
    WORKLOADS.iter().find(|entry| entry.name == name).ok_or_else(|| {
        let known: Vec<_> = WORKLOADS.iter().map(|entry| entry.name).collect();
        WorkloadError {
            key: "workload",
            problem: format!("{name:?} is not a workload; there are {}", known.join(", ")),
        }
    })
}
