//! The cluster file. It divides this machine into virtual servers.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use procfs::{Current as _, Meminfo};
use serde::{Deserialize, Deserializer, de::Error as _};
use toml::Value;
#[cfg(feature = "schema")]
use trainmaster_core::amount::{BandwidthText, DurationText, Quantity, SizeText};
use trainmaster_core::amount::{duration, parse_span};
use trainmaster_proto::v1;

use super::RunAs;
use crate::file::{self, FileError, MEASURE, MOST_DEVICES, Wrong, check_name, quoted};

const MOST_SERVERS: u32 = 4096;
const MOST_IN_ALL: usize = 16_384;
const MOST_DEVICES_IN_ALL: u32 = 1 << 18;

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
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(
    feature = "schema",
    derive(serde::Serialize, schemars::JsonSchema),
    schemars(extend("required" = ["server"]))
)]
pub struct Cluster {
    /// The manager's name. Servers belong to it.
    #[serde(deserialize_with = "file::name")]
    #[cfg_attr(feature = "schema", schemars(regex(pattern = file::NAME)))]
    name: String,
    /// Time between SIGTERM and SIGKILL, unless the job's plan states one.
    #[serde(with = "duration")]
    #[cfg_attr(feature = "schema", schemars(with = "DurationText"))]
    grace: Duration,
    /// Interval between measurements of the slots' actual use. `"off"`: never.
    #[serde(with = "file::interval")]
    #[cfg_attr(feature = "schema", schemars(with = "file::schema::Interval"))]
    measure: Option<Duration>,
    /// Limit of the planned use of a device, as a multiple of the device: 1 to 8.
    // The alias is the former name.
    #[serde(rename = "oversubscribe", alias = "overbook", with = "times")]
    #[cfg_attr(feature = "schema", schemars(with = "f64", range(min = 1, max = 8)))]
    device_milli: u64,
    /// Whether the devices are this machine's NVIDIA GPUs, which their driver measures.
    real_gpus: bool,
    /// The user that runs jobs, for a daemon that runs as root. Without the key, the daemon's own user: jobs can read
    /// the daemon's files.
    user: Option<String>,
    /// The absolute path of the folder for the jobs of `user`. It is created if it is missing. Required with `user`.
    folder: Option<PathBuf>,
    /// The virtual servers: at least one, and at most 16384 with 262144 GPUs in all.
    #[serde(rename = "server", deserialize_with = "servers", skip_serializing)]
    #[cfg_attr(feature = "schema", schemars(with = "Vec<ServerTable>", length(min = 1)))]
    servers: Vec<VirtualServer>,
}

/// A part of this machine that is a server for the scheduler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VirtualServer {
    name: String,
    kind: Arc<ServerKind>,
    first_device: u32,
}

/// What servers of one table share.
#[derive(Debug, PartialEq, Eq)]
struct ServerKind {
    capacity: BTreeMap<String, i64>,
    devices: Vec<String>,
    labels: BTreeMap<String, String>,
}

/// One or several virtual servers of a kind. Resources that aren't given are zero.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct ServerTable {
    /// The server's name: 1 to 128 letters, digits, `.`, `_` and `-`.
    #[serde(deserialize_with = "file::name")]
    #[cfg_attr(feature = "schema", schemars(regex(pattern = file::NAME)))]
    name: String,
    /// Number of GPUs, up to 1024, or a list of their types: `["a100", "a100"]`.
    #[serde(default, deserialize_with = "gpus")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<file::schema::NumberOrNames>"))]
    gpu: Vec<String>,
    /// Cores.
    #[serde(default, with = "file::milli")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<Quantity>"))]
    cpu: Option<i64>,
    /// Memory.
    #[serde(default, with = "file::mib")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<SizeText>"))]
    memory: Option<i64>,
    /// Disk.
    #[serde(default, with = "file::mib")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<SizeText>"))]
    disk: Option<i64>,
    /// Network bandwidth.
    #[serde(default, with = "file::mbit")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<BandwidthText>"))]
    bandwidth: Option<i64>,
    /// Any other counted resources.
    #[serde(default, deserialize_with = "file::others")]
    #[cfg_attr(feature = "schema", schemars(with = "BTreeMap<String, Quantity>"))]
    resources: BTreeMap<String, i64>,
    /// Labels that jobs can require. Some have a meaning (below).
    #[serde(default)]
    labels: BTreeMap<String, String>,
    /// How many of them, up to 4096: `name-0`, `name-1`, …
    #[serde(default = "file::one", deserialize_with = "file::count::<_, MOST_SERVERS>")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = MOST_SERVERS)))]
    count: u32,
}

