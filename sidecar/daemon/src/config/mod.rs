//! The daemon's configuration.

mod limits;
#[cfg(test)]
mod tests;

use std::{
    env, io,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use toml::Table;
use trainmaster_core::{
    Settings, SettingsError,
    amount::duration,
    text::{LONGEST, from_table, read_toml},
};
use trainmaster_manager::Adapters;
use trainmaster_net::{Door, TlsFiles, secret};
use trainmaster_policy::Choice;

pub use self::limits::{DecisionConfig, JournalConfig, LimitsConfig};
use super::{
    ServeError,
    log::{LogFormat, LogLines},
    store::faults::Faults,
};

/// The daemon's configuration. [`from_toml`](Self::from_toml) and [`load`](Self::load) read it.
///
/// ```
/// use trainmaster_daemon::Config;
///
/// let config = Config::from_toml(
///     r#"
///     listen = "127.0.0.1:7070"
///     state_dir = "/var/lib/trainmaster"
///     adapters = ["local=cluster.toml"]
///
///     [scheduler]
///     engine = "optimus"
///     "#,
/// )
/// .unwrap();
/// assert_eq!(config.settings.engine, "optimus");
/// assert!(Config::from_toml("listn = 1").unwrap_err().to_string().contains("listn"));
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Config {
    /// The port for gRPC, metrics and JSON. Addresses other than loopback need TLS.
    #[serde(deserialize_with = "listen")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub listen: SocketAddr,
    /// The folder for the journal, the tokens and the adapters' folders. By default it is
    /// `~/.local/state/trainmaster`, or `trainmaster` in `$XDG_STATE_HOME`.
    #[cfg_attr(feature = "schema", schemars(transform = without_default))]
    pub state_dir: PathBuf,
    /// The scheduler's settings. Default: those of the core.
    #[serde(skip)]
    pub settings: Settings,
    /// The scheduler's settings.
    scheduler: Option<Settings>,
    /// A file with the scheduler's settings, in place of `[scheduler]`.
    scheduler_file: Option<PathBuf>,
    /// The policies for engines that use one: `"shipped"`, `"none"`, or a file of `train-policy`.
    #[serde(with = "policy")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub policy: Choice,
    /// The adapters that the program contains. Default: none.
    #[serde(skip)]
    pub available: Adapters,
    /// Managers that run inside the daemon: `"name"` or `"name=file"`, with the adapter's configuration file. Without
    /// the key, those that run by default.
    pub adapters: Option<Vec<AdapterChoice>>,
    /// The daemon's address for training programs. Default: the address of the port.
    pub advertise: Option<String>,
    /// Certificate and key of the port.
    pub tls: Option<Tls>,
    /// The file with the administrator's token. By default the daemon makes one in the state folder.
    pub admin_token_file: Option<PathBuf>,
    /// Host names under which the port may be called without TLS, in addition to `localhost`, numeric addresses, the
    /// machine's own name and the name in `advertise`.
    pub names: Vec<String>,
    /// Whether the metrics need no token: `"open"`, otherwise `"token"`.
    #[serde(rename = "metrics", with = "openness")]
    #[cfg_attr(feature = "schema", schemars(with = "openness::Word"))]
    pub metrics_open: bool,
    /// Time until a plan expires without a newer one. Zero: never.
    #[serde(with = "duration")]
    #[cfg_attr(feature = "schema", schemars(with = "trainmaster_core::amount::DurationText"))]
    pub plan_ttl: Duration,
    /// Maximum time for a program to stop.
    #[serde(with = "duration")]
    #[cfg_attr(feature = "schema", schemars(with = "trainmaster_core::amount::DurationText"))]
    pub grace: Duration,
    /// Limits of engines and fits.
    pub decision: DecisionConfig,
    /// Limits of the journal.
    pub journal: JournalConfig,
    /// Limits of callers.
    pub limits: LimitsConfig,
    /// Whether the processes of jobs end with the daemon, if an adapter runs them.
    pub end_jobs: bool,
    /// Time after which a training program without its feed ends by itself.
    #[serde(with = "duration")]
    #[cfg_attr(feature = "schema", schemars(with = "trainmaster_core::amount::DurationText"))]
    pub orphan_grace: Duration,
    /// The program of jobs without a command.
    pub trainer: Option<PathBuf>,
    /// The form of the log's lines on standard error.
    pub log_format: LogFormat,
    /// Address of a collector for OpenTelemetry traces (OTLP over gRPC, without TLS), such as
    /// `"http://127.0.0.1:4317"`. Needs a build with the feature `otel`.
    pub otlp: Option<String>,
    /// Number of lines that couldn't be logged.
    #[serde(skip)]
    pub log: LogLines,
    /// Injected faults of the disk.
    #[doc(hidden)]
    #[serde(skip)]
    pub faults: Faults,
}

/// A manager that runs inside the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline, with = "String"))]
pub struct AdapterChoice {
    /// The adapter's name.
    pub name: String,
    /// Its configuration file. Without one, it uses its defaults.
    pub config: Option<PathBuf>,
}

impl AdapterChoice {
    /// Reads `name` or `name=file`.
    pub fn parse(text: &str) -> Self {
        match text.split_once('=') {
            Some((name, file)) => Self { name: name.trim().into(), config: Some(file.trim().into()) },
            None => Self { name: text.trim().into(), config: None },
        }
    }
}

impl From<String> for AdapterChoice {
    fn from(text: String) -> Self {
        Self::parse(&text)
    }
}

impl From<AdapterChoice> for String {
    fn from(choice: AdapterChoice) -> Self {
        choice.to_string()
    }
}

impl std::fmt::Display for AdapterChoice {
    /// The form that [`Self::parse`] reads, with an absolute path.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.config {
            Some(file) => {
                let file = std::path::absolute(file).unwrap_or_else(|_| file.clone());
                write!(f, "{}={}", self.name, file.display())
            }
            None => f.write_str(&self.name),
        }
    }
}

