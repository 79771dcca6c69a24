//! Conversion of jobs.

use trainmaster_core::{
    JobSpec, Span, TrainingMode,
    job::{
        Convergence, Dataset, ExternalId, Partition, ProfiledSpeed, Resize, RoleSpec, StopChoice, Utility, UtilityKind,
    },
};

use crate::{ConvertError, v1};

/// Maximum bytes of a cluster's name, and of a job's name there.
const LONGEST_EXTERNAL: usize = 256;

/// Converts and checks a job. Unset fields have the job file's defaults.
///
/// # Errors
/// The first invalid field, under its name in the job file.
pub fn spec_from_job(job: v1::Job) -> Result<JobSpec, ConvertError> {
    let or = |text: String, default: &str| if text.is_empty() { default.to_owned() } else { text };
    let model_size = i64::try_from(job.model_size_mib).map_err(|_| {
        ConvertError::new("model_size", format!("{} must be at most {} MiB", job.model_size_mib, i64::MAX))
    })?;
    let worker = job.worker.ok_or_else(|| ConvertError::new("worker", "is missing: a job needs workers"))?;
    let given = |count: u32| (count > 0).then_some(count);
    let (max, requested) = (given(worker.max), given(worker.requested));
    let stop = stop("stop", job.stop)?;
    let mut spec = JobSpec {
        model: or(job.model, &job.name),
        name: job.name,
        tenant: or(job.tenant, "default"),
        queue: or(job.queue, "default"),
        priority: job.priority,
        resize: resize(job.resize)?,
        mode: mode(job.mode)?,
        batch: job.batch.max(1),
        examples: job.examples,
        convergence: job.convergence.map_or_else(Convergence::default, convergence),
        worker: role(worker),
        server: job.server.map(role),
        separate_roles: job.separate_roles,
        model_size,
        utility: job.utility.map(utility).transpose()?,
        deadline: span("deadline", job.deadline_ms)?,
        accuracy: job.accuracy,
        stop,
        stop_under_load: job.stop_under_load.map_or(Ok(stop), |choice| self::stop("stop_under_load", choice))?,
        urgency: job.urgency,
        partitions: job
            .partitions
            .into_iter()
            .map(|part| Partition { parameters: part.parameters, after: part.after })
            .collect(),
        dataset: job.dataset.map(dataset).transpose()?,
        labels: job.labels.into_iter().collect(),
        time_limit: span("time_limit", job.time_limit_ms)?,
        restart_cost: span("restart_cost", job.restart_cost_ms)?,
        profile: job
            .profile
            .iter()
            .map(|sample| ProfiledSpeed { servers: sample.servers, workers: sample.workers, speed: sample.speed })
            .collect(),
    };
    spec.count_workers(max, requested);
    spec.infer_start();
    spec.validate_new()?;
    Ok(spec)
}

/// Converts the external id of a job.
///
/// # Errors
/// A name is missing or too long.
pub fn external_from_wire(external: v1::ExternalId) -> Result<ExternalId, ConvertError> {
    for (field, name) in [("cluster", &external.cluster), ("native", &external.native)] {
        if name.is_empty() || name.len() > LONGEST_EXTERNAL || name.chars().any(char::is_control) {
            let start: String = name.chars().take(LONGEST_EXTERNAL).collect();
            let problem = format!("{start:?} must be a name of 1 to {LONGEST_EXTERNAL} visible characters");
            return Err(ConvertError::new(format!("external.{field}"), problem));
        }
    }
    Ok(ExternalId { cluster: external.cluster, native: external.native })
}

/// Converts an external id for the wire.
pub fn external_to_wire(external: &ExternalId) -> v1::ExternalId {
    v1::ExternalId { cluster: external.cluster.clone(), native: external.native.clone() }
}

