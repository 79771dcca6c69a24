//! The configuration file: this adapter's address for plug-ins and ApplicationMasters, and the settings for the
//! cluster.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Deserialize;
use toml::Value;
use trainmaster_core::amount::parse_span;

use crate::file::{self, FileError, Wrong, amount, check_name, quoted};

const LISTEN: &str = "127.0.0.1:7071";
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// This adapter's address, and the settings for its cluster.
///
/// # Examples
/// ```
/// use trainmaster_adapters::yarn::Config;
/// let config = Config::parse("resourcemanager = \"http://rm.example:8088\"", "yarn.toml")?;
/// assert_eq!(config.listen.port(), 7071);
/// # Ok::<(), trainmaster_adapters::FileError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The manager's name.
    pub name: String,
    /// The interface to the ResourceManager.
    pub api: Api,
    /// Interval between polls with [`Api::Rest`].
    pub poll: Duration,
    /// This adapter's address for plug-ins and ApplicationMasters.
    pub listen: SocketAddr,
    /// Certificate and key. `None` is allowed on loopback only.
    pub tls: Option<Tls>,
    /// The file with the plug-ins' token. By default, a file in the adapter's folder, created at its first start.
    pub token_file: Option<PathBuf>,
    /// The source of a job's tenant and queue.
    pub accounts: Accounts,
    /// The ResourceManager's REST API, as `host:port`.
    pub resourcemanager: Option<String>,
    /// Time until a plan expires without a newer answer.
    pub ttl: Duration,
    /// Maximum time of a slot without a container.
    pub placement_timeout: Duration,
    /// Maximum time for an ApplicationMaster to start, or to end.
    pub master_timeout: Duration,
    /// The ApplicationMasters of `trainmaster yarn submit`.
    pub master: Master,
    /// Each node's resources that YARN doesn't count: `bandwidth` in Mbit/s, `disk` in MiB.
    pub uncounted: BTreeMap<String, i64>,
}

/// The interface to the ResourceManager.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Api {
    /// Its plug-ins report the state and enforce plans.
    #[default]
    PlugIns,
    /// Its REST API, without plug-ins. The placement of containers isn't enforced.
    Rest,
}

/// The source of a job's tenant and queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Accounts {
    /// YARN's user and queue. A job file with others is refused.
    #[default]
    Yarn,
    /// The job file, if it names them. Anyone who can submit to YARN can use any tenant's quota.
    Job,
}

/// Certificate and key, in PEM.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// The certificate chain.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// The ApplicationMasters of `trainmaster yarn submit`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Master {
    /// Java's program on the nodes.
    pub java: String,
    /// The class path on the nodes with the ApplicationMaster and Hadoop's client; empty if not set.
    pub classpath: String,
    /// Memory of its container in MiB.
    pub memory: i64,
    /// Cores of its container.
    pub vcores: u32,
    /// The nodes' path of the certificate authority of the daemon's feed, for programs. `None` if the feed uses plain
    /// text.
    pub feed_ca: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct MasterTable {
    java: Option<String>,
    classpath: Option<String>,
    memory: Option<Value>,
    vcores: Option<u32>,
    feed_ca: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: Option<String>,
    #[serde(default)]
    api: Api,
    poll: Option<String>,
    listen: Option<String>,
    tls: Option<Tls>,
    token_file: Option<PathBuf>,
    #[serde(default)]
    accounts: Accounts,
    resourcemanager: Option<String>,
    ttl: Option<String>,
    placement_timeout: Option<String>,
    master_timeout: Option<String>,
    bandwidth: Option<Value>,
    disk: Option<Value>,
    #[serde(default)]
    master: MasterTable,
}

impl Config {
    /// Reads a configuration file.
    ///
    /// # Errors
    /// The file can't be read, or [`parse`](Self::parse) refuses it.
    pub fn load(path: &Path) -> Result<Self, FileError> {
        Self::parse(&file::read(path)?, &path.display().to_string())
    }

    /// Parses the text of a configuration file. `origin` is its name in errors.
    ///
    /// # Errors
    /// Each error names the file, the key, the value and the allowed values.
    pub fn parse(text: &str, origin: &str) -> Result<Self, FileError> {
        file::parse(text, origin, Self::read)
    }

