//! A job at submission: its description, its errors, and the changed request for Slurm.

use trainmaster_core::{JobSpec, job::RoleSpec};

use super::{
    comment::{self, Asked, Pairs, Part, Tag},
    gres::{Gres, parse_gres},
    seen::Memory,
};

/// Maximum length in bytes of a comment that Slurm keeps.
const LONGEST_COMMENT: usize = 1024;

/// The request of sbatch: `job_desc_msg_t`. Texts are empty and numbers `None` if they weren't given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Submission {
    /// `name`.
    pub name: String,
    /// `comment`.
    pub comment: String,
    /// `script`; `None` for salloc and srun.
    pub script: Option<String>,
    /// `array_inx`.
    pub array: String,
    /// `partition`.
    pub partition: String,
    /// `het_job_offset`.
    pub component: Option<u32>,
    /// `begin_time`, in Unix seconds; 0: at once.
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
    /// Options that leave Trainmaster no choice, or that can't be kept when a job is resized. Each has its name in
    /// sbatch, and its value.
    pub unsupported: Vec<(String, String)>,
}

/// The changes to an accepted job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Its new comment.
    pub comment: String,
    /// The earliest start, in Unix seconds: one lease in the future, or the owner's own time if it is later.
    pub begin: i64,
    /// GPUs on each node; empty: none.
    pub tres_per_node: String,
    /// The total number of GPUs; empty: none.
    pub tres_per_job: String,
    /// Environment variables.
    pub environment: Vec<(&'static str, String)>,
}

/// The data of a heterogeneous job's first component, kept until its other components are checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    name: String,
    pairs: Pairs,
    partition: String,
    note: String,
    begin: i64,
}

/// Checks a job and holds it. For a heterogeneous job, this is the first component, which represents all. The other
/// components are checked by [`submit_servers`]. Returns `None` if the job isn't Trainmaster's. `token` is the hash of
/// the token in the job's environment. `now` and `lease` are in seconds.
///
/// # Errors
/// A text for the owner, with the key or option, its value and the allowed values.
pub fn submit(
    job: &Submission,
    now: i64,
    lease: i64,
    token: [u8; 32],
) -> Result<Option<(Held, Option<Leader>)>, String> {
    let script = job.script.as_deref().unwrap_or_default();
    if !comment::is_ours(&job.comment, script) {
        return Ok(None);
    }
    if job.component.is_some_and(|offset| offset > 0) {
        return Err("comment: the first component says whose a heterogeneous job is; write trainmaster;… there".into());
    }
    check_options(job)?;
    let mut pairs = comment::written(&job.comment, script)?;
    check_keys(&pairs)?;
    let asked = asked(job)?;
    let defaults = defaults("worker", &pairs, job, &asked)?;
    pairs.extend(defaults);
    let spec = check_roles(&mut pairs, job)?;
    check_demands(&spec)?;
    let ours = comment::is_ours(&job.comment, "");
    let note = if ours { String::new() } else { job.comment.clone() };
    let (tres_per_node, tres_per_job) = (asked.tres_per_node.clone(), asked.tres_per_job.clone());
    let (begin, environment) = (job.begin.max(now + lease), environment(&spec, &pairs, job.component.is_some()));
    let leader = job.component.map(|_| Leader {
        name: job.name.clone(),
        pairs: pairs.clone(),
        partition: job.partition.clone(),
        note: note.clone(),
        begin,
    });
    let comment = short_enough(Tag { pairs, token, begin: job.begin, asked, note }.to_string())?;
    Ok(Some((Held { comment, begin, tres_per_node, tres_per_job, environment }, leader)))
}

/// Checks and holds the second component of a heterogeneous job. Its tasks are parameter servers.
///
/// # Errors
/// A text for the owner, with the key or option, its value and the allowed values. A third component is an error.
pub fn submit_servers(job: &Submission, leader: &Leader) -> Result<Held, String> {
    if job.component != Some(1) {
        return Err("hetjob: three components or more must be two: sbatch OPTIONS-OF-WORKERS : \
                    OPTIONS-OF-PARAMETER-SERVERS SCRIPT"
            .into());
    }
    check_options(job)?;
    if job.partition != leader.partition {
        return Err(two_partitions(&leader.partition, &job.partition));
    }
    let asked = asked(job)?;
    for (option, gpus) in
        [("--gres", &asked.tres_per_node), ("--gpus", &asked.tres_per_job), ("--gpus-per-task", &job.tres_per_task)]
    {
        if !gpus.is_empty() {
            return Err(format!(
                "{option}: {gpus:?} is not allowed for the second component, whose tasks are parameter servers; they \
                 have no GPUs"
            ));
        }
    }
    let pairs = defaults("server", &leader.pairs, job, &asked)?;
    let whole: Pairs = leader.pairs.iter().chain(&pairs).cloned().collect();
    let spec = comment::spec(&whole, &leader.name)?;
    check_demands(&spec)?;
    let comment = short_enough(Part { pairs, asked, note: leader.note.clone() }.to_string())?;
    let (tres_per_node, tres_per_job) = (String::new(), String::new());
    Ok(Held { comment, begin: leader.begin, tres_per_node, tres_per_job, environment: Vec::new() })
}