/// Converts a job for the wire.
pub fn job_from_spec(spec: &JobSpec) -> v1::Job {
    v1::Job {
        name: spec.name.clone(),
        model: spec.model.clone(),
        tenant: spec.tenant.clone(),
        queue: spec.queue.clone(),
        priority: spec.priority,
        resize: match spec.resize {
            Resize::Any => v1::Resize::Any,
            Resize::Workers => v1::Resize::Workers,
            Resize::Fixed => v1::Resize::Fixed,
        }
        .into(),
        mode: match spec.mode {
            TrainingMode::Sync => v1::TrainingMode::Sync,
            TrainingMode::Async => v1::TrainingMode::Async,
            TrainingMode::AllReduce => v1::TrainingMode::Allreduce,
        }
        .into(),
        batch: spec.batch,
        examples: spec.examples,
        convergence: Some(v1::Convergence {
            delta: spec.convergence.delta,
            patience: spec.convergence.patience,
            max_epochs: spec.convergence.max_epochs,
        }),
        worker: Some(role_to_wire(&spec.worker)),
        server: spec.server.as_ref().map(role_to_wire),
        separate_roles: spec.separate_roles,
        // A valid spec is never negative.
        model_size_mib: spec.model_size.max(0) as u64,
        utility: spec.utility.as_ref().map(utility_to_wire),
        deadline_ms: spec.deadline.map(|span| span.0),
        accuracy: spec.accuracy,
        stop: stop_to_wire(spec.stop).into(),
        stop_under_load: Some(stop_to_wire(spec.stop_under_load).into()),
        urgency: spec.urgency,
        partitions: spec
            .partitions
            .iter()
            .map(|part| v1::Partition { parameters: part.parameters, after: part.after.clone() })
            .collect(),
        dataset: spec.dataset.as_ref().map(|data| v1::Dataset {
            chunks: data.chunks,
            batches_per_chunk: data.batches_per_chunk,
            epochs: data.epochs,
            upload: data.upload.clone(),
            batch_time_ms: data.batch_time.map(|span| span.0),
            chunk_size_mib: data.chunk_size.max(0) as u64,
        }),
        labels: spec.labels.clone().into_iter().collect(),
        time_limit_ms: spec.time_limit.map(|span| span.0),
        restart_cost_ms: spec.restart_cost.map(|span| span.0),
        profile: spec
            .profile
            .iter()
            .map(|sample| v1::SpeedSample { servers: sample.servers, workers: sample.workers, speed: sample.speed })
            .collect(),
    }
}

fn resize(resize: i32) -> Result<Resize, ConvertError> {
    match v1::Resize::try_from(resize) {
        Ok(v1::Resize::Any) => Ok(Resize::Any),
        Ok(v1::Resize::Workers) => Ok(Resize::Workers),
        Ok(v1::Resize::Fixed) => Ok(Resize::Fixed),
        Err(_) => Err(ConvertError::unknown("resize", resize, "0 (any), 1 (workers) or 2 (fixed)")),
    }
}

fn mode(mode: i32) -> Result<TrainingMode, ConvertError> {
    match v1::TrainingMode::try_from(mode) {
        Ok(v1::TrainingMode::Sync) => Ok(TrainingMode::Sync),
        Ok(v1::TrainingMode::Async) => Ok(TrainingMode::Async),
        Ok(v1::TrainingMode::Allreduce) => Ok(TrainingMode::AllReduce),
        Err(_) => Err(ConvertError::unknown("mode", mode, "0 (sync), 1 (async) or 2 (allreduce)")),
    }
}

fn stop(key: &'static str, choice: i32) -> Result<StopChoice, ConvertError> {
    match v1::Stop::try_from(choice) {
        Ok(v1::Stop::Epochs) => Ok(StopChoice::Epochs),
        Ok(v1::Stop::Optimal) => Ok(StopChoice::Optimal),
        Ok(v1::Stop::Accuracy) => Ok(StopChoice::Accuracy),
        Err(_) => Err(ConvertError::unknown(key, choice, "0 (epochs), 1 (optimal) or 2 (accuracy)")),
    }
}

fn stop_to_wire(choice: StopChoice) -> v1::Stop {
    match choice {
        StopChoice::Epochs => v1::Stop::Epochs,
        StopChoice::Optimal => v1::Stop::Optimal,
        StopChoice::Accuracy => v1::Stop::Accuracy,
    }
}

fn convergence(rule: v1::Convergence) -> Convergence {
    let defaults = Convergence::default();
    let or = |value, default| if value == 0 { default } else { value };
    Convergence {
        // Zero has a meaning: only epochs without any gain count.
        delta: rule.delta,
        patience: or(rule.patience, defaults.patience),
        max_epochs: or(rule.max_epochs, defaults.max_epochs),
    }
}