/// Files for TLS, in PEM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Tls {
    /// The certificate and its chain.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The certificate's authority, for programs on this machine. Default: the certificate itself.
    pub ca: Option<PathBuf>,
    /// Authorities whose certificates identify clients. By default there are none, and clients show tokens.
    pub client_ca: Option<PathBuf>,
    /// The certificates that these authorities have revoked.
    pub client_crl: Option<PathBuf>,
}

impl Tls {
    /// A certificate and its key.
    pub fn new(cert: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        Self { cert: cert.into(), key: key.into(), ca: None, client_ca: None, client_crl: None }
    }

    /// The files of the port.
    pub(super) fn files(&self) -> TlsFiles {
        let Self { cert, key, client_ca, client_crl, .. } = self.clone();
        TlsFiles { cert, key, client_ca, client_crl }
    }

    fn each(self, here: impl Fn(PathBuf) -> PathBuf) -> Self {
        let Self { cert, key, ca, client_ca, client_crl } = self;
        let maybe = |path: Option<PathBuf>| path.map(&here);
        Self {
            cert: here(cert),
            key: here(key),
            ca: maybe(ca),
            client_ca: maybe(client_ca),
            client_crl: maybe(client_crl),
        }
    }
}

impl Default for Config {
    /// An empty configuration file.
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], Self::DEFAULT_PORT)),
            state_dir: secret::default_state_dir(),
            settings: Settings::default(),
            scheduler: None,
            scheduler_file: None,
            policy: Choice::Shipped,
            available: Adapters::default(),
            adapters: None,
            advertise: None,
            tls: None,
            admin_token_file: None,
            names: Vec::new(),
            metrics_open: false,
            plan_ttl: Duration::from_secs(60),
            grace: Duration::from_secs(30),
            decision: DecisionConfig::default(),
            journal: JournalConfig::default(),
            limits: LimitsConfig::default(),
            end_jobs: false,
            orphan_grace: Duration::from_secs(300),
            trainer: None,
            log_format: LogFormat::default(),
            otlp: None,
            log: LogLines::default(),
            faults: Faults::default(),
        }
    }
}

