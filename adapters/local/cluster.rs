//! The cluster file. It divides this machine into virtual servers.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Deserialize;
use toml::Value;
use trainmaster_core::amount::parse_span;
use trainmaster_proto::v1;

use super::RunAs;
use crate::file::{self, FileError, MEASURE, MOST_DEVICES, Wrong, amount, check_name, quoted};

const MOST_SERVERS: u32 = 4096;

/// The virtual servers of this machine, and the settings for all of them.
///
/// # Examples
/// ```
/// use trainmaster_adapters::local::Cluster;
/// let cluster = Cluster::parse(
///     r#"
///     grace = "5s"
///     [[server]]
///     name = "big"
///     gpu = ["a100", "a100"]
///     cpu = 16
///     memory = "64GiB"
///     count = 2
///     "#,
///     "cluster.toml",
/// )?;
/// assert_eq!(cluster.servers()[1].name(), "big-1");
/// assert_eq!(cluster.servers()[1].capacity()["memory"], 64 * 1024);
/// # Ok::<(), trainmaster_adapters::FileError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    name: String,
    grace: Duration,
    measure: Option<Duration>,
    device_milli: u64,
    real_gpus: bool,
    run_as: Option<RunAs>,
    servers: Vec<VirtualServer>,
}

/// A part of this machine that is a server for the scheduler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VirtualServer {
    name: String,
    capacity: BTreeMap<String, i64>,
    devices: Vec<String>,
    labels: BTreeMap<String, String>,
    first_device: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: Option<String>,
    grace: Option<String>,
    measure: Option<String>,
    /// The alias is the former name.
    #[serde(alias = "overbook")]
    oversubscribe: Option<f64>,
    #[serde(default)]
    real_gpus: bool,
    user: Option<String>,
    folder: Option<PathBuf>,
    #[serde(default)]
    server: Vec<ServerTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ServerTable {
    name: String,
    gpu: Option<Value>,
    cpu: Option<Value>,
    memory: Option<Value>,
    disk: Option<Value>,
    bandwidth: Option<Value>,
    #[serde(default)]
    resources: BTreeMap<String, Value>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    count: Option<u32>,
}

impl Cluster {
    /// Reads a cluster file.
    ///
    /// # Errors
    /// The file can't be read, or [`parse`](Self::parse) refuses it.
    pub fn load(path: &Path) -> Result<Self, FileError> {
        Self::parse(&file::read(path)?, &path.display().to_string())
    }

    /// Parses the text of a cluster file. `origin` is its name in errors.
    ///
    /// # Errors
    /// Each error names the file, the key, the value and the allowed values.
    pub fn parse(text: &str, origin: &str) -> Result<Self, FileError> {
        file::parse(text, origin, Self::understand)
    }

    fn understand(file: File) -> Result<Self, Wrong> {
        let name = file.name.unwrap_or_else(|| "local".into());
        check_name(&name).map_err(|problem| ("name".to_owned(), quoted(&name), problem))?;
        let grace = match file.grace {
            None => Duration::from_secs(10),
            Some(text) => {
                let span = parse_span(&text).map_err(|error| ("grace".to_owned(), quoted(&text), error.to_string()))?;
                Duration::from_millis(span.0.unsigned_abs())
            }
        };
        let measure = file.measure.as_deref().map_or(Ok(Some(MEASURE)), file::measure)?;
        let device_milli = match file.oversubscribe {
            None => 1000,
            Some(times) if (1.0..=8.0).contains(&times) => (times * 1000.0).round() as u64,
            Some(times) => return Err(("oversubscribe".into(), times.to_string(), "must be from 1 to 8".into())),
        };
        let run_as = match (file.user, file.folder) {
            (None, None) => None,
            (Some(user), Some(folder)) if folder.is_absolute() => Some(RunAs { user, folder }),
            (Some(_), Some(folder)) => {
                return Err(("folder".into(), quoted(&folder.to_string_lossy()), "write its path, from /".into()));
            }
            (Some(user), None) => {
                let problem =
                    "it can't reach the daemon's state folder; say where its jobs have their folders (folder)";
                return Err(("user".into(), quoted(&user), problem.into()));
            }
            (None, Some(folder)) => {
                let problem = "it goes with user: the daemon's own user has jobs in the daemon's state folder";
                return Err(("folder".into(), quoted(&folder.to_string_lossy()), problem.into()));
            }
        };
        let real_gpus = file.real_gpus;
        let mut cluster = Self { name, grace, measure, device_milli, real_gpus, run_as, servers: Vec::new() };
        for table in file.server {
            cluster.add(table)?;
        }
        if cluster.servers.is_empty() {
            return Err(("server".into(), "(none)".into(), "write at least one [[server]] table".into()));
        }
        Ok(cluster)
    }