    fn read(file: File) -> Result<Self, Wrong> {
        let name = file.name.unwrap_or_else(|| "yarn".into());
        check_name(&name).map_err(|problem| ("name".into(), quoted(&name), problem))?;
        let listen = file.listen.unwrap_or_else(|| LISTEN.into());
        let wrong = |problem: String| ("listen".into(), quoted(&listen), problem);
        let address: SocketAddr =
            listen.parse().map_err(|_| wrong(format!("write address:port, such as {LISTEN} or 0.0.0.0:7071")))?;
        if !address.ip().is_loopback() && file.tls.is_none() {
            return Err(wrong(
                "it is open to other machines and needs TLS (tls.cert and tls.key); or listen on 127.0.0.1".into(),
            ));
        }
        let span = |key: &str, text: Option<String>, default: u64| {
            span(text, Duration::from_secs(default)).map_err(|(value, problem)| (key.to_owned(), value, problem))
        };
        let resourcemanager = file.resourcemanager.as_ref().map(|url| match rest_address(url) {
            Some(address) => Ok(address),
            None => Err(("resourcemanager".into(), quoted(url), "write http://host:port, with RM's web port".into())),
        });
        if file.api == Api::Rest && file.resourcemanager.is_none() {
            let problem = "it needs resourcemanager, where the ResourceManager's REST API is".to_owned();
            return Err(("api".into(), quoted("rest"), problem));
        }
        let mut config = Self {
            api: file.api,
            poll: span("poll", file.poll, 1)?,
            listen: address,
            tls: file.tls,
            token_file: file.token_file,
            accounts: file.accounts,
            resourcemanager: resourcemanager.transpose()?,
            ttl: span("ttl", file.ttl, 15)?,
            placement_timeout: span("placement_timeout", file.placement_timeout, 30)?,
            master_timeout: span("master_timeout", file.master_timeout, 120)?,
            master: Master::read(file.master)?,
            uncounted: BTreeMap::new(),
            name,
        };
        for (key, value) in [("bandwidth", file.bandwidth), ("disk", file.disk)] {
            let Some(value) = value else { continue };
            let amount = amount(key, &value).map_err(|problem| (key.into(), value.to_string(), problem))?;
            config.uncounted.insert(key.into(), amount);
        }
        Ok(config)
    }
}

impl Master {
    fn read(table: MasterTable) -> Result<Self, Wrong> {
        let memory = table.memory.unwrap_or_else(|| Value::String("1GiB".into()));
        let amount = amount("memory", &memory)
            .and_then(|amount| if amount > 0 { Ok(amount) } else { Err("it must be more than nothing".into()) })
            .map_err(|problem| ("master.memory".into(), memory.to_string(), problem))?;
        let vcores = table.vcores.unwrap_or(1);
        if vcores == 0 {
            return Err(("master.vcores".into(), "0".into(), "it must be 1 or more".into()));
        }
        let java = table.java.unwrap_or_else(|| "java".into());
        let classpath = table.classpath.unwrap_or_default();
        for (key, text) in [("java", &java), ("classpath", &classpath)] {
            if text.contains(|c: char| c.is_whitespace() || "\"'\\`;&|<>".contains(c)) {
                let problem = "it stands in a shell command: no spaces and no quotes".to_owned();
                return Err((format!("master.{key}"), quoted(text), problem));
            }
        }
        if let Some(path) = table.feed_ca.as_ref().filter(|path| !path.starts_with('/')) {
            return Err(("master.feed_ca".into(), quoted(path), "write its path on the nodes, from /".into()));
        }
        Ok(Self { java, classpath, memory: amount, vcores, feed_ca: table.feed_ca })
    }
}

/// The `host:port` of a URL.
fn rest_address(url: &str) -> Option<String> {
    let address = url.strip_prefix("http://")?;
    let address = address.strip_suffix('/').unwrap_or(address);
    let (host, port) = address.rsplit_once(':')?;
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '[' | ']');
    let fits = !host.is_empty() && host.chars().all(plain) && port.parse::<u16>().is_ok_and(|port| port > 0);
    fits.then(|| address.to_owned())
}