fn role(role: v1::Role) -> RoleSpec {
    let or = |value, default| if value == 0 { default } else { value };
    let min = or(role.min, 1);
    let requested = or(role.requested, min);
    RoleSpec {
        demand: role.demand.into_iter().collect(),
        min,
        max: or(role.max, requested),
        requested,
        command: role.command,
    }
}

fn role_to_wire(role: &RoleSpec) -> v1::Role {
    v1::Role {
        demand: role.demand.clone().into_iter().collect(),
        min: role.min,
        max: role.max,
        requested: role.requested,
        command: role.command.clone(),
    }
}

fn utility(utility: v1::Utility) -> Result<Utility, ConvertError> {
    let kind = match v1::UtilityKind::try_from(utility.kind) {
        Ok(v1::UtilityKind::Sigmoid) => UtilityKind::Sigmoid,
        Ok(v1::UtilityKind::Constant) => UtilityKind::Constant,
        Ok(v1::UtilityKind::Linear) => UtilityKind::Linear,
        Ok(v1::UtilityKind::Step) => UtilityKind::Step,
        Ok(v1::UtilityKind::Table) => UtilityKind::Table,
        Err(_) => {
            let allowed = "0 (sigmoid), 1 (constant), 2 (linear), 3 (step) or 4 (table)";
            return Err(ConvertError::unknown("utility.kind", utility.kind, allowed));
        }
    };
    let target = span("utility.target", Some(utility.target_ms))?.unwrap_or_default();
    let point = |point: &v1::UtilityPoint| {
        Ok((span("utility.points", Some(point.elapsed_ms))?.unwrap_or_default(), point.worth))
    };
    let points = utility.points.iter().map(point).collect::<Result<_, ConvertError>>()?;
    Ok(Utility { kind, value: utility.value, decay: utility.decay, target, points })
}

fn utility_to_wire(utility: &Utility) -> v1::Utility {
    let kind = match utility.kind {
        UtilityKind::Sigmoid => v1::UtilityKind::Sigmoid,
        UtilityKind::Constant => v1::UtilityKind::Constant,
        UtilityKind::Linear => v1::UtilityKind::Linear,
        UtilityKind::Step => v1::UtilityKind::Step,
        UtilityKind::Table => v1::UtilityKind::Table,
    };
    let point = |(from, worth): &(Span, f64)| v1::UtilityPoint { elapsed_ms: from.0, worth: *worth };
    v1::Utility {
        kind: kind.into(),
        value: utility.value,
        decay: utility.decay,
        target_ms: utility.target.0,
        points: utility.points.iter().map(point).collect(),
    }
}

fn dataset(data: v1::Dataset) -> Result<Dataset, ConvertError> {
    Ok(Dataset {
        chunks: data.chunks,
        batches_per_chunk: data.batches_per_chunk,
        epochs: data.epochs,
        batch_time: span("dataset.batch_time", data.batch_time_ms)?,
        upload: data.upload,
        chunk_size: i64::try_from(data.chunk_size_mib).unwrap_or(i64::MAX),
    })
}