    /// This machine as one server: its CPUs, its memory and its NVIDIA GPUs.
    pub fn this_machine() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let mut capacity = BTreeMap::from([("cpu".to_owned(), i64::try_from(cpus).unwrap_or(1) * 1000)]);
        if let Some(mib) = machine_memory() {
            capacity.insert("memory".into(), mib);
        }
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host = host.trim();
        let name = if check_name(host).is_ok() { host } else { "localhost" };
        let server = VirtualServer {
            name: name.into(),
            capacity,
            devices: vec!["gpu".into(); gpus_here()],
            labels: BTreeMap::new(),
            first_device: 0,
        };
        let (name, grace) = ("local".into(), Duration::from_secs(10));
        let measure = Some(MEASURE);
        Self { name, grace, measure, device_milli: 1000, real_gpus: true, run_as: None, servers: vec![server] }
    }

    /// The manager's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The number of devices that are this machine's GPUs, which their driver measures. The others are emulated.
    pub(crate) fn real_gpus(&self) -> u32 {
        if self.real_gpus { self.device_count() } else { 0 }
    }

    /// The number of devices of all servers.
    pub(crate) fn device_count(&self) -> u32 {
        self.servers.last().map_or(0, |last| last.first_device + last.devices.len() as u32)
    }

    /// Time for a role to save a checkpoint after SIGTERM, unless the job's plan states one.
    pub fn grace(&self) -> Duration {
        self.grace
    }

    /// The user that runs jobs, if it isn't the daemon's user.
    pub fn run_as(&self) -> Option<&RunAs> {
        self.run_as.as_ref()
    }

    /// Interval between measurements of processes. `None`: never.
    pub fn measure(&self) -> Option<Duration> {
        self.measure
    }

    /// Thousandths of each device that can be planned. More than 1000 means that slots share unused parts.
    pub fn device_milli(&self) -> u64 {
        self.device_milli
    }

    /// All servers, in the file's order.
    pub fn servers(&self) -> &[VirtualServer] {
        &self.servers
    }

    /// Finds a server by its name.
    pub fn server(&self, name: &str) -> Option<&VirtualServer> {
        self.servers.iter().find(|server| server.name == name)
    }

    fn add(&mut self, table: ServerTable) -> Result<(), Wrong> {
        let of = |key: &str| format!("server {:?}: {key}", table.name);
        check_name(&table.name).map_err(|problem| (of("name"), quoted(&table.name), problem))?;
        let count = table.count.unwrap_or(1);
        if !(1..=MOST_SERVERS).contains(&count) {
            return Err((of("count"), count.to_string(), format!("allowed are 1 to {MOST_SERVERS}")));
        }
        let mut capacity = BTreeMap::new();
        let built_in =
            [("cpu", &table.cpu), ("memory", &table.memory), ("disk", &table.disk), ("bandwidth", &table.bandwidth)];
        let named = built_in.into_iter().filter_map(|(key, value)| Some((key, value.as_ref()?)));
        for (key, value) in named.chain(table.resources.iter().map(|(key, value)| (key.as_str(), value))) {
            let wrong = |problem| (of(key), value.to_string(), problem);
            if table.resources.contains_key(key)
                && (key.starts_with("gpu") || built_in.iter().any(|(name, _)| *name == key))
            {
                return Err(wrong("this resource has a key of its own beside `resources`".into()));
            }
            capacity.insert(key.to_owned(), amount(key, value).map_err(wrong)?);
        }
        let devices = match &table.gpu {
            None => Vec::new(),
            Some(value) => devices(value).map_err(|problem| (of("gpu"), value.to_string(), problem))?,
        };
        for index in 0..count {
            let name = if table.count.is_some_and(|count| count > 1) {
                format!("{}-{index}", table.name)
            } else {
                table.name.clone()
            };
            if self.server(&name).is_some() {
                return Err((of("name"), quoted(&name), "there is another server of this name".into()));
            }
            let first_device = self.device_count();
            self.servers.push(VirtualServer {
                name,
                capacity: capacity.clone(),
                devices: devices.clone(),
                labels: table.labels.clone(),
                first_device,
            });
        }
        Ok(())
    }
}