impl Config {
    /// The defaults with this state folder: any free port on loopback, and no adapter.
    pub fn new(state_dir: impl Into<PathBuf>) -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            state_dir: state_dir.into(),
            adapters: Some(Vec::new()),
            ..Self::default()
        }
    }

    /// The default port of clients.
    pub const DEFAULT_PORT: u16 = 7070;

    /// Parses a configuration. Relative paths in it stay relative.
    ///
    /// # Errors
    /// Names the key, the value and what is allowed.
    pub fn from_toml(text: &str) -> Result<Self, ServeError> {
        Self::read(text, Path::new(""))
    }

    /// Reads a configuration file. Relative paths in it start at its folder.
    ///
    /// # Errors
    /// As [`from_toml`](Self::from_toml), with the file's name.
    pub fn load(path: &Path) -> Result<Self, ServeError> {
        let text = bounded(path).map_err(|error| ServeError::Config(format!("{}: {error}", path.display())))?;
        let folder = path.parent().unwrap_or(Path::new(""));
        Self::read(&text, folder).map_err(|error| ServeError::Config(format!("{}: {error}", path.display())))
    }

    fn read(text: &str, folder: &Path) -> Result<Self, ServeError> {
        let file: Self = read_toml(text, LONGEST).map_err(|error| ServeError::Config(error.to_string()))?;
        let mut config = file.within(folder);
        match (config.scheduler.take(), config.scheduler_file.take()) {
            (Some(_), Some(_)) => return Err(wrong("scheduler_file", "give it or [scheduler], not both")),
            (Some(settings), None) => config.settings = settings,
            (None, Some(path)) => {
                let text = read_text("scheduler_file", &path)?;
                let of_file =
                    |error: SettingsError| wrong("scheduler_file", &format!("{}: {}", path.display(), error.problem));
                config.settings = Settings::from_toml(&text).map_err(of_file)?;
            }
            (None, None) => {}
        }
        Ok(config)
    }

    /// The whole configuration in force, as a file that [`from_toml`](Self::from_toml) reads: with flags and defaults,
    /// and with absolute paths, so that the file may be anywhere.
    ///
    /// # Errors
    /// A path isn't Unicode.
    ///
    /// ```
    /// use trainmaster_daemon::Config;
    ///
    /// let config = Config::from_toml("trainer = \"bin/train\"\n[limits]\nlists = 3").unwrap();
    /// let table = config.to_table().unwrap();
    /// assert!(table["trainer"].as_str().unwrap().starts_with('/'));
    /// let again = Config::from_toml(&table.to_string()).unwrap();
    /// assert_eq!(again.to_table().unwrap(), table);
    /// ```
    pub fn to_table(&self) -> Result<Table, ServeError> {
        let here = env::current_dir().unwrap_or_default();
        let whole = Self { scheduler: Some(self.settings.clone()), ..self.clone().within(&here) };
        Table::try_from(whole).map_err(|error| ServeError::Config(format!("it can't be printed: {error}")))
    }

    /// The same configuration with other values of some keys, as of a part of a file.
    ///
    /// # Errors
    /// Names the key, the value and what is allowed.
    ///
    /// ```
    /// use trainmaster_daemon::Config;
    ///
    /// let config = Config::from_toml("[limits]\nlists = 3").unwrap();
    /// let given = "limits = { jobs = 10 }".parse().unwrap();
    /// let limits = config.with(given).unwrap().limits;
    /// assert_eq!((limits.lists, limits.jobs), (3, 10));
    /// ```
    pub fn with(self, given: Table) -> Result<Self, ServeError> {
        let mut table = self.to_table()?;
        merge(&mut table, given);
        let mut config: Self = from_table(table).map_err(|error| ServeError::Config(error.brief()))?;
        if config.scheduler_file.is_some() {
            return Err(wrong("scheduler_file", "only a file can name it"));
        }
        let settings = config.scheduler.take().unwrap_or_default();
        Ok(Self { settings, available: self.available, log: self.log, faults: self.faults, ..config })
    }

    /// Lets relative paths start at a folder.
    fn within(self, folder: &Path) -> Self {
        let here = |path: PathBuf| folder.join(path);
        let maybe = |path: Option<PathBuf>| path.map(here);
        let beside = |choice: AdapterChoice| AdapterChoice { config: maybe(choice.config), ..choice };
        Self {
            state_dir: here(self.state_dir),
            scheduler_file: maybe(self.scheduler_file),
            policy: match self.policy {
                Choice::File(path) => Choice::File(here(path)),
                choice => choice,
            },
            adapters: self.adapters.map(|adapters| adapters.into_iter().map(beside).collect()),
            tls: self.tls.map(|tls| tls.each(here)),
            admin_token_file: maybe(self.admin_token_file),
            trainer: maybe(self.trainer),
            ..self
        }
    }

    /// Checks rules that also hold for flags. The daemon does so when it starts.
    ///
    /// # Errors
    /// The address is open to other machines, without TLS. A limit is too low or too high, or a name is no host's.
    pub fn check(&self) -> Result<(), ServeError> {
        if let Some((key, allowed)) = self.wrong_limit() {
            return Err(wrong(key, &allowed));
        }
        if let Some(name) = self.names.iter().find(|name| !is_host(name)) {
            return Err(wrong("names", &format!("{name:?} must be a host's name, such as \"login1.example.org\"")));
        }
        if let Some(address) = self.advertise.as_ref().filter(|address| !is_url(address)) {
            let problem = format!("{address:?} must be an address with its scheme, such as \"http://node1:7070\"");
            return Err(wrong("advertise", &problem));
        }
        if let Some(address) = self.otlp.as_ref().filter(|address| !is_url(address) || address.starts_with("https")) {
            let problem = format!(
                "{address:?} must be the address of a collector without TLS, usually on this machine: \
                 \"http://127.0.0.1:4317\""
            );
            return Err(wrong("otlp", &problem));
        }
        if !self.listen.ip().is_loopback() && self.tls.is_none() {
            let problem = format!(
                "{} is open to other machines and needs TLS (tls.cert and tls.key; `trainmaster certs init` makes \
                 them); or listen on 127.0.0.1",
                self.listen
            );
            return Err(wrong("listen", &problem));
        }
        Ok(())
    }

    /// The host names under which the port may be called. With TLS, any: the certificate identifies the port.
    pub(super) fn door(&self) -> Door {
        match self.tls {
            Some(_) => Door { names: None },
            None => Door::of(self.names.iter().chain(&self.advertise).map(String::as_str)),
        }
    }

    /// Descriptions of open doors that the site could close.
    pub(super) fn open_doors(&self) -> Vec<String> {
        let mut doors = Vec::new();
        if self.metrics_open {
            doors.push("the metrics are shown to whoever asks (metrics = \"open\")".to_owned());
        }
        if self.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some() && tls.client_crl.is_none()) {
            doors.push("a client's certificate can't be revoked (client_ca without client_crl)".to_owned());
        }
        doors
    }
}

