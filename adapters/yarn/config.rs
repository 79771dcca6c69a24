//! The configuration file: where the plug-ins and ApplicationMasters reach this adapter, and what goes for the cluster.

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

/// Where this adapter listens, and what goes for its cluster.
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
    /// How the ResourceManager is spoken to.
    pub api: Api,
    /// How often it is asked, where it is asked.
    pub poll: Duration,
    /// Where plug-ins and ApplicationMasters reach this adapter.
    pub listen: SocketAddr,
    /// Certificate and key; none on loopback alone.
    pub tls: Option<Tls>,
    /// The file with the token that the plug-ins show; by default one in the adapter's folder, made at its first start.
    pub token_file: Option<PathBuf>,
    /// Whose a job is.
    pub accounts: Accounts,
    /// The ResourceManager's REST API, as `host:port`.
    pub resourcemanager: Option<String>,
    /// How long a plan stands without a newer answer.
    pub ttl: Duration,
    /// How long a slot may be without a container.
    pub placement_timeout: Duration,
    /// How long an ApplicationMaster may take to come, or to end.
    pub master_timeout: Duration,
    /// How `trainmaster yarn submit` starts ApplicationMasters.
    pub master: Master,
    /// What each node has beside what YARN counts: `bandwidth` in Mbit/s, `disk` in MiB.
    pub uncounted: BTreeMap<String, i64>,
}

/// How the ResourceManager is spoken to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Api {
    /// Plug-ins in it tell what there is and enforce plans.
    #[default]
    PlugIns,
    /// Nothing is in it: it is asked over its REST API, and nobody enforces where containers are.
    Rest,
}

/// Where a job's tenant and queue come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Accounts {
    /// YARN's user and queue: a job file that names others is refused.
    #[default]
    Yarn,
    /// The job file, where it names them: whoever may submit to YARN may use any tenant's quota.
    Job,
}

/// Certificate and key, in PEM.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// The chain.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// How `trainmaster yarn submit` starts ApplicationMasters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Master {
    /// Java's program on the nodes.
    pub java: String,
    /// Where it finds the ApplicationMaster and Hadoop's client there; empty where nothing was said.
    pub classpath: String,
    /// MiB of its container.
    pub memory: i64,
    /// Cores of its container.
    pub vcores: u32,
    /// Where nodes have the certificate authority of the daemon's feed, for programs; none where it speaks plain text.
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

    /// Reads the text of a configuration file; `origin` is the name that errors give it.
    ///
    /// # Errors
    /// Names the file, the key, the value and what is allowed.
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

/// Its `host:port`.
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
