//! The configuration file: the address of Ray's head, and the nodes that the autoscaler could add.

use std::{
    collections::BTreeMap,
    env,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{Deserialize, Deserializer, de::Error as _};
#[cfg(feature = "schema")]
use trainmaster_core::amount::{BandwidthText, DurationText, Quantity, SizeText};

use super::amounts::MIB;
use crate::{
    file::{self, FileError, MEASURE, MOST_DEVICES, Wrong, quoted},
    http::{Site, Url, is_address},
};

const MOST_NODES: u32 = 4096;
const ADDRESS: &str = "127.0.0.1:6379";
const DASHBOARD: &str = "127.0.0.1:8265";

/// The address of Ray's head, and the settings for its cluster.
///
/// # Examples
/// ```
/// use trainmaster_adapters::ray::Config;
/// let config = Config::parse(
///     r#"
///     address = "head.example:6379"
///     [[node_types]]
///     name = "burst"
///     gpu = 4
///     cpu = 16
///     labels = { tier = "burst" }
///     "#,
///     "ray.toml",
/// )?;
/// assert_eq!(config.node_types[0].count, 1);
/// # Ok::<(), trainmaster_adapters::FileError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(serde::Serialize, schemars::JsonSchema))]
pub struct Config {
    /// The manager's name. Servers belong to it.
    #[serde(deserialize_with = "file::name")]
    #[cfg_attr(feature = "schema", schemars(regex(pattern = file::NAME)))]
    pub name: String,
    /// Ray's head, as `host:port`. Without the key, `RAY_ADDRESS`, otherwise `127.0.0.1:6379`.
    #[serde(deserialize_with = "address")]
    address: Option<String>,
    /// Ray's dashboard, as `http://host:port`, or as `https://host:port` behind a proxy. Without the key,
    /// `RAY_API_SERVER_ADDRESS`, otherwise `http://127.0.0.1:8265`.
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    dashboard: Option<Url>,
    /// The certificate authority of a dashboard with https, in PEM.
    pub ca: Option<PathBuf>,
    /// The interface to Ray: `"auto"` for gRPC where possible, `"rest"` for only the dashboard, without changes.
    pub api: Api,
    /// The treatment of an untested version of Ray: it is observed over REST (`"observe"`), or used at your own risk
    /// (`"trust"`).
    pub untested: Untested,
    /// The file with the token of Ray's token authentication. Without the key, `RAY_AUTH_TOKEN_PATH`, otherwise Ray
    /// runs without tokens.
    pub token_file: Option<PathBuf>,
    /// Interval between polls of the head.
    #[serde(
        deserialize_with = "file::span::<_, 100>",
        serialize_with = "trainmaster_core::amount::duration::serialize"
    )]
    #[cfg_attr(feature = "schema", schemars(with = "DurationText"))]
    pub poll: Duration,
    /// Interval between requests to the dashboard for the nodes' loads, or `"off"`. Without the key, `10s`, or `"off"`
    /// with a token and no named dashboard, because the token is sent there.
    #[serde(deserialize_with = "measure", skip_serializing)]
    #[cfg_attr(feature = "schema", schemars(with = "Option<file::schema::Interval>"))]
    measure: Option<Option<Duration>>,
    /// Maximum time of a pending placement group. After it the group is removed, and the job's plan is refused.
    #[serde(
        deserialize_with = "file::span::<_, 100>",
        serialize_with = "trainmaster_core::amount::duration::serialize"
    )]
    #[cfg_attr(feature = "schema", schemars(with = "DurationText"))]
    pub placement_timeout: Duration,
    /// Maximum time for a driver to create the placement groups of a plan. After it the plan is refused.
    #[serde(
        deserialize_with = "file::span::<_, 100>",
        serialize_with = "trainmaster_core::amount::duration::serialize"
    )]
    #[cfg_attr(feature = "schema", schemars(with = "DurationText"))]
    pub driver_timeout: Duration,
    /// Whether the autoscaler is asked for the needed nodes.
    pub request_resources: bool,
    /// Network bandwidth of each node, which Ray doesn't count.
    #[serde(with = "file::mbit")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<BandwidthText>"))]
    pub bandwidth: Option<i64>,
    /// Disk of each node, which Ray doesn't count.
    #[serde(with = "file::mib")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<SizeText>"))]
    pub disk: Option<i64>,
    /// Nodes that an autoscaler could add. They count as servers of the cloud from the start.
    pub node_types: Vec<NodeType>,
}

