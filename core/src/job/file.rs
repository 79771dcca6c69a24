//! The TOML job file.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, de::DeserializeOwned, de::Error as _};
use thiserror::Error;
use toml::{Table, Value};

use super::{
    launcher::Elastic, launcher::Launcher, sizes::Parallel, sizes::Sizes, spec::Convergence, spec::Dataset,
    spec::JobSpec, spec::JobSpecError, spec::Partition, spec::ProfiledSpeed, spec::Resize, spec::RoleSpec,
    spec::StopChoice, spec::TrainingMode, surroundings::Surroundings, utility::Utility,
};
#[cfg(feature = "schema")]
use crate::amount::{DurationText, SizeText};
use crate::{
    amount::Unit,
    batch::BatchRange,
    forms,
    text::{in_plain_words, read_toml, shown},
    time::Span,
    topology::Topology,
};

#[cfg(feature = "schema")]
mod schema;

/// Maximum size of a job file in bytes. Handwritten files have about a hundredth of it.
pub const LONGEST_FILE: usize = 64 << 10;

/// Maximum characters of a value in error messages.
const SHOWN: usize = 100;

/// A job file that can't be read.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum JobFileError {
    /// The file is too long, nested too deeply, not TOML, or has an unknown key or a value of the wrong type. The text
    /// names the line.
    #[error("{0}")]
    Syntax(String),
    /// A value that isn't allowed.
    #[error(transparent)]
    Spec(#[from] JobSpecError),
}

/// The keys of the file. They aren't [`JobSpec`]'s fields, because some defaults are the values of other keys.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(super) struct File {
    /// Unique among active jobs; not only digits.
    name: String,
    /// The kind of network; jobs of one model and tenant share measured speeds. Without the key: the name.
    model: Option<String>,
    /// The tenant that the job counts for. Without the key: `default`.
    tenant: Option<String>,
    /// The queue that the job counts for. Without the key: `default`.
    queue: Option<String>,
    /// Engines that use priorities prefer higher ones; a site can cap it.
    #[serde(default)]
    priority: i32,
    /// Which roles may be resized while the job runs.
    #[serde(default)]
    resize: Resize,
    /// How workers exchange gradients.
    #[serde(default)]
    mode: TrainingMode,
    /// Examples per step, or the range from which the scheduler may choose. Without the key: 1.
    #[cfg_attr(feature = "schema", schemars(with = "Option<schema::Batch>"))]
    batch: Option<Value>,
    /// Examples per epoch. 0: only the program knows.
    #[serde(default)]
    examples: u64,
    /// A fixed number of epochs, in place of `convergence`.
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    epochs: Option<u32>,
    /// When the job has converged.
    convergence: Option<Convergence>,
    /// What one worker needs, and how many there may be.
    #[cfg_attr(feature = "schema", schemars(with = "schema::Role"))]
    worker: Table,
    /// What one parameter server needs, and how many there may be. Not with `allreduce`.
    #[cfg_attr(feature = "schema", schemars(with = "Option<schema::Role>"))]
    server: Option<Table>,
    /// No server has both workers and parameter servers of the job.
    #[serde(default)]
    separate_roles: bool,
    /// Size of the parameters.
    #[serde(default, with = "forms::mebibytes")]
    #[cfg_attr(feature = "schema", schemars(with = "SizeText"))]
    model_size: i64,
    /// The worth of an early completion.
    utility: Option<Utility>,
    /// Time from the job's arrival within which it should end.
    #[serde(default, with = "forms::optional_span")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<DurationText>"))]
    deadline: Option<Span>,
    /// The accuracy that the owner requests.
    accuracy: Option<f64>,
    /// How urgent the job is, for engines that use it.
    urgency: Option<u32>,
    /// When training may end before its convergence rule says so.
    #[serde(default)]
    stop: StopChoice,
    /// As `stop`, while jobs wait for room. Without the key: the value of `stop`.
    stop_under_load: Option<StopChoice>,
    /// Training data, for engines that schedule chunks.
    dataset: Option<Dataset>,
    /// The parts into which the model is cut: how many, or a list.
    partitions: Option<Partitions>,
    /// What a server must have.
    #[serde(default)]
    constraints: Constraints,
    /// How close the job's slots must be.
    #[serde(default, deserialize_with = "table")]
    topology: Closeness,
    /// How the model is cut for tensor, pipeline and expert parallelism.
    #[serde(default, deserialize_with = "table")]
    parallel: Cut,
    /// How the job's processes start. Without the key: by the command.
    #[cfg_attr(feature = "schema", schemars(with = "Option<schema::Launchers>"))]
    launcher: Option<String>,
    /// What a change of the number of workers does to the processes. Without the key: by the launcher.
    #[cfg_attr(feature = "schema", schemars(with = "Option<schema::Elasticity>"))]
    elastic: Option<String>,
    /// Processes of one worker. Without the key: one per GPU.
    #[cfg_attr(feature = "schema", schemars(with = "Option<u32>"))]
    nproc_per_node: Option<Value>,
    /// The folder in which commands run. Without the key: the manager's.
    workdir: Option<String>,
    /// The folder of the job's checkpoints, from `workdir` on.
    checkpoints: Option<String>,
    /// Variables of the commands' environment.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// Maximum time of the job.
    #[serde(default, with = "forms::optional_span")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<DurationText>"))]
    time_limit: Option<Span>,
    /// Time that a restart costs, until one was measured.
    #[serde(default, with = "forms::optional_span")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<DurationText>"))]
    restart_cost: Option<Span>,
    /// Speeds measured before.
    #[serde(default)]
    profile: Vec<ProfiledSpeed>,
}

