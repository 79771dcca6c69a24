//! Helpers to build servers, jobs and events.

use std::collections::BTreeMap;

use trainmaster_core::{
    Event, EventError, Incarnation, JobId, JobSpec, ObservedSlot, Report, Role, Scheduler, ServerSpec, Settings, Shape,
    Span, Time, TrainingMode, Verdict,
    fit::SpeedCurve,
    job::{Dataset, Phase, ProfiledSpeed, RoleSpec},
    settings::{Parameter, Stability},
};

/// Amounts by name.
pub fn amounts(pairs: &[(&str, i64)]) -> BTreeMap<String, i64> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
}

/// A server with `cpus` CPUs, `gib` GiB of memory, and devices.
pub fn server(name: &str, cpus: i64, gib: i64, devices: &[&str]) -> ServerSpec {
    ServerSpec {
        name: name.into(),
        capacity: amounts(&[("cpu", cpus * 1000), ("memory", gib * 1024), ("bandwidth", 10_000)]),
        devices: devices.iter().map(|kind| (*kind).to_owned()).collect(),
        ..ServerSpec::default()
    }
}

/// A role: its demand and its bounds.
pub fn role(demand: &[(&str, i64)], min: u32, max: u32, requested: u32) -> RoleSpec {
    RoleSpec::of(demand, min..=max, requested)
}

/// A job of GPU workers and CPU parameter servers.
pub fn job(name: &str, workers: (u32, u32, u32), servers: (u32, u32, u32)) -> JobSpec {
    JobSpec {
        worker: role(&[("gpu", 1000), ("cpu", 1000)], workers.0, workers.1, workers.2),
        server: Some(role(&[("cpu", 1000)], servers.0, servers.1, servers.2)),
        ..JobSpec::minimal(name)
    }
}

/// The same without parameter servers.
pub fn ring(name: &str, workers: (u32, u32, u32)) -> JobSpec {
    JobSpec {
        mode: TrainingMode::AllReduce,
        worker: role(&[("gpu", 1000), ("cpu", 1000)], workers.0, workers.1, workers.2),
        server: None,
        ..JobSpec::minimal(name)
    }
}

/// The same with `gpus` GPUs, no more and no fewer, and a duration of `minutes`.
pub fn trained(name: &str, gpus: u32, minutes: u32) -> JobSpec {
    let data = Dataset {
        chunks: gpus,
        batches_per_chunk: minutes,
        epochs: 1,
        batch_time: Some(Span::seconds(60)),
        ..Dataset::default()
    };
    JobSpec { dataset: Some(data), ..ring(name, (gpus, gpus, gpus)) }
}

/// A server with `count` GPUs, and ample CPUs and memory.
pub fn gpus(name: &str, count: usize) -> ServerSpec {
    server(name, 64, 64, &vec!["gpu"; count])
}

/// Speeds of a known curve in all small shapes, as a profile.
pub fn profile(curve: &SpeedCurve, most: Shape) -> Vec<ProfiledSpeed> {
    let shapes = (1..=most.workers)
        .flat_map(|workers| (most.servers.min(1)..=most.servers).map(move |servers| Shape { workers, servers }));
    shapes
        .map(|Shape { workers, servers }| ProfiledSpeed { servers, workers, speed: curve.speed(servers, workers) })
        .collect()
}

/// Settings of an engine as in its paper: without stability.
pub fn plain(engine: &str) -> Settings {
    Settings {
        engine: engine.into(),
        stability: Stability { enabled: false, ..Stability::default() },
        ..Settings::default()
    }
}

/// The same with parameters.
pub fn plain_with(engine: &str, parameters: &[(&str, Parameter)]) -> Settings {
    let parameters = parameters.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    Settings { parameters, ..plain(engine) }
}

/// A scheduler with these servers.
pub fn cluster(settings: Settings, servers: &[ServerSpec]) -> Scheduler {
    let mut scheduler = Scheduler::new(settings).expect("settings are allowed");
    for server in servers {
        set(&mut scheduler, 0, server.clone());
    }
    scheduler
}

/// A server arrives or changes.
pub fn set(scheduler: &mut Scheduler, at: i64, server: ServerSpec) {
    scheduler.apply(Time(at), Event::ServerSet { manager: "m0".into(), server }).expect("a good server");
}

/// Submits a job, and returns its number.
pub fn submit(scheduler: &mut Scheduler, at: i64, spec: JobSpec) -> JobId {
    let name = spec.name.clone();
    let event = Event::JobSubmitted { spec: Box::new(spec), external: None, token_hash: None };
    scheduler.apply(Time(at), event).expect("a good job");
    scheduler.state().find_job(&name).expect("just submitted").id
}

/// The planned shape of a job.
pub fn shape(scheduler: &Scheduler, job: JobId) -> Shape {
    scheduler.state().job(job).expect("active").shape()
}

/// A job's verdict in the plan.
pub fn verdict(scheduler: &Scheduler, job: JobId) -> Verdict {
    scheduler.state().job(job).expect("active").verdict.clone()
}

/// Which of the jobs have slots in the plan.
pub fn runs(scheduler: &Scheduler, jobs: &[JobId]) -> Vec<bool> {
    jobs.iter().map(|job| !shape(scheduler, *job).is_empty()).collect()
}

/// (w, p).
pub fn wp(workers: u32, servers: u32) -> Shape {
    Shape { workers, servers }
}

/// Submits a job, and enacts its decision.
pub fn running(scheduler: &mut Scheduler, at: i64, spec: JobSpec) -> JobId {
    let id = submit(scheduler, at, spec);
    scheduler.decide(Time(at));
    seen(scheduler, at, id);
    id
}

/// The manager runs a job's issued slots.
pub fn seen(scheduler: &mut Scheduler, at: i64, id: JobId) {
    let state = scheduler.state();
    let found = state.job(id).expect("it is active");
    let slots = found.issued.allocation.iter().flat_map(|issued| issued.slots()).map(|slot| ObservedSlot {
        role: slot.role,
        index: slot.index,
        server: state.server_name(slot.server).into(),
        devices: slot.devices.to_vec(),
    });
    let (incarnation, slots) = (found.issued.incarnation, slots.collect());
    scheduler.apply(Time(at), Event::Observed { job: id, incarnation, slots, phase: Phase::Running }).unwrap();
}

/// A report of the first worker.
///
/// # Errors
/// It is refused.
pub fn report(scheduler: &mut Scheduler, at: i64, job: JobId, report: Report) -> Result<(), EventError> {
    let (slot, incarnation) =
        ((Role::Worker, 0), scheduler.state().job(job).map_or(Incarnation(0), |job| job.issued.incarnation));
    scheduler.apply(Time(at), Event::Reported { job, incarnation, slot, report })
}