impl VirtualServer {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Capacities without devices, by resource name. Units: thousandths (`cpu` and custom), MiB (`memory`, `disk`),
    /// Mbit/s (`bandwidth`).
    pub fn capacity(&self) -> &BTreeMap<String, i64> {
        &self.capacity
    }

    /// The kind of each device: `gpu` or `gpu:<type>`.
    pub fn devices(&self) -> &[String] {
        &self.devices
    }

    /// Labels that jobs can require.
    pub fn labels(&self) -> &BTreeMap<String, String> {
        &self.labels
    }

    /// Upload time of a data chunk to this server, from a place that a job's dataset names. It is the label
    /// `upload.<place>`, or else `upload`, or else zero.
    pub(crate) fn upload(&self, from: &str) -> Duration {
        let label = self.labels.get(&format!("upload.{from}")).or_else(|| self.labels.get("upload"));
        let span = label.and_then(|text| parse_span(text).ok()).unwrap_or_default();
        Duration::from_millis(span.0.max(0).unsigned_abs())
    }

    /// The index of its first device among all devices of the machine. Servers' devices are numbered consecutively.
    pub fn first_device(&self) -> u32 {
        self.first_device
    }

    pub(crate) fn to_wire(&self) -> v1::Server {
        v1::Server {
            name: self.name.clone(),
            capacity: self.capacity.clone().into_iter().collect(),
            devices: self.devices.iter().map(|kind| v1::Device { kind: kind.clone() }).collect(),
            labels: self.labels.clone().into_iter().collect(),
            ..v1::Server::default()
        }
    }
}

/// The machine's memory in MiB, if the kernel reports it.
pub(crate) fn machine_memory() -> Option<i64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let kib = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    kib.trim().strip_suffix("kB")?.trim().parse::<i64>().ok().map(|kib| kib / 1024)
}

fn devices(value: &Value) -> Result<Vec<String>, String> {
    let allowed = || format!("write how many (0 to {MOST_DEVICES}), or a list of types such as [\"a100\", \"a100\"]");
    match value {
        Value::Integer(count) if (0..=MOST_DEVICES).contains(count) => Ok(vec!["gpu".into(); *count as usize]),
        Value::Array(types) if types.len() as i64 <= MOST_DEVICES => types
            .iter()
            .map(|kind| {
                let kind = kind.as_str().ok_or_else(allowed)?;
                check_name(kind)?;
                Ok(if kind == "gpu" { "gpu".into() } else { format!("gpu:{kind}") })
            })
            .collect(),
        _ => Err(allowed()),
    }
}