/// The interface to Ray.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "schema", derive(serde::Serialize, schemars::JsonSchema))]
pub enum Api {
    /// The head's gRPC. If that can't be trusted, the dashboard's REST.
    #[default]
    Auto,
    /// The dashboard's REST. The cluster is observed, and nothing is changed.
    Rest,
}

/// The treatment of an untested version of Ray.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "schema", derive(serde::Serialize, schemars::JsonSchema))]
pub enum Untested {
    /// It is observed over REST.
    #[default]
    Observe,
    /// It is used as if it were tested.
    Trust,
}

/// Nodes of one kind that an autoscaler could add. Resources that aren't given are zero; at least one is given.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(
    feature = "schema",
    derive(serde::Serialize, schemars::JsonSchema),
    schemars(extend("required" = ["name", "labels"]))
)]
pub struct NodeType {
    /// The name in `available_node_types` of the cluster's configuration. Its servers are named `<name>-0`,
    /// `<name>-1`, …
    #[serde(deserialize_with = "file::name")]
    #[cfg_attr(feature = "schema", schemars(regex(pattern = file::NAME)))]
    pub name: String,
    /// Maximum number of nodes: `max_workers` in the cluster's configuration.
    #[serde(default = "file::one", deserialize_with = "file::count::<_, MOST_NODES>")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = MOST_NODES)))]
    pub count: u32,
    /// GPUs of each node, up to 1024.
    #[serde(default, deserialize_with = "gpus")]
    #[cfg_attr(feature = "schema", schemars(range(max = MOST_DEVICES)))]
    gpu: u32,
    /// Cores of each node.
    #[serde(default, with = "file::milli")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<Quantity>"))]
    cpu: Option<i64>,
    /// Memory of each node.
    #[serde(default, with = "file::mib")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<SizeText>"))]
    memory: Option<i64>,
    /// Other resources of each node.
    #[serde(default, deserialize_with = "file::others")]
    #[cfg_attr(feature = "schema", schemars(with = "BTreeMap<String, Quantity>"))]
    pub(crate) resources: BTreeMap<String, i64>,
    /// The labels in the cluster's configuration, by which the autoscaler identifies the node type: at least one, and
    /// no other nodes have all of them.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(extend("minProperties" = 1)))]
    pub labels: BTreeMap<String, String>,
    /// The start-up time of a node.
    #[serde(
        default = "NodeType::delay",
        deserialize_with = "file::span::<_, 0>",
        serialize_with = "trainmaster_core::amount::duration::serialize"
    )]
    #[cfg_attr(feature = "schema", schemars(with = "DurationText"))]
    pub delay: Duration,
    /// Maximum wait for a node. After it the node is given up, and its job's plan is refused.
    #[serde(
        default = "NodeType::timeout",
        deserialize_with = "file::span::<_, 100>",
        serialize_with = "trainmaster_core::amount::duration::serialize"
    )]
    #[cfg_attr(feature = "schema", schemars(with = "DurationText"))]
    pub timeout: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            name: "ray".into(),
            address: None,
            dashboard: None,
            ca: None,
            api: Api::default(),
            untested: Untested::default(),
            token_file: None,
            poll: Duration::from_secs(1),
            measure: None,
            placement_timeout: Duration::from_secs(30),
            driver_timeout: Duration::from_secs(120),
            request_resources: true,
            bandwidth: None,
            disk: None,
            node_types: Vec::new(),
        }
    }
}

impl Config {
    /// Reads a configuration file.
    ///
    /// # Errors
    /// The file can't be read, or [`parse`](Self::parse) refuses it.
    pub fn load(path: &Path) -> Result<Self, FileError> {
        Self::parse(&file::read(path)?, &path.display().to_string())
    }

    /// Parses the text of a configuration file. `origin` is its name in errors. Missing values come from `RAY_ADDRESS`,
    /// `RAY_API_SERVER_ADDRESS` and `RAY_AUTH_TOKEN_PATH`, then from the defaults.
    ///
    /// # Errors
    /// Each error names the file, the key, the value and the allowed values.
    pub fn parse(text: &str, origin: &str) -> Result<Self, FileError> {
        let variable = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        file::parse(text, origin, |config: Self| config.completed(&variable))
    }