/// The submitted batch, and the labels of the range that the scheduler may choose from: whatever stands there, so that
/// one check names what is wrong.
type Batch = (u64, Vec<(&'static str, Option<String>)>);

/// Reads a number of examples, or a table with a range.
fn batch(value: Value) -> Result<Batch, JobSpecError> {
    const ALLOWED: &str = "a number of examples, or a table such as { size = 64, max = 4096, local = 128 }";
    let number = |key: &str, value: &Value| {
        let number = value.as_integer().and_then(|number| u64::try_from(number).ok()).filter(|number| *number > 0);
        let value = value.to_string();
        number.ok_or_else(|| {
            wrong(key, format!("{} must be a whole number of examples, at least 1", shown(&value, SHOWN)))
        })
    };
    let table = match value {
        Value::Table(table) => table,
        Value::Integer(_) => return Ok((number("batch", &value)?, Vec::new())),
        other => return Err(wrong("batch", format!("{} must be {ALLOWED}", shown(&other.to_string(), SHOWN)))),
    };
    let known = ["size", "min", "max", "local"];
    if let Some(key) = table.keys().find(|key| !known.contains(&key.as_str())) {
        let key = format!("batch.{}", shown(key, SHOWN));
        return Err(wrong(&key, format!("unknown key; allowed are {}", known.join(", "))));
    }
    // A job starts with the smallest batch, if the file doesn't say another.
    let (key, size) = match (table.get("size"), table.get("min")) {
        (Some(size), _) => ("batch.size", size),
        (None, Some(min)) => ("batch.min", min),
        (None, None) => {
            return Err(wrong(
                "batch.size",
                "is missing: the number of examples with which the job starts, unless that is min",
            ));
        }
    };
    let label = |(label, key): (&'static str, &str)| (label, table.get(key).map(ToString::to_string));
    Ok((number(key, size)?, BatchRange::LABELS.into_iter().zip(["min", "max", "local"]).map(label).collect()))
}

/// The number of equal parts in a chain, or a list of parts.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "write how many, or a list such as [{ parameters = 1000 }, { parameters = 500, after = [0] }]"
)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
enum Partitions {
    /// Equal parts in a chain.
    Count(u32),
    /// The parts.
    List(Vec<Partition>),
}

impl Partitions {
    fn parts(self) -> Vec<Partition> {
        match self {
            // Counts above the allowed maximum are cut off before the parts are created. The check refuses them anyway.
            Self::Count(count) => Partition::chain(count.min(u32::from(u16::MAX))),
            Self::List(parts) => parts,
        }
    }
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct Constraints {
    /// Labels that a server must have.
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

/// Reads a table. Without this, an array would do as well, with values in the order of the fields.
fn table<'de, D: Deserializer<'de>, T: DeserializeOwned>(from: D) -> Result<T, D::Error> {
    T::deserialize(Table::deserialize(from)?).map_err(D::Error::custom)
}

/// The job's [`Topology`], as the file has it.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct Closeness {
    /// The level that must hold all slots: `server`, `rack`, `block` or `zone`.
    require: Option<String>,
    /// The level that should hold them.
    prefer: Option<String>,
}

impl Closeness {
    fn labels(self) -> [(&'static str, Option<String>); 2] {
        [(Topology::REQUIRE, self.require), (Topology::PREFER, self.prefer)]
    }
}

/// The job's [`Parallel`], as the file has it.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct Cut {
    /// GPUs that share each layer.
    #[cfg_attr(feature = "schema", schemars(with = "Option<u32>"))]
    tp: Option<Value>,
    /// Stages of the pipeline.
    #[cfg_attr(feature = "schema", schemars(with = "Option<u32>"))]
    pp: Option<Value>,
    /// Replicas that share the experts.
    #[cfg_attr(feature = "schema", schemars(with = "Option<u32>"))]
    ep: Option<Value>,
}

impl Cut {
    /// Whatever stands there, so that one check names what is wrong.
    fn labels(self) -> [(&'static str, Option<String>); 3] {
        let [t, p, e] = [self.tp, self.pp, self.ep].map(|value| value.map(|value| value.to_string()));
        let [tp, pp, ep] = Parallel::LABELS;
        [(tp, t), (pp, p), (ep, e)]
    }
}

/// Adds what the file says in keys of its own to the labels, which are its only form outside of files.
fn add(
    labels: &mut BTreeMap<String, String>,
    more: impl IntoIterator<Item = (&'static str, Option<String>)>,
) -> Result<(), JobSpecError> {
    for (label, value) in more.into_iter().filter_map(|(label, value)| Some((label, value?))) {
        if labels.insert(label.into(), value).is_some() {
            return Err(wrong(label, "stands in constraints.labels, too; leave one of them out"));
        }
    }
    Ok(())
}

pub(super) fn parse(text: &str) -> Result<JobSpec, JobFileError> {
    build(read_toml(text, LONGEST_FILE).map_err(|error| JobFileError::Syntax(error.to_string()))?)
}

/// Reads a table. It has no line numbers, so errors name the key.
pub(super) fn read(table: Table) -> Result<JobSpec, JobFileError> {
    let given = table.clone();
    build(File::deserialize(table).map_err(|error| {
        let text = error.to_string();
        let mut lines = text.lines().map(str::trim);
        let problem = lines.next().unwrap_or_default();
        // The library appends the key to its message as "in `a.b`". With the value it reads like other errors.
        let key = lines.find_map(|line| line.strip_prefix("in `")?.strip_suffix('`'));
        match key {
            Some(key) => {
                // Quantities name their value already.
                let value = value_at(&given, key).filter(|value| !problem.starts_with(value));
                let value = value.as_ref().map(|value| shown(value, SHOWN));
                let problem = in_plain_words(problem);
                wrong(key, value.map_or(problem.clone(), |value| format!("{value}: {problem}"))).into()
            }
            None => JobFileError::Syntax(in_plain_words(problem)),
        }
    })?)
}

fn value_at(table: &Table, key: &str) -> Option<String> {
    let mut segments = key.split('.');
    let first = table.get(segments.next()?)?;
    segments.try_fold(first, |value, segment| value.get(segment)).map(ToString::to_string)
}

fn build(file: File) -> Result<JobSpec, JobFileError> {
    let mut labels = file.constraints.labels;
    let Role { spec: worker, sizes, max: worker_max, requested: worker_requested } = role("worker", file.worker)?;
    add(&mut labels, file.topology.labels())?;
    add(&mut labels, file.parallel.labels())?;
    add(&mut labels, [(Sizes::LABEL, sizes)])?;
    let fixed = file.elastic.as_deref() == Some("fixed");
    add(&mut labels, [(Launcher::LABEL, file.launcher), (Elastic::LABEL, file.elastic.filter(|_| !fixed))])?;
    add(&mut labels, [(Launcher::PROCESSES, file.nproc_per_node.map(|number| number.to_string()))])?;
    let (batch, range) = file.batch.map_or(Ok((1, Vec::new())), batch)?;
    add(&mut labels, range)?;
    let server = file.server.map(|table| role("server", table)).transpose()?;
    if server.as_ref().is_some_and(|server| server.sizes.is_some()) {
        return Err(wrong("server.sizes", "has no meaning: only the number of workers can be restricted").into());
    }
    let partitions = match file.partitions {
        Some(Partitions::Count(0)) => return Err(wrong("partitions", "0 must be at least 1").into()),
        given => given.map_or_else(Vec::new, Partitions::parts),
    };
    let mut spec = JobSpec {
        model: file.model.unwrap_or_else(|| file.name.clone()),
        name: file.name,
        tenant: file.tenant.unwrap_or_else(|| "default".into()),
        queue: file.queue.unwrap_or_else(|| "default".into()),
        priority: file.priority,
        resize: if fixed { Resize::Fixed } else { file.resize },
        mode: file.mode,
        batch,
        examples: file.examples,
        convergence: convergence(file.epochs, file.convergence)?,
        worker,
        server: server.map(|server| server.spec),
        separate_roles: file.separate_roles,
        model_size: file.model_size,
        utility: file.utility,
        deadline: file.deadline,
        accuracy: file.accuracy,
        stop: file.stop,
        stop_under_load: file.stop_under_load.unwrap_or(file.stop),
        urgency: file.urgency,
        partitions,
        dataset: file.dataset,
        labels,
        time_limit: file.time_limit,
        restart_cost: file.restart_cost,
        profile: file.profile,
    };
    spec.count_workers(worker_max, worker_requested);
    spec.infer_start();
    spec.validate_new()?;
    let around = Surroundings { folder: file.workdir, checkpoints: file.checkpoints, variables: file.env };
    let words = around.words().map_err(|(key, problem)| wrong(key, problem))?;
    if !words.is_empty() {
        if spec.worker.command.trim().is_empty() {
            return Err(wrong("worker.command", "is missing: workdir, checkpoints and env are for a command").into());
        }
        spec.start_with(&words);
        spec.validate_new()?;
    }
    Ok(spec)
}

/// `epochs = N` is the rule that N epochs are trained, whatever the losses.
fn convergence(epochs: Option<u32>, rule: Option<Convergence>) -> Result<Convergence, JobSpecError> {
    match (epochs, rule) {
        (None, rule) => Ok(rule.unwrap_or_default()),
        (Some(0), _) => Err(wrong("epochs", "0 must be at least 1")),
        (Some(epochs), None) => Ok(Convergence::after(epochs)),
        (Some(epochs), Some(_)) => Err(wrong(
            "epochs",
            format!("{epochs} is a fixed number, so `convergence` has no use; leave one of them out"),
        )),
    }
}

fn wrong(key: &str, problem: impl ToString) -> JobSpecError {
    JobSpecError { key: key.into(), problem: problem.to_string() }
}

const ROLE_KEYS: &str =
    "gpu, \"gpu:<type>\", cpu, memory, disk, bandwidth, resources, min, max, requested, sizes and command";

/// A role's table.
struct Role {
    spec: RoleSpec,
    max: Option<u32>,
    requested: Option<u32>,
    /// The label's value.
    sizes: Option<String>,
}

fn role(key: &str, table: Table) -> Result<Role, JobSpecError> {
    let mut role = RoleSpec { min: 1, ..RoleSpec::default() };
    let (mut max, mut requested, mut listed) = (None, None, None);
    for (field, value) in table {
        let path = format!("{key}.{field}");
        match field.as_str() {
            "min" => role.min = count(&path, &value)?,
            "max" => max = Some(count(&path, &value)?),
            "requested" => requested = Some(count(&path, &value)?),
            "sizes" => listed = Some(sizes(&path, &value)?),
            "command" => match value {
                Value::String(text) => role.command = text,
                other => return Err(wrong(&path, format!("{other} must be a string"))),
            },
            "resources" => {
                let Value::Table(custom) = value else {
                    return Err(wrong(&path, "must be a table of names and amounts"));
                };
                for (name, value) in custom {
                    let amount = quantity(&format!("{path}.{name}"), &name, &value)?;
                    role.demand.insert(name, amount);
                }
            }
            "gpu" | "cpu" | "memory" | "disk" | "bandwidth" => {
                let amount = quantity(&path, &field, &value)?;
                role.demand.insert(field, amount);
            }
            typed if typed.starts_with("gpu:") && typed.len() > 4 => {
                let amount = quantity(&path, &field, &value)?;
                role.demand.insert(field, amount);
            }
            _ => return Err(wrong(&path, format!("unknown key; allowed are {ROLE_KEYS}"))),
        }
    }
    // `requested` is the default of `max`.
    role.requested = requested.unwrap_or(role.min);
    role.max = max.unwrap_or(role.requested);
    Ok(Role { spec: role, max, requested, sizes: listed })
}

/// A text, a number or a list of numbers.
fn sizes(path: &str, value: &Value) -> Result<String, JobSpecError> {
    let number = |value: &Value| value.as_integer().map(|number| number.to_string());
    let text = match value {
        Value::String(text) => Some(text.clone()),
        Value::Array(all) => all.iter().map(number).collect::<Option<Vec<_>>>().map(|all| all.join(",")),
        other => number(other),
    };
    let allowed = "must be a list such as [1, 2, 4], \"multiples of 4\" or \"powers of 2\"";
    text.ok_or_else(|| wrong(path, format!("{} {allowed}", shown(&value.to_string(), SHOWN))))
}

fn count(path: &str, value: &Value) -> Result<u32, JobSpecError> {
    let number = value.as_integer().and_then(|number| u32::try_from(number).ok());
    number.ok_or_else(|| wrong(path, format!("{value} must be a whole number from 0 to {}", u32::MAX)))
}

fn quantity(path: &str, name: &str, value: &Value) -> Result<i64, JobSpecError> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        other => return Err(wrong(path, format!("{other} must be a quantity"))),
    };
    Unit::of(name).parse(&text).map_err(|error| wrong(path, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_names_every_key_and_its_examples_are_valid() {
        let page = include_str!("../../../docs/job-files.md");
        let unknown = |text: &str| {
            let error = JobSpec::from_toml(&format!("name = \"a\"\n{text}")).unwrap_err().to_string();
            let list = error.split_once("expected one of ").expect(&error).1.to_owned();
            list.split('`').skip(1).step_by(2).map(ToOwned::to_owned).collect::<Vec<_>>()
        };
        let mut keys = unknown("nothing = 1");
        keys.extend(unknown("dataset = { nothing = 1 }"));
        keys.extend(unknown("convergence = { nothing = 1 }"));
        keys.extend(unknown("utility = { nothing = 1 }"));
        keys.extend(ROLE_KEYS.split(", ").flat_map(|keys| keys.split(" and ")).map(ToOwned::to_owned));
        assert!(keys.len() > 45, "{keys:?}");
        let missing: Vec<_> = keys.iter().filter(|key| !page.contains(&format!("`{key}`"))).collect();
        assert!(missing.is_empty(), "{missing:?}");
        let example = page.split("```").nth(1).and_then(|text| text.strip_prefix("toml")).expect("an example");
        let spec = JobSpec::from_toml(example).unwrap();
        assert_eq!((spec.worker.requested, spec.worker.max, spec.convergence.fixed()), (1, 8, Some(90)));
    }

    const WHOLE: &str = r#"
        name = "resnet50"
        model = "resnet50"
        tenant = "vision"
        queue = "batch"
        priority = 1
        resize = "workers"
        mode = "sync"
        batch = 256
        examples = 50000
        convergence = { delta = 0.01, patience = 3, max_epochs = 200 }
        worker.gpu = 1
        worker.cpu = 4
        worker.memory = "10GiB"
        worker.bandwidth = "1Gbit"
        worker.min = 1
        worker.max = 16
        worker.requested = 4
        worker.command = "train"
        server = { cpu = 4, memory = "10GiB", bandwidth = "5Gbit", max = 16, requested = 2 }
        separate_roles = true
        model_size = "100MiB"
        utility = { kind = "sigmoid", value = 50, decay = 0.5, target = "6h" }
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
    fn every_documented_key_is_read() {
        let spec = parse(WHOLE).unwrap();
        assert_eq!(spec.resize, Resize::Workers);
        assert_eq!(spec.worker.demand["bandwidth"], 1000);
        assert_eq!((spec.worker.min, spec.worker.max, spec.worker.requested), (1, 16, 4));
        assert_eq!(spec.bounds().servers, (2, 2));
        assert_eq!(spec.deadline, Some(Span::seconds(12 * 3600)));
        assert_eq!(spec.labels["zone"], "a");
        assert!(spec.separate_roles);
        assert_eq!(spec.profile.len(), 1);
        let data = spec.dataset.clone().unwrap();
        assert_eq!((data.batch_time, data.chunk_size), (Some(Span(250)), 64));
        assert_eq!((spec.stop, spec.stop_under_load), (StopChoice::Optimal, StopChoice::Accuracy));
        let cut = |parts: &str| {
            let text = format!(
                "name = \"a\"\nmode = \"allreduce\"\nresize = \"fixed\"\nworker = {{ cpu = 1, requested = 6 }}\n\
                 partitions = {parts}"
            );
            parse(&text).map(|spec| spec.partitions).map_err(|error| error.to_string())
        };
        assert_eq!(cut("3").unwrap(), cut("[{}, { after = [0] }, { after = [1] }]").unwrap());
        let tree = cut("[{ parameters = 10 }, { parameters = 20, after = [0] }]").unwrap();
        assert_eq!((tree[1].parameters, &tree[1].after[..]), (20, &[0][..]));
        let partitions = cut("[{}, {}, { after = [0, 1] }]").unwrap();
        let environment = JobSpec { partitions, ..JobSpec::minimal("a") }.environment();
        assert!(environment.contains(&("TRAINMASTER_PARTITIONS", "3".into())));
        assert!(environment.contains(&("TRAINMASTER_PARTITIONS_AFTER", "-:-:0+1".into())));
        for (parts, expected) in [
            ("4", "worker.requested: 6 must be a multiple of the 4"),
            ("1000", "at most 256"),
            ("[{}, { after = [1] }]", "partitions[1].after: 1 must be"),
            ("[{}, { after = [0, 0] }]", "twice"),
            ("\"two\"", "write how many"),
        ] {
            let error = cut(parts).unwrap_err();
            assert!(error.contains(expected), "{parts}: {error}");
        }
        let sized = |rest: &str| parse(&format!("name = \"a\"\nmode = \"allreduce\"\n{rest}")).unwrap();
        for (text, counts) in [
            ("worker = { gpu = 1, sizes = [4, 8] }", (1, 4, 4)),
            ("worker = { gpu = 1, min = 3, max = 20, sizes = \"powers of 2\" }", (3, 4, 20)),
            ("worker = { gpu = 4, max = 8 }\nparallel = { tp = 4, pp = 2 }", (1, 2, 8)),
            ("worker = { \"gpu:a|b\" = 2, max = 12, sizes = \"multiples of 3\" }\nparallel = { tp = 4 }", (1, 6, 12)),
        ] {
            let worker = sized(text).worker;
            assert_eq!((worker.min, worker.requested, worker.max), counts, "{text}");
        }
        let counted = parse("name = \"a\"\nmode = \"allreduce\"\nworker = { cpu = 1 }\nepochs = 90").unwrap();
        assert_eq!((counted.convergence.fixed(), spec.convergence.fixed()), (Some(90), None));
        let table = "name = \"a\"\nmode = \"allreduce\"\nworker = { cpu = 1 }\n\
                     utility = { kind = \"table\", value = 50, points = [[\"6h\", 20], [\"12h\", 0.5]] }";
        let utility = parse(table).unwrap().utility.unwrap();
        assert_eq!(utility.points, [(Span::seconds(6 * 3600), 20.0), (Span::seconds(12 * 3600), 0.5)]);
    }

    #[test]
    fn mistakes_are_named() {
        let with = |line: &str| format!("name = \"a\"\nmode = \"allreduce\"\n{line}");
        for (text, expected) in [
            (with("worker = { gpu = 1.5 }"), "worker.gpu"),
            (with("worker = { gpu = -1 }"), "negative"),
            (with("worker = { memory = 10 }"), "10GiB"),
            (with("worker = { memroy = \"1GiB\" }"), "worker.memroy"),
            (with("worker = { gpu = 1, min = 3, max = 2 }"), "min = 3"),
            (with("worker = { gpu = 0 }"), "worker.cpu"),
            (with("worker = { gpu = 1 }\nserver = { cpu = 1 }"), "allreduce"),
            (with("worker = { gpu = 1 }\nbatches = 2"), "batches"),
            (with("worker = { gpu = 1 }\nseparate_roles = true"), "separate_roles"),
            (with("worker = { gpu = 1, sizes = \"even\" }"), "worker.sizes: \"even\" must be a number of workers"),
            (with("worker = { gpu = 1, sizes = { of = 2 } }"), "worker.sizes: { of = 2 } must be a list"),
            (with("worker = { gpu = 1, sizes = [1, \"2\"] }"), "worker.sizes: [1, \"2\"] must be a list"),
            (with("worker = { gpu = 1, sizes = [] }"), "worker.sizes: \"\" must be one number or more"),
            (
                with("worker = { gpu = 1, max = 8, requested = 3, sizes = [2, 4] }"),
                "3 isn't one of the job's sizes (2,4); \
                ask for 2 or 4",
            ),
            (
                with("worker = { gpu = 1, min = 5, max = 7, sizes = [2, 4, 8] }"),
                "none is from worker.min = 5 to \
                worker.max = 7",
            ),
            (
                with("worker = { gpu = 1, max = 4 }\nparallel = { tp = 4, pp = 2 }"),
                "parallel: tp = 4, pp = 2, ep = 1 need a multiple of 8 workers with 1 GPUs each, and worker.max is 4",
            ),
            (with("worker = { gpu = 1, max = 4 }\nparallel = { tp = 0 }"), "parallel.tp: \"0\" must be a whole number"),
            (
                with("worker = { gpu = 1, max = 4 }\nparallel = { tp = -1 }"),
                "parallel.tp: \"-1\" must be a whole number",
            ),
            (
                with("worker = { gpu = 1, max = 4 }\nparallel = { pp = 1.5 }"),
                "parallel.pp: \"1.5\" must be a whole number",
            ),
            (with("worker = { gpu = 1, max = 4 }\nparallel = { dp = 1 }"), "unknown field `dp`"),
            (with("worker = { gpu = 1, max = 4 }\nparallel = [2, 2]"), "expected a table"),
            (with("worker = { gpu = 1, max = 4 }\ntopology = [\"rack\", \"server\"]"), "expected a table"),
            (
                with("worker = { gpu = 1, max = 10000 }\nparallel = { tp = 1024, pp = 1024, ep = 1024 }"),
                "a multiple of 1073741824 workers",
            ),
            (
                with("worker = { gpu = 1, sizes = [1] }\nconstraints = { labels = { \"worker.sizes\" = \"2\" } }"),
                "worker.sizes: stands in constraints.labels, too",
            ),
            (
                with(
                    "worker = { gpu = 1, max = 4, sizes = [4] }\ndataset = { chunks = 1, batches_per_chunk = 1, \
                    epochs = 1 }",
                ),
                "worker.sizes: can't be used with a dataset",
            ),
            (
                "name = \"x\"\nworker = { cpu = 1 }\nserver = { cpu = 1, sizes = [2] }".into(),
                "server.sizes: has no meaning",
            ),
            ("name = \"x\"\nworker = { cpu = 1 }\nserver = { cpu = 1 }\nseparate_roles = 1".into(), "true or false"),
            (with("worker = { gpu = 1 }\ndeadline = \"soon\""), "deadline"),
            (with("worker = { gpu = 1 }\npartitions = 2"), "resize"),
            (with("worker = { gpu = 1 }\nstop = \"accuracy\""), "accuracy = 0.9"),
            (with("worker = { gpu = 1 }\nstop = \"soon\""), "`optimal`"),
            (with("worker = { gpu = 1 }\nstop = \"optimal\"\nstop_under_load = \"epochs\""), "stop_under_load"),
            (with("worker = { gpu = 1, \"gpu:a100\" = 1 }"), "one kind"),
            (with("worker = { \"gpu:a100|\" = 1 }"), "2 to 8 types"),
            (with("worker = { \"gpu:a|b|c|d|e|f|g|h|i\" = 1 }"), "2 to 8 types"),
            (with("worker = { \"gpu:a|b|a\" = 1 }"), "lists gpu:a twice"),
            (with("worker = { \"gpu:a|b c\" = 1 }"), "without spaces"),
            (with("worker = { \"gpu:a|*\" = 1 }"), "lists \"gpu:*\""),
            (with(&format!("worker = {{ \"gpu:a|{}\" = 1 }}", "x".repeat(60_000))), "at most 512 bytes"),
            (with("worker = { \"gpu:a|b\" = 1.5 }"), "whole number or a fraction"),
            ("name = \"a\"\nworker = { gpu = 1 }\nserver = { \"gpu:a|b\" = 1 }".into(), "only workers"),
            (with("worker = { gpu = 1 }\nconvergence = { delta = 2.0 }"), "convergence.delta"),
            (with("worker = { gpu = 1 }\nepochs = 9\nconvergence = { delta = 0.1 }"), "epochs: 9 is a fixed number"),
            (with("worker = { gpu = 1 }\nepochs = 0"), "epochs: 0 must be at least 1"),
            (with("worker = { gpu = 1 }\nprofile = [{ p = 1, w = 1, speed = 1.0 }]"), "profile[0]"),
            (with("worker = { gpu = 1 }\nutility = { kind = \"table\", value = 1 }"), "utility.points"),
            (with("worker = { gpu = 1 }\nutility = { kind = \"step\", value = -1 }"), "utility.value"),
            (
                with("worker = { gpu = 1 }\ndataset = { chunks = 0, batches_per_chunk = 1, epochs = 1 }"),
                "dataset.chunks",
            ),
            ("name = \"../x\"\nworker = { cpu = 1 }\nserver = { cpu = 1 }".into(), "name"),
            ("name = \"-x\"\nworker = { cpu = 1 }\nserver = { cpu = 1 }".into(), "name"),
            ("name = \"x\"\nworker = { cpu = 1 }".into(), "server"),
            ("name = \"17\"\nworker = { cpu = 1 }\nserver = { cpu = 1 }".into(), "number"),
        ] {
            let message = parse(&text).unwrap_err().to_string();
            assert!(message.contains(expected), "{text}\n{message}");
        }
    }
}