fn span(field: &str, ms: Option<i64>) -> Result<Option<Span>, ConvertError> {
    match ms {
        Some(ms) if ms < 0 => Err(ConvertError::new(field, format!("{ms} ms must be 0 or more"))),
        ms => Ok(ms.map(Span)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WHOLE: &str = r#"
        name = "resnet50"
        tenant = "vision"
        resize = "workers"
        mode = "async"
        batch = 256
        examples = 50000
        convergence = { delta = 0.0, patience = 2, max_epochs = 20 }
        worker = { gpu = 1, cpu = 4, memory = "10GiB", bandwidth = "1Gbit", max = 16, requested = 4, command = "train" }
        server = { cpu = 4, memory = "10GiB", max = 16, requested = 2 }
        separate_roles = true
        model_size = "100MiB"
        utility = { kind = "step", value = 50, decay = 0.5, target = "6h" }
        deadline = "12h"
        accuracy = 0.92
        urgency = 3
        stop = "optimal"
        stop_under_load = "accuracy"
        dataset.chunks = 60
        dataset.batches_per_chunk = 58
        dataset.epochs = 40
        dataset.batch_time = "250ms"
        dataset.upload = "cloud"
        dataset.chunk_size = "64MiB"
        constraints = { labels = { zone = "a" } }
        time_limit = "2d"
        restart_cost = "20s"
        profile = [{ p = 1, w = 1, speed = 0.5 }]
    "#;

    #[test]
    fn every_key_of_the_job_file_survives_the_wire() {
        let spec = JobSpec::from_toml(WHOLE).unwrap();
        assert_eq!(spec_from_job(job_from_spec(&spec)).unwrap(), spec);
        let points = vec![(Span(1000), 4.5), (Span(2000), 0.0)];
        let table = Utility { value: 5.0, points, ..Utility::new(UtilityKind::Table) };
        let spec = JobSpec { utility: Some(table), ..spec };
        assert_eq!(spec_from_job(job_from_spec(&spec)).unwrap(), spec);
        let partitions = vec![Partition { parameters: 10, after: vec![] }, Partition { parameters: 5, after: vec![0] }];
        let spec = JobSpec { resize: Resize::Fixed, partitions, ..spec };
        assert_eq!(spec_from_job(job_from_spec(&spec)).unwrap(), spec);
    }

    #[test]
    fn unset_fields_have_the_defaults_of_the_job_file() {
        let demand = |gpu: &str| v1::Role { demand: [(gpu.to_owned(), 1000)].into(), ..v1::Role::default() };
        let job = v1::Job {
            name: "a".into(),
            worker: Some(demand("gpu")),
            server: Some(demand("cpu")),
            ..v1::Job::default()
        };
        let file = "name = \"a\"\nworker = { gpu = 1 }\nserver = { cpu = 1 }";
        assert_eq!(spec_from_job(job).unwrap(), JobSpec::from_toml(file).unwrap());
    }

    #[test]
    fn mistakes_are_named() {
        let with = |change: fn(&mut v1::Job)| {
            let mut job = job_from_spec(&JobSpec::minimal("a"));
            change(&mut job);
            spec_from_job(job).unwrap_err().to_string()
        };
        assert!(with(|job| job.mode = 7).starts_with("mode: 7 must be"));
        assert!(with(|job| job.resize = -1).starts_with("resize: -1 must be"));
        assert!(with(|job| job.worker = None).starts_with("worker: is missing"));
        assert!(with(|job| job.name = "../x".into()).starts_with("name: \"../x\" must be"));
        assert!(with(|job| job.deadline_ms = Some(-1)).starts_with("deadline: -1 ms"));
        assert!(with(|job| job.model_size_mib = u64::MAX).starts_with("model_size:"));
        assert!(with(|job| job.worker.as_mut().unwrap().min = 20).starts_with("worker.max:"));
        let negative = with(|job| *job.worker.as_mut().unwrap().demand.get_mut("gpu").unwrap() = -1);
        assert!(negative.starts_with("worker.gpu: -1"), "{negative}");
    }

    prop_compose! {
        fn role_spec()(min in 1..4_u32, more in 0..4_u32, extra in 0..4_u32, cpu in 1..64_000_i64,
                       memory in 0..1_000_000_i64)
            -> RoleSpec {
            RoleSpec {
                demand: [("cpu".to_owned(), cpu), ("memory".to_owned(), memory)].into(),
                min,
                requested: min + more,
                max: min + more + extra,
                command: "train --fast".into(),
            }
        }
    }

    proptest! {
        #[test]
        fn any_valid_job_survives_the_wire(
            worker in role_spec(),
            server in proptest::option::of(role_spec()),
            numbers in (any::<i32>(), 1..1_000_000_u64, any::<u64>(), 0..1_000_000_i64),
            rule in (0.0..0.99_f64, 1..9_u32, 1..999_u32),
            spans in proptest::array::uniform3(proptest::option::of(0..1_000_000_000_i64)),
        ) {
            let mut spec = JobSpec {
                mode: if server.is_some() { TrainingMode::Sync } else { TrainingMode::AllReduce },
                worker,
                server,
                priority: numbers.0,
                batch: numbers.1,
                examples: numbers.2,
                model_size: numbers.3,
                convergence: Convergence { delta: rule.0, patience: rule.1, max_epochs: rule.2 },
                deadline: spans[0].map(Span),
                time_limit: spans[1].map(Span),
                restart_cost: spans[2].map(Span),
                ..JobSpec::minimal("job")
            };
            // Which a new job gets anyway.
            spec.infer_start();
            prop_assert_eq!(spec_from_job(job_from_spec(&spec)).unwrap(), spec);
        }
    }
}