/// The variables for the script: about the training, and about the programs that `trainmaster-step` starts while
/// nothing is decided. For a heterogeneous job (`apart`), a variable of the parameter servers is set only if the
/// description states its value. Otherwise the second component determines it.
fn environment(spec: &JobSpec, pairs: &Pairs, apart: bool) -> Vec<(&'static str, String)> {
    let has = |key: &str| pairs.iter().any(|(known, _)| known == key || known == "server");
    let amount = |role: &RoleSpec, name: &str| role.demand.get(name).copied().unwrap_or(0);
    let whole = |milli: i64| milli.max(0).unsigned_abs().div_ceil(1000).to_string();
    let mut told = spec.environment();
    let gpus = spec.worker.demand.iter().find(|(name, amount)| name.starts_with("gpu") && **amount > 0);
    told.push(("TRAINMASTER_WORKERS", spec.worker.requested.to_string()));
    told.push(("TRAINMASTER_WORKER_GPUS", whole(gpus.map_or(0, |(_, amount)| *amount))));
    told.push(("TRAINMASTER_WORKER_CPUS", whole(amount(&spec.worker, "cpu").max(1))));
    told.push(("TRAINMASTER_WORKER_MEMORY", amount(&spec.worker, "memory").to_string()));
    if let Some(server) = &spec.server {
        for (name, key, value) in [
            ("TRAINMASTER_SERVERS", "server.requested", server.requested.to_string()),
            ("TRAINMASTER_SERVER_CPUS", "server.cpu", whole(amount(server, "cpu").max(1))),
            ("TRAINMASTER_SERVER_MEMORY", "server.memory", amount(server, "memory").to_string()),
        ] {
            if !apart || has(key) {
                told.push((name, value));
            }
        }
    } else {
        told.push(("TRAINMASTER_SERVERS", "0".into()));
    }
    told
}

/// A job's partition also determines its label, which is the same for both roles.
pub(crate) fn two_partitions(workers: &str, servers: &str) -> String {
    let name = |name: &str| if name.is_empty() { "Slurm's default".to_owned() } else { format!("{name:?}") };
    format!(
        "--partition: {} for the workers and {} for the parameter servers must be the same; name it for both \
         components",
        name(workers),
        name(servers)
    )
}

fn short_enough(comment: String) -> Result<String, String> {
    let (has, most) = (comment.len(), LONGEST_COMMENT);
    if has > most {
        return Err(format!("comment: with what Trainmaster adds it has {has} bytes; Slurm keeps {most}"));
    }
    Ok(comment)
}

/// Checks that the roles are separate if they are components, and only then.
fn check_roles(pairs: &mut Pairs, job: &Submission) -> Result<JobSpec, String> {
    if job.component.is_none() {
        let spec = comment::spec(pairs, &job.name)?;
        return match spec.separate_roles {
            true => Err("separate_roles: true needs a component for each role: sbatch OPTIONS-OF-WORKERS : \
                         OPTIONS-OF-PARAMETER-SERVERS SCRIPT"
                .into()),
            false => Ok(spec),
        };
    }
    let given = |key: &str| pairs.iter().find(|(known, _)| known == key).map(|(_, value)| value.trim_matches('"'));
    if given("mode") == Some("allreduce") {
        return Err(
            "hetjob: mode=allreduce has no parameter servers for a second component; submit it without one".into()
        );
    }
    let (said, sized) = (given("separate_roles").is_some(), given("server").or(given("server.cpu")).is_some());
    if !said {
        pairs.push(("separate_roles".into(), "true".into()));
    }
    let mut whole = pairs.clone();
    if !sized {
        // The second component will set it.
        whole.push(("server.cpu".into(), "1".into()));
    }
    let spec = comment::spec(&whole, &job.name)?;
    if !spec.separate_roles {
        return Err("separate_roles: false is not allowed for a heterogeneous job: components share no node".into());
    }
    let gpus =
        spec.server.iter().flat_map(|role| &role.demand).find(|(name, amount)| name.starts_with("gpu") && **amount > 0);
    match gpus {
        Some((name, amount)) => Err(format!(
            "server.{name}: {} is not allowed: the second component, whose tasks are parameter servers, has no GPUs",
            *amount as f64 / 1000.0
        )),
        None => Ok(spec),
    }
}