fn span(text: Option<String>, default: Duration) -> Result<Duration, (String, String)> {
    let Some(text) = text else { return Ok(default) };
    let span = parse_span(&text).map_err(|error| (quoted(&text), error.to_string()))?;
    let span = Duration::from_millis(span.0.unsigned_abs());
    if !(SHORTEST..=LONGEST).contains(&span) {
        return Err((quoted(&text), format!("allowed are {SHORTEST:?} to {LONGEST:?}")));
    }
    Ok(span)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(text, "yarn.toml").map_err(|error| error.to_string())
    }

    #[test]
    fn a_full_file_is_read() {
        let config = parse(
            r#"
            name = "yarn-a"
            api = "rest"
            poll = "250ms"
            listen = "0.0.0.0:7171"
            tls = { cert = "/c", key = "/k" }
            token_file = "/t"
            accounts = "job"
            resourcemanager = "http://[::1]:8088/"
            ttl = "5s"
            placement_timeout = "1m"
            master_timeout = "500ms"
            bandwidth = "10Gbit"
            disk = "1GiB"
            [master]
            java = "/j/bin/java"
            classpath = "/a.jar:/h/*:$HADOOP_CONF_DIR"
            memory = "2GiB"
            vcores = 2
            feed_ca = "/etc/trainmaster/ca.pem"
            "#,
        )
        .unwrap();
        assert_eq!((config.name.as_str(), config.listen.port()), ("yarn-a", 7171));
        assert_eq!((config.api, config.poll), (Api::Rest, Duration::from_millis(250)));
        assert_eq!(config.accounts, Accounts::Job);
        assert_eq!(config.tls, Some(Tls { cert: "/c".into(), key: "/k".into() }));
        assert_eq!((config.token_file, config.resourcemanager), (Some("/t".into()), Some("[::1]:8088".into())));
        assert_eq!((config.ttl, config.placement_timeout), (Duration::from_secs(5), Duration::from_secs(60)));
        assert_eq!(config.master_timeout, Duration::from_millis(500));
        assert_eq!((config.uncounted["bandwidth"], config.uncounted["disk"]), (10_000, 1024));
        let (java, classpath) = ("/j/bin/java".to_owned(), "/a.jar:/h/*:$HADOOP_CONF_DIR".to_owned());
        let feed_ca = Some("/etc/trainmaster/ca.pem".to_owned());
        assert_eq!(config.master, Master { java, classpath, memory: 2048, vcores: 2, feed_ca });
    }

    #[test]
    fn errors_name_file_key_value_and_what_is_allowed() {
        for (text, parts) in [
            ("listn = \"a\"", &["yarn.toml", "listn", "unknown field", "listen"][..]),
            ("name = \"a b\"", &["name", "\"a b\"", "letters"]),
            ("api = \"soap\"", &["api", "soap", "plug-ins", "rest"]),
            ("api = \"rest\"", &["api", "rest", "needs resourcemanager"]),
            (
                "api = \"rest\"\nlisten = \"0.0.0.0:1\"\nresourcemanager = \"http://rm:1\"",
                &["needs TLS (tls.cert and tls.key);"],
            ),
            ("poll = \"1ms\"", &["poll", "1ms", "100ms"]),
            ("listen = \"7071\"", &["yarn.toml", "listen", "\"7071\"", "127.0.0.1:7071"]),
            ("listen = \"0.0.0.0:1\"", &["listen", "0.0.0.0:1", "needs TLS (tls.cert and tls.key);", "127.0.0.1"]),
            ("accounts = \"any\"", &["accounts", "any", "yarn", "job"]),
            ("tls = { cert = \"c\" }", &["tls", "key"]),
            ("resourcemanager = \"rm:8088\"", &["resourcemanager", "rm:8088", "http://host:port"]),
            ("ttl = \"5\"", &["ttl", "\"5\"", "20s"]),
            ("placement_timeout = \"1ms\"", &["placement_timeout", "1ms", "100ms"]),
            ("master_timeout = \"60d\"", &["master_timeout", "60d", "86400s"]),
            ("disk = 5", &["disk", "5", "GiB"]),
            ("master = { classpath = \"a b\" }", &["master.classpath", "a b", "no spaces"]),
            ("master = { memory = \"0\" }", &["master.memory", "\"0\""]),
            ("master = { vcores = 0 }", &["master.vcores", "0", "1 or more"]),
            ("master = { feed_ca = \"ca.pem\" }", &["master.feed_ca", "ca.pem", "from /"]),
        ] {
            let error = parse(text).unwrap_err();
            for part in parts {
                assert!(error.contains(part), "{error:?} should contain {part:?}");
            }
        }
    }
}
