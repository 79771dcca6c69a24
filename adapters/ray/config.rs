//! The configuration file: the address of Ray's head, and the nodes that the autoscaler could add.

use std::{
    collections::BTreeMap,
    env,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Deserialize;
use toml::Value;
use trainmaster_core::amount::parse_span;

use super::amounts::MIB;
use crate::file::{self, FileError, MEASURE, MOST_DEVICES, Wrong, amount, check_name, quoted};

const MOST_NODES: u32 = 4096;
const SHORTEST_POLL: Duration = Duration::from_millis(100);
const DASHBOARD: &str = "http://127.0.0.1:8265";
const LONGEST: Duration = Duration::from_secs(24 * 3600);

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
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The manager's name.
    pub name: String,
    /// Ray's head, as `host:port`.
    pub address: String,
    /// Ray's dashboard, as `host:port`.
    pub dashboard: String,
    /// The interface to Ray.
    pub api: Api,
    /// The treatment of an untested version of Ray.
    pub untested: Untested,
    /// The file with the token of Ray's token authentication. `None` if Ray runs without it.
    pub token_file: Option<PathBuf>,
    /// Interval between polls of the head.
    pub poll: Duration,
    /// Interval between requests to the dashboard for the nodes' loads. `None`: they aren't requested.
    pub measure: Option<Duration>,
    /// Maximum time of a pending placement group.
    pub placement_timeout: Duration,
    /// Maximum time for a driver to create the placement groups of a plan.
    pub driver_timeout: Duration,
    /// Whether the autoscaler is asked for the needed nodes.
    pub request_resources: bool,
    /// Each node's resources that Ray doesn't count: `bandwidth` in Mbit/s, `disk` in MiB.
    pub uncounted: BTreeMap<String, i64>,
    /// The nodes that an autoscaler could add.
    pub node_types: Vec<NodeType>,
}

/// The interface to Ray.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
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
pub enum Untested {
    /// It is observed over REST.
    #[default]
    Observe,
    /// It is used as if it were tested.
    Trust,
}

/// Nodes of one kind that an autoscaler could add.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeType {
    /// The name in the cluster's configuration. Its servers are named `<name>-0`, `<name>-1`, …
    pub name: String,
    /// Maximum number of nodes.
    pub count: u32,
    /// The resources of each node, as Ray counts them: `GPU`, `CPU`, `memory` in bytes, and others.
    pub resources: BTreeMap<String, f64>,
    /// The labels in the cluster's configuration, by which the autoscaler identifies the node type.
    pub labels: BTreeMap<String, String>,
    /// The start-up time of a node.
    pub delay: Duration,
    /// Maximum wait for a node.
    pub timeout: Duration,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: Option<String>,
    address: Option<String>,
    dashboard: Option<String>,
    #[serde(default)]
    api: Api,
    #[serde(default)]
    untested: Untested,
    token_file: Option<PathBuf>,
    poll: Option<String>,
    measure: Option<String>,
    placement_timeout: Option<String>,
    driver_timeout: Option<String>,
    request_resources: Option<bool>,
    bandwidth: Option<Value>,
    disk: Option<Value>,
    #[serde(default)]
    node_types: Vec<NodeTypeTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeTypeTable {
    name: String,
    count: Option<u32>,
    gpu: Option<i64>,
    cpu: Option<Value>,
    memory: Option<Value>,
    #[serde(default)]
    resources: BTreeMap<String, Value>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    delay: Option<String>,
    timeout: Option<String>,
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
        file::parse(text, origin, |file: File| Self::read(file, &variable))
    }

    fn read(file: File, variable: &dyn Fn(&str) -> Option<String>) -> Result<Self, Wrong> {
        let name = file.name.unwrap_or_else(|| "ray".into());
        check_name(&name).map_err(|problem| ("name".into(), quoted(&name), problem))?;
        let (key, address) = match file.address {
            Some(address) => ("address", address),
            // "auto" tells Ray's own programs to search for a cluster on their machine.
            None => ("RAY_ADDRESS", variable("RAY_ADDRESS").filter(|address| address != "auto").unwrap_or_default()),
        };
        let address = if address.is_empty() && key == "RAY_ADDRESS" { "127.0.0.1:6379".into() } else { address };
        check_address(&address).map_err(|problem| (key.into(), quoted(&address), problem))?;
        let token_file = file.token_file.or_else(|| variable("RAY_AUTH_TOKEN_PATH").map(PathBuf::from));
        // The same as in Ray's own programs.
        let (key, dashboard) = match file.dashboard {
            Some(dashboard) => ("dashboard", Some(dashboard)),
            None => ("RAY_API_SERVER_ADDRESS", variable("RAY_API_SERVER_ADDRESS")),
        };
        let measure = match file.measure {
            Some(text) => {
                let measure = file::measure(&text)?;
                if measure.is_some() && dashboard.is_none() && token_file.is_some() {
                    let problem = "needs the key dashboard, because Ray's token is sent there";
                    return Err(("measure".into(), quoted(&text), problem.into()));
                }
                measure
            }
            // A token isn't sent to an address that nobody named.
            None => (dashboard.is_some() || token_file.is_none()).then_some(MEASURE),
        };
        let dashboard = dashboard.unwrap_or_else(|| DASHBOARD.into());
        let dashboard = read_dashboard(&dashboard).map_err(|problem| (key.into(), quoted(&dashboard), problem))?;
        let span = |key: &str, text: Option<String>, default: u64, least: Duration| {
            span(text, Duration::from_secs(default), least).map_err(|(value, problem)| (key.into(), value, problem))
        };
        let mut config = Self {
            name,
            address,
            dashboard,
            api: file.api,
            untested: file.untested,
            token_file,
            poll: span("poll", file.poll, 1, SHORTEST_POLL)?,
            measure,
            placement_timeout: span("placement_timeout", file.placement_timeout, 30, SHORTEST_POLL)?,
            driver_timeout: span("driver_timeout", file.driver_timeout, 120, SHORTEST_POLL)?,
            request_resources: file.request_resources.unwrap_or(true),
            uncounted: BTreeMap::new(),
            node_types: Vec::new(),
        };
        for (key, value) in [("bandwidth", file.bandwidth), ("disk", file.disk)] {
            let Some(value) = value else { continue };
            let amount = amount(key, &value).map_err(|problem| (key.into(), value.to_string(), problem))?;
            config.uncounted.insert(key.into(), amount);
        }
        for table in file.node_types {
            let name = table.name.clone();
            let of = |key: &str| format!("node_types {name:?}: {key}");
            if config.node_types.iter().any(|other| other.name == name) {
                return Err((of("name"), quoted(&name), "there is another node type of this name".into()));
            }
            let node_type = NodeType::read(table).map_err(|(key, value, problem)| (of(&key), value, problem))?;
            config.node_types.push(node_type);
        }
        Ok(config)
    }
}