    /// Adds what the environment says, and checks rules for several values.
    fn completed(mut self, variable: &dyn Fn(&str) -> Option<String>) -> Result<Self, Wrong> {
        // "auto" tells Ray's own programs to search for a cluster on their machine.
        if let (None, Some(address)) = (&self.address, variable("RAY_ADDRESS").filter(|address| address != "auto")) {
            check_address(&address).map_err(|problem| ("RAY_ADDRESS".into(), quoted(&address), problem))?;
            self.address = Some(address);
        }
        let mut key = "dashboard";
        if let (None, Some(url)) = (&self.dashboard, variable("RAY_API_SERVER_ADDRESS")) {
            key = "RAY_API_SERVER_ADDRESS";
            self.dashboard = Some(Url::parse(&url).map_err(|problem| (key.into(), quoted(&url), problem))?);
        }
        self.token_file = self.token_file.or_else(|| variable("RAY_AUTH_TOKEN_PATH").map(PathBuf::from));
        self.dashboard().check(key, self.ca.as_ref())?;
        if let Some(Some(every)) = self.measure
            && !self.may_measure()
        {
            let problem = "needs the key dashboard, because Ray's token is sent there";
            return Err(("measure".into(), quoted(&format!("{every:?}")), problem.into()));
        }
        for (at, node_type) in self.node_types.iter().enumerate() {
            let of = |key: &str| format!("node_types {:?}: {key}", node_type.name);
            if self.node_types[..at].iter().any(|other| other.name == node_type.name) {
                let problem = "there is another node type of this name";
                return Err((of("name"), quoted(&node_type.name), problem.into()));
            }
            if node_type.amounts().is_empty() {
                let problem = "a node has something: give gpu, cpu, memory or resources";
                return Err((of("cpu"), "0".into(), problem.into()));
            }
            if node_type.labels.is_empty() {
                let problem =
                    "give at least one label that nodes of this type alone have in the cluster's configuration";
                return Err((of("labels"), "{}".into(), problem.into()));
            }
        }
        Ok(self)
    }

    /// Ray's head, as `host:port`.
    pub fn address(&self) -> &str {
        self.address.as_deref().unwrap_or(ADDRESS)
    }

    /// Ray's dashboard.
    pub fn dashboard(&self) -> Url {
        self.dashboard.clone().unwrap_or_else(|| Url::plain(DASHBOARD))
    }

    pub(crate) fn site(&self) -> Site {
        Site { url: self.dashboard(), ca: self.ca.clone() }
    }

    /// Interval between requests to the dashboard for the nodes' loads. `None`: they aren't requested.
    pub fn measure(&self) -> Option<Duration> {
        self.measure.unwrap_or_else(|| self.may_measure().then_some(MEASURE))
    }

    /// A token isn't sent to an address that nobody named.
    fn may_measure(&self) -> bool {
        self.dashboard.is_some() || self.token_file.is_none()
    }

    /// Each node's resources that Ray doesn't count, in sub-units.
    pub(crate) fn uncounted(&self) -> impl Iterator<Item = (String, i64)> {
        file::uncounted(self.bandwidth, self.disk)
    }
}

impl NodeType {
    fn delay() -> Duration {
        Duration::from_secs(120)
    }

    fn timeout() -> Duration {
        Duration::from_secs(600)
    }

    /// The resources of each node, as Ray counts them: `GPU`, `CPU`, `memory` in bytes, and others.
    pub fn amounts(&self) -> BTreeMap<String, f64> {
        let thousandths = |milli: i64| milli as f64 / 1000.0;
        let own = [
            ("GPU", f64::from(self.gpu)),
            ("CPU", thousandths(self.cpu.unwrap_or(0))),
            ("memory", self.memory.unwrap_or(0) as f64 * MIB),
        ];
        let others = self.resources.iter().map(|(name, milli)| (name.as_str(), thousandths(*milli)));
        let some = own.into_iter().chain(others).filter(|(_, amount)| *amount > 0.0);
        some.map(|(name, amount)| (name.to_owned(), amount)).collect()
    }

    /// The names of its servers.
    pub(crate) fn servers(&self) -> impl Iterator<Item = String> {
        (0..self.count).map(|at| format!("{}-{at}", self.name))
    }

    /// Whether a server belongs to this node type.
    pub(crate) fn has(&self, server: &str) -> bool {
        let number = server.strip_prefix(&self.name).and_then(|rest| rest.strip_prefix('-'));
        number.is_some_and(|text| text.parse().is_ok_and(|at: u32| at < self.count && at.to_string() == text))
    }
}