impl Default for Cluster {
    fn default() -> Self {
        Self {
            name: "local".into(),
            grace: Duration::from_secs(10),
            measure: Some(MEASURE),
            device_milli: 1000,
            real_gpus: false,
            user: None,
            folder: None,
            servers: Vec::new(),
        }
    }
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
        file::parse(text, origin, Self::checked)
    }

    /// Checks rules for several values.
    fn checked(self) -> Result<Self, Wrong> {
        match (&self.user, &self.folder) {
            (Some(_), Some(folder)) if !folder.is_absolute() => {
                return Err(("folder".into(), quoted(&folder.to_string_lossy()), "write its path, from /".into()));
            }
            (Some(user), None) => {
                let problem =
                    "it can't reach the daemon's state folder; say where its jobs have their folders (folder)";
                return Err(("user".into(), quoted(user), problem.into()));
            }
            (None, Some(folder)) => {
                let problem = "it goes with user: the daemon's own user has jobs in the daemon's state folder";
                return Err(("folder".into(), quoted(&folder.to_string_lossy()), problem.into()));
            }
            (Some(_), Some(_)) | (None, None) => {}
        }
        if self.servers.is_empty() {
            return Err(("server".into(), "(none)".into(), "write at least one [[server]] table".into()));
        }
        Ok(self)
    }

    /// This machine as one server: its CPUs, its memory and its NVIDIA GPUs.
    pub fn this_machine() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let mut capacity = BTreeMap::from([("cpu".to_owned(), i64::try_from(cpus).unwrap_or(1) * 1000)]);
        capacity.insert("memory".into(), machine_memory());
        let uname = rustix::system::uname();
        let host = uname.nodename().to_str().ok().filter(|host| check_name(host).is_ok());
        let name = host.unwrap_or("localhost");
        let kind = ServerKind { capacity, devices: vec!["gpu".into(); gpus_here()], labels: BTreeMap::new() };
        let server = VirtualServer { name: name.into(), kind: Arc::new(kind), first_device: 0 };
        Self { real_gpus: true, servers: vec![server], ..Self::default() }
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
        self.servers.last().map_or(0, |last| last.first_device + last.devices().len() as u32)
    }

    /// Time for a role to save a checkpoint after SIGTERM, unless the job's plan states one.
    pub fn grace(&self) -> Duration {
        self.grace
    }

    /// The user that runs jobs, if it isn't the daemon's user.
    pub fn run_as(&self) -> Option<RunAs> {
        Some(RunAs { user: self.user.clone()?, folder: self.folder.clone()? })
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
}

/// The servers of the file's tables. Their devices are numbered consecutively.
fn servers<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<VirtualServer>, D::Error> {
    let mut servers = Vec::<VirtualServer>::new();
    let (mut names, mut first_device) = (BTreeSet::new(), 0);
    for table in Vec::<ServerTable>::deserialize(from)? {
        let own = [("cpu", table.cpu), ("memory", table.memory), ("disk", table.disk), ("bandwidth", table.bandwidth)];
        let own = own.into_iter().filter_map(|(key, amount)| Some((key.to_owned(), amount?)));
        let capacity = own.chain(table.resources).collect();
        let kind = Arc::new(ServerKind { capacity, devices: table.gpu, labels: table.labels });
        for index in 0..table.count {
            let name = if table.count > 1 { format!("{}-{index}", table.name) } else { table.name.clone() };
            if !names.insert(name.clone()) {
                return Err(D::Error::custom(format!("name = {name:?}: there is another server of this name")));
            }
            let next_device = first_device + kind.devices.len() as u32;
            if servers.len() == MOST_IN_ALL || next_device > MOST_DEVICES_IN_ALL {
                let problem = format!("at most {MOST_IN_ALL} servers and {MOST_DEVICES_IN_ALL} GPUs in all");
                return Err(D::Error::custom(format!("name = {name:?}: {problem}")));
            }
            servers.push(VirtualServer { name, kind: kind.clone(), first_device });
            first_device = next_device;
        }
    }
    Ok(servers)
}

impl VirtualServer {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Capacities without devices, by resource name. Units: thousandths (`cpu` and custom), MiB (`memory`, `disk`),
    /// Mbit/s (`bandwidth`).
    pub fn capacity(&self) -> &BTreeMap<String, i64> {
        &self.kind.capacity
    }

    /// The kind of each device: `gpu` or `gpu:<type>`.
    pub fn devices(&self) -> &[String] {
        &self.kind.devices
    }

    /// Labels that jobs can require.
    pub fn labels(&self) -> &BTreeMap<String, String> {
        &self.kind.labels
    }