impl NodeType {
    fn read(table: NodeTypeTable) -> Result<Self, Wrong> {
        check_name(&table.name).map_err(|problem| ("name".into(), quoted(&table.name), problem))?;
        let count = table.count.unwrap_or(1);
        if !(1..=MOST_NODES).contains(&count) {
            return Err(("count".into(), count.to_string(), format!("allowed are 1 to {MOST_NODES}")));
        }
        let mut resources = BTreeMap::new();
        if let Some(gpu) = table.gpu {
            if !(0..=MOST_DEVICES).contains(&gpu) {
                return Err(("gpu".into(), gpu.to_string(), format!("allowed are 0 to {MOST_DEVICES}")));
            }
            resources.insert("GPU".to_owned(), gpu as f64);
        }
        let built_in = [("cpu", "CPU", 1.0 / 1000.0, &table.cpu), ("memory", "memory", MIB, &table.memory)];
        for (key, name, scale, value) in built_in {
            let Some(value) = value else { continue };
            let amount = amount(key, value).map_err(|problem| (key.into(), value.to_string(), problem))?;
            resources.insert(name.to_owned(), amount as f64 * scale);
        }
        for (key, value) in &table.resources {
            let wrong = |problem| (format!("resources.{key}"), value.to_string(), problem);
            if ["gpu", "cpu", "memory", "bandwidth", "disk"].contains(&key.to_lowercase().as_str()) {
                return Err(wrong("this resource has a key of its own beside `resources`".into()));
            }
            resources.insert(key.clone(), amount(key, value).map_err(wrong)? as f64 / 1000.0);
        }
        resources.retain(|_, amount| *amount > 0.0);
        if resources.is_empty() {
            let problem = "a node has something: give gpu, cpu, memory or resources".into();
            return Err(("cpu".into(), "0".into(), problem));
        }
        if table.labels.is_empty() {
            let problem = "give at least one label that nodes of this type alone have in the cluster's configuration";
            return Err(("labels".into(), "{}".into(), problem.into()));
        }
        let span = |key: &str, text, default, least| {
            span(text, Duration::from_secs(default), least).map_err(|(value, problem)| (key.into(), value, problem))
        };
        Ok(Self {
            delay: span("delay", table.delay, 120, Duration::ZERO)?,
            timeout: span("timeout", table.timeout, 600, SHORTEST_POLL)?,
            name: table.name,
            count,
            resources,
            labels: table.labels,
        })
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

fn span(text: Option<String>, default: Duration, least: Duration) -> Result<Duration, (String, String)> {
    let Some(text) = text else { return Ok(default) };
    let span = parse_span(&text).map_err(|error| (quoted(&text), error.to_string()))?;
    let span = Duration::from_millis(span.0.unsigned_abs());
    if !(least..=LONGEST).contains(&span) {
        return Err((quoted(&text), format!("allowed are {least:?} to {LONGEST:?}")));
    }
    Ok(span)
}

fn check_address(address: &str) -> Result<(), String> {
    if is_address(address) {
        Ok(())
    } else {
        Err("write host:port, such as 127.0.0.1:6379: the port that `ray start --port` was given".into())
    }
}

/// The `host:port` of a URL.
fn read_dashboard(url: &str) -> Result<String, String> {
    let address = url.strip_prefix("http://").map(|rest| rest.strip_suffix('/').unwrap_or(rest));
    match address {
        Some(address) if is_address(address) => Ok(address.to_owned()),
        _ => Err(format!("write http://host:port, such as {DASHBOARD}")),
    }
}

fn is_address(address: &str) -> bool {
    address.rsplit_once(':').is_some_and(|(host, port)| {
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let plain = bare.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':'));
        !bare.is_empty()
            && plain
            && (bare == host) != host.contains(':')
            && port.parse::<u16>().is_ok_and(|port| port > 0)
    })
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
        assert_eq!((config.name.as_str(), config.address.as_str()), ("ray-a", "10.0.0.1:6380"));
        assert_eq!(
            (config.dashboard.as_str(), config.api, config.untested),
            ("[::1]:8266", Api::Rest, Untested::Trust)
        );
        assert_eq!((config.poll, config.placement_timeout), (Duration::from_millis(500), Duration::from_secs(60)));
        assert_eq!(config.measure, Some(Duration::from_secs(30)));
        assert_eq!((config.driver_timeout, config.request_resources), (Duration::from_secs(300), false));
        assert_eq!(config.uncounted["bandwidth"], 10_000);
        let burst = &config.node_types[0];
        let resources: Vec<_> = burst.resources.iter().map(|(name, amount)| (name.as_str(), *amount)).collect();
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
            Config::read(toml::from_str(text).unwrap(), &variable)
        };
        let config = read("", "head:1234").unwrap();
        assert_eq!((config.address.as_str(), config.token_file), ("head:1234", Some("/tokens/ray".into())));
        assert_eq!(config.dashboard, "head:12340");
        let config = read("", "").unwrap();
        assert_eq!((config.address.as_str(), config.dashboard.as_str()), ("127.0.0.1:6379", "127.0.0.1:8265"));
        assert_eq!((config.api, config.untested), (Api::Auto, Untested::Observe));
        assert_eq!(read("dashboard = \"http://a:1\"", "auto").unwrap().address, "127.0.0.1:6379");
        assert_eq!(read("address = \"[::1]:6379\"", "head:1234").unwrap().address, "[::1]:6379");
        assert_eq!(read("", "ray://head:10001").unwrap_err().0, "RAY_ADDRESS");
    }

    #[test]
    fn a_token_is_not_sent_to_a_dashboard_that_nobody_named() {
        let read = |text: &str, url: &str| {
            let variable = |name: &str| (name == "RAY_API_SERVER_ADDRESS" && !url.is_empty()).then(|| url.to_owned());
            Config::read(toml::from_str(text).unwrap(), &variable)
        };
        let measure = |text: &str, url: &str| read(text, url).unwrap().measure;
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
            ("dashboard = \"https://a:1\"".into(), &["dashboard", "https://a:1", "http://host:port"]),
            ("api = \"grpc\"".into(), &["ray.toml", "api", "grpc", "auto", "rest"]),
            ("untested = \"yes\"".into(), &["untested", "yes", "observe", "trust"]),
            ("poll = \"5\"".into(), &["poll", "\"5\"", "20s"]),
            ("measure = \"5\"".into(), &["measure", "\"5\"", "20s", "\"off\""]),
            ("poll = \"1ms\"".into(), &["poll", "\"1ms\"", "100ms"]),
            ("placement_timeout = \"60d\"".into(), &["placement_timeout", "60d", "86400s"]),
            ("bandwidth = 5".into(), &["bandwidth", "5", "1Gbit"]),
            (of("gpus = 1"), &["gpus", "unknown field", "timeout"]),
            (of("gpu = -1"), &["node_types \"b\": gpu", "-1", "1024"]),
            (of("count = 0"), &["node_types \"b\": count", "0", "4096"]),
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