fn check_options(job: &Submission) -> Result<(), String> {
    if job.script.is_none() && job.component.is_none_or(|offset| offset == 0) {
        return Err("salloc, srun: Trainmaster takes batch jobs only; use sbatch".into());
    }
    if !job.array.is_empty() {
        let array = &job.array;
        return Err(format!(
            "--array: {array:?} is not allowed: each training job is sized by itself; submit one job for each"
        ));
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

/// The request to Slurm in a form that can be changed later: GPUs per node or in total.
fn asked(job: &Submission) -> Result<Asked, String> {
    let nodes = (job.min_nodes.unwrap_or(0), job.max_nodes.or(job.min_nodes).unwrap_or(0));
    let tasks_per_node = job.tasks_per_node.unwrap_or(0);
    let tasks = job.tasks.or_else(|| nodes.0.max(1).checked_mul(tasks_per_node.max(1))).filter(|tasks| *tasks > 0);
    let tasks = tasks.ok_or_else(|| {
        format!("--ntasks: {} nodes of {tasks_per_node} tasks must be from 1 to {} in all", nodes.0, u32::MAX)
    })?;
    let cpus_per_task = job.cpus_per_task.unwrap_or(1);
    if tasks.checked_mul(cpus_per_task.max(tasks_per_node)).is_none() {
        return Err(format!("--cpus-per-task: {cpus_per_task} for {tasks} tasks must be at most {} in all", u32::MAX));
    }
    let mut asked = Asked {
        nodes,
        tasks,
        tasks_per_node,
        cpus_per_task,
        memory: job.memory,
        tres_per_node: job.tres_per_node.clone(),
        tres_per_job: job.tres_per_job.clone(),
    };
    // Slurm can't remove "per task" later, and the number of tasks will change.
    if let Some(per_task) = gpus("--gpus-per-task", &job.tres_per_task)? {
        let times =
            |count: u32| Gres { count: per_task.count.saturating_mul(count.into()), ..per_task.clone() }.to_string();
        let even = nodes.0 > 0 && nodes.0 == nodes.1 && tasks.is_multiple_of(nodes.0);
        match even {
            true => asked.tres_per_node = times(tasks / nodes.0),
            false => asked.tres_per_job = times(tasks),
        }
    }
    Ok(asked)
}

/// The single kind of GPU in a request. `None` if it contains no GPU.
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

/// The missing settings of a role, from sbatch's options. A task is a worker or a parameter server. In a heterogeneous
/// job's component, all tasks have its role.
fn defaults(role: &str, pairs: &Pairs, job: &Submission, asked: &Asked) -> Result<Pairs, String> {
    let key = |field: &str| format!("{role}.{field}");
    let given = |key: &str| pairs.iter().find(|(known, _)| known == key).map(|(_, value)| value);
    let mut defaults = Pairs::new();
    // `worker={…}` includes everything.
    if given(role).is_some() {
        return Ok(defaults);
    }
    let servers = if job.component.is_some() { 0 } else { servers_among(pairs) };
    let workers = asked.tasks.saturating_sub(servers).max(1);
    if given(&key("requested")).is_none() {
        // Within the owner's bounds.
        let bound = |field| given(&key(field)).and_then(|value| value.parse::<u32>().ok());
        let (least, most) = (bound("min").unwrap_or(1), bound("max").unwrap_or(u32::MAX));
        defaults.push((key("requested"), workers.clamp(least, most.max(least)).to_string()));
    }
    let gpu = key("gpu");
    if !pairs
        .iter()
        .any(|(known, _)| known.strip_prefix(&gpu).is_some_and(|rest| rest.is_empty() || rest.starts_with(':')))
        && let Some(gres) = gpus_of_a_worker(job, asked, servers)?
    {
        defaults.push((key(&gres.resource()), gres.count.to_string()));
    }
    // A task belongs to either role.
    let roles: &[&str] = if servers > 0 && given("server").is_none() { &[role, "server"] } else { &[role] };
    let open = |field: &str| -> Vec<String> {
        let keys = roles.iter().map(|role| format!("{role}.{field}"));
        keys.filter(|key| given(key).is_none()).collect()
    };
    defaults.extend(open("cpu").into_iter().map(|key| (key, asked.cpus_per_task.to_string())));
    let open = open("memory");
    if !open.is_empty() {
        let memory = match job.memory {
            Memory::Unset => None,
            Memory::PerCpu(each) => Some(each.saturating_mul(asked.cpus_per_task.into())),
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
        defaults
            .extend(memory.iter().flat_map(|memory| open.iter().map(move |key| (key.clone(), format!("{memory}MiB")))));
    }
    Ok(defaults)
}

/// The number of tasks on each node, if it is the same on all of them.
fn tasks_on_a_node(asked: &Asked) -> Option<u32> {
    let (least, most) = asked.nodes;
    if asked.tasks_per_node > 0 {
        return Some(asked.tasks_per_node);
    }
    let nodes = if least == 0 && asked.tasks == 1 { 1 } else { least };
    (nodes > 0 && (least == most || asked.tasks == 1) && asked.tasks.is_multiple_of(nodes)).then(|| asked.tasks / nodes)
}

/// The number of parameter servers among a job's tasks, if its owner specifies any.
fn servers_among(pairs: &Pairs) -> u32 {
    let number = |key: &str| pairs.iter().find(|(known, _)| known == key).and_then(|(_, value)| value.parse().ok());
    let any = pairs.iter().any(|(known, _)| known.starts_with("server."));
    if any { number("server.requested").or_else(|| number("server.min")).unwrap_or(1) } else { 0 }
}

/// The GPUs of each worker. The tasks that are workers share all GPUs.
fn gpus_of_a_worker(job: &Submission, asked: &Asked, servers: u32) -> Result<Option<Gres>, String> {
    let tasks = asked.tasks;
    let workers = tasks.saturating_sub(servers).max(1);
    let uneven = |option: &str, gres: &Gres, what: String| {
        let who = if servers > 0 { format!("{workers} workers among {tasks} tasks") } else { format!("{tasks} tasks") };
        Err(format!(
            "{option}: {gres} {what} can't be shared equally by {who}; use --gpus-per-task, or give worker.gpu and \
             worker.requested, or server.requested"
        ))
    };
    if let Some(gres) = gpus("--gpus-per-task", &job.tres_per_task)? {
        return Ok(Some(gres));
    }
    if let Some(gres) = gpus("--gres", &asked.tres_per_node)? {
        // Workers are spread evenly over the nodes, as all tasks are.
        let on_node = tasks_on_a_node(asked)
            .map(|on_node| tasks / on_node.max(1))
            .and_then(|nodes| (nodes > 0 && workers.is_multiple_of(nodes)).then(|| workers / nodes));
        return match on_node.filter(|workers| *workers > 0 && gres.count % u64::from(*workers) == 0) {
            Some(workers) => Ok(Some(Gres { count: gres.count / u64::from(workers), ..gres })),
            None => uneven("--gres", &gres, "a node".into()),
        };
    }
    match gpus("--gpus", &asked.tres_per_job)? {
        Some(gres) if gres.count % u64::from(workers) == 0 => {
            Ok(Some(Gres { count: gres.count / u64::from(workers), ..gres }))
        }
        Some(gres) => uneven("--gpus", &gres, "in all".into()),
        None => Ok(None),
    }
}

/// Checks that Slurm can reserve the demand: whole GPUs, CPUs and custom resources.
fn check_demands(spec: &JobSpec) -> Result<(), String> {
    for (key, role) in [("worker", Some(&spec.worker)), ("server", spec.server.as_ref())] {
        let Some(role) = role else { continue };
        for (name, amount) in role.demand.iter().filter(|(name, _)| !matches!(name.as_str(), "memory" | "bandwidth")) {
            if name.starts_with("gpu:") && name.contains('|') {
                return Err(format!(
                    "{key}.\"{name}\": Slurm can't change the type of a job's GPUs; name one type, or none"
                ));
            }
            let counted = !matches!(name.as_str(), "disk" | "cpu");
            if counted && amount % 1000 != 0 {
                let value = *amount as f64 / 1000.0;
                return Err(format!("{key}.{name}: {value} must be a whole number: Slurm shares none out"));
            }
        }
    }
    Ok(())
}
