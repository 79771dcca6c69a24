//! The daemon's configuration.

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Deserialize;
use toml::Table;
use trainmaster_core::{
    Budget, Settings, Span, amount,
    text::{LONGEST, read_toml},
};
use trainmaster_feed::Limits;
use trainmaster_host::{JournalLimits, TicketLimits};
use trainmaster_manager::Adapters;
use trainmaster_net::{Door, LoadLimits, TlsFiles};
use trainmaster_policy::Choice;

use super::{
    ServeError,
    access::KeeperLimits,
    host::{HostOptions, JobLimits},
    log::LogLines,
    settings,
    store::faults::Faults,
};

/// The daemon's configuration.
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
#[derive(Clone, Debug)]
pub struct Config {
    /// The port for gRPC, metrics and JSON. Addresses other than loopback need TLS.
    pub listen: SocketAddr,
    /// The folder for the journal, the tokens and the adapters' folders.
    pub state_dir: PathBuf,
    /// The scheduler's settings. Default: [`DEFAULT_SETTINGS`](super::DEFAULT_SETTINGS).
    pub settings: Settings,
    /// The policies for engines that use one.
    pub policy: Choice,
    /// The adapters that the program contains. Default: none.
    pub available: Adapters,
    /// Managers that run inside the daemon. `None`: the available ones that run by default.
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
    /// Whether the metrics need no token.
    pub metrics_open: bool,
    /// Time until a plan expires without a newer one. Zero: never.
    pub plan_ttl: Duration,
    /// Maximum time for a program to stop.
    pub grace: Duration,
    /// Limits of engines and fits.
    pub tickets: TicketLimits,
    /// Limits of the journal.
    pub journal: JournalLimits,
    /// Bytes of records that are kept for replay, in addition to those that a restart needs.
    pub history_bytes: u64,
    /// Number of ended jobs that are kept for display.
    pub ended_jobs: usize,
    /// Maximum number of connections. Further ones wait to be accepted.
    pub connections: usize,
    /// Maximum number of job lists that are read or watched at a time.
    pub lists: usize,
    /// Maximum bytes of requests without an answer.
    pub request_bytes: usize,
    /// Maximum numbers of jobs.
    pub(super) jobs: JobLimits,
    /// Limits of training programs' calls.
    pub feed: Limits,
    /// Whether the processes of jobs end with the daemon, if an adapter runs them.
    pub end_jobs: bool,
    /// Time after which a training program without its feed ends by itself.
    pub orphan_grace: Duration,
    /// The program of jobs without a command.
    pub trainer: Option<PathBuf>,
    /// Number of lines that couldn't be logged.
    pub log: LogLines,
    /// Injected faults of the disk.
    #[doc(hidden)]
    pub faults: Faults,
}