/// Number of this machine's NVIDIA GPUs: those with a device file.
pub(crate) fn gpus_here() -> usize {
    let is_gpu = |name: &str| name.strip_prefix("nvidia").is_some_and(|rest| rest.parse::<u32>().is_ok());
    let devices = fs::read_dir("/dev").into_iter().flatten().flatten();
    devices.filter(|entry| entry.file_name().to_str().is_some_and(is_gpu)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Cluster, String> {
        Cluster::parse(text, "c.toml").map_err(|error| error.to_string())
    }

    #[test]
    fn a_full_file_becomes_servers() {
        let cluster = parse(
            r#"
            name = "box"
            grace = "2.5s"
            [[server]]
            name = "big"
            gpu = 2
            cpu = 1.5
            memory = "64GiB"
            bandwidth = "10Gbit"
            resources = { fpga = 2 }
            labels = { zone = "a" }
            count = 2
            [[server]]
            name = "typed"
            gpu = ["a100", "v100"]
            "#,
        )
        .unwrap();
        assert_eq!((cluster.name(), cluster.grace()), ("box", Duration::from_millis(2500)));
        let names: Vec<_> = cluster.servers().iter().map(|s| (s.name(), s.first_device())).collect();
        assert_eq!(names, [("big-0", 0), ("big-1", 2), ("typed", 4)]);
        let wire = cluster.servers()[0].to_wire();
        for (key, value) in [("cpu", 1500), ("memory", 65536), ("bandwidth", 10_000), ("fpga", 2000)] {
            assert_eq!(wire.capacity[key], value, "{key}");
        }
        assert!(!wire.capacity.contains_key("gpu"), "GPUs are devices");
        assert_eq!(wire.devices.len(), 2);
        assert_eq!(wire.labels["zone"], "a");
        assert_eq!(cluster.server("typed").unwrap().devices(), ["gpu:a100", "gpu:v100"]);
    }

    #[test]
    fn one_server_keeps_its_name_and_this_machine_is_one() {
        assert_eq!(parse("[[server]]\nname = \"a\"\ncount = 1").unwrap().servers()[0].name(), "a");
        let cluster = Cluster::this_machine();
        assert_eq!(cluster.servers().len(), 1);
        assert!(cluster.servers()[0].capacity()["cpu"] >= 1000);
    }

    #[test]
    fn measuring_and_oversubscribing_are_the_files_to_set() {
        let of = |text: &str| {
            let cluster = parse(&format!("{text}\n[[server]]\nname = \"a\"")).unwrap();
            (cluster.measure(), cluster.device_milli())
        };
        assert_eq!(of(""), (Some(MEASURE), 1000));
        assert_eq!(of("measure = \"250ms\"\noversubscribe = 2.5"), (Some(Duration::from_millis(250)), 2500));
        assert_eq!(of("measure = \"250ms\"\noverbook = 2.5"), (Some(Duration::from_millis(250)), 2500));
        assert_eq!((of("measure = \"off\"").0, of("measure = \"0s\"").0), (None, None));
    }

    #[test]
    fn errors_name_file_key_value_and_what_is_allowed() {
        for (text, parts) in [
            ("grace = \"5\"\n[[server]]\nname=\"a\"", &["c.toml", "grace", "\"5\"", "20s"][..]),
            ("measure = \"5\"\n[[server]]\nname=\"a\"", &["measure", "\"5\"", "20s", "\"off\""]),
            ("user = \"nobody\"\n[[server]]\nname=\"a\"", &["user", "nobody", "(folder)"]),
            ("folder = \"/j\"\n[[server]]\nname=\"a\"", &["folder", "/j", "goes with user"]),
            ("user = \"n\"\nfolder = \"j\"\n[[server]]\nname=\"a\"", &["folder", "\"j\"", "from /"]),
            ("oversubscribe = 0.5\n[[server]]\nname=\"a\"", &["oversubscribe", "0.5", "from 1 to 8"]),
            ("[[server]]\nname=\"a\"\nmemory=\"64GB\"", &["c.toml", "server \"a\": memory", "64GB", "10GiB"]),
            ("[[server]]\nname=\"a\"\nmemory=64", &["memory", "64", "10GiB"]),
            ("[[server]]\nname=\"a\"\ngpu=-1", &["gpu", "-1", "1024"]),
            ("[[server]]\nname=\"a\"\ngpu=[1]", &["gpu", "[1]", "a100"]),
            ("[[server]]\nname=\"a\"\ncpus=1", &["c.toml", "cpus", "unknown field", "bandwidth"]),
            ("[[server]]\nname=\"a/b\"", &["name", "a/b", "letters"]),
            ("[[server]]\nname=\"a\"\ncount=0", &["count", "0", "1 to"]),
            ("[[server]]\nname=\"a\"\n[[server]]\nname=\"a\"", &["name", "another server"]),
            ("[[server]]\nname=\"a\"\nresources={cpu=1}", &["cpu", "key of its own"]),
            ("name = \"x\"", &["server", "at least one"]),
            ("[[server]]\nname=\"a\"\ncpu=true", &["cpu", "true", "number"]),
        ] {
            let error = parse(text).unwrap_err();
            for part in parts {
                assert!(error.contains(part), "{error:?} should contain {part:?}");
            }
        }
    }
}
