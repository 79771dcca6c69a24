//! The configuration file: this adapter's address for plug-ins and ApplicationMasters, and the settings for the
//! cluster.

use std::{
    net::SocketAddr,
    num::NonZeroU32,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{Deserialize, Deserializer, de::Error as _};
use toml::Value;
use trainmaster_core::amount::Unit;
#[cfg(feature = "schema")]
use trainmaster_core::amount::{BandwidthText, DurationText, SizeText};

use crate::{
    file::{self, FileError, Wrong, amount, quoted},
    http::{Site, Url},
};

/// This adapter's address, and the settings for its cluster.
///
/// # Examples
/// ```
/// use trainmaster_adapters::yarn::Config;
/// let config = Config::parse("resourcemanager = \"http://rm.example:8088\"", "yarn.toml")?;
/// assert_eq!(config.listen.port(), 7071);
/// # Ok::<(), trainmaster_adapters::FileError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(serde::Serialize, schemars::JsonSchema))]
pub struct Config {
    /// The manager's name. Servers belong to it, and jobs are identified by its application ids.
    #[serde(deserialize_with = "file::name")]
    #[cfg_attr(feature = "schema", schemars(regex(pattern = file::NAME)))]
    pub name: String,
    /// The interface to the ResourceManager: `"plug-ins"`, or `"rest"` for one without plug-ins.
    pub api: Api,
    /// With `"rest"`: interval between polls of the ResourceManager.
    #[serde(
        deserialize_with = "file::span::<_, 100>",
        serialize_with = "trainmaster_core::amount::duration::serialize"
    )]
    #[cfg_attr(feature = "schema", schemars(with = "DurationText"))]
    pub poll: Duration,
    /// This adapter's address for plug-ins and ApplicationMasters. Addresses other than loopback need TLS.
    #[serde(deserialize_with = "listen")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub listen: SocketAddr,
    /// Certificate and key of this address, in PEM. Required unless `listen` is a loopback address.
    pub tls: Option<Tls>,
    /// The file with the plug-ins' token. By default `plug-ins.token` in the adapter's folder, created at its first
    /// start.
    pub token_file: Option<PathBuf>,
    /// The source of a job's tenant and queue: `"yarn"` for YARN's user and queue, `"job"` for the job file.
    pub accounts: Accounts,
    /// The ResourceManager's REST API, as `http://host:port` or `https://host:port`, with its web port. With `"rest"`,
    /// the key is required.
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub resourcemanager: Option<Url>,
    /// The certificate authority of a ResourceManager with https, in PEM.
    pub ca: Option<PathBuf>,
    /// Time for which plug-ins enforce a plan without a newer answer.
    #[serde(
        deserialize_with = "file::span::<_, 100>",
        serialize_with = "trainmaster_core::amount::duration::serialize"
    )]
    #[cfg_attr(feature = "schema", schemars(with = "DurationText"))]
    pub ttl: Duration,
    /// Maximum time of a slot without a container. After it, its plan is refused.
    #[serde(
        deserialize_with = "file::span::<_, 100>",
        serialize_with = "trainmaster_core::amount::duration::serialize"
    )]
    #[cfg_attr(feature = "schema", schemars(with = "DurationText"))]
    pub placement_timeout: Duration,
    /// Maximum time for an ApplicationMaster to start, and for an application to end after its job.
    #[serde(
        deserialize_with = "file::span::<_, 100>",
        serialize_with = "trainmaster_core::amount::duration::serialize"
    )]
    #[cfg_attr(feature = "schema", schemars(with = "DurationText"))]
    pub master_timeout: Duration,
    /// The ApplicationMasters of `trainmaster yarn submit`.
    pub master: Master,
    /// Interval between reports of the nodes' loads to the daemon. `"off"`: they aren't reported.
    #[serde(with = "file::interval")]
    #[cfg_attr(feature = "schema", schemars(with = "file::schema::Interval"))]
    pub measure: Option<Duration>,
    /// Network bandwidth of each node, which YARN doesn't count. Here in Mbit/s.
    #[serde(with = "file::mbit")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<BandwidthText>"))]
    pub bandwidth: Option<i64>,
    /// Disk of each node, which YARN doesn't count. Here in MiB.
    #[serde(with = "file::mib")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<SizeText>"))]
    pub disk: Option<i64>,
}

