//! Converts servers and jobs to an instance.

use thiserror::Error;

use super::{Host, Instance, Task};
use trainmaster_core::{
    job::{JobSpec, Slots, Training, TrainingError},
    resources::{Amounts, GPU, ResourceTypes},
    server::{Hosts, ServerSpec},
    shape::Role,
    time::Time,
};

/// An invalid workload for an instance.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum InstanceError {
    /// A job that can't be counted in slots.
    #[error("job {job}: {error}")]
    Job {
        /// Name of the job.
        job: String,
        /// The error.
        error: TrainingError,
    },
    /// A job without a utility.
    #[error("job {job}: utility: is missing; the optimum is one of utilities")]
    NoUtility {
        /// Name of the job.
        job: String,
    },
    /// A server with an invalid label.
    #[error("server {server}: {problem}")]
    Server {
        /// Name of the server.
        server: String,
        /// The error.
        problem: String,
    },
}

impl Instance {
    /// Builds an instance from servers and jobs with their arrivals, in `slots` slots from the origin of time. A job
    /// arrives at the start of its slot, and its work counts in worker-slots, so that no engine that decides in slots
    /// can exceed the bound. Placement labels other than [`Hosts`] are ignored.
    ///
    /// # Errors
    /// A job has no dataset or utility, or inconsistent numbers, or a server has an invalid `hosts` label.
    pub fn of<'a>(
        servers: &[ServerSpec],
        jobs: impl IntoIterator<Item = (Time, &'a JobSpec)>,
        slots: Slots,
        count: u32,
    ) -> Result<Self, InstanceError> {
        let mut types = ResourceTypes::default();
        let host = |server: &ServerSpec| {
            let mut capacity = Amounts::default();
            server.capacity.iter().for_each(|(name, value)| capacity.add(types.intern(name), *value));
            for kind in &server.devices {
                let kind = types.intern(kind);
                capacity.add(GPU, 1000);
                if kind != GPU {
                    capacity.add(kind, 1000);
                }
            }
            let hosts = Hosts::of(&server.labels)
                .map_err(|problem| InstanceError::Server { server: server.name.clone(), problem })?;
            Ok(Host { capacity, workers: hosts.takes(Role::Worker), servers: hosts.takes(Role::Server) })
        };
        let hosts = servers.iter().map(host).collect::<Result<Vec<_>, _>>()?;
        let task = |(arrival, spec): (Time, &JobSpec)| {
            let job = || spec.name.clone();
            let training = Training::new(spec, None).map_err(|error| InstanceError::Job { job: job(), error })?;
            let utility = spec.utility.as_ref().ok_or_else(|| InstanceError::NoUtility { job: job() })?;
            let bounds = spec.bounds();
            let arrival = u32::try_from(slots.of(arrival).max(0)).unwrap_or(u32::MAX).min(count);
            let server = spec.server.as_ref().map(|role| types.demand(&role.demand)).unwrap_or_default();
            let bandwidth = |role: Option<&trainmaster_core::job::RoleSpec>| {
                role.and_then(|role| role.demand.get("bandwidth")).copied().unwrap_or(0)
            };
            let (b, capacity) = (bandwidth(Some(&spec.worker)), bandwidth(spec.server.as_ref()));
            Ok(Task {
                arrival,
                work: training.workers_for(training.work(), slots.length),
                workers: (bounds.workers.0, bounds.workers.1.min(training.chunks)),
                servers: bounds.servers,
                worker: types.demand(&spec.worker.demand),
                server,
                bandwidth: if spec.server.is_some() { (b, capacity) } else { (0, 0) },
                worth: (0..i64::from(count - arrival))
                    .map(|later| utility.at(trainmaster_core::time::Span(later * slots.length.0)))
                    .collect(),
            })
        };
        let jobs = jobs.into_iter().map(task).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { slots: count, hosts, jobs })
    }
}