fn address<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    let text = String::deserialize(from)?;
    check_address(&text).map_err(|problem| D::Error::custom(format!("{text:?}: {problem}")))?;
    Ok(Some(text))
}

fn gpus<'de, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
    let gpus = i64::deserialize(from)?;
    let count = u32::try_from(gpus).ok().filter(|_| gpus <= MOST_DEVICES);
    count.ok_or_else(|| D::Error::custom(format!("{gpus}: allowed are 0 to {MOST_DEVICES}")))
}

/// Reads `measure`. The outer `None`: the key isn't given.
fn measure<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Option<Duration>>, D::Error> {
    file::interval::deserialize(from).map(Some)
}

fn check_address(address: &str) -> Result<(), String> {
    if is_address(address) {
        Ok(())
    } else {
        Err("write host:port, such as 127.0.0.1:6379: the port that `ray start --port` was given".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(text, "ray.toml").map_err(|error| error.to_string())
    }

    #[test]
    fn a_full_file_is_read() {
        let config = parse(
            r#"
            name = "ray-a"
            address = "10.0.0.1:6380"
            dashboard = "http://[::1]:8266/"
            api = "rest"
            untested = "trust"
            token_file = "/run/token"
            poll = "500ms"
            measure = "30s"
            placement_timeout = "1m"
            driver_timeout = "5m"
            request_resources = false
            bandwidth = "10Gbit"
            [[node_types]]
            name = "burst"
            count = 2
            gpu = 4
            cpu = 1.5
            memory = "1GiB"
            resources = { fpga = 2 }
            labels = { tier = "burst" }
            delay = "90s"
            timeout = "5m"
            "#,
        )
        .unwrap();
        assert_eq!((config.name.as_str(), config.address()), ("ray-a", "10.0.0.1:6380"));
        assert_eq!(
            (config.dashboard().to_string().as_str(), config.api, config.untested),
            ("http://[::1]:8266", Api::Rest, Untested::Trust)
        );
        assert_eq!((config.poll, config.placement_timeout), (Duration::from_millis(500), Duration::from_secs(60)));
        assert_eq!(config.measure(), Some(Duration::from_secs(30)));
        assert_eq!((config.driver_timeout, config.request_resources), (Duration::from_secs(300), false));
        assert_eq!(config.uncounted().collect::<Vec<_>>(), [("bandwidth".to_owned(), 10_000)]);
        let burst = &config.node_types[0];
        let amounts = burst.amounts();
        let resources: Vec<_> = amounts.iter().map(|(name, amount)| (name.as_str(), *amount)).collect();
        assert_eq!(resources, [("CPU", 1.5), ("GPU", 4.0), ("fpga", 2.0), ("memory", 1_073_741_824.0)]);
        assert_eq!((burst.delay, burst.timeout), (Duration::from_secs(90), Duration::from_secs(300)));
        assert_eq!(burst.servers().collect::<Vec<_>>(), ["burst-0", "burst-1"]);
        assert!(burst.has("burst-1") && !burst.has("burst-2") && !burst.has("burst-01") && !burst.has("burst"));
    }

    #[test]
    fn the_environment_says_what_the_file_leaves_open() {
        let read = |text: &str, address: &str| {
            let variable = |name: &str| match name {
                "RAY_ADDRESS" => Some(address.to_owned()).filter(|address| !address.is_empty()),
                "RAY_API_SERVER_ADDRESS" => Some(format!("http://{address}0")).filter(|_| !address.is_empty()),
                _ => Some("/tokens/ray".to_owned()),
            };
            toml::from_str::<Config>(text).unwrap().completed(&variable)
        };
        let config = read("", "head:1234").unwrap();
        assert_eq!((config.address(), config.dashboard()), ("head:1234", Url::plain("head:12340")));
        assert_eq!(config.token_file, Some("/tokens/ray".into()));
        let config = read("", "").unwrap();
        assert_eq!((config.address(), config.dashboard()), ("127.0.0.1:6379", Url::plain("127.0.0.1:8265")));
        assert_eq!((config.api, config.untested), (Api::Auto, Untested::Observe));
        assert_eq!(read("dashboard = \"http://a:1\"", "auto").unwrap().address(), "127.0.0.1:6379");
        assert_eq!(read("address = \"[::1]:6379\"", "head:1234").unwrap().address(), "[::1]:6379");
        assert_eq!(read("", "ray://head:10001").unwrap_err().0, "RAY_ADDRESS");
    }

    #[test]
    fn a_token_is_not_sent_to_a_dashboard_that_nobody_named() {
        let read = |text: &str, url: &str| {
            let variable = |name: &str| (name == "RAY_API_SERVER_ADDRESS" && !url.is_empty()).then(|| url.to_owned());
            toml::from_str::<Config>(text).unwrap().completed(&variable)
        };
        let measure = |text: &str, url: &str| read(text, url).unwrap().measure();
        assert_eq!(measure("", ""), Some(MEASURE));
        assert_eq!(measure("token_file = \"/t\"", ""), None);
        assert_eq!(measure("token_file = \"/t\"", "http://head:8265"), Some(MEASURE));
        assert_eq!(measure("token_file = \"/t\"\ndashboard = \"http://head:8265\"", ""), Some(MEASURE));
        let (key, _, problem) = read("token_file = \"/t\"\nmeasure = \"1m\"", "").unwrap_err();
        assert!(key == "measure" && problem.contains("dashboard"), "{key}: {problem}");
        let named = "token_file = \"/t\"\nmeasure = \"1m\"\ndashboard = \"http://head:8265\"";
        assert_eq!(measure(named, ""), Some(Duration::from_secs(60)));
        assert_eq!((measure("measure = \"off\"", ""), measure("measure = \"0s\"", "")), (None, None));
    }

    #[test]
    fn errors_name_file_key_value_and_what_is_allowed() {
        let of = |keys: &str| format!("[[node_types]]\nname = \"b\"\ncpu = 1\nlabels = {{ tier = \"b\" }}\n{keys}");
        for (text, parts) in [
            ("adress = \"a:1\"".to_owned(), &["ray.toml", "adress", "unknown field", "address"][..]),
            ("address = \"head\"".into(), &["ray.toml", "address", "\"head\"", "host:port"]),
            ("address = \"::1:6379\"".into(), &["address", "::1:6379", "host:port"]),
            ("dashboard = \"ftp://a:1\"".into(), &["dashboard", "ftp://a:1", "http://host:port"]),
            ("dashboard = \"https://a:1\"".into(), &["dashboard", "https://a:1", "needs ca"]),
            ("dashboard = \"http://a:1\"\nca = \"/c\"".into(), &["ca", "/c", "for https", "http://a:1"]),
            ("api = \"grpc\"".into(), &["ray.toml", "api", "grpc", "auto", "rest"]),
            ("untested = \"yes\"".into(), &["untested", "yes", "observe", "trust"]),
            ("poll = \"5\"".into(), &["poll", "\"5\"", "20s"]),
            ("measure = \"5\"".into(), &["measure", "\"5\"", "20s", "\"off\""]),
            ("poll = \"1ms\"".into(), &["poll", "\"1ms\"", "100ms"]),
            ("placement_timeout = \"60d\"".into(), &["placement_timeout", "60d", "86400s"]),
            ("bandwidth = 5".into(), &["bandwidth", "5", "1Gbit"]),
            (of("gpus = 1"), &["gpus", "unknown field", "timeout"]),
            (of("resources = { \"gpu:a100\" = 1 }"), &["resources.gpu:a100", "key of its own"]),
            (of("gpu = -1"), &["line 5", "gpu", "-1", "1024"]),
            (of("count = 0"), &["line 5", "count", "0", "4096"]),
            (of("memory = 64"), &["memory", "64", "10GiB"]),
            (of("resources = { CPU = 1 }"), &["resources.CPU", "1", "key of its own"]),
            (of("delay = \"soon\""), &["delay", "soon", "20s"]),
            ("[[node_types]]\nname = \"b\"\ncpu = 1".into(), &["node_types \"b\": labels", "{}", "at least one"]),
            ("[[node_types]]\nname = \"b\"\nlabels = { a = \"b\" }".into(), &["node_types \"b\": cpu", "give gpu"]),
            (format!("{}\n{}", of(""), of("")), &["node_types \"b\": name", "another node type"]),
        ] {
            let error = parse(&text).unwrap_err();
            for part in parts {
                assert!(error.contains(part), "{error:?} should contain {part:?}");
            }
        }
    }
}