/// The interface to the ResourceManager.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "schema", derive(serde::Serialize, schemars::JsonSchema))]
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
#[cfg_attr(feature = "schema", derive(serde::Serialize, schemars::JsonSchema))]
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
#[cfg_attr(feature = "schema", derive(serde::Serialize, schemars::JsonSchema))]
pub struct Tls {
    /// The certificate chain.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// The ApplicationMasters of `trainmaster yarn submit`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(serde::Serialize, schemars::JsonSchema))]
pub struct Master {
    /// Java's program on the nodes.
    #[serde(deserialize_with = "word")]
    pub java: String,
    /// The class path on the nodes with the ApplicationMaster and Hadoop's client. `submit` requires it.
    #[serde(deserialize_with = "word")]
    pub classpath: String,
    /// Memory of its container. Here in MiB.
    #[serde(deserialize_with = "memory", serialize_with = "write_memory")]
    #[cfg_attr(feature = "schema", schemars(with = "SizeText"))]
    pub memory: i64,
    /// Cores of its container.
    pub vcores: NonZeroU32,
    /// The nodes' path of the certificate authority of the daemon's feed, for programs. None: the feed uses plain text.
    #[serde(deserialize_with = "path")]
    pub feed_ca: Option<String>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            name: "yarn".into(),
            api: Api::default(),
            poll: Duration::from_secs(1),
            listen: SocketAddr::from(([127, 0, 0, 1], 7071)),
            tls: None,
            token_file: None,
            accounts: Accounts::default(),
            resourcemanager: None,
            ca: None,
            ttl: Duration::from_secs(15),
            placement_timeout: Duration::from_secs(30),
            master_timeout: Duration::from_secs(120),
            master: Master::default(),
            measure: Some(file::MEASURE),
            bandwidth: None,
            disk: None,
        }
    }
}

impl Default for Master {
    fn default() -> Self {
        Self { java: "java".into(), classpath: String::new(), memory: 1024, vcores: NonZeroU32::MIN, feed_ca: None }
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

    /// Parses the text of a configuration file. `origin` is its name in errors.
    ///
    /// # Errors
    /// Each error names the file, the key, the value and the allowed values.
    pub fn parse(text: &str, origin: &str) -> Result<Self, FileError> {
        file::parse(text, origin, Self::checked)
    }

    /// Checks rules for several values.
    fn checked(self) -> Result<Self, Wrong> {
        if !self.listen.ip().is_loopback() && self.tls.is_none() {
            let problem = "it is open to other machines and needs TLS (tls.cert and tls.key); or listen on 127.0.0.1";
            return Err(("listen".into(), quoted(&self.listen.to_string()), problem.into()));
        }
        if self.api == Api::Rest && self.resourcemanager.is_none() {
            let problem = "it needs resourcemanager, where the ResourceManager's REST API is".to_owned();
            return Err(("api".into(), quoted("rest"), problem));
        }
        match &self.resourcemanager {
            Some(url) => url.check("resourcemanager", self.ca.as_ref())?,
            None if self.ca.is_some() => {
                let problem = "it is for a resourcemanager with https, and none is given".to_owned();
                return Err(("ca".into(), quoted(&self.ca.unwrap_or_default().display().to_string()), problem));
            }
            None => {}
        }
        Ok(self)
    }

    /// The ResourceManager's REST API, if it is known.
    pub(crate) fn site(&self) -> Option<Site> {
        self.resourcemanager.clone().map(|url| Site { url, ca: self.ca.clone() })
    }

    /// Each node's resources that YARN doesn't count, in sub-units.
    pub(crate) fn uncounted(&self) -> impl Iterator<Item = (String, i64)> {
        file::uncounted(self.bandwidth, self.disk)
    }
}

fn listen<'de, D: Deserializer<'de>>(from: D) -> Result<SocketAddr, D::Error> {
    let text = String::deserialize(from)?;
    let problem = || format!("{text:?}: write address:port, such as 127.0.0.1:7071 or 0.0.0.0:7071");
    text.parse().map_err(|_| D::Error::custom(problem()))
}

/// A part of a shell command.
fn word<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let text = String::deserialize(from)?;
    match text.contains(|c: char| c.is_whitespace() || "\"'\\`;&|<>".contains(c)) {
        false => Ok(text),
        true => Err(D::Error::custom(format!("{text:?} stands in a shell command: no spaces and no quotes"))),
    }
}