/// Parses a numeric `host:port`, or `:port` for loopback.
pub(super) fn parse_listen(text: &str) -> Result<SocketAddr, ServeError> {
    let full = if text.starts_with(':') { format!("127.0.0.1{text}") } else { text.to_owned() };
    full.parse().map_err(|_| wrong("listen", &format!("{text:?} must be an address such as \"127.0.0.1:7070\"")))
}

fn bounded(path: &Path) -> io::Result<String> {
    trainmaster_host::bounded::read_text(path, LONGEST as u64)
}

fn read_text(key: &str, path: &Path) -> Result<String, ServeError> {
    bounded(path).map_err(|error| wrong(key, &format!("{}: {error}", path.display())))
}

fn listen<'de, D: Deserializer<'de>>(from: D) -> Result<SocketAddr, D::Error> {
    parse_listen(&String::deserialize(from)?).map_err(D::Error::custom)
}

mod policy {
    use super::*;

    pub(super) fn serialize<S: Serializer>(policy: &Choice, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(policy)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Choice, D::Error> {
        Ok(String::deserialize(from)?.as_str().into())
    }
}

/// The machine's own default means nothing elsewhere.
#[cfg(feature = "schema")]
fn without_default(schema: &mut schemars::Schema) {
    schema.remove("default");
}

mod openness {
    use super::*;

    #[cfg(feature = "schema")]
    #[derive(schemars::JsonSchema)]
    #[schemars(inline, rename_all = "lowercase")]
    #[expect(dead_code, reason = "only its schema is used")]
    pub(super) enum Word {
        Token,
        Open,
    }

    pub(super) fn serialize<S: Serializer>(is_open: &bool, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(if *is_open { "open" } else { "token" })
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
        match String::deserialize(from)?.as_str() {
            "token" => Ok(false),
            "open" => Ok(true),
            other => Err(D::Error::custom(format!("{other:?} must be \"token\" or \"open\""))),
        }
    }
}

/// Whether it is a host's name or address, with a port or without one.
fn is_host(name: &str) -> bool {
    let allowed = |host: String| host.chars().all(|c| c.is_ascii_alphanumeric() || "._-[]:".contains(c));
    name.parse::<IpAddr>().is_ok() || Door::host(name).is_some_and(allowed)
}

fn is_url(address: &str) -> bool {
    ["http://", "https://"].iter().any(|scheme| address.starts_with(scheme)) && Door::host(address).is_some()
}

/// Puts what is given over a table, and leaves all else as it is.
pub fn merge(table: &mut Table, given: Table) {
    for (key, value) in given {
        match (table.get_mut(&key), value) {
            (Some(toml::Value::Table(inner)), toml::Value::Table(given)) => merge(inner, given),
            (_, value) => {
                table.insert(key, value);
            }
        }
    }
}

fn wrong(key: &str, problem: &str) -> ServeError {
    ServeError::Config(format!("{key}: {problem}"))
}
