//! A job at submission: what it is, what is wrong with it, and what Slurm is to be asked for instead.

use trainmaster_core::JobSpec;

use super::{
    comment::{self, Asked, Pairs, Tag},
    gres::{Gres, parse_gres},
    seen::Memory,
};

/// Slurm keeps so many bytes of a comment.
const LONGEST_COMMENT: usize = 1024;

/// What sbatch asks for: `job_desc_msg_t`, texts empty and numbers `None` where nothing was said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Submission {
    /// `name`.
    pub name: String,
    /// `comment`.
    pub comment: String,
    /// `script`; none for salloc and srun.
    pub script: Option<String>,
    /// `array_inx`.
    pub array: String,
    /// `het_job_offset`.
    pub component: Option<u32>,
    /// `begin_time`, in Unix seconds; 0 for at once.
    pub begin: i64,
    /// `requeue`.
    pub requeue: Option<bool>,
    /// `min_nodes`.
    pub min_nodes: Option<u32>,
    /// `max_nodes`.
    pub max_nodes: Option<u32>,
    /// `num_tasks`.
    pub tasks: Option<u32>,
    /// `ntasks_per_node`.
    pub tasks_per_node: Option<u32>,
    /// `cpus_per_task`.
    pub cpus_per_task: Option<u32>,
    /// `pn_min_memory`.
    pub memory: Memory,
    /// `tres_per_node`.
    pub tres_per_node: String,
    /// `tres_per_task`.
    pub tres_per_task: String,
    /// `tres_per_job`.
    pub tres_per_job: String,
    /// Options that leave Trainmaster no choice, or say what can't be kept when a job is resized: each as sbatch calls
    /// it, with its value.
    pub unsupported: Vec<(String, String)>,
}