fn memory<'de, D: Deserializer<'de>>(from: D) -> Result<i64, D::Error> {
    match amount(Unit::MiB, &Value::deserialize(from)?) {
        Ok(0) => Err(D::Error::custom("it must be more than nothing")),
        amount => amount.map_err(D::Error::custom),
    }
}

#[cfg(feature = "schema")]
fn write_memory<S: serde::Serializer>(mib: &i64, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&Unit::MiB.format(*mib))
}

fn path<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    let path = String::deserialize(from)?;
    match path.starts_with('/') {
        true => Ok(Some(path)),
        false => Err(D::Error::custom(format!("{path:?}: write its path on the nodes, from /"))),
    }
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
        let resourcemanager = config.resourcemanager.as_ref().map(ToString::to_string);
        assert_eq!((config.token_file, resourcemanager.as_deref()), (Some("/t".into()), Some("http://[::1]:8088")));
        assert_eq!((config.ttl, config.placement_timeout), (Duration::from_secs(5), Duration::from_secs(60)));
        assert_eq!(config.master_timeout, Duration::from_millis(500));
        assert_eq!((config.bandwidth, config.disk), (Some(10_000), Some(1024)));
        let (java, classpath) = ("/j/bin/java".to_owned(), "/a.jar:/h/*:$HADOOP_CONF_DIR".to_owned());
        let feed_ca = Some("/etc/trainmaster/ca.pem".to_owned());
        assert_eq!(
            config.master,
            Master { java, classpath, memory: 2048, vcores: NonZeroU32::new(2).unwrap(), feed_ca }
        );
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
            ("resourcemanager = \"rm:8088\"", &["resourcemanager", "rm:8088", "http://host:port", "https://host:port"]),
            ("resourcemanager = \"https://rm:8090\"", &["resourcemanager", "https://rm:8090", "needs ca"]),
            ("resourcemanager = \"http://rm:8088\"\nca = \"/c\"", &["ca", "/c", "for https", "http://rm:8088"]),
            ("ca = \"/c\"", &["ca", "/c", "resourcemanager with https", "none is given"]),
            ("ttl = \"5\"", &["ttl", "\"5\"", "20s"]),
            ("placement_timeout = \"1ms\"", &["placement_timeout", "1ms", "100ms"]),
            ("master_timeout = \"60d\"", &["master_timeout", "60d", "86400s"]),
            ("disk = 5", &["disk", "5", "GiB"]),
            ("master = { classpath = \"a b\" }", &["classpath", "a b", "no spaces"]),
            ("master = { memory = \"0MiB\" }", &["memory", "0MiB", "more than nothing"]),
            ("master = { vcores = 0 }", &["vcores", "0", "1 or more"]),
            ("master = { feed_ca = \"ca.pem\" }", &["feed_ca", "ca.pem", "from /"]),
        ] {
            let error = parse(text).unwrap_err();
            for part in parts {
                assert!(error.contains(part), "{error:?} should contain {part:?}");
            }
        }
    }
}