/// A manager that runs inside the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
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
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
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

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct File {
    listen: Option<String>,
    state_dir: Option<PathBuf>,
    advertise: Option<String>,
    adapters: Option<Vec<String>>,
    admin_token_file: Option<PathBuf>,
    tls: Option<Tls>,
    #[serde(default)]
    names: Vec<String>,
    metrics: Option<String>,
    plan_ttl: Option<String>,
    grace: Option<String>,
    end_jobs: Option<bool>,
    orphan_grace: Option<String>,
    trainer: Option<PathBuf>,
    scheduler: Option<Table>,
    scheduler_file: Option<PathBuf>,
    policy: Option<String>,
    #[serde(default)]
    decision: DecisionFile,
    #[serde(default)]
    journal: JournalFile,
    #[serde(default)]
    limits: LimitsFile,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct DecisionFile {
    limit: Option<String>,
    steps: Option<u64>,
    fits_wait: Option<String>,
    fits_every: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct JournalFile {
    snapshot_records: Option<usize>,
    snapshot_bytes: Option<usize>,
    history_bytes: Option<u64>,
    waiting_bytes: Option<usize>,
    write_limit: Option<String>,
    ended_jobs: Option<usize>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct LimitsFile {
    connections: Option<usize>,
    lists: Option<usize>,
    request_bytes: Option<usize>,
    reports_per_second: Option<u32>,
    job_bytes_per_second: Option<u32>,
    tenant_bytes_per_second: Option<u32>,
    watchers_per_job: Option<usize>,
    jobs: Option<usize>,
    jobs_per_tenant: Option<usize>,
}

impl Config {
    /// The defaults with this state folder: any free port on loopback, and no adapter.
    pub fn new(state_dir: impl Into<PathBuf>) -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            state_dir: state_dir.into(),
            settings: settings::defaults(),
            policy: Choice::Shipped,
            available: Adapters::default(),
            adapters: Some(Vec::new()),
            advertise: None,
            tls: None,
            admin_token_file: None,
            names: Vec::new(),
            metrics_open: false,
            plan_ttl: Duration::from_secs(60),
            grace: Duration::from_secs(30),
            tickets: TicketLimits::default(),
            journal: JournalLimits::default(),
            history_bytes: 64 << 20,
            ended_jobs: 1000,
            connections: 10_000,
            lists: LoadLimits::default().lists,
            request_bytes: LoadLimits::default().request_bytes,
            jobs: JobLimits::default(),
            feed: Limits::default(),
            end_jobs: false,
            orphan_grace: Duration::from_secs(300),
            trainer: None,
            log: LogLines::default(),
            faults: Faults::default(),
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
        let file: File = read_toml(text, LONGEST).map_err(|error| ServeError::Config(error.to_string()))?;
        let File { decision, journal, limits, .. } = file;
        let state_dir = file.state_dir.map_or_else(default_state_dir, |path| folder.join(path));
        let defaults = Self::new(state_dir);
        let here = |path: PathBuf| folder.join(path);
        let settings = match (file.scheduler, file.scheduler_file) {
            (Some(_), Some(_)) => return Err(wrong("scheduler_file", "give it or [scheduler], not both")),
            (Some(table), None) => read_settings(&table.to_string())?,
            (None, Some(path)) => {
                let path = here(path);
                read_settings(&read_text("scheduler_file", &path)?)?
            }
            (None, None) => defaults.settings,
        };
        let policy = match file.policy.as_deref().map_or(Choice::Shipped, Choice::from) {
            Choice::File(path) => Choice::File(here(path)),
            choice => choice,
        };
        let adapters = file.adapters.map(|adapters| {
            let choose = |text: &String| {
                let choice = AdapterChoice::parse(text);
                AdapterChoice { config: choice.config.map(here), ..choice }
            };
            adapters.iter().map(choose).collect()
        });
        let metrics_open = match file.metrics.as_deref() {
            None | Some("token") => false,
            Some("open") => true,
            Some(other) => return Err(wrong("metrics", &format!("{other:?} must be \"token\" or \"open\""))),
        };
        Ok(Self {
            listen: match file.listen {
                Some(text) => parse_listen(&text)?,
                None => SocketAddr::from(([127, 0, 0, 1], Self::DEFAULT_PORT)),
            },
            settings,
            policy,
            available: Adapters::default(),
            adapters,
            advertise: file.advertise,
            tls: file.tls.map(|tls| tls.each(here)),
            admin_token_file: file.admin_token_file.map(here),
            names: file.names,
            metrics_open,
            plan_ttl: duration("plan_ttl", file.plan_ttl, defaults.plan_ttl)?,
            grace: duration("grace", file.grace, defaults.grace)?,
            tickets: TicketLimits {
                decision: duration("decision.limit", decision.limit, defaults.tickets.decision)?,
                budget: decision.steps.map_or(defaults.tickets.budget, |steps| Budget::steps(steps.max(1))),
                fits_wait: duration("decision.fits_wait", decision.fits_wait, defaults.tickets.fits_wait)?,
                fits_every: duration("decision.fits_every", decision.fits_every, defaults.tickets.fits_every)?,
            },
            journal: JournalLimits {
                snapshot_records: journal.snapshot_records.unwrap_or(defaults.journal.snapshot_records).max(1),
                snapshot_bytes: journal.snapshot_bytes.unwrap_or(defaults.journal.snapshot_bytes).max(1),
                waiting_bytes: journal.waiting_bytes.unwrap_or(defaults.journal.waiting_bytes),
                write_limit: duration("journal.write_limit", journal.write_limit, defaults.journal.write_limit)?,
            },
            history_bytes: journal.history_bytes.unwrap_or(defaults.history_bytes),
            ended_jobs: journal.ended_jobs.unwrap_or(defaults.ended_jobs),
            connections: limits.connections.unwrap_or(defaults.connections).max(1),
            lists: limits.lists.unwrap_or(defaults.lists).max(1),
            request_bytes: limits.request_bytes.unwrap_or(defaults.request_bytes),
            jobs: JobLimits {
                all: limits.jobs.unwrap_or(defaults.jobs.all),
                tenant: limits.jobs_per_tenant.unwrap_or(defaults.jobs.tenant),
            },
            feed: Limits {
                reports_per_second: limits.reports_per_second.unwrap_or(defaults.feed.reports_per_second),
                job_bytes_per_second: limits.job_bytes_per_second.unwrap_or(defaults.feed.job_bytes_per_second),
                tenant_bytes_per_second: limits
                    .tenant_bytes_per_second
                    .unwrap_or(defaults.feed.tenant_bytes_per_second),
                watchers_per_job: limits.watchers_per_job.unwrap_or(defaults.feed.watchers_per_job),
                ended_jobs: journal.ended_jobs.unwrap_or(defaults.ended_jobs),
                ..defaults.feed
            },
            end_jobs: file.end_jobs.unwrap_or(defaults.end_jobs),
            orphan_grace: duration("orphan_grace", file.orphan_grace, defaults.orphan_grace)?,
            trainer: file.trainer.map(here),
            state_dir: defaults.state_dir,
            log: defaults.log,
            faults: defaults.faults,
        })
    }

    /// Checks rules that also hold for flags.
    pub(super) fn check(&self) -> Result<(), ServeError> {
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

    pub(super) fn load_limits(&self) -> LoadLimits {
        LoadLimits { lists: self.lists, request_bytes: self.request_bytes, ..LoadLimits::default() }
    }

    pub(super) fn keeper_limits(&self) -> KeeperLimits {
        KeeperLimits { connections: self.connections, lists: self.lists, metrics_open: self.metrics_open }
    }

    pub(super) fn host_options(&self) -> HostOptions {
        HostOptions {
            tickets: self.tickets,
            journal: self.journal,
            grace: Span(i64::try_from(self.grace.as_millis()).unwrap_or(i64::MAX)),
            jobs: self.jobs,
        }
    }
}

/// `$XDG_STATE_HOME/trainmaster`, or `.local/state/trainmaster` in the home folder.
pub fn default_state_dir() -> PathBuf {
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".local/state"));
    let base = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).or_else(home);
    base.unwrap_or_else(|| "/var/lib".into()).join("trainmaster")
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

fn read_settings(text: &str) -> Result<Settings, ServeError> {
    Settings::from_toml(text).map_err(|error| wrong(&format!("scheduler.{}", error.key), &error.problem))
}

fn duration(key: &str, text: Option<String>, default: Duration) -> Result<Duration, ServeError> {
    let Some(text) = text else { return Ok(default) };
    let span = amount::parse_span(&text).map_err(|error| wrong(key, &error.to_string()))?;
    Ok(Duration::from_millis(u64::try_from(span.0).unwrap_or(0)))
}

fn wrong(key: &str, problem: &str) -> ServeError {
    ServeError::Config(format!("{key}: {problem}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_read() {
        let config = Config::from_toml(
            r#"
            listen = ":7071"
            state_dir = "/s"
            advertise = "http://node1:7071"
            adapters = ["local=a.toml", "other"]
            plan_ttl = "30s"
            grace = "5s"
            end_jobs = true
            orphan_grace = "1m"
            trainer = "/bin/train"
            policy = "none"
            admin_token_file = "/t"
            names = ["scheduler"]
            metrics = "open"
            tls = { cert = "/c", key = "/k", client_ca = "/a" }
            [scheduler]
            engine = "drf"
            stability = "off"
            [decision]
            limit = "500ms"
            steps = 10
            fits_wait = "1s"
            fits_every = "2s"
            [journal]
            snapshot_records = 10
            snapshot_bytes = 20
            history_bytes = 25
            waiting_bytes = 30
            write_limit = "4s"
            ended_jobs = 40
            [limits]
            connections = 1
            lists = 5
            request_bytes = 6
            reports_per_second = 2
            watchers_per_job = 3
            job_bytes_per_second = 7
            tenant_bytes_per_second = 8
            jobs = 9
            jobs_per_tenant = 10
            "#,
        )
        .unwrap();
        assert_eq!(config.listen, "127.0.0.1:7071".parse().unwrap());
        assert_eq!(config.settings.engine, "drf");
        assert_eq!(config.policy, Choice::None);
        let adapters = config.adapters.as_ref().unwrap();
        assert_eq!(adapters[0], AdapterChoice { name: "local".into(), config: Some("a.toml".into()) });
        assert_eq!(adapters[1].config, None);
        assert_eq!((config.tickets.decision, config.grace), (Duration::from_millis(500), Duration::from_secs(5)));
        assert_eq!((config.feed.watchers_per_job, config.feed.ended_jobs, config.connections), (3, 40, 1));
        assert_eq!((config.journal.waiting_bytes, config.history_bytes), (30, 25));
        assert_eq!(config.journal.write_limit, Duration::from_secs(4));
        assert_eq!((config.lists, config.request_bytes), (5, 6));
        assert_eq!((config.feed.job_bytes_per_second, config.feed.tenant_bytes_per_second), (7, 8));
        assert_eq!((config.jobs.all, config.jobs.tenant), (9, 10));
        assert_eq!((config.admin_token_file.clone(), config.metrics_open), (Some("/t".into()), true));
        assert_eq!(config.tls.as_ref().unwrap().client_ca, Some("/a".into()));
        assert_eq!(config.open_doors().len(), 2);
        config.check().unwrap();
    }

    #[test]
    fn settings_that_are_given_replace_the_defaults_wholly() {
        let settings = |text: &str| Config::from_toml(text).unwrap().settings;
        assert_eq!(settings("listen = \":1\""), super::settings::defaults());
        assert_eq!(settings("[scheduler]"), Settings::default());
        assert_eq!(settings("[scheduler]\nengine = \"optimus\""), Settings::default());
        let paper = settings("[scheduler.parameters]\nshrink_to_fit = true");
        assert_eq!(paper.parameters.len(), 1);
    }

    #[test]
    fn mistakes_are_named() {
        for (text, expected) in [
            ("listen = \"here\"", "listen: \"here\""),
            ("scheduler = { engine = 1 }", "scheduler.settings"),
            ("plan_ttl = \"long\"", "plan_ttl"),
            ("metrics = \"shut\"", "metrics: \"shut\" must be"),
            ("[journal]\nrecords = 1", "records"),
        ] {
            let message = Config::from_toml(text).unwrap_err().to_string();
            assert!(message.contains(expected), "{text}: {message}");
        }
    }

    #[test]
    fn an_open_address_needs_tls() {
        let mut config = Config::new("/s");
        config.listen = "0.0.0.0:7070".parse().unwrap();
        assert!(config.check().unwrap_err().to_string().contains("TLS (tls.cert and tls.key"));
        config.tls = Some(Tls::new("c", "k"));
        config.check().unwrap();
    }

    #[test]
    fn a_port_without_tls_knows_its_names() {
        let mut config = Config::new("/s");
        config.names = vec!["scheduler".into()];
        config.advertise = Some("http://node1.example.org:7071".into());
        let names = config.door().names.unwrap();
        assert!(["scheduler", "node1.example.org"].iter().all(|name| names.contains(&(*name).to_owned())), "{names:?}");
        config.tls = Some(Tls::new("c", "k"));
        assert_eq!(config.door().names, None);
    }
}
