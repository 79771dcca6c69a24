//! Converts Slurm's job to the core's: tenant, labels, and the amounts that Slurm charges.

use trainmaster_core::{
    JobSpec,
    job::{Elastic, Launcher, RoleSpec, TrainingMode},
};

use super::super::{
    comment::{self, Part, Tag},
    node::partition_label,
    seen::{Job, Memory, Partition},
};

/// The core's specification of an accepted job.
///
/// # Errors
/// The error names the key, its value and the allowed values. It occurs if the comment was changed since.
pub(super) fn spec(
    job: &Job,
    tag: &Tag,
    servers: Option<(&Job, &Part)>,
    partitions: &[Partition],
    threads: u32,
) -> Result<JobSpec, String> {
    if let Some((component, _)) = servers
        && component.partition != job.partition
    {
        return Err(super::super::submit::two_partitions(&job.partition, &component.partition));
    }
    let mut spec = described(job, tag, servers.map(|(_, part)| part))?;
    // Names in Slurm aren't unique, but numbers are.
    spec.name = format!("{}-{}", spec.name, job.id);
    let partition = job.partition.split(',').next().unwrap_or_default();
    let account = if job.account.is_empty() { &job.user } else { &job.account };
    spec.tenant = plain(account);
    spec.queue = plain(partition);
    spec.labels.insert(partition_label(partition), "true".into());
    infer_elastic(&mut spec);
    let default = partitions.iter().find(|known| known.name == partition).map(|known| known.default_memory);
    for role in [Some(&mut spec.worker), spec.server.as_mut()].into_iter().flatten() {
        pad(role, default.unwrap_or_default(), threads);
    }
    spec.validate().map_err(|error| error.to_string())?;
    Ok(spec)
}

/// The script may start any program, and of those that exchange gradients with each other few survive the loss of a
/// worker: their connections break. So what isn't known to survive it is started again.
fn infer_elastic(spec: &mut JobSpec) {
    let is_torchrun = spec.labels.get(Launcher::LABEL).is_some_and(|launcher| launcher == "torchrun");
    if spec.mode == TrainingMode::AllReduce && !is_torchrun {
        spec.labels.entry(Elastic::LABEL.into()).or_insert_with(|| "restart".into());
    }
}

/// The specification in the comments of a job's components.
///
/// # Errors
/// As [`spec`].
pub(super) fn described(job: &Job, tag: &Tag, servers: Option<&Part>) -> Result<JobSpec, String> {
    let mut pairs = tag.pairs.clone();
    pairs.extend(servers.iter().flat_map(|part| part.pairs.iter().cloned()));
    comment::spec(&pairs, &job.name)
}

/// Adjusts the demand to Slurm's charges: whole cores, the default memory if no memory was requested, and GPUs of any
/// types.
fn pad(role: &mut RoleSpec, default: Memory, threads: u32) {
    let core = i64::from(threads.max(1)) * 1000;
    let cpu = role.demand.get("cpu").copied().unwrap_or(0).max(1);
    let cpu = (cpu + core - 1) / core * core;
    role.demand.insert("cpu".into(), cpu);
    // Slurm can't add a type to a job's request (error 2119), so it chooses the types.
    if let Some(gpus) = role.demand.remove("gpu").filter(|gpus| *gpus > 0) {
        role.demand.insert("gpu:*".into(), gpus);
    }
    if let (Memory::PerCpu(each), None) = (default, role.demand.get("memory").filter(|memory| **memory > 0)) {
        role.demand.insert("memory".into(), each.min(1 << 40) as i64 * (cpu / 1000));
    }
}

/// Converts a name of Slurm's to one that the core allows.
fn plain(name: &str) -> String {
    let name: String =
        name.chars().take(100).map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' }).collect();
    let name = name.trim_start_matches(['.', '-']);
    if name.is_empty() { "default".into() } else { name.into() }
}