    /// Upload time of a data chunk to this server, from a place that a job's dataset names. It is the label
    /// `upload.<place>`, or else `upload`, or else zero.
    pub(crate) fn upload(&self, from: &str) -> Duration {
        let label = self.labels().get(&format!("upload.{from}")).or_else(|| self.labels().get("upload"));
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
            capacity: self.capacity().clone().into_iter().collect(),
            devices: self.devices().iter().map(|kind| v1::Device { kind: kind.clone() }).collect(),
            labels: self.labels().clone().into_iter().collect(),
            ..v1::Server::default()
        }
    }
}

/// The machine's memory in MiB. A container can have less, which only `/proc/meminfo` says, if that can be read.
pub(crate) fn machine_memory() -> i64 {
    let info = rustix::system::sysinfo();
    let machine = (info.totalram as u64).saturating_mul(u64::from(info.mem_unit));
    let container = Meminfo::current().map_or(machine, |memory| memory.mem_total);
    (machine.min(container) >> 20) as i64
}

/// Reads the kind of each GPU.
fn gpus<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    let value = Value::deserialize(from)?;
    let devices = match &value {
        Value::Integer(count) if (0..=MOST_DEVICES).contains(count) => Ok(vec!["gpu".into(); *count as usize]),
        Value::Array(types) if types.len() as i64 <= MOST_DEVICES => types.iter().map(device).collect(),
        _ => Err(allowed()),
    };
    devices.map_err(|problem| D::Error::custom(format!("{value}: {problem}")))
}

fn device(kind: &Value) -> Result<String, String> {
    let kind = kind.as_str().ok_or_else(allowed)?;
    check_name(kind)?;
    Ok(if kind == "gpu" { "gpu".into() } else { format!("gpu:{kind}") })
}

fn allowed() -> String {
    format!("write how many (0 to {MOST_DEVICES}), or a list of types such as [\"a100\", \"a100\"]")
}

/// The form of thousandths in the file: a multiple from 1 to 8.
mod times {
    use serde::{Deserialize as _, Deserializer, de::Error as _};

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        match f64::deserialize(from)? {
            times if (1.0..=8.0).contains(&times) => Ok((times * 1000.0).round() as u64),
            times => Err(D::Error::custom(format!("{times} must be from 1 to 8"))),
        }
    }

    #[cfg(feature = "schema")]
    pub(super) fn serialize<S: serde::Serializer>(milli: &u64, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(*milli as f64 / 1000.0)
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
    fn servers_and_gpus_are_limited_in_all() {
        let table =
            |name: u32, count: u32, gpu: u32| format!("[[server]]\nname=\"s{name}\"\ncount={count}\ngpu={gpu}\n");
        let tables = |all: &[(u32, u32)]| {
            let all = all.iter().zip(0..);
            all.map(|((count, gpu), name)| table(name, *count, *gpu)).collect::<String>()
        };
        let four = [(4096, 0); 4];
        assert_eq!(parse(&tables(&four)).unwrap().servers().len(), 16_384);
        let error = parse(&tables(&[&four[..], &[(1, 0)]].concat())).unwrap_err();
        assert!(error.contains("\"s4\"") && error.contains("at most 16384 servers"), "{error}");
        let full = [(256, 1024), (1, 0)];
        assert_eq!(parse(&tables(&full)).unwrap().device_count(), 1 << 18);
        let error = parse(&tables(&[&full[..], &[(1, 1)]].concat())).unwrap_err();
        assert!(error.contains("\"s2\"") && error.contains("262144 GPUs"), "{error}");
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
            ("[[server]]\nname=\"a\"\nmemory=\"64GB\"", &["c.toml", "line 3", "memory", "64GB", "10GiB"]),
            ("[[server]]\nname=\"a\"\nmemory=64", &["memory", "64", "10GiB"]),
            ("[[server]]\nname=\"a\"\ngpu=-1", &["gpu", "-1", "1024"]),
            ("[[server]]\nname=\"a\"\ngpu=[1]", &["gpu", "[1]", "a100"]),
            ("[[server]]\nname=\"a\"\ncpus=1", &["c.toml", "cpus", "unknown field", "bandwidth"]),
            ("[[server]]\nname=\"a/b\"", &["name", "a/b", "letters"]),
            ("[[server]]\nname=\"a\"\ncount=0", &["count", "0", "1 to"]),
            ("[[server]]\nname=\"a\"\n[[server]]\nname=\"a\"", &["name", "another server"]),
            ("[[server]]\nname=\"a\"\nresources={cpu=1}", &["cpu", "key of its own"]),
            ("[[server]]\nname=\"a\"\nresources={GPU=1}", &["resources.GPU", "key of its own"]),
            ("[[server]]\nname=\"a\"\nresources={gpus=1}", &["resources.gpus", "key of its own"]),
            ("[[server]]\nname=\"a\"\nresources={\"gpu:a\"=1}", &["resources.gpu:a", "key of its own"]),
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