/// What an accepted job is changed to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Its comment from now on.
    pub comment: String,
    /// Not before this, in Unix seconds: a lease ahead, or the owner's own time.
    pub begin: i64,
    /// GPUs on each node; empty for none.
    pub tres_per_node: String,
    /// GPUs in all; empty for none.
    pub tres_per_job: String,
    /// For its environment.
    pub environment: [(&'static str, String); 6],
}

/// Checks a job and holds it. `None`: it isn't ours. `token` is the hash of what its environment gets, `now` and
/// `lease` are in seconds.
///
/// # Errors
/// For its owner: the key or option, its value and what is allowed.
pub fn submit(job: &Submission, now: i64, lease: i64, token: [u8; 32]) -> Result<Option<Held>, String> {
    let script = job.script.as_deref().unwrap_or_default();
    // The first component speaks for a heterogeneous job; the others wait with it.
    if job.component.is_some_and(|offset| offset > 0) || !comment::is_ours(&job.comment, script) {
        return Ok(None);
    }
    check_options(job)?;
    let mut pairs = comment::written(&job.comment, script)?;
    check_keys(&pairs)?;
    let asked = asked(job)?;
    add_defaults(&mut pairs, job, &asked)?;
    let spec = comment::spec(&pairs, &job.name)?;
    check_demands(&spec)?;
    let ours = comment::is_ours(&job.comment, "");
    let note = if ours { String::new() } else { job.comment.clone() };
    let (tres_per_node, tres_per_job) = (asked.tres_per_node.clone(), asked.tres_per_job.clone());
    let comment = Tag { pairs, token, begin: job.begin, asked, note }.to_string();
    if comment.len() > LONGEST_COMMENT {
        let most = LONGEST_COMMENT;
        return Err(format!("comment: with what Trainmaster adds it has {} bytes; Slurm keeps {most}", comment.len()));
    }
    let (begin, environment) = (job.begin.max(now + lease), spec.environment());
    Ok(Some(Held { comment, begin, tres_per_node, tres_per_job, environment }))
}

fn check_options(job: &Submission) -> Result<(), String> {
    if job.script.is_none() {
        return Err("salloc, srun: Trainmaster takes batch jobs only; use sbatch".into());
    }
    if !job.array.is_empty() {
        let array = &job.array;
        return Err(format!(
            "--array: {array:?} is not allowed: each training job is sized by itself; submit one job for each"
        ));
    }
    if job.component.is_some() {
        return Err("hetjob: Trainmaster takes one job: its workers and parameter servers run as two steps of it \
                    (srun --exact), on equal servers; submit it without components"
            .into());
    }
    if job.requeue == Some(false) {
        return Err("--no-requeue: Trainmaster resizes a job by requeueing it; leave it out".into());
    }
    match job.unsupported.first() {
        Some((option, value)) => Err(format!(
            "{option}: {}is not allowed for Trainmaster's jobs, which it places itself; use \
             constraints.labels.<feature>=true for nodes, worker.<resource> for resources",
            if value.is_empty() { String::new() } else { format!("{value:?} ") }
        )),
        None => Ok(()),
    }
}

fn check_keys(pairs: &[(String, String)]) -> Result<(), String> {
    for (key, value) in pairs {
        let instead = match key.as_str() {
            "tenant" => "the job's account says it (sbatch --account)",
            "queue" => "the job's partition says it (sbatch --partition)",
            "worker.command" | "server.command" => "Slurm runs the batch script",
            _ => continue,
        };
        return Err(format!("{key}: {value:?} is not allowed here: {instead}; leave it out"));
    }
    Ok(())
}

/// What Slurm itself would give the job, in a form that can be changed later: GPUs on each node or in all.
fn asked(job: &Submission) -> Result<Asked, String> {
    let nodes = (job.min_nodes.unwrap_or(0), job.max_nodes.or(job.min_nodes).unwrap_or(0));
    let tasks_per_node = job.tasks_per_node.unwrap_or(0);
    let tasks = job.tasks.unwrap_or(nodes.0.max(1) * tasks_per_node.max(1));
    let mut asked = Asked {
        nodes,
        tasks,
        tasks_per_node,
        cpus_per_task: job.cpus_per_task.unwrap_or(1),
        memory: job.memory,
        tres_per_node: job.tres_per_node.clone(),
        tres_per_job: job.tres_per_job.clone(),
    };
    // Slurm lets nobody take "per task" back, and the tasks will change.
    if let Some(per_task) = gpus("--gpus-per-task", &job.tres_per_task)? {
        let times = |count: u32| Gres { count: per_task.count * u64::from(count), ..per_task.clone() }.to_string();
        let even = nodes.0 > 0 && nodes.0 == nodes.1 && tasks.is_multiple_of(nodes.0);
        match even {
            true => asked.tres_per_node = times(tasks / nodes.0),
            false => asked.tres_per_job = times(tasks),
        }
    }
    Ok(asked)
}

/// The one kind of GPU in a request; `None` where it asks for none.
fn gpus(option: &str, text: &str) -> Result<Option<Gres>, String> {
    let mut entries = parse_gres(text).into_iter().filter(|gres| gres.count > 0);
    match (entries.next(), entries.next()) {
        (None, _) => Ok(None),
        (Some(gres), None) if gres.name == "gpu" => Ok(Some(gres)),
        _ => {
            Err(format!("{option}: {text:?} must be GPUs of one kind; give other resources as worker.resources.<name>"))
        }
    }
}

/// What the description leaves open, from what sbatch was asked for: a task is a worker.
fn add_defaults(pairs: &mut Pairs, job: &Submission, asked: &Asked) -> Result<(), String> {
    let has = |pairs: &Pairs, key: &str| pairs.iter().any(|(known, _)| known == key);
    let given = |pairs: &Pairs, keys: &[&str]| keys.iter().any(|key| has(pairs, key));
    // `worker={…}` says everything.
    if given(pairs, &["worker"]) {
        return Ok(());
    }
    let add = |pairs: &mut Pairs, key: &str, value: String| pairs.push((key.into(), value));
    if !given(pairs, &["worker.requested", "worker.min", "worker.max"]) {
        add(pairs, "worker.requested", asked.tasks.to_string());
    } else if !given(pairs, &["worker.requested"]) {
        // Within what the owner allows.
        let bound =
            |key: &str| pairs.iter().find(|(known, _)| known == key).and_then(|(_, value)| value.parse::<u32>().ok());
        let (least, most) = (bound("worker.min").unwrap_or(1), bound("worker.max").unwrap_or(u32::MAX));
        let requested = asked.tasks.clamp(least, most.max(least));
        add(pairs, "worker.requested", requested.to_string());
    }
    if !pairs.iter().any(|(key, _)| key == "worker.gpu" || key.starts_with("worker.gpu:"))
        && let Some(gres) = gpus_of_a_task(job, asked)?
    {
        add(pairs, &format!("worker.{}", gres.resource()), gres.count.to_string());
    }
    if !has(pairs, "worker.cpu") {
        add(pairs, "worker.cpu", asked.cpus_per_task.to_string());
    }
    if !has(pairs, "worker.memory") {
        let memory = match job.memory {
            Memory::Unset => None,
            Memory::PerCpu(each) => Some(each * u64::from(asked.cpus_per_task)),
            Memory::PerNode(all) => {
                let on_node = tasks_on_a_node(asked).ok_or_else(|| {
                    format!(
                        "--mem: {all} MiB a node for {} tasks must be a number of tasks on each node; \
                             add --nodes, or use --mem-per-cpu",
                        asked.tasks
                    )
                })?;
                Some(all / u64::from(on_node))
            }
        };
        memory.into_iter().for_each(|memory| add(pairs, "worker.memory", format!("{memory}MiB")));
    }
    Ok(())
}

/// Where it is the same on all of them.
fn tasks_on_a_node(asked: &Asked) -> Option<u32> {
    let (least, most) = asked.nodes;
    if asked.tasks_per_node > 0 {
        return Some(asked.tasks_per_node);
    }
    let nodes = if least == 0 && asked.tasks == 1 { 1 } else { least };
    (nodes > 0 && (least == most || asked.tasks == 1) && asked.tasks.is_multiple_of(nodes)).then(|| asked.tasks / nodes)
}

fn gpus_of_a_task(job: &Submission, asked: &Asked) -> Result<Option<Gres>, String> {
    let uneven = |option: &str, gres: &Gres, what: String| {
        let tasks = asked.tasks;
        Err(format!(
            "{option}: {gres} {what} can't be shared equally by {tasks} tasks; use --gpus-per-task, or give \
                     worker.gpu and worker.requested"
        ))
    };
    if let Some(gres) = gpus("--gpus-per-task", &job.tres_per_task)? {
        return Ok(Some(gres));
    }
    if let Some(gres) = gpus("--gres", &asked.tres_per_node)? {
        return match tasks_on_a_node(asked).filter(|tasks| gres.count % u64::from(*tasks) == 0) {
            Some(tasks) => Ok(Some(Gres { count: gres.count / u64::from(tasks), ..gres })),
            None => uneven("--gres", &gres, "a node".into()),
        };
    }
    match gpus("--gpus", &asked.tres_per_job)? {
        Some(gres) if gres.count % u64::from(asked.tasks.max(1)) == 0 => {
            Ok(Some(Gres { count: gres.count / u64::from(asked.tasks.max(1)), ..gres }))
        }
        Some(gres) => uneven("--gpus", &gres, "in all".into()),
        None => Ok(None),
    }
}

/// What Slurm can reserve: whole GPUs, CPUs and custom resources.
fn check_demands(spec: &JobSpec) -> Result<(), String> {
    for (key, role) in [("worker", Some(&spec.worker)), ("server", spec.server.as_ref())] {
        let Some(role) = role else { continue };
        for (name, amount) in role.demand.iter().filter(|(name, _)| !matches!(name.as_str(), "memory" | "bandwidth")) {
            let counted = !matches!(name.as_str(), "disk" | "cpu");
            if counted && amount % 1000 != 0 {
                let value = *amount as f64 / 1000.0;
                return Err(format!("{key}.{name}: {value} must be a whole number: Slurm shares none out"));
            }
        }
    }
    Ok(())
}
